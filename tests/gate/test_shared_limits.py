"""All processes together allow what one limit allows. Without Redis, each counts on its own."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from holdfast.api.rate_limit import RateLimit
from holdfast.core.refusals import RefusedError
from holdfast.gate.circuit_breaker import CircuitBreaker
from holdfast.gate.redis_client import BACKGROUND_SECONDS, RedisCalls, RedisUrl, open_client
from holdfast.gate.shared_limits import SharedLimits
from holdfast.gate.user_hash import UserHasher
from holdfast.runtime import db
from tests.support.engine_harness import async_test
from tests.support.harness import Org, Server, connection_to, fresh_database, running_server
from tests.support.redis_process import RedisServer

RATE = 20
SERVERS = 3
TRIES = 5


@contextmanager
def limited_servers(postgres: str, **environment: str) -> Iterator[list[Server]]:
    """Hosts that share a database, each with one process."""
    with fresh_database(postgres) as url, ExitStack() as stack:
        yield [
            stack.enter_context(running_server(url, workers=1, worker=False, HOLDFAST_PROXIES="1", **environment))
            for _ in range(SERVERS)
        ]


def count_allowed(servers: list[Server], headers: dict[str, str], seconds: float = 2) -> float:
    """How many requests per second the servers allow together, after the burst."""
    with ExitStack() as stack:
        clients = [stack.enter_context(server.client(headers)) for server in servers]
        _request_for(clients, 1)
        began = time.monotonic()
        allowed = _request_for(clients, seconds)
        return allowed / (time.monotonic() - began)


def _request_for(clients: list[httpx.Client], seconds: float) -> int:
    allowed, give_up_at = 0, time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        for client in clients:
            allowed += client.get("/v1/bookings").status_code != 429
    return allowed


def test_servers_with_a_redis_share_their_limits(postgres: str, shared_redis: RedisServer) -> None:
    """Together they allow about as much as one of them, and alone three times as much. A busy machine shares late or
    asks slowly, so each measurement has several tries."""
    limits = {"HOLDFAST_RATE_PER_KEY": str(RATE), "HOLDFAST_RATE_PER_ADDRESS": str(RATE)}
    between = RATE * SERVERS / 2
    for environment, is_shared in (({"HOLDFAST_REDIS_URL": shared_redis.url}, True), ({}, False)):
        with limited_servers(postgres, **environment, **limits) as servers:
            for headers in (Org(servers[0].database_url).headers(), {"X-Forwarded-For": "203.0.113.9"}):
                measured = (count_allowed(servers, headers) < between for _ in range(TRIES))
                assert any(is_low is is_shared for is_low in measured)


def make_limits(count: int, rate: float) -> list[RateLimit]:
    return [RateLimit("test", rate, is_shared=True) for _ in range(count)]


def spend_all(limit: RateLimit, caller: str) -> int:
    spent = 0
    try:
        while True:
            limit.spend(caller)
            spent += 1
    except RefusedError:
        return spent


@async_test
async def test_what_one_process_allows_is_missing_in_the_others(database: str, shared_redis: RedisServer) -> None:
    first, second = make_limits(2, rate=50)
    async with connection_to(database) as connection:
        calls = RedisCalls(open_client(RedisUrl.parse(shared_redis.url)), CircuitBreaker(), BACKGROUND_SECONDS)
        sharing = [SharedLimits(calls, UserHasher(db.Database(connection)), [limit]) for limit in (first, second)]
        assert spend_all(first, "greedy") == pytest.approx(first.burst, abs=5)
        second.spend("greedy")
        for _ in range(int(second.burst * 0.05)):
            second.spend("greedy")
        for each in sharing:
            await each.share()
        assert spend_all(second, "greedy") < 10
        assert spend_all(second, "modest") == pytest.approx(second.burst, abs=5)
        await calls.close()


@async_test
async def test_redis_learns_no_address_and_hears_only_of_callers_near_the_limit(
    database: str, redis: RedisServer
) -> None:
    (limit,) = make_limits(1, rate=100)
    async with connection_to(database) as connection:
        calls = RedisCalls(open_client(RedisUrl.parse(redis.url)), CircuitBreaker(), BACKGROUND_SECONDS)
        sharing = SharedLimits(calls, UserHasher(db.Database(connection)), [limit])
        for number in range(50):
            limit.spend(f"198.51.100.{number}")
        await sharing.share()
        assert redis.client().keys("*") == []
        for _ in range(50):
            limit.spend("203.0.113.9")
        await sharing.share()
        (key,) = redis.client().keys("*")
        assert "203.0.113.9" not in str(key)
        assert 0 < redis.client().pttl(str(key)) <= 10_000
        await calls.close()


def test_a_customer_has_a_limit_of_their_own(postgres: str) -> None:
    with fresh_database(postgres) as url, running_server(url, workers=1, HOLDFAST_RATE_PER_USER="5") as server:
        org = Org(url)
        with server.client(org.headers("sales")) as sales:
            tokens = [sales.post("/v1/customer-tokens", json={"user": user}).json()["token"] for user in ("ann", "bob")]
        with server.client({"Authorization": f"Bearer {tokens[0]}"}) as ann:
            codes = [ann.get("/v1/bookings").status_code for _ in range(30)]
        assert codes[0] == 200
        assert 429 in codes
        with server.client({"Authorization": f"Bearer {tokens[1]}"}) as bob:
            assert bob.get("/v1/bookings").status_code == 200
