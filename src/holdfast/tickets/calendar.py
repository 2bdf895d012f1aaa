"""When a booking takes place, as an iCalendar file."""

import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from holdfast.core.time_slot import TimeSlot
from holdfast.i18n.texts import translate

PRODID: Final = "-//Holdfast//Tickets//EN"


def calendar_file(
    *,
    booking: str,
    reference: str,
    language: str,
    title: str,
    slots: Mapping[str, TimeSlot],
    timezone: str,
    address: str | None,
    now: datetime,
) -> bytes:
    """The entries of a booking, one for each of its times. `slots` are by the code of the pool, in the order of the
    booking's lines, which never changes. A later file for the same booking replaces the calendar's entries, even if the
    organiser has moved a slot. Times are in UTC, which every calendar reads correctly; the time zone only says where
    the event takes place."""
    # Slow to import, and most processes never need it.
    from icalendar import Calendar, Event

    calendar = Calendar()
    calendar.add("prodid", PRODID)
    calendar.add("version", "2.0")
    calendar.add("method", "PUBLISH")
    calendar.add("x-wr-timezone", timezone)
    for uid, slot in _entries(booking, slots):
        event = Event()
        event.add("uid", f"{uid}@holdfast")
        event.add("dtstamp", now.astimezone(UTC))
        event.add("dtstart", slot.starts_at.astimezone(UTC))
        if slot.ends_at is not None:
            event.add("dtend", slot.ends_at.astimezone(UTC))
        event.add("summary", _printable(title))
        if address is not None:
            event.add("location", _printable(address))
        event.add("description", translate(language, "ticket.calendar", reference=reference))
        calendar.add_component(event)
    return bytes(calendar.to_ical())


def _entries(booking: str, slots: Mapping[str, TimeSlot]) -> list[tuple[str, TimeSlot]]:
    """Each time once, with an id. The first has the id of the booking; the others name a pool too."""
    pools: dict[tuple[datetime, datetime | None], str] = {}
    for pool, slot in slots.items():
        pools.setdefault((slot.starts_at, slot.ends_at), pool)
    return [(f"{booking}.{pool}" if number else booking, slots[pool]) for number, pool in enumerate(pools.values())]


def _printable(text: str) -> str:
    """iCalendar allows no control characters except line breaks and tabs, and some readers break lines at others."""
    return "\n".join("".join(filter(_is_printable, line)) for line in text.splitlines())


def _is_printable(character: str) -> bool:
    return character == "\t" or unicodedata.category(character) != "Cc"
