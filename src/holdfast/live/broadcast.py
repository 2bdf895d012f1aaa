"""Sends the changes of one event to everyone who watches it.

A broadcast writes each message once, into a ring. A watcher is a position in that ring and a task that sends from
there, so a slow watcher delays nobody, and one that is too slow finds that its next message is gone.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import structlog
from starlette.types import Receive, Send

from holdfast.live.live_event import LiveEvent
from holdfast.live.messages import (
    FeedMessage,
    ReaderBehindError,
    Ring,
    heartbeat_message,
    merge_changes,
    snapshot_message,
)
from holdfast.live.snapshot import SeatSnapshot
from holdfast.runtime.turns import Turns

log = structlog.get_logger()

# If changes times watchers exceeds this, the changes go out as one message.
BURST_MAX: Final = 2_000
WAKE_BATCH: Final = 100
# The server copies each message for each watcher. Larger ones go to one watcher per turn of the event loop.
LARGE_CHARS: Final = 256 * 1024
# How long fast watchers wait for slow ones before the next messages are written.
SLOW_WATCHER_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 2.0
# Clients have nothing to send. Holdfast reads and discards a little, then closes the socket.
RECEIVED_MAX: Final = 100
RECEIVED_BYTES_MAX: Final = 4_096

# WebSocket close codes.
SERVICE_RESTART: Final = 1012
POLICY_VIOLATION: Final = 1008
TRY_AGAIN_LATER: Final = 1013


class ClientGoneError(Exception):
    """The client has disconnected."""


class Watcher:
    """One WebSocket. It has already seen `version` when it starts to read the ring at `position`."""

    def __init__(self, broadcast: "Broadcast", version: int, first: Sequence[str]) -> None:
        self._first = first
        self._woken: asyncio.Future[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self.broadcast = broadcast
        self.version = version
        self.position = broadcast.ring.end
        self.sending_since: float | None = None
        self.close_code: int | None = None

    @property
    def is_behind(self) -> bool:
        return self.position < self.broadcast.ring.end

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def close(self, code: int) -> None:
        self.close_code = code
        if self._sending is not None:
            self._sending.cancel()

    async def serve(self, receive: Receive, send: Send) -> None:
        """Send until the client disconnects or somebody calls `close`."""
        await send({"type": "websocket.accept"})
        if self.close_code is None:
            await self._send_and_receive(receive, send)
        if self.close_code is not None:
            # A client that has stopped reading does not get the close frame either; the connection ends regardless.
            with contextlib.suppress(Exception):
                await asyncio.wait_for(send({"type": "websocket.close", "code": self.close_code}), CLOSE_SECONDS)

    async def _send_and_receive(self, receive: Receive, send: Send) -> None:
        self._sending = asyncio.create_task(self._send_messages(send))
        receiving = asyncio.create_task(self._discard_received(receive))
        try:
            await asyncio.wait((self._sending, receiving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._sending.cancel()
            receiving.cancel()
            for result in await asyncio.gather(self._sending, receiving, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, ClientGoneError):
                    log.error("live_socket_failed", exc_info=result)

    async def _send_messages(self, send: Send) -> None:
        try:
            for text in self._first:
                await self._send(send, text)
            self._first = ()
            while True:
                while self.is_behind:
                    await self._send_next(send)
                self._woken = asyncio.get_running_loop().create_future()
                await self._woken
        except ReaderBehindError:
            self.close_code = TRY_AGAIN_LATER

    async def _send_next(self, send: Send) -> None:
        message = self.broadcast.ring.at(self.position)
        self.position += 1
        if message.version > self.version or not message.is_change:
            await self._send(send, message.text)

    async def _send(self, send: Send, text: str) -> None:
        if len(text) > LARGE_CHARS:
            await self.broadcast.turns.take()
        self.sending_since = time.monotonic()
        try:
            await send({"type": "websocket.send", "text": text})
        except Exception:
            raise ClientGoneError from None
        self.sending_since = None

    async def _discard_received(self, receive: Receive) -> None:
        for _ in range(RECEIVED_MAX):
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            if len(message.get("text") or message.get("bytes") or "") > RECEIVED_BYTES_MAX:
                break
        self.close_code = POLICY_VIOLATION


class Broadcast:
    """The ring and the watchers of one event."""

    def __init__(self, live_event: LiveEvent) -> None:
        self.live_event = live_event
        self.version = live_event.version
        self.ring = Ring()
        self.watchers: set[Watcher] = set()
        self.sent_at = time.monotonic()
        self.turns = Turns()

    def add_watcher(self, after: int | None, snapshot: SeatSnapshot) -> Watcher:
        """A watcher that starts with the changes since `after`, or with a snapshot if those are not in memory."""
        changes = self.live_event.changes_after(after) if after is not None else None
        if changes is None:
            changes = [snapshot_message(snapshot, self.live_event.read_at)]
        watcher = Watcher(self, self.live_event.version, self._merge_if_many(changes))
        self.watchers.add(watcher)
        return watcher

    def write_changes(self, now: datetime) -> int:
        """Write new changes into the ring. Returns how many messages are now waiting to be sent."""
        unsent, self.live_event.unsent = self.live_event.unsent or [], []
        if self.version + len(unsent) != self.live_event.version:
            assert self.live_event.snapshot is not None
            log.warning("live_feed_skipped", entries=self.live_event.version - self.version)
            unsent = [snapshot_message(self.live_event.snapshot, now)]
        if not unsent:
            return 0
        texts = self._merge_if_many(unsent)
        self.version = self.live_event.version
        for number, text in enumerate(texts, self.version - len(texts) + 1):
            self._write(FeedMessage(text, number))
        return len(texts) * len(self.watchers)

    def write_heartbeat(self, now: datetime) -> None:
        self._write(FeedMessage(heartbeat_message(self.version, now), self.version, is_change=False))

    def is_catching_up(self) -> bool:
        """Whether so many watchers are still behind that the next messages should wait."""
        behind = sum(watcher.is_behind for watcher in self.watchers)
        if not behind:
            self.ring.clear()
        return behind * 20 > len(self.watchers) and time.monotonic() - self.sent_at < SLOW_WATCHER_SECONDS

    async def wake_watchers(self) -> None:
        """Wake a few at a time, so that requests are served in between."""
        watchers = list(self.watchers)
        for start in range(0, len(watchers), WAKE_BATCH):
            for watcher in watchers[start : start + WAKE_BATCH]:
                watcher.wake()
            await asyncio.sleep(0)

    def _write(self, message: FeedMessage) -> None:
        self.ring.add(message)
        self.sent_at = time.monotonic()

    def _merge_if_many(self, changes: list[str]) -> list[str]:
        if len(changes) > 1 and len(changes) * len(self.watchers) > BURST_MAX:
            return [merge_changes(changes)]
        return changes
