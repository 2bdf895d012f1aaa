"""The channel `email`: writes each email at the moment of sending, from the delivery and the booking's details."""

import asyncio
from datetime import UTC, datetime
from typing import Final

from msgspec import json

from holdfast.core.journal import PAYMENT_PREFIX, TRANSFERRED
from holdfast.core.notification_rules import REMINDER, EmailBody, webhook_kind
from holdfast.core.payment import PaymentStatus
from holdfast.core.states import SOLD, Status
from holdfast.engine.engine import Engine
from holdfast.i18n.languages import language_of
from holdfast.i18n.reason_texts import reason_text
from holdfast.notifications.channel import Delivery, UndeliveredError
from holdfast.notifications.email_limits import check_limits
from holdfast.notifications.emails import WITH_TICKETS, Attachment, Email, EmailItem, EmailKind, compose
from holdfast.notifications.reminder_check import check_reminder
from holdfast.notifications.smtp import Smtp
from holdfast.runtime import ids
from holdfast.runtime.db import Database
from holdfast.tickets.booking_details import BookingDetails, load_booking_details
from holdfast.tickets.booking_tickets import tickets_of
from holdfast.tickets.issued_tickets import event_calendar, issue_tickets, print_tickets

# Each takes a connection to the mail server. The relay hands over a few emails of each org at a time; they take turns.
SENDS_MAX: Final = 16

KINDS: Final = {
    webhook_kind(Status.CONFIRMED): EmailKind.CONFIRMED,
    webhook_kind(Status.EXPIRED): EmailKind.EXPIRED,
    webhook_kind(Status.REJECTED): EmailKind.REJECTED,
    webhook_kind(Status.CANCELLED): EmailKind.CANCELLED,
    webhook_kind(Status.REFUNDED): EmailKind.REFUNDED,
    webhook_kind(TRANSFERRED): EmailKind.TRANSFERRED,
    PAYMENT_PREFIX + PaymentStatus.REFUND_DUE: EmailKind.LATE_REFUND,
    REMINDER: EmailKind.REMINDER,
}
# The text of these emails already gives the reason.
WITHOUT_REASON: Final = frozenset({EmailKind.LATE_REFUND, EmailKind.EXTRA_REFUND})


class EmailChannel:
    def __init__(self, database: Database, engine: Engine, smtp: Smtp, sender: str) -> None:
        self._database = database
        self._engine = engine
        self._smtp = smtp
        self._sender = sender
        self._sends = asyncio.Semaphore(SENDS_MAX)

    async def send(self, delivery: Delivery) -> None:
        body = json.decode(delivery.body, type=EmailBody)
        if body.limit is not None:
            await check_limits(self._database, delivery, body.limit)
        if body.starts_at is not None:
            await check_reminder(self._database, delivery, body.generation, body.starts_at)
        async with self._sends:
            await self._compose_and_send(delivery, body)

    async def _compose_and_send(self, delivery: Delivery, body: EmailBody) -> None:
        details = await load_booking_details(self._database, self._engine, delivery.event, delivery.stream)
        if details is None:
            raise UndeliveredError("The booking does not exist.", is_permanent=True)
        to = body.email or details.booking.email
        if to is None:
            raise UndeliveredError("The booking has no email address.", is_permanent=True)
        kind = _email_kind(delivery, body)
        attachments = await self._make_attachments(details, body) if kind in WITH_TICKETS else ()
        email = _email(delivery, body, details, kind, to, attachments)
        await self._smtp.send(compose(email, self._sender))

    async def _make_attachments(self, details: BookingDetails, body: EmailBody) -> tuple[Attachment, ...]:
        tickets = tickets_of(details.booking, details.layout)
        issued = await issue_tickets(self._database, details.booking, tickets, body.generation)
        pdf = await print_tickets(details, issued, body.language or "en")
        calendar = event_calendar(details, language_of(body.language), datetime.now(UTC))
        return (
            Attachment("tickets.pdf", "application/pdf", pdf),
            Attachment("event.ics", "text/calendar; charset=utf-8", calendar),
        )


def _email(
    delivery: Delivery,
    body: EmailBody,
    details: BookingDetails,
    kind: EmailKind,
    to: str,
    attachments: tuple[Attachment, ...],
) -> Email:
    booking = details.booking
    return Email(
        kind=kind,
        language=language_of(body.language),
        to=to,
        org_name=details.org_name,
        event_title=details.title,
        timezone=details.timezone,
        address=details.address,
        booking=ids.booking_reference(booking.id),
        items=_items(details),
        subtotal=booking.subtotal,
        tax=booking.tax,
        total=booking.total,
        currency=booking.currency,
        reason=_reason(body, kind),
        attachments=attachments,
        shows_prices=body.generation == 0,
        shift=details.shift,
        message_id=f"<{ids.format_event_id(delivery.event)}.{delivery.number}@holdfast>",
    )


def _email_kind(delivery: Delivery, body: EmailBody) -> EmailKind:
    """A payment for a booking that is confirmed anyway came twice, not late. The refund of a transferred booking goes
    to the person who paid for it."""
    kind = KINDS[delivery.kind]
    if kind is EmailKind.REFUNDED and body.generation > 0:
        return EmailKind.REFUNDED_TO_PAYER
    return EmailKind.EXTRA_REFUND if kind is EmailKind.LATE_REFUND and body.status in SOLD else kind


def _reason(body: EmailBody, kind: EmailKind) -> str | None:
    if body.reason is None or kind in WITHOUT_REASON:
        return None
    return reason_text(language_of(body.language), body.reason)


def _items(details: BookingDetails) -> tuple[EmailItem, ...]:
    items = []
    for line in details.booking.lines:
        pool = details.layout.pools[line.pool]
        seat = None if line.seat is None else details.layout.seats[line.seat].label
        label = ", ".join(part for part in (pool.name, seat, pool.tariffs[line.tariff].name) if part)
        items.append(EmailItem(label, line.quantity, line.unit_price, details.layout.time_slot(line.pool)))
    return tuple(items)
