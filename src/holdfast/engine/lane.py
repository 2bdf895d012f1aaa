"""A lane: a bounded queue and one connection. Each transaction takes the commands that wait in the queue.

There is no timer: while one batch commits, the next one fills up. A batch waits for no lock: if another process has
locked an event, the event continues on a connection of its own and rejoins its lane later.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

import structlog

from holdfast.core.commands import Command, PlaceHold
from holdfast.core.decide import Outcome
from holdfast.engine.batch import CommitListener, ignore_commit
from holdfast.engine.batch_runner import BATCH_MAX, BUSY, LINES_MAX, BatchRunner, UnreachableError, refuse
from holdfast.engine.command_queue import CommandQueue, Waiting
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.slow_event import SlowEvent, SpareConnections
from holdfast.runtime.db import Connect
from holdfast.runtime.request_ids import current_request_id
from holdfast.runtime.supervision import TaskHealth, keep_running
from holdfast.runtime.tracing import current_span

log = structlog.get_logger()

QUEUE_MAX: Final = 20_000
EVENT_QUEUE_MAX: Final = 10_000
# Room in a full queue for everything but new holds: payments, confirmations, cancellations.
RESERVE: Final = 2_000
# How long a command waits for a locked event.
LOCKED_SECONDS: Final = 3.0


class Lane:
    def __init__(
        self,
        connect: Connect,
        layouts: LayoutCache,
        spares: SpareConnections,
        health: TaskHealth,
        name: str = "lane",
        on_commit: CommitListener = ignore_commit,
    ) -> None:
        self._runner = BatchRunner(connect, layouts, on_commit)
        self._spares = spares
        self._health = health
        self._name = name
        self._queue = CommandQueue()
        self._batch: list[Waiting] = []
        self._slow: dict[bytes, SlowEvent] = {}
        self._slow_tasks: set[asyncio.Task[None]] = set()
        self._arrived = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many commands wait."""
        return len(self._queue) + sum(map(len, self._slow.values()))

    def start(self) -> None:
        self._task = asyncio.create_task(keep_running(self._name, self._run, self._health, self._refuse_all))

    async def close(self) -> None:
        """Serve the waiting commands, then stop. New commands are refused as busy."""
        self._closing = True
        for event in self._slow.values():
            event.close()
        self._arrived.set()
        if self._task is not None:
            await self._task
        await self._runner.close()

    def submit(self, command: Command) -> "asyncio.Future[Outcome]":
        loop = asyncio.get_running_loop()
        waiting = Waiting(
            command,
            loop.create_future(),
            loop.time() + LOCKED_SECONDS,
            time.monotonic(),
            current_request_id(),
            current_span(),
        )
        slow = self._slow.get(command.event) if self._slow else None
        if self._closing or not self._has_room(command, slow):
            waiting.resolve(BUSY)
        elif slow is not None:
            slow.add(waiting)
        else:
            self._queue.add(waiting)
            self._arrived.set()
        return waiting.answer

    def _has_room(self, command: Command, slow: SlowEvent | None) -> bool:
        reserve = 0 if isinstance(command, PlaceHold) else RESERVE
        of_event = self._queue.count_of(command.event) if slow is None else len(slow)
        return len(self) < QUEUE_MAX + reserve and of_event < EVENT_QUEUE_MAX + reserve

    async def _run(self) -> None:
        while True:
            while self._queue:
                self._batch = self._queue.take(BATCH_MAX, LINES_MAX)
                await self._serve(self._batch)
                self._batch = []
            if self._closing and not self._slow:
                return
            self._arrived.clear()
            await self._arrived.wait()

    async def _serve(self, batch: list[Waiting]) -> None:
        try:
            unserved = await self._runner.serve(batch)
        except UnreachableError:
            log.error("database_unreachable", waiting=len(batch) + len(self._queue))
            refuse([*batch, *self._queue.take_all()], BUSY)
        else:
            self._set_apart(unserved)

    def _set_apart(self, commands: Iterable[Waiting]) -> None:
        """Move these commands, and all others to the same events, out of the lane."""
        for waiting in commands:
            event = waiting.command.event
            if event not in self._slow:
                self._slow[event] = SlowEvent(event, self._spares)
                if self._closing:
                    self._slow[event].close()
                task = asyncio.create_task(self._serve_apart(event, self._slow[event]))
                self._slow_tasks.add(task)
                task.add_done_callback(self._slow_tasks.discard)
            self._slow[event].add(waiting)
        for event in {waiting.command.event for waiting in commands}:
            for waiting in self._queue.take_event(event):
                self._slow[event].add(waiting)

    async def _serve_apart(self, event: bytes, slow: SlowEvent) -> None:
        returned: list[Waiting] = []
        try:
            returned = await slow.run()
        except Exception as error:
            log.error("slow_event_failed", exc_info=error)
        finally:
            del self._slow[event]
            for waiting in returned:
                self._queue.add(waiting)
            self._arrived.set()

    def _refuse_all(self) -> None:
        """Release everyone who waits for a task that has died. The current batch may have taken effect; a retry finds
        out."""
        refuse([*self._batch, *self._queue.take_all()], BUSY)
        self._batch = []
