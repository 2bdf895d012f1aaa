"""Relays and their surroundings: deliveries that wait, receivers on loopback, and relay processes.

`python -m tests.support.relay_harness <database> <send seconds> <file>` is such a process.
"""

import asyncio
import base64
import json
import os
import secrets
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.notifications.channel import Channel, Delivery
from holdfast.notifications.relay import Relay
from holdfast.notifications.webhook_channel import WebhookChannel
from holdfast.runtime import db, ids
from holdfast.runtime.process_lifetime import end_with_parent, set_parent_pid
from holdfast.worker.job import Job, JobLoop
from holdfast.worker.runner import RELAY_SECONDS

EVENT = ids.new_id()


class Request(msgspec.Struct, frozen=True):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)["data"]


Responder = Callable[[Request], Awaitable[bytes]]


def http_response(code: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} -", "Content-Length: 0", *headers, "\r\n"]).encode()


async def accept(_: Request) -> bytes:
    return http_response(204)


class Receiver:
    """An HTTP server that keeps every request and answers as the test says."""

    def __init__(self, answer: Responder, port: int, scheme: str) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.connections = 0
        self.port = port
        self.url = f"{scheme}://127.0.0.1:{port}/hook"

    def received_numbers(self) -> dict[int, list[int]]:
        """The numbers each stream received, in order of arrival and without repeats."""
        streams: dict[int, dict[int, None]] = {}
        for request in self.requests:
            streams.setdefault(request.data["stream"], {})[request.data["number"]] = None
        return {stream: list(numbers) for stream, numbers in streams.items()}

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                request = await _read(reader)
                self.requests.append(request)
                writer.write(await self.answer(request))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Request:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Request(first.split()[1], headers, await reader.readexactly(int(headers["content-length"])))


@asynccontextmanager
async def running_receiver(answer: Responder = accept, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(answer, 0, "https" if tls else "http")
    tasks: set[asyncio.Task[None]] = set()

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(receiver.serve_connection(reader, writer))
        tasks.add(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(serve_connection, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    receiver.url = receiver.url.replace(":0/", f":{receiver.port}/")
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class FileChannel:
    """A channel that appends lines to a file, which outlives the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def send(self, delivery: Delivery) -> None:
        note = {"target": delivery.target, "pid": os.getpid(), **json.loads(delivery.body)}
        os.write(self._file, json.dumps(note).encode() + b"\n")
        await asyncio.sleep(0)


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()


async def insert_org(connection: db.Connection | db.Pool) -> bytes:
    org = ids.new_id()
    await connection.execute(
        "INSERT INTO org (id, slug, name, token_secret) VALUES ($1, $2, '', '')", org, f"org-{secrets.token_hex(4)}"
    )
    return org


async def insert_endpoint(connection: db.Connection | db.Pool, org: bytes, url: str, secret: str | None = None) -> str:
    """Create an endpoint and return its target."""
    endpoint = ids.new_id()
    await connection.execute(
        "INSERT INTO webhook_endpoint (id, org_id, url, kinds, secret) VALUES ($1, $2, $3, '{}', $4)",
        endpoint,
        org,
        url,
        secret or new_secret(),
    )
    return endpoint.hex()


async def insert_deliveries(
    connection: db.Connection,
    target: str,
    *,
    org: bytes = EVENT,
    streams: int = 1,
    each: int = 1,
    channel: str = "webhook",
    after: int = 0,
) -> None:
    """Insert `each` deliveries for each of the streams, in turns. The id and the body carry the stream's number."""
    await connection.execute(
        """INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, created_at, due_at)
        SELECT $1, $7::bigint + number, $2, $3, $4, lpad(to_hex(number % $5::int), 32, '0')::uuid, 'confirmed',
               json_build_object('stream', number % $5::int, 'number', $7::bigint + number), at, at
        FROM (SELECT holdfast_now() AS at) AS clock, generate_series(0, $5::int * $6::int - 1) AS number""",
        EVENT,
        target,
        channel,
        org,
        streams,
        each,
        after,
    )


async def count_statuses(connection: db.Connection, target: str) -> dict[str, int]:
    rows = await connection.fetch("SELECT status, count(*) FROM delivery WHERE target = $1 GROUP BY status", target)
    return {row["status"]: row["count"] for row in rows}


async def first_delivery(connection: db.Connection, target: str) -> Any:
    return await connection.fetchrow(
        "SELECT *, extract(epoch FROM due_at - holdfast_now())::float AS due_seconds FROM delivery WHERE target = $1 "
        "ORDER BY number LIMIT 1",
        target,
    )


@asynccontextmanager
async def new_relay(
    url: str, channels: Mapping[str, Channel] | None = None, send_seconds: float = 25
) -> AsyncIterator[Relay]:
    """A relay that the test drives, with webhooks to any address."""
    pool = await db.create_pool(url, 4)
    webhooks = WebhookChannel(db.Database(pool), allow_private=True)
    relay = Relay(db.Database(pool), {"webhook": webhooks, **(channels or {})}, send_seconds=send_seconds)
    try:
        yield relay
    finally:
        await relay.close()
        await webhooks.close()
        await pool.close()


@asynccontextmanager
async def running_relay(
    url: str, channels: Mapping[str, Channel] | None = None, send_seconds: float = 25
) -> AsyncIterator[Relay]:
    """A relay that runs in the background."""
    async with new_relay(url, channels, send_seconds) as relay:
        stopping = asyncio.Event()
        job = Job(name="relay", run=relay.run_once, interval_seconds=RELAY_SECONDS, drains=False)
        running = asyncio.create_task(JobLoop([job]).run(stopping))
        try:
            yield relay
        finally:
            stopping.set()
            await running


def start_relay_process(url: str, notes: Path, send_seconds: float = 25) -> "subprocess.Popen[bytes]":
    set_parent_pid()
    return subprocess.Popen([sys.executable, "-m", "tests.support.relay_harness", url, str(send_seconds), str(notes)])


async def _main(url: str, send_seconds: float, notes: Path) -> None:
    end_with_parent()
    async with running_relay(url, {"notes": FileChannel(notes)}, send_seconds):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])))
