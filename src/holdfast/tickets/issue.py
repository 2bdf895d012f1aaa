"""Issuing the tickets of a booking: with their codes, on paper, and for the calendar."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, json

from holdfast import sql
from holdfast.core.booking import Booking
from holdfast.core.layout import Layout
from holdfast.engine.engine import Engine
from holdfast.runtime import ids
from holdfast.runtime.db import Database, Pool
from holdfast.tickets.booking_tickets import Ticket
from holdfast.tickets.calendar import calendar_file
from holdfast.tickets.codes import TicketRef, sign
from holdfast.tickets.keys import signing_key
from holdfast.tickets.printed import PrintedTicket


class BookingSheet(Struct, frozen=True, kw_only=True):
    """A booking with what is told of it to its buyer, on paper or in a letter."""

    booking: Booking
    layout: Layout
    title: str
    starts_at: datetime
    ends_at: datetime | None
    timezone: str
    address: str | None
    org_name: str


class Issued(Struct, frozen=True):
    ticket: Ticket
    code: str


async def load_booking_sheet(pool: Pool, engine: Engine, event: bytes, booking: bytes) -> BookingSheet | None:
    row = await pool.fetchrow(sql.tickets.print, event, booking)
    if row is None:
        return None
    layouts = await engine.layouts(Database(pool), {event: row["revision"]})
    return BookingSheet(
        booking=json.decode(row["booking"], type=Booking),
        layout=layouts[event],
        **{name: row[name] for name in ("title", "starts_at", "ends_at", "timezone", "address", "org_name")},
    )


async def issue(pool: Pool, booking: Booking, tickets: Sequence[Ticket], generation: int | None = None) -> list[Issued]:
    """The tickets with their codes: of the present holder, or of an earlier generation of holders."""
    key = await signing_key(pool, booking.event)
    which = booking.generation if generation is None else generation
    return [Issued(ticket, _code(key, booking, ticket, which)) for ticket in tickets]


async def print_tickets(sheet: BookingSheet, issued: list[Issued], language: str) -> bytes:
    """In a thread, because it takes a while; and what draws it is large, so it is imported with the first."""
    from holdfast.tickets.pdf import tickets_pdf

    printed = [_printed(sheet, each, len(issued), number) for number, each in enumerate(issued, 1)]
    return await asyncio.to_thread(tickets_pdf, printed, language)


def calendar_of(sheet: BookingSheet, now: datetime) -> bytes:
    booking = ids.format_booking_id(sheet.booking.event, sheet.booking.id)
    return calendar_file(
        uid=f"{booking}@holdfast",
        title=sheet.title,
        starts_at=sheet.starts_at,
        ends_at=sheet.ends_at,
        timezone=sheet.timezone,
        address=sheet.address,
        description=sheet.org_name,
        now=now,
    )


def _code(key: Any, booking: Booking, ticket: Ticket, generation: int) -> str:
    ref = TicketRef(booking.event, booking.id, ticket.line, ticket.unit, generation, key["number"])
    return sign(key["private"], ref)


def _printed(sheet: BookingSheet, issued: Issued, count: int, number: int) -> PrintedTicket:
    return PrintedTicket(
        code=issued.code,
        event_title=sheet.title,
        starts_at=sheet.starts_at,
        timezone=sheet.timezone,
        address=sheet.address,
        pool=issued.ticket.pool_name,
        tariff=issued.ticket.tariff_name,
        seat=issued.ticket.seat,
        booking=ids.booking_reference(sheet.booking.id),
        org_name=sheet.org_name,
        number=number,
        count=count,
    )
