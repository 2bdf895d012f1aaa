"""Many requests at once over many connections, with as little work per request as possible."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct


class Reply(Struct, frozen=True):
    status: int
    body: Any

    @property
    def code(self) -> str:
        """The code of the refusal, or the status of a success."""
        return str(self.body.get("code", self.status))


def hold_request(key: str, event: str, idempotency_key: str, body: dict[str, Any]) -> bytes:
    return request("POST", f"/v1/events/{event}/holds", key, body, idempotency_key)


def request(
    method: str, path: str, key: str = "", body: dict[str, Any] | None = None, idempotency_key: str = "", **headers: str
) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: holdfast", f"Content-Length: {len(content)}"]
    lines += ["Content-Type: application/json", *(f"{name}: {value}" for name, value in headers.items())]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if idempotency_key:
        lines.append(f"Idempotency-Key: {idempotency_key}")
    return "\r\n".join([*lines, "", ""]).encode() + content


def send_all_at_once(port: int, requests: Sequence[bytes], connections: int | None = None) -> list[Reply]:
    """Send all requests at once, each on a connection of its own or over reused `connections`. Every connection
    is open before the first request goes out."""
    return asyncio.run(send_all_at_once_async(port, requests, connections))


async def send_all_at_once_async(port: int, requests: Sequence[bytes], connections: int | None = None) -> list[Reply]:
    count = min(connections or len(requests), len(requests))
    open_connections = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(count)))
    replies: list[Reply | None] = [None] * len(requests)

    async def buyer(number: int) -> None:
        reader, writer = open_connections[number]
        for at in range(number, len(requests), count):
            writer.write(requests[at])
            replies[at] = await _read_reply(reader)
        writer.close()

    await asyncio.gather(*(buyer(number) for number in range(count)))
    return [reply for reply in replies if reply is not None]


async def _read_reply(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status = int(head.split(" ", 2)[1])
    length = next(
        int(line.partition(":")[2]) for line in head.split("\r\n") if line.lower().startswith("content-length:")
    )
    return Reply(status, json.loads(await reader.readexactly(length) or b"{}"))


def count_codes(replies: Sequence[Reply]) -> Counter[str]:
    return Counter(reply.code for reply in replies)
