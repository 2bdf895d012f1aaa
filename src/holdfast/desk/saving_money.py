"""Closing the books on payments, receipts and messages. Most batches have none of them."""

from datetime import datetime, timedelta
from typing import Any, Final

from holdfast import ids, sql
from holdfast.core.book import Book
from holdfast.core.facts import Fact
from holdfast.core.messages import MAIL, Endpoint, messages
from holdfast.core.model import Booking
from holdfast.core.money import RECEIPT, Payment, PaymentStatus
from holdfast.core.states import Status
from holdfast.db import Connection
from holdfast.desk.opening import Books
from holdfast.desk.rows import Row, bytea, check, document

# When a provider is first asked about a payment it has told nothing of.
LOOK_SECONDS: Final = 60


class PaymentRow(Row):
    event_id: str
    id: str
    org_id: str
    booking_id: str
    provider: str
    status: str
    outcome: str | None
    amount: int
    currency: str
    request_key: str
    fingerprint: str
    return_url: str | None
    reason: str | None
    created_at: datetime
    captured_at: datetime | None
    due_at: datetime | None


class TurnedRow(Row):
    event_id: str
    id: str
    was: str
    status: str
    outcome: str | None
    reason: str | None
    captured_at: datetime | None
    due_at: datetime | None


class ReceiptRow(Row):
    event_id: str
    id: str
    org_id: str
    booking_id: str
    hash: str
    content_type: str | None
    size: int | None
    file_ref: str | None
    message_ref: str | None


class DeliveryRow(Row):
    event_id: str
    number: int
    target: str
    channel: str
    org_id: str
    stream: str
    kind: str
    body: dict[str, Any]


async def save_money(connection: Connection, opened: Books) -> None:
    begun: list[PaymentRow] = []
    turned: list[TurnedRow] = []
    proven: list[ReceiptRow] = []
    for book in opened.books.values():
        for id_, (booking_id, was) in book.paid.items():
            booking = book.bookings[booking_id]
            payment = booking.payment(id_)
            assert payment is not None
            due_at = _due_at(book, booking, payment)
            if was is None:
                begun.append(_payment_row(booking, payment, due_at))
            else:
                turned.append(_turned_row(booking, payment, was, due_at))
        proven += _receipt_rows(book)
    if begun or turned or proven:
        saved = await connection.fetchrow(
            sql.desk.save_money, document(begun), document(turned), document(proven), opened.now
        )
        check("money", saved, begun=len(begun), turned=len(turned), proven=len(proven))


async def save_messages(connection: Connection, opened: Books) -> None:
    rows: list[DeliveryRow] = []
    for book in opened.books.values():
        endpoints = opened.endpoints.get(book.layout.org, [])
        for fact in book.facts:
            if endpoints or fact.booking.email is not None:
                rows += _delivery_rows(book, fact, endpoints)
    if rows:
        await connection.execute(sql.desk.save_deliveries, document(rows), opened.now)


def _delivery_rows(book: Book, fact: Fact, endpoints: list[Endpoint]) -> list[DeliveryRow]:
    booking = fact.booking
    event, org, stream = booking.event.hex(), booking.org.hex(), booking.id.hex()
    return [
        DeliveryRow(event, fact.number, m.target, m.channel, org, stream, m.kind, _body(book, fact, m.channel))
        for m in messages(fact, endpoints)
    ]


def _body(book: Book, fact: Fact, channel: str) -> dict[str, Any]:
    """What a message says. A letter is written when it is sent, from this and what is in the database then."""
    booking = fact.booking
    if channel == MAIL:
        return {
            "email": booking.email,
            "language": booking.language,
            "generation": booking.generation,
            "status": booking.status,
            "reason": fact.data.reason,
        }
    payment = fact.data.payment
    return {
        "event": ids.event_text(booking.event),
        "booking": ids.booking_text(booking.event, booking.id),
        "payment": None if payment is None else ids.payment_text(booking.event, bytes.fromhex(payment)),
        "seq": fact.number,
        "at": book.now,
        "user": booking.user,
        "status": booking.status,
        "total": booking.total,
        "currency": booking.currency,
        "reason": fact.data.reason,
        "items": book.layout.items(booking.lines),
    }


def _due_at(book: Book, booking: Booking, payment: Payment) -> datetime | None:
    """When a worker turns to the payment: to pay it back now, or to ask the provider, before the hold ends and as soon
    as it has ended."""
    if payment.status is PaymentStatus.REFUND_DUE:
        return book.now
    if payment.status is not PaymentStatus.STARTED or payment.provider == RECEIPT:
        return None
    if booking.status is not Status.HELD or booking.expires_at is None:
        return book.now
    return min(book.now + timedelta(seconds=LOOK_SECONDS), booking.expires_at)


def _payment_row(booking: Booking, payment: Payment, due_at: datetime | None) -> PaymentRow:
    return PaymentRow(
        booking.event.hex(),
        payment.id.hex(),
        booking.org.hex(),
        booking.id.hex(),
        payment.provider,
        payment.status,
        payment.outcome,
        payment.amount,
        payment.currency,
        bytea(payment.request_key),
        bytea(payment.fingerprint),
        payment.return_url,
        payment.reason,
        payment.created_at,
        payment.captured_at,
        due_at,
    )


def _turned_row(booking: Booking, payment: Payment, was: PaymentStatus, due_at: datetime | None) -> TurnedRow:
    return TurnedRow(
        booking.event.hex(),
        payment.id.hex(),
        was,
        payment.status,
        payment.outcome,
        payment.reason,
        payment.captured_at,
        due_at,
    )


def _receipt_rows(book: Book) -> list[ReceiptRow]:
    return [
        ReceiptRow(
            book.layout.event.hex(),
            receipt.id.hex(),
            book.layout.org.hex(),
            booking.hex(),
            bytea(receipt.hash),
            receipt.content_type,
            receipt.size,
            receipt.file_ref,
            receipt.message_ref,
        )
        for booking, receipt in book.receipts
    ]
