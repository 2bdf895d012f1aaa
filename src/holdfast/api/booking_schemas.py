"""A booking as the API takes and shows it: the request, the command it becomes, and the response."""

import hashlib
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Raw, UnsetType, json, structs

from holdfast.api.requests import ContactNew, EmailAddress, Language, User, check_one_email
from holdfast.api.responses import Moment, PaymentView, View, payment_view
from holdfast.core.booking import Booking
from holdfast.core.buyer_form import ANSWER_LENGTH_MAX, ANSWERS_BYTES_MAX
from holdfast.core.commands import BestSeats, Client, PlaceHold, PoolItem, SeatItem
from holdfast.core.event_schemas import QUESTIONS_MAX
from holdfast.core.layout import BookedItem
from holdfast.core.request_types import (
    Code,
    Details,
    Label,
    Quantity,
    RequestModel,
    check_details,
    check_unique,
    invalid_field,
)
from holdfast.core.seat_ranking import BEST_SEATS_MAX
from holdfast.core.states import TIMED, Status
from holdfast.runtime import ids

_encode_sorted: Final = json.Encoder(order="sorted").encode

# All items of a booking together. Each unit becomes a ticket.
UNITS_MAX = 1000
NO_CONTACT: Final = ContactNew()

# By the code of the question. A question per unit takes a list, in the order of the items.
Answer = Annotated[str, Meta(max_length=ANSWER_LENGTH_MAX)] | bool | None
Answers = Annotated[
    dict[Code, Answer | Annotated[list[Answer], Meta(max_length=UNITS_MAX)]], Meta(max_length=QUESTIONS_MAX)
]


class Item(RequestModel, frozen=True):
    """A seat, or a quantity of a pool. `tariff` is optional if the pool has only one."""

    seat: Label | None = None
    pool: Code | None = None
    tariff: Code | None = None
    quantity: Quantity | None = None

    def __post_init__(self) -> None:
        if self.seat is not None and (self.pool is not None or self.quantity not in (None, 1)):
            raise invalid_field("items", "has an item with both a seat and a pool or quantity; send either")
        if self.seat is None and self.pool is None:
            raise invalid_field("items", "has an item without a seat or a pool")


class BestAvailable(RequestModel, frozen=True):
    """At most 100 seats. A larger group needs several requests."""

    pool: Code
    quantity: Annotated[int, Meta(ge=1, le=BEST_SEATS_MAX)]
    tariff: Code | None = None
    adjacent: bool = True


class HoldNew(RequestModel, frozen=True):
    """Send either `items` or `best_available`. `user` is optional with a customer token. `email` is short for
    `contact.email`."""

    user: User | None = None
    items: Annotated[list[Item], Meta(min_length=1, max_length=200)] | None = None
    best_available: BestAvailable | None = None
    cart_token: Annotated[str, Meta(min_length=1, max_length=200, description="Stored only as a hash.")] | None = None
    details: Details | None = None
    email: EmailAddress | None = None
    language: Language | None = None
    # Without a value these are not part of the request's fingerprint, as before they existed.
    contact: ContactNew | UnsetType = UNSET
    answers: Answers | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_one_email(self.contact, self.email)
        if (self.items is None) is (self.best_available is None):
            raise invalid_field("items", "must be sent, or `best_available`, but not both")
        if self.items is not None and len(self.items) > 1:
            if sum(item.quantity or 1 for item in self.items) > UNITS_MAX:
                raise invalid_field("items", f"may have at most {UNITS_MAX} units in total")
            check_unique("items", "seat", (item.seat for item in self.items if item.seat is not None))
        if self.details is not None:
            check_details(self.details)
        if self.answers is not UNSET and len(json.encode(self.answers)) > ANSWERS_BYTES_MAX:
            raise invalid_field("answers", f"may take at most {ANSWERS_BYTES_MAX // 1024} KiB as JSON")


class ContactView(View, frozen=True):
    name: str | None
    email: str | None
    phone: str | None


class BookingView(View, frozen=True):
    """Buyers see `reference` on tickets and in emails. Only staff see what the former owner of a transferred booking
    entered and paid: with a customer token, `details`, `answers` and all amounts of such a booking are null, and
    `payments` is empty."""

    id: str
    reference: str
    event: str
    user: str
    status: Status
    items: Sequence[BookedItem]
    subtotal: int | None
    tax: int | None
    total: int | None
    currency: str
    created_at: Moment
    expires_at: Moment | None
    expires_in_seconds: int | None
    max_expires_at: Moment | None
    server_time: Moment
    version: int
    details: dict[str, Any] | Raw | None
    contact: ContactView
    answers: dict[str, Any] | Raw | None
    email: str | None
    language: str | None
    payments: list[PaymentView]
    reason: str | None


class BookingList(View, frozen=True):
    items: list[BookingView]
    next: str | None


def hold_command(
    body: HoldNew,
    *,
    event: bytes,
    org: bytes,
    user: str,
    actor: str,
    staff: bool,
    request_key: bytes,
    client: Client | None = None,
) -> PlaceHold:
    contact = NO_CONTACT if body.contact is UNSET else body.contact
    return PlaceHold(
        event=event,
        org=org,
        booking=ids.new_id(),
        user=user,
        actor=actor,
        staff=staff,
        request_key=request_key,
        fingerprint=hashlib.blake2b(_encode_sorted((user, body)), digest_size=16).digest(),
        items=tuple([_item(item) for item in body.items or ()]),
        best_available=_best_seats(body),
        cart_hash=hashlib.sha256(body.cart_token.encode()).digest() if body.cart_token else None,
        details=json.encode(body.details).decode() if body.details is not None else None,
        name=contact.name,
        email=contact.email or body.email,
        phone=contact.phone,
        language=body.language,
        answers=json.encode(body.answers).decode() if body.answers else None,
        client=client,
    )


def _item(item: Item) -> SeatItem | PoolItem:
    if item.seat is not None:
        return SeatItem(item.seat, item.tariff)
    assert item.pool is not None
    return PoolItem(item.pool, 1 if item.quantity is None else item.quantity, item.tariff)


def _best_seats(body: HoldNew) -> BestSeats | None:
    best = body.best_available
    return BestSeats(best.pool, best.quantity, best.tariff, best.adjacent) if best else None


def booking_view(booking: Booking, items: Sequence[BookedItem], now: datetime) -> BookingView:
    """A hold past its deadline reads as expired, even before the database says so."""
    status = Status.EXPIRED if booking.is_due(now) else booking.status
    left = None
    if booking.expires_at is not None and status in TIMED:
        left = math.ceil((booking.expires_at - now).total_seconds())
    return BookingView(
        id=ids.format_booking_id(booking.event, booking.id),
        reference=ids.booking_reference(booking.id),
        event=ids.format_event_id(booking.event),
        user=booking.user,
        status=status,
        items=items,
        subtotal=booking.subtotal,
        tax=booking.tax,
        total=booking.total,
        currency=booking.currency,
        created_at=booking.created_at,
        expires_at=booking.expires_at,
        expires_in_seconds=left,
        max_expires_at=booking.max_expires_at,
        server_time=now,
        version=booking.version,
        details=Raw(booking.details) if booking.details is not None else None,
        contact=ContactView(name=booking.name, email=booking.email, phone=booking.phone),
        answers=Raw(booking.answers) if booking.answers is not None else None,
        email=booking.email,
        language=booking.language,
        payments=[payment_view(booking.event, booking.id, payment) for payment in booking.payments],
        reason=booking.reason,
    )


def recipient_view(view: BookingView) -> BookingView:
    """The booking without what its former owner entered and paid."""
    items = [BookedItem(item.pool, item.tariff, item.seat, item.quantity, None) for item in view.items]
    return structs.replace(
        view, items=items, subtotal=None, tax=None, total=None, details=None, answers=None, payments=[]
    )
