"""A booking with its event and its org: what tickets and emails are made of."""

from datetime import datetime

from msgspec import Struct

from holdfast import sql
from holdfast.core.booking import Booking
from holdfast.core.layout import Layout
from holdfast.engine.engine import Engine
from holdfast.i18n.formatting import VENUE_ADDRESS_MAX, shorten
from holdfast.runtime.db import Database


class BookingDetails(Struct, frozen=True, kw_only=True):
    booking: Booking
    layout: Layout
    title: str
    starts_at: datetime
    ends_at: datetime | None
    timezone: str
    address: str | None
    org_name: str


class _DetailsRow(Struct, frozen=True):
    title: str
    starts_at: datetime
    ends_at: datetime | None
    timezone: str
    address: str | None
    revision: int
    org_name: str
    booking: Booking


async def load_booking_details(
    database: Database, engine: Engine, event: bytes, booking: bytes
) -> BookingDetails | None:
    row = await database.event(event).row(
        _DetailsRow, sql.tickets.booking_details, event, booking, VENUE_ADDRESS_MAX + 1
    )
    if row is None:
        return None
    layouts = await engine.layouts(database, {event: row.revision})
    return BookingDetails(
        booking=row.booking,
        layout=layouts[event],
        title=row.title,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        timezone=row.timezone,
        address=None if row.address is None else shorten(row.address, VENUE_ADDRESS_MAX),
        org_name=row.org_name,
    )
