"""A lane answers every command, and no event or command in it can hold up the others."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from holdfast import sql
from holdfast.core.commands import Accepted, BestSeats, Command
from holdfast.core.event_schemas import EventChange
from holdfast.core.layout import Layout
from holdfast.core.refusals import Refusal, Refused
from holdfast.core.states import Verb
from holdfast.core.stock_schemas import PoolChange, SeatGrid
from holdfast.engine import batch as batches
from holdfast.engine import batch_runner, layout_cache, load, slow_event
from holdfast.engine import lane as lanes
from holdfast.engine.auditor import audit_all
from holdfast.engine.batch import run_batch
from holdfast.engine.batch_runner import BATCH_MAX, LINES_MAX, BatchRunner
from holdfast.engine.command_queue import CommandQueue, Waiting
from holdfast.engine.event_editor import change_event
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.load import DUE_MAX
from holdfast.runtime import db, ids
from holdfast.runtime.db import Connect
from holdfast.runtime.supervision import TaskHealth
from tests.support.engine_harness import (
    ACTOR,
    EventHandle,
    async_test,
    hold_many,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    new_payment_command,
    one_pool,
    poll_until,
    run_commands,
)
from tests.support.lane_harness import refusals_of, running_lane, submit_all

LONG_SECONDS = 60.0
EXPIRED = "SELECT count(*) FROM booking WHERE status = 'expired'"


class BrokenConnection:
    """A connection with a fault."""

    def __init__(self, connection: db.Connection) -> None:
        self.connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


class ClosedConnection(BrokenConnection):
    """The connection was closed while idle, and the client has not noticed yet."""

    async def execute(self, statement: str) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")


class LostBeforeCommit(BrokenConnection):
    """The COMMIT does not reach the database."""

    async def execute(self, statement: str) -> None:
        if statement == "COMMIT":
            self._lose()
        await self.connection.execute(statement)

    def _lose(self) -> None:
        self.connection.terminate()
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")


class LostAfterCommit(LostBeforeCommit):
    """The database commits, and its answer is lost."""

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement)
        if statement == "COMMIT":
            self._lose()


def _connect_to_broken_first(broken: type[BrokenConnection], url: str) -> Connect:
    """The first connection is broken, the next is not."""
    created: list[db.Connection] = []

    async def connect() -> db.Connection:
        connection = await db.connect_lane(url)
        created.append(connection)
        return cast(db.Connection, broken(connection)) if len(created) == 1 else connection

    return connect


@pytest.mark.parametrize("broken", [ClosedConnection, LostBeforeCommit, LostAfterCommit])
@async_test
async def test_a_batch_on_a_broken_connection_takes_effect_once(database: str, broken: type[BrokenConnection]) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(50))
        early = new_hold_command(event)
        async with running_lane(lambda: db.connect_lane(database)) as lane:
            await submit_all(lane, [early])
        commands: list[Command] = [
            new_action_command(event, early.booking, Verb.CONFIRM),
            *(new_hold_command(event) for _ in range(60)),
        ]
        async with running_lane(_connect_to_broken_first(broken, database)) as lane:
            with capture_logs() as logs:
                outcomes = await submit_all(lane, commands)
        assert [entry["event"] for entry in logs] == ["connection_lost"]
        assert refusals_of(outcomes) == [Refusal.SOLD_OUT] * 11
        done = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
        assert not any(outcome.replayed for outcome in done)
        rows = await connection.fetch("SELECT id, status FROM booking")
        assert {row["id"]: row["status"] for row in rows} == {o.booking.id: o.booking.status for o in done}
        assert await connection.fetchval("SELECT count(*) FROM journal WHERE kind = 'confirmed'") == 1
        assert (await audit_all(db.Database(connection)))[1] == []


@pytest.mark.parametrize(
    "poison", [{"details": "{not JSON"}, {"user": "\0"}, {"user": "\ud800"}], ids=["details", "NUL", "surrogate"]
)
@async_test
async def test_a_command_that_breaks_its_batch_fails_alone(database: str, poison: dict[str, str]) -> None:
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(connection, pools=one_pool(100), policy={"max_units_per_user": 1})
        commands = [new_hold_command(event) for _ in range(51)]
        commands[20] = new_hold_command(event, **poison)
        with capture_logs() as logs:
            outcomes = await submit_all(lane, commands)
        assert outcomes[20] == Refused(Refusal.INTERNAL)
        assert [entry["log_level"] for entry in logs if entry["event"] == "command_failed"] == ["error"]
        assert sum(isinstance(outcome, Accepted) for outcome in outcomes) == 50
        assert await connection.fetchval("SELECT held FROM pool") == 50
        assert (await audit_all(db.Database(connection)))[1] == []


@async_test
async def test_a_full_queue_refuses_new_commands_and_serves_the_rest(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "QUEUE_MAX", 10)
    connecting, reachable = asyncio.Event(), asyncio.Event()

    async def connect() -> db.Connection:
        connecting.set()
        await reachable.wait()
        return await db.connect_lane(database)

    async with lane_connection(database) as connection, running_lane(connect) as lane:
        event = await new_event(connection, pools=one_pool(100))
        first = lane.submit(new_hold_command(event))
        await connecting.wait()
        waiting = [lane.submit(new_hold_command(event)) for _ in range(10)]
        over = [lane.submit(new_hold_command(event)) for _ in range(5)]
        reachable.set()
        assert refusals_of(await asyncio.gather(*over)) == [Refusal.BUSY] * 5
        assert refusals_of(await asyncio.gather(first, *waiting)) == []
        assert await connection.fetchval("SELECT held FROM pool") == 11


@async_test
async def test_a_closing_lane_serves_its_queue_and_refuses_new_commands(database: str) -> None:
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(connection, pools=one_pool(1000))
        waiting = [lane.submit(new_hold_command(event)) for _ in range(3 * BATCH_MAX)]
        await lane.close()
        assert refusals_of(await asyncio.gather(*waiting)) == []
        assert refusals_of([await lane.submit(new_hold_command(event))]) == [Refusal.BUSY]
        assert await connection.fetchval("SELECT held FROM pool") == len(waiting)


def _fail_commits(error: Exception) -> tuple[type[BrokenConnection], list[str]]:
    """A connection on which every COMMIT fails, and the transactions that began on it."""
    begun: list[str] = []

    class FailingConnection(BrokenConnection):
        async def execute(self, statement: str) -> None:
            if statement.startswith("BEGIN"):
                begun.append(statement)
            if statement == "COMMIT":
                raise error
            await self.connection.execute(statement)

    return FailingConnection, begun


@pytest.mark.parametrize(
    ("error", "transactions_max"),
    [
        (asyncpg.DiskFullError("could not extend file"), 1),
        (asyncpg.DataError("nothing works"), 3 * batch_runner.FAILURES_MAX),
    ],
    ids=["full disk", "bug"],
)
@async_test
async def test_a_batch_that_cannot_succeed_is_given_up_early(
    database: str, error: Exception, transactions_max: int
) -> None:
    broken, begun = _fail_commits(error)
    async with (
        lane_connection(database) as connection,
        running_lane(_connect_to_broken_first(broken, database)) as lane,
    ):
        event = await new_event(connection, pools=one_pool(BATCH_MAX))
        with capture_logs():
            outcomes = await submit_all(lane, [new_hold_command(event) for _ in range(BATCH_MAX)])
        assert len(refusals_of(outcomes)) == BATCH_MAX
        assert 1 <= len(begun) <= transactions_max


@asynccontextmanager
async def _locked(connection: db.Connection, event: EventHandle) -> AsyncIterator[None]:
    async with connection.transaction():
        await connection.fetch(sql.engine.lock, [event.id])
        yield


@async_test
async def test_events_are_served_while_another_event_of_their_lane_is_locked(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LOCKED_SECONDS", LONG_SECONDS)
    async with lane_connection(database) as other, running_lane(lambda: db.connect_lane(database)) as lane:
        locked, *free = [await new_event(other, pools=one_pool(20)) for _ in range(4)]
        async with _locked(other, locked):
            waiting = [lane.submit(new_hold_command(locked)) for _ in range(5)]
            for _ in range(3):
                commands = [new_hold_command(event) for event in free for _ in range(5)]
                assert refusals_of(await submit_all(lane, commands)) == []
                waiting.append(lane.submit(new_hold_command(locked)))
            assert not any(answer.done() for answer in waiting)
        assert refusals_of(await asyncio.gather(*waiting)) == []
        assert (await audit_all(db.Database(other)))[1] == []


@async_test
async def test_commands_to_a_locked_event_are_refused_as_busy_at_their_deadline(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LOCKED_SECONDS", 0.3)
    async with lane_connection(database) as other, running_lane(lambda: db.connect_lane(database)) as lane:
        locked = await new_event(other, pools=one_pool(20))
        async with _locked(other, locked):
            commands = [new_hold_command(locked) for _ in range(5)]
            with capture_logs() as logs:
                assert refusals_of(await submit_all(lane, commands)) == [Refusal.BUSY] * 5
            assert sum(entry["refused"] for entry in logs if entry["event"] == "event_blocked") == 5
        monkeypatch.setattr(lanes, "LOCKED_SECONDS", LONG_SECONDS)
        assert refusals_of(await submit_all(lane, commands)) == []


@async_test
async def test_more_locked_events_than_spare_connections_are_all_refused_in_time(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LOCKED_SECONDS", 0.5)
    async with lane_connection(database) as other, running_lane(lambda: db.connect_lane(database)) as lane:
        events = [await new_event(other, pools=one_pool(5)) for _ in range(12)]
        async with other.transaction():
            await other.fetch(sql.engine.lock, [event.id for event in events])
            outcomes = await submit_all(lane, [new_hold_command(event) for event in events])
        assert refusals_of(outcomes) == [Refusal.BUSY] * len(events)


@async_test
async def test_an_event_that_does_not_exist_is_not_taken_for_a_locked_one(database: str) -> None:
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(connection)
        unknown = EventHandle(ids.new_id(), event.org)
        assert refusals_of(await submit_all(lane, [new_hold_command(unknown)])) == [Refusal.NOT_FOUND]


@async_test
async def test_events_are_served_while_a_large_layout_is_loaded(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_cache, "SMALL_SEATS_MAX", 10)
    loading, loaded = asyncio.Event(), asyncio.Event()
    load_layouts = layout_cache.load_layouts

    async def load_slowly(source: Any, events: list[bytes], known: Mapping[bytes, Layout]) -> list[Layout]:
        if large.id in events:
            loading.set()
            await loaded.wait()
        return await load_layouts(source, events, known)

    monkeypatch.setattr(layout_cache, "load_layouts", load_slowly)
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        small = await new_event(connection, pools=one_pool(100))
        large = await new_event(connection, pools=[{"code": "hall", "seats": {"rows": ["A", "B"], "numbers": 20}}])
        for revision in range(2):
            answer = lane.submit(new_hold_command(large, f"A-{revision + 1}"))
            await loading.wait()
            assert refusals_of(await submit_all(lane, [new_hold_command(small) for _ in range(5)])) == []
            assert not answer.done()
            loaded.set()
            assert isinstance(await answer, Accepted)
            loading.clear()
            loaded.clear()
            change = EventChange(block_seats=[f"B-{revision + 1}"])
            await change_event(db.Database(connection), large.org, large.id, change, ACTOR)


@async_test
async def test_an_event_with_many_due_holds_leaves_the_shared_batch(database: str) -> None:
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        crowded, other = [await new_event(connection, pools=one_pool(DUE_MAX + 10)) for _ in range(2)]
        await hold_many(connection, crowded, DUE_MAX + 10)
        await connection.execute("UPDATE booking SET expires_at = clock_timestamp()")
        late, in_time = await run_batch(connection, LayoutCache(), [new_hold_command(crowded), new_hold_command(other)])
        assert late is None
        assert isinstance(in_time, Accepted)
        assert await connection.fetchval(EXPIRED) == DUE_MAX
        outcomes = await submit_all(lane, [new_hold_command(event) for event in (crowded, other) for _ in range(9)])
        assert refusals_of(outcomes) == []
        assert await connection.fetchval(EXPIRED) == DUE_MAX + 10


@async_test
async def test_due_holds_with_many_lines_expire_in_several_batches(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of a hold cost time, so a batch counts them. An event leaves the batch if its holds do not all fit."""
    monkeypatch.setattr(load, "SWEPT_LINES_MAX", 25)
    seats = [{"code": "hall", "seats": {"rows": ["A", "B", "C"], "numbers": 20}}]
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        events = [await new_event(connection, pools=seats) for _ in range(2)]
        held = [f"{row}-{number}" for row in "ABC" for number in range(1, 21)]
        for event in events:
            holds = [new_hold_command(event, *held[at : at + 10]) for at in range(0, 60, 10)]
            assert refusals_of(await submit_all(lane, holds)) == []
        await connection.execute("UPDATE booking SET expires_at = clock_timestamp()")
        outcomes = await run_batch(connection, LayoutCache(), [new_hold_command(event, "A-1") for event in events])
        assert outcomes == [None, None]
        assert await connection.fetchval(EXPIRED) == 3
        holds = [new_hold_command(event, "C-20") for event in events]
        assert refusals_of(await submit_all(lane, holds)) == []
        assert await connection.fetchval(EXPIRED) == 12


@async_test
async def test_the_payments_of_due_holds_count_as_lines(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SWEPT_LINES_MAX", 25)
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(10))
        held = await hold_many(connection, event, 3)
        payments = [new_payment_command(event, booking) for booking in held]
        assert refusals_of(await run_commands(connection, payments)) == []
        await connection.execute("UPDATE booking SET expires_at = clock_timestamp()")
        assert await run_batch(connection, LayoutCache(), [new_hold_command(event)]) == [None]
        assert await connection.fetchval(EXPIRED) == 2


@async_test
async def test_a_batch_stops_when_its_commands_have_changed_many_lines(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Confirmations of large bookings cost as much as the holds did. Those that do not fit follow in the next batch."""
    monkeypatch.setattr(batches, "DECIDED_LINES_MAX", 25)
    seats = [{"code": "hall", "seats": {"rows": ["A", "B", "C"], "numbers": 20}}]
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        event, other = [await new_event(connection, pools=seats) for _ in range(2)]
        labels = [f"{row}-{number}" for row in "ABC" for number in range(1, 21)]
        holds = [new_hold_command(event, *labels[at : at + 10]) for at in range(0, 60, 10)]
        assert refusals_of(await submit_all(lane, holds)) == []
        confirms = [new_action_command(event, hold.booking, Verb.CONFIRM) for hold in holds]
        outcomes = await run_batch(connection, LayoutCache(), [*confirms, new_hold_command(other, "A-1")])
        assert [outcome is None for outcome in outcomes[:6]] == [False] * 3 + [True] * 3
        assert refusals_of(await submit_all(lane, [*confirms, new_hold_command(other, "A-2")])) == []
        assert await connection.fetchval("SELECT count(*) FROM booking WHERE status = 'confirmed'") == 6


@async_test
async def test_a_batch_of_several_events_looks_at_a_limited_number_of_seats(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "SEATS_LOADED_MAX", 30)
    seats = [{"code": "hall", "seats": {"rows": ["A"], "numbers": 20}}]
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        events = [await new_event(connection, pools=seats) for _ in range(3)]
        best = [
            structs.replace(new_hold_command(event), items=(), best_available=BestSeats("hall", 1)) for event in events
        ]
        outcomes = await run_batch(connection, LayoutCache(), best)
        assert sorted(outcome is None for outcome in outcomes) == [False, True, True]
        assert refusals_of(await submit_all(lane, best)) == []


@async_test
async def test_an_event_with_very_many_due_holds_gives_its_connection_back(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(3 * DUE_MAX))
        await hold_many(connection, event, 2 * DUE_MAX + 10)
        await connection.execute("UPDATE booking SET expires_at = clock_timestamp()")
        assert await run_batch(connection, LayoutCache(), [new_hold_command(event)], lock_seconds=0.001) == [None]
        assert await connection.fetchval(EXPIRED) in (DUE_MAX, 2 * DUE_MAX)


@async_test
async def test_seats_are_loaded_again_only_if_they_have_changed(database: str) -> None:
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(connection, pools=[{"code": "hall", "seats": {"rows": ["A"], "numbers": 20}}])

        async def layout_after(change: EventChange, seat: str) -> Layout:
            await change_event(db.Database(connection), event.org, event.id, change, ACTOR)
            outcome = await lane.submit(new_hold_command(event, seat))
            assert isinstance(outcome, Accepted)
            return outcome.layout

        first = await layout_after(EventChange(title="First"), "A-1")
        renamed = await layout_after(EventChange(title="Second"), "A-2")
        assert renamed.revision > first.revision
        assert renamed.seat_plan is first.seat_plan
        blocked = await layout_after(EventChange(block_seats=["A-20"]), "A-3")
        assert blocked.seat_by_label["A-20"].blocked
        rows = SeatGrid(rows=["B"], numbers=2)
        extended = await layout_after(EventChange(pools=[PoolChange(code="balcony", seats=rows)]), "B-1")
        assert len(extended.seats) == 22


@async_test
async def test_commands_that_wait_keep_their_order_when_their_event_is_set_apart(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LOCKED_SECONDS", LONG_SECONDS)
    async with lane_connection(database) as other, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(other, pools=one_pool(1_000))
        async with _locked(other, event):
            answers = [lane.submit(new_hold_command(event)) for _ in range(BATCH_MAX + 50)]
            await poll_until(lambda: bool(lane._slow))
            answers += [lane.submit(new_hold_command(event)) for _ in range(50)]
        outcomes = await asyncio.gather(*answers)
        versions = [outcome.booking.version for outcome in outcomes if isinstance(outcome, Accepted)]
        assert versions == sorted(versions)
        assert len(versions) == len(answers)


@async_test
async def test_a_slow_event_returns_to_its_lane(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.slow_event.APART_SECONDS", 0.05)
    async with lane_connection(database) as other, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(other, pools=one_pool(100))
        async with _locked(other, event):
            answer = lane.submit(new_hold_command(event))
            await poll_until(lambda: bool(lane._slow))
        assert isinstance(await answer, Accepted)
        await poll_until(lambda: not lane._slow)
        assert refusals_of(await submit_all(lane, [new_hold_command(event)])) == []


def _waiting(event: bytes) -> Waiting:
    command = new_hold_command(EventHandle(event, event))
    return Waiting(command, asyncio.get_running_loop().create_future(), 0)


@async_test
async def test_a_busy_event_leaves_room_in_every_batch_for_the_others() -> None:
    queue = CommandQueue()
    busy, *others = [bytes([number] * 16) for number in range(5)]
    for _ in range(1_000):
        queue.add(_waiting(busy))
    for event in others:
        for _ in range(3):
            queue.add(_waiting(event))
    batch = [waiting.command.event for waiting in queue.take(BATCH_MAX, LINES_MAX)]
    assert len(batch) == BATCH_MAX
    assert all(batch.count(event) == 3 for event in others)
    assert len(queue) == 1_000 + 3 * len(others) - BATCH_MAX


@async_test
async def test_every_event_gets_its_turn_if_more_events_wait_than_fit_into_a_batch() -> None:
    queue = CommandQueue()
    events = [number.to_bytes(16, "big") for number in range(10)]
    for event in events:
        queue.add(_waiting(event))
        queue.add(_waiting(event))
    rounds = [[waiting.command.event for waiting in queue.take(4, LINES_MAX)] for _ in range(5)]
    assert [event for batch in rounds for event in batch] == events * 2
    assert len(queue) == 0


@async_test
async def test_a_batch_has_fewer_commands_if_they_are_large() -> None:
    queue = CommandQueue()
    event = EventHandle(bytes(16), bytes(16))
    seats = [f"A-{number}" for number in range(200)]
    for _ in range(20):
        queue.add(Waiting(new_hold_command(event, *seats), asyncio.get_running_loop().create_future(), 0))
    sizes = []
    while queue:
        sizes.append(len(queue.take(BATCH_MAX, LINES_MAX)))
    assert sum(sizes) == 20
    assert max(sizes) == -(-LINES_MAX // 200)


@pytest.mark.parametrize("limit", ["QUEUE_MAX", "EVENT_QUEUE_MAX"])
@async_test
async def test_a_full_queue_has_room_for_money(database: str, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(connection, pools=one_pool(100))
        hold = new_hold_command(event)
        await submit_all(lane, [hold])
        monkeypatch.setattr(lanes, limit, 10)
        outcomes = await submit_all(
            lane,
            [*(new_hold_command(event) for _ in range(20)), new_action_command(event, hold.booking, Verb.CONFIRM)],
        )
        assert refusals_of(outcomes) == [Refusal.BUSY] * 10
        assert isinstance(outcomes[-1], Accepted)


@async_test
async def test_one_event_cannot_fill_the_queue_of_its_lane(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "EVENT_QUEUE_MAX", 10)
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        busy, other = [await new_event(connection, pools=one_pool(100)) for _ in range(2)]
        crowd = [lane.submit(new_hold_command(busy)) for _ in range(50)]
        assert isinstance(await lane.submit(new_hold_command(other)), Accepted)
        assert refusals_of(await asyncio.gather(*crowd)) == [Refusal.BUSY] * 40


@pytest.mark.parametrize("limit", ["QUEUE_MAX", "EVENT_QUEUE_MAX"])
@async_test
async def test_commands_to_a_locked_event_count_in_the_queue_of_its_lane(
    database: str, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(lanes, "LOCKED_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(lanes, limit, 10)
    async with lane_connection(database) as other, running_lane(lambda: db.connect_lane(database)) as lane:
        locked, free = [await new_event(other, pools=one_pool(20)) for _ in range(2)]
        async with _locked(other, locked):
            waiting = [lane.submit(new_hold_command(locked)) for _ in range(10)]
            await poll_until(lambda: sum(map(len, lane._slow.values())) == 10)
            full = free if limit == "QUEUE_MAX" else locked
            assert refusals_of([await lane.submit(new_hold_command(full))]) == [Refusal.BUSY]
        assert refusals_of(await asyncio.gather(*waiting)) == []


@async_test
async def test_a_batch_of_a_slow_event_has_fewer_commands_if_they_are_large(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LOCKED_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(slow_event, "LINES_MAX", 3)
    sizes: list[int] = []
    serve = BatchRunner.serve

    async def measure(
        runner: BatchRunner, batch: Sequence[Waiting], lock_seconds: float | None = None
    ) -> list[Waiting]:
        if lock_seconds is not None:
            sizes.append(len(batch))
        return await serve(runner, batch, lock_seconds)

    monkeypatch.setattr(BatchRunner, "serve", measure)
    async with lane_connection(database) as other, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(other, pools=one_pool(20))
        async with _locked(other, event):
            answers = [lane.submit(new_hold_command(event)) for _ in range(10)]
            await poll_until(lambda: sum(map(len, lane._slow.values())) == 10)
        assert refusals_of(await asyncio.gather(*answers)) == []
    assert max(sizes) == 3


@async_test
async def test_a_slow_event_that_fails_refuses_its_commands_and_returns_to_its_lane(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LOCKED_SECONDS", LONG_SECONDS)
    async with lane_connection(database) as other, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(other, pools=one_pool(20))
        async with _locked(other, event):
            with monkeypatch.context() as patched, capture_logs() as logs:
                patched.setattr(slow_event.SlowEvent, "_serve_batch", _raise)
                outcomes = await submit_all(lane, [new_hold_command(event) for _ in range(5)])
            assert refusals_of(outcomes) == [Refusal.BUSY] * 5
            assert [entry["event"] for entry in logs] == ["slow_event_failed"]
        assert refusals_of(await submit_all(lane, [new_hold_command(event)])) == []


@async_test
async def test_a_lane_that_dies_refuses_its_queue_and_runs_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    health, serve, failures = TaskHealth(), BatchRunner.serve, itertools.count()

    async def fail_once(runner: BatchRunner, batch: Sequence[Waiting]) -> list[Waiting]:
        return await serve(runner, batch) if next(failures) else await _raise()

    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database), health) as lane:
        event = await new_event(connection, pools=one_pool(1_000))
        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr(BatchRunner, "serve", fail_once)
            outcomes = await submit_all(lane, [new_hold_command(event) for _ in range(2 * BATCH_MAX)])
        assert refusals_of(outcomes) == [Refusal.BUSY] * (2 * BATCH_MAX)
        assert "task_failed" in [entry["event"] for entry in logs]
        assert refusals_of(await submit_all(lane, [new_hold_command(event)])) == []
        (report,) = health.reports
        assert report.failures >= 1
        assert report.is_running


async def _raise(*_: object) -> list[Waiting]:
    raise RuntimeError("a bug")
