"""An event that its lane serves apart from the others, on a connection of its own.

Another process has locked it, or its layout is large and has changed. Waiting for it in a shared batch would make every
event of the lane wait.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog

from holdfast.engine.batch import CommitListener, ignore_commit
from holdfast.engine.batch_runner import BATCH_MAX, BUSY, LINES_MAX, BatchRunner, UnreachableError, refuse
from holdfast.engine.command_queue import Waiting, first_commands
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime import ids, metrics
from holdfast.runtime.db import Connect

log = structlog.get_logger()

SPARES_MAX: Final = 8
# An event stays apart for at least this long. Otherwise two processes that sell it would collide in every batch.
APART_SECONDS: Final = 2.0
# How long one attempt waits for the lock before another slow event gets the connection.
ATTEMPT_SECONDS: Final = 0.5
ATTEMPT_SECONDS_MIN: Final = 0.05


class SpareConnections:
    """The connections for slow events. A process opens them on demand."""

    def __init__(
        self,
        connect: Connect,
        layouts: LayoutCache,
        on_commit: CommitListener = ignore_commit,
        size: int = SPARES_MAX,
    ) -> None:
        self._connect = connect
        self._layouts = layouts
        self._on_commit = on_commit
        self._slots = asyncio.Semaphore(size)
        self._idle: list[BatchRunner] = []

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[BatchRunner]:
        async with self._slots:
            runner = self._idle.pop() if self._idle else BatchRunner(self._connect, self._layouts, self._on_commit)
            try:
                yield runner
            finally:
                self._idle.append(runner)

    async def close(self) -> None:
        for runner in self._idle:
            await runner.close()


class SlowEvent:
    """Its commands, in order. `run` serves them until the event may go back to its lane."""

    def __init__(self, event: bytes, spares: SpareConnections) -> None:
        self._event = event
        self._spares = spares
        self._waiting: deque[Waiting] = deque()
        self._arrived = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._return_at = self._clock() + APART_SECONDS
        self._closing = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)
        self._arrived.set()

    def close(self) -> None:
        """Make `run` return once nothing waits."""
        self._closing = True
        self._arrived.set()

    async def run(self) -> list[Waiting]:
        """Returns the commands that wait when the event goes back."""
        try:
            while self._clock() < self._return_at and not (self._closing and not self._waiting):
                if self._waiting:
                    await self._serve_waiting()
                else:
                    await self._wait_for_arrivals()
        except BaseException:
            refuse(self._waiting, BUSY)
            raise
        return list(self._waiting)

    async def _wait_for_arrivals(self) -> None:
        self._arrived.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._return_at):
                await self._arrived.wait()

    async def _serve_waiting(self) -> None:
        try:
            async with asyncio.timeout_at(self._waiting[0].deadline) as timeout, self._spares.lease() as runner:
                # The timeout covers only the wait for a connection.
                timeout.reschedule(None)
                await self._serve_batch(runner)
        except TimeoutError:
            self._return_at = self._clock() + APART_SECONDS
        self._refuse_overdue()

    async def _serve_batch(self, runner: BatchRunner) -> None:
        batch = first_commands(self._waiting, BATCH_MAX, LINES_MAX)
        left = batch[0].deadline - self._clock()
        try:
            unserved = await runner.serve(batch, max(min(left, ATTEMPT_SECONDS), ATTEMPT_SECONDS_MIN))
        except UnreachableError:
            log.error("database_unreachable", waiting=len(self._waiting))
            refuse(batch, BUSY)
            unserved = []
        for _ in batch:
            self._waiting.popleft()
        if unserved:
            self._waiting.extendleft(reversed(unserved))
            self._return_at = self._clock() + APART_SECONDS

    def _refuse_overdue(self) -> None:
        """Refuse the commands whose deadline has passed."""
        now = self._clock()
        overdue = 0
        while self._waiting and self._waiting[0].deadline <= now:
            self._waiting.popleft().resolve(BUSY)
            overdue += 1
        if overdue:
            metrics.LOCK_TIMEOUTS.add(count=overdue)
            log.warning("event_blocked", event_id=ids.format_event_id(self._event), refused=overdue)
