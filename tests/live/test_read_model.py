"""Seat maps and availability come from memory and always equal what the database says."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from msgspec import json

from holdfast import sql
from holdfast.live import live_event
from holdfast.live.live_event import LiveEvent, LiveEventCache
from holdfast.runtime import db, ids
from holdfast.runtime.db import Database
from tests.support.concurrent_requests import Reply, hold_request, request, send_all_at_once_async
from tests.support.harness import Org, Server, example_event, post_hold, publish_event, wait_until

Body = dict[str, Any]
Shown = tuple[list[Body], list[Body]]

ROWS = {"rows": ["A", "B"], "numbers": 20}
LABELS = [f"{row}-{number}" for row in "AB" for number in range(1, 21)]
HASTY = {"hold_seconds": 1, "avoid_orphans": False, "max_units_per_user": None}


@asynccontextmanager
async def reading(server: Server) -> AsyncIterator[db.Pool]:
    pool = await db.create_pool(server.database_url, 4)
    try:
        yield pool
    finally:
        await pool.close()


async def shown_by_database(pool: db.Pool, event: bytes) -> Shown:
    seats = [dict(row) for row in await pool.fetch(sql.reads.seats, event)]
    pools = [dict(row) for row in await pool.fetch(sql.reads.availability, event)]
    for each in pools:
        each["remaining"] = each["capacity"] - each["held"] - each["sold"]
    return seats, pools


def shown_by(board: LiveEvent) -> Shown:
    assert board.snapshot is not None
    seats = json.decode(board.snapshot.seats_json())
    available = json.decode(board.snapshot.availability_json())
    assert seats["version"] == available["version"] == board.version
    assert board.snapshot.taken == {seat["label"]: seat["state"] for seat in seats["seats"] if seat["state"] != "free"}
    return seats["seats"], available["pools"]


async def is_true(pool: db.Pool, board: LiveEvent) -> bool:
    """Whether the database said the same before and after the board was read; if so, the board must say it too."""
    before = await shown_by_database(pool, board.event)
    await board.refresh()
    if before != await shown_by_database(pool, board.event):
        return False
    assert shown_by(board) == before
    return True


class Shop:
    """Whatever can be done to an event, at random."""

    def __init__(self, client: httpx.Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._bookings: list[str] = []
        self._added = 0
        stalls, standing = example_event()["pools"]
        self.event = publish_event(client, example_event(policy=HASTY, pools=[{**stalls, "seats": ROWS}, standing]))

    def act(self) -> None:
        deeds = (self._hold_seats, self._hold_seats, self._hold_units, self._change_booking, self._change_booking)
        self._random.choice((*deeds, self._block, self._change_capacity, self._add_pool))()

    def _hold_seats(self) -> None:
        items = [{"seat": label} for label in self._random.sample(LABELS, self._random.randint(1, 3))]
        self._keep(post_hold(self._client, self.event, items=items))

    def _hold_units(self) -> None:
        item = {"pool": "standing", "tariff": "full", "quantity": self._random.randint(1, 4)}
        self._keep(post_hold(self._client, self.event, items=[item]))

    def _keep(self, answer: httpx.Response) -> None:
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


def named(event: str) -> bytes:
    found = ids.parse_event_id(event)
    assert found is not None
    return found


def test_the_read_model_always_equals_the_database(server: Server, admin: httpx.Client) -> None:
    shop = Shop(admin, seed=1)

    async def follow() -> int:
        async with reading(server) as pool:
            board = LiveEvent(Database(pool), named(shop.event))
            checks = 0
            for number in range(100):
                shop.act()
                if number % 5 == 0:
                    await asyncio.sleep(0.2)
                checks += await is_true(pool, board)
            return checks

    assert asyncio.run(follow()) > 50


def test_a_read_model_that_is_far_behind_catches_up(
    server: Server, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_event, "ENTRIES_MAX", 3)
    event = publish_event(admin, example_event(policy={"avoid_orphans": False, "max_units_per_user": None}))
    labels = list(LABELS)

    async def follow() -> None:
        async with reading(server) as pool:
            board = LiveEvent(Database(pool), named(event))
            for count in (0, 2, 3, 4, 8):
                for label in labels[:count]:
                    post_hold(admin, event, items=[{"seat": label}])
                del labels[:count]
                assert await is_true(pool, board)

    asyncio.run(follow())


def test_expired_holds_are_free_before_anybody_records_it(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy=HASTY))
    post_hold(admin, event, items=[{"seat": "A-1"}, {"seat": "A-2"}])
    post_hold(admin, event, items=[{"pool": "standing", "tariff": "full", "quantity": 3}])
    wait_until(lambda: _held(admin, event) == {"stalls": 0, "standing": 0}, 15)
    seats = admin.get(f"/v1/events/{event}/seats").json()["seats"]
    assert {seat["state"] for seat in seats} == {"free"}
    kinds = [change["kind"] for change in admin.get(f"/v1/events/{event}/changes").json()["changes"]]
    assert "expired" not in kinds


def _held(client: httpx.Client, event: str) -> dict[str, int]:
    pools = client.get(f"/v1/events/{event}/availability").json()["pools"]
    return {pool["code"]: pool["held"] for pool in pools}


def test_a_buyer_sees_their_seat_taken_on_every_process_at_once(server: Server, org: Org, admin: httpx.Client) -> None:
    """While others keep all processes reading, so that a reading is always under way that began before the hold."""
    event = publish_event(admin, example_event(policy={"avoid_orphans": False, "max_units_per_user": None}))
    key = org.keys["sales"]
    look = request("GET", f"/v1/events/{event}/seats", key)

    async def look_on(stop: asyncio.Event) -> None:
        while not stop.is_set():
            await send_all_at_once_async(server.port, [look] * 40, 4)

    async def buy_and_look() -> None:
        stop = asyncio.Event()
        onlookers = [asyncio.create_task(look_on(stop)) for _ in range(2)]
        for label in LABELS[:30]:
            wanted = {"user": "u-1", "items": [{"seat": label}]}
            (bought,) = await send_all_at_once_async(server.port, [hold_request(key, event, label, wanted)])
            assert bought.status == 201
            for seen in await send_all_at_once_async(server.port, [look] * 4):
                assert _state(seen, label) == "held"
                assert seen.body["version"] >= bought.body["version"]
        stop.set()
        await asyncio.gather(*onlookers)

    asyncio.run(buy_and_look())


def _state(reply: Reply, label: str) -> str:
    return next(str(seat["state"]) for seat in reply.body["seats"] if seat["label"] == label)


def test_all_processes_give_the_same_answer_and_tag_for_the_same_version(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    post_hold(admin, event, items=[{"seat": "A-1"}])
    for path in (f"/v1/events/{event}/seats", f"/v1/events/{event}/availability"):
        answers = [httpx.get(server.url + path) for _ in range(10)]
        assert len({(answer.headers["etag"], answer.content) for answer in answers}) == 1


def run_with_boards(server: Server, work: Callable[[LiveEventCache], Awaitable[None]]) -> None:
    async def run() -> None:
        async with reading(server) as pool:
            await work(LiveEventCache(Database(pool)))

    asyncio.run(run())


def test_the_least_recently_used_event_without_watchers_is_evicted_first(
    server: Server, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_event, "EVENTS_MAX", 2)
    first, second, third = [named(publish_event(admin, example_event())) for _ in range(3)]

    async def ask(kept: LiveEventCache) -> None:
        watched, forgotten = await kept.get(first), await kept.get(second)
        assert watched is not None
        assert kept.watch(watched)
        newest = await kept.get(third)
        assert await kept.get(first) is watched
        assert await kept.get(third) is newest
        again = await kept.get(second)
        assert again is not forgotten
        kept.unwatch(watched)
        await kept.get(third)
        assert await kept.get(second) is again
        assert await kept.get(first) is not watched

    run_with_boards(server, ask)


def test_there_is_a_limit_to_the_seats_that_can_be_watched(
    server: Server, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_event, "CACHED_SEATS_MAX", 60)
    first, second = [named(publish_event(admin, example_event())) for _ in range(2)]

    async def ask(kept: LiveEventCache) -> None:
        watched, refused = await kept.get(first), await kept.get(second)
        assert watched is not None
        assert refused is not None
        assert kept.watch(watched)
        assert not kept.watch(refused)
        kept.unwatch(watched)
        assert kept.watch(refused)

    run_with_boards(server, ask)


def test_an_unknown_event_leaves_nothing_in_memory(server: Server) -> None:
    async def ask(kept: LiveEventCache) -> None:
        assert await kept.get(ids.new_id()) is None
        assert not kept._events

    run_with_boards(server, ask)
