"""What the scripts do in Redis, on every kind of server that is installed."""

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from holdfast.core.states import Status
from holdfast.gate.acquire_queue import ASKED, UNASKED, AcquireQueue, Ask, Passed, TakenSeats, TooFewLeft, Verdict
from holdfast.gate.changes import BookedSeats, ChangeBuilder
from holdfast.gate.circuit_breaker import CircuitBreaker
from holdfast.gate.entries import CURRENT_SECONDS, PASSED_SECONDS, PENDING_SECONDS, Change, EventKeys, format_time
from holdfast.gate.event_mark import Head, begin_generation, complete_generation, put_to_sleep
from holdfast.gate.redis_client import BACKGROUND_SECONDS, RedisCalls, RedisUrl, open_client
from holdfast.gate.user_hash import hash_user
from holdfast.runtime import ids
from holdfast.runtime.database_clock import DatabaseClock
from holdfast.runtime.shared_secrets import SecretValue
from tests.support.engine_harness import async_test
from tests.support.redis_process import RedisServer, find_binaries, running_redis

START = datetime(2027, 3, 5, 19, tzinfo=UTC)
SECRET = SecretValue(1, b"secret", signs=True)
VERSION, REVISION = 7, 3


@pytest.fixture(scope="module", params=sorted(find_binaries()))
def redis(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with running_redis(binary=find_binaries()[request.param]) as server:
        yield server


class FixedClock(DatabaseClock):
    def __init__(self, at: datetime) -> None:
        super().__init__()
        self.at = at

    def now(self) -> datetime:
        return self.at


class Event:
    """An event of its own in Redis, at a time that the test sets."""

    def __init__(self, redis: RedisServer) -> None:
        self.redis = redis
        self.org, self.id = ids.new_id(), ids.new_id()
        self.keys = EventKeys(self.org, self.id)
        self.clock = FixedClock(START)
        self.calls = RedisCalls(open_client(RedisUrl.parse(redis.url)), CircuitBreaker(), BACKGROUND_SECONDS)
        self.queue = AcquireQueue(self.calls, self.clock)
        self.secret = SECRET

    async def wake(self, generation: str = "first") -> None:
        """Begin a generation, and follow the journal up to now."""
        head = Head(self.clock.at, self.org, VERSION, REVISION)
        await self.calls.run([begin_generation(self.keys, head, generation, SECRET)])
        await self.calls.run([complete_generation(self.keys, generation, parts=0)])
        assert await self.apply(after=VERSION, version=VERSION, is_followed=True)

    async def ask(
        self, *labels: str, user: str = "", key: bytes = b"", pool: str | None = None, quantity: int = 0
    ) -> Verdict:
        user = hash_user(self.secret, self.org, user or secrets.token_hex(4))
        known_by = (f"user:{user}", f"key:{(key or secrets.token_bytes(4)).hex()}")
        booking = ids.format_booking_id(self.id, ids.new_id())
        ask = Ask(labels, user, booking, known_by, pool, quantity, self.secret.number)
        return await self.queue.submit(self.org, self.id, ask)

    async def apply(
        self,
        *bookings: BookedSeats,
        after: int = -1,
        version: int = -1,
        is_followed: bool = False,
        is_complete: bool = True,
        pools: dict[str, int] | None = None,
        generation: str | None = None,
    ) -> bool:
        builder = ChangeBuilder(self.org, self.id, self.secret, self.clock.at)
        for booking in bookings:
            builder.add_booking(booking)
        change = Change(
            after=after,
            version=version,
            now=format_time(self.clock.at),
            is_followed=is_followed,
            is_complete=is_followed and is_complete,
            revision=REVISION,
            generation=generation,
            pools=pools or {},
            pools_version=version,
        )
        (is_applied,) = await self.calls.run([builder.command(change)])
        return bool(is_applied)

    def booking(self, *seats: str, user: str = "ann", seconds: float = 600, version: int = VERSION + 1) -> BookedSeats:
        return BookedSeats(
            ids.new_id(),
            user,
            Status.HELD,
            secrets.token_bytes(16),
            None,
            START,
            self.clock.at + timedelta(seconds=seconds),
            version,
            list(seats),
        )

    def pass_time(self, seconds: float) -> None:
        self.clock.at += timedelta(seconds=seconds)

    def entry(self, label: str) -> dict[str, Any]:
        value: Any = self.redis.client().get(self.keys.seat(label))
        entry: dict[str, Any] = json.loads(value) if value else {"state": None}
        return entry

    def states(self, *labels: str) -> list[str | None]:
        return [self.entry(label)["state"] for label in labels]


@asynccontextmanager
async def awake_event(redis: RedisServer) -> AsyncIterator[Event]:
    event = Event(redis)
    await event.wake()
    try:
        yield event
    finally:
        await event.calls.close()


def taken(*labels: str) -> TakenSeats:
    return TakenSeats(labels, REVISION)


@async_test
async def test_all_seats_become_pending_or_none(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        assert await event.ask("A-1", "A-2") == ASKED
        assert await event.ask("A-2", "A-3") == taken("A-2")
        assert event.states("A-1", "A-2", "A-3") == ["pending", "pending", None]


@async_test
async def test_a_pending_entry_ends_on_its_own(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.ask("A-1")
        assert 0 < redis.client().pttl(event.keys.seat("A-1")) <= PENDING_SECONDS * 1000
        event.pass_time(PENDING_SECONDS - 0.5)
        assert await event.ask("A-1") == taken("A-1")
        event.pass_time(0.5)
        assert await event.ask("A-1") == ASKED


@async_test
async def test_a_held_entry_lets_buyers_through_from_its_deadline_on(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1", seconds=2))
        event.pass_time(1.999)
        assert await event.ask("A-1") == taken("A-1")
        event.pass_time(0.001)
        assert await event.ask("A-1") == ASKED


@async_test
async def test_redis_keeps_a_held_entry_for_a_minute_after_its_deadline(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1", seconds=100))
        assert 159_000 < redis.client().pttl(event.keys.seat("A-1")) <= 160_000


@async_test
async def test_the_owner_of_an_entry_is_never_refused(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1", user="ann"), event.booking("A-2", user="bob"))
        assert await event.ask("A-1", user="ann") == ASKED
        assert await event.ask("A-1", "A-2", user="ann") == ASKED
        assert await event.ask("A-1", "A-2", user="cid") == taken("A-1", "A-2")


@async_test
async def test_a_known_buyer_or_key_is_never_refused_and_marks_nothing(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1"))
        assert await event.ask("B-1", user="bob", key=b"a key") == ASKED
        assert await event.ask("A-1", user="bob") == ASKED
        assert await event.ask("A-1", key=b"a key") == ASKED
        assert await event.ask("C-1", user="bob") == ASKED
        assert event.states("C-1") == [None]


@async_test
async def test_redis_forgets_whom_it_has_let_through_unless_they_get_a_booking(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1"), after=VERSION, version=VERSION + 1)
        assert await event.ask("B-1", user="bob") == ASKED
        assert await event.ask("B-2", user="cid") == ASKED
        booking = event.booking("B-2", user="cid", version=VERSION + 2)
        await event.apply(booking, after=VERSION + 1, version=VERSION + 2)
        event.pass_time(PASSED_SECONDS)
        await event.apply(after=VERSION + 2, version=VERSION + 2, is_followed=True)
        assert await event.ask("A-1", user="bob") == ASKED
        event.pass_time(2 * PASSED_SECONDS)
        await event.apply(after=VERSION + 2, version=VERSION + 2, is_followed=True)
        assert await event.ask("A-1", user="bob") == taken("A-1")
        assert await event.ask("A-1", user="cid") == ASKED
        for key in redis.client().keys(f"{event.keys.prefix}passed:*"):
            assert 0 < redis.client().pttl(key) <= 2 * PASSED_SECONDS * 1000


@async_test
async def test_a_refused_buyer_stays_unknown(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1"))
        for _ in range(3):
            assert await event.ask("A-1", user="bob", key=b"the same") == taken("A-1")


@async_test
async def test_nobody_is_refused_unless_the_journal_was_just_followed(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1"))
        event.pass_time(CURRENT_SECONDS)
        assert await event.ask("A-1") == taken("A-1")
        event.pass_time(0.001)
        assert await event.ask("A-1") == ASKED


@async_test
async def test_nobody_is_refused_in_an_event_that_was_put_to_sleep(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1"))
        await event.calls.run([put_to_sleep(event.keys)])
        assert await event.ask("A-1") == ASKED
        await event.apply(event.booking("A-2", version=VERSION + 2), after=VERSION, version=VERSION + 1)
        assert await event.ask("A-1") == ASKED, "only the journal wakes it up"
        await event.apply(after=VERSION + 1, version=VERSION + 1, is_followed=True)
        assert await event.ask("A-1") == taken("A-1")


@async_test
async def test_nobody_is_refused_without_the_known_buyers(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1"))
        redis.client().delete(event.keys.known)
        assert await event.ask("A-1") == ASKED


@async_test
async def test_nobody_is_refused_if_users_were_hashed_with_another_secret(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1"))
        event.secret = structs.replace(SECRET, number=2, value=b"another")
        assert await event.ask("A-1", user="ann") == ASKED
        assert await event.ask("A-1", user="bob") == ASKED


@async_test
async def test_entries_of_an_earlier_generation_count_for_nothing(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1", version=100))
        await event.wake("second")
        assert await event.ask("A-1") == ASKED
        await event.apply(event.booking("A-1", version=50))
        assert event.entry("A-1")["generation"] == "second"


@async_test
async def test_a_broken_entry_counts_for_nothing(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        redis.client().set(event.keys.seat("A-1"), "not JSON")
        assert await event.ask("A-1") == ASKED
        redis.client().set(event.keys.seat("A-2"), "{")
        await event.apply(event.booking("A-2"))
        assert event.states("A-1", "A-2") == ["pending", "held"]


@async_test
async def test_a_commit_turns_pending_into_held_until_the_booking_ends(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.ask("A-1", user="ann")
        await event.apply(event.booking("A-1", user="ann", seconds=600))
        entry = event.entry("A-1")
        assert (entry["state"], entry["expires_at"]) == ("held", "2027-03-05T19:10:00.000Z")
        assert entry["user_id"] == hash_user(SECRET, event.org, "ann")


@async_test
async def test_an_extension_that_arrives_late_does_not_shorten_a_hold(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        hold = event.booking("A-1", version=10)
        extended = structs.replace(hold, expires_at=START + timedelta(seconds=900), version=11)
        await event.apply(extended)
        await event.apply(hold)
        assert event.entry("A-1")["expires_at"] == "2027-03-05T19:15:00.000Z"


@async_test
async def test_only_its_own_booking_or_a_later_one_releases_a_seat(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        first = event.booking("A-1", version=10)
        second = event.booking("A-1", user="bob", version=12)
        await event.apply(second)
        await event.apply(structs.replace(first, status=Status.CANCELLED, version=11))
        assert event.entry("A-1")["booking"] == ids.format_booking_id(event.id, second.id)
        await event.apply(structs.replace(second, status=Status.CANCELLED, version=13))
        assert await event.ask("A-1") == ASKED


@async_test
async def test_a_late_message_does_not_bring_a_released_seat_back(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        hold = event.booking("A-1", version=10)
        await event.apply(structs.replace(hold, status=Status.CANCELLED, version=11))
        await event.apply(hold)
        assert await event.ask("A-1", user="bob") == ASKED
        await event.apply(hold)
        assert event.states("A-1") == ["pending"]


@async_test
async def test_a_message_that_the_journal_has_overtaken_does_not_bring_a_released_seat_back(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        hold = event.booking("A-1", version=VERSION + 1)
        cancelled = structs.replace(hold, status=Status.CANCELLED, version=VERSION + 2)
        await event.apply(cancelled, after=VERSION, version=VERSION + 2, is_followed=True)
        # Redis drops the entry that remembers the version of the release.
        redis.client().delete(event.keys.seat("A-1"))
        await event.apply(hold, after=VERSION, version=VERSION + 1)
        assert event.states("A-1") == [None]


@async_test
async def test_what_a_builder_reads_too_early_is_corrected_from_the_journal(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        hold = event.booking("A-1", version=VERSION)
        cancelled = structs.replace(hold, status=Status.CANCELLED, version=VERSION + 1)
        head = Head(event.clock.at, event.org, VERSION, REVISION)
        await event.calls.run([begin_generation(event.keys, head, "second", SECRET)])
        await event.apply(cancelled, after=VERSION, version=VERSION + 1)
        redis.client().delete(event.keys.seat("A-1"))
        await event.apply(hold, generation="second")
        await event.calls.run([complete_generation(event.keys, "second", parts=0)])
        assert event.states("A-1") == ["held"]
        assert await event.apply(cancelled, after=VERSION, version=VERSION + 1, is_followed=True)
        assert await event.ask("A-1", user="bob") == ASKED


@async_test
async def test_a_server_that_cannot_write_does_not_refuse_either(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1"))
        redis.run("REPLICAOF", "127.0.0.1", "9")
        try:
            assert await event.ask("A-1") == UNASKED
        finally:
            redis.run("REPLICAOF", "NO", "ONE")
        assert event.calls.breaker.report.failures == 1
        assert await event.ask("A-1") == taken("A-1")


@async_test
async def test_a_release_leaves_the_pending_entry_of_the_next_buyer(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        hold = event.booking("A-1", seconds=1)
        await event.apply(hold)
        event.pass_time(1)
        await event.ask("A-1", user="bob")
        await event.apply(structs.replace(hold, status=Status.EXPIRED, version=VERSION + 2))
        assert event.states("A-1") == ["pending"]


@async_test
async def test_a_refused_hold_releases_only_its_own_pending_entries(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.ask("A-1")
        booking = ids.parse_booking_id(event.entry("A-1")["booking"])
        assert booking is not None
        for other, state in ((ids.new_id(), "pending"), (booking[1], "free")):
            builder = ChangeBuilder(event.org, event.id, SECRET, START)
            builder.release(other, ["A-1"])
            await event.calls.run([builder.command(Change(now=format_time(START)))])
            assert event.states("A-1") == [state]
        assert await event.ask("A-1") == ASKED


@async_test
async def test_commits_in_order_keep_an_event_awake(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        for number in range(1, 4):
            event.pass_time(2)
            version = VERSION + number
            await event.apply(event.booking(f"A-{number}", version=version), after=version - 1, version=version)
        assert await event.ask("A-1", "A-2", "A-3") == taken("A-1", "A-2", "A-3")


@async_test
async def test_a_missing_commit_stops_the_clock_of_an_event(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        event.pass_time(2)
        await event.apply(event.booking("A-1", version=VERSION + 2), after=VERSION + 1, version=VERSION + 2)
        assert await event.ask("A-1") == taken("A-1"), "what arrived counts"
        event.pass_time(2)
        assert await event.ask("A-1") == ASKED, "but Redis may have missed a release"


@async_test
async def test_commits_that_arrive_out_of_order_count_once_there_is_no_gap(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        for number in (3, 2, 5, 1, 4):
            event.pass_time(1)
            version = VERSION + number
            await event.apply(event.booking(f"A-{number}", version=version), after=version - 1, version=version)
        assert await event.ask("A-1", "A-5") == taken("A-1", "A-5")
        assert redis.client().hget(event.keys.state, "version") == str(VERSION + 5)
        assert redis.client().exists(event.keys.ahead) == 0


@async_test
async def test_the_journal_takes_commits_along_that_were_ahead(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        for number in (3, 5):
            version = VERSION + number
            await event.apply(event.booking(f"A-{number}", version=version), after=version - 1, version=version)
        await event.apply(after=VERSION, version=VERSION + 2, is_followed=True)
        assert redis.client().hget(event.keys.state, "version") == str(VERSION + 3)
        assert redis.client().exists(event.keys.ahead) == 0


@async_test
async def test_a_step_of_the_journal_fits_only_where_redis_stands(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        hold = event.booking("A-1")
        assert not await event.apply(hold, after=VERSION + 1, version=VERSION + 2, is_followed=True)
        assert not await event.apply(hold, after=VERSION, version=VERSION + 1, is_followed=True, generation="another")
        assert event.states("A-1") == [None]
        assert await event.apply(hold, after=VERSION, version=VERSION + 1, is_followed=True, generation="first")
        assert event.states("A-1") == ["held"]


@async_test
async def test_a_step_of_the_journal_that_is_not_the_last_leaves_the_event_asleep(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1"), after=VERSION, version=VERSION + 1)
        event.pass_time(CURRENT_SECONDS + 1)
        await event.apply(after=VERSION + 1, version=VERSION + 2, is_followed=True, is_complete=False)
        assert await event.ask("A-1") == ASKED
        await event.apply(after=VERSION + 2, version=VERSION + 3, is_followed=True)
        assert await event.ask("A-1") == taken("A-1")


@async_test
async def test_a_time_in_the_future_wakes_nobody_up(redis: RedisServer) -> None:
    """The clock of a database that takes over may be behind."""
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1", seconds=7200))
        event.pass_time(-CURRENT_SECONDS - 0.001)
        assert await event.ask("A-1") == ASKED
        event.pass_time(0.001)
        assert await event.ask("A-1") == taken("A-1")


@async_test
async def test_a_database_that_has_lost_commits_makes_redis_forget_the_event(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        for number in (1, 2):
            version = VERSION + number
            await event.apply(event.booking(f"A-{number}", version=version), after=version - 1, version=version)
        # A message that comes late is older than what Redis knows.
        await event.apply(event.booking("A-1", version=VERSION + 1), after=VERSION, version=VERSION + 1)
        assert await event.ask("A-1") == taken("A-1")
        event.pass_time(1)
        assert not await event.apply(event.booking("A-3", version=VERSION + 1), after=VERSION, version=VERSION + 1)
        assert await event.ask("A-1") == ASKED


@async_test
async def test_a_change_with_hashes_of_another_secret_does_not_fit(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        event.secret = structs.replace(SECRET, number=2, value=b"another")
        assert not await event.apply(event.booking("A-1"), after=VERSION, version=VERSION + 1)
        assert redis.client().hget(event.keys.state, "version") == str(VERSION)


@async_test
async def test_a_generation_of_which_redis_has_lost_a_part_is_not_complete(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        head = Head(event.clock.at, event.org, VERSION, REVISION)
        await event.calls.run([begin_generation(event.keys, head, "second", SECRET)])
        for number in (1, 2):
            builder = ChangeBuilder(event.org, event.id, SECRET, START)
            builder.add_part("second", number)
            await event.calls.run([builder.command(Change(now=format_time(START), generation="second"))])
            if number == 1:
                redis.client().delete(event.keys.known)
        assert await event.calls.run([complete_generation(event.keys, "second", parts=2)]) == [0]


@async_test
async def test_completing_a_generation_ends_only_its_own_lease(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        redis.client().set(event.keys.build, "another")
        await event.calls.run([complete_generation(event.keys, "first", parts=0)])
        assert redis.client().get(event.keys.build) == "another"
        redis.client().set(event.keys.build, "first")
        await event.calls.run([complete_generation(event.keys, "first", parts=0)])
        assert redis.client().get(event.keys.build) is None


@async_test
async def test_what_is_left_of_a_pool_counts_only_without_a_gap(redis: RedisServer) -> None:
    """The missing commit may be the booking of the very buyer who asks again, after the response got lost."""
    async with awake_event(redis) as event:
        await event.apply(after=VERSION, version=VERSION, is_followed=True, pools={"stalls": 2})
        last = event.booking("A-2", version=VERSION + 2)
        await event.apply(last, after=VERSION + 1, version=VERSION + 2, pools={"stalls": 0})
        assert await event.ask(pool="stalls", quantity=1) == ASKED
        await event.apply(event.booking("A-1"), after=VERSION, version=VERSION + 1, pools={"stalls": 1})
        assert await event.ask(pool="stalls", quantity=1) == TooFewLeft(0, REVISION)


@async_test
async def test_a_pool_with_too_few_seats_left_refuses_until_a_hold_in_it_may_expire(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        hold = event.booking("A-1", seconds=2)
        await event.apply(hold, after=VERSION, version=VERSION + 1, pools={"stalls": 2})
        assert await event.ask(pool="stalls", quantity=3) == TooFewLeft(2, REVISION)
        assert await event.ask(pool="stalls", quantity=2) == ASKED
        assert await event.ask(pool="balcony", quantity=3) == ASKED
        event.pass_time(2)
        assert await event.ask(pool="stalls", quantity=3) == ASKED


@async_test
async def test_values_name_no_user_and_keys_carry_org_and_event(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.ask("A-1", user="ann@example.com")
        await event.apply(event.booking("A-2", user="bob@example.com"))
        client = redis.client()
        tag = f"org:{ids.format_org_id(event.org)}:event:{{{ids.format_event_id(event.id)}}}:"
        assert {event.keys.seat("A-1"), event.keys.state, event.keys.known} <= set(client.keys(f"{tag[:-1]}*"))
        assert event.keys.seat("A-1") == f"{tag}seat:A-1"
        assert set(event.entry("A-2")) == {
            "user_id",
            "booking",
            "state",
            "held_at",
            "expires_at",
            "version",
            "generation",
        }
        values = [str(client.get(event.keys.seat(label))) for label in ("A-1", "A-2")]
        members: Any = [*client.smembers(event.keys.known), *client.smembers(event.keys.passed(START)[0])]
        assert len(members) == 6
        assert "example.com" not in "".join([*values, *members])


@async_test
async def test_without_the_databases_time_everyone_passes(redis: RedisServer) -> None:
    async with awake_event(redis) as event:
        await event.apply(event.booking("A-1"))
        event.queue = AcquireQueue(event.calls, DatabaseClock())
        assert await event.ask("A-1") == UNASKED
        assert isinstance(UNASKED, Passed)
