"""A lane: a bounded queue with one connection that turns everything waiting in it into one transaction.

There is no timer. While one batch commits, the next one gathers.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import asyncpg
import structlog

from holdfast.core.commands import Command
from holdfast.core.decide import Outcome
from holdfast.core.refusals import Refusal, Refused
from holdfast.engine.batch import run_batch
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS, Connection

log = structlog.get_logger()

QUEUE_MAX: Final = 10_000
BATCH_MAX: Final = 256
# How long a lane tries to get a lost database back before it sends those waiting away.
PATIENCE_SECONDS: Final = 4.0
RETRY_SECONDS: Final = 0.05

BUSY: Final = Refused(Refusal.BUSY)
INTERNAL: Final = Refused(Refusal.INTERNAL)

_CROSSED_ERRORS: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)

Waiting = tuple[Command, "asyncio.Future[Outcome]"]


class UnreachableError(Exception):
    """The database could not be reached for as long as a lane waits."""


class Lane:
    def __init__(self, connect: Callable[[], Awaitable[Connection]], layouts: LayoutCache) -> None:
        self._connect = connect
        self._layouts = layouts
        self._connection: Connection | None = None
        self._queue: deque[Waiting] = deque()
        self._arrived = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Serve all that is waiting, then stop. Nothing new is taken."""
        self._closing = True
        self._arrived.set()
        if self._task is not None:
            await self._task
        await self._drop_connection()

    def submit(self, command: Command) -> "asyncio.Future[Outcome]":
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if self._closing or len(self._queue) >= QUEUE_MAX:
            answer.set_result(BUSY)
        else:
            self._queue.append((command, answer))
            self._arrived.set()
        return answer

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_MAX))]
                await self._serve(batch)
            if self._closing:
                return

    async def _serve(self, batch: Sequence[Waiting]) -> None:
        """Answer everybody in the batch, whatever happens to it."""
        try:
            outcomes = await self._decide([command for command, _ in batch])
        except UnreachableError:
            log.error("database_unreachable", waiting=len(batch) + len(self._queue))
            self._refuse_busy(batch)
            self._refuse_busy(self._queue)
            self._queue.clear()
        except BLOCKED_ERRORS as error:
            await self._serve_blocked(batch, error)
        except Exception as error:
            await self._serve_poisoned(batch, error)
        else:
            for (_, answer), outcome in zip(batch, outcomes, strict=True):
                _resolve(answer, outcome)

    async def _decide(self, commands: Sequence[Command]) -> list[Outcome]:
        """Run the batch. Where the outcome of a commit is unknown it is run again, and finds its own work by the ids
        and keys that came with the commands."""
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + PATIENCE_SECONDS
        while True:
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                return await run_batch(self._connection, self._layouts, commands)
            except _CROSSED_ERRORS:
                log.warning("batch_crossed", commands=len(commands))
            except LOST_ERRORS as error:
                log.warning("connection_lost", error=type(error).__name__, commands=len(commands))
                await self._drop_connection()
            if clock() > give_up_at:
                raise UnreachableError
            await asyncio.sleep(RETRY_SECONDS)

    async def _serve_blocked(self, batch: Sequence[Waiting], error: Exception) -> None:
        """An event that others keep locked must not hold up the rest of the batch."""
        events = {command.event for command, _ in batch}
        log.warning("batch_blocked", error=type(error).__name__, events=len(events), commands=len(batch))
        if len(events) == 1:
            self._refuse_busy(batch)
            return
        for event in events:
            await self._serve([waiting for waiting in batch if waiting[0].event == event])

    async def _serve_poisoned(self, batch: Sequence[Waiting], error: Exception) -> None:
        """One command that breaks its batch is found by halving; the others are served without it."""
        if len(batch) == 1:
            log.error("command_failed", command=type(batch[0][0]).__name__, exc_info=error)
            _resolve(batch[0][1], INTERNAL)
            return
        log.warning("batch_poisoned", error=type(error).__name__, commands=len(batch))
        half = len(batch) // 2
        await self._serve(batch[:half])
        await self._serve(batch[half:])

    def _refuse_busy(self, batch: Sequence[Waiting] | deque[Waiting]) -> None:
        for _, answer in batch:
            _resolve(answer, BUSY)

    async def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def _resolve(answer: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not answer.done():
        answer.set_result(outcome)
