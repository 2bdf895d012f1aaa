"""The engine of one process: its lanes, and which event goes to which lane."""

import asyncio
from collections.abc import Mapping
from functools import partial

from holdfast.core.commands import Command
from holdfast.core.decide import Outcome
from holdfast.core.layout import Layout
from holdfast.engine.batch import CommitListener, ignore_commit
from holdfast.engine.lane import Lane
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.slow_event import SpareConnections
from holdfast.engine.sweeper import SweeperPool
from holdfast.runtime import db
from holdfast.runtime.supervision import TaskHealth


class Engine:
    def __init__(
        self, url: str, lanes: int, health: TaskHealth | None = None, on_commit: CommitListener = ignore_commit
    ) -> None:
        self._layouts = LayoutCache()
        connect = partial(db.connect_lane, url)
        self._spares = SpareConnections(connect, self._layouts, on_commit)
        self._sweepers = SweeperPool(connect, self._layouts, on_commit)
        health = health or TaskHealth()
        self._lanes = [
            Lane(connect, self._layouts, self._spares, health, f"lane-{n}", on_commit) for n in range(1, lanes + 1)
        ]

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()

    async def close(self) -> None:
        await asyncio.gather(*(lane.close() for lane in self._lanes))
        await self._spares.close()
        self._sweepers.close()

    @property
    def waiting(self) -> int:
        """How many commands wait in the lanes."""
        return sum(map(len, self._lanes))

    def submit(self, command: Command) -> "asyncio.Future[Outcome]":
        """Queue a command. All commands to one event go to the same lane, so that they share a batch."""
        return self._lanes[command.event[-1] % len(self._lanes)].submit(command)

    async def sweep(self, event: bytes) -> int:
        """Expire due holds and, if the event has ended, end its bookings, up to the limits of one batch. Returns how
        many bookings it ended. An event whose sweep fails does not delay the others."""
        return await self._sweepers.sweep(event)

    def cached_layout(self, event: bytes) -> Layout | None:
        """The layout that the last batch used. It may be outdated."""
        return self._layouts.cached(event)

    async def layouts(self, database: db.Database, revisions: Mapping[bytes, int]) -> dict[bytes, Layout]:
        """The layouts of these events. Those that the cache lacks are read from the database."""
        scope = database.event(*revisions) if len(revisions) == 1 else database.all_events
        return await self._layouts.get(scope, revisions)
