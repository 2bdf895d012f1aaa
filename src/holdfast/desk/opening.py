"""Opening the books: lock the events of a batch, then read the clock, then load what the commands may need."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.book import Book
from holdfast.core.commands import Act, Command, Place, SeatItem
from holdfast.core.layout import Layout
from holdfast.core.model import Booking, Counter, Line
from holdfast.core.states import Status
from holdfast.db import Connection
from holdfast.desk.layouts import Layouts

# More holds than these do not end in one batch; what is over waits for the next.
DUE_MAX: Final = 500

Pairs = Iterable[tuple[bytes, Any]]


class Books(Struct):
    """The open books of a batch by event. `unfinished`: events with more due holds than one batch takes."""

    now: datetime
    books: dict[bytes, Book]
    versions: dict[bytes, int]
    unfinished: bool


async def open_books(
    connection: Connection,
    layouts: Layouts,
    commands: Mapping[bytes, Sequence[Command]],
    lock: str = sql.desk.lock,
    live_max: int = 0,
) -> Books:
    """Events that do not exist, or that another holds where `lock` does not wait, have no book. With `live_max`,
    that many live bookings of each event are loaded too."""
    locked = await connection.fetch(lock, list(commands))
    versions = {row["id"]: row["version"] for row in locked}
    plans = await layouts.get(connection, {row["id"]: row["revision"] for row in locked})
    asked = [command for event in versions for command in commands[event]]
    named = [(command.event, command.booking) for command in asked if isinstance(command, Act)]
    if live_max:
        named += [tuple(row) for row in await connection.fetch(sql.desk.load_live, list(versions), live_max)]
    placing = [command for command in asked if isinstance(command, Place)]
    now, bookings = await _load_bookings(connection, list(versions), placing, named, _users_to_count(plans, placing))
    due: dict[bytes, int] = defaultdict(int)
    for booking in bookings:
        due[booking.event] += booking.is_due(now)
    counters = await _load_counters(connection, _pools_to_load(plans, placing, bookings))
    taken = await _load_taken(connection, _seats_to_load(plans, placing))
    own: dict[bytes, dict[bytes, Booking]] = defaultdict(dict)
    for booking in bookings:
        own[booking.event][booking.id] = booking
    books = {
        event: Book(plans[event], now, version, counters[event], own[event], taken[event])
        for event, version in versions.items()
    }
    return Books(now, books, versions, any(count >= DUE_MAX for count in due.values()))


async def _load_bookings(
    connection: Connection, events: list[bytes], placing: list[Place], named: Pairs, users: Pairs
) -> tuple[datetime, list[Booking]]:
    keys = [(command.event, command.request_key) for command in placing]
    rows = await connection.fetch(
        sql.desk.load_bookings, events, *_columns(keys), *_columns(named), *_columns(users), DUE_MAX
    )
    return rows[0]["at"], [booking_of(row) for row in rows if row["id"] is not None]


def booking_of(row: Any) -> Booking:
    """A booking as its row and the arrays of its lines tell it."""
    columns = (row["pools"], row["tariffs"], row["seats"], row["quantities"], row["unit_prices"])
    return Booking(
        id=row["id"],
        event=row["event_id"],
        org=row["org_id"],
        user=row["user_id"],
        status=Status(row["status"]),
        lines=tuple(map(Line, *columns)),
        subtotal=row["subtotal"],
        tax=row["tax"],
        total=row["total"],
        currency=row["currency"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        max_expires_at=row["max_expires_at"],
        request_key=row["request_key"],
        fingerprint=row["fingerprint"],
        cart_hash=row["cart_hash"],
        details=row["details"],
        reason=row["reason"],
        version=row["version"],
    )


def _users_to_count(plans: Mapping[bytes, Layout], placing: list[Place]) -> set[tuple[bytes, str]]:
    policies = {event: plan.policy for event, plan in plans.items()}
    return {
        (command.event, command.user)
        for command in placing
        if policies[command.event].one_booking_per_user or policies[command.event].max_units_per_user is not None
    }


def _pools_to_load(
    plans: Mapping[bytes, Layout], placing: list[Place], bookings: list[Booking]
) -> set[tuple[bytes, int]]:
    wanted = {(booking.event, line.pool) for booking in bookings for line in booking.lines}
    for command in placing:
        plan = plans[command.event]
        codes = [command.best.pool] if command.best else []
        for item in command.items:
            if not isinstance(item, SeatItem):
                codes.append(item.pool)
            elif seat := plan.seat_by_label.get(item.label):
                wanted.add((command.event, seat.pool))
        wanted.update((command.event, pool.number) for code in codes if (pool := plan.pool_by_code.get(code)))
    return wanted


def _seats_to_load(plans: Mapping[bytes, Layout], placing: list[Place]) -> set[tuple[bytes, int, int]]:
    """Ranges of seats: all of a pool for the best available, the run around a seat where orphans matter."""
    wanted: set[tuple[bytes, int, int]] = set()
    for command in placing:
        plan = plans[command.event]
        if command.best and (pool := plan.pool_by_code.get(command.best.pool)) and pool.seats:
            wanted.add((command.event, *pool.seats))
        for item in command.items:
            if isinstance(item, SeatItem) and (seat := plan.seat_by_label.get(item.label)):
                run = plan.run_of[seat.number] if plan.policy.avoid_orphans else range(seat.number, seat.number + 1)
                wanted.add((command.event, run.start, run.stop - 1))
    return wanted


async def _load_counters(connection: Connection, wanted: set[tuple[bytes, int]]) -> dict[bytes, dict[int, Counter]]:
    found: dict[bytes, dict[int, Counter]] = defaultdict(dict)
    if wanted:
        for event, number, *counts in await connection.fetch(sql.desk.load_pools, *_columns(wanted)):
            found[event][number] = Counter(*counts)
    return found


async def _load_taken(connection: Connection, wanted: set[tuple[bytes, int, int]]) -> dict[bytes, dict[int, bytes]]:
    found: dict[bytes, dict[int, bytes]] = defaultdict(dict)
    if wanted:
        for event, seat, booking in await connection.fetch(sql.desk.load_taken, *_columns(wanted, 3)):
            found[event][seat] = booking
    return found


def _columns(rows: Iterable[tuple[Any, ...]], width: int = 2) -> list[tuple[Any, ...]]:
    return list(zip(*rows, strict=True)) or [()] * width
