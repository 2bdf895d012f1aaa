"""What can be asked of an event. Ids are made by whoever asks, so that asking twice finds the first answer."""

from datetime import datetime

from msgspec import Struct

from holdfast.core.layout import Layout
from holdfast.core.model import Booking
from holdfast.core.payment import Payment, PaymentResult
from holdfast.core.states import FastStrEnum, Verb


class SeatItem(Struct, frozen=True):
    label: str
    tariff: str | None = None


class PoolItem(Struct, frozen=True):
    pool: str
    quantity: int
    tariff: str | None = None


class BestSeats(Struct, frozen=True):
    pool: str
    quantity: int
    tariff: str | None = None
    adjacent: bool = True


class PlaceHold(Struct, frozen=True, kw_only=True):
    """Take a hold: all of the items or none. To whom is not of the `staff`, drafts do not exist."""

    event: bytes
    org: bytes
    booking: bytes
    user: str
    actor: str
    request_key: bytes
    fingerprint: bytes
    items: tuple[SeatItem | PoolItem, ...] = ()
    best: BestSeats | None = None
    cart_hash: bytes | None = None
    details: str | None = None
    email: str | None = None
    language: str | None = None
    staff: bool = True


class ActOnBooking(Struct, frozen=True, kw_only=True):
    """Do something to a booking. `owner` is set where only its own buyer may."""

    event: bytes
    org: bytes
    booking: bytes
    verb: Verb
    actor: str
    owner: str | None = None
    reason: str | None = None


class StartPayment(Struct, frozen=True, kw_only=True):
    """Begin a payment of a hold. It is there before the buyer is sent to the provider."""

    event: bytes
    org: bytes
    booking: bytes
    payment: bytes
    provider: str
    actor: str
    request_key: bytes
    fingerprint: bytes
    owner: str | None = None
    return_url: str | None = None


class Receipt(Struct, frozen=True, kw_only=True):
    """The proof of a payment: a file, stored under its hash, or a reference to one elsewhere."""

    id: bytes
    hash: bytes
    content_type: str | None = None
    size: int | None = None
    file_ref: str | None = None
    message_ref: str | None = None


class SubmitReceipt(Struct, frozen=True, kw_only=True):
    """Hand in a receipt, which waits for review from then on. `payment` is the id of the payment that it proves, if
    none was begun yet."""

    event: bytes
    org: bytes
    booking: bytes
    payment: bytes
    receipt: Receipt
    actor: str
    owner: str | None = None


class SettlePayment(Struct, frozen=True, kw_only=True):
    """What a provider told about a payment."""

    event: bytes
    org: bytes
    booking: bytes
    payment: bytes
    result: PaymentResult
    actor: str
    amount: int | None = None
    currency: str | None = None


class Remedy(FastStrEnum):
    """What can be done with money that cannot simply be kept."""

    REFUND = "refund"  # have the provider pay it back
    BY_HAND = "by_hand"  # note that a person has paid it back
    REVIEW = "review"  # leave it to a person


class ResolvePayment(Struct, frozen=True, kw_only=True):
    """Decide about money that was not settled as it should be."""

    event: bytes
    org: bytes
    booking: bytes
    payment: bytes
    remedy: Remedy
    actor: str
    reason: str | None = None


class TransferBooking(Struct, frozen=True, kw_only=True):
    """Hand a confirmed booking to another person. Tickets issued before are void. `generation` is the booking's own as
    whoever asks had it: what was handed on since, by this very command or another, is not handed on again."""

    event: bytes
    org: bytes
    booking: bytes
    generation: int
    user: str
    actor: str
    email: str | None = None
    language: str | None = None


Command = PlaceHold | ActOnBooking | StartPayment | SubmitReceipt | SettlePayment | ResolvePayment | TransferBooking


class Accepted(Struct, frozen=True):
    """The answer "yes". `replayed`: the booking or payment was made by an earlier request with the same key."""

    booking: Booking
    layout: Layout
    now: datetime
    replayed: bool = False
    payment: Payment | None = None
