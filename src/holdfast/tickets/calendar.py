"""The event of a booking as an iCalendar file."""

import unicodedata
from datetime import UTC, datetime
from typing import Final

from holdfast.i18n.texts import translate

PRODID: Final = "-//Holdfast//Tickets//EN"


def calendar_file(
    *,
    booking: str,
    reference: str,
    language: str,
    title: str,
    starts_at: datetime,
    ends_at: datetime | None,
    timezone: str,
    address: str | None,
    now: datetime,
) -> bytes:
    """A later file for the same booking replaces the calendar's entry. Times are in UTC, which every calendar reads
    correctly; the time zone only says where the event takes place."""
    # Slow to import, and most processes never need it.
    from icalendar import Calendar, Event

    event = Event()
    event.add("uid", f"{booking}@holdfast")
    event.add("dtstamp", now.astimezone(UTC))
    event.add("dtstart", starts_at.astimezone(UTC))
    if ends_at is not None:
        event.add("dtend", ends_at.astimezone(UTC))
    event.add("summary", _printable(title))
    if address is not None:
        event.add("location", _printable(address))
    event.add("description", translate(language, "ticket.calendar", reference=reference))

    calendar = Calendar()
    calendar.add("prodid", PRODID)
    calendar.add("version", "2.0")
    calendar.add("method", "PUBLISH")
    calendar.add("x-wr-timezone", timezone)
    calendar.add_component(event)
    return bytes(calendar.to_ical())


def _printable(text: str) -> str:
    """iCalendar allows no control characters except line breaks and tabs, and some readers break lines at others."""
    return "\n".join("".join(filter(_is_printable, line)) for line in text.splitlines())


def _is_printable(character: str) -> bool:
    return character == "\t" or unicodedata.category(character) != "Cc"
