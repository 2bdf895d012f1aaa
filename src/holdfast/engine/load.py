"""Loading a batch: lock its events, then read the clock and everything that its commands may need."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, json

from holdfast import sql
from holdfast.core.booking import Booking
from holdfast.core.commands import (
    Command,
    PlaceHold,
    SeatItem,
    SettlePayment,
    SubmitReceipt,
    TransferBooking,
)
from holdfast.core.event_state import EventState, PoolCounter
from holdfast.core.layout import Layout
from holdfast.core.notification_rules import WebhookSubscription
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime.db import Connection

# How many due holds one batch expires in each event. The rest waits for the next batch.
DUE_MAX: Final = 500


class LoadedBatch(Struct):
    """The loaded state of each event. `unfinished`: an event has more due holds than one batch expires.
    `endpoints`: the webhook subscriptions of each org."""

    now: datetime
    states: dict[bytes, EventState]
    unfinished: bool
    endpoints: dict[bytes, list[WebhookSubscription]]


class _Loaded(Struct):
    now: datetime
    bookings: list[Booking]
    pools: list[tuple[bytes, int, int, int, int]]
    taken: list[tuple[bytes, int, bytes]]
    endpoints: list[tuple[bytes, bytes, frozenset[str]]]


_decode_loaded: Final = json.Decoder(_Loaded).decode


async def load_batch(
    connection: Connection,
    cache: LayoutCache,
    commands: Mapping[bytes, Sequence[Command]],
    lock: str = sql.engine.lock,
    ending_max: int = 0,
) -> LoadedBatch:
    """Load the events that the commands name, and up to `ending_max` bookings of each ended event. Events that do not
    exist have no state, nor do locked events if `lock` skips them."""
    locked = await connection.fetch(lock, list(commands))
    versions = {row["id"]: row["version"] for row in locked}
    layouts = await cache.get(connection, {row["id"]: row["revision"] for row in locked})
    commands_to_locked = [command for event in versions for command in commands[event]]
    loaded = await _load(connection, layouts, commands_to_locked, ending_max)
    return _build_batch(loaded, layouts, versions)


async def _load(
    connection: Connection, layouts: Mapping[bytes, Layout], commands: list[Command], ending_max: int
) -> _Loaded:
    holds = [command for command in commands if isinstance(command, PlaceHold)]
    request_events, request_keys = _columns((command.event, command.request_key) for command in holds)
    booking_events, booking_ids = _columns((c.event, c.booking) for c in commands if not isinstance(c, PlaceHold))
    user_events, users = _columns(_users_to_load(layouts, commands))
    pool_events, pools = _columns(_pools_to_load(layouts, holds))
    seat_events, first_seats, last_seats = _columns(_seats_to_load(layouts, holds), 3)
    revival_events, revivals = _columns(
        (command.event, command.booking) for command in commands if _may_revive(command)
    )
    document = await connection.fetchval(
        *sql.engine.load(
            events=list(layouts),
            due_max=DUE_MAX,
            request_events=request_events,
            request_keys=request_keys,
            booking_events=booking_events,
            booking_ids=booking_ids,
            user_events=user_events,
            users=users,
            ending_max=ending_max,
            pool_events=pool_events,
            pools=pools,
            seat_events=seat_events,
            first_seats=first_seats,
            last_seats=last_seats,
            revival_events=revival_events,
            revivals=revivals,
            orgs=list({layout.org for layout in layouts.values()}),
        )
    )
    return _decode_loaded(document)


def _build_batch(loaded: _Loaded, layouts: Mapping[bytes, Layout], versions: dict[bytes, int]) -> LoadedBatch:
    bookings: dict[bytes, dict[bytes, Booking]] = defaultdict(dict)
    counters: dict[bytes, dict[int, PoolCounter]] = defaultdict(dict)
    taken: dict[bytes, dict[int, bytes]] = defaultdict(dict)
    due: dict[bytes, int] = defaultdict(int)
    for booking in loaded.bookings:
        bookings[booking.event][booking.id] = booking
        due[booking.event] += booking.is_due(loaded.now)
    for event, number, capacity, held, sold in loaded.pools:
        counters[event][number] = PoolCounter(capacity, held, sold)
    for event, seat, owner in loaded.taken:
        taken[event][seat] = owner
    states = {
        event: EventState(layouts[event], loaded.now, version, counters[event], bookings[event], taken[event])
        for event, version in versions.items()
    }
    endpoints: dict[bytes, list[WebhookSubscription]] = defaultdict(list)
    for org, endpoint, kinds in loaded.endpoints:
        endpoints[org].append(WebhookSubscription(endpoint, kinds))
    return LoadedBatch(loaded.now, states, any(count >= DUE_MAX for count in due.values()), endpoints)


def _users_to_load(layouts: Mapping[bytes, Layout], commands: list[Command]) -> set[tuple[bytes, str]]:
    return {
        (command.event, command.user)
        for command in commands
        if isinstance(command, PlaceHold | TransferBooking) and layouts[command.event].policy.limits_users
    }


def _may_revive(command: Command) -> bool:
    """Whether the command can revive an expired booking, which needs to know whether its units are free."""
    return isinstance(command, SettlePayment | SubmitReceipt)


def _pools_to_load(layouts: Mapping[bytes, Layout], holds: list[PlaceHold]) -> set[tuple[bytes, int]]:
    wanted: set[tuple[bytes, int]] = set()
    for command in holds:
        layout = layouts[command.event]
        codes = [command.best_available.pool] if command.best_available else []
        for item in command.items:
            if not isinstance(item, SeatItem):
                codes.append(item.pool)
            elif seat := layout.seat_by_label.get(item.label):
                wanted.add((command.event, seat.pool))
        wanted.update((command.event, pool.number) for code in codes if (pool := layout.pool_by_code.get(code)))
    return wanted


def _seats_to_load(layouts: Mapping[bytes, Layout], holds: list[PlaceHold]) -> set[tuple[bytes, int, int]]:
    """Ranges of seats: the whole pool for best available seats, and a seat's run where orphans matter."""
    wanted: set[tuple[bytes, int, int]] = set()
    for command in holds:
        layout = layouts[command.event]
        if command.best_available and (pool := layout.pool_by_code.get(command.best_available.pool)) and pool.seats:
            wanted.add((command.event, *pool.seats))
        for item in command.items:
            if isinstance(item, SeatItem) and (seat := layout.seat_by_label.get(item.label)):
                alone = range(seat.number, seat.number + 1)
                run = layout.run_by_seat[seat.number] if layout.policy.avoid_orphans else alone
                wanted.add((command.event, run.start, run.stop - 1))
    return wanted


def _columns(rows: Iterable[tuple[Any, ...]], width: int = 2) -> list[tuple[Any, ...]]:
    return list(zip(*rows, strict=True)) or [()] * width
