"""A booking with its event and its org: what tickets and emails are made of."""

from msgspec import Struct

from holdfast import sql
from holdfast.core.booking import Booking
from holdfast.core.layout import Layout
from holdfast.core.shift import Shift
from holdfast.core.time_slot import TimeSlot
from holdfast.engine.engine import Engine
from holdfast.i18n.formatting import VENUE_ADDRESS_MAX, format_period, shorten
from holdfast.runtime.db import Database


class BookingDetails(Struct, frozen=True, kw_only=True):
    booking: Booking
    layout: Layout
    title: str
    timezone: str
    address: str | None
    shift: Shift | None
    org_name: str

    @property
    def slots(self) -> dict[str, TimeSlot]:
        """When the booking takes place, by the code of the pool."""
        pools = [line.pool for line in self.booking.lines]
        return {self.layout.pools[pool].code: self.layout.time_slot(pool) for pool in pools}

    def event_text(self, slot: TimeSlot) -> str:
        """Such as "Friday night, Friday, March 5, 2027, 8:00 PM (Central European Standard Time)"."""
        return f"{self.title}, {format_period(slot.starts_at, slot.shown_end, self.timezone, 'en')}"


class _DetailsRow(Struct, frozen=True):
    title: str
    timezone: str
    address: str | None
    shift: Shift | None
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
        timezone=row.timezone,
        address=None if row.address is None else shorten(row.address, VENUE_ADDRESS_MAX),
        shift=row.shift,
        org_name=row.org_name,
    )
