"""Requests to create and change events. The types carry the limits, and unknown fields are refused."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Any, Literal
from zoneinfo import available_timezones as read_timezones

from msgspec import UNSET, Meta, Struct, UnsetType, json, structs

from holdfast.core.policy import Policy
from holdfast.core.refusals import FieldError, Refusal, RefusedError

DAY_SECONDS = 86_400
# The most seats that one event can have.
SEATS_MAX = 100_000
# In UTF-8.
LABEL_BYTES_MAX = 64
ROW_BYTES_MAX = 32
# One journal entry names all of them, and every reader of the journal has to decode it.
BLOCKED_AT_ONCE_MAX = 20_000
DETAILS_BYTES_MAX = 16 * 1024
DETAILS_LEVELS_MAX = 64
POOLS_MAX = 1_000
TARIFFS_MAX = 1_000

Code = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$(?!\n)", description="Letters, digits and _ . : - only."),
]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Label = Annotated[str, Meta(min_length=1, max_length=LABEL_BYTES_MAX)]
Quantity = Annotated[int, Meta(ge=1, le=1000)]
UnpaidUnits = Annotated[int, Meta(ge=1, le=1_000_000)]
Price = Annotated[int, Meta(ge=0, le=100_000_000_000, description="In minor units of the event's currency.")]
Capacity = Annotated[int, Meta(ge=0, le=10_000_000)]
TaxBps = Annotated[int, Meta(ge=0, le=10_000, description="Tax on top of prices, in hundredths of a percent.")]
Currency = Annotated[str, Meta(pattern=r"^[A-Z]{3}$(?!\n)", description="ISO 4217.")]
Time = Annotated[datetime, Meta(tz=True, description="RFC 3339, with a time zone.")]
TimeZone = Annotated[str, Meta(min_length=1, max_length=64, description="An IANA name. Pages show times in this zone.")]
Details = Annotated[dict[str, Any], Meta(description="Free-form: at most 16 KiB as JSON, and at most 64 levels deep.")]
Seconds = Annotated[int, Meta(ge=0, le=366 * DAY_SECONDS)]
PositiveSeconds = Annotated[int, Meta(ge=1, le=366 * DAY_SECONDS)]
Coordinate = Annotated[float, Meta(ge=-1e9, le=1e9)]
SeatNumber = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]


available_timezones = cache(read_timezones)


class RequestModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of request bodies and queries."""


class PolicyChange(RequestModel, frozen=True):
    """In a new event, omitted fields take the preset's values. In a change, they keep the event's. `max_hold_seconds`
    limits extensions; a hold always lasts its `hold_seconds`, even if `max_hold_seconds` is less."""

    hold_seconds: PositiveSeconds | UnsetType = UNSET
    extend_seconds: Seconds | UnsetType = UNSET
    max_hold_seconds: PositiveSeconds | UnsetType = UNSET
    late_grace_seconds: Seconds | UnsetType = UNSET
    review: Literal["none", "manual"] | UnsetType = UNSET
    review_seconds: PositiveSeconds | UnsetType = UNSET
    max_units_per_user: Quantity | UnsetType | None = UNSET
    one_booking_per_user: bool | UnsetType = UNSET
    confirm_at_once: bool | UnsetType = UNSET
    avoid_orphans: bool | UnsetType = UNSET
    max_unpaid_units_per_user: Quantity | UnsetType | None = UNSET
    max_unpaid_units_per_address: UnpaidUnits | UnsetType | None = UNSET
    cooldown_after_expired: Annotated[int, Meta(ge=1, le=50)] | UnsetType | None = UNSET
    cooldown_seconds: PositiveSeconds | UnsetType = UNSET
    limit_customers: bool | UnsetType = UNSET
    guest_check: Literal["none", "work"] | UnsetType = UNSET
    guest_check_bits: Annotated[int, Meta(ge=8, le=24)] | UnsetType = UNSET


class TariffNew(RequestModel, frozen=True):
    code: Code
    price: Price
    name: Name | None = None


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
    """A pool has either a capacity or seats. Without tariffs it is free of charge."""

    code: Code
    name: Name | None = None
    capacity: Capacity | None = None
    tariffs: Annotated[list[TariffNew], Meta(min_length=1, max_length=100)] | None = None
    seats: SeatGrid | Annotated[list[SeatNew], Meta(min_length=1, max_length=50_000)] | None = None


class EventNew(RequestModel, frozen=True):
    title: Name
    starts_at: Time
    currency: Currency
    pools: Annotated[list[PoolNew], Meta(min_length=1, max_length=POOLS_MAX)]
    preset: Literal["shift", "show", "arena", "registration", "experience"] | None = None
    tax_bps: TaxBps = 0
    policy: PolicyChange = PolicyChange()
    details: Details = {}
    # A worker completes the event at this time.
    ends_at: Time | None = None
    timezone: TimeZone = "UTC"

    def __post_init__(self) -> None:
        check_start(self.starts_at)
        check_end(self.starts_at, self.ends_at)
        check_timezone(self.timezone)
        check_details(self.details)
        check_pools(self.pools)


class PoolChange(RequestModel, frozen=True):
    """Changes the pool with this code, or adds one. Tariffs whose code exists are changed, others are added. Existing
    bookings keep their price."""

    code: Code
    name: Name | UnsetType = UNSET
    capacity: Capacity | UnsetType = UNSET
    tariffs: Annotated[list[TariffNew], Meta(min_length=1, max_length=100)] | UnsetType = UNSET
    seats: SeatGrid | Annotated[list[SeatNew], Meta(min_length=1, max_length=50_000)] | UnsetType = UNSET


class EventChange(RequestModel, frozen=True):
    title: Name | UnsetType = UNSET
    starts_at: Time | UnsetType = UNSET
    tax_bps: TaxBps | UnsetType = UNSET
    policy: PolicyChange = PolicyChange()
    details: Details | UnsetType = UNSET
    ends_at: Time | UnsetType | None = UNSET
    timezone: TimeZone | UnsetType = UNSET
    pools: Annotated[list[PoolChange], Meta(max_length=POOLS_MAX)] = []
    block_seats: Annotated[list[Label], Meta(max_length=BLOCKED_AT_ONCE_MAX)] = []
    unblock_seats: Annotated[list[Label], Meta(max_length=BLOCKED_AT_ONCE_MAX)] = []

    def __post_init__(self) -> None:
        if self.starts_at is not UNSET:
            check_start(self.starts_at)
        if self.timezone is not UNSET:
            check_timezone(self.timezone)
        if self.details is not UNSET:
            check_details(self.details)
        check_unique("pools", "code", (pool.code for pool in self.pools))
        for pool in self.pools:
            if pool.tariffs is not UNSET:
                check_unique(f"pools.{pool.code}.tariffs", "code", (tariff.code for tariff in pool.tariffs))
        if sum(len(pool.tariffs) for pool in self.pools if pool.tariffs is not UNSET) > TARIFFS_MAX:
            raise too_many_tariffs()


FREE = TariffNew(code="standard", price=0)


class NumberedPool(Struct, frozen=True):
    number: int
    code: str
    name: str
    seated: bool
    capacity: int


class NumberedTariff(Struct, frozen=True):
    pool: int
    number: int
    code: str
    name: str
    price: int


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


def merge_policy(policy: Policy, change: PolicyChange) -> Policy:
    given = {name: value for name, value in structs.asdict(change).items() if value is not UNSET}
    return structs.replace(policy, **given)


def check_start(starts_at: datetime) -> None:
    if not 1970 < starts_at.year < 2500:
        raise invalid_field("starts_at", "must be between 1971 and 2499")


def check_end(starts_at: datetime, ends_at: datetime | None) -> None:
    if ends_at is not None and not starts_at < ends_at < starts_at + timedelta(days=366):
        raise invalid_field("ends_at", "must be later than `starts_at`, by less than a year")


def check_timezone(name: str) -> None:
    if name not in available_timezones():
        raise invalid_field("timezone", "must be an IANA time zone such as Europe/Madrid")


def details_too_large() -> RefusedError:
    return invalid_field("details", f"may take at most {DETAILS_BYTES_MAX // 1024} KiB as JSON")


def check_details(details: Details) -> None:
    """Refuse details that are too large or too deep. Check the size first, because it bounds the search for depth."""
    too_deep = invalid_field("details", f"may be nested at most {DETAILS_LEVELS_MAX} levels deep")
    try:
        size = len(json.encode(details))
    except RecursionError:
        raise too_deep from None
    if size > DETAILS_BYTES_MAX:
        raise details_too_large()
    level: list[Any] = [details]
    for _ in range(DETAILS_LEVELS_MAX):
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise too_deep


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
        stock.pools.append(NumberedPool(number, pool.code, pool.name or pool.code, bool(seats), capacity))
        stock.tariffs.extend(
            NumberedTariff(number, n, t.code, t.name or t.code, t.price) for n, t in enumerate(pool.tariffs or [FREE])
        )
        for seat in seats:
            position = first_seat + len(stock.seats)
            stock.seats.append(NumberedSeat(position, number, seat.label, seat.row, seat.number, seat.x, seat.y))
    check_unique("pools", "seat label", (seat.label for seat in stock.seats))
    return stock


def too_many_tariffs() -> RefusedError:
    return invalid_field("pools", f"can have at most {TARIFFS_MAX} tariffs in total")


def invalid_field(field: str, message: str) -> RefusedError:
    """`message` completes a sentence about the field: "must be at least 1"."""
    return RefusedError(Refusal.INVALID_REQUEST, f"`{field}` {message}.", errors=(FieldError(field, message),))


def _children(value: Any) -> Iterable[Any]:
    """The objects and lists directly inside the value."""
    members = value.values() if isinstance(value, dict) else value
    return (member for member in members if isinstance(member, dict | list))


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


def check_unique(field: str, what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise invalid_field(field, f"has the {what} {value} twice")
        seen.add(value)
