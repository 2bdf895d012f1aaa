"""Issues the tickets of a booking: signs their codes, prints them, and adds the event as a calendar file."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final

from msgspec import Struct

from holdfast.core.booking import Booking
from holdfast.runtime import ids
from holdfast.runtime.db import Database
from holdfast.tickets.booking_details import BookingDetails
from holdfast.tickets.booking_tickets import Ticket
from holdfast.tickets.calendar import calendar_file
from holdfast.tickets.codes import TicketRef, sign_code
from holdfast.tickets.keys import SigningKey, get_signing_key
from holdfast.tickets.printed_ticket import PrintedTicket
from holdfast.tickets.printer import Printer

# A signature takes about 0.05 ms. Above this number, a thread signs the codes.
SIGNED_AT_ONCE_MAX: Final = 50

_printer: Final = Printer()


class IssuedTicket(Struct, frozen=True):
    ticket: Ticket
    code: str


async def issue_tickets(
    database: Database, booking: Booking, tickets: Sequence[Ticket], generation: int | None = None
) -> list[IssuedTicket]:
    """Sign the tickets for the booking's present holder, or for the holder of an earlier generation."""
    key = await get_signing_key(database, booking.event)
    signed_generation = booking.generation if generation is None else generation

    def sign() -> list[IssuedTicket]:
        return [IssuedTicket(ticket, _sign_code(key, booking, ticket, signed_generation)) for ticket in tickets]

    return sign() if len(tickets) <= SIGNED_AT_ONCE_MAX else await asyncio.to_thread(sign)


async def print_tickets(details: BookingDetails, issued: Sequence[IssuedTicket], language: str) -> bytes:
    """Draw the tickets as a PDF, in a thread because it takes a while. Refuse if too many PDFs are waiting."""
    printed = [_printed_ticket(details, ticket, len(issued), number) for number, ticket in enumerate(issued, 1)]
    return await _printer.run(partial(_draw_tickets, printed, language))


def _draw_tickets(printed: Sequence[PrintedTicket], language: str) -> bytes:
    # The PDF library is large, and most processes never need it. Importing it is slow, so the thread does it.
    from holdfast.tickets.pdf import tickets_pdf

    return tickets_pdf(printed, language)


def event_calendar(details: BookingDetails, language: str, now: datetime) -> bytes:
    return calendar_file(
        booking=ids.format_booking_id(details.booking.event, details.booking.id),
        reference=ids.booking_reference(details.booking.id),
        language=language,
        title=details.title,
        slots=details.slots,
        timezone=details.timezone,
        address=details.address,
        now=now,
    )


def _sign_code(key: SigningKey, booking: Booking, ticket: Ticket, generation: int) -> str:
    return sign_code(
        key.private, TicketRef(booking.event, booking.id, ticket.line, ticket.unit, generation, key.number)
    )


def _printed_ticket(details: BookingDetails, issued: IssuedTicket, count: int, number: int) -> PrintedTicket:
    return PrintedTicket(
        code=issued.code,
        event_title=details.title,
        starts_at=issued.ticket.slot.starts_at,
        ends_at=issued.ticket.slot.shown_end,
        timezone=details.timezone,
        address=details.address,
        pool=issued.ticket.pool_name,
        tariff=issued.ticket.tariff_name,
        seat=issued.ticket.seat,
        booking=ids.booking_reference(details.booking.id),
        org_name=details.org_name,
        number=number,
        count=count,
    )
