"""Letters to buyers: written when they are sent, from the message and from what is known of the booking."""

from datetime import UTC, datetime
from typing import Final

from msgspec import Struct, json

from holdfast import ids
from holdfast.core.facts import OF_PAYMENTS, TRANSFERRED
from holdfast.core.messages import told_as
from holdfast.core.money import PaymentStatus
from holdfast.core.states import Status
from holdfast.db import Pool
from holdfast.deliveries.channel import Delivery, UndeliveredError
from holdfast.deliveries.letters import Attachment, Item, Letter, compose
from holdfast.deliveries.smtp import Smtp
from holdfast.deliveries.texts import Kind, reason_in
from holdfast.desk.desk import Desk
from holdfast.tickets.issue import Sheet, calendar_of, issue, load_sheet, print_tickets
from holdfast.tickets.ticket import tickets_of
from holdfast.words import language_of

KINDS: Final = {
    told_as(Status.CONFIRMED): Kind.CONFIRMED,
    told_as(Status.EXPIRED): Kind.EXPIRED,
    told_as(Status.REJECTED): Kind.REJECTED,
    told_as(Status.CANCELLED): Kind.CANCELLED,
    told_as(Status.REFUNDED): Kind.REFUNDED,
    told_as(TRANSFERRED): Kind.TRANSFERRED,
    OF_PAYMENTS + PaymentStatus.REFUND_DUE: Kind.LATE_REFUND,
}
WITH_TICKETS: Final = frozenset({Kind.CONFIRMED, Kind.TRANSFERRED})
# These say themselves why.
OF_MONEY: Final = frozenset({Kind.LATE_REFUND, Kind.EXTRA_REFUND})


class Body(Struct, frozen=True):
    email: str
    language: str | None
    generation: int
    status: Status
    reason: str | None

    def kind(self, told: str) -> Kind:
        """Money that is too much for a booking that stands is not money that came too late for it."""
        kind = KINDS[told]
        is_extra = kind is Kind.LATE_REFUND and self.status in (Status.CONFIRMED, Status.COMPLETED)
        return Kind.EXTRA_REFUND if is_extra else kind


class Mail:
    def __init__(self, pool: Pool, desk: Desk, smtp: Smtp, sender: str) -> None:
        self._pool = pool
        self._desk = desk
        self._smtp = smtp
        self._sender = sender

    async def send(self, delivery: Delivery) -> None:
        body = json.decode(delivery.body, type=Body)
        sheet = await load_sheet(self._pool, self._desk, delivery.event, delivery.stream)
        if sheet is None:
            raise UndeliveredError("the booking is not there", for_good=True)
        kind, language = body.kind(delivery.kind), language_of(body.language)
        attachments = await self._tickets(sheet, body, language) if kind in WITH_TICKETS else ()
        letter = _letter(delivery, body, sheet, kind, attachments)
        await self._smtp.send(compose(letter, self._sender))

    async def _tickets(self, sheet: Sheet, body: Body, language: str) -> tuple[Attachment, ...]:
        tickets = tickets_of(sheet.booking, sheet.layout)
        issued = await issue(self._pool, sheet.booking, tickets, body.generation)
        return (
            Attachment("tickets.pdf", "application/pdf", await print_tickets(sheet, issued, language)),
            Attachment("event.ics", "text/calendar; charset=utf-8", calendar_of(sheet, datetime.now(UTC))),
        )


def _letter(delivery: Delivery, body: Body, sheet: Sheet, kind: Kind, attachments: tuple[Attachment, ...]) -> Letter:
    booking = sheet.booking
    return Letter(
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
        reason=None if kind in OF_MONEY else reason_in(language_of(body.language), body.reason),
        attachments=attachments,
        message_id=f"<{ids.event_text(delivery.event)}.{delivery.number}@holdfast>",
    )


def _items(sheet: Sheet) -> tuple[Item, ...]:
    items = []
    for line in sheet.booking.lines:
        pool = sheet.layout.pools[line.pool]
        seat = None if line.seat is None else sheet.layout.seats[line.seat].label
        label = ", ".join(part for part in (pool.name, seat, pool.tariffs[line.tariff].name) if part)
        items.append(Item(label, line.quantity, line.unit_price))
    return tuple(items)
