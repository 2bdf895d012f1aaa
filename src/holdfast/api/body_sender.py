"""Sends large response bodies in pieces.

The server copies whatever it is given and keeps the copy until the client has read it. If it got a seat map of many
megabytes at once, all other requests would wait for the copy, and clients that do not read would fill the memory.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Final

import structlog
from starlette.types import Message, Receive, Send

from holdfast.runtime.turns import Turns

log = structlog.get_logger()

PIECE_BYTES: Final = 256 * 1024
# A client has this long for each piece. A body stays in memory until its client has read it.
PIECE_SECONDS: Final = 30.0

# The parts of a body, which may be made while others are sent.
Body = Iterable[bytes] | AsyncIterable[bytes]


class BodySender:
    """Sends the large bodies of one process. Bodies take turns, so other work runs between any two pieces, however many
    bodies are in flight."""

    def __init__(self) -> None:
        self._turns = Turns()

    async def send(self, body: Body, receive: Receive, send: Send, *, more_body: bool = False) -> None:
        """Send the body, or a part of it if there is more, at the pace of its client. Stop if the client is too slow,
        or disconnects: the server would accept the other pieces and log an error for each."""
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            async for piece in _cut(body):
                await self._turns.take()
                if disconnect.done() or not await _send_piece(piece, send):
                    return
            if not more_body:
                await send({"type": "http.response.body", "body": b""})
        finally:
            disconnect.cancel()


class PacedSend:
    """Sends the messages of one response, and a large body in pieces."""

    def __init__(self, sender: BodySender, receive: Receive, send: Send) -> None:
        self._sender = sender
        self._receive = receive
        self._send = send

    async def __call__(self, message: Message) -> None:
        body = message.get("body", b"")
        if len(body) <= PIECE_BYTES:
            await self._send(message)
        else:
            more_body = message.get("more_body", False)
            await self._sender.send((body,), self._receive, self._send, more_body=more_body)


async def _cut(body: Body) -> AsyncIterator[bytes]:
    async for part in _parts(body):
        for start in range(0, len(part), PIECE_BYTES):
            yield part[start : start + PIECE_BYTES]


async def _parts(body: Body) -> AsyncIterator[bytes]:
    if isinstance(body, AsyncIterable):
        async for part in body:
            yield part
    else:
        for part in body:
            yield part


async def _send_piece(piece: bytes, send: Send) -> bool:
    """Returns whether the client has read enough to be sent more."""
    try:
        async with asyncio.timeout(PIECE_SECONDS):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except TimeoutError:
        # The server closes the connection, because the body is not complete.
        log.info("response_not_read", piece_seconds=PIECE_SECONDS)
        return False
    return True


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
