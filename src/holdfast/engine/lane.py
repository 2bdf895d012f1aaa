"""A lane: a bounded queue and one connection. Each transaction takes everything that is waiting in the queue.

There is no timer: while one batch commits, the next one fills up.
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
# How long a lane tries to reconnect before it refuses the waiting commands as busy.
RECONNECT_SECONDS: Final = 4.0
RETRY_SECONDS: Final = 0.05

BUSY: Final = Refused(Refusal.BUSY)
INTERNAL: Final = Refused(Refusal.INTERNAL)

_CONFLICT_ERRORS: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)

Waiting = tuple[Command, "asyncio.Future[Outcome]"]


class UnreachableError(Exception):
    """The lane could not reach the database within `RECONNECT_SECONDS`."""


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
        """Serve the waiting commands, then stop. New commands are refused as busy."""
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
        """Resolve every command in the batch, whatever happens to it."""
        try:
            outcomes = await self._run_batch([command for command, _ in batch])
        except UnreachableError:
            log.error("database_unreachable", waiting=len(batch) + len(self._queue))
            self._refuse_busy(batch)
            self._refuse_busy(self._queue)
            self._queue.clear()
        except BLOCKED_ERRORS as error:
            await self._serve_by_event(batch, error)
        except Exception as error:
            await self._serve_halves(batch, error)
        else:
            for (_, answer), outcome in zip(batch, outcomes, strict=True):
                _resolve(answer, outcome)

    async def _run_batch(self, commands: Sequence[Command]) -> list[Outcome]:
        """Run the batch, and run it again if the outcome of a commit is unknown. The ids and keys in the commands make
        the second run find the work of the first."""
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + RECONNECT_SECONDS
        while True:
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                return await run_batch(self._connection, self._layouts, commands)
            except _CONFLICT_ERRORS:
                log.warning("batch_conflicted", commands=len(commands))
            except LOST_ERRORS as error:
                log.warning("connection_lost", error=type(error).__name__, commands=len(commands))
                await self._drop_connection()
            if clock() > give_up_at:
                raise UnreachableError
            await asyncio.sleep(RETRY_SECONDS)

    async def _serve_by_event(self, batch: Sequence[Waiting], error: Exception) -> None:
        """Serve each event on its own, so that one locked event does not hold up the others."""
        events = {command.event for command, _ in batch}
        log.warning("batch_blocked", error=type(error).__name__, events=len(events), commands=len(batch))
        if len(events) == 1:
            self._refuse_busy(batch)
            return
        for event in events:
            await self._serve([waiting for waiting in batch if waiting[0].event == event])

    async def _serve_halves(self, batch: Sequence[Waiting], error: Exception) -> None:
        """Find the command that breaks the batch by halving, and serve the others without it."""
        if len(batch) == 1:
            log.error("command_failed", command=type(batch[0][0]).__name__, exc_info=error)
            _resolve(batch[0][1], INTERNAL)
            return
        log.warning("batch_failed", error=type(error).__name__, commands=len(batch))
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
