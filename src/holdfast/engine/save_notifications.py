"""Saves the notifications of a batch, in the same transaction as the changes they report."""

from holdfast import sql
from holdfast.core.event_state import EventState
from holdfast.core.journal import JournalEntry
from holdfast.core.notification_rules import (
    EMAIL,
    BookingWebhookData,
    EmailBody,
    WebhookSubscription,
    notifications_for,
)
from holdfast.engine.load import LoadedBatch
from holdfast.engine.rows import RowDocument, document
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
    body: EmailBody | BookingWebhookData


async def save_notifications(connection: Connection, loaded: LoadedBatch) -> None:
    rows: list[NewDeliveryRow] = []
    for state in loaded.states.values():
        endpoints = loaded.endpoints.get(state.layout.org, [])
        for entry in state.entries:
            if endpoints or entry.booking.email is not None:
                rows += _delivery_rows(state, entry, endpoints)
    if rows:
        await connection.execute(sql.engine.insert_deliveries, document(rows), loaded.now)


def _delivery_rows(
    state: EventState, entry: JournalEntry, endpoints: list[WebhookSubscription]
) -> list[NewDeliveryRow]:
    booking = entry.booking
    return [
        NewDeliveryRow(
            booking.event,
            entry.number,
            n.target,
            n.channel,
            booking.org,
            booking.id,
            n.kind,
            _body(state, entry, n.channel),
        )
        for n in notifications_for(entry, endpoints)
    ]


def _body(state: EventState, entry: JournalEntry, channel: str) -> EmailBody | BookingWebhookData:
    return _email_body(entry) if channel == EMAIL else _webhook_data(state, entry)


def _email_body(entry: JournalEntry) -> EmailBody:
    booking = entry.booking
    assert booking.email is not None
    return EmailBody(booking.email, booking.language, booking.generation, booking.status, entry.data.reason)


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
