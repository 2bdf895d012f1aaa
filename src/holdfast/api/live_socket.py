"""The live feed: a snapshot of an event and then every change of it, over a WebSocket.

One task of a process asks the database for the versions of all events that are watched, and writes what is new into
one ring of messages for each event. A socket is a place in a ring and a task that sends from there on, so a slow one
holds up nobody, and one that is too slow finds that its place is gone.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import structlog
from msgspec import Meta, structs

from holdfast import sql
from holdfast.api.call import Access, ApiResponse, Call, Operation, Resource, Services
from holdfast.api.endpoint import Endpoint, Limits, Receive, Scope, Send
from holdfast.api.event_handlers import visible_live_event
from holdfast.core.event_schemas import Request
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.live import feed
from holdfast.live.feed import FeedMessage, ReaderBehindError, Ring
from holdfast.live.live_event import LiveEvent
from holdfast.live.snapshot import SeatSnapshot
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS

log = structlog.get_logger()

PATH: Final = "/v1/events/{id}/live"
TICK_SECONDS: Final = 0.05
# A third of what a process can send, so that those who buy are served in between.
SENDS_PER_SECOND: Final = 20_000
# More messages than this at once, counted for each socket, become one.
BURST_MAX: Final = 2_000
WAKE_AT_ONCE: Final = 100
READ_AT_ONCE: Final = 4
# How long those who are quick wait for those who are slow.
PATIENCE_SECONDS: Final = 1.0
STUCK_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 2.0
# A client has nothing to say. What it says all the same is read and forgotten, but not for ever.
HEARD_MAX: Final = 100
HEARD_BYTES_MAX: Final = 4_096

GOING_AWAY: Final = 1012
POLICY: Final = 1008
TRY_AGAIN: Final = 1013


class LiveQuery(Request, frozen=True):
    after: Annotated[int, Meta(ge=0, le=2**62)] | None = None


async def _no_answer(call: Call) -> ApiResponse:
    raise NotImplementedError


WATCH: Final = Operation(
    name="watch_event",
    method="GET",
    path=PATH,
    summary="Watch an event.",
    who=Access.PUBLIC,
    about=Resource.EVENT,
    function=_no_answer,
    gives=None,
    query=LiveQuery,
)


class ClientGoneError(Exception):
    """The client is not there any more."""


class Socket:
    """One watcher. `version` is what it knows already when it begins to read the ring at `place`."""

    def __init__(self, channel: "Broadcast", version: int, first: Sequence[str]) -> None:
        self._first = first
        self._woken: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.channel = channel
        self.version = version
        self.place = channel.ring.end
        self.sends_since: float | None = None
        self.close_code: int | None = None

    @property
    def is_behind(self) -> bool:
        return self.place < self.channel.ring.end

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def close(self, code: int) -> None:
        self.close_code = code
        if self._task is not None:
            self._task.cancel()

    async def serve(self, receive: Receive, send: Send) -> None:
        """Until either side has had enough."""
        await send({"type": "websocket.accept"})
        if self.close_code is None:
            await self._converse(receive, send)
        if self.close_code is not None:
            # Who does not read does not hear this either. The connection ends all the same.
            with contextlib.suppress(Exception):
                await asyncio.wait_for(send({"type": "websocket.close", "code": self.close_code}), CLOSE_SECONDS)

    async def _converse(self, receive: Receive, send: Send) -> None:
        self._task = asyncio.create_task(self._talk(send))
        listening = asyncio.create_task(self._listen(receive))
        try:
            await asyncio.wait((self._task, listening), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._task.cancel()
            listening.cancel()
            for result in await asyncio.gather(self._task, listening, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, ClientGoneError):
                    log.error("live_socket_failed", exc_info=result)

    async def _talk(self, send: Send) -> None:
        try:
            for text in self._first:
                await self._say(send, text)
            self._first = ()
            while True:
                while self.is_behind:
                    await self._say_next(send)
                self._woken = asyncio.get_running_loop().create_future()
                await self._woken
        except ReaderBehindError:
            self.close_code = TRY_AGAIN

    async def _say_next(self, send: Send) -> None:
        message = self.channel.ring.at(self.place)
        self.place += 1
        if message.version > self.version or not message.is_change:
            await self._say(send, message.text)

    async def _say(self, send: Send, text: str) -> None:
        self.sends_since = time.monotonic()
        try:
            await send({"type": "websocket.send", "text": text})
        except Exception:
            raise ClientGoneError from None
        self.sends_since = None

    async def _listen(self, receive: Receive) -> None:
        for _ in range(HEARD_MAX):
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            if len(message.get("text") or message.get("bytes") or "") > HEARD_BYTES_MAX:
                break
        self.close_code = POLICY


class Broadcast:
    """What the watchers of one event share."""

    def __init__(self, live_event: LiveEvent) -> None:
        self.live_event = live_event
        self.version = live_event.version
        self.ring = Ring()
        self.sockets: set[Socket] = set()
        self.spoke_at = time.monotonic()

    def open(self, after: int | None, snapshot: SeatSnapshot) -> Socket:
        """A socket that begins with what changed since, or with a snapshot where that is not known."""
        changes = self.live_event.changes_after(after) if after is not None else None
        if changes is None:
            changes = [feed.snapshot_message(snapshot, self.live_event.read_at)]
        socket = Socket(self, self.live_event.version, self._put(changes))
        self.sockets.add(socket)
        return socket

    def tell(self, now: datetime) -> int:
        """Write what is new into the ring. Returns how many messages have to be sent now."""
        untold, self.live_event.untold = self.live_event.untold or [], []
        if self.version + len(untold) != self.live_event.version:
            assert self.live_event.snapshot is not None
            log.warning("live_feed_skipped", entries=self.live_event.version - self.version)
            untold = [feed.snapshot_message(self.live_event.snapshot, now)]
        if not untold:
            return 0
        texts = self._put(untold)
        self.version = self.live_event.version
        for number, text in enumerate(texts, self.version - len(texts) + 1):
            self._add(FeedMessage(text, number))
        return len(texts) * len(self.sockets)

    def beat(self, now: datetime) -> None:
        self._add(FeedMessage(feed.heartbeat_message(self.version, now), self.version, is_change=False))

    def is_waiting(self) -> bool:
        """Whether so many are still being sent the last messages that it is better to wait with the next."""
        behind = sum(socket.is_behind for socket in self.sockets)
        if not behind:
            self.ring.clear()
        return behind * 20 > len(self.sockets) and time.monotonic() - self.spoke_at < PATIENCE_SECONDS

    def _add(self, message: FeedMessage) -> None:
        self.ring.add(message)
        self.spoke_at = time.monotonic()

    def _put(self, changes: list[str]) -> list[str]:
        """As single messages, unless they are too many for so many sockets."""
        if len(changes) > 1 and len(changes) * len(self.sockets) > BURST_MAX:
            return [feed.merged_message(changes)]
        return changes


class LiveFeed:
    """All watchers of a process."""

    def __init__(self, services: Services, limits: Limits) -> None:
        self._services = services
        self._limits = limits
        self._channels: dict[bytes, Broadcast] = {}
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A handshake is judged as a GET would be, and refused with the same answer."""
        await receive()
        loaded: list[Socket] = []

        async def open_socket(call: Call) -> ApiResponse:
            loaded.append(await self._open(call))
            return ApiResponse(b"", 101)

        operation = structs.replace(WATCH, function=open_socket)
        await Endpoint(operation, self._services, self._limits)(scope, receive, _Refusing(send))
        for socket in loaded:
            try:
                await socket.serve(receive, send)
            finally:
                self._leave(socket)

    async def close(self) -> None:
        """Tell all watchers to come back in a moment, and take no more."""
        self._is_closing = True
        for socket in list(self._sockets()):
            socket.close(GOING_AWAY)
        give_up_at = time.monotonic() + CLOSE_SECONDS
        while self._count and time.monotonic() < give_up_at:
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()

    def _sockets(self) -> Iterable[Socket]:
        return (socket for channel in self._channels.values() for socket in channel.sockets)

    async def _open(self, call: Call) -> Socket:
        after = call.query.after
        live_event, snapshot = await visible_live_event(call, after)
        if self._is_closing or self._count >= self._services.settings.live_sockets:
            raise RefusedError(Refusal.BUSY, "Too many are watching.")
        channel = self._channels.get(live_event.event)
        if channel is None:
            if not self._services.live_events.watch(live_event):
                raise RefusedError(Refusal.BUSY, "Too many events are being watched.")
            channel = self._channels[live_event.event] = Broadcast(live_event)
        self._count += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return channel.open(after, snapshot)

    def _leave(self, socket: Socket) -> None:
        self._count -= 1
        channel = socket.channel
        channel.sockets.discard(socket)
        if not channel.sockets:
            del self._channels[channel.live_event.event]
            self._services.live_events.unwatch(channel.live_event)

    async def _run(self) -> None:
        """As long as somebody watches."""
        while self._channels:
            pause = RETRY_SECONDS
            try:
                pause = await self._round()
            except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
                log.warning("live_feed_without_database", error=type(error).__name__)
            except Exception:
                log.exception("live_feed_failed")
            self._drop_stuck()
            await asyncio.sleep(pause)

    async def _round(self) -> float:
        """Tell everybody what is new. Returns how long to wait before the next time."""
        rows = await self._services.pool.fetch(sql.reads.versions, list(self._channels))
        newer = [channel for row in rows if (channel := self._behind(row["id"], row["version"]))]
        for start in range(0, len(newer), READ_AT_ONCE):
            await asyncio.gather(*(channel.live_event.refresh() for channel in newer[start : start + READ_AT_ONCE]))
        sends = sum([await self._tell(channel, rows[0]["at"]) for channel in list(self._channels.values())])
        return max(TICK_SECONDS, sends / SENDS_PER_SECOND)

    def _behind(self, event: bytes, version: int) -> Broadcast | None:
        channel = self._channels.get(event)
        return channel if channel is not None and channel.live_event.version < version else None

    async def _tell(self, channel: Broadcast, now: datetime) -> int:
        if not channel.sockets or channel.is_waiting():
            return 0
        sends = channel.tell(now)
        if not sends and time.monotonic() - channel.spoke_at > self._services.settings.live_beat_seconds:
            channel.beat(now)
            sends = len(channel.sockets)
        if sends:
            await _wake(list(channel.sockets))
        return sends

    def _drop_stuck(self) -> None:
        since = time.monotonic() - STUCK_SECONDS
        for socket in self._sockets():
            if socket.sends_since is not None and socket.sends_since < since:
                socket.close(TRY_AGAIN)


async def _wake(sockets: Sequence[Socket]) -> None:
    """A few at a time, so that nothing else of the process has to wait for all of them."""
    for start in range(0, len(sockets), WAKE_AT_ONCE):
        for socket in sockets[start : start + WAKE_AT_ONCE]:
            socket.wake()
        await asyncio.sleep(0)


class _Refusing:
    """Sends an answer as the refusal of a handshake, and nothing where there is nothing to refuse."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_refused = False

    async def __call__(self, message: dict[str, Any]) -> None:
        self._is_refused = self._is_refused or message.get("status", 101) != 101
        if self._is_refused:
            await self._send({**message, "type": f"websocket.{message['type']}"})
