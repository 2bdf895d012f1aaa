"""Records what happens to commands and batches."""

from datetime import timedelta
from typing import Final

from holdfast.core.commands import (
    Accepted,
    ActOnBooking,
    Command,
    PlaceHold,
    ResolvePayment,
    SettlePayment,
    StartPayment,
    SubmitReceipt,
    TransferBooking,
)
from holdfast.core.decide import Outcome
from holdfast.core.journal import EXTENDED, PAYMENT_PREFIX, TRANSFERRED, JournalEntry
from holdfast.core.refusals import Refusal
from holdfast.core.states import Status
from holdfast.engine.load import LoadedBatch
from holdfast.runtime import metrics

COMMAND_NAMES: Final[dict[type[Command], str]] = {
    PlaceHold: "place_hold",
    StartPayment: "start_payment",
    SubmitReceipt: "submit_receipt",
    SettlePayment: "settle_payment",
    ResolvePayment: "resolve_payment",
    TransferBooking: "transfer",
}
# Starting a payment extends the hold.
_EXTENDING: Final = frozenset({"extend", "start_payment"})
_PAID: Final = frozenset({Status.PAYMENT_SUBMITTED, Status.CONFIRMED})
_REVIEWED: Final = frozenset({Status.CONFIRMED, Status.REJECTED})
SECOND: Final = timedelta(seconds=1)


def command_name(command: Command) -> str:
    return command.verb.value if isinstance(command, ActOnBooking) else COMMAND_NAMES[type(command)]


def outcome_name(outcome: Outcome) -> str:
    """`placed`, `replayed`, or the code of the refusal."""
    if isinstance(outcome, Accepted):
        return "replayed" if outcome.replayed or outcome.is_reentrant else "placed"
    return outcome.refusal.code


def record_hold(outcome: Outcome, path: str) -> Outcome:
    metrics.HOLD_ATTEMPTS.add(outcome_name(outcome), path)
    return outcome


def record_outcome(command: Command, seconds: float, outcome: Outcome) -> None:
    """`seconds` is how long the command took."""
    name = command_name(command)
    metrics.COMMAND_SECONDS.observe(seconds, name)
    if name in _EXTENDING:
        metrics.HOLD_EXTENSIONS.add(_extension_outcome(outcome))


def _extension_outcome(outcome: Outcome) -> str:
    if isinstance(outcome, Accepted):
        return "extended"
    if outcome.refusal is Refusal.HOLD_EXPIRED:
        return "expired_before_checkout"
    return "failed" if outcome.refusal in (Refusal.BUSY, Refusal.INTERNAL) else "refused"


def record_commit(loaded: LoadedBatch) -> None:
    """Count what a transaction has changed, after its commit."""
    for state in loaded.states.values():
        for entry in state.entries:
            _record_entry(entry, loaded)


def _record_entry(entry: JournalEntry, loaded: LoadedBatch) -> None:
    kind = entry.kind
    if kind == Status.HELD:
        metrics.TRANSITIONS.add(kind)
        metrics.UNITS.add(kind, count=entry.booking.units)
    elif kind == TRANSFERRED:
        metrics.TRANSFERS.add()
    elif kind.startswith(PAYMENT_PREFIX):
        metrics.PAYMENTS.add(kind.removeprefix(PAYMENT_PREFIX))
    elif kind != EXTENDED:
        metrics.TRANSITIONS.add(kind)
        _record_progress(entry, loaded)


def _record_progress(entry: JournalEntry, loaded: LoadedBatch) -> None:
    """How long a booking took to be paid, and how long its receipt waited."""
    booking, status = entry.booking, entry.booking.status
    if status is Status.CONFIRMED:
        metrics.UNITS.add(status.value, count=booking.units)
    if entry.was is Status.HELD and status in _PAID:
        metrics.TIME_TO_PAYMENT.observe((loaded.now - booking.created_at) / SECOND)
    elif entry.was is Status.PAYMENT_SUBMITTED and status in _REVIEWED and booking.payments:
        metrics.TIME_TO_REVIEW.observe((loaded.now - booking.payments[-1].created_at) / SECOND)
