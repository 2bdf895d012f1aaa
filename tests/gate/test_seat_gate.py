"""Redis refuses early what the engine would refuse, in the engine's own words. It grants nothing."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import convert, structs

from holdfast.api.app import make_services
from holdfast.api.auth import Caller
from holdfast.api.booking_handlers import cancel_booking
from holdfast.api.call import Call
from holdfast.api.requests import WithReason
from holdfast.core.commands import Accepted, BestSeats, Client, PlaceHold, PoolItem, SeatItem
from holdfast.core.decide import Outcome
from holdfast.core.event_schemas import EventChange
from holdfast.core.refusals import Refusal, Refused
from holdfast.core.states import EventStatus, Verb
from holdfast.engine.event_editor import change_event, set_status
from holdfast.gate import commit_writer, redis_layer
from holdfast.runtime import db, ids
from holdfast.runtime.credentials import Role
from holdfast.runtime.settings import Settings
from tests.support.engine_harness import (
    ACTOR,
    EventHandle,
    async_test,
    new_action_command,
    new_hold_command,
    poll_until,
)
from tests.support.gate_harness import Gated, hold_all, running_gate
from tests.support.harness import connection_to
from tests.support.redis_process import RedisServer


@asynccontextmanager
async def awake_event(
    url: str, redis: RedisServer, *, is_patient: bool = True, **changes: Any
) -> AsyncIterator[tuple[Gated, EventHandle]]:
    """An event in which A-1 is held, and of which Redis knows everything."""
    async with running_gate(url, redis, is_patient=is_patient) as gated:
        event = await gated.new_event(**changes)
        await gated.wake(event)
        await gated.hold(event, "A-1", user="ann")
        await gated.settle()
        yield gated, event


@asynccontextmanager
async def locked(url: str, event: EventHandle) -> AsyncIterator[None]:
    """Nothing can reach the engine's decision meanwhile."""
    async with connection_to(url) as connection, connection.transaction():
        await connection.execute("SELECT FROM event WHERE id = $1 FOR UPDATE", event.id)
        yield


def refusal_of(outcome: Outcome) -> Refusal | None:
    return outcome.refusal if isinstance(outcome, Refused) else None


async def ask_redis(gated: Gated, command: PlaceHold) -> Outcome:
    """What Redis answers to strangers while the event is locked. On a busy machine, its copy may be briefly stale."""
    for _ in range(5):
        stranger = structs.replace(
            command, user=secrets.token_hex(4), booking=ids.new_id(), request_key=secrets.token_bytes(16)
        )
        outcome = await gated.submit(stranger)
        if refusal_of(outcome) is not Refusal.BUSY:
            break
    return outcome


@async_test
async def test_a_taken_seat_is_refused_without_the_database(database: str, shared_redis: RedisServer) -> None:
    async with awake_event(database, shared_redis) as (gated, event), locked(database, event):
        outcome = await ask_redis(gated, new_hold_command(event, "A-1"))
        assert outcome == Refused(Refusal.SEAT_TAKEN, "Taken: A-1.", ("A-1",))


@async_test
async def test_a_free_seat_needs_the_database(database: str, shared_redis: RedisServer) -> None:
    async with awake_event(database, shared_redis) as (gated, event):
        async with locked(database, event):
            hold = asyncio.create_task(gated.hold(event, "A-2"))
            await poll_until(lambda: (gated.entry(event, "A-2") or {}).get("state") == "pending")
            assert not hold.done()
        assert isinstance(await hold, Accepted)
        await poll_until(lambda: (gated.entry(event, "A-2") or {}).get("state") == "held")


@async_test
async def test_two_gates_see_each_others_holds(database: str, shared_redis: RedisServer) -> None:
    async with awake_event(database, shared_redis) as (_, event), running_gate(database, shared_redis) as other:
        await other.wake(event)
        async with locked(database, event):
            outcome = await ask_redis(other, new_hold_command(event, "A-1"))
            assert refusal_of(outcome) is Refusal.SEAT_TAKEN


@async_test
async def test_exactly_one_of_many_buyers_gets_the_seat(database: str, shared_redis: RedisServer) -> None:
    async with awake_event(database, shared_redis) as (gated, event), running_gate(database, shared_redis) as other:
        await other.wake(event)
        commands = [new_hold_command(event, "B-5") for _ in range(200)]
        halves = await asyncio.gather(hold_all(gated, commands[::2]), hold_all(other, commands[1::2]))
        outcomes = [*halves[0], *halves[1]]
        assert sum(isinstance(outcome, Accepted) for outcome in outcomes) == 1
        assert {refusal_of(outcome) for outcome in outcomes} == {None, Refusal.SEAT_TAKEN}


@async_test
async def test_a_hold_that_the_engine_refuses_leaves_its_seats_free(database: str, shared_redis: RedisServer) -> None:
    async with awake_event(database, shared_redis, policy={"avoid_orphans": True}) as (gated, event):
        assert refusal_of(await gated.hold(event, "A-3")) is Refusal.ORPHAN_SEAT
        await gated.settle()
        assert gated.entry(event, "A-3") is None
        assert isinstance(await gated.hold(event, "A-2", "A-3"), Accepted)


@async_test
async def test_a_cancelled_hold_leaves_its_seats_free(database: str, shared_redis: RedisServer) -> None:
    async with awake_event(database, shared_redis) as (gated, event):
        held = await gated.hold(event, "A-2")
        assert isinstance(held, Accepted)
        await gated.engine.submit(new_action_command(event, held.booking.id, Verb.CANCEL))
        await gated.settle()
        assert isinstance(await gated.hold(event, "A-2"), Accepted)


@async_test
async def test_a_release_is_acknowledged_once_redis_knows_of_it(
    database: str, shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_layer, "REQUEST_SECONDS", 10)
    # Without somebody who waits for it, Redis would hear of the release much later.
    monkeypatch.setattr(commit_writer, "PAUSE_SECONDS", 60)
    async with awake_event(database, shared_redis) as (gated, event):
        held = await gated.hold(event, "A-2", user="bob")
        assert isinstance(held, Accepted)
        await gated.settle()
        assert gated.entry(event, "A-2") is not None
        settings = Settings(database_url=database)
        services = make_services(settings, gated.pool, gated.engine, redis=gated.layer)
        call = Call(
            services,
            Caller(event.org, Role.ADMIN, ACTOR),
            {"id": ids.format_booking_id(event.id, held.booking.id)},
            {},
        )
        assert (await cancel_booking(call, WithReason())).content.status == "cancelled"
        assert gated.entry(event, "A-2") is None


@async_test
async def test_an_expired_hold_is_free_at_once(database: str, shared_redis: RedisServer) -> None:
    async with awake_event(database, shared_redis, policy={"hold_seconds": 1}) as (gated, event):
        await gated.hold(event, "A-2")
        await poll_until(lambda: _is_accepted(gated, event, "A-2"))


async def _is_accepted(gated: Gated, event: EventHandle, *seats: str) -> bool:
    return isinstance(await gated.hold(event, *seats), Accepted)


@async_test
async def test_the_owner_gets_the_same_booking_again(database: str, shared_redis: RedisServer) -> None:
    async with awake_event(database, shared_redis) as (gated, event):
        outcome = await gated.hold(event, "A-1", user="ann")
        assert isinstance(outcome, Accepted)
        assert outcome.is_reentrant


@async_test
async def test_a_repeated_request_gets_its_booking_even_if_others_have_the_seat(
    database: str, shared_redis: RedisServer
) -> None:
    async with awake_event(database, shared_redis) as (gated, event):
        command = new_hold_command(event, "A-2", user="bob")
        held = await gated.submit(command)
        assert isinstance(held, Accepted)
        await gated.engine.submit(new_action_command(event, held.booking.id, Verb.CANCEL))
        await gated.settle()
        assert isinstance(await gated.hold(event, "A-2", user="cid"), Accepted)
        await gated.settle()
        again = await gated.submit(structs.replace(command, booking=secrets.token_bytes(16)))
        assert isinstance(again, Accepted)
        assert (again.booking.id, again.replayed) == (held.booking.id, True)
        reused = structs.replace(command, booking=secrets.token_bytes(16), fingerprint=b"another", user="dan")
        assert refusal_of(await gated.submit(reused)) is Refusal.IDEMPOTENCY_KEY_REUSED


SALES_RULES: dict[str, dict[str, Any]] = {
    "an ordinary event": {},
    "one booking per user": {"policy": {"one_booking_per_user": True}},
    "a limit of units": {"policy": {"max_units_per_user": 2}},
    "a number of units per booking": {"policy": {"min_units": 2, "max_units": 3}},
    "required contact": {"contact": {"phone": "required"}},
    "sales that have closed": {"sales_close_at": "2020-01-01T00:00:00Z"},
    "sales that have not opened": {"sales_open_at": "2027-03-01T00:00:00Z"},
    "a question": {
        "questions": [{"code": "diet", "label": "Diet?", "kind": "text", "per": "booking", "required": True}]
    },
}


def commands_for(event: EventHandle) -> list[PlaceHold]:
    """Requests that involve the taken seat A-1, from buyers who are new, and from ann, who has it."""
    taken = new_hold_command(event, "A-1")
    guest = Client(b"address", is_guest=True)
    return [
        taken,
        structs.replace(taken, user="ann"),
        structs.replace(taken, staff=False),
        structs.replace(taken, client=guest),
        structs.replace(taken, client=structs.replace(guest, unpaid_elsewhere=1, max_in_org=1)),
        structs.replace(taken, items=(SeatItem("A-1"), SeatItem("A-1"))),
        structs.replace(taken, items=(SeatItem("A-1"), SeatItem("Z-9"))),
        structs.replace(taken, items=(SeatItem("A-1", "unknown"),)),
        structs.replace(taken, items=(SeatItem("A-1"), SeatItem("A-2"))),
        structs.replace(taken, items=(SeatItem("A-2"), SeatItem("A-1"), SeatItem("B-1"), SeatItem("B-2"))),
        structs.replace(taken, items=(SeatItem("B-20"), SeatItem("A-1"))),
        structs.replace(taken, items=(SeatItem("A-1"), PoolItem("standing", 501, "full"))),
        structs.replace(taken, items=(SeatItem("A-1"), PoolItem("unknown", 1))),
        structs.replace(taken, items=(SeatItem("A-1"), PoolItem("stalls", 1))),
        structs.replace(taken, org=secrets.token_bytes(16)),
        structs.replace(taken, name="Ann", phone="+4930123456"),
        structs.replace(taken, items=(), best_available=BestSeats("stalls", 41)),
        structs.replace(taken, items=(), best_available=BestSeats("standing", 1)),
        structs.replace(taken, items=(), best_available=BestSeats("stalls", 101)),
    ]


@pytest.mark.parametrize("rules", SALES_RULES)
def test_an_early_refusal_is_the_one_that_the_engine_gives(
    database: str, shared_redis: RedisServer, rules: str
) -> None:
    asyncio.run(_compare_refusals(database, shared_redis, SALES_RULES[rules]))


async def _compare_refusals(url: str, redis: RedisServer, rules: dict[str, Any]) -> None:
    async with awake_event(url, redis) as (gated, event):
        change = convert({"block_seats": ["B-20"], **rules}, EventChange)
        await change_event(db.Database(gated.pool), event.org, event.id, change, ACTOR)
        await gated.layer.event_changed(event.org, event.id)
        await gated.hold(event, "A-1")
        await gated.wake(event)
        for command in commands_for(event):
            expected = await gated.engine.submit(structs.replace(command, request_key=secrets.token_bytes(16)))
            assert isinstance(expected, Refused) or command.user == "ann", command
            outcome = await gated.submit(structs.replace(command, request_key=secrets.token_bytes(16)))
            assert _booking_or_refused(outcome) == _booking_or_refused(expected), command


def _booking_or_refused(outcome: Outcome) -> object:
    return outcome if isinstance(outcome, Refused) else outcome.booking


@async_test
async def test_most_of_these_refusals_come_from_redis(database: str, shared_redis: RedisServer) -> None:
    """Otherwise the comparison above compares the engine with itself."""
    async with awake_event(database, shared_redis) as (gated, event):
        taken = [command for command in commands_for(event) if command.user != "ann" and len(command.items) == 1]
        async with locked(database, event):
            outcomes = await hold_all(gated, taken)
        assert [refusal_of(outcome) for outcome in outcomes].count(Refusal.SEAT_TAKEN) >= 4


@async_test
async def test_a_full_hall_refuses_the_best_seats_without_the_database(
    database: str, shared_redis: RedisServer
) -> None:
    async with awake_event(database, shared_redis) as (gated, event):
        best = structs.replace(
            new_hold_command(event), items=(), best_available=BestSeats("stalls", 39, adjacent=False)
        )
        assert isinstance(await gated.submit(best), Accepted)
        await gated.settle()
        late = structs.replace(
            best, user="late", booking=ids.new_id(), request_key=b"a key", best_available=BestSeats("stalls", 1)
        )
        expected = await gated.engine.submit(structs.replace(late, request_key=b"another key"))
        async with locked(database, event):
            outcome = await ask_redis(gated, late)
        assert outcome == expected
        assert refusal_of(outcome) is Refusal.SOLD_OUT


@async_test
async def test_a_change_of_the_event_takes_effect_at_once(database: str, shared_redis: RedisServer) -> None:
    async with awake_event(database, shared_redis) as (gated, event):
        await set_status(db.Database(gated.pool), event.org, event.id, EventStatus.CANCELLED, ACTOR)
        await gated.layer.event_changed(event.org, event.id)
        assert refusal_of(await gated.hold(event, "A-1")) is Refusal.EVENT_NOT_ON_SALE


@async_test
async def test_holds_go_on_without_redis(database: str, redis: RedisServer) -> None:
    async with awake_event(database, redis, is_patient=False) as (gated, event):
        redis.kill()
        for number in range(2, 12):
            assert isinstance(await gated.hold(event, f"A-{number}"), Accepted)
            assert refusal_of(await gated.hold(event, "A-1")) is Refusal.SEAT_TAKEN
        assert gated.layer.report.state == "open"
        redis.start()
        await poll_until(lambda: _closes(gated, event), seconds=30)


async def _closes(gated: Gated, event: EventHandle) -> bool:
    await gated.hold(event, "A-1")
    await asyncio.sleep(0.1)
    return bool(gated.layer.report.state == "closed")


@async_test
async def test_a_redis_that_hangs_costs_a_request_one_budget_at_most(database: str, redis: RedisServer) -> None:
    async with awake_event(database, redis, is_patient=False) as (gated, event):
        redis.pause()
        try:
            commands = [new_hold_command(event, "A-1") for _ in range(50)]
            outcomes = await hold_all(gated, commands)
            assert gated.layer.report.failures >= 1
            assert {refusal_of(outcome) for outcome in outcomes} == {Refusal.SEAT_TAKEN}
            for _ in range(10):
                await gated.hold(event, "A-1")
            assert gated.layer.report.state == "open"
        finally:
            redis.resume()
