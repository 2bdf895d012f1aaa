"""Whatever happens to Redis under load, no seat has two owners, no acknowledged booking is lost, no free seat is
refused for long, and buyers see no errors."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.harness import (
    IS_LONG,
    Org,
    Server,
    example_event,
    fresh_database,
    publish_event,
    running_server,
    wait_until,
)
from tests.support.log_capture import redirect_output
from tests.support.redis_process import RedisServer, running_redis
from tests.support.seat_shoppers import (
    KEPT_SECONDS,
    POLICY,
    POOLS,
    STALE_SECONDS,
    Attempt,
    SeatShoppers,
    Taken,
    find_overlaps,
    find_unjust_refusals,
    shopping_in_background,
)

# What we promise.
SETTLED_SECONDS = 2
ERRORS_PER_THOUSAND = 1
OPENS_SECONDS = 1
CLOSES_SECONDS = 35
# How long each phase lasts at least, and how long a busy machine may take to get there.
PHASE_SECONDS = 10 if IS_LONG else 1
# A seat that Redis wrongly keeps from buyers shows up after this time.
WATCH_SECONDS = KEPT_SECONDS + STALE_SECONDS + (10 if IS_LONG else 2)
PAUSED_SECONDS = 5
PATIENCE_SECONDS = 60


class Shop:
    """Two API processes behind a Redis, under load."""

    def __init__(self, redis: RedisServer, server: Server, shoppers: SeatShoppers, log: Path) -> None:
        self.redis = redis
        self.server = server
        self.shoppers = shoppers
        self._log = log

    def transitions(self, since: float = 0) -> list[tuple[str, float]]:
        """The states that the breakers of all processes moved to, with the time of each."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if '"redis_breaker"' in line]
        moves = [(line["state"], datetime.fromisoformat(line["timestamp"]).timestamp()) for line in lines]
        return [move for move in moves if move[1] >= since]

    def wait_for(self, state: str, since: float) -> float:
        """Wait until both processes have got there. Returns how long the slower one took."""
        wait_until(lambda: self._count(state, since) >= 2, PATIENCE_SECONDS)
        return max(at for move, at in self.transitions(since) if move == state) - since

    def _count(self, state: str, since: float) -> int:
        return sum(move == state for move, _ in self.transitions(since))


@contextmanager
def busy_shop(postgres: str, log: Path) -> Iterator[Shop]:
    with running_redis() as redis, fresh_database(postgres) as url:
        with redirect_output(log), running_server(url, workers=2, HOLDFAST_REDIS_URL=redis.url) as server:
            org = Org(url)
            with server.client(org.headers()) as admin:
                event = publish_event(admin, example_event(pools=POOLS, policy=POLICY))
            with shopping_in_background(server, org.keys["sales"], event) as shoppers:
                shoppers.shop_for(PHASE_SECONDS)
                yield Shop(redis, server, shoppers, log)
    assert not [line for line in log.read_text().splitlines() if '"level":"error"' in line]


def expect_few_errors(shop: Shop, fault_at: float) -> None:
    settled_at = fault_at + SETTLED_SECONDS
    errors = shop.shoppers.errors_after(settled_at)
    assert errors.total() * 1000 <= shop.shoppers.count_after(settled_at) * ERRORS_PER_THOUSAND, errors


def break_for_a_while(shop: Shop, breaks: Callable[[], None], mends: Callable[[], None]) -> None:
    """Break Redis until both breakers have opened, and mend it until both have closed."""
    fault_at = time.time()
    breaks()
    try:
        opened_after = shop.wait_for("open", fault_at)
        shop.shoppers.shop_for(PHASE_SECONDS)
    finally:
        mended_at = time.time()
        mends()
    closed_after = shop.wait_for("closed", mended_at)
    shop.shoppers.shop_for(WATCH_SECONDS)
    expect_few_errors(shop, fault_at)
    if IS_LONG:
        # Only on a machine that has nothing else to do.
        assert opened_after <= OPENS_SECONDS
        assert closed_after <= CLOSES_SECONDS


def test_redis_is_killed_and_comes_back_empty(postgres: str, tmp_path: Path) -> None:
    with busy_shop(postgres, tmp_path / "log") as shop:
        break_for_a_while(shop, shop.redis.kill, shop.redis.start)


def test_redis_hangs(postgres: str, tmp_path: Path) -> None:
    with busy_shop(postgres, tmp_path / "log") as shop:
        break_for_a_while(shop, shop.redis.pause, lambda: _resume_after(shop, PAUSED_SECONDS - PHASE_SECONDS))


def _resume_after(shop: Shop, seconds: float) -> None:
    shop.shoppers.shop_for(max(seconds, 0))
    shop.redis.resume()


@pytest.mark.skipif(not IS_LONG, reason="like a Redis that hangs, but for the error; make test-long runs it")
def test_redis_has_no_memory_left(postgres: str, tmp_path: Path) -> None:
    with busy_shop(postgres, tmp_path / "log") as shop:

        def set_memory(limit: str) -> None:
            client = shop.redis.client()
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", limit)

        break_for_a_while(shop, lambda: set_memory("1mb"), lambda: set_memory("0"))


@pytest.mark.skipif(not IS_LONG, reason="like a Redis that hangs, but for the error; make test-long runs it")
def test_redis_becomes_a_read_only_replica(postgres: str, tmp_path: Path) -> None:
    with busy_shop(postgres, tmp_path / "log") as shop:

        def follow(host: str, port: str) -> None:
            shop.redis.run("REPLICAOF", host, port)

        break_for_a_while(shop, lambda: follow("127.0.0.1", "9"), lambda: follow("NO", "ONE"))


def test_redis_forgets_everything(postgres: str, tmp_path: Path) -> None:
    with busy_shop(postgres, tmp_path / "log") as shop:
        fault_at = time.time()
        for _ in range(3):
            shop.redis.client().flushall()
            shop.shoppers.shop_for(PHASE_SECONDS)
        shop.shoppers.shop_for(WATCH_SECONDS)
        expect_few_errors(shop, fault_at)
        wait_until(lambda: bool(shop.redis.client().keys("*:state")), PATIENCE_SECONDS)


def test_redis_restarts_from_an_old_dump(postgres: str, tmp_path: Path) -> None:
    with busy_shop(postgres, tmp_path / "log") as shop:
        shop.redis.save()
        break_for_a_while(shop, shop.redis.kill, shop.redis.start)
        assert shop.redis.client().keys("*:state")


def test_the_judge_finds_what_should_not_be() -> None:
    """A check of the checks."""
    refused = Attempt("A-1", 100, 100.1, 409, "seat_taken")
    assert find_unjust_refusals([refused], {"A-1": [Taken(90, 96)]}) == []
    assert find_unjust_refusals([refused], {"A-1": [Taken(90, 94.9)]}) != []
    assert find_unjust_refusals([refused], {"A-1": [Taken(100.2, 105)]}) != []
    rival = Attempt("A-1", 99.9, 100.05, 201, None)
    assert find_unjust_refusals([refused, rival], {"A-1": [Taken(100.2, 105)]}) == []
    assert find_overlaps({"A-1": [Taken(1, 3), Taken(2.9, 5)]}) == ["A-1"]
    assert find_overlaps({"A-1": [Taken(1, 3), Taken(3, 5)]}) == []
