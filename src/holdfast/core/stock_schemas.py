"""Requests for pools, tariffs and seats. Numbering them turns a request into the stock of an event."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from holdfast.core.refusals import RefusedError
from holdfast.core.request_types import (
    LABEL_BYTES_MAX,
    Capacity,
    Code,
    Coordinate,
    Label,
    Name,
    Price,
    RequestModel,
    SeatNumber,
    Time,
    check_unique,
    invalid_field,
)
from holdfast.core.sales_window import schedule_of

# The most seats that one event can have.
SEATS_MAX = 100_000
# In UTF-8.
ROW_BYTES_MAX = 32
POOLS_MAX = 1_000
TARIFFS_MAX = 1_000


class TariffNew(RequestModel, frozen=True):
    code: Code
    price: Price
    name: Name | None = None
    needs_companion: (
        Annotated[bool, Meta(description="The booking also needs a unit of a tariff without this, at the same time.")]
        | None
    ) = None


class SeatGrid(RequestModel, frozen=True):
    """Rows with the same number of seats, labelled `<row>-<number>` from 1."""

    rows: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=ROW_BYTES_MAX)]], Meta(min_length=1, max_length=1000)
    ]
    numbers: Annotated[int, Meta(ge=1, le=1000)]


class SeatNew(RequestModel, frozen=True, gc=False):
    """Seats of a row with consecutive numbers are neighbours."""

    label: Label
    row: Annotated[str, Meta(max_length=ROW_BYTES_MAX)] = ""
    number: SeatNumber | None = None
    x: Coordinate | None = None
    y: Coordinate | None = None


class PoolNew(RequestModel, frozen=True):
    """A pool has either a capacity or seats. Without tariffs, it is free. A pool with a start is a slot: its tickets
    show its own time, and sales close when it begins."""

    code: Code
    name: Name | None = None
    capacity: Capacity | None = None
    tariffs: Annotated[list[TariffNew], Meta(min_length=1, max_length=100)] | None = None
    seats: SeatGrid | Annotated[list[SeatNew], Meta(min_length=1, max_length=50_000)] | None = None
    starts_at: Time | None = None
    ends_at: Time | None = None
    sales_open_at: Time | None = None
    sales_close_at: Time | None = None


class PoolChange(RequestModel, frozen=True):
    """Changes the pool with this code, or adds one. Tariffs whose code exists are changed, others are added. Existing
    bookings keep their price."""

    code: Code
    name: Name | UnsetType = UNSET
    capacity: Capacity | UnsetType = UNSET
    tariffs: Annotated[list[TariffNew], Meta(min_length=1, max_length=100)] | UnsetType = UNSET
    seats: SeatGrid | Annotated[list[SeatNew], Meta(min_length=1, max_length=50_000)] | UnsetType = UNSET
    starts_at: Time | UnsetType | None = UNSET
    ends_at: Time | UnsetType | None = UNSET
    sales_open_at: Time | UnsetType | None = UNSET
    sales_close_at: Time | UnsetType | None = UNSET


FREE = TariffNew(code="standard", price=0)


class NumberedPool(Struct, frozen=True):
    number: int
    code: str
    name: str
    seated: bool
    capacity: int
    starts_at: datetime | None
    ends_at: datetime | None
    sales_open_at: datetime | None
    sales_close_at: datetime | None


class NumberedTariff(Struct, frozen=True):
    pool: int
    number: int
    code: str
    name: str
    price: int
    needs_companion: bool


class NumberedSeat(Struct, frozen=True, gc=False):
    number: int
    pool: int
    label: str
    row: str
    number_in_row: int | None
    x: float | None
    y: float | None


class NumberedStock(Struct, frozen=True):
    """Pools, tariffs and seats, numbered within their event."""

    pools: list[NumberedPool]
    tariffs: list[NumberedTariff]
    seats: list[NumberedSeat]


def check_pools(pools: list[PoolNew], known_pools: int = 0, known_seats: int = 0) -> None:
    """Refuse pools that contradict themselves, or that are too many together with the event's existing ones. This
    builds no seats, so it is cheap; `number_stock` finds duplicate labels."""
    check_unique("pools", "code", (pool.code for pool in pools))
    if known_seats + count_seats(pools) > SEATS_MAX:
        raise invalid_field("pools", f"can have at most {SEATS_MAX} seats")
    if known_pools + len(pools) > POOLS_MAX:
        raise invalid_field("pools", f"can be at most {POOLS_MAX} in one event")
    if sum(len(pool.tariffs or [FREE]) for pool in pools) > TARIFFS_MAX:
        raise too_many_tariffs()
    for pool in pools:
        check_unique(f"pools.{pool.code}.tariffs", "code", (tariff.code for tariff in pool.tariffs or ()))
        _check_capacity(pool)
        _check_seat_names(pool)


def _check_seat_names(pool: PoolNew) -> None:
    """A seat map repeats the names for up to 100,000 seats, so their size in bytes counts."""
    if isinstance(pool.seats, SeatGrid):
        labels, rows = [], pool.seats.rows
    else:
        labels, rows = [seat.label for seat in pool.seats or ()], [seat.row for seat in pool.seats or ()]
    if any(not label.isascii() and len(label.encode()) > LABEL_BYTES_MAX for label in labels):
        raise invalid_field(f"pools.{pool.code}.seats", f"can have labels of at most {LABEL_BYTES_MAX} bytes")
    if any(not row.isascii() and len(row.encode()) > ROW_BYTES_MAX for row in rows):
        raise invalid_field(f"pools.{pool.code}.seats", f"can have rows with names of at most {ROW_BYTES_MAX} bytes")


def number_stock(pools: list[PoolNew], first_pool: int = 0, first_seat: int = 0) -> NumberedStock:
    """Number new pools that `check_pools` has accepted. Seats of a pool get consecutive numbers, and so do seats of a
    row. A large hall takes a while: call this in a thread."""
    stock = NumberedStock([], [], [])
    for number, pool in enumerate(pools, first_pool):
        seats = _sort_seats(_list_seats(pool))
        capacity = pool.capacity if pool.capacity is not None else len(seats)
        stock.pools.append(
            NumberedPool(
                number, pool.code, pool.name or pool.code, bool(seats), capacity, *structs.astuple(schedule_of(pool))
            )
        )
        stock.tariffs.extend(number_tariff(number, n, tariff) for n, tariff in enumerate(pool.tariffs or [FREE]))
        for seat in seats:
            position = first_seat + len(stock.seats)
            stock.seats.append(NumberedSeat(position, number, seat.label, seat.row, seat.number, seat.x, seat.y))
    check_unique("pools", "seat label", (seat.label for seat in stock.seats))
    return stock


def number_tariff(pool: int, number: int, tariff: TariffNew) -> NumberedTariff:
    name = tariff.name or tariff.code
    return NumberedTariff(pool, number, tariff.code, name, tariff.price, bool(tariff.needs_companion))


def too_many_tariffs() -> RefusedError:
    return invalid_field("pools", f"can have at most {TARIFFS_MAX} tariffs in total")


def count_seats(pools: Iterable[PoolNew]) -> int:
    return sum(_seat_count(pool) for pool in pools)


def _seat_count(pool: PoolNew) -> int:
    """Counts without building the seats, so that an oversized request costs nothing."""
    if isinstance(pool.seats, SeatGrid):
        return len(pool.seats.rows) * pool.seats.numbers
    return len(pool.seats or ())


def _list_seats(pool: PoolNew) -> list[SeatNew]:
    if pool.seats is None:
        return []
    if not isinstance(pool.seats, SeatGrid):
        return pool.seats
    return [
        SeatNew(label=f"{row}-{number}", row=row, number=number)
        for row in pool.seats.rows
        for number in range(1, pool.seats.numbers + 1)
    ]


def _sort_seats(seats: list[SeatNew]) -> list[SeatNew]:
    """Sort by row in order of first appearance, then by number."""
    depth: dict[str, int] = {}
    for seat in seats:
        depth.setdefault(seat.row, len(depth))
    return sorted(seats, key=lambda seat: (depth[seat.row], seat.number is None, seat.number or 0))


def _check_capacity(pool: PoolNew) -> None:
    seats = _seat_count(pool)
    if pool.capacity is None and not seats:
        raise invalid_field(f"pools.{pool.code}", "needs a capacity or seats")
    if pool.capacity is not None and seats and pool.capacity != seats:
        raise invalid_field(f"pools.{pool.code}.capacity", "must be left out: it is the number of seats")
