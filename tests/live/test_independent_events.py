"""A slow or failing event does not delay the feeds of other events, and catches up afterwards."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import json, structs
from structlog.testing import capture_logs

from holdfast.api import live_socket
from holdfast.api.app import make_services
from holdfast.api.call import Call
from holdfast.api.endpoint import Limits
from holdfast.api.live_socket import LiveFeed
from holdfast.engine.engine import Engine
from holdfast.live.broadcast import Broadcast, Watcher
from holdfast.live.live_event import LiveEvent
from holdfast.runtime import db
from holdfast.runtime.settings import Settings
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    lane_connection,
    new_event,
    new_hold_command,
    one_pool,
    poll_until,
    run_commands,
)

Body = dict[str, Any]
# Far longer than a quick event needs, far shorter than a test may take.
PROMPT_SECONDS = 5.0


class Feed:
    """A live feed in this process, whose watchers are lists of messages."""

    def __init__(
        self, database_url: str, pool: db.Pool, connection: db.Connection, redis: "SilentRedis | None" = None
    ) -> None:
        settings = Settings(database_url=database_url, live_beat_seconds=0.2)
        self._services = structs.replace(make_services(settings, pool, Engine(database_url, lanes=1)), redis=redis)
        self._connection = connection
        self._sockets: list[asyncio.Task[None]] = []
        self.live = LiveFeed(self._services, Limits(self._services))

    async def new_event(self) -> EventHandle:
        return await new_event(self._connection, pools=one_pool(100), policy={"max_units_per_user": None})

    async def watch(self, event: EventHandle) -> list[Body]:
        """The messages that a watcher gets from now on."""
        watcher = await self.live._open(Call(self._services, None, {"id": event.text}, {}), None, "address")
        messages: list[Body] = []
        self._sockets.append(asyncio.create_task(self._serve(watcher, messages)))
        await poll_until(lambda: len(messages) > 0)
        return messages

    async def _serve(self, watcher: Watcher, messages: list[Body]) -> None:
        async def receive() -> Body:
            never: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
            return await never

        async def send(message: Any) -> None:
            if message["type"] == "websocket.send":
                messages.append(json.decode(message["text"]))

        try:
            await watcher.serve(receive, send)
        finally:
            self.live._remove(watcher, "address")

    async def hold(self, event: EventHandle) -> None:
        await run_commands(self._connection, [new_hold_command(event)])

    async def expect_change(self, event: EventHandle, messages: list[Body]) -> None:
        """Hold a unit, and expect its change soon."""
        before = len(changes_in(messages))
        await self.hold(event)
        await poll_until(lambda: len(changes_in(messages)) > before, PROMPT_SECONDS)

    async def close(self) -> None:
        await self.live.close()
        await asyncio.gather(*self._sockets)


class SilentRedis:
    """It passes on a message only when a test says so."""

    def __init__(self) -> None:
        self.wakeups = self
        self.message = asyncio.Event()

    async def wait(self, _events: object, _seconds: float) -> None:
        await self.message.wait()
        self.message.clear()


@asynccontextmanager
async def running_feed(database_url: str, redis: SilentRedis | None = None) -> AsyncIterator[Feed]:
    pool = await db.create_pool(database_url, 8)
    async with lane_connection(database_url) as connection:
        feed = Feed(database_url, pool, connection, redis)
        feed.live.start()
        try:
            yield feed
        finally:
            await feed.close()
            await pool.close()


def changes_in(messages: list[Body]) -> list[int]:
    return [message["seq"] for message in messages if message["type"] == "change"]


class Trouble:
    """Something that goes wrong whenever certain events are refreshed, until it ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *events: EventHandle) -> None:
        self._events = {event.id for event in events}
        self._refresh = LiveEvent.refresh
        self._over = asyncio.Event()
        self.refreshes = 0
        monkeypatch.setattr(LiveEvent, "refresh", lambda *args: self._refresh_or_fail(*args))

    def end(self) -> None:
        self._events.clear()
        self._over.set()

    async def _refresh_or_fail(self, live_event: LiveEvent, after: int | None = None) -> None:
        if live_event.event in self._events:
            self.refreshes += 1
            await self.happen()
        await self._refresh(live_event, after)

    async def happen(self) -> None:
        raise NotImplementedError


class Hanging(Trouble):
    async def happen(self) -> None:
        await self._over.wait()


class Raising(Trouble):
    async def happen(self) -> None:
        raise RuntimeError("a bug")


class TimingOut(Trouble):
    async def happen(self) -> None:
        raise TimeoutError


@pytest.mark.parametrize("kind", [Hanging, Raising, TimingOut])
@async_test
async def test_an_event_that_cannot_be_refreshed_delays_no_other(
    database: str, monkeypatch: pytest.MonkeyPatch, kind: type[Trouble]
) -> None:
    monkeypatch.setattr(live_socket, "RETRY_SECONDS", 0.5)
    async with running_feed(database) as feed:
        broken, sound = await feed.new_event(), await feed.new_event()
        broken_messages, sound_messages = await feed.watch(broken), await feed.watch(sound)
        trouble = kind(monkeypatch, broken)
        with capture_logs() as logs:
            await feed.hold(broken)
            await poll_until(lambda: trouble.refreshes > 0)
            for _ in range(3):
                await feed.expect_change(sound, sound_messages)
                await feed.hold(broken)
            # Heartbeats go on for the other event, but the broken one must not claim to be current.
            await poll_until(lambda: sound_messages[-1]["type"] == "beat")
        assert trouble.refreshes <= 2 + PROMPT_SECONDS / live_socket.RETRY_SECONDS, "it must wait before it retries"
        assert broken_messages[-1]["version"] == broken_messages[0]["version"]
        failures = [entry for entry in logs if entry["event"] == "live_event_not_refreshed"]
        assert {entry["event_id"] for entry in failures} == (set() if kind is Hanging else {broken.text})
        trouble.end()
        start = broken_messages[0]["version"]
        await poll_until(lambda: changes_in(broken_messages) == list(range(start + 1, start + 5)))
        await feed.expect_change(broken, broken_messages)


@async_test
async def test_many_slow_events_leave_room_for_quick_ones(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_socket, "SLOW_SECONDS", 0.2)
    async with running_feed(database) as feed:
        slow = [await feed.new_event() for _ in range(live_socket.READS_AT_ONCE + 2)]
        slow_messages = [await feed.watch(event) for event in slow]
        quick = await feed.new_event()
        quick_messages = await feed.watch(quick)

        async def hold_slow() -> None:
            for event in slow:
                await feed.hold(event)

        first = Hanging(monkeypatch, *slow)
        await hold_slow()
        await poll_until(lambda: first.refreshes == live_socket.READS_AT_ONCE)
        await asyncio.sleep(live_socket.SLOW_SECONDS)
        first.end()
        await poll_until(lambda: all(len(changes_in(messages)) == 1 for messages in slow_messages))
        second = Hanging(monkeypatch, *slow[: live_socket.READS_AT_ONCE])
        await hold_slow()
        await poll_until(lambda: second.refreshes == live_socket.SLOW_READS_AT_ONCE)
        await feed.expect_change(quick, quick_messages)
        assert second.refreshes == live_socket.SLOW_READS_AT_ONCE
        second.end()
        await poll_until(lambda: all(len(changes_in(messages)) == 2 for messages in slow_messages))


@async_test
async def test_an_event_whose_changes_cannot_be_written_delays_no_other(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_feed(database) as feed:
        broken, sound = await feed.new_event(), await feed.new_event()
        broken_messages, sound_messages = await feed.watch(broken), await feed.watch(sound)

        def merge_or_fail(broadcast: Broadcast, changes: list[str]) -> list[str]:
            if broadcast.live_event.event == broken.id:
                raise RuntimeError("a bug")
            return changes

        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr(Broadcast, "_merge_if_many", merge_or_fail)
            await feed.hold(broken)
            await poll_until(lambda: any(entry["event"] == "live_event_not_sent" for entry in logs))
            await feed.expect_change(sound, sound_messages)
        await poll_until(lambda: [m["type"] for m in broken_messages].count("snapshot") == 2)
        await feed.expect_change(broken, broken_messages)


async def leave(feed: Feed) -> None:
    for watcher in list(feed.live._watchers()):
        watcher.close(1000)


async def close(feed: Feed) -> None:
    await feed.live.close()


@pytest.mark.parametrize("end", [leave, close])
@async_test
async def test_a_refresh_ends_with_its_last_watcher_and_with_the_feed(
    database: str, monkeypatch: pytest.MonkeyPatch, end: Callable[[Feed], Awaitable[None]]
) -> None:
    async with running_feed(database) as feed:
        event = await feed.new_event()
        await feed.watch(event)
        trouble = Hanging(monkeypatch, event)
        await feed.hold(event)
        await poll_until(lambda: trouble.refreshes > 0)
        refreshes = list(feed.live._refreshes._tasks.values())
        await end(feed)
        await poll_until(lambda: all(task.cancelled() for task in refreshes))
        assert len(refreshes) == 1
        assert not feed.live._refreshes._tasks


@async_test
async def test_a_slow_refresh_is_sent_without_another_message_of_redis(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = SilentRedis()
    async with running_feed(database, redis) as feed:
        event = await feed.new_event()
        messages = await feed.watch(event)
        trouble = Hanging(monkeypatch, event)
        await feed.hold(event)
        redis.message.set()
        await poll_until(lambda: trouble.refreshes == 1)
        await asyncio.sleep(3 * live_socket.TICK_SECONDS)
        trouble.end()
        await poll_until(lambda: len(changes_in(messages)) == 1, PROMPT_SECONDS)
