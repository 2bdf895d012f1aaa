"""Reads request bodies within limits on size and time.

The time limit costs a request only an entry in a dictionary: one timer per process looks for overdue readers.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from starlette.types import Message, Receive

from holdfast.core.refusals import Refusal, Refused, RefusedError

BODY_SECONDS: Final = 30.0
SWEEP_SECONDS: Final = 1.0
DRAINED_BYTES_MAX: Final = 1024 * 1024
# How much of unfinished bodies a process keeps. A body that arrives in one packet does not count.
BUFFERED_BYTES_MAX: Final = 256 * 1024 * 1024
# Strangers have a budget of their own, so they cannot use up everyone else's.
STRANGERS_BYTES_MAX: Final = 64 * 1024 * 1024
# A length with more digits exceeds every limit, and is slow to parse.
LENGTH_DIGITS_MAX: Final = 9


class UnreadBodyError(Exception):
    """A refusal of a request whose body was not read to its end."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.refused = refused


class BodyReader:
    """Reads bodies of one process. Refuses clients that send a body too slowly or never, and bodies that are too large,
    alone or together."""

    def __init__(
        self,
        body_seconds: float = BODY_SECONDS,
        sweep_seconds: float = SWEEP_SECONDS,
        buffered_bytes_max: int = BUFFERED_BYTES_MAX,
    ) -> None:
        self._body_seconds = body_seconds
        self._sweep_seconds = sweep_seconds
        # When each reader becomes overdue. All readers get the same time, so the oldest come first.
        self._deadlines: dict[asyncio.Task[object], float] = {}
        self._overdue: set[asyncio.Task[object]] = set()
        self._buffered_bytes_max = buffered_bytes_max
        self._buffered_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive, bytes_max: int) -> bytes:
        """The whole body. Refuses a body whose declared size is too large, without reading it."""
        length = content_length(headers)
        if length is not None and length > bytes_max:
            raise UnreadBodyError(_too_large(bytes_max))
        if length == 0:
            return b""
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        self._deadlines[task] = loop.time() + self._body_seconds
        if self._timer is None:
            self._timer = loop.call_later(self._sweep_seconds, self._cancel_overdue)
        try:
            message = await receive()
            body: bytes = message.get("body", b"")
            # The server sends another, empty message after the last one. Waiting for it costs as much as the first.
            if len(body) == length:
                return body
            return await self._receive_rest(message, receive, bytes_max, length)
        except asyncio.CancelledError:
            if task not in self._overdue:
                raise
            task.uncancel()
            raise UnreadBodyError(_too_slow(self._body_seconds)) from None
        finally:
            del self._deadlines[task]
            self._overdue.discard(task)

    async def _receive_rest(self, message: Message, receive: Receive, bytes_max: int, length: int | None) -> bytes:
        body = bytearray(message.get("body", b""))
        buffered = 0
        try:
            while message.get("more_body") and len(body) != length and len(body) <= bytes_max:
                message = await receive()
                body += message.get("body", b"")
                self._buffered_bytes += len(body) - buffered
                buffered = len(body)
                if self._buffered_bytes > self._buffered_bytes_max:
                    raise UnreadBodyError(Refused(Refusal.BUSY, "Too many large requests. Try again in a moment."))
        finally:
            self._buffered_bytes -= buffered
        if len(body) > bytes_max:
            refused = _too_large(bytes_max)
            if not await _drain(message, receive):
                raise UnreadBodyError(refused)
            raise RefusedError(refused.refusal, refused.detail)
        if message["type"] == "http.disconnect":
            raise RefusedError(Refusal.INVALID_REQUEST, "The connection closed before the body ended.")
        return bytes(body)

    def _cancel_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for task, deadline in self._deadlines.items():
            if deadline > now:
                break
            if task not in self._overdue:
                self._overdue.add(task)
                task.cancel()
        self._timer = loop.call_later(self._sweep_seconds, self._cancel_overdue) if self._deadlines else None


def content_length(headers: Mapping[bytes, bytes]) -> int | None:
    """The length that the client declares. None means that it sends the body in chunks."""
    text = headers.get(b"content-length")
    if text is None:
        return None if b"transfer-encoding" in headers else 0
    return int(text[: LENGTH_DIGITS_MAX + 1])


async def _drain(message: Message, receive: Receive) -> bool:
    """Read on for a while, and return whether the body has ended. If we answered a client that is still sending, the
    server would reset the connection, and the client could lose the answer."""
    left = DRAINED_BYTES_MAX
    while message.get("more_body") and left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
    return not message.get("more_body")


def _too_large(bytes_max: int) -> Refused:
    return Refused(Refusal.PAYLOAD_TOO_LARGE, f"The body may have at most {bytes_max:,} bytes.")


def _too_slow(seconds: float) -> Refused:
    return Refused(
        Refusal.INVALID_REQUEST, f"The body did not arrive within {seconds:g} seconds. Send the request again."
    )
