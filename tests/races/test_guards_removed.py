"""The control: two batches load the same event before either saves it, which the event's lock otherwise prevents.
Without lock and schema they sell one unit twice, and each guard alone stops them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from holdfast import sql
from holdfast.core.commands import Accepted, Command, SettlePayment
from holdfast.core.decide import Outcome, decide
from holdfast.core.payment import PaymentResult
from holdfast.core.refusals import Refusal, Refused
from holdfast.core.states import Verb
from holdfast.engine.auditor import audit_event
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.load import LoadedBatch, load_batch
from holdfast.engine.rows import LostUpdateError
from holdfast.engine.save import save
from holdfast.runtime import db
from tests.support.engine_harness import (
    ACTOR,
    EventHandle,
    async_test,
    is_waiting_for_lock,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    new_payment_command,
    one_pool,
    poll_until,
    remove_guard,
    run_commands,
)

UNLOCKED = sql.engine.lock.replace("FOR UPDATE", "")
CAPACITY = 10
STOCK = [
    {"code": "hall", "seats": {"rows": ["A"], "numbers": CAPACITY}},
    {"code": "places", "capacity": CAPACITY},
]
SEATS = tuple(f"A-{number}" for number in range(1, CAPACITY + 1))

# The statement that removes each guard.
GUARDS = {
    "pool": "ALTER TABLE pool DROP CONSTRAINT pool_never_oversold",
    "seat": "DROP INDEX line_seat_taken_once",
    "journal": "ALTER TABLE journal DROP CONSTRAINT journal_pkey",
}


class Batch:
    """One batch on a connection of its own, run step by step."""

    def __init__(self, connection: db.Connection, event: EventHandle, commands: list[Command]) -> None:
        self.connection = connection
        self._event = event
        self._commands = commands
        self._loaded: LoadedBatch | None = None

    async def open(self, lock: str) -> None:
        await self.connection.execute("BEGIN")
        self._loaded = await load_batch(self.connection, LayoutCache(), {self._event.id: self._commands}, lock)

    async def save(self) -> list[Outcome]:
        assert self._loaded is not None
        outcomes = decide(self._loaded.states[self._event.id], self._commands)
        if any(isinstance(outcome, Accepted) for outcome in outcomes):
            await save(self.connection, self._loaded)
        await self.connection.execute("COMMIT")
        return outcomes


class Race:
    """Two batches that each order everything."""

    def __init__(self, event: EventHandle, first: Batch, second: Batch) -> None:
        self.event = event
        self.first = first
        self.second = second

    async def run_both_at_once(self, lock: str) -> list[Outcome]:
        await self.first.open(lock)
        await self.second.open(lock)
        return await self.first.save() + await self.second.save()


@asynccontextmanager
async def _race(url: str, stock: str) -> AsyncIterator[Race]:
    async with lane_connection(url) as first, lane_connection(url) as second:
        event = await new_event(first, pools=STOCK)
        yield Race(
            event,
            Batch(first, event, _order_everything(event, stock)),
            Batch(second, event, _order_everything(event, stock)),
        )


def _order_everything(event: EventHandle, stock: str) -> list[Command]:
    if stock == "seats":
        return [new_hold_command(event, seat) for seat in SEATS]
    return [new_hold_command(event) for _ in range(CAPACITY)]


def _count_accepted(outcomes: list[Outcome]) -> int:
    return sum(isinstance(outcome, Accepted) for outcome in outcomes)


@pytest.fixture
def unchecked_versions() -> Iterator[None]:
    """Batches save an event without checking that its version is still the one they loaded."""
    guarded = sql.engine.insert_bookings
    sql.engine.insert_bookings = remove_guard("AND event.version = changed.was", guarded)
    yield
    sql.engine.insert_bookings = guarded


@pytest.mark.parametrize("stock", ["seats", "places"])
@async_test
async def test_with_the_lock_the_second_batch_waits_and_is_refused(database: str, stock: str) -> None:
    async with _race(database, stock) as race:
        await race.first.open(sql.engine.lock)
        waiting = asyncio.create_task(race.second.open(sql.engine.lock))
        await poll_until(lambda: is_waiting_for_lock(race.first.connection, race.second.connection.get_server_pid()))
        won = await race.first.save()
        await waiting
        lost = await race.second.save()
        assert _count_accepted(won) == CAPACITY
        refusal = Refusal.SEAT_TAKEN if stock == "seats" else Refusal.SOLD_OUT
        assert [outcome.refusal for outcome in lost if isinstance(outcome, Refused)] == [refusal] * CAPACITY
        assert (await audit_event(db.Database(race.first.connection), race.event.id)).findings == []


@pytest.mark.usefixtures("unchecked_versions")
@pytest.mark.parametrize(
    ("stock", "found"),
    [
        ("seats", {"capacity_exceeded", "seat_taken_twice", "entry_inserted"}),
        ("places", {"capacity_exceeded", "entry_inserted"}),
    ],
)
@async_test
async def test_without_any_guard_everything_is_sold_twice_and_the_auditor_finds_it(
    database: str, stock: str, found: set[str]
) -> None:
    async with _race(database, stock) as race:
        await _drop_guards(race, *GUARDS)
        outcomes = await race.run_both_at_once(UNLOCKED)
        assert _count_accepted(outcomes) == 2 * CAPACITY
        units = await race.first.connection.fetchval("SELECT sum(quantity) FROM line WHERE live")
        assert units == 2 * CAPACITY
        findings = (await audit_event(db.Database(race.first.connection), race.event.id)).findings
        assert {finding.what for finding in findings} >= found
        if stock == "seats":
            assert {f.subject for f in findings if f.what == "seat_taken_twice"} == set(SEATS)


@pytest.mark.parametrize("stock", ["seats", "places"])
@async_test
async def test_without_the_lock_the_schema_refuses_the_second_batch(database: str, stock: str) -> None:
    async with _race(database, stock) as race:
        with pytest.raises((asyncpg.IntegrityConstraintViolationError, LostUpdateError)):
            await race.run_both_at_once(UNLOCKED)
        await _check_sold_once(race)


@pytest.mark.usefixtures("unchecked_versions")
@pytest.mark.parametrize(
    ("guard", "stock", "refusal"),
    [
        ("pool", "places", asyncpg.CheckViolationError),
        ("pool", "seats", asyncpg.CheckViolationError),
        ("seat", "seats", asyncpg.UniqueViolationError),
        ("journal", "places", asyncpg.UniqueViolationError),
    ],
)
@async_test
async def test_each_guard_of_the_schema_prevents_a_double_sale(
    database: str, guard: str, stock: str, refusal: type[Exception]
) -> None:
    async with _race(database, stock) as race:
        await _drop_guards(race, *(set(GUARDS) - {guard}))
        with pytest.raises(refusal):
            await race.run_both_at_once(UNLOCKED)
        await _check_sold_once(race)


@pytest.mark.parametrize("stock", ["seats", "places"])
@async_test
async def test_the_version_of_the_event_prevents_a_double_sale(database: str, stock: str) -> None:
    async with _race(database, stock) as race:
        await _drop_guards(race, *GUARDS)
        with pytest.raises(LostUpdateError, match="'events': 0"):
            await race.run_both_at_once(UNLOCKED)
        await _check_sold_once(race)


@asynccontextmanager
async def _race_for_booking(url: str, *commands: Callable[[EventHandle, bytes], Command]) -> AsyncIterator[Race]:
    """Two batches with a command each, to a hold with a payment. Only the guards of single rows are left."""
    async with lane_connection(url) as first, lane_connection(url) as second:
        event = await new_event(first, pools=one_pool(CAPACITY))
        hold = new_hold_command(event)
        await run_commands(first, [hold, new_payment_command(event, hold.booking, payment=hold.booking)])
        one, two = [[command(event, hold.booking)] for command in commands]
        race = Race(event, Batch(first, event, one), Batch(second, event, two))
        await _drop_guards(race, *GUARDS)
        yield race


def _confirm(event: EventHandle, booking: bytes) -> Command:
    return new_action_command(event, booking, Verb.CONFIRM)


def _cancel(event: EventHandle, booking: bytes) -> Command:
    return new_action_command(event, booking, Verb.CANCEL)


def _fail_payment(event: EventHandle, booking: bytes) -> Command:
    return SettlePayment(
        event=event.id, org=event.org, booking=booking, payment=booking, result=PaymentResult.FAILED, actor=ACTOR
    )


@pytest.mark.usefixtures("unchecked_versions")
@async_test
async def test_the_status_of_a_booking_prevents_a_second_change_of_it(database: str) -> None:
    async with _race_for_booking(database, _confirm, _cancel) as race:
        with pytest.raises(LostUpdateError, match="'bookings': 0"):
            await race.run_both_at_once(UNLOCKED)
        await race.second.connection.execute("ROLLBACK")
        assert await race.first.connection.fetchval("SELECT status FROM booking") == "confirmed"
        assert (await audit_event(db.Database(race.first.connection), race.event.id)).findings == []


@pytest.mark.usefixtures("unchecked_versions")
@async_test
async def test_the_status_of_a_payment_prevents_a_second_change_of_it(database: str) -> None:
    async with _race_for_booking(database, _fail_payment, _fail_payment) as race:
        with pytest.raises(LostUpdateError, match="'changed_payments': 0"):
            await race.run_both_at_once(UNLOCKED)
        await race.second.connection.execute("ROLLBACK")
        count = "SELECT count(*) FROM journal WHERE kind = 'payment.failed'"
        assert await race.first.connection.fetchval(count) == 1


async def _drop_guards(race: Race, *guards: str) -> None:
    for guard in guards:
        await race.first.connection.execute(GUARDS[guard])


async def _check_sold_once(race: Race) -> None:
    """Check that only the first batch was saved."""
    await race.second.connection.execute("ROLLBACK")
    (sold,) = await race.first.connection.fetch("SELECT count(*), sum(quantity) FROM line WHERE live")
    assert tuple(sold) == (CAPACITY, CAPACITY)
    assert (await audit_event(db.Database(race.first.connection), race.event.id)).findings == []
