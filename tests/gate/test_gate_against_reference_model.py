"""The engine behind a gate against the reference model. Redis knows everything that was committed before each hold, so
every early refusal must be the one that the model expects."""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from msgspec import structs

from holdfast.core.commands import Command, PlaceHold, SeatItem
from holdfast.core.decide import Outcome
from holdfast.core.refusals import Refused
from holdfast.engine.engine import Engine
from holdfast.gate.redis_layer import RedisLayer
from holdfast.runtime import db
from holdfast.runtime.database_clock import DatabaseClock
from tests.engine.test_against_reference_model import (
    EventLifecycle,
    Order,
    Request,
    best_orders,
    orders,
    request_lists,
)
from tests.support.flaky_proxy import Cut, FlakyProxy
from tests.support.harness import IS_LONG, fresh_database
from tests.support.redis_process import RedisServer
from tests.support.reference_model import LABELS

EXAMPLES, STEPS = (100 if IS_LONG else 10), 25


class ModelClock(DatabaseClock):
    """The database of these tests tells the model's time, which stands still between two steps."""

    def __init__(self, lifecycle: "GatedLifecycle") -> None:
        super().__init__()
        self._lifecycle = lifecycle

    def now(self) -> datetime:
        return self._lifecycle.model.now


class GatedLifecycle(EventLifecycle):
    redis: ClassVar[RedisServer]
    early_refusals: ClassVar[int] = 0

    async def _start_engine(self) -> None:
        self.proxy = FlakyProxy(self.url)
        if not hasattr(self, "layer"):
            self.pool = await db.create_pool(self.url, 2)
            self.layer = RedisLayer(self.redis.url, db.Database(self.pool), ModelClock(self))
            self.layer.start_writer()
        self.engine = Engine(await self.proxy.open(), lanes=1, on_commit=self.layer.writer.add_batch)
        before = asyncio.all_tasks()
        self.engine.start()
        self.engine_tasks = asyncio.all_tasks() - before
        self.gate = self.layer.make_gate(self.engine)

    async def _outcomes(self, commands: Sequence[Command]) -> list[Outcome]:
        """One after the other, because Redis decides holds that race in another order than the engine would."""
        return [await self._outcome(command) for command in commands]

    async def _outcome(self, command: Command) -> Outcome:
        if not isinstance(command, PlaceHold):
            return await self.engine.submit(command)
        await self.layer.writer.wait_until_written(10)
        await self._follow()
        reached = False

        async def submit_to_engine(command: Command) -> Outcome:
            nonlocal reached
            reached = True
            return await submit(command)

        submit, self.engine.submit = self.engine.submit, submit_to_engine  # type: ignore[method-assign, assignment]
        try:
            outcome = await self.gate.submit(command)
        finally:
            self.engine.submit = submit  # type: ignore[method-assign]
        if not reached:
            type(self).early_refusals += 1
            # The engine refuses it as well, and its batch records the holds that the model knows to have expired.
            refused = await submit(command)
            assert isinstance(outcome, Refused)
            assert isinstance(refused, Refused)
            assert refused.refusal is outcome.refusal
        return outcome

    async def _follow(self) -> None:
        """Let Redis find all that was committed. Time stands still, so it would not look again on its own."""
        self.layer.follower.touch(self.org, self.event)
        await self.layer.event_changed(self.org, self.event)
        for _ in range(2):
            await self.layer.follower.run_once()
            await asyncio.gather(*self.layer.follower._builds.values())

    @rule(requests=request_lists, cut=st.sampled_from([Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT]))
    def lose_the_connection_at_the_commit(self, requests: list[Request], cut: Cut) -> None:
        """Past the gate, because what Redis refuses has no commit."""
        commands = [self.command(request) for request in requests]
        self.proxy.cut_next(cut)
        outcomes = self.run(super()._outcomes(commands))
        assert self.proxy.was_cut.is_set()
        self.compare(commands, outcomes, times=2 if cut is Cut.AFTER_COMMIT else 1)

    @rule(order=orders)
    def hold_as_somebody_new(self, order: Order) -> None:
        self.send(structs.replace(order, user=f"stranger-{secrets.token_hex(4)}"))

    @rule(label=st.sampled_from(LABELS))
    def hold_one_seat_as_somebody_new(self, label: str) -> None:
        self.send(Order(f"stranger-{secrets.token_hex(4)}", (SeatItem(label),)))

    @rule(order=best_orders)
    def hold_the_best_as_somebody_new(self, order: Order) -> None:
        self.send(structs.replace(order, user=f"stranger-{secrets.token_hex(4)}"))

    async def _end(self) -> None:
        await super()._end()
        await self.layer.close()
        await db.close_pool(self.pool)


@pytest.fixture(scope="module")
def shared_database(postgres: str) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


def test_the_gate_always_agrees_with_the_model(shared_database: str, shared_redis: RedisServer) -> None:
    class LifecycleInDatabase(GatedLifecycle):
        url = shared_database
        redis = shared_redis

    run_settings = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(LifecycleInDatabase, settings=run_settings)
    # In a few examples, it may happen that nobody asks for a taken seat.
    assert not IS_LONG or LifecycleInDatabase.early_refusals > 0
