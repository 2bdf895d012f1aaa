"""An in-memory cache of event layouts. It reloads a layout when the event's revision has changed."""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Final

from msgspec import json

from holdfast import sql
from holdfast.core.layout import Layout, Pool, Seat, Tariff
from holdfast.core.policy import Policy
from holdfast.core.states import EventStatus
from holdfast.runtime.db import Connection, DatabaseScope

CACHED_SEATS_MAX: Final = 1_000_000
EVENTS_MAX: Final = 10_000


class LayoutCache:
    """Callers pass the revision they have just read, so the cache never returns an outdated layout."""

    def __init__(self) -> None:
        self._layouts: OrderedDict[bytes, Layout] = OrderedDict()
        self._seat_count = 0

    async def get(self, source: Connection | DatabaseScope, revisions: Mapping[bytes, int]) -> dict[bytes, Layout]:
        found = {event: layout for event in revisions if (layout := self._layouts.get(event))}
        for event in found:
            self._layouts.move_to_end(event)
        missing = [
            event for event, revision in revisions.items() if event not in found or found[event].revision != revision
        ]
        if missing:
            for layout in await load_layouts(source, missing):
                self._add(layout)
                found[layout.event] = layout
            self._evict_oldest()
        return found

    def _add(self, layout: Layout) -> None:
        self._remove(layout.event)
        self._layouts[layout.event] = layout
        self._seat_count += len(layout.seats)

    def _remove(self, event: bytes) -> None:
        old = self._layouts.pop(event, None)
        if old is not None:
            self._seat_count -= len(old.seats)

    def _evict_oldest(self) -> None:
        while len(self._layouts) > 1 and (self._seat_count > CACHED_SEATS_MAX or len(self._layouts) > EVENTS_MAX):
            self._remove(next(iter(self._layouts)))


async def load_layouts(source: Connection | DatabaseScope, events: list[bytes]) -> list[Layout]:
    """Read pools first: without the lock, later statements may see newer rows, and in this order no tariff or seat of a
    pool is missed."""
    heads = await source.fetch(sql.engine.load_events, events)
    pool_rows = await source.fetch(sql.reads.pools_of, events)
    tariffs = defaultdict(list)
    for row in await source.fetch(sql.reads.tariffs_of, events):
        tariffs[row["event_id"], row["pool"]].append(Tariff(row["number"], row["code"], row["name"], row["price"]))
    seats = defaultdict(list)
    for event, *seat in await source.fetch(sql.engine.load_layout_seats, events):
        seats[event].append(Seat(*seat))
    spans = _spans(seats)
    pools = defaultdict(list)
    for row in pool_rows:
        event, number = row["event_id"], row["number"]
        span = spans.get((event, number))
        pools[event].append(Pool(number, row["code"], row["name"], tuple(tariffs[event, number]), span))
    return [
        Layout(
            event=row["id"],
            org=row["org_id"],
            revision=row["revision"],
            status=EventStatus(row["status"]),
            currency=row["currency"],
            tax_bps=row["tax_bps"],
            policy=json.decode(row["policy"], type=Policy),
            pools=tuple(pools[row["id"]]),
            seats=tuple(seats[row["id"]]),
        )
        for row in heads
    ]


def _spans(seats: Mapping[bytes, list[Seat]]) -> dict[tuple[bytes, int], tuple[int, int]]:
    """The first and last seat of each pool."""
    spans: dict[tuple[bytes, int], tuple[int, int]] = {}
    for event, event_seats in seats.items():
        for seat in event_seats:
            first, _ = spans.get((event, seat.pool), (seat.number, seat.number))
            spans[event, seat.pool] = (first, seat.number)
    return spans
