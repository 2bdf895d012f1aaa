"""Seat maps and availability come from memory and always match the database."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from msgspec import json

from holdfast import sql
from holdfast.live import live_event as live_event_module
from holdfast.live import snapshot as snapshot_module
from holdfast.live.live_event import LiveEvent, LiveEventCache
from holdfast.live.messages import snapshot_message
from holdfast.live.snapshot import SeatSnapshot
from holdfast.runtime import db, ids
from holdfast.runtime.db import Database
from tests.support.concurrent_requests import Reply, hold_request, request, send_all_at_once_async
from tests.support.engine_harness import (
    async_test,
    lane_connection,
    new_event,
    new_hold_command,
    run_commands,
    shift_clock,
)
from tests.support.harness import Org, Server, example_event, post_hold, publish_event, wait_until

Body = dict[str, Any]
SeatsAndPools = tuple[list[Body], list[Body]]

ROWS = {"rows": ["A", "B"], "numbers": 20}
LABELS = [f"{row}-{number}" for row in "AB" for number in range(1, 21)]
SHORT_HOLDS = {"hold_seconds": 1, "avoid_orphans": False, "max_units_per_user": None}


@asynccontextmanager
async def database_pool(server: Server) -> AsyncIterator[db.Pool]:
    pool = await db.create_pool(server.database_url, 4)
    try:
        yield pool
    finally:
        await pool.close()


async def read_database(pool: db.Pool, event: bytes) -> SeatsAndPools:
    seats = [dict(row) for row in await pool.fetch(sql.reads.seats, event)]
    pools = [dict(row) for row in await pool.fetch(sql.reads.availability, event)]
    for each in pools:
        each["remaining"] = each["capacity"] - each["held"] - each["sold"]
    return seats, pools


def read_live_event(live_event: LiveEvent) -> SeatsAndPools:
    assert live_event.snapshot is not None
    seats = json.decode(b"".join(live_event.snapshot.seats_json()))
    available = json.decode(live_event.snapshot.availability_json())
    assert seats["version"] == available["version"] == live_event.version
    assert live_event.snapshot.taken == {
        seat["label"]: seat["state"] for seat in seats["seats"] if seat["state"] != "free"
    }
    return seats["seats"], available["pools"]


async def matches_database(pool: db.Pool, live_event: LiveEvent) -> bool:
    """Compare the read model with the database. Return False if the database changed meanwhile."""
    before = await read_database(pool, live_event.event)
    await live_event.refresh()
    if before != await read_database(pool, live_event.event):
        return False
    assert read_live_event(live_event) == before
    return True


class RandomActions:
    """Acts on an event at random, in every possible way."""

    def __init__(self, client: httpx.Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._bookings: list[str] = []
        self._added = 0
        stalls, standing = example_event()["pools"]
        self.event = publish_event(
            client, example_event(policy=SHORT_HOLDS, pools=[{**stalls, "seats": ROWS}, standing])
        )

    def act(self) -> None:
        methods = (self._hold_seats, self._hold_seats, self._hold_units, self._change_booking, self._change_booking)
        self._random.choice((*methods, self._block, self._change_capacity, self._add_pool))()

    def _hold_seats(self) -> None:
        items = [{"seat": label} for label in self._random.sample(LABELS, self._random.randint(1, 3))]
        self._keep_booking(post_hold(self._client, self.event, items=items))

    def _hold_units(self) -> None:
        item = {"pool": "standing", "tariff": "full", "quantity": self._random.randint(1, 4)}
        self._keep_booking(post_hold(self._client, self.event, items=[item]))

    def _keep_booking(self, answer: httpx.Response) -> None:
        if answer.status_code == 201:
            self._bookings.append(answer.json()["id"])

    def _change_booking(self) -> None:
        if self._bookings:
            booking = self._random.choice(self._bookings)
            self._client.post(
                f"/v1/bookings/{booking}/{self._random.choice(['confirm', 'cancel', 'refund', 'extend'])}"
            )

    def _block(self) -> None:
        change = self._random.choice(["block_seats", "unblock_seats"])
        self._change({change: self._random.sample(LABELS, 2)})

    def _change_capacity(self) -> None:
        self._change({"pools": [{"code": "standing", "capacity": self._random.randint(0, 600)}]})

    def _add_pool(self) -> None:
        self._added += 1
        seats = {"rows": [f"N{self._added}"], "numbers": 2}
        self._change({"pools": [{**example_event()["pools"][0], "code": f"new-{self._added}", "seats": seats}]})

    def _change(self, change: Body) -> None:
        assert self._client.patch(f"/v1/events/{self.event}", json=change).status_code < 500


def parse_event_id(event: str) -> bytes:
    found = ids.parse_event_id(event)
    assert found is not None
    return found


def test_the_read_model_always_equals_the_database(
    server: Server, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The seat map of this small hall has several parts, as that of an arena has.
    monkeypatch.setattr(snapshot_module, "PART_SEATS", 7)
    actions = RandomActions(admin, seed=1)

    async def act_and_compare() -> int:
        async with database_pool(server) as pool:
            live_event = LiveEvent(Database(pool), parse_event_id(actions.event))
            checks = 0
            for number in range(100):
                actions.act()
                if number % 5 == 0:
                    await asyncio.sleep(0.2)
                checks += await matches_database(pool, live_event)
            return checks

    assert asyncio.run(act_and_compare()) > 50


def test_a_read_model_far_behind_catches_up(
    server: Server, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_event_module, "ENTRIES_MAX", 3)
    event = publish_event(admin, example_event(policy={"avoid_orphans": False, "max_units_per_user": None}))
    labels = list(LABELS)

    async def act_and_compare() -> None:
        async with database_pool(server) as pool:
            live_event = LiveEvent(Database(pool), parse_event_id(event))
            for count in (0, 2, 3, 4, 8):
                for label in labels[:count]:
                    post_hold(admin, event, items=[{"seat": label}])
                del labels[:count]
                assert await matches_database(pool, live_event)

    asyncio.run(act_and_compare())


@pytest.mark.parametrize("bytes_max", [0, 300, 100_000])
def test_a_read_model_that_missed_large_changes_is_loaded_again(
    server: Server, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    monkeypatch.setattr(live_event_module, "ENTRIES_BYTES_MAX", bytes_max)
    event = publish_event(admin, example_event(policy={"avoid_orphans": False, "max_units_per_user": None}))

    async def act_and_compare() -> None:
        async with database_pool(server) as pool:
            live_event = LiveEvent(Database(pool), parse_event_id(event))
            assert await matches_database(pool, live_event)
            loaded = live_event.snapshot
            live_event.unsent = []
            for label in LABELS[:5]:
                assert post_hold(admin, event, items=[{"seat": label}]).status_code == 201
            assert await matches_database(pool, live_event)
            # Watchers get each change, or a snapshot if some are missing.
            if bytes_max > 10_000:
                assert (live_event.snapshot is loaded, len(live_event.unsent)) == (True, 5)
            else:
                assert (live_event.snapshot is loaded, live_event.unsent) == (False, [])

    asyncio.run(act_and_compare())


@pytest.mark.parametrize(
    ("placed", "due", "is_loaded_again"),
    [((), (), False), (LABELS[:4], (), False), ((), LABELS[4:8], False), (LABELS[:4], LABELS[4:8], True)],
    ids=["nothing", "a new hold", "a due hold", "both"],
)
@async_test
async def test_new_entries_and_due_seats_share_one_limit(
    database: str, monkeypatch: pytest.MonkeyPatch, placed: list[str], due: list[str], is_loaded_again: bool
) -> None:
    # The entry of the new hold counts as six changes, and the due seats as four.
    monkeypatch.setattr(live_event_module, "CHANGES_MAX", 9)
    async with lane_connection(database) as connection:
        event = await new_event(connection, policy={**SHORT_HOLDS, "hold_seconds": 60})
        if due:
            await run_commands(connection, [new_hold_command(event, *due)])
        live_event = LiveEvent(Database(connection), event.id)
        await live_event.refresh()
        loaded = live_event.snapshot
        await shift_clock(connection, 30)
        if placed:
            await run_commands(connection, [new_hold_command(event, *placed)])
        await shift_clock(connection, 70)
        await live_event.refresh()
        assert (live_event.snapshot is not loaded) == is_loaded_again
        assert live_event.snapshot is not None
        assert live_event.snapshot.taken == dict.fromkeys(placed, "held")


def test_an_expired_hold_is_free_before_its_expiry_is_recorded(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy=SHORT_HOLDS))
    post_hold(admin, event, items=[{"seat": "A-1"}, {"seat": "A-2"}])
    post_hold(admin, event, items=[{"pool": "standing", "tariff": "full", "quantity": 3}])
    wait_until(lambda: _held_by_pool(admin, event) == {"stalls": 0, "standing": 0}, 15)
    seats = admin.get(f"/v1/events/{event}/seats").json()["seats"]
    assert {seat["state"] for seat in seats} == {"free"}
    kinds = [change["kind"] for change in admin.get(f"/v1/events/{event}/changes").json()["changes"]]
    assert "expired" not in kinds


def _held_by_pool(client: httpx.Client, event: str) -> dict[str, int]:
    pools = client.get(f"/v1/events/{event}/availability").json()["pools"]
    return {pool["code"]: pool["held"] for pool in pools}


def test_a_buyer_sees_their_own_hold_on_every_process_at_once(server: Server, org: Org, admin: httpx.Client) -> None:
    """Meanwhile other clients poll every process, so that a read is always running that began before the hold."""
    event = publish_event(admin, example_event(policy={"avoid_orphans": False, "max_units_per_user": None}))
    key = org.keys["sales"]
    get_seats = request("GET", f"/v1/events/{event}/seats", key)

    async def poll_seats(stop: asyncio.Event) -> None:
        while not stop.is_set():
            await send_all_at_once_async(server.port, [get_seats] * 40, 4)

    async def buy_and_check() -> None:
        stop = asyncio.Event()
        pollers = [asyncio.create_task(poll_seats(stop)) for _ in range(2)]
        for label in LABELS[:30]:
            body = {"user": "u-1", "items": [{"seat": label}]}
            (hold,) = await send_all_at_once_async(server.port, [hold_request(key, event, label, body)])
            assert hold.status == 201
            for reply in await send_all_at_once_async(server.port, [get_seats] * 4):
                assert _state(reply, label) == "held"
                assert reply.body["version"] >= hold.body["version"]
        stop.set()
        await asyncio.gather(*pollers)

    asyncio.run(buy_and_check())


def _state(reply: Reply, label: str) -> str:
    return next(str(seat["state"]) for seat in reply.body["seats"] if seat["label"] == label)


def test_every_process_gives_the_same_answer_and_etag_for_a_version(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    post_hold(admin, event, items=[{"seat": "A-1"}])
    for path in (f"/v1/events/{event}/seats", f"/v1/events/{event}/availability"):
        answers = [httpx.get(server.url + path, timeout=30, verify=False) for _ in range(10)]
        assert len({(answer.headers["etag"], answer.content) for answer in answers}) == 1


def run_with_cache(server: Server, work: Callable[[LiveEventCache], Awaitable[None]]) -> None:
    async def run() -> None:
        async with database_pool(server) as pool:
            await work(LiveEventCache(Database(pool)))

    asyncio.run(run())


def test_the_least_recently_used_event_without_watchers_is_evicted_first(
    server: Server, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_event_module, "EVENTS_MAX", 2)
    first, second, third = [parse_event_id(publish_event(admin, example_event())) for _ in range(3)]

    async def use(cache: LiveEventCache) -> None:
        watched, evicted = await cache.get(first), await cache.get(second)
        assert watched is not None
        assert cache.watch(watched)
        newest = await cache.get(third)
        assert await cache.get(first) is watched
        assert await cache.get(third) is newest
        reloaded = await cache.get(second)
        assert reloaded is not evicted
        cache.unwatch(watched)
        await cache.get(third)
        assert await cache.get(second) is reloaded
        assert await cache.get(first) is not watched

    run_with_cache(server, use)


def test_the_number_of_watched_seats_is_limited(
    server: Server, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_event_module, "CACHED_SEATS_MAX", 60)
    first, second = [parse_event_id(publish_event(admin, example_event())) for _ in range(2)]

    async def use(cache: LiveEventCache) -> None:
        watched, refused = await cache.get(first), await cache.get(second)
        assert watched is not None
        assert refused is not None
        assert cache.watch(watched)
        assert not cache.watch(refused)
        cache.unwatch(watched)
        assert cache.watch(refused)

    run_with_cache(server, use)


def test_an_unknown_event_is_not_cached(server: Server) -> None:
    async def use(cache: LiveEventCache) -> None:
        assert await cache.get(ids.new_id()) is None
        assert not cache._events

    run_with_cache(server, use)


def test_watchers_who_start_together_get_the_same_text() -> None:
    snapshot = SeatSnapshot("ev_1", 1, [], {})
    at = datetime(2030, 1, 1, tzinfo=UTC)
    first = snapshot_message(snapshot, at)
    assert snapshot_message(snapshot, at + timedelta(seconds=0.9)) is first
    assert snapshot_message(snapshot, at + timedelta(seconds=1.1)) != first
    newest = snapshot_message(snapshot, at + timedelta(seconds=1.2))
    snapshot.apply(2, {}, {})
    assert snapshot_message(snapshot, at + timedelta(seconds=1.2)) != newest
