"""A booking and its lines.

Inside the engine, pools, tariffs and seats go by their number within the event; codes and labels are for people. Ids
of events, bookings and orgs are the 16 bytes of a UUID.
"""

from datetime import datetime

from msgspec import Struct

from holdfast.core.payment import Payment
from holdfast.core.states import TIMED, Status


class Line(Struct, frozen=True, gc=False, array_like=True):
    """One seat, or a quantity of a pool, at a tariff. Lines never change after the booking is placed."""

    pool: int
    tariff: int
    seat: int | None
    quantity: int
    unit_price: int


class BuyerInput(Struct, frozen=True, kw_only=True):
    """What the buyer enters. A `PlaceHold` command carries it, and the new booking keeps it."""

    user: str
    cart_hash: bytes | None = None
    details: str | None = None
    name: str | None = None
    email: str | None = None
    phone: str | None = None
    language: str | None = None
    # The answers to the event's questions, as a JSON object.
    answers: str | None = None


class Booking(BuyerInput, frozen=True, kw_only=True, omit_defaults=True):
    """One buyer's claim on units of an event, in every status from hold to completion. `engine.sql` reads and writes
    exactly these fields, as the JSON that msgspec makes of them. A booking that a batch has loaded has no `details` and
    no `answers`, even if `has_details` is true: they may be large, and no rule depends on them later."""

    id: bytes
    event: bytes
    org: bytes
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
    has_details: bool = False
    reason: str | None = None
    # Counts transfers. A transfer voids all tickets of earlier generations.
    generation: int = 0
    # A keyed hash of the buyer's address, if the limits by address apply to the booking.
    client: bytes | None = None
    # Whether this may be the only live booking of its user. The schema enforces it.
    one_per_user: bool = False
    version: int = 0
    payments: tuple[Payment, ...] = ()
    # Hashes of the receipts that the buyer submitted.
    receipts: tuple[bytes, ...] = ()

    @property
    def was_transferred(self) -> bool:
        """Whether someone other than the present holder may have placed and paid for the booking. Only staff may see
        what that person entered and paid."""
        return self.generation > 0

    @property
    def units(self) -> int:
        return sum(line.quantity for line in self.lines)

    def payment(self, id_: bytes) -> Payment | None:
        return next((payment for payment in self.payments if payment.id == id_), None)

    def is_due(self, now: datetime) -> bool:
        """Whether the deadline has passed, even if nobody has recorded the expiry yet."""
        return self.status in TIMED and self.expires_at is not None and self.expires_at <= now
