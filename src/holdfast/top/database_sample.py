"""Reads from PostgreSQL what is being sold.

Each sample costs a bounded number of index lookups, whatever the size of the database: the versions of up to 1,700
events, and for the 20 busiest their pools, up to 500 journal entries and up to 400 holds each.
"""

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.runtime.db import Database

UPCOMING_MAX: Final = 1_000
LASTING_MAX: Final = 500
HOLDING_MAX: Final = 200
BUSIEST_MAX: Final = 20
ENTRIES_MAX: Final = 500
HOLDS_MAX: Final = 200
BACKLOG_MAX: Final = 1_000
SOON_SECONDS: Final = 60.0
# How often to look for events that have gone on sale.
DISCOVERY_SECONDS: Final = 15.0
# Events that started earlier are over, unless they go on or somebody still holds something.
STARTED_AGO: Final = timedelta(days=1)


class EventStock(Struct, frozen=True):
    id: bytes
    title: str
    capacity: int
    held: int
    sold: int
    expiring_soon: int
    overdue: int


class Backlog(Struct, frozen=True):
    at: datetime
    deliveries_waiting: int
    refunds_due: int
    lanes: int
    other_connections: int


class EventActivity(Struct, frozen=True):
    """What happened in an event since the previous sample. `changes` is how many entries its journal has gained, and
    `kinds` how many of each kind. If there were too many to read them all, `kinds` is scaled up from the latest."""

    stock: EventStock
    changes: int
    kinds: Mapping[str, float]


class DatabaseSample(Struct, frozen=True):
    """`seconds` have passed since the previous sample. `other_changes` counts journal entries of events that are not
    among the busiest. `watched` is how many events on sale the sample looked at."""

    seconds: float
    backlog: Backlog
    watched: int
    events: list[EventActivity]
    other_changes: int


class _Version(Struct, frozen=True):
    id: bytes
    version: int


class _KindCount(Struct, frozen=True):
    id: bytes
    kind: str
    entries: int


class DatabaseSampler:
    """Remembers the versions of the previous sample."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watched: list[bytes] = []
        self._discover_at = 0.0
        self._versions: dict[bytes, int] | None = None
        self._sampled_at = time.monotonic()

    async def sample(self) -> DatabaseSample:
        """The first sample has no activity: there is nothing to compare it with."""
        scope = self._database.all_events
        backlog = await scope.row(Backlog, sql.top.backlog, BACKLOG_MAX)
        assert backlog is not None
        await self._discover(backlog.at)
        rows = await scope.rows(_Version, sql.top.versions, self._watched)
        now = time.monotonic()
        seconds, self._sampled_at = now - self._sampled_at, now
        versions = {row.id: row.version for row in rows}
        before, self._versions = self._versions, versions
        # An event that has just been discovered has nothing to compare with either.
        changes = {id_: version - (before or {}).get(id_, version) for id_, version in versions.items()}
        busiest = self._choose(changes)
        events = await self._read_events(busiest, changes, versions)
        shown = sum(event.changes for event in events)
        return DatabaseSample(seconds, backlog, len(versions), events, sum(changes.values()) - shown)

    async def _discover(self, now: datetime) -> None:
        if time.monotonic() < self._discover_at:
            return
        self._discover_at = time.monotonic() + DISCOVERY_SECONDS
        rows = await self._database.all_events.fetch(
            *sql.top.events_to_watch(
                since=now - STARTED_AGO,
                upcoming_max=UPCOMING_MAX,
                lasting_max=LASTING_MAX,
                holding_max=HOLDING_MAX,
            )
        )
        self._watched = [row["id"] for row in rows]

    def _choose(self, changes: Mapping[bytes, int]) -> list[bytes]:
        active = [id_ for id_, count in changes.items() if count > 0]
        return sorted(active, key=lambda id_: (-changes[id_], id_))[:BUSIEST_MAX]

    async def _read_events(
        self, ids: list[bytes], changes: Mapping[bytes, int], versions: Mapping[bytes, int]
    ) -> list[EventActivity]:
        if not ids:
            return []
        scope = self._database.all_events
        counts = await scope.rows(
            _KindCount,
            *sql.top.activity(
                ids=ids,
                after=[versions[id_] - changes[id_] for id_ in ids],
                until=[versions[id_] for id_ in ids],
                entries_max=ENTRIES_MAX,
            ),
        )
        stock = await scope.rows(EventStock, *sql.top.stock(ids=ids, soon_seconds=SOON_SECONDS, holds_max=HOLDS_MAX))
        by_id = {each.id: each for each in stock}
        return [
            EventActivity(by_id[id_], changes[id_], _scale([c for c in counts if c.id == id_], changes[id_]))
            for id_ in ids
            if id_ in by_id
        ]


def _scale(counts: list[_KindCount], changes: int) -> dict[str, float]:
    """The latest entries stand for all of them."""
    read = sum(count.entries for count in counts)
    return {count.kind: count.entries * changes / read for count in counts}
