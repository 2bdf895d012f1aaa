"""An in-memory cache of event layouts. It reloads a layout when the event's revision has changed."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import json

from holdfast import sql
from holdfast.core.buyer_form import ContactRules, Question
from holdfast.core.layout import Layout, Pool, Seat, SeatPlan, Tariff
from holdfast.core.policy import Policy
from holdfast.core.sales_window import NO_SCHEDULE, Schedule
from holdfast.core.states import EventStatus
from holdfast.runtime.db import Connection, DatabaseScope, Record

CACHED_SEATS_MAX: Final = 1_000_000
EVENTS_MAX: Final = 10_000
# Larger layouts take so long to load that no other event should wait for them.
SMALL_SEATS_MAX: Final = 5_000


class LayoutCache:
    """Callers pass the revision they have just read, so the cache returns no outdated layout, except from `cached`."""

    def __init__(self) -> None:
        self._layouts: OrderedDict[bytes, Layout] = OrderedDict()
        self._seat_count = 0

    def cached(self, event: bytes) -> Layout | None:
        """The layout in memory, whatever its revision."""
        return self._layouts.get(event)

    async def get(self, source: Connection | DatabaseScope, revisions: Mapping[bytes, int]) -> dict[bytes, Layout]:
        found = self._find(revisions)
        missing = [event for event in revisions if event not in found]
        if missing:
            found |= await self._load(source, missing)
        return found

    async def get_small(
        self, connection: Connection, locked: Sequence[Record]
    ) -> tuple[dict[bytes, Layout], set[bytes]]:
        """Return the layouts that are in memory or quick to load, and the events whose layouts are neither. The caller
        has locked the events."""
        found = self._find({row["id"]: row["revision"] for row in locked})
        missing = [row for row in locked if row["id"] not in found]
        large = {row["id"] for row in missing if row["seat_count"] > SMALL_SEATS_MAX and not self._has_seats(row)}
        if missing:
            found |= await self._load(connection, [row["id"] for row in missing if row["id"] not in large])
        return found, large

    async def reload_large(self, connection: Connection, events: Collection[bytes]) -> None:
        """Update layouts that are large or not in memory, before anybody waits for them under a lock."""
        wanted = [event for event in events if (layout := self._layouts.get(event)) is None or _is_large(layout.seats)]
        if wanted:
            rows = await connection.fetch(sql.engine.revisions, wanted)
            await self.get(connection, {row["id"]: row["revision"] for row in rows})

    def _find(self, revisions: Mapping[bytes, int]) -> dict[bytes, Layout]:
        found = {}
        for event, revision in revisions.items():
            layout = self._layouts.get(event)
            if layout is not None and layout.revision == revision:
                self._layouts.move_to_end(event)
                found[event] = layout
        return found

    def _has_seats(self, row: Record) -> bool:
        """Whether the seats of the event are in memory, even if the rest of its layout has changed."""
        layout = self._layouts.get(row["id"])
        return layout is not None and layout.seats_revision == row["seats_revision"]

    async def _load(self, source: Connection | DatabaseScope, events: list[bytes]) -> dict[bytes, Layout]:
        known = {event: layout for event in events if (layout := self._layouts.get(event))}
        layouts = await load_layouts(source, events, known) if events else []
        for layout in layouts:
            self._add(layout)
        self._evict_oldest()
        return {layout.event: layout for layout in layouts}

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


async def load_layouts(
    source: Connection | DatabaseScope, events: list[bytes], known: Mapping[bytes, Layout]
) -> list[Layout]:
    """Read pools first: without the lock, later statements may see newer rows, and in this order no tariff or seat of a
    pool is missed. If the seats have not changed since a `known` layout, reuse them."""
    heads = await source.fetch(sql.engine.load_events, events)
    pools = await source.fetch(sql.reads.pools_of, events)
    tariffs = await source.fetch(sql.reads.tariffs_of, events)
    plans = {
        row["id"]: layout.seat_plan
        for row in heads
        if (layout := known.get(row["id"])) and layout.seats_revision == row["seats_revision"]
    }
    plans |= await _load_seat_plans(source, [row["id"] for row in heads if row["id"] not in plans])
    layouts = _build_layouts(heads, pools, tariffs, plans)
    for layout in layouts:
        if _is_large(layout.seats):
            await asyncio.to_thread(layout.prepare_seating)
    return layouts


async def _load_seat_plans(source: Connection | DatabaseScope, events: list[bytes]) -> dict[bytes, SeatPlan]:
    seats = await source.fetch(sql.engine.load_layout_seats, events) if events else []
    if _is_large(seats):
        # A thread does this, so that other requests go on meanwhile.
        return await asyncio.to_thread(_build_seat_plans, events, seats)
    return _build_seat_plans(events, seats)


def _is_large(seats: Sequence[object]) -> bool:
    return len(seats) > SMALL_SEATS_MAX


def _build_seat_plans(events: list[bytes], rows: Sequence[Record]) -> dict[bytes, SeatPlan]:
    seats: dict[bytes, list[Seat]] = {event: [] for event in events}
    for event, *seat in rows:
        seats[event].append(Seat(*seat))
    return {event: SeatPlan(tuple(event_seats)) for event, event_seats in seats.items()}


def _schedule(row: Record) -> Schedule:
    """Most pools have no times, and share one empty schedule."""
    times = (row["starts_at"], row["ends_at"], row["sales_open_at"], row["sales_close_at"])
    return Schedule(*times) if any(times) else NO_SCHEDULE


def _build_layouts(
    heads: Sequence[Record],
    pool_rows: Sequence[Record],
    tariff_rows: Sequence[Record],
    plans: Mapping[bytes, SeatPlan],
) -> list[Layout]:
    tariffs = defaultdict(list)
    for row in tariff_rows:
        tariff = Tariff(row["number"], row["code"], row["name"], row["price"], row["needs_companion"])
        tariffs[row["event_id"], row["pool"]].append(tariff)
    pools = defaultdict(list)
    for row in pool_rows:
        event, number = row["event_id"], row["number"]
        span = plans[event].spans.get(number)
        pools[event].append(Pool(number, row["code"], row["name"], tuple(tariffs[event, number]), span, _schedule(row)))
    return [
        Layout(
            event=row["id"],
            org=row["org_id"],
            revision=row["revision"],
            seats_revision=row["seats_revision"],
            status=EventStatus(row["status"]),
            currency=row["currency"],
            tax_bps=row["tax_bps"],
            policy=json.decode(row["policy"], type=Policy),
            schedule=_schedule(row),
            contact=json.decode(row["contact"], type=ContactRules),
            questions=json.decode(row["questions"], type=tuple[Question, ...]),
            providers=frozenset(row["providers"]) if row["providers"] is not None else None,
            pools=tuple(pools[row["id"]]),
            seat_plan=plans[row["id"]],
        )
        for row in heads
    ]
