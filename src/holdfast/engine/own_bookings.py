"""Loading what users already have who ask for more. Most buyers have nothing yet, and their batches skip this."""

from collections.abc import Mapping, Sequence, Set
from typing import Final

from msgspec import Struct, json

from holdfast import sql
from holdfast.core.booking import Booking
from holdfast.core.commands import PlaceHold, SeatItem
from holdfast.core.layout import Layout
from holdfast.engine.rows import columns
from holdfast.runtime.db import Connection


class OwnBookings(Struct):
    """The latest booking of each user, the users who own a named seat and its booking, and the bookings that users may
    get again."""

    users: list[tuple[bytes, str, bytes]]
    owners: list[tuple[bytes, int, bytes, str]]
    bookings: list[Booking]


_decode: Final = json.Decoder(OwnBookings).decode


async def load_own_bookings(
    connection: Connection,
    layouts: Mapping[bytes, Layout],
    holds: Sequence[PlaceHold],
    live_bookings: Mapping[tuple[bytes, str], int],
    taken: Mapping[bytes, Set[int]],
) -> OwnBookings | None:
    """`live_bookings` counts those of each user in an event, as far as the batch knows; `taken` has the taken seats."""
    if not taken and not any(live_bookings.values()):
        return None
    asking = _users_with_bookings(layouts, holds, live_bookings)
    named = [(*seat, is_first) for seat, is_first in _taken_seats(layouts, holds, live_bookings, taken).items()]
    if not asking and not named:
        return None
    user_events, users, user_wanted = columns(asking, 3)
    named_events, named_seats, named_users, named_first = columns(named, 4)
    document = await connection.fetchval(
        *sql.engine.load_own_bookings(
            user_events=user_events,
            users=users,
            user_wanted=user_wanted,
            named_events=named_events,
            named_seats=named_seats,
            named_users=named_users,
            named_first=named_first,
        )
    )
    return _decode(document)


def _users_with_bookings(
    layouts: Mapping[bytes, Layout], holds: Sequence[PlaceHold], live_bookings: Mapping[tuple[bytes, str], int]
) -> set[tuple[bytes, str, bool]]:
    """The users whose live bookings may be in the way of their request, and whether theirs may be what they ask for."""
    return {
        (command.event, command.user, policy.one_booking_per_user)
        for command in holds
        if live_bookings.get((command.event, command.user)) and (policy := layouts[command.event].policy).limits_users
    }


def _taken_seats(
    layouts: Mapping[bytes, Layout],
    holds: Sequence[PlaceHold],
    live_bookings: Mapping[tuple[bytes, str], int],
    taken: Mapping[bytes, Set[int]],
) -> dict[tuple[bytes, int, str], bool]:
    """The taken seats that a command names, each with the user who asks, because the seat may be theirs. The first seat
    of a command is true: its booking is the one that the user may get again. A user without live bookings has none."""
    wanted: dict[tuple[bytes, int, str], bool] = {}
    for command in holds:
        if command.event not in taken or live_bookings.get((command.event, command.user)) == 0:
            continue
        is_first = True
        for item in command.items:
            seat = layouts[command.event].seat_by_label.get(item.label) if isinstance(item, SeatItem) else None
            if seat is not None and seat.number in taken[command.event]:
                key = (command.event, seat.number, command.user)
                wanted[key] = is_first or wanted.get(key, False)
            is_first = is_first and seat is None
    return wanted
