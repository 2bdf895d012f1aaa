"""An audience of thousands of WebSockets on one live feed, in a process of its own that does little else.

Run it as `python -m tests.support.live_audience <port> <path> <sockets>`. It prints `ready` once every socket has its
snapshot, reads a version from a line of its input, waits until every socket has reached that version, and prints a
report as a line of JSON.
"""

import asyncio
import base64
import os
import resource
import subprocess
import sys
import time
from typing import Any

import msgspec
import uvloop

CONNECTS_AT_ONCE = 100
REACH_SECONDS = 60


class AudienceReport(msgspec.Struct):
    """`last_at` says, by journal entry, when the last socket got it. A gap is a message that does not follow
    its predecessor. `states` are the final seat states of one socket."""

    sockets: int
    messages: int
    bytes: int
    gaps: int
    lost: int
    behind: int
    merged: int
    states: dict[str, str]
    last_at: dict[int, float]


class Message(msgspec.Struct):
    """A message to many sockets: the journal entries it covers, and when the last socket got it."""

    first: int
    last: int
    last_at: float = 0.0
    count: int = 0


class AudienceTally:
    def __init__(self) -> None:
        self.messages: dict[bytes, Message] = {}
        self.snapshots = 0
        self.gaps = 0
        self.lost = 0
        self.bytes = 0
        self.states: dict[str, str] = {}

    def parse(self, payload: bytes) -> Message:
        message = msgspec.json.decode(payload)
        if message["type"] == "snapshot":
            return Message(0, message["version"])
        if message["type"] == "beat":
            return Message(message["version"], message["version"])
        return Message(message.get("from", message["seq"]), message["seq"])


class SocketWatcher(asyncio.Protocol):
    def __init__(self, tally: AudienceTally, path: str, *, is_first: bool) -> None:
        self._tally = tally
        self._path = path
        self._is_first = is_first
        self._rest = b""
        self._is_open = False
        self.version = -1

    def connection_made(self, transport: Any) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {self._path} HTTP/1.1", "Host: holdfast", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
        transport.write("\r\n".join([*lines, "", ""]).encode())

    def connection_lost(self, error: Exception | None) -> None:
        self._tally.lost += 1

    def data_received(self, data: bytes) -> None:
        self._tally.bytes += len(data)
        data = self._rest + data
        if not self._is_open:
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                self._rest = head
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            self._is_open = True
        self._rest = self._take_frames(data)

    def _take_frames(self, data: bytes) -> bytes:
        while len(data) >= 2:
            start, length = 2, data[1]
            if length > 125:
                start = 4 if length == 126 else 10
                length = int.from_bytes(data[2:start], "big")
            if len(data) < start + length:
                break
            if data[0] == 0x81:
                self._take_message(data[start : start + length])
            data = data[start + length :]
        return data

    def _take_message(self, payload: bytes) -> None:
        message = self._tally.messages.get(payload)
        if message is None:
            message = self._tally.messages[payload] = self._tally.parse(payload)
        message.count += 1
        message.last_at = time.time()
        if self.version < 0:
            self._tally.snapshots += 1
        elif message.first > self.version + 1:
            self._tally.gaps += 1
        self.version = max(self.version, message.last)
        if self._is_first:
            self._tally.states.update(msgspec.json.decode(payload).get("seats", {}))


async def watch(port: int, path: str, sockets: int) -> AudienceReport:
    tally = AudienceTally()
    watchers: list[SocketWatcher] = []
    loop = asyncio.get_running_loop()

    async def connect() -> None:
        watcher = SocketWatcher(tally, path, is_first=not watchers)
        watchers.append(watcher)
        await loop.create_connection(lambda: watcher, "127.0.0.1", port)

    for start in range(0, sockets, CONNECTS_AT_ONCE):
        await asyncio.gather(*(connect() for _ in range(min(CONNECTS_AT_ONCE, sockets - start))))
        await asyncio.sleep(0.06)
    while tally.snapshots + tally.lost < sockets:
        await asyncio.sleep(0.05)
    print("ready", flush=True)
    target = int(await loop.run_in_executor(None, sys.stdin.readline))
    give_up_at = time.monotonic() + REACH_SECONDS
    while any(watcher.version < target for watcher in watchers) and time.monotonic() < give_up_at:
        await asyncio.sleep(0.1)
    return _report(tally, watchers, target)


def _report(tally: AudienceTally, watchers: list[SocketWatcher], target: int) -> AudienceReport:
    last_at: dict[int, float] = {}
    for message in tally.messages.values():
        if message.first:
            for number in range(message.first, message.last + 1):
                last_at[number] = max(last_at.get(number, 0.0), message.last_at)
    return AudienceReport(
        sockets=len(watchers),
        messages=sum(message.count for message in tally.messages.values()),
        bytes=tally.bytes,
        gaps=tally.gaps,
        lost=tally.lost,
        behind=sum(watcher.version < target for watcher in watchers),
        merged=sum(message.count for message in tally.messages.values() if message.last > message.first > 0),
        states=tally.states,
        last_at=last_at,
    )


class Audience:
    """The audience process, as seen by its parent."""

    def __init__(self, port: int, event: str, sockets: int) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.support.live_audience",
            str(port),
            f"/v1/events/{event}/live",
            str(sockets),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> "Audience":
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_for_version(self, version: int) -> AudienceReport:
        message, _ = self._process.communicate(f"{version}\n".encode())
        return msgspec.json.decode(message, type=AudienceReport)


def main() -> None:
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    port, path, sockets = sys.argv[1:]
    report = uvloop.run(watch(int(port), path, int(sockets)))
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main()
