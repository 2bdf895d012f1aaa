"""Events in memory, kept current from their journals.

Every writer of a journal holds the event's lock, so the journal has no gaps and commits in order. A copy that has
applied all entries up to a version shows the event exactly as it was at that version.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from msgspec import Struct, json

from holdfast import sql
from holdfast.core.journal import EntryData, PoolState
from holdfast.live.messages import MESSAGES_MAX, RecentChanges, change_message
from holdfast.live.snapshot import SeatSnapshot, SeatView
from holdfast.runtime import ids
from holdfast.runtime.db import Database, DatabaseScope, Record

# A seat takes about half a kilobyte.
EVENTS_MAX: Final = 1_000
CACHED_SEATS_MAX: Final = 500_000
# An event that is further behind is loaded from scratch.
ENTRIES_MAX: Final = 10_000
ENTRIES_BYTES_MAX: Final = 512 * 1024
DUE_SEATS_MAX: Final = 5_000
# Everything that a refresh applies without awaiting: entries, their seats and pools, and due seats. Entries of
# ENTRIES_BYTES_MAX have about as many.
CHANGES_MAX: Final = 30_000


class FeedEntry(NamedTuple):
    """A journal entry as the database sends it. An entry about the whole event may have changed anything."""

    number: int
    kind: str
    is_about_event: bool
    data: EntryData


class EventVersion(NamedTuple):
    """Everything visible follows from these two: the journal's last number, and how many holds have expired since."""

    version: int
    due: int


class _VersionRow(Struct, frozen=True):
    org_id: bytes
    is_published: bool
    at: datetime
    version: int
    due: int
    entries: list[FeedEntry]


class _DueRow(Struct, frozen=True):
    version: int
    due: int
    seats: list[str]
    pools: dict[str, PoolState]


_decode_entries: Final = json.Decoder(list[FeedEntry]).decode


class LiveEvent:
    """One event. A refresh reads everything first and applies it without awaiting, so readers never see half of it."""

    def __init__(self, database: Database, event: bytes) -> None:
        self._scope = database.event(event)
        self._reading: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._wanted_after: int | None = None
        self.event = event
        self.org = b""
        self.is_published = False
        # None until the first read, and forever if the event does not exist.
        self.snapshot: SeatSnapshot | None = None
        self.event_version = EventVersion(0, 0)
        self.read_at = datetime.min.replace(tzinfo=UTC)
        self._recent = RecentChanges()
        # Changes that watchers have not been sent yet. None while nobody watches.
        self.unsent: list[str] | None = None

    @property
    def version(self) -> int:
        return self.event_version.version

    @property
    def size(self) -> int:
        return self.snapshot.size if self.snapshot is not None else 0

    async def refresh(self, after: int | None = None) -> None:
        """Return once the event is at least as new as this call. Callers that arrive during a read share the next one.
        `after` also loads the changes since that version, unless there are too many."""
        if after is not None:
            self._wanted_after = after if self._wanted_after is None else min(after, self._wanted_after)
        if self._next is None:
            self._next = asyncio.create_task(self._read_next(self._reading))
            self._next.add_done_callback(_retrieve_exception)
        await asyncio.shield(self._next)

    def changes_after(self, version: int) -> list[str] | None:
        """The changes since the version, or None if they are too many or no longer in memory."""
        return self._recent.last(self.version - version)

    def stop_collecting(self) -> None:
        self.unsent = None
        self._recent.clear()

    async def _read_next(self, reading: "asyncio.Task[None] | None") -> None:
        if reading is not None:
            await asyncio.wait([reading])
        self._reading, self._next = self._next, None
        after, self._wanted_after = self._wanted_after, None
        await (self._load() if self.snapshot is None else self._catch_up(self.snapshot))
        if after is not None:
            await self._load_recent(after)

    async def _catch_up(self, snapshot: SeatSnapshot) -> None:
        row = await self._scope.row(
            _VersionRow, sql.reads.event_version, self.event, self.version, ENTRIES_MAX, ENTRIES_BYTES_MAX
        )
        assert row is not None, "events are never deleted"
        current, entries, due = EventVersion(row.version, row.due), row.entries, None
        if current.due and current != self.event_version:
            due = await self._scope.row(_DueRow, sql.reads.due, self.event)
            assert due is not None
            entries += await self._entries(current.version, due.version) or []
            current = EventVersion(due.version, due.due)
        if self._is_too_far(current, entries, due):
            await self._load()
            return
        for entry in entries:
            snapshot.apply(entry.number, entry.data.seats, entry.data.pools)
        if due is not None:
            snapshot.apply(current.version, dict.fromkeys(due.seats, "free"), due.pools)
        self._collect(entries)
        self.event_version, self.read_at = current, row.at

    def _is_too_far(self, current: EventVersion, entries: list[FeedEntry], due: _DueRow | None) -> bool:
        """Whether entries are missing, or there are too many changes to apply them quickly."""
        is_incomplete = len(entries) < current.version - self.version
        due_seats = len(due.seats) if due is not None else 0
        changes = due_seats + sum(1 + len(entry.data.seats) + len(entry.data.pools) for entry in entries)
        has_many_changes = due_seats > DUE_SEATS_MAX or changes > CHANGES_MAX
        return is_incomplete or has_many_changes or any(entry.is_about_event for entry in entries)

    async def _load(self) -> None:
        async with self._scope.transaction("repeatable_read", readonly=True) as scope:
            row = await scope.row(_VersionRow, sql.reads.event_version, self.event, 0, 0, 0)
            if row is None:
                return
            snapshot = await _load_snapshot(scope, self.event, row.version)
        entries = None
        if self.snapshot is not None and row.version - self.version <= ENTRIES_MAX:
            entries = await self._entries(self.version, row.version)
        if entries is None:
            # Watchers notice the gap and get a snapshot instead.
            self._recent.clear()
        else:
            self._collect(entries)
        self.org, self.is_published = row.org_id, row.is_published
        self.snapshot, self.event_version, self.read_at = snapshot, EventVersion(row.version, row.due), row.at

    async def _entries(self, after: int, until: int) -> list[FeedEntry] | None:
        """The entries in between, or None if they are too large."""
        if after >= until:
            return []
        document = await self._scope.fetchval(sql.reads.entries_until, self.event, after, until, ENTRIES_BYTES_MAX)
        return None if document is None else _decode_entries(document)

    async def _load_recent(self, after: int) -> None:
        first = self.version - len(self._recent)
        if self.version - MESSAGES_MAX <= after < first:
            entries = await self._entries(after, first)
            if entries is not None:
                self._recent.add_older(_change_messages(entries))

    def _collect(self, entries: Iterable[FeedEntry]) -> None:
        if self.unsent is None:
            self._recent.clear()
            return
        changes = _change_messages(entries)
        self._recent.add(changes)
        if len(self.unsent) > ENTRIES_MAX:
            # Nobody has taken these. The broadcast notices the gap and sends a snapshot instead.
            self.unsent.clear()
        self.unsent += changes


class LiveEventCache:
    """The live events of a process. It drops the least recently used ones that nobody watches."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._events: OrderedDict[bytes, LiveEvent] = OrderedDict()

    async def get(self, event: bytes, after: int | None = None) -> LiveEvent | None:
        """The event, at least as new as this call, or None if it does not exist."""
        live_event = self._events.get(event)
        if live_event is None:
            live_event = self._events[event] = LiveEvent(self._database, event)
        self._events.move_to_end(event)
        is_new = live_event.snapshot is None
        try:
            await live_event.refresh(after)
        finally:
            if live_event.snapshot is None:
                self._drop(live_event)
        if is_new:
            self._drop_oldest()
        return live_event if live_event.snapshot is not None else None

    def watch(self, live_event: LiveEvent) -> bool:
        """Keep the event and collect its changes for watchers; False if there is no room for it."""
        watched = sum(other.size for other in self._events.values() if other.unsent is not None)
        if self._events.setdefault(live_event.event, live_event) is not live_event:
            return False
        if watched + live_event.size > max(CACHED_SEATS_MAX, live_event.size):
            return False
        live_event.unsent = []
        return True

    def unwatch(self, live_event: LiveEvent) -> None:
        live_event.stop_collecting()
        self._drop_oldest()

    def _drop(self, live_event: LiveEvent) -> None:
        if self._events.get(live_event.event) is live_event:
            del self._events[live_event.event]

    def _drop_oldest(self) -> None:
        seats = sum(live_event.size for live_event in self._events.values())
        for live_event in list(self._events.values())[:-1]:
            if seats <= CACHED_SEATS_MAX and len(self._events) <= EVENTS_MAX:
                return
            if live_event.unsent is None:
                seats -= live_event.size
                self._drop(live_event)


async def _load_snapshot(scope: DatabaseScope, event: bytes, version: int) -> SeatSnapshot:
    seats = await scope.fetch(sql.reads.seats, event)
    pools = {
        code: PoolState(capacity, held, sold, capacity - held - sold)
        for code, capacity, held, sold in await scope.fetch(sql.reads.availability, event)
    }
    # A large hall takes a while.
    return await asyncio.to_thread(_make_snapshot, event, version, seats, pools)


def _make_snapshot(event: bytes, version: int, seats: list[Record], pools: dict[str, PoolState]) -> SeatSnapshot:
    views = [
        SeatView(label=label, pool=pool, row=row, number=number, x=x, y=y, state=state)
        for label, pool, row, number, x, y, state in seats
    ]
    return SeatSnapshot(ids.format_event_id(event), version, views, pools)


def _change_messages(entries: Iterable[FeedEntry]) -> list[str]:
    return [change_message(entry.number, entry.kind, entry.data) for entry in entries]


def _retrieve_exception(reading: "asyncio.Task[None]") -> None:
    """Everyone who awaited the read may have gone; without this, asyncio would log its exception as never retrieved."""
    if not reading.cancelled():
        reading.exception()
