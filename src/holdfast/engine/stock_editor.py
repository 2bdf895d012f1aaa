"""Changing what an event sells: its pools, tariffs and seats, under the event's lock."""

import asyncio
from collections import Counter
from datetime import datetime
from typing import Final

from msgspec import UNSET, Struct, structs

from holdfast import sql
from holdfast.core.journal import PoolState, SeatState
from holdfast.core.quotas import OrgUsage, Quotas
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import invalid_field
from holdfast.core.sales_window import NO_SCHEDULE, merge_schedule, schedule_of
from holdfast.core.shift import Shift
from holdfast.core.stock_schemas import (
    FREE,
    TARIFFS_MAX,
    PoolChange,
    PoolNew,
    TariffNew,
    check_pools,
    count_seats,
    number_stock,
    number_tariff,
    too_many_tariffs,
)
from holdfast.engine.rows import document
from holdfast.runtime.db import DatabaseScope, Record, read_row

ENCODED_SEATS: Final = 5_000


class PoolCounts(Struct, frozen=True):
    number: int
    code: str
    name: str
    seated: bool
    capacity: int
    held: int
    sold: int
    starts_at: datetime | None
    ends_at: datetime | None
    sales_open_at: datetime | None
    sales_close_at: datetime | None

    @property
    def taken(self) -> int:
        return self.held + self.sold


class _KnownTariff(Struct, frozen=True):
    number: int
    code: str
    name: str
    needs_companion: bool


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


async def check_quotas(
    scope: DatabaseScope, org: bytes, quotas: Quotas, *, new_events: int = 0, new_seats: int = 0
) -> None:
    """This takes no lock, because inserting a large hall would block the org's other requests. Simultaneous requests
    can therefore exceed a quota, each by one event."""
    usage = await scope.row(OrgUsage, sql.events.org_usage, org)
    assert usage is not None
    quotas.check(usage, new_events=new_events, new_seats=new_seats)


async def change_pools(
    scope: DatabaseScope, org: bytes, event: bytes, changes: list[PoolChange], shift: Shift | None, quotas: Quotas
) -> None:
    if not changes:
        return
    pools = {pool.code: pool for pool in await scope.rows(PoolCounts, sql.events.pools, event)}
    added = charge_service_fee(shift, [_new_pool(change) for change in changes if change.code not in pools])
    for change in changes:
        if change.code in pools:
            await _change_pool(scope, event, pools[change.code], change)
    if added:
        await _add_pools(scope, org, event, len(pools), added, quotas)
    if await scope.fetchval(sql.events.count_tariffs, event) > TARIFFS_MAX:
        raise too_many_tariffs()


def charge_service_fee(shift: Shift | None, pools: list[PoolNew]) -> list[PoolNew]:
    """New pools without a price cost the service fee of the shift."""
    fee = shift.service_fee if shift is not None else None
    if fee is None:
        return pools
    tariffs = [structs.replace(FREE, price=fee)]
    return [pool if pool.tariffs else structs.replace(pool, tariffs=tariffs) for pool in pools]


async def _add_pools(
    scope: DatabaseScope, org: bytes, event: bytes, known_pools: int, added: list[PoolNew], quotas: Quotas
) -> None:
    known_seats: int = await scope.fetchval(sql.events.count_seats, event)
    check_pools(added, known_pools, known_seats=known_seats)
    new_seats = count_seats(added)
    await check_quotas(scope, org, quotas, new_seats=new_seats)
    stock = await asyncio.to_thread(prepare_stock, added, known_pools, known_seats)
    await _refuse_used_labels(scope, event, stock)
    await insert_stock(scope, event, stock)
    await scope.execute(sql.events.add_seats, event, new_seats)


def _new_pool(change: PoolChange) -> PoolNew:
    return PoolNew(
        code=change.code,
        name=None if change.name is UNSET else change.name,
        capacity=None if change.capacity is UNSET else change.capacity,
        tariffs=None if change.tariffs is UNSET else change.tariffs,
        seats=None if change.seats is UNSET else change.seats,
        **structs.asdict(merge_schedule(NO_SCHEDULE, change)),
    )


async def _change_pool(scope: DatabaseScope, event: bytes, pool: PoolCounts, change: PoolChange) -> None:
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
    schedule = merge_schedule(schedule_of(pool), change)
    await scope.execute(
        *sql.events.set_pool(event=event, number=pool.number, name=name, capacity=capacity, **structs.asdict(schedule))
    )
    if change.tariffs is not UNSET:
        await _change_tariffs(scope, event, pool.number, change.tariffs)


async def _change_tariffs(scope: DatabaseScope, event: bytes, pool: int, changes: list[TariffNew]) -> None:
    """Update tariffs with a known code, and add the others."""
    rows = await scope.rows(_KnownTariff, sql.events.tariffs_of_pool, event, pool)
    known = {row.code: row for row in rows}
    number = len(known)
    for tariff in changes:
        if row := known.get(tariff.code):
            await scope.execute(
                *sql.events.set_tariff(
                    event=event,
                    pool=pool,
                    number=row.number,
                    name=tariff.name or row.name,
                    price=tariff.price,
                    needs_companion=row.needs_companion if tariff.needs_companion is None else tariff.needs_companion,
                )
            )
        else:
            added = number_tariff(pool, number, tariff)
            await scope.execute(sql.events.insert_tariffs, event, document([added]))
            number += 1


async def change_seats(scope: DatabaseScope, event: bytes, labels: list[str], *, blocked: bool) -> dict[str, SeatState]:
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


def prepare_stock(pools: list[PoolNew], first_pool: int = 0, first_seat: int = 0) -> _StockDocuments:
    stock = number_stock(pools, first_pool, first_seat)
    labels = [seat.label for seat in stock.seats]
    # Encode piece by piece, because encoding blocks other threads.
    pieces = [
        document(stock.seats[start : start + ENCODED_SEATS])[1:-1] for start in range(0, len(labels), ENCODED_SEATS)
    ]
    return _StockDocuments(document(stock.pools), document(stock.tariffs), f"[{','.join(pieces)}]", labels)


async def insert_stock(scope: DatabaseScope, event: bytes, stock: _StockDocuments) -> None:
    await scope.execute(sql.events.insert_pools, event, stock.pools)
    await scope.execute(sql.events.insert_tariffs, event, stock.tariffs)
    if stock.labels:
        await scope.execute(sql.events.insert_seats, event, stock.seats)


async def _refuse_used_labels(scope: DatabaseScope, event: bytes, stock: _StockDocuments) -> None:
    used = await scope.fetch(sql.events.labels_in_use, event, stock.labels)
    if used:
        raise invalid_field("pools", f"has the seat label {used[0]['label']} twice")


async def pool_states(scope: DatabaseScope, event: bytes) -> dict[str, PoolState]:
    pools = await scope.rows(PoolCounts, sql.events.pools, event)
    return {pool.code: PoolState(pool.capacity, pool.held, pool.sold, pool.capacity - pool.taken) for pool in pools}
