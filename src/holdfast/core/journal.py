"""Entries of an event's journal. What they say of seats and pools is public; who did it is not."""

from typing import Any, Final, Literal

from msgspec import Struct

from holdfast.core.model import Booking
from holdfast.core.states import CLAIMS, Claim

SeatState = Literal["free", "held", "sold", "blocked"]

SEAT_STATES: Final[dict[Claim, SeatState]] = {Claim.NONE: "free", Claim.HELD: "held", Claim.SOLD: "sold"}
SEAT_STATE_BY_STATUS: Final = {status: SEAT_STATES[claim] for status, claim in CLAIMS.items()}


class PoolState(Struct, frozen=True, gc=False):
    capacity: int
    held: int
    sold: int
    remaining: int


class EntryData(Struct, frozen=True, omit_defaults=True):
    """What a fact changed: the seats and pools it touched, as they are after it. `payment` is the one it is about, in
    hexadecimal; `change` is what was asked of an event as a whole."""

    seats: dict[str, SeatState] = {}
    pools: dict[str, PoolState] = {}
    reason: str | None = None
    payment: str | None = None
    change: dict[str, Any] | None = None


class JournalEntry(Struct, frozen=True):
    """Something that happened to a booking: `kind` is the status that it came into, `extended`, `transferred`, or
    `payment.` and the status that one of its payments came into. `booking` is as it was after that. `is_surprise`: the
    buyer hears of it by nothing else."""

    number: int
    kind: str
    booking: Booking
    actor: str
    data: EntryData
    is_unexpected: bool = False


EXTENDED: Final = "extended"
TRANSFERRED: Final = "transferred"
PAYMENT_PREFIX: Final = "payment."
NO_CHANGE: Final = EntryData()
