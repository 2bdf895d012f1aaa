"""The bookings of the worker who talks to the bot."""

from typing import Final

from holdfast.api import booking_handlers as bookings
from holdfast.api.booking_schemas import BookingView
from holdfast.api.requests import BookingsQuery
from holdfast.bot.turn import Turn
from holdfast.core.refusals import RefusedError
from holdfast.core.states import Status
from holdfast.runtime import ids

FOUND_MAX: Final = 20


async def find_bookings(turn: Turn, status: Status) -> list[BookingView]:
    """The newest first."""
    query = BookingsQuery(status=status, limit=FOUND_MAX)
    return (await turn.api.as_worker(turn.person.person_id, bookings.list_bookings, query=query)).content.items


async def find_booking(turn: Turn, event: bytes, booking: bytes) -> BookingView | None:
    id_ = ids.format_booking_id(event, booking)
    try:
        return (await turn.api.as_worker(turn.person.person_id, bookings.get_booking, id_)).content
    except RefusedError:
        return None
