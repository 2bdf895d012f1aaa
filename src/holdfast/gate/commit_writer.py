"""Tells Redis what each batch committed, shortly after the commit: which seats changed hands, and which events changed.

Nothing is lost if this fails. The follower replays from the journal what Redis missed.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import structlog
from msgspec import Struct

from holdfast.core.commands import PlaceHold, SeatItem
from holdfast.core.journal import JournalEntry
from holdfast.core.layout import Layout
from holdfast.engine.load import LoadedBatch
from holdfast.gate.changes import ChangeBuilder, booked_seats, changes_seats
from holdfast.gate.entries import Change, format_time
from holdfast.gate.redis_client import Command, RedisCalls, UnavailableError
from holdfast.gate.user_hash import UserHasher
from holdfast.runtime.database_clock import DatabaseClock
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS
from holdfast.runtime.shared_secrets import SecretValue

log = structlog.get_logger()

CHANNEL: Final = "holdfast:changes"
# The longest the queue may get. The follower takes care of anything beyond that.
WAITING_MAX: Final = 10_000
# The most booking lines in one call, because a script blocks all other clients of Redis. The follower takes care of
# larger batches.
LINES_MAX: Final = 500
# A few large calls cost much less than many small ones, and nobody waits for them.
PAUSE_SECONDS: Final = 0.02


class Commit(Struct, frozen=True):
    """What one batch did to one event: the entries that end with `version`."""

    layout: Layout
    now: datetime
    version: int
    entries: Sequence[JournalEntry]


class CommitWriter:
    def __init__(self, calls: RedisCalls, hasher: UserHasher, clock: DatabaseClock) -> None:
        self._calls = calls
        self._hasher = hasher
        self._clock = clock
        self._commits: deque[Commit] = deque()
        self._refused: deque[PlaceHold] = deque()
        self._changed: set[bytes] = set()
        self._arrived = asyncio.Event()
        self._is_urgent = asyncio.Event()
        self._is_writing = False
        self._waiters: list[asyncio.Future[None]] = []

    def add_batch(self, batch: LoadedBatch) -> None:
        """Listens to the engine's commits."""
        self._clock.observe(batch.now)
        for event, state in batch.states.items():
            if state.entries:
                self._changed.add(event)
                if state.layout.seats and state.line_count <= LINES_MAX:
                    self._commits.append(Commit(state.layout, batch.now, state.version, state.entries))
        self._notice()

    def add_refused(self, command: PlaceHold) -> None:
        """The engine refused a hold whose seats are pending. It did so in a batch, so the clock is known."""
        self._refused.append(command)
        self._notice()

    def add_changed_event(self, event: bytes) -> None:
        """Somebody has edited the event."""
        self._changed.add(event)
        self._notice()

    def drop_all(self) -> None:
        self._commits.clear()
        self._refused.clear()
        self._changed.clear()

    def _notice(self) -> None:
        if not self._calls.breaker.may_try:
            self.drop_all()
            return
        for waiting in (self._commits, self._refused):
            while len(waiting) > WAITING_MAX:
                waiting.popleft()
        self._arrived.set()

    async def wait_until_written(self, seconds: float) -> None:
        """Wait until everything added so far is written, but no longer than this."""
        if self._has_waiting or self._is_writing:
            written = asyncio.get_running_loop().create_future()
            self._waiters.append(written)
            self._is_urgent.set()
            await asyncio.wait([written], timeout=seconds)

    @property
    def _has_waiting(self) -> bool:
        return bool(self._commits or self._refused or self._changed)

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            self._is_writing = True
            try:
                await self._write_all()
            except UnavailableError as error:
                log.debug("commits_not_written", error=str(error))
                self.drop_all()
            except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
                log.warning("commits_not_hashed", error=type(error).__name__)
                self.drop_all()
            finally:
                self._is_writing = False
                _release(self._take_waiters())
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self._is_urgent.wait()
            self._is_urgent.clear()

    def _take_waiters(self) -> "list[asyncio.Future[None]]":
        waiters, self._waiters = self._waiters, []
        return waiters

    async def _write_all(self) -> None:
        secret = await self._hasher.secret()
        while self._has_waiting:
            commands = self._take_refused(secret) + self._take_commits(secret)
            writes = bool(commands)
            if self._changed:
                commands.append(("PUBLISH", CHANNEL, b"".join(self._changed)))
                self._changed.clear()
            # More may arrive during the call, but the current waiters do not depend on it.
            waiters = [] if self._commits or self._refused else self._take_waiters()
            try:
                await self._calls.run(commands, writes=writes)
            finally:
                _release(waiters)

    def _take_commits(self, secret: SecretValue) -> list[Command]:
        """One call for each run of consecutive commits to the same event."""
        commands: list[Command] = []
        lines = 0
        while self._commits and lines < LINES_MAX:
            row = [self._commits.popleft()]
            lines += _count_lines(row[0])
            while self._commits and lines < LINES_MAX and _follows(self._commits[0], row[-1]):
                lines += _count_lines(self._commits[0])
                row.append(self._commits.popleft())
            commands.append(_apply(row, secret))
        return commands

    def _take_refused(self, secret: SecretValue) -> list[Command]:
        now = self._clock.now()
        builders: dict[bytes, ChangeBuilder] = {}
        lines = 0
        while self._refused and lines < LINES_MAX:
            assert now is not None, "the engine has run a batch"
            command = self._refused.popleft()
            if command.event not in builders:
                builders[command.event] = ChangeBuilder(command.org, command.event, secret, now)
            labels = [item.label for item in command.items if isinstance(item, SeatItem)]
            builders[command.event].release(command.booking, labels)
            lines += len(labels)
        return [builder.command(Change(now=builder.now)) for builder in builders.values()]


def _release(waiters: "Sequence[asyncio.Future[None]]") -> None:
    for written in waiters:
        if not written.done():
            written.set_result(None)


def _follows(later: Commit, earlier: Commit) -> bool:
    return later.layout.event == earlier.layout.event and later.version - len(later.entries) == earlier.version


def _count_lines(commit: Commit) -> int:
    return sum([len(entry.booking.lines) for entry in commit.entries])


def _apply(row: Sequence[Commit], secret: SecretValue) -> Command:
    """The changes of all seats in order. A seat that was released and taken again changes twice, because each change
    looks at the entry that the one before left."""
    first, last = row[0], row[-1]
    builder = ChangeBuilder(last.layout.org, last.layout.event, secret, last.now)
    pools: dict[str, int] = {}
    for commit in row:
        for entry in commit.entries:
            if changes_seats(entry):
                builder.add_booking(booked_seats(entry.booking, commit.layout))
            else:
                builder.add_buyer(entry.booking.user, entry.booking.request_key, entry.booking.client)
            pools.update((code, pool.remaining) for code, pool in entry.data.pools.items())
    return builder.command(
        Change(
            after=first.version - len(first.entries),
            version=last.version,
            now=format_time(last.now),
            pools=pools,
            pools_version=last.version,
        )
    )
