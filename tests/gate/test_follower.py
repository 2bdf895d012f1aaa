"""Whatever Redis has missed or forgotten, it finds in the journal. Until then it refuses nobody."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from holdfast import sql
from holdfast.core.commands import Accepted
from holdfast.core.refusals import Refusal, Refused
from holdfast.core.states import Verb
from holdfast.gate import event_builder, follower
from holdfast.gate.entries import EventKeys
from holdfast.gate.event_mark import Mark, read_marks
from holdfast.runtime import db, shared_secrets
from holdfast.runtime.shared_secrets import SecretName, SecretValue, rotate_secret
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    new_action_command,
    new_hold_command,
    poll_until,
    run_commands,
)
from tests.support.gate_harness import Gated, running_gate
from tests.support.harness import connection_to
from tests.support.redis_process import RedisServer


@asynccontextmanager
async def awake_event(url: str, redis: RedisServer) -> AsyncIterator[tuple[Gated, EventHandle, bytes]]:
    """An event in which A-1 is held, and of which Redis knows everything. Also the booking."""
    async with running_gate(url, redis) as gated:
        event = await gated.new_event()
        await gated.wake(event)
        held = await gated.hold(event, "A-1", user="ann")
        assert isinstance(held, Accepted)
        await gated.settle()
        yield gated, event, held.booking.id


async def refuses(gated: Gated, event: EventHandle, label: str) -> bool:
    """Whether Redis refuses the seat. The engine cannot, because the event is locked."""
    async with connection_to(gated.url) as other, other.transaction():
        await other.execute("SELECT FROM event WHERE id = $1 FOR UPDATE", event.id)
        hold = asyncio.create_task(gated.hold(event, label))
        await asyncio.wait([hold], timeout=0.3)
        outcome = hold.result() if hold.done() else None
        hold.cancel()
    return isinstance(outcome, Refused) and outcome.refusal is Refusal.SEAT_TAKEN


async def release_unseen(url: str, event: EventHandle, booking: bytes) -> None:
    """Cancel a booking in a process that does not tell Redis."""
    async with connection_to(url, db.connect_lane) as connection:
        (outcome,) = await run_commands(connection, [new_action_command(event, booking, Verb.CANCEL)])
        assert isinstance(outcome, Accepted)


async def hold_unseen(url: str, event: EventHandle, *seats: str, user: str = "") -> bytes:
    async with connection_to(url, db.connect_lane) as connection:
        (outcome,) = await run_commands(connection, [new_hold_command(event, *seats, user=user)])
        assert isinstance(outcome, Accepted)
        return outcome.booking.id


@async_test
async def test_it_finds_holds_and_releases_that_redis_missed(database: str, shared_redis: RedisServer) -> None:
    async with awake_event(database, shared_redis) as (gated, event, booking):
        await release_unseen(database, event, booking)
        await hold_unseen(database, event, "A-2", user="bob")
        await poll_until(lambda: gated.entry(event, "A-1") is None and gated.entry(event, "A-2") is not None)
        assert await refuses(gated, event, "A-2")
        assert isinstance(await gated.hold(event, "A-1"), Accepted)
        outcome = await gated.hold(event, "A-2", user="bob")
        assert isinstance(outcome, Accepted)
        assert outcome.is_reentrant


@async_test
async def test_after_a_flush_it_builds_everything_anew(database: str, redis: RedisServer) -> None:
    async with awake_event(database, redis) as (gated, event, _):
        generation = gated.state(event)["generation"]
        redis.client().flushall()
        assert isinstance(await gated.hold(event, "A-2"), Accepted), "nothing stands in the way of a free seat"
        await gated.wake(event)
        assert gated.state(event)["generation"] != generation
        await poll_until(lambda: refuses(gated, event, "A-1"))
        await poll_until(lambda: refuses(gated, event, "A-2"))


@async_test
async def test_after_a_restart_from_an_old_dump_it_follows_the_journal(database: str, redis: RedisServer) -> None:
    async with awake_event(database, redis) as (gated, event, booking):
        redis.save()
        await gated.engine.submit(new_action_command(event, booking, Verb.CANCEL))
        await gated.hold(event, "A-2", user="bob")
        await gated.settle()
        redis.kill()
        redis.start()
        assert gated.entry(event, "A-1") is not None, "the dump has the old hold"
        await poll_until(lambda: _is_followed(gated, event), seconds=30)
        assert isinstance(await gated.hold(event, "A-1"), Accepted)
        assert await refuses(gated, event, "A-2")


async def _is_followed(gated: Gated, event: EventHandle) -> bool:
    """Each attempt may be the one that closes the breaker."""
    await gated.hold(event, "A-2")
    return gated.entry(event, "A-1") is None and gated.entry(event, "A-2") is not None


@async_test
async def test_it_builds_an_event_whose_buyers_redis_has_dropped(database: str, shared_redis: RedisServer) -> None:
    async with awake_event(database, shared_redis) as (gated, event, _):
        shared_redis.client().delete(EventKeys(event.org, event.id).known)
        await poll_until(lambda: refuses(gated, event, "A-1"))
        outcome = await gated.hold(event, "A-1", user="ann")
        assert isinstance(outcome, Accepted)
        assert outcome.is_reentrant


@async_test
async def test_it_builds_an_event_whose_journal_is_far_ahead(
    database: str, shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BEHIND_MAX", 3)
    async with awake_event(database, shared_redis) as (gated, event, _):
        generation = gated.state(event)["generation"]
        for number in range(2, 8):
            await hold_unseen(database, event, f"A-{number}")
        await poll_until(lambda: gated.state(event)["generation"] != generation)
        await gated.wake(event)
        await poll_until(lambda: refuses(gated, event, "A-7"))


@async_test
async def test_it_follows_a_long_journal_in_steps(
    database: str, shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "ENTRIES_MAX", 2)
    async with awake_event(database, shared_redis) as (gated, event, _):
        generation = gated.state(event)["generation"]
        for number in range(2, 10):
            await hold_unseen(database, event, f"A-{number}")
        await poll_until(lambda: gated.entry(event, "A-9") is not None)
        assert gated.state(event)["generation"] == generation
        assert await refuses(gated, event, "A-5")


@async_test
async def test_it_builds_events_with_more_bookings_than_a_page(
    database: str, shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_builder, "PAGE_BOOKINGS", 3)
    monkeypatch.setattr(event_builder, "CALL_MAX", 2)
    async with running_gate(database, shared_redis) as gated:
        event = await gated.new_event()
        for number in range(1, 11):
            await hold_unseen(database, event, f"A-{number}")
        await gated.wake(event)
        assert [gated.entry(event, f"A-{number}") is not None for number in range(1, 12)] == [True] * 10 + [False]


@async_test
async def test_an_event_with_too_many_bookings_does_without_redis(
    database: str, shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_builder, "BOOKINGS_MAX", 2)
    async with running_gate(database, shared_redis) as gated:
        event = await gated.new_event()
        for number in range(1, 5):
            await hold_unseen(database, event, f"A-{number}")
        gated.layer.follower.touch(event.org, event.id)
        await poll_until(lambda: event.id in gated.layer.follower._too_large)
        assert "at" not in gated.state(event)
        assert isinstance(await gated.hold(event, "A-5"), Accepted)


@async_test
async def test_after_a_rotation_of_the_secret_owners_are_recognised_again(
    database: str, shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_secrets, "CACHE_SECONDS", 0.05)
    monkeypatch.setattr(shared_secrets, "SIGNS_AFTER_SECONDS", 0)
    async with awake_event(database, shared_redis) as (gated, event, _):
        before = gated.entry(event, "A-1")
        await rotate_secret(db.Database(gated.pool), SecretName.CLIENT_ADDRESSES, overlap_seconds=0)
        while (entry := gated.entry(event, "A-1")) is None or entry == before:
            outcome = await gated.hold(event, "A-1", user="ann")
            assert isinstance(outcome, Accepted)
            await asyncio.sleep(0.05)
        await poll_until(lambda: refuses(gated, event, "A-1"))
        assert isinstance(await gated.hold(event, "A-1", user="ann"), Accepted)


@async_test
async def test_a_restored_database_makes_it_build_anew(database: str, shared_redis: RedisServer) -> None:
    """Redis may know a version that the database no longer has."""
    async with awake_event(database, shared_redis) as (gated, event, _):
        keys = EventKeys(event.org, event.id)
        generation = gated.state(event)["generation"]
        shared_redis.client().hset(keys.state, "version", 1_000)
        shared_redis.client().hdel(keys.state, "at")
        await poll_until(lambda: gated.state(event).get("generation") != generation)
        await gated.wake(event)
        assert int(gated.state(event)["version"]) < 1_000


@async_test
async def test_nobody_follows_an_event_that_nobody_asks_for(
    database: str, shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "IDLE_SECONDS", 0.5)
    async with awake_event(database, shared_redis) as (gated, event, _):
        await poll_until(lambda: not gated.layer.follower._active)
        before = gated.state(event)["at"]
        await asyncio.sleep(1.5)
        assert gated.state(event)["at"] == before


@async_test
async def test_a_step_based_on_an_old_reading_changes_nothing(database: str, shared_redis: RedisServer) -> None:
    """A follower may hang between its query and its call, while others go on."""
    async with awake_event(database, shared_redis) as (gated, event, booking):
        key = EventKeys(event.org, event.id).seat("A-1")
        old = json.loads(str(shared_redis.client().get(key)))
        (changes,) = await _read_changes(gated, event)
        await gated.engine.submit(new_action_command(event, booking, Verb.CANCEL))
        await gated.settle()
        await gated.layer.follower._apply(
            changes, (await _read_mark(gated, event, changes.version)), await _secret(gated)
        )
        assert gated.entry(event, "A-1") is None
        assert old["state"] == "held"


async def _read_changes(gated: Gated, event: EventHandle) -> list[follower.EventChanges]:
    return await db.Database(gated.pool).all_events.rows(
        follower.EventChanges, *sql.gate.changes(events=[event.id], versions=[0], entries_max=100)
    )


async def _read_mark(gated: Gated, event: EventHandle, version: int) -> Mark:
    marks = await read_marks(gated.layer.follower._calls, {event.id: event.org})
    mark = marks[event.id]
    assert mark is not None
    return structs.replace(mark, version=version)


async def _secret(gated: Gated) -> SecretValue:
    return await gated.layer.follower._hasher.secret()
