"""Deciding a batch of commands to one event.

`decide` is a pure function of the event's state and the commands: the clock is part of the state, and ids come with
the commands. A refused command changes nothing.
"""

from collections.abc import Sequence
from typing import assert_never

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
from holdfast.core.event_state import SYSTEM, EventState
from holdfast.core.holds import place_hold
from holdfast.core.reasons import Reason
from holdfast.core.refusals import Refused, RefusedError
from holdfast.core.settlement import resolve_payment, settle_payment, start_payment, submit_receipt
from holdfast.core.states import ENDINGS, Status, Verb
from holdfast.core.transfer import transfer_booking
from holdfast.core.transitions import act_on_booking, apply_verb, end_with_event

Outcome = Accepted | Refused


def decide(state: EventState, commands: Sequence[Command], lines_max: int | None = None) -> list[Outcome]:
    """One outcome per command, in order. Due holds expire first, so that their units are free for these commands. The
    command that changes the last of `lines_max` lines is the last one decided; the others have no outcome."""
    expire_due(state)
    first_line = state.line_count
    outcomes = []
    state.decided.append(len(state.entries))
    for command in commands:
        outcomes.append(_decide_one(state, command))
        state.decided.append(len(state.entries))
        if lines_max is not None and state.line_count - first_line >= lines_max:
            break
    return outcomes


def expire_due(state: EventState) -> int:
    due = [booking for booking in state.bookings.values() if booking.is_due(state.now)]
    for booking in due:
        in_review = booking.status is Status.PAYMENT_SUBMITTED
        reason = Reason.RECEIPT_NOT_REVIEWED if in_review else None
        apply_verb(state, booking, Verb.EXPIRE, SYSTEM, reason)
    return len(due)


def end_bookings(state: EventState) -> int:
    """End the loaded bookings of an event that is completed or cancelled."""
    if state.layout.status not in ENDINGS:
        return 0
    bookings = list(state.bookings.values())
    return sum(end_with_event(state, booking) is not booking for booking in bookings)


def _decide_one(state: EventState, command: Command) -> Outcome:
    try:
        return _run(state, command)
    except RefusedError as error:
        return error.refused


def _run(state: EventState, command: Command) -> Accepted:
    match command:
        case PlaceHold():
            return place_hold(state, command)
        case ActOnBooking():
            return act_on_booking(state, command)
        case StartPayment():
            return start_payment(state, command)
        case SubmitReceipt():
            return submit_receipt(state, command)
        case SettlePayment():
            return settle_payment(state, command)
        case ResolvePayment():
            return resolve_payment(state, command)
        case TransferBooking():
            return transfer_booking(state, command)
        case _:
            assert_never(command)
