"""Saving payments, receipts and notifications. Most batches have none of them."""

from datetime import datetime, timedelta
from typing import Any, Final

from holdfast import sql
from holdfast.core.booking import Booking
from holdfast.core.event_state import EventState
from holdfast.core.journal import JournalEntry
from holdfast.core.notifications import MAIL, WebhookSubscription, notifications_for
from holdfast.core.payment import RECEIPT, Payment, PaymentStatus
from holdfast.core.states import Status
from holdfast.engine.load import LoadedBatch
from holdfast.engine.rows import Row, bytea, check, document
from holdfast.runtime import ids
from holdfast.runtime.db import Connection

# When a worker first asks a provider about a payment that the provider has not reported on.
CHECK_SECONDS: Final = 60


class NewPaymentRow(Row):
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


class ChangedPaymentRow(Row):
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


async def save_payments(connection: Connection, loaded: LoadedBatch) -> None:
    new: list[NewPaymentRow] = []
    changed: list[ChangedPaymentRow] = []
    receipts: list[ReceiptRow] = []
    for state in loaded.states.values():
        for id_, change in state.changed_payments.items():
            booking = state.bookings[change.booking]
            payment = booking.payment(id_)
            assert payment is not None
            due_at = _due_at(state, booking, payment)
            if change.was is None:
                new.append(_new_payment_row(booking, payment, due_at))
            else:
                changed.append(_changed_payment_row(booking, payment, change.was, due_at))
        receipts += _receipt_rows(state)
    if new or changed or receipts:
        saved = await connection.fetchrow(
            sql.engine.save_payments, document(new), document(changed), document(receipts), loaded.now
        )
        check(
            "save_payments",
            saved,
            new_payments=len(new),
            changed_payments=len(changed),
            new_receipts=len(receipts),
        )


async def save_notifications(connection: Connection, loaded: LoadedBatch) -> None:
    rows: list[DeliveryRow] = []
    for state in loaded.states.values():
        endpoints = loaded.endpoints.get(state.layout.org, [])
        for entry in state.entries:
            if endpoints or entry.booking.email is not None:
                rows += _delivery_rows(state, entry, endpoints)
    if rows:
        await connection.execute(sql.engine.insert_deliveries, document(rows), loaded.now)


def _delivery_rows(state: EventState, entry: JournalEntry, endpoints: list[WebhookSubscription]) -> list[DeliveryRow]:
    booking = entry.booking
    event, org, stream = booking.event.hex(), booking.org.hex(), booking.id.hex()
    return [
        DeliveryRow(event, entry.number, m.target, m.channel, org, stream, m.kind, _body(state, entry, m.channel))
        for m in notifications_for(entry, endpoints)
    ]


def _body(state: EventState, entry: JournalEntry, channel: str) -> dict[str, Any]:
    """The content of a notification. The relay composes an email when it sends it, from this and the database."""
    booking = entry.booking
    if channel == MAIL:
        return {
            "email": booking.email,
            "language": booking.language,
            "generation": booking.generation,
            "status": booking.status,
            "reason": entry.data.reason,
        }
    payment = entry.data.payment
    return {
        "event": ids.format_event_id(booking.event),
        "booking": ids.format_booking_id(booking.event, booking.id),
        "payment": None if payment is None else ids.format_payment_id(booking.event, bytes.fromhex(payment)),
        "seq": entry.number,
        "at": state.now,
        "user": booking.user,
        "status": booking.status,
        "total": booking.total,
        "currency": booking.currency,
        "reason": entry.data.reason,
        "items": state.layout.items(booking.lines),
    }


def _due_at(state: EventState, booking: Booking, payment: Payment) -> datetime | None:
    """When a worker processes the payment: it refunds at once, and it asks the provider before the hold expires and
    again as soon as the hold has ended."""
    if payment.status is PaymentStatus.REFUND_DUE:
        return state.now
    if payment.status is not PaymentStatus.STARTED or payment.provider == RECEIPT:
        return None
    if booking.status is not Status.HELD or booking.expires_at is None:
        return state.now
    return min(state.now + timedelta(seconds=CHECK_SECONDS), booking.expires_at)


def _new_payment_row(booking: Booking, payment: Payment, due_at: datetime | None) -> NewPaymentRow:
    return NewPaymentRow(
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


def _changed_payment_row(
    booking: Booking, payment: Payment, was: PaymentStatus, due_at: datetime | None
) -> ChangedPaymentRow:
    return ChangedPaymentRow(
        booking.event.hex(),
        payment.id.hex(),
        was,
        payment.status,
        payment.outcome,
        payment.reason,
        payment.captured_at,
        due_at,
    )


def _receipt_rows(state: EventState) -> list[ReceiptRow]:
    return [
        ReceiptRow(
            state.layout.event.hex(),
            receipt.id.hex(),
            state.layout.org.hex(),
            booking.hex(),
            bytea(receipt.hash),
            receipt.content_type,
            receipt.size,
            receipt.file_ref,
            receipt.message_ref,
        )
        for booking, receipt in state.new_receipts
    ]
