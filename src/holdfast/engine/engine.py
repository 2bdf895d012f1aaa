"""The engine of one process: its lanes, and which event goes to which lane."""

import asyncio
from collections.abc import Mapping

from holdfast.core.commands import Command
from holdfast.core.decide import Outcome
from holdfast.core.layout import Layout
from holdfast.engine.batch import sweep
from holdfast.engine.lane import Lane
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime import db


class Engine:
    def __init__(self, url: str, lanes: int) -> None:
        self._url = url
        self._layouts = LayoutCache()
        self._sweeper: db.Connection | None = None
        self._sweeping = asyncio.Lock()
        self._lanes = [Lane(lambda: db.connect_lane(url), self._layouts) for _ in range(lanes)]

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()

    async def close(self) -> None:
        await asyncio.gather(*(lane.close() for lane in self._lanes))
        if self._sweeper is not None:
            self._sweeper.terminate()

    def submit(self, command: Command) -> "asyncio.Future[Outcome]":
        """Queue a command. All commands to one event go to the same lane, so that they share a batch."""
        return self._lanes[command.event[-1] % len(self._lanes)].submit(command)

    async def sweep(self, event: bytes) -> int:
        """Expire due holds and, if the event has ended, end its bookings, up to the limits of one batch. Returns how
        many bookings it ended."""
        async with self._sweeping:
            if self._sweeper is None or self._sweeper.is_closed():
                self._sweeper = await db.connect_lane(self._url)
            return await sweep(self._sweeper, self._layouts, event)

    async def layouts(self, database: db.Database, revisions: Mapping[bytes, int]) -> dict[bytes, Layout]:
        """The layouts of these events. Those that the cache lacks are read from the database."""
        scope = database.event(*revisions) if len(revisions) == 1 else database.all_events
        return await self._layouts.get(scope, revisions)
