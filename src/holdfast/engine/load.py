"""Loading a batch: lock its events, then read the clock and everything that its commands may need."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct, json

from holdfast import sql
from holdfast.core.booking import Booking
from holdfast.core.clients import FREE_BOOKING_SECONDS, ClientRecord, ClientRecords, ExpiryStreak, UserRecord
from holdfast.core.commands import (
    ActOnBooking,
    Command,
    PlaceHold,
    SeatItem,
    SettlePayment,
    SubmitReceipt,
    TransferBooking,
)
from holdfast.core.event_state import EventState, PoolCounter, SeatOwner
from holdfast.core.hoarding import ADDRESS_FACTOR, is_limited
from holdfast.core.layout import Layout
from holdfast.core.notification_rules import WebhookSubscription
from holdfast.core.policy import Policy
from holdfast.core.states import Verb
from holdfast.engine.command_queue import Waiting
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.own_bookings import OwnBookings, load_own_bookings
from holdfast.engine.rows import columns
from holdfast.runtime.db import Connection, Record

# How many due holds one batch expires in each event. The rest waits for the next batch.
DUE_MAX: Final = 500
# How many lines the due holds of all events in a batch may have. The hold that reaches this number is the last.
SWEPT_LINES_MAX: Final = 5_000
# How many seats a batch may look at to place its holds.
SEATS_LOADED_MAX: Final = 100_000


class Chain(Struct, frozen=True, gc=False):
    """What the next entry of a journal needs: the hash of the last one, and the key of the actors' pseudonyms."""

    head: bytes
    actor_key: bytes


class LoadedBatch(Struct):
    """The loaded state of each event. `unfinished`: the events that may have more due holds than one batch expires.
    `endpoints`: the webhook subscriptions of each org. `buses`: the buses that get every entry. `chains`: the ends of
    the locked events' journals. `left_out`: events that exist and have no state here. `waiting`: the commands that the
    batch is for, unless it is a sweep."""

    now: datetime
    states: dict[bytes, EventState]
    unfinished: set[bytes]
    endpoints: dict[bytes, list[WebhookSubscription]]
    buses: list[str]
    chains: dict[bytes, Chain]
    left_out: set[bytes]
    waiting: Sequence[Waiting] = ()


class _Loaded(Struct):
    now: datetime
    unfinished: set[bytes]
    bookings: list[Booking]
    users: list[tuple[bytes, str, int, int, int]]
    pools: list[tuple[bytes, int, int, int, int]]
    taken: list[tuple[bytes, set[int]]]
    endpoints: list[tuple[bytes, bytes, frozenset[str]]]
    buses: list[str]


class _LoadedClients(Struct):
    clients: list[tuple[bytes, bytes, int, int, datetime | None]] = []
    streaks: list[tuple[bytes, str, int, datetime | None]] = []


_decode_loaded: Final = json.Decoder(_Loaded).decode
_decode_clients: Final = json.Decoder(_LoadedClients).decode


async def load_batch(
    connection: Connection,
    cache: LayoutCache,
    commands: Mapping[bytes, Sequence[Command]],
    lock: str = sql.engine.lock,
    due_max: int = DUE_MAX,
    ending_max: int = 0,
) -> LoadedBatch:
    """Load the events that the commands name, with up to `due_max` due holds each and, if they have ended, up to
    `ending_max` bookings. Events that do not exist have no state, nor do locked events if `lock` skips them."""
    locked = await connection.fetch(lock, list(commands))
    layouts = await cache.get(connection, {row["id"]: row["revision"] for row in locked})
    return await _load_batch(connection, layouts, commands, locked, due_max, ending_max)


async def load_free_events(
    connection: Connection, cache: LayoutCache, commands: Mapping[bytes, Sequence[Command]]
) -> LoadedBatch:
    """Load the events that nobody has locked, except those that have a large layout to load first or do not fit."""
    locked = await connection.fetch(sql.engine.lock_if_free, list(commands))
    layouts, large = await cache.get_small(connection, locked)
    crowded = _events_above_seats_max(layouts, commands)
    layouts = {event: layout for event, layout in layouts.items() if event not in crowded}
    loaded = await _load_batch(connection, layouts, commands, locked)
    missing = commands.keys() - {row["id"] for row in locked}
    if missing:
        large |= {row["id"] for row in await connection.fetch(sql.engine.revisions, list(missing))}
    loaded.left_out = large | crowded
    return loaded


def _events_above_seats_max(layouts: Mapping[bytes, Layout], commands: Mapping[bytes, Sequence[Command]]) -> set[bytes]:
    """The events that do not fit into a batch, because their holds look at too many seats. One event always fits."""
    above: set[bytes] = set()
    if len(layouts) == 1:
        return above
    seats = 0
    for event in layouts:
        holds = [command for command in commands[event] if isinstance(command, PlaceHold)]
        wanted = sum(last - first + 1 for _, first, last in _seats_to_load(layouts, holds))
        if seats and seats + wanted > SEATS_LOADED_MAX:
            above.add(event)
        else:
            seats += wanted
    return above


async def _load_batch(
    connection: Connection,
    layouts: Mapping[bytes, Layout],
    commands: Mapping[bytes, Sequence[Command]],
    locked: Sequence[Record],
    due_max: int = DUE_MAX,
    ending_max: int = 0,
) -> LoadedBatch:
    versions = {row["id"]: row["version"] for row in locked if row["id"] in layouts}
    commands_to_load = [command for event in versions for command in commands[event]]
    checked_in = await _load_checked_in(connection, commands_to_load)
    loaded = await _load(connection, layouts, commands_to_load, due_max, ending_max)
    limited = [
        c for c in commands_to_load if isinstance(c, PlaceHold) and is_limited(layouts[c.event].policy, c.client)
    ]
    late = _late_receipt_clients(loaded, commands_to_load)
    clients = _LoadedClients()
    if limited or late:
        clients = await _load_clients(connection, layouts, limited, late, loaded.now)
    own = await load_own_bookings(
        connection,
        layouts,
        [command for command in commands_to_load if isinstance(command, PlaceHold)],
        {(event, user): bookings for event, user, bookings, _, _ in loaded.users},
        dict(loaded.taken),
    )
    chains = {row["id"]: Chain(row["journal_head"], row["actor_key"]) for row in locked}
    return _build_batch(loaded, clients, own, checked_in, layouts, versions, chains)


async def _load_checked_in(connection: Connection, commands: list[Command]) -> frozenset[bytes]:
    """The bookings that cannot be transferred, because somebody has entered with one of their tickets. They stay locked
    until the batch commits."""
    transfers = [(command.event, command.booking) for command in commands if isinstance(command, TransferBooking)]
    if not transfers:
        return frozenset()
    await connection.fetch(sql.engine.lock_transfers, *columns(transfers))
    rows = await connection.fetch(sql.engine.load_checked_in, *columns(transfers))
    return frozenset(row["booking_id"] for row in rows)


async def _load(
    connection: Connection, layouts: Mapping[bytes, Layout], commands: list[Command], due_max: int, ending_max: int
) -> _Loaded:
    holds = [command for command in commands if isinstance(command, PlaceHold)]
    request_events, request_keys = columns((command.event, command.request_key) for command in holds)
    booking_events, booking_ids = columns((c.event, c.booking) for c in commands if not isinstance(c, PlaceHold))
    user_events, users = columns(_users_to_load(layouts, commands))
    pool_events, pools = columns(_pools_to_load(layouts, holds))
    seat_events, first_seats, last_seats = columns(_seats_to_load(layouts, holds), 3)
    revival_events, revivals = columns((command.event, command.booking) for command in commands if _may_revive(command))
    document = await connection.fetchval(
        *sql.engine.load(
            events=list(layouts),
            due_max=due_max,
            lines_max=SWEPT_LINES_MAX,
            free_seconds=FREE_BOOKING_SECONDS,
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


async def _load_clients(
    connection: Connection,
    layouts: Mapping[bytes, Layout],
    limited: list[PlaceHold],
    late: set[tuple[bytes, bytes]],
    now: datetime,
) -> _LoadedClients:
    """A separate statement, so that holds with secret keys do not pay for it."""
    client_events, clients, client_outcomes = columns(_clients_to_load(layouts, limited, late), 3)
    guest_events, guests, guest_outcomes = columns(_guests_to_load(layouts, limited), 3)
    document = await connection.fetchval(
        *sql.engine.load_clients(
            now=now,
            free_seconds=FREE_BOOKING_SECONDS,
            client_events=client_events,
            clients=clients,
            client_outcomes=client_outcomes,
            guest_events=guest_events,
            guests=guests,
            guest_outcomes=guest_outcomes,
        )
    )
    return _decode_clients(document)


def _build_batch(
    loaded: _Loaded,
    clients: _LoadedClients,
    own: OwnBookings | None,
    checked_in: frozenset[bytes],
    layouts: Mapping[bytes, Layout],
    versions: dict[bytes, int],
    chains: dict[bytes, Chain],
) -> LoadedBatch:
    bookings: dict[bytes, dict[bytes, Booking]] = defaultdict(dict)
    counters: dict[bytes, dict[int, PoolCounter]] = defaultdict(dict)
    taken = dict(loaded.taken)
    for booking in loaded.bookings:
        bookings[booking.event][booking.id] = booking
    users: dict[bytes, dict[str, UserRecord]] = defaultdict(dict)
    for event, user, count, units, unpaid in loaded.users:
        users[event][user] = UserRecord(count, units, unpaid)
    owners: dict[bytes, dict[int, SeatOwner | Booking]] = defaultdict(dict)
    if own is not None:
        for event, user, booking_id in own.users:
            users[event][user].booking = booking_id
        for event, seat, booking_id, user in own.owners:
            owners[event][seat] = SeatOwner(booking_id, user)
        for booking in own.bookings:
            # A due hold that is not among the due holds of this batch expires in a later batch.
            if not booking.is_due(loaded.now):
                bookings[booking.event].setdefault(booking.id, booking)
    for event, number, capacity, held, sold in loaded.pools:
        counters[event][number] = PoolCounter(capacity, held, sold)
    by_client: dict[bytes, dict[bytes, ClientRecord]] = defaultdict(dict)
    streaks: dict[bytes, dict[str, ExpiryStreak]] = defaultdict(dict)
    for event, client, unpaid, expired, last_at in clients.clients:
        by_client[event][client] = ClientRecord(unpaid, ExpiryStreak(expired, last_at))
    for event, user, expired, last_at in clients.streaks:
        streaks[event][user] = ExpiryStreak(expired, last_at)
    states = {
        event: EventState(
            layouts[event],
            loaded.now,
            version,
            counters[event],
            bookings[event],
            taken.get(event, set()),
            users[event],
            ClientRecords(by_client[event], streaks[event]),
            checked_in,
            owners[event],
        )
        for event, version in versions.items()
    }
    endpoints: dict[bytes, list[WebhookSubscription]] = defaultdict(list)
    for org, endpoint, kinds in loaded.endpoints:
        endpoints[org].append(WebhookSubscription(endpoint, kinds))
    return LoadedBatch(loaded.now, states, loaded.unfinished, endpoints, loaded.buses, chains, set())


def _users_to_load(layouts: Mapping[bytes, Layout], commands: list[Command]) -> set[tuple[bytes, str]]:
    return {
        (command.event, command.user)
        for command in commands
        if isinstance(command, PlaceHold | TransferBooking) and _needs_user(layouts[command.event].policy, command)
    }


def _needs_user(policy: Policy, command: PlaceHold | TransferBooking) -> bool:
    if policy.limits_users:
        return True
    has_limit = policy.max_unpaid_units_per_user is not None
    return has_limit and isinstance(command, PlaceHold) and is_limited(policy, command.client)


def _late_receipt_clients(loaded: _Loaded, commands: list[Command]) -> set[tuple[bytes, bytes]]:
    """The addresses of expired bookings that a receipt may revive."""
    submitted = {command.booking for command in commands if isinstance(command, SubmitReceipt)}
    return {
        (booking.event, booking.client)
        for booking in (loaded.bookings if submitted else ())
        if booking.id in submitted and booking.client is not None
    }


def _clients_to_load(
    layouts: Mapping[bytes, Layout], limited: list[PlaceHold], late: set[tuple[bytes, bytes]]
) -> set[tuple[bytes, bytes, int]]:
    """Addresses, and how many outcomes of their bookings matter."""
    asking = {(command.event, command.client.address) for command in limited if command.client is not None}
    return {
        (event, client, (layouts[event].policy.cooldown_after_expired or 0) * ADDRESS_FACTOR)
        for event, client in asking | late
    }


def _guests_to_load(layouts: Mapping[bytes, Layout], limited: list[PlaceHold]) -> set[tuple[bytes, str, int]]:
    wanted = [
        (command.event, command.user, layouts[command.event].policy.cooldown_after_expired) for command in limited
    ]
    return {(event, user, expired_max) for event, user, expired_max in wanted if expired_max is not None}


def _may_revive(command: Command) -> bool:
    """Whether the command can revive an expired booking, which needs to know whether its units are free."""
    if isinstance(command, ActOnBooking):
        return command.verb is Verb.CONFIRM
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
