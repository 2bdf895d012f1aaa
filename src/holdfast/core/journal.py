"""Entries of an event's journal. Their seats and pools are public; their actors are not, and the database has
them under the names that `core.actors` gives them."""

from typing import Any, Final, Literal

from msgspec import Struct

from holdfast.core.booking import Booking
from holdfast.core.states import CLAIMS, Claim, Status

SeatState = Literal["free", "held", "sold", "blocked"]

SEAT_STATES: Final[dict[Claim, SeatState]] = {Claim.NONE: "free", Claim.HELD: "held", Claim.SOLD: "sold"}
SEAT_STATE_BY_STATUS: Final = {status: SEAT_STATES[claim] for status, claim in CLAIMS.items()}


class PoolState(Struct, frozen=True, gc=False):
    capacity: int
    held: int
    sold: int
    remaining: int


class EntryData(Struct, frozen=True, omit_defaults=True):
    """What an entry changed: the seats and pools it touched, in their new state. `payment` is a payment's id in
    hexadecimal; `amount` and `currency` are what the provider captured, if that differs from the payment; `change` is
    what the request asked to change about the event."""

    seats: dict[str, SeatState] = {}
    pools: dict[str, PoolState] = {}
    reason: str | None = None
    payment: str | None = None
    amount: int | None = None
    currency: str | None = None
    change: dict[str, Any] | None = None


class JournalEntry(Struct, frozen=True):
    """One change to a booking. `kind` is the booking's new status, `extended`, `transferred`, or `payment.` followed by
    the payment's new status. `booking` is the booking after the change, and `was` its status before, unless it is new.
    `is_unexpected` marks a refund that no other notification reports to the buyer."""

    number: int
    kind: str
    booking: Booking
    actor: str
    data: EntryData
    is_unexpected: bool = False
    was: Status | None = None


EVENT_CREATED: Final = "event_created"
EVENT_PUBLISHED: Final = "event_published"
EVENT_CHANGED: Final = "event_changed"
EVENT_COMPLETED: Final = "event_completed"
EVENT_CANCELLED: Final = "event_cancelled"
EXTENDED: Final = "extended"
TRANSFERRED: Final = "transferred"
PAYMENT_PREFIX: Final = "payment."
NO_CHANGE: Final = EntryData()
