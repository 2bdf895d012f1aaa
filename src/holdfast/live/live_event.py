"""Boards: events as they are now, kept in memory and brought up to date from their journals.

The journal of an event has no gaps and is committed in order, because whoever writes it holds the event's lock. So what
is in memory is always how the event was at one version, and it is current once it has reached the newest.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from msgspec import json

from holdfast import sql
from holdfast.api.responses import SeatView
from holdfast.core.journal import EntryData, PoolState
from holdfast.live import feed
from holdfast.live.snapshot import SeatSnapshot
from holdfast.runtime import ids
from holdfast.runtime.db import Connection, Pool

# A board takes about half a kilobyte for each seat.
EVENTS_MAX: Final = 1_000
SEATS_MAX: Final = 500_000
# A board that is further behind is loaded anew.
ENTRIES_MAX: Final = 10_000


class FeedEntry(NamedTuple):
    """A fact as a board reads it. One of the event as a whole may have changed anything."""

    number: int
    kind: str
    is_of_event: bool
    data: EntryData


class EventVersion(NamedTuple):
    """The version of an event, and how many holds have run out since: what everything that can be seen depends on."""

    version: int
    due: int


_decode_entries: Final = json.Decoder(list[FeedEntry]).decode
_pool_states: Final = json.Decoder(dict[str, PoolState]).decode


class LiveEvent:
    """One event. All that is needed is read first and then changed at once, so whoever looks sees one moment."""

    def __init__(self, pool: Pool, event: bytes) -> None:
        self._pool = pool
        self._reading: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._asked_after: int | None = None
        self.event = event
        self.org = b""
        self.is_published = False
        # None until the board has been read, and for ever where there is no such event.
        self.snapshot: SeatSnapshot | None = None
        self.event_version = EventVersion(0, 0)
        self.read_at = datetime.min.replace(tzinfo=UTC)
        # For watchers, if there are any: the last changes up to the version, and those they have not been told of yet.
        self._recent = feed.Tail()
        self.untold: list[str] | None = None

    @property
    def version(self) -> int:
        return self.event_version.version

    @property
    def size(self) -> int:
        return self.snapshot.size if self.snapshot is not None else 0

    async def refresh(self, after: int | None = None) -> None:
        """Returns when the board is at least as new as this call. Whoever asks while it is being read waits for the
        next reading, which then serves all of them. With `after`, what changed since is known afterwards, unless it is
        too much."""
        if after is not None:
            self._asked_after = after if self._asked_after is None else min(after, self._asked_after)
        if self._next is None:
            self._next = asyncio.create_task(self._read_next(self._reading))
            self._next.add_done_callback(_heard)
        await asyncio.shield(self._next)

    def changes_after(self, version: int) -> list[str] | None:
        """None if they are too many, or not known."""
        return self._recent.last(self.version - version)

    def forget(self) -> None:
        """Nobody watches any more."""
        self.untold = None
        self._recent.clear()

    async def _read_next(self, reading: "asyncio.Task[None] | None") -> None:
        if reading is not None:
            await asyncio.wait([reading])
        self._reading, self._next = self._next, None
        after, self._asked_after = self._asked_after, None
        await (self._load() if self.snapshot is None else self._read(self.snapshot))
        if after is not None:
            await self._recall(after)

    async def _read(self, snapshot: SeatSnapshot) -> None:
        row = await self._pool.fetchrow(sql.reads.event_version, self.event, self.version, ENTRIES_MAX)
        event_version, entries, due = EventVersion(row["version"], row["due"]), _decode_entries(row["facts"]), None
        if event_version.due and event_version != self.event_version:
            due = await self._pool.fetchrow(sql.reads.due, self.event)
            entries += await self._entries(event_version.version, due["version"])
            event_version = EventVersion(due["version"], due["due"])
        if event_version.version - self.version > ENTRIES_MAX or any(entry.is_of_event for entry in entries):
            await self._load()
            return
        for entry in entries:
            snapshot.set(entry.number, entry.data.seats, entry.data.pools)
        if due is not None:
            snapshot.set(event_version.version, dict.fromkeys(due["seats"], "free"), _pool_states(due["pools"]))
        self._tell(entries)
        self.event_version, self.read_at = event_version, row["at"]

    async def _load(self) -> None:
        async with self._pool.acquire() as connection, _one_moment(connection):
            row = await connection.fetchrow(sql.reads.event_version, self.event, 0, 0)
            if row is None:
                return
            snapshot = await _load_snapshot(connection, self.event, row["version"])
        if self.snapshot is None or row["version"] - self.version > ENTRIES_MAX:
            self._recent.clear()
        else:
            self._tell(await self._entries(self.version, row["version"]))
        self.org, self.is_published = row["org_id"], row["is_published"]
        self.snapshot, self.event_version, self.read_at = snapshot, EventVersion(row["version"], row["due"]), row["at"]

    async def _entries(self, after: int, until: int) -> list[FeedEntry]:
        if after >= until:
            return []
        return _decode_entries(await self._pool.fetchval(sql.reads.facts_until, self.event, after, until))

    async def _recall(self, after: int) -> None:
        """Remember what happened after that, if it is not too long ago."""
        first = self.version - len(self._recent)
        if self.version - feed.MESSAGES_MAX <= after < first:
            self._recent.add_older(_changes(await self._entries(after, first)))

    def _tell(self, entries: Iterable[FeedEntry]) -> None:
        if self.untold is None:
            self._recent.clear()
            return
        changes = _changes(entries)
        self._recent.add(changes)
        if len(self.untold) > ENTRIES_MAX:
            # Nobody takes them. Whoever does will see that there is a gap.
            self.untold.clear()
        self.untold += changes


class LiveEvents:
    """The boards of a process. Those that nobody watches and nobody has asked for lately are forgotten."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._kept: OrderedDict[bytes, LiveEvent] = OrderedDict()

    async def get(self, event: bytes, after: int | None = None) -> LiveEvent | None:
        """The event's board, at least as new as this call."""
        live_event = self._kept.get(event)
        if live_event is None:
            live_event = self._kept[event] = LiveEvent(self._pool, event)
        self._kept.move_to_end(event)
        is_new = live_event.snapshot is None
        try:
            await live_event.refresh(after)
        finally:
            if live_event.snapshot is None:
                self._drop(live_event)
        if is_new:
            self._forget_oldest()
        return live_event if live_event.snapshot is not None else None

    def watch(self, live_event: LiveEvent) -> bool:
        """Keep the board, and gather what its watchers have to be told; False if there is no room for it."""
        watched = sum(each.size for each in self._kept.values() if each.untold is not None)
        if self._kept.setdefault(live_event.event, live_event) is not live_event or watched + live_event.size > max(
            SEATS_MAX, live_event.size
        ):
            return False
        live_event.untold = []
        return True

    def unwatch(self, live_event: LiveEvent) -> None:
        live_event.forget()
        self._forget_oldest()

    def _drop(self, live_event: LiveEvent) -> None:
        if self._kept.get(live_event.event) is live_event:
            del self._kept[live_event.event]

    def _forget_oldest(self) -> None:
        seats = sum(live_event.size for live_event in self._kept.values())
        for live_event in list(self._kept.values())[:-1]:
            if seats <= SEATS_MAX and len(self._kept) <= EVENTS_MAX:
                return
            if live_event.untold is None:
                seats -= live_event.size
                self._drop(live_event)


def _one_moment(connection: Connection) -> Any:
    """A transaction in which everything is read as it was when it began."""
    return connection.transaction(isolation="repeatable_read", readonly=True)


async def _load_snapshot(connection: Connection, event: bytes, version: int) -> SeatSnapshot:
    seats = [
        SeatView(label=label, pool=pool, row=row, number=place, x=x, y=y, state=state)
        for label, pool, row, place, x, y, state in await connection.fetch(sql.reads.seats, event)
    ]
    pools = {
        code: PoolState(capacity, held, sold, capacity - held - sold)
        for code, capacity, held, sold in await connection.fetch(sql.reads.availability, event)
    }
    return SeatSnapshot(ids.format_event_id(event), version, seats, pools)


def _changes(entries: Iterable[FeedEntry]) -> list[str]:
    return [feed.change_message(entry.number, entry.kind, entry.data) for entry in entries]


def _heard(reading: "asyncio.Task[Any]") -> None:
    """Whoever waited for it may be gone; what went wrong is then nobody's business."""
    if not reading.cancelled():
        reading.exception()
