"""What the pages read of the API's answers."""

from datetime import datetime
from typing import Any

from msgspec import Struct

from holdfast.core.layout import BookedItem
from holdfast.core.payment import PaymentStatus
from holdfast.core.policy import Policy
from holdfast.core.states import EventStatus, Status


class Tariff(Struct, frozen=True):
    code: str
    name: str
    price: int


class Pool(Struct, frozen=True):
    code: str
    name: str
    capacity: int
    seated: bool
    tariffs: list[Tariff]


class Event(Struct, frozen=True):
    id: str
    title: str
    status: EventStatus
    preset: str | None
    starts_at: datetime
    ends_at: datetime | None
    timezone: str
    currency: str
    tax_bps: int
    policy: Policy
    details: dict[str, Any]
    pools: list[Pool]
    version: int

    @property
    def address(self) -> str | None:
        address = self.details.get("address")
        return address if isinstance(address, str) else None

    @property
    def is_seated(self) -> bool:
        return any(pool.seated for pool in self.pools)

    @property
    def lowest_price(self) -> int:
        return min(tariff.price for pool in self.pools for tariff in pool.tariffs)

    def pool(self, code: str) -> Pool:
        return next(pool for pool in self.pools if pool.code == code)


class EventList(Struct, frozen=True):
    items: list[Event]
    next: str | None


class PoolLeft(Struct, frozen=True):
    code: str
    capacity: int
    held: int
    sold: int
    remaining: int


class Availability(Struct, frozen=True):
    version: int
    pools: list[PoolLeft]


class Seat(Struct, frozen=True):
    label: str
    pool: str
    row: str
    number: int | None
    x: float | None
    y: float | None


class Seats(Struct, frozen=True):
    seats: list[Seat]


class Payment(Struct, frozen=True):
    id: str
    provider: str
    status: PaymentStatus
    checkout_url: str | None
    reason: str | None
    created_at: datetime


class Booking(Struct, frozen=True):
    id: str
    reference: str
    event: str
    status: Status
    items: list[BookedItem]
    subtotal: int
    tax: int
    total: int
    currency: str
    created_at: datetime
    expires_at: datetime | None
    expires_in_seconds: int | None
    max_expires_at: datetime | None
    server_time: datetime
    version: int
    email: str | None
    payments: list[Payment]
    reason: str | None

    @property
    def is_live(self) -> bool:
        return self.status in (Status.HELD, Status.PAYMENT_SUBMITTED, Status.CONFIRMED)

    @property
    def seats(self) -> list[str]:
        return [item.seat for item in self.items if item.seat is not None]

    @property
    def units(self) -> int:
        return sum(item.quantity for item in self.items)

    @property
    def last_payment(self) -> Payment | None:
        return self.payments[-1] if self.payments else None


class BookingList(Struct, frozen=True):
    items: list[Booking]
    next: str | None


class Ticket(Struct, frozen=True):
    id: str
    seat: str | None
    pool: str
    tariff: str
    code: str
    status: str


class Problem(Struct, frozen=True):
    status: int
    code: str
    detail: str = ""
    conflicts: list[str] = []


class Org(Struct, frozen=True):
    """How an org shows itself."""

    id: bytes
    slug: str
    name: str
    colour: str | None
    logo_hash: str | None
    frame_origins: list[str]
