"""Events as lists show them: one card for each event, or for the next dates of a series."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.api.event_search import BEGINNING, EARLIEST, LATEST, SCANNED_MAX, EventCursor, search_patterns
from holdfast.i18n.formatting import VENUE_ADDRESS_MAX, in_zone, shorten
from holdfast.runtime import ids
from holdfast.runtime.db import Database

# How many dates of a series its card shows.
DATES_ON_CARD: Final = 4


class EventSummary(Struct, frozen=True):
    """An event on sale as lists show it. `seats` is how many of its units are seats. `remaining` leaves out pools whose
    sales have closed."""

    id: bytes
    title: str
    preset: str | None
    starts_at: datetime
    timezone: str
    currency: str
    place: str | None
    series_id: bytes | None
    series_title: str | None
    # How many events the card stands for, and where it is in the list.
    dates: int
    card_at: datetime
    card_id: bytes
    capacity: int
    seats: int
    remaining: int
    # When sales open, if that is in the future.
    opens_at: datetime | None
    is_closed: bool
    lowest_price: int

    @property
    def public_id(self) -> str:
        return ids.format_event_id(self.id)

    @property
    def short_place(self) -> str | None:
        return shorten(self.place, VENUE_ADDRESS_MAX) if self.place is not None else None

    @property
    def local_day(self) -> date:
        return in_zone(self.starts_at, self.timezone).date()

    @property
    def is_this_year(self) -> bool:
        return self.local_day.year == in_zone(datetime.now(UTC), self.timezone).year


class EventCard(Struct, frozen=True):
    """One event, or the next dates of a series: the first few of its events."""

    events: list[EventSummary]

    @property
    def first(self) -> EventSummary:
        return self.events[0]

    @property
    def is_series(self) -> bool:
        return self.first.dates > 1

    @property
    def path(self) -> str:
        if not self.is_series:
            return f"/e/{self.first.public_id}"
        assert self.first.series_id is not None
        return series_path(self.first.series_id)

    @property
    def title(self) -> str:
        return (self.first.series_title if self.is_series else None) or self.first.title

    @property
    def is_sold_out(self) -> bool:
        return not any(event.remaining for event in self.events)

    @property
    def lowest_price(self) -> int:
        return min(event.lowest_price for event in self.events)


class EventSearch(Struct, frozen=True):
    """What a buyer looks for. Days are local to each event."""

    text: str = ""
    first_day: date | None = None
    last_day: date | None = None
    after: EventCursor | None = None

    @property
    def is_filtered(self) -> bool:
        return bool(self.text) or not self.has_any_day

    @property
    def has_any_day(self) -> bool:
        return self.first_day is None and self.last_day is None

    def day_bounds(self, zone: str) -> tuple[datetime, datetime]:
        """When the first day begins and the last day ends in this time zone."""
        begin = in_zone(EARLIEST, zone)
        first = datetime.combine(self.first_day, time(), begin.tzinfo) if self.first_day else EARLIEST
        last = datetime.combine(self.last_day + timedelta(days=1), time(), begin.tzinfo) if self.last_day else LATEST
        return first.astimezone(UTC), last.astimezone(UTC)


def series_path(series: bytes) -> str:
    return f"/s/{ids.format_series_id(series)}"


async def load_cards(
    database: Database, org: bytes | None, search: EventSearch, limit: int
) -> tuple[list[EventCard], EventCursor | None]:
    """A page of what is on sale, soonest first, and where the next page begins. No org means all of them."""
    after = search.after or BEGINNING
    zones = [] if search.has_any_day else await _load_zones(database, org)
    bounds = [search.day_bounds(zone) for zone in zones]
    values = {
        "patterns": search_patterns(search.text),
        "any_day": search.has_any_day,
        "zones": zones,
        "day_starts": [start for start, _ in bounds],
        "day_ends": [end for _, end in bounds],
        "scan_max": SCANNED_MAX,
        "dates_max": DATES_ON_CARD,
        "after_at": after.at,
        "after_id": after.id,
        "limit": limit + 1,
    }
    statement = sql.pages.cards_of_org(org=org, **values) if org else sql.pages.cards_of_all_orgs(**values)
    rows = await database.all_events.rows(EventSummary, *statement)
    cards = [EventCard(list(events)) for _, events in groupby(rows, lambda row: row.card_id)]
    return cards[:limit], _next_cursor([card.first for card in cards], limit)


async def load_dates(
    database: Database, series: bytes, after: EventCursor | None, limit: int
) -> tuple[list[EventSummary], EventCursor | None]:
    """A page of the events of a series, soonest first, and where the next page begins."""
    after = after or BEGINNING
    rows = await database.all_events.rows(
        EventSummary,
        *sql.pages.dates_of_series(series=series, after_at=after.at, after_id=after.id, limit=limit + 1),
    )
    return rows[:limit], _next_cursor(rows, limit)


def group_by_day(events: Iterable[EventSummary]) -> list[list[EventSummary]]:
    return [list(of_day) for _, of_day in groupby(events, lambda event: event.local_day)]


def _next_cursor(events: list[EventSummary], limit: int) -> EventCursor | None:
    if len(events) <= limit:
        return None
    last = events[limit - 1]
    return EventCursor(last.card_at, last.card_id)


async def _load_zones(database: Database, org: bytes | None) -> list[str]:
    if org is not None:
        records = await database.org(org).fetch(sql.pages.zones_of_org, org)
    else:
        records = await database.all_events.fetch(sql.pages.zones_of_all_orgs, SCANNED_MAX)
    return [record["timezone"] for record in records]
