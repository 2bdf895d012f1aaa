"""Saves the notifications of a batch, in the same transaction as the changes they report."""

from msgspec import Raw, json

from holdfast import sql
from holdfast.core.event_state import EventState
from holdfast.core.journal import JournalEntry
from holdfast.core.notification_rules import (
    EMAIL,
    SMS,
    BookingWebhookData,
    EmailBody,
    Notification,
    SmsBody,
    WebhookSubscription,
    buyer_hash,
    email_limit,
    is_pushed,
    is_texted,
    notifications_for,
    phone_hash,
    recipient_hash,
    sms_buyer_hash,
    sms_client_hash,
    sms_limit,
    webhook_kind,
)
from holdfast.engine.load import LoadedBatch
from holdfast.engine.rows import RowDocument, columns, document
from holdfast.runtime import ids
from holdfast.runtime.db import Connection


class NewDeliveryRow(RowDocument):
    event: bytes
    number: int
    target: str
    channel: str
    org: bytes
    booking: bytes
    kind: str
    body: EmailBody | SmsBody | Raw
    recipient_hash: bytes | None = None
    buyer_hash: bytes | None = None
    client_hash: bytes | None = None


async def save_notifications(connection: Connection, loaded: LoadedBatch) -> None:
    rows: list[NewDeliveryRow] = []
    for state in loaded.states.values():
        endpoints = loaded.endpoints.get(state.layout.org, [])
        for entry in state.entries:
            if endpoints or loaded.buses or entry.booking.email is not None or is_texted(entry):
                rows += _delivery_rows(state, entry, endpoints, loaded.buses)
    if rows:
        await connection.execute(sql.engine.insert_deliveries, document(rows), loaded.now)
    await _save_push_messages(connection, loaded)


async def _save_push_messages(connection: Connection, loaded: LoadedBatch) -> None:
    """Few bookings have subscriptions, and fewer are reviewed, so a batch only asks for those that are."""
    reviewed = [
        (entry.booking.event, entry.booking.id, webhook_kind(entry.kind))
        for state in loaded.states.values()
        for entry in state.entries
        if is_pushed(entry)
    ]
    if reviewed:
        await connection.execute(sql.engine.insert_push_deliveries, *columns(reviewed), loaded.now)


def _delivery_rows(
    state: EventState, entry: JournalEntry, endpoints: list[WebhookSubscription], buses: list[str]
) -> list[NewDeliveryRow]:
    notifications = notifications_for(entry, endpoints, buses)
    make_row = {EMAIL: _email_row, SMS: _sms_row}
    has_webhooks = any(n.channel not in make_row for n in notifications)
    # All endpoints and buses get the same document.
    webhook = Raw(json.encode(_webhook_data(state, entry))) if has_webhooks else Raw()
    return [
        make_row[n.channel](entry, n) if n.channel in make_row else _new_row(entry, n, webhook) for n in notifications
    ]


def _new_row(entry: JournalEntry, n: Notification, body: EmailBody | SmsBody | Raw) -> NewDeliveryRow:
    booking = entry.booking
    return NewDeliveryRow(booking.event, entry.number, n.target, n.channel, booking.org, booking.id, n.kind, body)


def _email_row(entry: JournalEntry, notification: Notification) -> NewDeliveryRow:
    booking, limit = entry.booking, email_limit(entry)
    assert booking.email is not None
    body = EmailBody(booking.email, booking.language, booking.generation, booking.status, entry.data.reason, limit)
    row = _new_row(entry, notification, body)
    if limit is not None:
        row.recipient_hash = recipient_hash(limit, booking.org, booking.email)
        row.buyer_hash = buyer_hash(limit, booking.org, entry.actor, booking.user)
    return row


def _sms_row(entry: JournalEntry, notification: Notification) -> NewDeliveryRow:
    booking, limit = entry.booking, sms_limit(entry.booking.total)
    assert booking.phone is not None
    row = _new_row(entry, notification, SmsBody(booking.language, booking.generation, limit))
    row.recipient_hash = phone_hash(limit, booking.org, booking.phone)
    row.buyer_hash = sms_buyer_hash(limit, booking.org, entry.actor)
    row.client_hash = sms_client_hash(limit, booking.org, booking.client)
    return row


def _webhook_data(state: EventState, entry: JournalEntry) -> BookingWebhookData:
    booking, payment = entry.booking, entry.data.payment
    return BookingWebhookData(
        event=ids.format_event_id(booking.event),
        booking=ids.format_booking_id(booking.event, booking.id),
        payment=None if payment is None else ids.format_payment_id(booking.event, bytes.fromhex(payment)),
        seq=entry.number,
        at=state.now,
        user=booking.user,
        status=booking.status,
        total=booking.total,
        currency=booking.currency,
        reason=entry.data.reason,
        items=state.layout.items(booking.lines),
    )
