"""Reapers expire holds and wind up events: once, in bounded batches, and without blocking buyers."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from msgspec import structs

from holdfast import sql
from holdfast.core.commands import Accepted, PoolItem
from holdfast.core.states import EventStatus
from holdfast.engine.auditor import audit_all
from holdfast.engine.batch import ENDINGS_MAX
from holdfast.engine.event_editor import set_status
from holdfast.engine.load import DUE_MAX
from holdfast.runtime import db
from holdfast.worker.reaper import FIRST, Reaper
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
    run_commands,
    shift_clock,
)

HOUR = 3600
REAPERS = 6


async def _reap_all(connection: db.Connection) -> int:
    """Run passes until nothing is left to end, and return how many bookings this reaper ended."""
    reaper, ended = Reaper(), 0
    while await connection.fetch(sql.worker.events_to_sweep, 1, FIRST):
        ended += await reaper.run_once(connection)
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
            await connection.execute("SET lock_timeout = '1ms'")
            assert await Reaper().run_once(connection) == 5
            assert await _statuses(connection, locked) == {"held": 5}
            assert await _statuses(connection, free) == {"expired": 5}
        assert await Reaper().run_once(connection) == 5
        assert await _statuses(connection, locked) == {"expired": 5}


@async_test
async def test_due_holds_expire_in_bounded_batches(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(2 * DUE_MAX + 100))
        await hold_many(connection, event, 2 * DUE_MAX + 100)
        await shift_clock(connection, HOUR)
        reaper = Reaper()
        passes = [await reaper.run_once(connection) for _ in range(4)]
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
    count = 2 * ENDINGS_MAX + 100
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(count, price), policy={"confirm_at_once": True})
        await hold_many(connection, event, count)
        await set_status(db.Database(connection), event.org, event.id, status, ACTOR)
        reaper = Reaper()
        passes = [await reaper.run_once(connection) for _ in range(4)]
        assert passes == [ENDINGS_MAX, ENDINGS_MAX, 100, 0]
        assert await _statuses(connection, event) == {ended: count}
        assert await _held_and_sold(connection, event) == (0, count if status is EventStatus.COMPLETED else 0)
        await _check_audit(connection)


@async_test
async def test_simultaneous_reapers_wind_up_a_cancelled_event_exactly_once(database: str) -> None:
    count = ENDINGS_MAX + 100
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(lane_connection(database)) for _ in range(REAPERS)]
        event = await new_event(connections[0], pools=one_pool(count), policy={"confirm_at_once": True})
        await hold_many(connections[0], event, count)
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
        assert await Reaper().run_once(connection) == 0
        await shift_clock(connection, HOUR)
        assert await Reaper().run_once(connection) == 5
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
        assert await Reaper().run_once(connection) == 4
        assert [await _statuses(connection, event) for event in events[1:]] == [Counter({"expired": 2})] * 2
        assert await _statuses(connection, events[0]) == Counter({"held": 2})
