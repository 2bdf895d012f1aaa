"""Calls to Redis: what counts as a failure, and how long anybody waits."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.gate import acquire_queue
from holdfast.gate.acquire_queue import UNASKED, AcquireQueue, Ask
from holdfast.gate.circuit_breaker import FAILURES_MAX, BreakerState, CircuitBreaker
from holdfast.gate.redis_client import CONNECTIONS_MAX, Command, RedisCalls, RedisUrl, UnavailableError, open_client
from holdfast.runtime import ids
from holdfast.runtime.database_clock import DatabaseClock
from tests.support.engine_harness import async_test, poll_until
from tests.support.gate_harness import running_gate
from tests.support.redis_process import RedisServer


@async_test
async def test_more_calls_at_once_than_connections_are_no_failures(shared_redis: RedisServer) -> None:
    calls = RedisCalls(open_client(RedisUrl.parse(shared_redis.url)), CircuitBreaker(), budget_seconds=10)
    await asyncio.gather(*[calls.run([("PING",)]) for _ in range(10 * CONNECTIONS_MAX)])
    assert calls.breaker.report.failures == 0
    await calls.close()


class SlowCalls(RedisCalls):
    """A Redis that answers each call shortly before its time is up."""

    async def _execute(self, commands: Sequence[Command]) -> list[Any]:
        await asyncio.sleep(0.8 * self.budget_seconds)
        return await super()._execute(commands)


@async_test
async def test_nobody_waits_for_more_than_two_slow_calls(
    shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acquire_queue, "REQUESTS_MAX", 1)
    calls = SlowCalls(open_client(RedisUrl.parse(shared_redis.url)), CircuitBreaker(), budget_seconds=0.5)
    clock = DatabaseClock()
    clock.observe(datetime.now(UTC))
    queue = AcquireQueue(calls, clock)
    org, event = ids.new_id(), ids.new_id()
    asks = [Ask((f"A-{number}",), f"u{number}", "b", (f"user:u{number}",), None, 0, 1) for number in range(20)]
    answers = await asyncio.gather(*[queue.submit(org, event, ask) for ask in asks])
    assert sum(answer == UNASKED for answer in answers) >= 17
    assert answers[0] != UNASKED
    await calls.close()


@async_test
async def test_a_message_alone_does_not_close_the_breaker(database: str, redis: RedisServer) -> None:
    """A full Redis still passes on messages."""
    async with running_gate(database, redis) as gated:
        client = redis.client()
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        for _ in range(FAILURES_MAX):
            with pytest.raises(UnavailableError):
                await gated.layer._background.run([("SET", "key", "value")])
        gated.layer.breaker._retry_at = 0
        gated.layer.writer.add_changed_event(ids.new_id())
        await gated.layer.event_changed(ids.new_id(), ids.new_id())
        await gated.settle()
        assert gated.layer.breaker.report.state is not BreakerState.CLOSED
        client.config_set("maxmemory", "0")
        gated.layer.breaker._retry_at = 0
        await poll_until(lambda: gated.layer.breaker.is_closed, 30)


@async_test
async def test_the_breaker_of_an_idle_process_closes(database: str, redis: RedisServer) -> None:
    async with running_gate(database, redis) as gated:
        redis.kill()
        for _ in range(FAILURES_MAX):
            with pytest.raises(UnavailableError):
                await gated.layer._background.run([("SET", "key", "value")])
        assert not gated.layer.breaker.is_closed
        redis.start()
        await poll_until(lambda: gated.layer.breaker.is_closed, 60)
