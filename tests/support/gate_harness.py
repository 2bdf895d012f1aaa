"""The engine behind a gate, in process, on a real PostgreSQL and a real Redis."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.core.commands import PlaceHold
from holdfast.core.decide import Outcome
from holdfast.engine.engine import Engine
from holdfast.gate.entries import EventKeys
from holdfast.gate.redis_layer import RedisLayer
from holdfast.gate.seat_gate import SeatGate
from holdfast.runtime import db
from holdfast.runtime.database_clock import DatabaseClock
from tests.support.engine_harness import EventHandle, new_event, new_hold_command, poll_until
from tests.support.harness import connection_to
from tests.support.redis_process import RedisServer

SETTLE_SECONDS = 10
PATIENT_SECONDS = 5.0


class Gated:
    """One process: an engine, and the gate in front of it."""

    def __init__(self, url: str, pool: db.Pool, engine: Engine, layer: RedisLayer, redis: RedisServer) -> None:
        self.url = url
        self.pool = pool
        self.engine = engine
        self.layer = layer
        self.gate: SeatGate = layer.make_gate(engine)
        self.redis = redis

    async def new_event(self, **changes: Any) -> EventHandle:
        async with connection_to(self.url) as connection:
            return await new_event(connection, **changes)

    async def hold(self, event: EventHandle, *seats: str, user: str = "") -> Outcome:
        return await self.gate.submit(new_hold_command(event, *seats, user=user))

    async def submit(self, command: PlaceHold) -> Outcome:
        return await self.gate.submit(command)

    async def settle(self) -> None:
        """Wait until Redis has heard of everything that was committed."""
        await self.layer.writer.wait_until_written(SETTLE_SECONDS)

    async def wake(self, event: EventHandle) -> None:
        """Wait until Redis knows the event well enough to refuse holds. The first hold makes the process load it."""
        if self.engine.cached_layout(event.id) is None:
            await self.engine.layouts(db.Database(self.pool), {event.id: await self._revision(event)})
        self.layer.follower.touch(event.org, event.id)
        await poll_until(lambda: self.state(event).get("at") is not None)

    async def _revision(self, event: EventHandle) -> int:
        revision: int = await self.pool.fetchval("SELECT revision FROM event WHERE id = $1", event.id)
        return revision

    def state(self, event: EventHandle) -> dict[str, str]:
        found: Any = self.redis.client().hgetall(EventKeys(event.org, event.id).state)
        return dict(found)

    def entry(self, event: EventHandle, label: str) -> dict[str, Any] | None:
        value: Any = self.redis.client().get(EventKeys(event.org, event.id).seat(label))
        entry: dict[str, Any] | None = json.loads(value) if value else None
        return entry if entry is not None and entry["state"] != "free" else None


@asynccontextmanager
async def running_gate(
    url: str,
    redis: RedisServer,
    clock: DatabaseClock | None = None,
    *,
    is_started: bool = True,
    is_patient: bool = True,
) -> AsyncIterator[Gated]:
    """Without `is_started`, nothing happens in the background, as in a process that hangs. With `is_patient`, a Redis
    on a busy machine may take longer than a buyer would wait."""
    pool = await db.create_pool(url, 4)
    layer = RedisLayer(redis.url, db.Database(pool), clock)
    if is_patient:
        layer._requests.budget_seconds = layer._background.budget_seconds = PATIENT_SECONDS
    engine = Engine(url, lanes=1, on_commit=layer.writer.add_batch)
    engine.start()
    if is_started:
        layer.start([])
    try:
        yield Gated(url, pool, engine, layer, redis)
    finally:
        await engine.close()
        await layer.close()
        await db.close_pool(pool)


async def hold_all(gated: Gated, commands: list[PlaceHold]) -> list[Outcome]:
    return list(await asyncio.gather(*[gated.submit(command) for command in commands]))
