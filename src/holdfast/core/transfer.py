"""Transferring a confirmed booking to another person."""

from typing import Final

from holdfast.core.commands import Accepted, TransferBooking
from holdfast.core.event_state import EventState
from holdfast.core.holds import check_user_limits
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import TRANSITIONS, Verb
from holdfast.core.transitions import end_with_event, find_booking

# A ticket's code stores the generation in two bytes.
GENERATIONS_MAX: Final = 65_535


def transfer_booking(state: EventState, command: TransferBooking) -> Accepted:
    """Transferring a booking to its present owner changes nothing."""
    booking = find_booking(state, command)
    if command.user != booking.user and booking.id in state.checked_in:
        raise RefusedError(
            Refusal.ALREADY_CHECKED_IN,
            "Someone has entered with a ticket of this booking, so you can no longer transfer it.",
        )
    booking = end_with_event(state, booking)
    target = TRANSITIONS[booking.status, Verb.TRANSFER]
    if isinstance(target, Refusal):
        raise RefusedError(target)
    if command.user != booking.user:
        if command.generation != booking.generation:
            raise RefusedError(
                Refusal.ALREADY_TRANSFERRED,
                "Someone else transferred the booking at the same time. Fetch the booking again.",
            )
        if booking.generation >= GENERATIONS_MAX:
            raise RefusedError(Refusal.LIMIT_REACHED, "The booking was transferred too many times.")
        check_user_limits(state, command.user, booking.lines)
        booking = state.transfer_booking(booking, command)
    return Accepted(booking, state.layout, state.now)
