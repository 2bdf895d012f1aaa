"""The control: two batches load the same event before either saves it, which the event's lock otherwise prevents.
Without lock and schema they sell one unit twice, and each guard of the schema alone stops them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from holdfast import sql
from holdfast.core.commands import Accepted, Command
from holdfast.core.decide import Outcome, decide
from holdfast.core.refusals import Refusal, Refused
from holdfast.engine.auditor import audit_event
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.load import LoadedBatch, load_batch
from holdfast.engine.rows import LostUpdateError
from holdfast.engine.save import save
from holdfast.runtime import db
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    is_waiting_for_lock,
    lane_connection,
    new_event,
    new_hold_command,
    poll_until,
    remove_guard,
)

UNLOCKED = sql.engine.lock.replace("FOR UPDATE", "")
CAPACITY = 10
STOCK = [
    {"code": "hall", "seats": {"rows": ["A"], "numbers": CAPACITY}},
    {"code": "places", "capacity": CAPACITY},
]
SEATS = tuple(f"A-{number}" for number in range(1, CAPACITY + 1))

# What each guard is removed with, and what it says where it alone is left.
GUARDS = {
    "pool": "ALTER TABLE pool DROP CONSTRAINT pool_never_oversold",
    "seat": "DROP INDEX line_seat_taken_once",
    "journal": "ALTER TABLE journal DROP CONSTRAINT journal_pkey",
}


class Batch:
    """One batch on a connection of its own, taken step by step."""

    def __init__(self, connection: db.Connection, event: EventHandle, commands: list[Command]) -> None:
        self.connection = connection
        self._event = event
        self._commands = commands
        self._build_batch: LoadedBatch | None = None

    async def open(self, lock: str) -> None:
        await self.connection.execute("BEGIN")
        self._build_batch = await load_batch(self.connection, LayoutCache(), {self._event.id: self._commands}, lock)

    async def save(self) -> list[Outcome]:
        assert self._build_batch is not None
        outcomes = decide(self._build_batch.states[self._event.id], self._commands)
        if any(isinstance(outcome, Accepted) for outcome in outcomes):
            await save(self.connection, self._build_batch)
        await self.connection.execute("COMMIT")
        return outcomes


class Race:
    """Two batches that each want everything."""

    def __init__(self, event: EventHandle, first: Batch, second: Batch) -> None:
        self.event = event
        self.first = first
        self.second = second

    async def run_both_at_once(self, lock: str) -> list[Outcome]:
        await self.first.open(lock)
        await self.second.open(lock)
        return await self.first.save() + await self.second.save()


@asynccontextmanager
async def _race(url: str, wants: str) -> AsyncIterator[Race]:
    async with lane_connection(url) as first, lane_connection(url) as second:
        event = await new_event(first, pools=STOCK)
        yield Race(event, Batch(first, event, _all(event, wants)), Batch(second, event, _all(event, wants)))


def _all(event: EventHandle, wants: str) -> list[Command]:
    if wants == "seats":
        return [new_hold_command(event, seat) for seat in SEATS]
    return [new_hold_command(event) for _ in range(CAPACITY)]


def _bookings(outcomes: list[Outcome]) -> int:
    return sum(isinstance(outcome, Accepted) for outcome in outcomes)


@pytest.fixture
def versions_unchecked() -> Iterator[None]:
    """Batches that save an event without checking that it is still the version they loaded."""
    guarded = sql.engine.insert_bookings
    sql.engine.insert_bookings = remove_guard("AND event.version = changed.was", guarded)
    yield
    sql.engine.insert_bookings = guarded


@pytest.mark.parametrize("wants", ["seats", "places"])
@async_test
async def test_with_the_lock_the_second_batch_waits_and_gets_nothing(database: str, wants: str) -> None:
    async with _race(database, wants) as race:
        await race.first.open(sql.engine.lock)
        waiting = asyncio.create_task(race.second.open(sql.engine.lock))
        await poll_until(lambda: is_waiting_for_lock(race.first.connection, race.second.connection.get_server_pid()))
        won = await race.first.save()
        await waiting
        lost = await race.second.save()
        assert _bookings(won) == CAPACITY
        refusal = Refusal.SEAT_TAKEN if wants == "seats" else Refusal.SOLD_OUT
        assert [outcome.refusal for outcome in lost if isinstance(outcome, Refused)] == [refusal] * CAPACITY
        assert (await audit_event(db.Database(race.first.connection), race.event.id))[0] == []


@pytest.mark.usefixtures("versions_unchecked")
@pytest.mark.parametrize(
    ("wants", "found"),
    [("seats", {"pool_counts", "seat_lines", "journal_gap"}), ("places", {"pool_counts", "journal_gap"})],
)
@async_test
async def test_without_any_guard_everything_is_sold_twice_and_the_auditor_sees_it(
    database: str, wants: str, found: set[str]
) -> None:
    async with _race(database, wants) as race:
        await _drop(race, *GUARDS)
        outcomes = await race.run_both_at_once(UNLOCKED)
        assert _bookings(outcomes) == 2 * CAPACITY
        units = await race.first.connection.fetchval("SELECT sum(quantity) FROM line WHERE live")
        assert units == 2 * CAPACITY
        findings, _ = await audit_event(db.Database(race.first.connection), race.event.id)
        assert {finding.what for finding in findings} == found
        if wants == "seats":
            assert {f.subject for f in findings if f.what == "seat_lines"} == set(SEATS)


@pytest.mark.parametrize("wants", ["seats", "places"])
@async_test
async def test_without_the_lock_the_schema_refuses_the_second_batch(database: str, wants: str) -> None:
    async with _race(database, wants) as race:
        with pytest.raises((asyncpg.IntegrityConstraintViolationError, LostUpdateError)):
            await race.run_both_at_once(UNLOCKED)
        await _check_sold_once(race)


@pytest.mark.usefixtures("versions_unchecked")
@pytest.mark.parametrize(
    ("guard", "wants", "refusal"),
    [
        ("pool", "places", asyncpg.CheckViolationError),
        ("pool", "seats", asyncpg.CheckViolationError),
        ("seat", "seats", asyncpg.UniqueViolationError),
        ("journal", "places", asyncpg.UniqueViolationError),
    ],
)
@async_test
async def test_each_guard_of_the_schema_is_enough_on_its_own(
    database: str, guard: str, wants: str, refusal: type[Exception]
) -> None:
    async with _race(database, wants) as race:
        await _drop(race, *(set(GUARDS) - {guard}))
        with pytest.raises(refusal):
            await race.run_both_at_once(UNLOCKED)
        await _check_sold_once(race)


@pytest.mark.parametrize("wants", ["seats", "places"])
@async_test
async def test_the_version_of_the_event_is_enough_on_its_own(database: str, wants: str) -> None:
    async with _race(database, wants) as race:
        await _drop(race, *GUARDS)
        with pytest.raises(LostUpdateError, match="'events': 0"):
            await race.run_both_at_once(UNLOCKED)
        await _check_sold_once(race)


async def _drop(race: Race, *guards: str) -> None:
    for guard in guards:
        await race.first.connection.execute(GUARDS[guard])


async def _check_sold_once(race: Race) -> None:
    """The first batch is saved, and nothing of the second."""
    await race.second.connection.execute("ROLLBACK")
    (sold,) = await race.first.connection.fetch("SELECT count(*), sum(quantity) FROM line WHERE live")
    assert tuple(sold) == (CAPACITY, CAPACITY)
    assert (await audit_event(db.Database(race.first.connection), race.event.id))[0] == []
