"""Everything that one process does with Redis."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from holdfast.engine.engine import Engine
from holdfast.gate import lua
from holdfast.gate.acquire_queue import AcquireQueue
from holdfast.gate.circuit_breaker import BreakerReport, CircuitBreaker
from holdfast.gate.commit_writer import CHANNEL, CommitWriter
from holdfast.gate.entries import EventKeys
from holdfast.gate.event_mark import put_to_sleep
from holdfast.gate.follower import Follower
from holdfast.gate.redis_client import (
    BACKGROUND_SECONDS,
    REQUEST_SECONDS,
    Command,
    RedisCalls,
    RedisUrl,
    UnavailableError,
    open_client,
)
from holdfast.gate.seat_gate import SeatGate
from holdfast.gate.shared_limits import SharedLimit, SharedLimits
from holdfast.gate.user_hash import UserHasher
from holdfast.gate.wakeups import HEARTBEAT_SECONDS, Wakeups
from holdfast.runtime.database_clock import DatabaseClock
from holdfast.runtime.db import Database
from holdfast.runtime.supervision import TaskHealth, TaskReport, keep_running

log = structlog.get_logger()

RECONNECT_SECONDS: Final = 1.0
LAST_WRITE_SECONDS: Final = 0.5
# A real write: it takes nothing out of the bucket of a caller who does not exist.
PROBE: Final[Command] = ("EVAL", lua.SPEND, 1, "rate:{0}:probe", 1, 1, 1000, 0)


class RedisLayer:
    """A worker only needs the writer; an API process also runs the gate, the wake-ups and the shared rate limits."""

    def __init__(self, url: str, database: Database, clock: DatabaseClock | None = None) -> None:
        # Separate from the health of the process, which does not depend on Redis.
        self._health = TaskHealth()
        self._clock = clock or DatabaseClock()
        self._hasher = UserHasher(database)
        self.breaker = CircuitBreaker()
        parsed = RedisUrl.parse(url)
        self._requests = RedisCalls(open_client(parsed), self.breaker, REQUEST_SECONDS)
        self._background = RedisCalls(open_client(parsed), self.breaker, BACKGROUND_SECONDS)
        self._subscriber = open_client(parsed, reads_forever=True)
        self.writer = CommitWriter(self._background, self._hasher, self._clock)
        self.wakeups = Wakeups(self._subscriber, self.breaker)
        self.follower = Follower(self._background, database, self._hasher, self._clock)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def report(self) -> BreakerReport:
        return self.breaker.report

    @property
    def tasks(self) -> list[TaskReport]:
        return self._health.reports

    def make_gate(self, engine: Engine) -> SeatGate:
        queue = AcquireQueue(self._requests, self._clock)
        return SeatGate(engine, self.breaker, queue, self.writer, self.follower, self._hasher, self._clock)

    def start_writer(self) -> None:
        self._keep_running("redis_writer", self.writer.run, self.writer.drop_all)
        self._keep_running("redis_connection", self._stay_connected)

    def start(self, limits: Sequence[SharedLimit]) -> None:
        self.start_writer()
        self._keep_running("redis_follower", self.follower.run)
        self._keep_running("redis_wakeups", self.wakeups.run)
        self._keep_running("redis_limits", SharedLimits(self._background, self._hasher, limits).run)

    async def seats_released(self) -> None:
        """Wait until Redis has heard of everything that this process has committed, so that it refuses nobody a seat
        whose release Holdfast has acknowledged."""
        await self.writer.wait_until_written(REQUEST_SECONDS)

    async def event_changed(self, org: bytes, event: bytes) -> None:
        """Somebody has edited the event. Redis refuses nobody until it has followed the journal, because it may hold
        rules that no longer apply."""
        self.writer.add_changed_event(event)
        try:
            await self._requests.run([put_to_sleep(EventKeys(org, event))], writes=False)
        except UnavailableError as error:
            log.debug("event_not_put_to_sleep", error=str(error))

    async def close(self) -> None:
        await self.writer.wait_until_written(LAST_WRITE_SECONDS)
        self.follower.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._requests.close()
        await self._background.close()
        await self._subscriber.aclose()

    async def _stay_connected(self) -> None:
        """While the breaker is not closed, reconnect, so that the probe call does not have to. If no other call probes,
        this one does. Otherwise, send a heartbeat to the other processes."""
        while True:
            try:
                if not self.breaker.is_closed:
                    await self._requests.connect()
                    await self._background.connect()
                    await self._background.run([PROBE])
                else:
                    await self._background.run([("PUBLISH", CHANNEL, b"")], writes=False)
            except UnavailableError as error:
                log.debug("redis_unavailable", error=str(error))
            await asyncio.sleep(HEARTBEAT_SECONDS if self.breaker.is_closed else RECONNECT_SECONDS)

    def _keep_running(
        self, name: str, run: Callable[[], Awaitable[None]], on_failure: Callable[[], None] = lambda: None
    ) -> None:
        self._tasks.append(asyncio.create_task(keep_running(name, run, self._health, on_failure)))
