"""What the engine speaks of: the layout of an event, the counters of its pools, bookings and their lines.

Inside the engine pools, tariffs and seats go by their number in the event; codes and labels are for people. Ids of
events, bookings and orgs are the 16 bytes of a UUID.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct

from holdfast.core.payment import Payment
from holdfast.core.states import Status


class Policy(Struct, frozen=True, kw_only=True):
    hold_seconds: int = 600
    extend_seconds: int = 300
    max_hold_seconds: int = 1800
    late_grace_seconds: int = 120
    review: Literal["none", "manual"] = "none"
    review_seconds: int = 86_400
    max_units_per_user: int | None = None
    one_booking_per_user: bool = False
    confirm_at_once: bool = False
    avoid_orphans: bool = False

    @property
    def counts_users(self) -> bool:
        """Whether what a user has already matters for what they may take."""
        return self.one_booking_per_user or self.max_units_per_user is not None


# A preset is nothing but default policy values: the engine knows no presets.
PRESETS: Mapping[str, Policy] = {
    "shift": Policy(hold_seconds=180, max_hold_seconds=600, review="manual", one_booking_per_user=True),
    "show": Policy(hold_seconds=600, max_units_per_user=10, avoid_orphans=True),
    "arena": Policy(hold_seconds=900, extend_seconds=300, max_hold_seconds=2400, max_units_per_user=10),
    "registration": Policy(confirm_at_once=True, one_booking_per_user=True),
    "experience": Policy(hold_seconds=900),
}


class Tariff(Struct, frozen=True):
    number: int
    code: str
    name: str
    price: int


class Seat(Struct, frozen=True, gc=False):
    number: int
    label: str
    pool: int
    row: str
    place: int | None
    x: float | None
    y: float | None
    blocked: bool


class Pool(Struct, frozen=True):
    number: int
    code: str
    name: str
    tariffs: tuple[Tariff, ...]
    # Seats are numbered so that those of a pool, and within it those of a row, follow each other: [first, last].
    seats: tuple[int, int] | None


class Counter(Struct):
    """What is taken of a pool. `held + sold <= capacity` holds at all times, here and in the schema."""

    capacity: int
    held: int
    sold: int

    @property
    def remaining(self) -> int:
        return self.capacity - self.held - self.sold


class Line(Struct, frozen=True, gc=False, array_like=True):
    """What a booking claims: one seat, or a quantity of a pool, at a tariff. Frozen when the booking is made."""

    pool: int
    tariff: int
    seat: int | None
    quantity: int
    unit_price: int


class Booking(Struct, frozen=True, kw_only=True):
    """One buyer's claim through its whole life."""

    id: bytes
    event: bytes
    org: bytes
    user: str
    status: Status
    lines: tuple[Line, ...]
    subtotal: int
    tax: int
    total: int
    currency: str
    created_at: datetime
    expires_at: datetime | None
    max_expires_at: datetime | None
    request_key: bytes
    fingerprint: bytes
    cart_hash: bytes | None = None
    details: str | None = None
    email: str | None = None
    language: str | None = None
    reason: str | None = None
    # How often the booking was handed to another person; the tickets of those before are void.
    generation: int = 0
    version: int = 0
    payments: tuple[Payment, ...] = ()
    # The hashes of the receipts that were handed in for it.
    receipts: tuple[bytes, ...] = ()

    @property
    def units(self) -> int:
        return sum(line.quantity for line in self.lines)

    def payment(self, id_: bytes) -> Payment | None:
        return next((payment for payment in self.payments if payment.id == id_), None)

    def is_due(self, now: datetime) -> bool:
        """Whether its time is up, although nobody may have written that down yet."""
        timed = self.status is Status.HELD or self.status is Status.PAYMENT_SUBMITTED
        return timed and self.expires_at is not None and self.expires_at <= now
