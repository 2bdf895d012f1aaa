"""`holdfast gate check` finds what differs between Redis and PostgreSQL, and repairs it."""

import asyncio
import json
from typing import Any

import pytest

from holdfast.core.commands import Accepted
from holdfast.gate.entries import EventKeys
from holdfast.runtime import ids
from tests.support.command_line import call_holdfast
from tests.support.engine_harness import EventHandle, async_test, new_hold_command, run_commands
from tests.support.gate_harness import Gated, running_gate
from tests.support.harness import connection_to, free_port
from tests.support.redis_process import RedisServer


class Checked:
    """An event that Redis knows, with A-1 and A-2 held, and nobody who would correct what a test does to it."""

    def __init__(self, url: str, redis: RedisServer, event: EventHandle, bookings: list[bytes]) -> None:
        self.url = url
        self.redis = redis.client()
        self.keys = EventKeys(event.org, event.id)
        self.event = event
        self.bookings = [ids.format_booking_id(event.id, booking) for booking in bookings]
        self._redis_url = redis.url

    def check(self, *options: str) -> tuple[int, Any]:
        done = call_holdfast(self.url, "gate", "check", *options, HOLDFAST_REDIS_URL=self._redis_url)
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)

    def differences(self) -> list[tuple[str, str | None, str | None]]:
        code, report = self.check()
        assert code == 1
        assert report["ok"] is False
        return [(each["kind"], each["seat"], each["booking"]) for each in report["differences"]]


@pytest.fixture
def checked(database: str, redis: RedisServer) -> Checked:
    async def prepare() -> tuple[EventHandle, list[bytes]]:
        async with running_gate(database, redis) as gated:
            event = await gated.new_event()
            await gated.wake(event)
            outcomes = [await gated.hold(event, label, user=user) for label, user in (("A-1", "ann"), ("A-2", "bob"))]
            await gated.settle()
            return event, [outcome.booking.id for outcome in outcomes if isinstance(outcome, Accepted)]

    event, bookings = asyncio.run(prepare())
    return Checked(database, redis, event, bookings)


def test_nothing_differs_after_an_ordinary_sale(checked: Checked) -> None:
    code, report = checked.check()
    # How long ago the sale was depends on the machine.
    assert report.pop("asleep") in ([], [checked.event.text])
    assert (code, report) == (0, {"ok": True, "events": 1, "seats": 2, "differences": [], "repaired": False})


def test_a_seat_that_only_redis_takes_for_held_is_found(checked: Checked) -> None:
    value = checked.redis.get(checked.keys.seat("A-1"))
    checked.redis.set(checked.keys.seat("A-9"), str(value))
    assert checked.differences() == [("free_in_database", "A-9", None)]


def test_a_seat_that_redis_has_forgotten_is_found(checked: Checked) -> None:
    checked.redis.delete(checked.keys.seat("A-2"))
    assert checked.differences() == [("missing", "A-2", checked.bookings[1])]


@pytest.mark.parametrize("field", ["user_id", "booking", "expires_at", "state"])
def test_a_seat_that_differs_in_any_field_is_found(checked: Checked, field: str) -> None:
    entry = json.loads(str(checked.redis.get(checked.keys.seat("A-1"))))
    other = {
        "user_id": "0" * 24,
        "booking": checked.bookings[1],
        "expires_at": "2099-01-01T00:00:00.000Z",
        "state": "sold",
    }
    checked.redis.set(checked.keys.seat("A-1"), json.dumps({**entry, field: other[field]}))
    assert checked.differences() == [("different", "A-1", checked.bookings[0])]


def test_a_buyer_whom_redis_does_not_know_is_found(checked: Checked) -> None:
    member = next(each for each in checked.redis.smembers(checked.keys.known) if str(each).startswith("user:"))
    checked.redis.srem(checked.keys.known, str(member))
    ((kind, seat, booking),) = checked.differences()
    assert (kind, seat) == ("unknown_buyer", None)
    assert booking in checked.bookings


def test_a_pool_that_redis_miscounts_is_found_and_repaired(checked: Checked) -> None:
    (field,) = (key for key in checked.redis.hgetall(checked.keys.state) if str(key).startswith("pool:"))
    left, _, _ = str(checked.redis.hget(checked.keys.state, field)).partition("@")
    assert int(left) > 0
    checked.redis.hset(checked.keys.state, field, "0@999999999")
    _, report = checked.check("--repair")
    assert [(each["kind"], each["pool"]) for each in report["differences"]] == [("wrong_count", field[5:])]
    assert (report["ok"], checked.redis.hget(checked.keys.state, field)) == (True, None)


def test_repair_rebuilds_the_event(checked: Checked) -> None:
    checked.redis.set(checked.keys.seat("A-9"), str(checked.redis.get(checked.keys.seat("A-1"))))
    checked.redis.delete(checked.keys.seat("A-2"))
    code, report = checked.check("--repair")
    assert (code, report["ok"], report["repaired"], len(report["differences"])) == (0, True, True, 2)
    code, report = checked.check()
    assert (code, report["differences"], report["seats"]) == (0, [], 2)


def test_repair_waits_for_a_process_that_builds_the_event(checked: Checked) -> None:
    checked.redis.delete(checked.keys.seat("A-2"))
    checked.redis.set(checked.keys.build, "another process", ex=4)
    code, report = checked.check("--repair")
    assert (code, report["ok"], report["repaired"]) == (0, True, True)
    assert checked.check()[1]["differences"] == []


def test_an_event_that_cannot_be_repaired_still_differs(checked: Checked) -> None:
    checked.redis.delete(checked.keys.seat("A-2"))
    checked.redis.set(checked.keys.build, "another process")
    code, report = checked.check("--repair")
    assert (code, report["ok"], report["repaired"], len(report["differences"])) == (1, False, False, 1)


def test_after_a_rotation_of_the_secret_nothing_differs(checked: Checked) -> None:
    assert call_holdfast(checked.url, "secrets", "rotate", "client-addresses").returncode == 0
    code, report = checked.check()
    assert (code, report["asleep"], report["differences"]) == (0, [checked.event.text], [])


def test_an_event_that_nobody_asks_for_is_asleep(checked: Checked) -> None:
    checked.redis.hset(checked.keys.state, "at", "2026-01-01T00:00:00.000Z")
    code, report = checked.check()
    assert (code, report["asleep"], report["differences"]) == (0, [checked.event.text], [])


def test_events_of_another_database_are_left_alone(checked: Checked) -> None:
    other = EventKeys(ids.new_id(), ids.new_id())
    checked.redis.hset(other.state, "generation", "another")
    code, report = checked.check()
    assert (code, report["events"], report["differences"]) == (0, 1, [])


def test_what_is_on_its_way_is_no_difference(checked: Checked) -> None:
    """A hold that Redis has not heard of yet, in an event that is put to sleep, keeps no seat from anybody."""
    checked.redis.hdel(checked.keys.state, "at")
    asyncio.run(_hold(checked, "A-3"))
    code, report = checked.check()
    assert (code, report["asleep"], report["differences"]) == (0, [checked.event.text], [])


async def _hold(checked: Checked, label: str) -> None:
    async with connection_to(checked.url) as connection:
        await run_commands(connection, [new_hold_command(checked.event, label)])


@async_test
async def test_a_sale_that_goes_on_is_no_difference(database: str, redis: RedisServer) -> None:
    async with running_gate(database, redis) as gated:
        event = await gated.new_event()
        await gated.wake(event)
        selling = asyncio.create_task(_sell(gated, event))
        done = await asyncio.to_thread(call_holdfast, database, "gate", "check", HOLDFAST_REDIS_URL=redis.url)
        selling.cancel()
        assert (done.returncode, json.loads(done.stdout)["differences"]) == (0, [])


async def _sell(gated: Gated, event: EventHandle) -> None:
    for number in range(1, 21):
        await gated.hold(event, f"A-{number}")
        await asyncio.sleep(0.05)


def test_without_a_redis_it_says_what_to_set(database: str) -> None:
    done = call_holdfast(database, "gate", "check")
    assert (done.returncode, done.stdout) == (2, "")
    assert "HOLDFAST_REDIS_URL" in done.stderr


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{port}", "http://127.0.0.1:{port}"])
def test_a_redis_that_does_not_answer_is_named(database: str, url: str) -> None:
    done = call_holdfast(database, "gate", "check", HOLDFAST_REDIS_URL=url.format(port=free_port()))
    assert (done.returncode, done.stdout) == (2, "")
    assert "HOLDFAST_REDIS_URL" in done.stderr
    assert "Traceback" not in done.stderr
