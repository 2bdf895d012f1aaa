"""What can be asked of an event. Ids are made by whoever asks, so that asking twice finds the first answer."""

from datetime import datetime

from msgspec import Struct

from holdfast.core.layout import Layout
from holdfast.core.model import Booking
from holdfast.core.states import Verb


class SeatItem(Struct, frozen=True):
    label: str
    tariff: str | None = None


class PoolItem(Struct, frozen=True):
    pool: str
    quantity: int
    tariff: str | None = None


class BestAvailable(Struct, frozen=True):
    pool: str
    quantity: int
    tariff: str | None = None
    adjacent: bool = True


class Place(Struct, frozen=True, kw_only=True):
    """Take a hold: all of the items or none. To whom is not of the `staff`, drafts do not exist."""

    event: bytes
    org: bytes
    booking: bytes
    user: str
    actor: str
    request_key: bytes
    fingerprint: bytes
    items: tuple[SeatItem | PoolItem, ...] = ()
    best: BestAvailable | None = None
    cart_hash: bytes | None = None
    details: str | None = None
    staff: bool = True


class Act(Struct, frozen=True, kw_only=True):
    """Do something to a booking. `owner` is set where only its own buyer may."""

    event: bytes
    org: bytes
    booking: bytes
    verb: Verb
    actor: str
    owner: str | None = None
    reason: str | None = None


Command = Place | Act


class Done(Struct, frozen=True):
    """The answer "yes". `replayed`: the booking was made by an earlier request with the same key."""

    booking: Booking
    layout: Layout
    now: datetime
    replayed: bool = False
