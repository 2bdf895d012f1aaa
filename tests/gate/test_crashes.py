"""A process may die between what it tells Redis and what it tells PostgreSQL, in either order. The seat is for sale
again within five seconds."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from holdfast.core.commands import Accepted
from holdfast.core.states import Verb
from holdfast.gate.entries import EventKeys
from holdfast.runtime import db, ids
from tests.support.concurrent_requests import count_codes, hold_request, send_all_at_once
from tests.support.engine_harness import EventHandle, new_action_command, run_commands
from tests.support.harness import (
    Org,
    Server,
    connection_to,
    example_event,
    fresh_database,
    post_hold,
    publish_event,
    running_server,
    wait_until,
)
from tests.support.redis_process import RedisServer, running_redis

SELLABLE_SECONDS = 5
PATIENCE_SECONDS = 30
BUYERS = 1000


class TwoServers:
    """Two servers with one API process each, in front of them one Redis, and an event that Redis knows."""

    def __init__(self, redis: RedisServer, dying: Server, other: Server) -> None:
        self.redis = redis
        self.dying = dying
        self.other = other
        self.org = Org(other.database_url)
        with other.client(self.org.headers()) as admin:
            self.event = publish_event(admin, example_event())
        self.keys = EventKeys(self.org.id, ids.parse_event_id(self.event) or b"")
        for server in (dying, other):
            assert self.hold(server, "B-20").status_code in (201, 409)
        wait_until(lambda: self.redis.client().hget(self.keys.state, "at") is not None, PATIENCE_SECONDS)

    def hold(self, server: Server, label: str, user: str = "") -> httpx.Response:
        with server.client(self.org.headers("sales")) as client:
            return post_hold(client, self.event, user=user or f"u-{time.time_ns()}", items=[{"seat": label}])

    def state_of(self, label: str) -> str | None:
        value = self.redis.client().get(self.keys.seat(label))
        return None if value is None else str(value).partition('"state":"')[2].partition('"')[0]

    def kill(self) -> None:
        for pid in [*self.dying.api_pids(), self.dying.process.pid]:
            os.kill(pid, signal.SIGKILL)

    def expect_sale(self, label: str, since: float) -> None:
        """The other server sells the seat. It may refuse it for a moment, but not for longer than we promise."""
        asked_at = time.monotonic()
        while (answer := self.hold(self.other, label)).status_code != 201:
            assert answer.json()["code"] == "seat_taken"
            assert asked_at - since <= SELLABLE_SECONDS
            time.sleep(0.05)
            asked_at = time.monotonic()


@contextmanager
def two_servers(postgres: str) -> Iterator[TwoServers]:
    with ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        url = stack.enter_context(fresh_database(postgres))
        servers = [stack.enter_context(running_server(url, workers=1, HOLDFAST_REDIS_URL=redis.url)) for _ in range(2)]
        yield TwoServers(redis, *servers)


@contextmanager
def locked(url: str, event: str) -> Iterator[None]:
    """Hold the event's lock in a thread of its own, as another process would."""
    is_locked, release = threading.Event(), threading.Event()

    async def lock() -> None:
        async with connection_to(url) as connection, connection.transaction():
            await connection.execute("SELECT FROM event WHERE id = $1 FOR UPDATE", ids.parse_event_id(event))
            is_locked.set()
            await asyncio.to_thread(release.wait)

    thread = threading.Thread(target=lambda: asyncio.run(lock()))
    thread.start()
    assert is_locked.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        release.set()
        thread.join()


async def cancel_and_tell_nobody(url: str, org: bytes, booking: str) -> None:
    """What the database is left with if the process dies right after the commit."""
    parsed = ids.parse_booking_id(booking)
    assert parsed is not None
    async with connection_to(url, db.connect_lane) as connection:
        cancel = new_action_command(EventHandle(parsed[0], org), parsed[1], Verb.CANCEL)
        (outcome,) = await run_commands(connection, [cancel])
        assert isinstance(outcome, Accepted)


def _ignore_lost_answer(request: "threading.Thread") -> None:
    request.join(PATIENCE_SECONDS)
    assert not request.is_alive()


def test_a_process_that_dies_before_its_commit_leaves_no_ghost(postgres: str) -> None:
    with two_servers(postgres) as servers:

        def hold() -> None:
            with pytest.raises(httpx.TransportError):
                servers.hold(servers.dying, "A-1")

        with locked(servers.other.database_url, servers.event):
            request = threading.Thread(target=hold)
            request.start()
            wait_until(lambda: servers.state_of("A-1") == "pending", PATIENCE_SECONDS)
            servers.kill()
            died_at = time.monotonic()
        _ignore_lost_answer(request)
        servers.expect_sale("A-1", died_at)


def test_a_process_that_dies_after_a_release_leaves_no_ghost(postgres: str) -> None:
    """The cancellation is committed, and the process dies before it tells Redis."""
    with two_servers(postgres) as servers:
        booking = servers.hold(servers.dying, "A-1").json()["id"]
        wait_until(lambda: servers.state_of("A-1") == "held", PATIENCE_SECONDS)
        asyncio.run(cancel_and_tell_nobody(servers.other.database_url, servers.org.id, booking))
        died_at = time.monotonic()
        servers.kill()
        servers.expect_sale("A-1", died_at)


def test_a_process_that_dies_after_its_commit_keeps_the_seat(postgres: str) -> None:
    with two_servers(postgres) as servers:
        servers.redis.pause()
        assert servers.hold(servers.dying, "A-1", user="ann").status_code == 201
        servers.kill()
        servers.redis.resume()
        assert servers.hold(servers.other, "A-1").json()["code"] == "seat_taken"
        again = servers.hold(servers.other, "A-1", user="ann")
        assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
        wait_until(lambda: servers.state_of("A-1") == "held", PATIENCE_SECONDS)


@pytest.mark.parametrize("fault", ["none", "killed", "paused"])
def test_exactly_one_of_1000_buyers_gets_the_seat(postgres: str, fault: str) -> None:
    """With Redis, and with a Redis that fails in the middle. Without one, `tests/races` has the same race."""
    with running_redis() as redis, fresh_database(postgres) as url:
        with running_server(url, workers=2, HOLDFAST_REDIS_URL=redis.url) as server:
            org = Org(url)
            with server.client(org.headers()) as admin:
                event = publish_event(admin, example_event())
                # Both processes know the event, and Redis does.
                for number in range(1, 9):
                    post_hold(admin, event, user=f"u-{number}", items=[{"seat": f"B-{number}"}])
            wait_until(lambda: any(redis.client().hgetall(key).get("at") for key in redis.client().keys("*:state")), 30)
            requests = [
                hold_request(org.keys["sales"], event, f"k{n}", {"user": f"b{n}", "items": [{"seat": "A-7"}]})
                for n in range(BUYERS)
            ]
            break_redis = {"none": lambda: None, "killed": redis.kill, "paused": redis.pause}[fault]
            timer = threading.Timer(0.05, break_redis)
            timer.start()
            replies = send_all_at_once(server.port, requests)
            timer.join()
            assert count_codes(replies) == {"201": 1, "seat_taken": BUYERS - 1}
            if fault == "paused":
                redis.resume()
