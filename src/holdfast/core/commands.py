"""Commands to an event. The caller chooses the ids, so that running a command twice finds the work of the first run."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from holdfast.core.booking import Booking, BuyerInput
from holdfast.core.layout import Layout
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


class Client(Struct, frozen=True):
    """The client of a buyer without a secret key. `address` is a keyed hash. `unpaid_elsewhere` counts the unpaid units
    of the address in other events of the org, and `max_in_org` limits them in all events together."""

    address: bytes
    is_guest: bool
    unpaid_elsewhere: int = 0
    max_in_org: int | None = None


class PlaceHold(BuyerInput, frozen=True, kw_only=True):
    """Hold all of the items, or none. Only `staff` can see drafts."""

    event: bytes
    org: bytes
    booking: bytes
    actor: str
    request_key: bytes
    fingerprint: bytes
    items: tuple[SeatItem | PoolItem, ...] = ()
    best_available: BestSeats | None = None
    staff: bool = True
    client: Client | None = None


# What people do to a booking. The other verbs have commands of their own, or happen when a deadline passes.
BookingAction = Literal[Verb.EXTEND, Verb.CONFIRM, Verb.CANCEL, Verb.REFUND, Verb.APPROVE, Verb.REJECT]


class ActOnBooking(Struct, frozen=True, kw_only=True):
    """Apply a verb to a booking. `owner` restricts the command to the booking of this user."""

    event: bytes
    org: bytes
    booking: bytes
    verb: BookingAction
    actor: str
    owner: str | None = None
    reason: str | None = None


class StartPayment(Struct, frozen=True, kw_only=True):
    """Start a payment for a hold. The payment is stored before the buyer goes to the provider."""

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
    """Proof of a payment: a file that is stored under its hash, or a reference to a file elsewhere."""

    id: bytes
    hash: bytes
    content_type: str | None = None
    size: int | None = None
    file_ref: str | None = None
    message_ref: str | None = None


class SubmitReceipt(Struct, frozen=True, kw_only=True):
    """Submit a receipt for review. `payment` is the id for its payment, unless the buyer already started one."""

    event: bytes
    org: bytes
    booking: bytes
    payment: bytes
    receipt: Receipt
    actor: str
    owner: str | None = None


class SettlePayment(Struct, frozen=True, kw_only=True):
    """Record what a provider reports about a payment."""

    event: bytes
    org: bytes
    booking: bytes
    payment: bytes
    result: PaymentResult
    actor: str
    amount: int | None = None
    currency: str | None = None


class Remedy(FastStrEnum):
    """What to do with money that the booking cannot keep."""

    REFUND = "refund"  # the provider refunds it
    BY_HAND = "by_hand"  # a person has refunded it
    REVIEW = "review"  # a person decides


class ResolvePayment(Struct, frozen=True, kw_only=True):
    """Decide what happens to money that could not be settled."""

    event: bytes
    org: bytes
    booking: bytes
    payment: bytes
    remedy: Remedy
    actor: str
    reason: str | None = None


class TransferBooking(Struct, frozen=True, kw_only=True):
    """Transfer a confirmed booking to another person, which voids the tickets issued so far. `generation` is the
    booking's generation as the caller knows it: if the booking was transferred since, the command changes nothing."""

    event: bytes
    org: bytes
    booking: bytes
    generation: int
    user: str
    actor: str
    name: str | None = None
    email: str | None = None
    phone: str | None = None
    language: str | None = None


Command = PlaceHold | ActOnBooking | StartPayment | SubmitReceipt | SettlePayment | ResolvePayment | TransferBooking


class Accepted(Struct, frozen=True):
    """The command succeeded. `replayed`: an earlier request with the same key made this booking or payment.
    `is_reentrant`: the user already had exactly this booking, whatever the key was."""

    booking: Booking
    layout: Layout
    now: datetime
    replayed: bool = False
    payment: Payment | None = None
    is_reentrant: bool = False
