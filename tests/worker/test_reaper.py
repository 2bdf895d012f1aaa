"""Reapers expire holds and wind up events: once, in bounded batches, and without blocking buyers."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import asyncpg
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from holdfast import sql
from holdfast.core.commands import Accepted, PoolItem
from holdfast.core.states import EventStatus
from holdfast.engine import load
from holdfast.engine.auditor import audit_all
from holdfast.engine.batch import SWEEP_MAX
from holdfast.engine.engine import Engine
from holdfast.engine.event_editor import set_status
from holdfast.engine.load import DUE_MAX
from holdfast.engine.sweeper import SIZES_MAX, SWEEPERS_MAX, SweepSizes
from holdfast.runtime import db
from holdfast.runtime.backoff import FAILURES_MAX, Backoff, FailureBackoff
from holdfast.worker.reaper import FAILED_MAX, FIRST, Reaper
from tests.support.engine_harness import (
    ACTOR,
    EventHandle,
    async_test,
    hold_many,
    lane_connection,
    new_event,
    new_hold_command,
    new_org,
    one_pool,
    poll_until,
    run_commands,
    sell_many,
    shift_clock,
)

HOUR = 3600
REAPERS = 6


def reaper_on(connection: db.Connection) -> Reaper:
    """A reaper that uses this connection until it breaks."""
    return Reaper(lambda: asyncio.sleep(0, connection))


async def _reap_all(connection: db.Connection) -> int:
    """Run passes until nothing is left to end, and return how many bookings this reaper ended."""
    reaper, ended = reaper_on(connection), 0
    while await connection.fetch(sql.worker.events_to_sweep, 1, FIRST, []):
        ended += await reaper.run_once()
    return ended


async def _statuses(connection: db.Connection, event: EventHandle) -> Counter[str]:
    rows = await connection.fetch("SELECT status, count(*) FROM booking WHERE event_id = $1 GROUP BY status", event.id)
    return Counter({row["status"]: row["count"] for row in rows})


async def _held_and_sold(connection: db.Connection, event: EventHandle) -> tuple[int, int]:
    """The held and sold counters of the event."""
    (row,) = await connection.fetch("SELECT sum(held), sum(sold) FROM pool WHERE event_id = $1", event.id)
    return row[0], row[1]


async def _check_audit(connection: db.Connection) -> None:
    _, findings = await audit_all(db.Database(connection))
    assert findings == []


@async_test
async def test_simultaneous_reapers_release_every_hold_exactly_once(database: str) -> None:
    events, holds = 12, 80
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(lane_connection(database)) for _ in range(REAPERS)]
        org = await new_org(connections[0])
        for _ in range(events):
            await hold_many(connections[0], await new_event(connections[0], org, pools=one_pool(holds)), holds)
        await shift_clock(connections[0], HOUR)
        ended = await asyncio.gather(*(_reap_all(connection) for connection in connections))
        assert sum(ended) == events * holds
        counts = await connections[0].fetch("SELECT count(*) FROM journal WHERE kind = 'expired' GROUP BY booking_id")
        assert [row["count"] for row in counts] == [1] * (events * holds)
        assert await connections[0].fetchval("SELECT sum(held + sold) FROM pool") == 0
        await _check_audit(connections[0])


@async_test
async def test_a_reaper_skips_a_locked_event_and_ends_the_others(database: str) -> None:
    async with lane_connection(database) as connection, lane_connection(database) as other:
        locked, free = [await new_event(connection, pools=one_pool(10)) for _ in range(2)]
        for event in (locked, free):
            await hold_many(connection, event, 5)
        await shift_clock(connection, HOUR)
        async with other.transaction():
            await other.fetch(sql.engine.lock, [locked.id])
            # A sweep that waits fails, instead of taking longer.
            await connection.execute("SET lock_timeout = '1ms'")
            with capture_logs() as logs:
                assert await reaper_on(connection).run_once() == 5
            assert [entry["event"] for entry in logs] == ["reaped"]
            assert await _statuses(connection, locked) == {"held": 5}
            assert await _statuses(connection, free) == {"expired": 5}
        assert await reaper_on(connection).run_once() == 5
        assert await _statuses(connection, locked) == {"expired": 5}


@async_test
async def test_due_holds_expire_in_bounded_batches(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(2 * DUE_MAX + 100))
        await hold_many(connection, event, 2 * DUE_MAX + 100)
        await shift_clock(connection, HOUR)
        reaper = reaper_on(connection)
        passes = [await reaper.run_once() for _ in range(4)]
        assert passes == [DUE_MAX, DUE_MAX, 100, 0]
        assert await _held_and_sold(connection, event) == (0, 0)
        await _check_audit(connection)


@async_test
async def test_an_event_full_of_due_holds_sells_without_a_reaper(database: str) -> None:
    capacity = 2 * DUE_MAX + 100
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(capacity))
        await hold_many(connection, event, capacity)
        await shift_clock(connection, HOUR)
        everything = structs.replace(new_hold_command(event), items=(PoolItem("places", capacity),))
        (outcome,) = await run_commands(connection, [everything])
        assert isinstance(outcome, Accepted)
        assert await _statuses(connection, event) == {"expired": capacity, "held": 1}
        assert await _held_and_sold(connection, event) == (capacity, 0)
        await _check_audit(connection)


@pytest.mark.parametrize(
    ("status", "price", "ended"),
    [
        (EventStatus.CANCELLED, 0, "cancelled"),
        (EventStatus.CANCELLED, 100, "refunded"),
        (EventStatus.COMPLETED, 100, "completed"),
    ],
)
@async_test
async def test_an_ended_event_is_wound_up_in_bounded_batches(
    database: str, status: EventStatus, price: int, ended: str
) -> None:
    count = 2 * SWEEP_MAX + 100
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(count, price))
        await sell_many(connection, event, count)
        await set_status(db.Database(connection), event.org, event.id, status, ACTOR)
        reaper = reaper_on(connection)
        passes = [await reaper.run_once() for _ in range(4)]
        assert passes == [SWEEP_MAX, SWEEP_MAX, 100, 0]
        assert await _statuses(connection, event) == {ended: count}
        assert await _held_and_sold(connection, event) == (0, count if status is EventStatus.COMPLETED else 0)
        await _check_audit(connection)


@async_test
async def test_bookings_with_many_lines_end_a_few_at_a_time(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SWEPT_LINES_MAX", 25)
    hall = [{"code": "hall", "seats": {"rows": ["A"], "numbers": 60}}]
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=hall, policy={"confirm_at_once": True})
        labels = [f"A-{number}" for number in range(1, 61)]
        await run_commands(connection, [new_hold_command(event, *labels[at : at + 10]) for at in range(0, 60, 10)])
        await set_status(db.Database(connection), event.org, event.id, EventStatus.CANCELLED, ACTOR)
        reaper = reaper_on(connection)
        assert [await reaper.run_once() for _ in range(3)] == [3, 3, 0]
        await _check_audit(connection)


@async_test
async def test_simultaneous_reapers_wind_up_a_cancelled_event_exactly_once(database: str) -> None:
    count = SWEEP_MAX + 100
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(lane_connection(database)) for _ in range(REAPERS)]
        event = await new_event(connections[0], pools=one_pool(count))
        await sell_many(connections[0], event, count)
        await set_status(db.Database(connections[0]), event.org, event.id, EventStatus.CANCELLED, ACTOR)
        ended = await asyncio.gather(*(_reap_all(connection) for connection in connections))
        assert sum(ended) == count
        assert await _statuses(connections[0], event) == {"refunded": count}
        await _check_audit(connections[0])


@async_test
async def test_holds_of_a_completed_event_expire_when_they_are_due(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(10))
        await hold_many(connection, event, 5)
        await set_status(db.Database(connection), event.org, event.id, EventStatus.COMPLETED, ACTOR)
        assert await reaper_on(connection).run_once() == 0
        await shift_clock(connection, HOUR)
        assert await reaper_on(connection).run_once() == 5
        assert await _statuses(connection, event) == {"expired": 5}
        await _check_audit(connection)


@async_test
async def test_an_event_with_broken_counters_does_not_stop_the_others(database: str) -> None:
    async with lane_connection(database) as connection:
        org = await new_org(connection)
        events = [await new_event(connection, org=org, pools=one_pool(10)) for _ in range(3)]
        for event in events:
            await hold_many(connection, event, 2)
        await connection.execute("UPDATE pool SET held = 0 WHERE event_id = $1", events[0].id)
        await shift_clock(connection, HOUR)
        assert await reaper_on(connection).run_once() == 4
        assert [await _statuses(connection, event) for event in events[1:]] == [Counter({"expired": 2})] * 2
        assert await _statuses(connection, events[0]) == Counter({"held": 2})


class FailingConnection:
    """A connection on which loading some events fails, as it does if it takes too long or uses up the memory."""

    def __init__(self, connection: db.Connection, failure: Callable[[Sequence[bytes], int], Exception | None]) -> None:
        self._connection = connection
        self._failure = failure

    async def fetchval(self, statement: str, *values: Any) -> Any:
        given = dict(zip(sql.engine.load.parameters, values, strict=True))
        error = self._failure(given["events"], given["ending_max"])
        if error is not None:
            raise error
        return await self._connection.fetchval(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def failing_reaper(url: str, failure: Callable[[Sequence[bytes], int], Exception | None]) -> Reaper:
    async def connect() -> db.Connection:
        return cast(db.Connection, FailingConnection(await db.connect_lane(url), failure))

    return Reaper(connect)


@pytest.mark.parametrize("error", [TimeoutError, asyncpg.ConnectionDoesNotExistError, asyncpg.QueryCanceledError])
@async_test
async def test_an_event_whose_sweep_takes_too_long_or_loses_the_connection_does_not_stop_the_others(
    database: str, error: type[Exception]
) -> None:
    async with lane_connection(database) as connection:
        org = await new_org(connection)
        events = [await new_event(connection, org=org, pools=one_pool(10)) for _ in range(4)]
        for event in events:
            await hold_many(connection, event, 2)
        await shift_clock(connection, HOUR)
        failing, failures = {events[0].id, events[2].id}, Counter[bytes]()

        def fail(loaded: Sequence[bytes], _: int) -> Exception | None:
            failures.update(failing.intersection(loaded))
            return error("slow") if failing.intersection(loaded) else None

        reaper = failing_reaper(database, fail)
        assert await reaper.run_once() == 4
        assert [await _statuses(connection, event) for event in events] == [{"held": 2}, {"expired": 2}] * 2
        assert await reaper.run_once() == 0
        assert failures == dict.fromkeys(failing, 1), "the events that failed have to wait"
        await reaper.close()


@async_test
async def test_a_few_of_the_events_that_failed_are_tried_again_after_all_others(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.reaper.RETRIES", Backoff((0,)))
    swept: list[bytes] = []
    async with lane_connection(database) as connection:
        org = await new_org(connection)
        made = [await new_event(connection, org=org, pools=one_pool(10)) for _ in range(FAILED_MAX + 2)]
        *broken, healthy = sorted(made, key=lambda event: event.id)

        def fail(loaded: Sequence[bytes], _: int) -> Exception | None:
            swept.extend(loaded)
            return None if healthy.id in loaded else asyncpg.QueryCanceledError("slow")

        reaper = failing_reaper(database, fail)
        for event in made:
            await hold_many(connection, event, 1)
        await shift_clock(connection, HOUR)
        assert await reaper.run_once() == 1
        await hold_many(connection, healthy, 1)
        await shift_clock(connection, 2 * HOUR)
        swept.clear()
        assert await reaper.run_once() == 1
        assert swept == [event.id for event in (healthy, *broken[:FAILED_MAX])]
        await reaper.close()


@async_test
async def test_a_reaper_without_a_database_fails_as_a_whole(database: str) -> None:
    """So that it backs off, and does not take every event for a broken one."""
    async with lane_connection(database) as connection:
        await hold_many(connection, await new_event(connection, pools=one_pool(10)), 2)
        await shift_clock(connection, HOUR)
        reaper = Reaper(lambda: db.connect_lane("postgresql://postgres@127.0.0.1:1/none"))
        with pytest.raises(ConnectionError):
            await reaper.run_once()


@async_test
async def test_an_event_that_is_too_costly_for_one_sweep_is_wound_up_in_smaller_ones(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.reaper.RETRIES", Backoff((0,)))
    count, affordable = 30, 10
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(count))
        await sell_many(connection, event, count)
        await set_status(db.Database(connection), event.org, event.id, EventStatus.CANCELLED, ACTOR)
        reaper = failing_reaper(database, lambda _, size: TimeoutError() if size > affordable else None)
        passes = [await reaper.run_once() for _ in range(20)]
        assert sum(passes) == count
        assert max(passes) <= affordable
        assert await _statuses(connection, event) == {"refunded": count}
        await reaper.close()


def test_a_sweep_shrinks_to_one_booking_and_grows_to_its_full_size_again() -> None:
    sizes, event, other = SweepSizes(), b"event", b"other"
    for _ in range(20):
        sizes.record_failure(event)
    assert (sizes.get(event), sizes.get(other)) == (1, SWEEP_MAX)
    grown = [sizes.get(event)]
    while grown[-1] < SWEEP_MAX:
        sizes.record_success(event)
        grown.append(sizes.get(event))
        assert len(grown) < 1_000
    assert grown == sorted(grown)
    sizes.record_failure(event)
    assert sizes.get(event) == SWEEP_MAX // 2


def test_the_memory_of_failed_sweeps_is_bounded() -> None:
    sizes, failures = SweepSizes(), FailureBackoff[int](Backoff((60,)))
    for number in range(SIZES_MAX + 100):
        sizes.record_failure(number.to_bytes(16))
        failures.record_failure(number)
    assert len(sizes._small) == SIZES_MAX
    assert len(failures.waiting()) == FAILURES_MAX
    assert (failures.has_failed(0), failures.has_failed(SIZES_MAX + 99)) == (False, True)


@async_test
async def test_sweeps_of_a_locked_event_do_not_hold_up_the_sweep_of_another(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(db._LANE_SETTINGS, "lock_timeout", "14s")
    monkeypatch.setattr("holdfast.engine.sweeper.WAIT_SECONDS", 60)
    engine = Engine(database, 1)
    async with lane_connection(database) as connection, lane_connection(database) as other:
        locked, free = [await new_event(connection, pools=one_pool(10)) for _ in range(2)]
        for event in (locked, free):
            await hold_many(connection, event, 5)
        await shift_clock(connection, HOUR)
        async with other.transaction():
            await other.fetch(sql.engine.lock, [locked.id])
            sweeps = [asyncio.create_task(engine.sweep(locked.id)) for _ in range(SWEEPERS_MAX + 2)]
            await poll_until(lambda: _is_anyone_waiting_for_a_lock(connection))
            assert await engine.sweep(free.id) == 5
            assert not any(sweep.done() for sweep in sweeps)
        assert sum(await asyncio.gather(*sweeps)) == 5
    await engine.close()


async def _is_anyone_waiting_for_a_lock(connection: db.Connection) -> bool:
    waiting: bool = await connection.fetchval(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')"
    )
    return waiting
