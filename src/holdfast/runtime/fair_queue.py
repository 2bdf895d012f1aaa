"""Works for many orgs side by side, so that a slow or busy org does not delay the others."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from typing import Final, Generic, TypeVar

import structlog
from msgspec import Struct

from holdfast.runtime.db import DatabaseScope, Row
from holdfast.runtime.lease_queue import LeaseQueue
from holdfast.sql import NamedStatement

log = structlog.get_logger()

ORGS_SCANNED_MAX: Final = 1_000
ORGS_MAX: Final = 20
# How often an org's task looks for more rows while it works on others.
CLAIM_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 20.0

FIRST_ORG: Final = bytes(16)

Key = TypeVar("Key", str, bytes)


class RoundRobin(Generic[Key]):
    """Serves each key in a task of its own. If there are more keys than places, they take turns: a task should end soon
    if `must_yield`, because another key waits for its place, or because nothing new may start any more."""

    def __init__(self, serve: Callable[[Key], Coroutine[object, object, None]], places_max: int) -> None:
        self._serve: Callable[[Key], Coroutine[object, object, None]] = serve
        self._places_max = places_max
        self._last_started: Key | None = None
        self._is_full = False
        self._is_closing = False
        self.tasks: dict[Key, asyncio.Task[None]] = {}

    @property
    def must_yield(self) -> bool:
        return self._is_full or self._is_closing

    def start(self, keys: Iterable[Key], may_start: Callable[[Key], bool] = lambda _: True) -> None:
        """Start serving these keys, except those that are being served. Begin after the key that was started last, so
        that every key gets a place even if there are too few."""
        self._is_full = False
        last = self._last_started
        for key in sorted(keys, key=lambda key: (last is not None and key <= last, key)):
            if self._is_closing or key in self.tasks:
                continue
            if len(self.tasks) >= self._places_max:
                self._is_full = True
            elif may_start(key):
                self._last_started = key
                self._start(key)

    async def close(self, seconds: float) -> None:
        """Wait a while for work under way, and cancel the rest."""
        self._is_closing = True
        tasks = set(self.tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _start(self, key: Key) -> None:
        task = self.tasks[key] = asyncio.create_task(self._serve(key))
        task.add_done_callback(lambda _: self.tasks.pop(key, None))


class DueOrg(Struct, frozen=True):
    """An org that has waiting rows, and whether any of them is due."""

    org: bytes
    due: bool


class FairQueue(Generic[Row]):
    """A lease queue whose rows belong to orgs. Each org has up to `claim_max` rows under way, and gets the next one as
    soon as one of them ends.

    `orgs_statement` takes `:after` and `:orgs_max`, and finds the orgs with waiting rows in order. The claim takes
    `:org`. Both also get `values`. Rows with the same order key are worked on in the order in which they were claimed.
    """

    def __init__(
        self,
        queue: LeaseQueue[Row],
        orgs_statement: NamedStatement,
        scope: DatabaseScope,
        work: Callable[[Row], Awaitable[None]],
        **values: object,
    ) -> None:
        self._queue = queue
        self._orgs_statement = orgs_statement
        self._scope = scope
        self._work = work
        self._values = values
        self._round_robin = RoundRobin[bytes](self._serve, ORGS_MAX)
        self._last_by_key: dict[Hashable, asyncio.Task[None]] = {}
        self._scan_after = FIRST_ORG
        self._reported = 0
        self.rows_ended = 0

    async def run_once(self) -> int:
        """Start working on the due rows of every org, without waiting for any of them. Returns how many rows ended
        since the last call."""
        statement = self._orgs_statement(after=self._scan_after, orgs_max=ORGS_SCANNED_MAX, **self._values)
        orgs = await self._scope.rows(DueOrg, *statement)
        self._scan_after = orgs[-1].org if len(orgs) == ORGS_SCANNED_MAX else FIRST_ORG
        self._round_robin.start(row.org for row in orgs if row.due)
        ended, self._reported = self.rows_ended - self._reported, self.rows_ended
        return ended

    async def wait(self) -> None:
        """Wait until nothing is under way."""
        while self._round_robin.tasks:
            await asyncio.wait(list(self._round_robin.tasks.values()))

    async def close(self) -> None:
        """Wait a while for rows under way. The others become due again when their leases end."""
        await self._round_robin.close(CLOSE_SECONDS)

    async def _serve(self, org: bytes) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            await self._claim(org, running)
            while running and not self._round_robin.must_yield:
                timeout = CLAIM_SECONDS if len(running) < self._queue.claim_max else None
                done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                running -= done
                if not self._round_robin.must_yield:
                    await self._claim(org, running)
            await _wait_for(running)
        except asyncio.CancelledError:
            for task in running:
                task.cancel()
            raise
        except Exception as error:
            log.error("claim_failed", queue=self._queue.name, error=type(error).__name__)
            await _wait_for(running)

    async def _claim(self, org: bytes, running: "set[asyncio.Task[None]]") -> None:
        """Start as many due rows as there is room for."""
        room = self._queue.claim_max - len(running)
        rows = await self._queue.claim(self._scope, claim_max=room, org=org, **self._values)
        running.update([self._start(row) for row in rows])

    def _start(self, row: Row) -> "asyncio.Task[None]":
        key = self._queue.order_key(row) if self._queue.order_key else None
        before = self._last_by_key.get(key) if key is not None else None
        task = asyncio.create_task(self._work_on(row, before))
        if key is not None:
            self._last_by_key[key] = task
            task.add_done_callback(lambda _: self._forget(key, task))
        return task

    def _forget(self, key: Hashable, task: "asyncio.Task[None]") -> None:
        if self._last_by_key.get(key) is task:
            del self._last_by_key[key]

    async def _work_on(self, row: Row, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._queue.work_on([row], self._work)
        self.rows_ended += 1


async def _wait_for(tasks: "set[asyncio.Task[None]]") -> None:
    if tasks:
        await asyncio.wait(tasks)
