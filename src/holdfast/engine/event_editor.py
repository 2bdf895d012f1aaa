"""Creating and changing events. This is rare, so each change has its own transaction, under the event's lock."""

import asyncio
from collections import Counter
from datetime import datetime
from typing import Any, Final

from msgspec import UNSET, Struct, to_builtins

from holdfast import sql
from holdfast.core.event_schemas import (
    TARIFFS_MAX,
    EventChange,
    EventNew,
    NumberedTariff,
    PoolChange,
    PoolNew,
    TariffNew,
    check_end,
    check_pools,
    count_seats,
    invalid_field,
    merge_policy,
    number_stock,
    too_many_tariffs,
)
from holdfast.core.journal import (
    EVENT_CANCELLED,
    EVENT_CHANGED,
    EVENT_COMPLETED,
    EVENT_PUBLISHED,
    NO_CHANGE,
    EntryData,
    PoolState,
    SeatState,
)
from holdfast.core.notification_rules import webhook_kind
from holdfast.core.policy import PRESETS, Policy
from holdfast.core.quotas import OrgUsage, Quotas
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import ENDINGS, EventStatus
from holdfast.engine.rows import document
from holdfast.runtime.db import Database, DatabaseScope, Record, read_row
from holdfast.runtime.ids import format_event_id, new_id

CHANGE_MAX: Final = 2_000
ENCODED_SEATS: Final = 5_000
DEFAULT_QUOTAS: Final = Quotas()
ENTRY_KINDS: Final = {
    EventStatus.ACTIVE: EVENT_PUBLISHED,
    EventStatus.COMPLETED: EVENT_COMPLETED,
    EventStatus.CANCELLED: EVENT_CANCELLED,
}


class _LockedEvent(Struct, frozen=True):
    status: EventStatus
    title: str
    starts_at: datetime
    ends_at: datetime | None
    timezone: str
    tax_bps: int
    policy: Policy
    details: dict[str, Any]


class _PoolCounts(Struct, frozen=True):
    number: int
    code: str
    name: str
    seated: bool
    capacity: int
    held: int
    sold: int

    @property
    def taken(self) -> int:
        return self.held + self.sold


class _KnownTariff(Struct, frozen=True):
    number: int
    code: str
    name: str


class _NamedSeat(Struct, frozen=True):
    number: int
    label: str
    pool: int
    blocked: bool
    taken: bool


class _StockDocuments(Struct, frozen=True):
    """New pools, tariffs and seats as the database takes them."""

    pools: str
    tariffs: str
    seats: str
    labels: list[str]


async def create_event(
    database: Database, org: bytes, new: EventNew, actor: str, quotas: Quotas = DEFAULT_QUOTAS
) -> bytes:
    """Create a draft. Buyers see it after somebody publishes it."""
    policy = merge_policy(PRESETS[new.preset] if new.preset else Policy(), new.policy)
    seats = count_seats(new.pools)
    await _check_quotas(database.org(org), org, quotas, new_events=1, new_seats=seats)
    stock = await asyncio.to_thread(_prepare_stock, new.pools)
    event = new_id()
    async with database.event(event).transaction() as scope:
        await scope.execute(
            *sql.events.insert_event(
                id=event,
                org=org,
                title=new.title,
                preset=new.preset,
                starts_at=new.starts_at,
                ends_at=new.ends_at,
                timezone=new.timezone,
                currency=new.currency,
                tax_bps=new.tax_bps,
                policy=document(policy),
                details=document(new.details),
                seat_count=seats,
            )
        )
        await scope.execute(sql.events.insert_first_entry, event, actor)
        await _insert_stock(scope, event, stock)
    return event


async def change_event(
    database: Database, org: bytes, event: bytes, change: EventChange, actor: str, quotas: Quotas = DEFAULT_QUOTAS
) -> None:
    async with database.event(event).transaction() as scope:
        locked = await _lock_event(scope, org, event)
        if locked.status in ENDINGS:
            raise RefusedError(Refusal.EVENT_ENDED)
        await _change_event_row(scope, event, locked, change)
        await _change_pools(scope, org, event, change.pools, quotas)
        seats = await _change_seats(scope, event, change.block_seats, blocked=True)
        seats |= await _change_seats(scope, event, change.unblock_seats, blocked=False)
        pools = await _pool_states(scope, event) if change.pools or seats else {}
        data = EntryData(seats, pools, change=_describe_change(change))
        changes_seats = bool(seats) or any(pool.seats is not UNSET for pool in change.pools)
        await _insert_revision(scope, event, EVENT_CHANGED, actor, data, changes_seats=changes_seats)


async def _check_quotas(
    scope: DatabaseScope, org: bytes, quotas: Quotas, *, new_events: int = 0, new_seats: int = 0
) -> None:
    """This takes no lock, because inserting a large hall would block the org's other requests. Simultaneous requests
    can therefore exceed a quota, each by one event."""
    usage = await scope.row(OrgUsage, sql.events.org_usage, org)
    assert usage is not None
    quotas.check(usage, new_events=new_events, new_seats=new_seats)


async def set_status(database: Database, org: bytes, event: bytes, status: EventStatus, actor: str) -> None:
    """Publish, complete or cancel an event. Repeating a change has no effect, and an ended event stays ended."""
    async with database.event(event).transaction() as scope:
        locked = await _lock_event(scope, org, event)
        if locked.status is status:
            return
        if locked.status in ENDINGS:
            raise RefusedError(Refusal.EVENT_ENDED, f"The event is {locked.status}.")
        if locked.status is EventStatus.DRAFT and status is EventStatus.COMPLETED:
            raise RefusedError(Refusal.EVENT_NOT_ON_SALE, "The event is a draft.")
        await scope.execute(sql.events.set_status, event, status)
        await _insert_revision(scope, event, ENTRY_KINDS[status], actor, NO_CHANGE)


async def _insert_revision(
    scope: DatabaseScope, event: bytes, kind: str, actor: str, data: EntryData, *, changes_seats: bool = False
) -> None:
    await scope.execute(
        *sql.events.insert_revision(
            event=event,
            kind=kind,
            webhook_kind=webhook_kind(kind),
            public_id=format_event_id(event),
            actor=actor,
            data=document(data),
            changes_seats=changes_seats,
        )
    )


async def _lock_event(scope: DatabaseScope, org: bytes, event: bytes) -> _LockedEvent:
    locked = await scope.row(_LockedEvent, sql.events.lock, event, org)
    if locked is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return locked


async def _change_event_row(scope: DatabaseScope, event: bytes, locked: _LockedEvent, change: EventChange) -> None:
    starts_at = locked.starts_at if change.starts_at is UNSET else change.starts_at
    ends_at = locked.ends_at if change.ends_at is UNSET else change.ends_at
    check_end(starts_at, ends_at)
    await scope.execute(
        *sql.events.set_event(
            id=event,
            title=locked.title if change.title is UNSET else change.title,
            starts_at=starts_at,
            ends_at=ends_at,
            timezone=locked.timezone if change.timezone is UNSET else change.timezone,
            tax_bps=locked.tax_bps if change.tax_bps is UNSET else change.tax_bps,
            policy=document(merge_policy(locked.policy, change.policy)),
            details=document(locked.details if change.details is UNSET else change.details),
        )
    )


async def _change_pools(
    scope: DatabaseScope, org: bytes, event: bytes, changes: list[PoolChange], quotas: Quotas
) -> None:
    if not changes:
        return
    pools = {pool.code: pool for pool in await scope.rows(_PoolCounts, sql.events.pools, event)}
    added = [_new_pool(change) for change in changes if change.code not in pools]
    for change in changes:
        if change.code in pools:
            await _change_pool(scope, event, pools[change.code], change)
    if added:
        await _add_pools(scope, org, event, len(pools), added, quotas)
    if await scope.fetchval(sql.events.count_tariffs, event) > TARIFFS_MAX:
        raise too_many_tariffs()


async def _add_pools(
    scope: DatabaseScope, org: bytes, event: bytes, known_pools: int, added: list[PoolNew], quotas: Quotas
) -> None:
    known_seats: int = await scope.fetchval(sql.events.count_seats, event)
    check_pools(added, known_pools, known_seats=known_seats)
    new_seats = count_seats(added)
    await _check_quotas(scope, org, quotas, new_seats=new_seats)
    stock = await asyncio.to_thread(_prepare_stock, added, known_pools, known_seats)
    await _refuse_used_labels(scope, event, stock)
    await _insert_stock(scope, event, stock)
    await scope.execute(sql.events.add_seats, event, new_seats)


def _new_pool(change: PoolChange) -> PoolNew:
    return PoolNew(
        code=change.code,
        name=None if change.name is UNSET else change.name,
        capacity=None if change.capacity is UNSET else change.capacity,
        tariffs=None if change.tariffs is UNSET else change.tariffs,
        seats=None if change.seats is UNSET else change.seats,
    )


async def _change_pool(scope: DatabaseScope, event: bytes, pool: _PoolCounts, change: PoolChange) -> None:
    if change.seats is not UNSET:
        raise invalid_field(f"pools.{change.code}.seats", "cannot change; add a pool, or block seats")
    capacity = pool.capacity if change.capacity is UNSET else change.capacity
    if pool.seated and capacity != pool.capacity:
        raise invalid_field(f"pools.{change.code}.capacity", "is the number of seats; block or unblock seats instead")
    if capacity < pool.taken:
        raise RefusedError(
            Refusal.CAPACITY_IN_USE, f"{pool.taken} units of {change.code} are taken.", conflicts=(change.code,)
        )
    name = pool.name if change.name is UNSET else change.name
    await scope.execute(sql.events.set_pool, event, pool.number, name, capacity)
    if change.tariffs is not UNSET:
        await _change_tariffs(scope, event, pool.number, change.tariffs)


async def _change_tariffs(scope: DatabaseScope, event: bytes, pool: int, changes: list[TariffNew]) -> None:
    """Update tariffs with a known code, and add the others."""
    rows = await scope.rows(_KnownTariff, sql.events.tariffs_of_pool, event, pool)
    known = {row.code: row for row in rows}
    number = len(known)
    for tariff in changes:
        if row := known.get(tariff.code):
            name = tariff.name or row.name
            await scope.execute(
                *sql.events.set_tariff(event=event, pool=pool, number=row.number, name=name, price=tariff.price)
            )
        else:
            added = NumberedTariff(pool, number, tariff.code, tariff.name or tariff.code, tariff.price)
            await scope.execute(sql.events.insert_tariffs, event, document([added]))
            number += 1


async def _change_seats(
    scope: DatabaseScope, event: bytes, labels: list[str], *, blocked: bool
) -> dict[str, SeatState]:
    """Block seats, or put them back on sale. Only free seats can be blocked."""
    if not labels:
        return {}
    rows = await scope.fetch(sql.events.seats_by_label, event, labels)
    # A request may name half a hall.
    changing = await asyncio.to_thread(_seats_to_change, labels, rows, blocked=blocked)
    await scope.execute(sql.events.set_blocked, event, [seat.number for seat in changing], blocked)
    for pool, count in Counter(seat.pool for seat in changing).items():
        await scope.execute(sql.events.shift_capacity, event, pool, -count if blocked else count)
    state: SeatState = "blocked" if blocked else "free"
    return {seat.label: state for seat in changing}


def _seats_to_change(labels: list[str], rows: list[Record], *, blocked: bool) -> list[_NamedSeat]:
    seats = [read_row(_NamedSeat, row) for row in rows]
    unknown = tuple(sorted(set(labels) - {seat.label for seat in seats}))
    if unknown:
        raise RefusedError(Refusal.UNKNOWN_SEAT, f"There is no seat {', '.join(unknown)}.", conflicts=unknown)
    taken = tuple(seat.label for seat in seats if seat.taken)
    if blocked and taken:
        raise RefusedError(Refusal.SEAT_TAKEN, f"Taken: {', '.join(taken)}.", conflicts=taken)
    return [seat for seat in seats if seat.blocked is not blocked]


def _prepare_stock(pools: list[PoolNew], first_pool: int = 0, first_seat: int = 0) -> _StockDocuments:
    stock = number_stock(pools, first_pool, first_seat)
    labels = [seat.label for seat in stock.seats]
    # Encode piece by piece, because encoding blocks other threads.
    pieces = [
        document(stock.seats[start : start + ENCODED_SEATS])[1:-1] for start in range(0, len(labels), ENCODED_SEATS)
    ]
    return _StockDocuments(document(stock.pools), document(stock.tariffs), f"[{','.join(pieces)}]", labels)


async def _insert_stock(scope: DatabaseScope, event: bytes, stock: _StockDocuments) -> None:
    await scope.execute(sql.events.insert_pools, event, stock.pools)
    await scope.execute(sql.events.insert_tariffs, event, stock.tariffs)
    if stock.labels:
        await scope.execute(sql.events.insert_seats, event, stock.seats)


async def _refuse_used_labels(scope: DatabaseScope, event: bytes, stock: _StockDocuments) -> None:
    used = await scope.fetch(sql.events.labels_in_use, event, stock.labels)
    if used:
        raise invalid_field("pools", f"has the seat label {used[0]['label']} twice")


async def _pool_states(scope: DatabaseScope, event: bytes) -> dict[str, PoolState]:
    pools = await scope.rows(_PoolCounts, sql.events.pools, event)
    return {pool.code: PoolState(pool.capacity, pool.held, pool.sold, pool.capacity - pool.taken) for pool in pools}


def _describe_change(change: EventChange) -> dict[str, Any]:
    """The requested change, or only its field names if it is large, because every reader of the journal loads it."""
    fields: dict[str, Any] = to_builtins(change)
    if len(document(fields)) <= CHANGE_MAX:
        return fields
    return {"fields": sorted(name for name in fields if fields[name])}
