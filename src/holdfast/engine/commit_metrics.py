"""Counts what transactions have changed, after their commit."""

from datetime import timedelta
from typing import Final

from holdfast.core.journal import EXTENDED, PAYMENT_PREFIX, TRANSFERRED, JournalEntry
from holdfast.core.states import Status
from holdfast.engine.load import LoadedBatch
from holdfast.runtime import metrics

_HELD: Final = Status.HELD.value
_PAID: Final = frozenset({Status.PAYMENT_SUBMITTED, Status.CONFIRMED})
_REVIEWED: Final = frozenset({Status.CONFIRMED, Status.REJECTED})
SECOND: Final = timedelta(seconds=1)


def record_commit(loaded: LoadedBatch) -> None:
    """Count what a transaction has changed, after its commit."""
    held = units = 0
    for state in loaded.states.values():
        for entry in state.entries:
            # A batch may have a hundred new holds, so they are counted together.
            if entry.kind == _HELD:
                held += 1
                for line in entry.booking.lines:
                    units += line.quantity
            else:
                _record_entry(entry, loaded)
    if held:
        metrics.TRANSITIONS.add(_HELD, count=held)
        metrics.UNITS.add(_HELD, count=units)


def _record_entry(entry: JournalEntry, loaded: LoadedBatch) -> None:
    kind = entry.kind
    if kind == TRANSFERRED:
        metrics.TRANSFERS.add()
    elif kind.startswith(PAYMENT_PREFIX):
        metrics.PAYMENTS.add(kind.removeprefix(PAYMENT_PREFIX))
    elif kind == EXTENDED:
        metrics.HOLD_EXTENSIONS.add(EXTENDED)
    else:
        metrics.TRANSITIONS.add(kind)
        _record_progress(entry, loaded)


def _record_progress(entry: JournalEntry, loaded: LoadedBatch) -> None:
    """How long a booking took to be paid, and how long its receipt waited."""
    booking, status = entry.booking, entry.booking.status
    if status is Status.CONFIRMED:
        # Without a hold, it would make the conversion of holds look better than it is.
        metrics.UNITS.add(metrics.CONFIRMED_AT_ONCE if entry.was is None else status.value, count=booking.units)
    if entry.was is Status.HELD and status in _PAID:
        metrics.TIME_TO_PAYMENT.observe((loaded.now - booking.created_at) / SECOND)
    elif entry.was is Status.PAYMENT_SUBMITTED and status in _REVIEWED and booking.payments:
        metrics.TIME_TO_REVIEW.observe((loaded.now - booking.payments[-1].created_at) / SECOND)
