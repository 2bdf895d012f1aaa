"""The live feed over WebSocket: a snapshot of an event, then every change.

One task per process asks the database for the versions of all watched events in one query: many times a second, or,
if there is a Redis, whenever another process says that one of them has changed. Each event that is behind is refreshed
in a task of its own, so a slow or failing event delays no other.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import datetime
from typing import Annotated, Final

import structlog
from msgspec import Meta, Struct
from starlette.types import Message, Receive, Scope, Send

from holdfast import sql
from holdfast.api.access import Access
from holdfast.api.call import ApiResponse, Call, Operation, Resource, Services
from holdfast.api.endpoint import Endpoint, Limits
from holdfast.api.event_handlers import require_live_event
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import RequestModel
from holdfast.live.broadcast import CLOSE_SECONDS, SERVICE_RESTART, TRY_AGAIN_LATER, Broadcast, Watcher
from holdfast.live.live_event import LiveEvent
from holdfast.runtime import ids
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS
from holdfast.runtime.supervision import keep_running

log = structlog.get_logger()

PATH: Final = "/v1/events/{id}/live"
TICK_SECONDS: Final = 0.05
# How often to ask the database although Redis reports every change. Messages can be lost.
CHECK_SECONDS: Final = 1.0
# A third of what a process can send, which leaves time for requests.
SENDS_PER_SECOND: Final = 20_000
READS_AT_ONCE: Final = 4
# An event that took this long last time is slow, and slow events leave some of the reads to the others.
SLOW_SECONDS: Final = 0.5
SLOW_READS_AT_ONCE: Final = 2
STUCK_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0


class WatchedVersionRow(Struct, frozen=True):
    at: datetime
    id: bytes
    version: int


class LiveQuery(RequestModel, frozen=True):
    after: Annotated[int, Meta(ge=0, le=2**62)] | None = None


async def watch_event(call: Call, query: LiveQuery) -> ApiResponse[bytes]:
    """A placeholder: `LiveFeed` replaces it for each handshake."""
    raise NotImplementedError


WATCH: Final = Operation("GET", PATH, watch_event, Access.PUBLIC, Resource.EVENT, "Watch an event.")


class LiveFeed:
    """All watchers of a process."""

    def __init__(self, services: Services, limits: Limits) -> None:
        self._services = services
        self._limits = limits
        self._broadcasts: dict[bytes, Broadcast] = {}
        self._counts: Counter[str] = Counter()
        self._clients: set[tuple[str, int]] = set()
        self._has_watchers = asyncio.Event()
        # Everyone has all changes that we know of, so the next tick can wait for news.
        self._is_settled = False
        self._refreshes = _Refreshes()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def __len__(self) -> int:
        """How many sockets are open."""
        return self._counts.total()

    @property
    def clients(self) -> frozenset[tuple[str, int]]:
        """The address and port of every client that watches."""
        return frozenset(self._clients)

    def start(self) -> None:
        health = self._services.task_health
        self._task = asyncio.create_task(keep_running("live_feed", self._run, health, self._drop_all))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Treat the handshake as a GET of the same path, and refuse it with the same problem document."""
        await receive()
        opened: list[Watcher] = []
        address = self._limits.address(scope)

        async def open_watcher(call: Call, query: LiveQuery) -> ApiResponse[bytes]:
            opened.append(await self._open(call, query.after, address))
            return ApiResponse(b"", 101)

        endpoint = Endpoint(WATCH, self._services, self._limits, open_watcher)
        await endpoint(scope, receive, _HandshakeResponse(send))
        host, port = scope.get("client") or ("", 0)
        # The server gives the port as text.
        client = (host, int(port))
        for watcher in opened:
            self._clients.add(client)
            try:
                await watcher.serve(receive, send)
            finally:
                self._clients.discard(client)
                self._remove(watcher, address)

    async def close(self) -> None:
        """Ask all watchers to reconnect in a moment, and accept no more."""
        self._is_closing = True
        for watcher in list(self._watchers()):
            watcher.close(SERVICE_RESTART)
        give_up_at = time.monotonic() + CLOSE_SECONDS
        while self._broadcasts and time.monotonic() < give_up_at:
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
        self._refreshes.cancel_all()

    def _watchers(self) -> Iterable[Watcher]:
        return (watcher for broadcast in self._broadcasts.values() for watcher in broadcast.watchers)

    async def _open(self, call: Call, after: int | None, address: str) -> Watcher:
        self._check_room(address)
        live_event, snapshot = await require_live_event(call, after)
        self._check_room(address)
        broadcast = self._broadcasts.get(live_event.event)
        if broadcast is None:
            if not self._services.live_events.watch(live_event):
                raise RefusedError(Refusal.BUSY, "Too many events are being watched. Try again in a moment.")
            broadcast = self._broadcasts[live_event.event] = Broadcast(live_event)
        self._counts[address] += 1
        self._has_watchers.set()
        return broadcast.add_watcher(after, snapshot)

    def _check_room(self, address: str) -> None:
        """Call this before loading an event, to avoid a useless load, and again after, because others may have
        connected."""
        settings = self._services.settings
        if self._is_closing or self._counts.total() >= settings.live_sockets:
            raise RefusedError(Refusal.BUSY, "Too many live sockets are open. Try again in a moment.")
        if self._counts[address] >= settings.live_sockets_per_address:
            raise RefusedError(
                Refusal.RATE_LIMITED, "Your network address has too many live sockets open. Close some first."
            )

    def _remove(self, watcher: Watcher, address: str) -> None:
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
        broadcast = watcher.broadcast
        broadcast.watchers.discard(watcher)
        if not broadcast.watchers:
            del self._broadcasts[broadcast.live_event.event]
            self._refreshes.cancel(broadcast.live_event.event)
            self._services.live_events.unwatch(broadcast.live_event)

    async def _run(self) -> None:
        while True:
            if not self._broadcasts:
                self._has_watchers.clear()
                await self._has_watchers.wait()
            pause, self._is_settled = RETRY_SECONDS, False
            try:
                pause = await self._tick()
            except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
                log.warning("live_feed_without_database", error=type(error).__name__)
            except Exception:
                log.exception("live_feed_failed")
            self._close_stuck()
            await asyncio.sleep(pause)
            if self._services.redis is not None and self._is_settled:
                await self._services.redis.wakeups.wait(self._broadcasts.keys(), CHECK_SECONDS)

    async def _tick(self) -> float:
        """Send everyone what is new. Returns the seconds to wait before the next tick."""
        rows = await self._services.database.all_events.rows(
            WatchedVersionRow, sql.reads.versions, list(self._broadcasts)
        )
        behind = [broadcast.live_event for row in rows if (broadcast := self._behind(row))]
        quick = [task for live_event in behind if (task := self._refreshes.start(live_event))]
        if quick:
            await asyncio.wait(quick, timeout=TICK_SECONDS)
        is_current = not any(self._behind(row) for row in rows)
        sends = sum([await self._try_to_send(row) for row in rows])
        self._is_settled = is_current and not any(each.is_catching_up() for each in self._broadcasts.values())
        return max(TICK_SECONDS, sends / SENDS_PER_SECOND)

    def _behind(self, row: WatchedVersionRow) -> Broadcast | None:
        broadcast = self._broadcasts.get(row.id)
        return broadcast if broadcast is not None and broadcast.live_event.version < row.version else None

    async def _try_to_send(self, row: WatchedVersionRow) -> int:
        try:
            return await self._send_new(row)
        except Exception:
            # The next tick notices that changes are missing, and sends a snapshot instead.
            log.exception("live_event_not_sent", event_id=ids.format_event_id(row.id))
            return 0

    async def _send_new(self, row: WatchedVersionRow) -> int:
        broadcast = self._broadcasts.get(row.id)
        if broadcast is None or not broadcast.watchers or broadcast.is_catching_up():
            return 0
        sends = broadcast.write_changes(row.at)
        is_quiet = time.monotonic() - broadcast.sent_at > self._services.settings.live_beat_seconds
        # A heartbeat says that the client has everything, so an event that is behind sends none.
        if not sends and is_quiet and not self._behind(row):
            broadcast.write_heartbeat(row.at)
            sends = len(broadcast.watchers)
        if sends:
            await broadcast.wake_watchers()
        return sends

    def _drop_all(self) -> None:
        """Make all watchers reconnect. Their next snapshot has what they missed."""
        for watcher in self._watchers():
            watcher.close(TRY_AGAIN_LATER)

    def _close_stuck(self) -> None:
        since = time.monotonic() - STUCK_SECONDS
        for watcher in self._watchers():
            if watcher.sending_since is not None and watcher.sending_since < since:
                watcher.close(TRY_AGAIN_LATER)


class _Refreshes:
    """Refreshes events that are behind: each in its own task, and a limited number at once."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._slow_reads = asyncio.Semaphore(SLOW_READS_AT_ONCE)
        self._slow: set[bytes] = set()
        self._retry_at: dict[bytes, float] = {}

    def start(self, live_event: LiveEvent) -> asyncio.Task[None] | None:
        """Refresh the event, unless a refresh is under way or has just failed. Returns the task if it may be quick."""
        event = live_event.event
        if event in self._tasks or time.monotonic() < self._retry_at.get(event, 0):
            return None
        task = self._tasks[event] = asyncio.create_task(self._refresh(live_event))
        task.add_done_callback(lambda _: self._remove(event, task))
        return task if event not in self._slow else None

    def cancel(self, event: bytes) -> None:
        """Forget the event."""
        task = self._tasks.pop(event, None)
        if task is not None:
            task.cancel()
        self._slow.discard(event)
        self._retry_at.pop(event, None)

    def cancel_all(self) -> None:
        for event in list(self._tasks):
            self.cancel(event)

    def _remove(self, event: bytes, task: asyncio.Task[None]) -> None:
        if self._tasks.get(event) is task:
            del self._tasks[event]

    async def _refresh(self, live_event: LiveEvent) -> None:
        event = live_event.event
        async with self._slow_reads if event in self._slow else nullcontext(), self._reads:
            started_at = time.monotonic()
            try:
                await live_event.refresh()
            except Exception as error:
                self._retry_at[event] = time.monotonic() + RETRY_SECONDS
                is_expected = isinstance(error, (*LOST_ERRORS, *BLOCKED_ERRORS))
                log.warning(
                    "live_event_not_refreshed",
                    event_id=ids.format_event_id(event),
                    error=type(error).__name__,
                    exc_info=None if is_expected else error,
                )
            is_slow = time.monotonic() - started_at > SLOW_SECONDS
        (self._slow.add if is_slow else self._slow.discard)(event)


class _HandshakeResponse:
    """Turns an HTTP response into the refusal of a WebSocket handshake; sends nothing when the handshake succeeds."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_refusal = False

    async def __call__(self, message: Message) -> None:
        self._is_refusal = self._is_refusal or message.get("status", 101) != 101
        if self._is_refusal:
            await self._send({**message, "type": f"websocket.{message['type']}"})
