"""A lane without HTTP."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from holdfast.core.commands import Command
from holdfast.core.decide import Outcome
from holdfast.core.refusals import Refusal, Refused
from holdfast.engine.batch import CommitListener, ignore_commit
from holdfast.engine.lane import Lane
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.slow_event import SpareConnections
from holdfast.runtime.db import Connect
from holdfast.runtime.supervision import TaskHealth


@asynccontextmanager
async def running_lane(
    connect: Connect, health: TaskHealth | None = None, on_commit: CommitListener = ignore_commit
) -> AsyncIterator[Lane]:
    layouts = LayoutCache()
    spares = SpareConnections(connect, layouts, on_commit)
    lane = Lane(connect, layouts, spares, health or TaskHealth(), on_commit=on_commit)
    lane.start()
    try:
        yield lane
    finally:
        await lane.close()
        await spares.close()


async def submit_all(lane: Lane, commands: Sequence[Command]) -> list[Outcome]:
    """Submit all commands at once, so that they share batches."""
    return list(await asyncio.gather(*[lane.submit(command) for command in commands]))


def refusals_of(outcomes: Sequence[Outcome]) -> list[Refusal]:
    return [outcome.refusal for outcome in outcomes if isinstance(outcome, Refused)]
