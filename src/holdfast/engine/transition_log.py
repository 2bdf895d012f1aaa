"""One log line for each change of a booking, payment or event, after the commit.

The journal is the complete record; the log is for people who search and count. A line is missing if the process dies
right after the commit, or if the outcome of a commit was unknown and a second run found the work done.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

import structlog

from holdfast.core.event_state import EventState
from holdfast.core.journal import (
    EVENT_CANCELLED,
    EVENT_CHANGED,
    EVENT_COMPLETED,
    EVENT_CREATED,
    EVENT_PUBLISHED,
    EXTENDED,
    PAYMENT_PREFIX,
    TRANSFERRED,
)
from holdfast.core.payment import PaymentStatus
from holdfast.core.reasons import Reason
from holdfast.core.refusals import Refusal
from holdfast.core.states import Status
from holdfast.engine.command_queue import Waiting
from holdfast.engine.load import LoadedBatch
from holdfast.runtime import ids
from holdfast.runtime.log_lines import LogLine, log_lines, log_time
from holdfast.runtime.pseudonyms import pseudonyms

log = structlog.get_logger()

EVENT_LINES: Final = (EVENT_CREATED, EVENT_PUBLISHED, EVENT_CHANGED, EVENT_COMPLETED, EVENT_CANCELLED)
ACCEPTED: Final = "accepted"
# The name of the line by the kind of its journal entry.
LINE_NAMES: Final = {
    **{status.value: f"booking_{status}" for status in Status},
    EXTENDED: "booking_extended",
    TRANSFERRED: "booking_transferred",
    **{f"{PAYMENT_PREFIX}{status}": f"payment_{status}" for status in PaymentStatus},
}
# Any other reason is text that a person typed.
_REASON_CODES: Final = frozenset([*(reason.value for reason in Reason), *(refusal.code for refusal in Refusal)])


class TransitionLine(LogLine, omit_defaults=True, kw_only=True, gc=False):
    """`was` is the status of the booking before, unless it is new."""

    was: str | None = None
    reason: str | None = None
    payment: str | None = None


def log_event_change(line: str, org: bytes, event: bytes, actor: str) -> None:
    assert line in EVENT_LINES
    log.info(
        line,
        org=ids.format_org_id(org),
        event_id=ids.format_event_id(event),
        actor=pseudonyms.find(org, actor),
        outcome=ACCEPTED,
    )


def log_transitions(batch: LoadedBatch) -> None:
    """Listens to the engine's commits."""
    if not any(state.entries for state in batch.states.values()):
        return
    timestamp, now = log_time(), time.monotonic()
    waiting = _group_by_event(batch)
    lines: list[TransitionLine] = []
    for event, state in batch.states.items():
        org = state.layout.org
        org_id, event_id = ids.format_org_id(org), ids.format_event_id(event)
        booking_prefix = ids.format_booking_id(event, b"")
        for entry, cause in zip(state.entries, _causes(state, waiting.get(event, ())), strict=True):
            data = entry.data
            lines.append(
                TransitionLine(
                    event=LINE_NAMES[entry.kind],
                    level="info",
                    timestamp=timestamp,
                    org=org_id,
                    event_id=event_id,
                    booking=booking_prefix + entry.booking.id.hex(),
                    actor=pseudonyms.find(org, entry.actor),
                    outcome=ACCEPTED,
                    request_id=None if cause is None else cause.request_id,
                    duration_ms=None if cause is None else int((now - cause.submitted_at) * 10_000) / 10,
                    was=entry.was,
                    reason=None if data.reason not in _REASON_CODES else data.reason,
                    payment=None if data.payment is None else _payment_id(event, data.payment),
                )
            )
    log_lines.write(lines)


def _payment_id(event: bytes, payment: str) -> str:
    return ids.format_payment_id(event, bytes.fromhex(payment))


def _group_by_event(batch: LoadedBatch) -> Mapping[bytes, Sequence[Waiting]]:
    """The commands of each event. In a rush, all commands of a batch are to one event, and it has decided all."""
    if len(batch.states) == 1:
        ((event, state),) = batch.states.items()
        if len(state.decided) == 1 + len(batch.waiting):
            return {event: batch.waiting}
    waiting: dict[bytes, list[Waiting]] = defaultdict(list)
    for each in batch.waiting:
        waiting[each.command.event].append(each)
    return waiting


def _causes(state: EventState, waiting: Sequence[Waiting]) -> list[Waiting | None]:
    """The command that caused each entry. Nobody asked for the expiries, which come first."""
    if not state.decided:
        return [None] * len(state.entries)
    causes: list[Waiting | None] = [None] * state.decided[0]
    for each, end in zip(waiting, islice(state.decided, 1, None), strict=False):
        while len(causes) < end:
            causes.append(each)
    return causes
