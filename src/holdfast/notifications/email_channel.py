"""Letters to buyers: written when they are sent, from the message and from what is known of the booking."""

from datetime import UTC, datetime
from typing import Final

from msgspec import Struct, json

from holdfast.core.journal import PAYMENT_PREFIX, TRANSFERRED
from holdfast.core.notifications import public_kind
from holdfast.core.payment import PaymentStatus
from holdfast.core.states import Status
from holdfast.engine.engine import Engine
from holdfast.i18n.formatting import language_of
from holdfast.i18n.reasons import reason_text
from holdfast.notifications.channel import Delivery, UndeliveredError
from holdfast.notifications.emails import Attachment, Email, EmailItem, EmailKind, compose
from holdfast.notifications.smtp import Smtp
from holdfast.runtime import ids
from holdfast.runtime.db import Pool
from holdfast.tickets.booking_tickets import tickets_of
from holdfast.tickets.issue import BookingSheet, calendar_of, issue, load_booking_sheet, print_tickets

KINDS: Final = {
    public_kind(Status.CONFIRMED): EmailKind.CONFIRMED,
    public_kind(Status.EXPIRED): EmailKind.EXPIRED,
    public_kind(Status.REJECTED): EmailKind.REJECTED,
    public_kind(Status.CANCELLED): EmailKind.CANCELLED,
    public_kind(Status.REFUNDED): EmailKind.REFUNDED,
    public_kind(TRANSFERRED): EmailKind.TRANSFERRED,
    PAYMENT_PREFIX + PaymentStatus.REFUND_DUE: EmailKind.LATE_REFUND,
}
WITH_TICKETS: Final = frozenset({EmailKind.CONFIRMED, EmailKind.TRANSFERRED})
# These say themselves why.
OF_MONEY: Final = frozenset({EmailKind.LATE_REFUND, EmailKind.EXTRA_REFUND})


class Body(Struct, frozen=True):
    email: str
    language: str | None
    generation: int
    status: Status
    reason: str | None

    def kind(self, told: str) -> EmailKind:
        """Money that is too much for a booking that stands is not money that came too late for it."""
        kind = KINDS[told]
        is_extra = kind is EmailKind.LATE_REFUND and self.status in (Status.CONFIRMED, Status.COMPLETED)
        return EmailKind.EXTRA_REFUND if is_extra else kind


class EmailChannel:
    def __init__(self, pool: Pool, engine: Engine, smtp: Smtp, sender: str) -> None:
        self._pool = pool
        self._engine = engine
        self._smtp = smtp
        self._sender = sender

    async def send(self, delivery: Delivery) -> None:
        body = json.decode(delivery.body, type=Body)
        sheet = await load_booking_sheet(self._pool, self._engine, delivery.event, delivery.stream)
        if sheet is None:
            raise UndeliveredError("the booking is not there", for_good=True)
        kind, language = body.kind(delivery.kind), language_of(body.language)
        attachments = await self._tickets(sheet, body, language) if kind in WITH_TICKETS else ()
        email = _email(delivery, body, sheet, kind, attachments)
        await self._smtp.send(compose(email, self._sender))

    async def _tickets(self, sheet: BookingSheet, body: Body, language: str) -> tuple[Attachment, ...]:
        tickets = tickets_of(sheet.booking, sheet.layout)
        issued = await issue(self._pool, sheet.booking, tickets, body.generation)
        return (
            Attachment("tickets.pdf", "application/pdf", await print_tickets(sheet, issued, language)),
            Attachment("event.ics", "text/calendar; charset=utf-8", calendar_of(sheet, datetime.now(UTC))),
        )


def _email(
    delivery: Delivery, body: Body, sheet: BookingSheet, kind: EmailKind, attachments: tuple[Attachment, ...]
) -> Email:
    booking = sheet.booking
    return Email(
        kind=kind,
        language=language_of(body.language),
        to=body.email,
        org_name=sheet.org_name,
        event_title=sheet.title,
        starts_at=sheet.starts_at,
        timezone=sheet.timezone,
        address=sheet.address,
        booking=ids.booking_reference(booking.id),
        items=_items(sheet),
        subtotal=booking.subtotal,
        tax=booking.tax,
        total=booking.total,
        currency=booking.currency,
        reason=_reason(body, kind),
        attachments=attachments,
        message_id=f"<{ids.format_event_id(delivery.event)}.{delivery.number}@holdfast>",
    )


def _reason(body: Body, kind: EmailKind) -> str | None:
    if body.reason is None or kind in OF_MONEY:
        return None
    return reason_text(language_of(body.language), body.reason)


def _items(sheet: BookingSheet) -> tuple[EmailItem, ...]:
    items = []
    for line in sheet.booking.lines:
        pool = sheet.layout.pools[line.pool]
        seat = None if line.seat is None else sheet.layout.seats[line.seat].label
        label = ", ".join(part for part in (pool.name, seat, pool.tariffs[line.tariff].name) if part)
        items.append(EmailItem(label, line.quantity, line.unit_price))
    return tuple(items)
