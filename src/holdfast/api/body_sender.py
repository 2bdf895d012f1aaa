"""Sends large response bodies in pieces.

The server copies whatever it is given and keeps the copy until the client has read it. If it got a seat map of many
megabytes at once, all other requests would wait for the copy, and clients that do not read would fill the memory.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

import structlog
from starlette.types import Message, Receive, Send

from holdfast.runtime.turns import Turns

log = structlog.get_logger()

PIECE_BYTES: Final = 256 * 1024
# A client has this long for each piece. A body stays in memory until its client has read it.
PIECE_SECONDS: Final = 30.0


class BodySender:
    """Sends the large bodies of one process. Bodies take turns, so other work runs between any two pieces, however many
    bodies are in flight."""

    def __init__(self) -> None:
        self._turns = Turns()

    async def send(self, body: Iterable[bytes], receive: Receive, send: Send, *, more_body: bool = False) -> None:
        """Send the body, or a part of it if there is more, at the pace of its client. Stop if the client is too slow,
        or disconnects: the server would accept the other pieces and log an error for each."""
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            for piece in _cut(body):
                await self._turns.take()
                if disconnect.done():
                    return
                async with asyncio.timeout(PIECE_SECONDS):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not more_body:
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            # The server closes the connection, because the body is not complete.
            log.info("response_not_read", piece_seconds=PIECE_SECONDS)
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


def _cut(body: Iterable[bytes]) -> Iterator[bytes]:
    for part in body:
        for start in range(0, len(part), PIECE_BYTES):
            yield part[start : start + PIECE_BYTES]


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
