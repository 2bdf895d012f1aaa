"""A batch reads the clock after it has its lock, and takes locks in an order that cannot deadlock. Beside each promise
is a control without it, which fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from holdfast import sql
from holdfast.core.commands import Accepted
from holdfast.core.decide import Outcome
from holdfast.core.refusals import Refusal, Refused
from holdfast.core.states import Verb
from holdfast.engine.batch import run_batch
from holdfast.engine.engine import Engine
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime import db
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    is_waiting_for_lock,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    new_org,
    one_pool,
    poll_until,
    run_commands,
)
from tests.support.lane_harness import refusals_of

LOCK_SECONDS = 30
# The clock as it was before the batch waited for its lock.
EARLY_CLOCK = (
    "CREATE OR REPLACE FUNCTION holdfast_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE "
    "AS 'SELECT transaction_timestamp()'"
)
# The events in the order in which the batch names them.
UNSORTED = sql.engine.lock.replace("ORDER BY event.id", "ORDER BY array_position($1::uuid[], event.id)")


async def _confirm_while_the_hold_expires(url: str, *, clock: str | None = None) -> Outcome | None:
    """A batch that confirms a hold waits for the event's lock. The hold expires before another session releases it."""
    async with lane_connection(url) as other, lane_connection(url) as waiting, lane_connection(url) as observer:
        event = await new_event(other, pools=one_pool(1), policy={"late_grace_seconds": 0})
        hold = new_hold_command(event)
        await run_commands(other, [hold])
        if clock is not None:
            await other.execute(clock)
        async with other.transaction():
            await other.fetch(sql.engine.lock, [event.id])
            confirm = new_action_command(event, hold.booking, Verb.CONFIRM)
            batch = asyncio.create_task(run_batch(waiting, LayoutCache(), [confirm], LOCK_SECONDS))
            await poll_until(lambda: is_waiting_for_lock(observer, waiting.get_server_pid()))
            await other.execute("UPDATE booking SET expires_at = clock_timestamp()")
        (outcome,) = await batch
        return outcome


@async_test
async def test_a_hold_that_expires_while_its_batch_waits_for_the_lock_has_expired(database: str) -> None:
    outcome = await _confirm_while_the_hold_expires(database)
    assert isinstance(outcome, Refused)
    assert outcome.refusal is Refusal.HOLD_EXPIRED


@async_test
async def test_a_clock_that_is_read_before_the_lock_accepts_an_expired_hold(database: str) -> None:
    assert isinstance(await _confirm_while_the_hold_expires(database, clock=EARLY_CLOCK), Accepted)


@asynccontextmanager
async def _first_of_two_locked(
    url: str,
) -> AsyncIterator[tuple[db.Connection, db.Connection, EventHandle, EventHandle]]:
    """One session has the lock of the event that sorts first, and another one is about to lock both."""
    async with lane_connection(url) as one, lane_connection(url) as two:
        first, second = sorted([await new_event(one) for _ in range(2)], key=lambda event: event.id)
        # A session looks for a deadlock once. The one that waits last finds it.
        await one.execute("SET deadlock_timeout = '50ms'; SET lock_timeout = 0")
        await two.execute("SET deadlock_timeout = '60s'; SET lock_timeout = 0")
        await one.execute("BEGIN")
        await one.fetch(sql.engine.lock, [first.id])
        yield one, two, first, second


@async_test
async def test_a_batch_that_waits_for_an_event_has_locked_none_that_sorts_after_it(database: str) -> None:
    async with _first_of_two_locked(database) as (one, two, first, second), lane_connection(database) as observer:
        await two.execute("BEGIN")
        both = asyncio.create_task(two.fetch(sql.engine.lock, [second.id, first.id]))
        await poll_until(lambda: is_waiting_for_lock(observer, two.get_server_pid()))
        assert len(await one.fetch(sql.engine.lock_if_free, [second.id])) == 1
        await one.execute("COMMIT")
        assert len(await both) == 2
        await two.execute("COMMIT")


@async_test
async def test_locks_in_the_order_of_the_request_deadlock(database: str) -> None:
    async with _first_of_two_locked(database) as (one, two, first, second), lane_connection(database) as observer:
        await two.execute("BEGIN")
        both = asyncio.create_task(two.fetch(UNSORTED, [second.id, first.id]))
        await poll_until(lambda: is_waiting_for_lock(observer, two.get_server_pid()))
        with pytest.raises(asyncpg.DeadlockDetectedError):
            await one.fetch(sql.engine.lock, [second.id])
        await one.execute("ROLLBACK")
        assert len(await both) == 2
        await two.execute("COMMIT")


@async_test
async def test_a_batch_of_several_events_skips_a_locked_one_and_waits_for_no_lock(database: str) -> None:
    async with lane_connection(database) as other, lane_connection(database) as connection:
        locked, free = [await new_event(other, pools=one_pool(1)) for _ in range(2)]
        # A batch that waits fails, instead of taking longer.
        await connection.execute("SET lock_timeout = '1ms'")
        async with other.transaction():
            await other.fetch(sql.engine.lock, [locked.id])
            outcomes = await run_batch(connection, LayoutCache(), [new_hold_command(locked), new_hold_command(free)])
        assert outcomes[0] is None
        assert isinstance(outcomes[1], Accepted)


@async_test
async def test_two_processes_that_sell_the_same_events_in_opposite_order_never_deadlock(database: str) -> None:
    engines = [Engine(database, lanes=1) for _ in range(2)]
    for engine in engines:
        engine.start()
    async with lane_connection(database) as connection:
        org = await new_org(connection)
        events = [await new_event(connection, org, pools=one_pool(1_000)) for _ in range(8)]
        for _ in range(20):
            answers = [engines[0].submit(new_hold_command(event)) for event in events]
            answers += [engines[1].submit(new_hold_command(event)) for event in reversed(events)]
            assert refusals_of(await asyncio.gather(*answers)) == []
        await asyncio.gather(*(engine.close() for engine in engines))
        assert await connection.fetchval("SELECT sum(held) FROM pool") == 20 * 2 * len(events)
        assert await _count_deadlocks(connection) == 0


async def _count_deadlocks(connection: db.Connection) -> int:
    await connection.execute("SELECT pg_stat_force_next_flush()")
    count: int = await connection.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    return count
