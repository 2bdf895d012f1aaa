"""Keeps Redis current from the journal, for the events that buyers ask for.

Redis usually hears of a change from the process that made it. The follower replays what Redis missed after a lost
message, a crash, an outage, a flush or a restart from an old dump. Redis records the version and the time that its copy
of an event has reached. While the copy is stale, Redis refuses nobody.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

import structlog
from msgspec import Struct, structs

from holdfast import sql
from holdfast.gate.changes import BookedSeats, ChangeBuilder
from holdfast.gate.entries import Change, format_time
from holdfast.gate.event_builder import CALL_MAX, EventBuilder, TooLargeError
from holdfast.gate.event_mark import Mark, read_marks
from holdfast.gate.redis_client import RedisCalls, UnavailableError
from holdfast.gate.user_hash import UserHasher
from holdfast.runtime import ids
from holdfast.runtime.database_clock import DatabaseClock
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS, Database
from holdfast.runtime.shared_secrets import SecretValue

log = structlog.get_logger()

TICK_SECONDS: Final = 0.5
# Nobody follows an event that no buyer has asked for in this time.
IDLE_SECONDS: Final = 10.0
EVENTS_MAX: Final = 1_000
# How many journal entries one step follows.
ENTRIES_MAX: Final = 500
# Rebuild an event that lags by more entries than this.
BEHIND_MAX: Final = 20_000
BUILDS_MAX: Final = 2
# An event that is too large is left alone for this long.
TOO_LARGE_SECONDS: Final = 3600


class EventChanges(Struct, frozen=True):
    """The next changes to an event. `followed` is the version of the last journal entry that they include."""

    event: bytes
    org: bytes
    revision: int
    version: int
    at: datetime
    followed: int
    bookings: list[BookedSeats]
    pools: dict[str, int] | None
    next_expiry: datetime | None


class _Active(Struct):
    org: bytes
    touched_at: float


class Follower:
    """Any number of processes may follow the same event: Redis rejects a step that another one has already applied."""

    def __init__(self, calls: RedisCalls, database: Database, hasher: UserHasher, clock: DatabaseClock) -> None:
        self._calls = calls
        self._database = database
        self._hasher = hasher
        self._clock = clock
        self._builder = EventBuilder(calls, database, hasher, clock)
        self._active: OrderedDict[bytes, _Active] = OrderedDict()
        # When to try again, by event.
        self._too_large: dict[bytes, float] = {}
        self._builds: dict[bytes, asyncio.Task[None]] = {}
        self._wanted = asyncio.Event()

    def touch(self, org: bytes, event: bytes) -> None:
        """A buyer asks for this event."""
        active = self._active.get(event)
        if active is not None:
            active.touched_at = time.monotonic()
            self._active.move_to_end(event)
            return
        if len(self._active) >= EVENTS_MAX:
            self._active.popitem(last=False)
        self._active[event] = _Active(org, time.monotonic())
        self._wanted.set()

    def close(self) -> None:
        for task in self._builds.values():
            task.cancel()

    async def run(self) -> None:
        while True:
            self._wanted.clear()
            try:
                await self.run_once()
            except UnavailableError as error:
                log.debug("gate_not_followed", error=str(error))
            except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
                log.warning("gate_without_database", error=type(error).__name__)
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS if self._active else None):
                    await self._wanted.wait()

    async def run_once(self) -> None:
        """Follow every active event that lags, and start to rebuild those that need it."""
        self._drop_idle()
        orgs = {event: active.org for event, active in self._active.items()}
        if not orgs:
            return
        secret = await self._hasher.secret()
        if not self._clock.is_fresh:
            self._clock.observe(await self._database.shared.fetchval(sql.gate.clock))
        now = self._clock.now()
        behind: dict[bytes, Mark] = {}
        for event, mark in (await read_marks(self._calls, orgs)).items():
            if mark is None or mark.needs_build(secret, now):
                self._start_build(event)
            elif mark.needs_follow(now):
                behind[event] = mark
        while behind:
            behind = await self._follow(behind, secret)

    def _drop_idle(self) -> None:
        since = time.monotonic() - IDLE_SECONDS
        for event in [event for event, active in self._active.items() if active.touched_at < since]:
            del self._active[event]

    async def _follow(self, marks: Mapping[bytes, Mark], secret: SecretValue) -> dict[bytes, Mark]:
        """Take these events one step forward. Returns those that have more to follow."""
        versions = [mark.version for mark in marks.values()]
        found = await self._database.all_events.rows(
            EventChanges, *sql.gate.changes(events=list(marks), versions=versions, entries_max=ENTRIES_MAX)
        )
        left: dict[bytes, Mark] = {}
        for changes in found:
            self._clock.observe(changes.at)
            mark = marks[changes.event]
            # A database that was restored from a backup may have an older version than Redis.
            if not mark.version <= changes.version <= mark.version + BEHIND_MAX:
                self._start_build(changes.event)
            elif await self._apply(changes, mark, secret) and changes.followed < changes.version:
                left[changes.event] = structs.replace(mark, version=changes.followed)
        return left

    async def _apply(self, changes: EventChanges, mark: Mark, secret: SecretValue) -> bool:
        """Returns whether Redis was still at the version of the mark. Only the last call advances the version, after
        all others have succeeded."""
        change = Change(now=format_time(changes.at), generation=mark.generation)
        builder = ChangeBuilder(changes.org, changes.event, secret, changes.at)
        for booking in changes.bookings:
            if builder.size >= CALL_MAX:
                await self._calls.run([builder.command(change)])
                builder = ChangeBuilder(changes.org, changes.event, secret, changes.at)
            builder.add_booking(booking)
        last = structs.replace(
            change,
            after=mark.version,
            version=changes.followed,
            is_followed=True,
            is_complete=changes.followed == changes.version,
            revision=changes.revision,
            next_expiry=format_time(changes.next_expiry) if changes.next_expiry is not None else None,
            pools=changes.pools or {},
            pools_version=changes.version,
        )
        (is_applied,) = await self._calls.run([builder.command(last)])
        return bool(is_applied)

    def _start_build(self, event: bytes) -> None:
        if event in self._builds or len(self._builds) >= BUILDS_MAX or time.monotonic() < self._too_large.get(event, 0):
            return
        task = self._builds[event] = asyncio.create_task(self._build(event))
        task.add_done_callback(lambda _: self._builds.pop(event, None))

    async def _build(self, event: bytes) -> None:
        try:
            if await self._builder.build(event):
                self._wanted.set()
        except UnavailableError as error:
            log.debug("gate_not_built", event_id=ids.format_event_id(event), error=str(error))
        except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
            log.warning("gate_without_database", error=type(error).__name__)
        except TooLargeError:
            self._too_large[event] = time.monotonic() + TOO_LARGE_SECONDS
            log.warning("event_too_large_for_gate", event_id=ids.format_event_id(event))
        except Exception:
            log.exception("gate_build_failed", event_id=ids.format_event_id(event))
