"""Sweeps events one by one, so that a failure in one event does not stop the others.

A sweep expires the due holds of an event and ends the bookings of one that is over, in one bounded transaction.
"""

import asyncio
from types import TracebackType
from typing import Final
from weakref import WeakValueDictionary

from asyncpg import LockNotAvailableError
from msgspec import Struct

from holdfast import sql
from holdfast.engine.batch import SWEEP_MAX, CommitListener, ignore_commit, sweep
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime.db import LOST_ERRORS, Connect, Connection

# After this many successful sweeps, the next one takes twice as many bookings.
GROW_AFTER: Final = 8
SIZES_MAX: Final = 10_000
SWEEPERS_MAX: Final = 3
# How long a sweep waits for others before it gives up.
WAIT_SECONDS: Final = 5.0


class NotConnectedError(ConnectionError):
    """The database could not be reached. Unlike a lost connection, this is not the fault of one event."""


class KeptConnection:
    """A connection that stays open between uses. After an error that may have broken it, the next use opens another."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: Connection | None = None

    async def __aenter__(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            try:
                self._connection = await self._connect()
            except LOST_ERRORS as error:
                raise NotConnectedError(type(error).__name__) from error
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, LOST_ERRORS) or (error is not None and not isinstance(error, Exception)):
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


class _Size(Struct):
    """How many bookings the next sweep takes, and how many sweeps of that size have succeeded."""

    bookings: int
    successes: int = 0


class SweepSizes:
    """How many bookings the next sweep of each event takes: half as many after each failure, down to one, so that an
    event ends even if its bookings are costly. After several successes, the number doubles again."""

    def __init__(self) -> None:
        self._small: dict[bytes, _Size] = {}

    def get(self, event: bytes) -> int:
        return self._small[event].bookings if event in self._small else SWEEP_MAX

    def record_failure(self, event: bytes) -> None:
        size = max(self.get(event) // 2, 1)
        if event not in self._small and len(self._small) >= SIZES_MAX:
            self._small.pop(next(iter(self._small)))
        self._small[event] = _Size(size)

    def record_success(self, event: bytes) -> None:
        size = self._small.get(event)
        if size is None:
            return
        size.successes += 1
        if size.successes >= GROW_AFTER:
            self._small[event] = _Size(2 * size.bookings)
            if 2 * size.bookings >= SWEEP_MAX:
                del self._small[event]


class Sweeper:
    """Sweeps one event at a time. `lock` is the statement that locks an event, or skips one that is locked."""

    def __init__(
        self,
        connection: KeptConnection,
        layouts: LayoutCache,
        sizes: SweepSizes,
        lock: str,
        on_commit: CommitListener = ignore_commit,
    ) -> None:
        self._connection = connection
        self._layouts = layouts
        self._sizes = sizes
        self._lock = lock
        self._on_commit = on_commit

    async def sweep(self, event: bytes) -> int:
        """Returns how many bookings it ended. After an error, the next sweep of this event is smaller, and the next
        sweep of any event gets a working connection."""
        try:
            async with self._connection as connection:
                ended = await sweep(
                    connection, self._layouts, event, self._lock, self._sizes.get(event), self._on_commit
                )
        except NotConnectedError:
            raise
        except LockNotAvailableError:
            raise
        except Exception:
            self._sizes.record_failure(event)
            raise
        if ended:
            self._sizes.record_success(event)
        return ended

    def close(self) -> None:
        self._connection.close()


class SweeperPool:
    """A few sweepers for all requests of a process. An event takes up at most one of them, however many requests sweep
    it, and nobody waits long for the others."""

    def __init__(self, connect: Connect, layouts: LayoutCache, on_commit: CommitListener = ignore_commit) -> None:
        self._connect = connect
        self._layouts = layouts
        self._on_commit = on_commit
        self._sizes = SweepSizes()
        self._sweepers: list[Sweeper] = []
        self._idle: list[Sweeper] = []
        self._places = asyncio.Semaphore(SWEEPERS_MAX)
        self._events: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    async def sweep(self, event: bytes) -> int:
        """Returns how many bookings it ended. Raises `TimeoutError` if other sweeps take too long."""
        turn = self._events.setdefault(event, asyncio.Lock())
        async with asyncio.timeout(WAIT_SECONDS):
            await turn.acquire()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._places.acquire()
            try:
                return await self._sweep(event)
            finally:
                self._places.release()
        finally:
            turn.release()

    def close(self) -> None:
        for sweeper in self._sweepers:
            sweeper.close()

    async def _sweep(self, event: bytes) -> int:
        sweeper = self._idle.pop() if self._idle else self._new_sweeper()
        try:
            return await sweeper.sweep(event)
        finally:
            self._idle.append(sweeper)

    def _new_sweeper(self) -> Sweeper:
        connection = KeptConnection(self._connect)
        sweeper = Sweeper(connection, self._layouts, self._sizes, sql.engine.lock, self._on_commit)
        self._sweepers.append(sweeper)
        return sweeper
