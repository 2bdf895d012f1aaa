"""Layouts of events, kept in memory and loaded anew when their revision has changed."""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Final

from msgspec import json

from holdfast import sql
from holdfast.core.layout import Layout
from holdfast.core.model import Policy, Pool, Seat, Tariff
from holdfast.core.states import EventStatus
from holdfast.runtime.db import Connection

SEATS_MAX: Final = 1_000_000
EVENTS_MAX: Final = 10_000


class LayoutCache:
    """A cache that is never trusted: whoever asks says which revision the event's locked row has."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Layout] = OrderedDict()
        self._seats = 0

    async def get(self, connection: Connection, revisions: Mapping[bytes, int]) -> dict[bytes, Layout]:
        found = {event: kept for event in revisions if (kept := self._kept.get(event))}
        for event in found:
            self._kept.move_to_end(event)
        missing = [
            event for event, revision in revisions.items() if event not in found or found[event].revision != revision
        ]
        if missing:
            for layout in await load_layouts(connection, missing):
                self._keep(layout)
                found[layout.event] = layout
            self._forget_oldest()
        return found

    def _keep(self, layout: Layout) -> None:
        self._drop(layout.event)
        self._kept[layout.event] = layout
        self._seats += len(layout.seats)

    def _drop(self, event: bytes) -> None:
        old = self._kept.pop(event, None)
        if old is not None:
            self._seats -= len(old.seats)

    def _forget_oldest(self) -> None:
        while len(self._kept) > 1 and (self._seats > SEATS_MAX or len(self._kept) > EVENTS_MAX):
            self._drop(next(iter(self._kept)))


async def load_layouts(connection: Connection, events: list[bytes]) -> list[Layout]:
    """What is read later may be newer where the events are not locked; so what others refer to is read after them."""
    heads = await connection.fetch(sql.engine.load_events, events)
    pool_rows = await connection.fetch(sql.engine.load_layout_pools, events)
    tariffs = defaultdict(list)
    for row in await connection.fetch(sql.engine.load_layout_tariffs, events):
        tariffs[row["event_id"], row["pool"]].append(Tariff(row["number"], row["code"], row["name"], row["price"]))
    seats = defaultdict(list)
    for event, *seat in await connection.fetch(sql.engine.load_layout_seats, events):
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
    for event, its in seats.items():
        for seat in its:
            first, _ = spans.get((event, seat.pool), (seat.number, seat.number))
            spans[event, seat.pool] = (first, seat.number)
    return spans
