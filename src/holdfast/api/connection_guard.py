"""Closes connections that no honest client needs: those above the limit of their address, those whose client does not
read, and live sockets that send data.

The server accepts every connection, reads every WebSocket message to its end and keeps a response in memory until its
client has read it. It has no setting for any of this, so the guard regularly looks for client connections among the
open files of the process. This works only on Linux; elsewhere, put a proxy with these limits in front.
"""

import asyncio
import fcntl
import os
import socket
import struct
import termios
import time
from collections import Counter
from contextlib import suppress
from typing import Final, Protocol

import structlog
from msgspec import Struct

from holdfast.api.client_address import normalize
from holdfast.api.client_connections import (
    OPEN_FILES,
    ClientConnection,
    client_connection,
    listening_ports,
    open_sockets,
    socket_of,
)
from holdfast.runtime.settings import Settings
from holdfast.runtime.supervision import TaskHealth, keep_running

log = structlog.get_logger()

SWEEP_SECONDS: Final = 1.0
# With more connections the guard looks less often, so that it never takes more than a few percent of a core.
SWEEP_SECONDS_PER_SOCKET: Final = 0.001
# A handshake with its headers, and some pings. Watchers have nothing else to send.
LIVE_RECEIVED_BYTES_MAX: Final = 256 * 1024
# How long a client may leave a response unread.
UNREAD_SECONDS: Final = 30.0
# `tcpi_bytes_acked` and `tcpi_bytes_received` in the `tcp_info` of Linux.
TCP_COUNTERS: Final = struct.Struct("=QQ")
TCP_COUNTERS_AT: Final = 120
TCP_INFO_BYTES: Final = TCP_COUNTERS_AT + TCP_COUNTERS.size


class Watchers(Protocol):
    """The clients that watch an event, by address and port."""

    @property
    def clients(self) -> frozenset[tuple[str, int]]: ...


class Traffic(Struct, frozen=True):
    """What a connection has received from its client, what the client has acknowledged, and what waits to be sent."""

    received: int
    acknowledged: int
    unsent: int


class ConnectionGuard:
    def __init__(self, settings: Settings, watchers: Watchers, task_health: TaskHealth) -> None:
        # Behind a proxy, all connections are the proxy's.
        self._per_address_max = 0 if settings.proxies else settings.connections_per_address
        self._watchers = watchers
        self._task_health = task_health
        self._listening_ports: frozenset[int] = frozenset()
        # All open sockets by inode, the oldest first. None stands for a socket that is not a client's.
        self._sockets: dict[int, ClientConnection | None] = {}
        # For each connection with unsent data: the bytes acknowledged, and since when that number has not moved.
        self._unread: dict[int, tuple[int, float]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if OPEN_FILES.is_dir():
            run = keep_running("connection_guard", self._run, self._task_health, lambda: None)
            self._task = asyncio.create_task(run)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS + SWEEP_SECONDS_PER_SOCKET * len(self._sockets))
            await asyncio.to_thread(self.sweep, self._watchers.clients)

    def sweep(self, watching: frozenset[tuple[str, int]]) -> None:
        self._find_sockets()
        connections = [connection for connection in self._sockets.values() if connection is not None]
        _close(self._above_limit(connections), "too many from one address")
        traffic = {connection: found for connection in connections if (found := _traffic(connection))}
        talkative = [
            connection
            for connection, found in traffic.items()
            if (connection.address, connection.port) in watching and found.received > LIVE_RECEIVED_BYTES_MAX
        ]
        _close(talkative, "a watcher sent too much")
        _close(self._not_reading(traffic), "the client does not read")

    def _find_sockets(self) -> None:
        numbers = dict(open_sockets())
        self._listening_ports = self._listening_ports or listening_ports(numbers.values())
        known = {inode: connection for inode, connection in self._sockets.items() if inode in numbers}
        for inode, number in numbers.items():
            if inode not in known:
                known[inode] = client_connection(number, inode, self._listening_ports)
        self._sockets = known

    def _not_reading(self, traffic: dict[ClientConnection, Traffic]) -> list[ClientConnection]:
        now = time.monotonic()
        before, self._unread = self._unread, {}
        for connection, found in traffic.items():
            if found.unsent:
                acknowledged, since = before.get(connection.inode, (-1, now))
                is_stuck = acknowledged == found.acknowledged
                self._unread[connection.inode] = (found.acknowledged, since if is_stuck else now)
        return [c for c in traffic if c.inode in self._unread and now - self._unread[c.inode][1] > UNREAD_SECONDS]

    def _above_limit(self, connections: list[ClientConnection]) -> list[ClientConnection]:
        """The newest connections of each address that has too many."""
        if not self._per_address_max:
            return []
        counts: Counter[str] = Counter()
        above = []
        for connection in connections:
            address = normalize(connection.address)
            counts[address] += 1
            if counts[address] > self._per_address_max:
                above.append(connection)
        return above


def _traffic(connection: ClientConnection) -> Traffic | None:
    with suppress(OSError), socket_of(connection.number) as own:
        info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        acknowledged, received = TCP_COUNTERS.unpack_from(info, TCP_COUNTERS_AT)
        (unsent,) = struct.unpack("=i", fcntl.ioctl(own, termios.TIOCOUTQ, bytes(4)))
        return Traffic(received, acknowledged, unsent)
    return None


def _close(connections: list[ClientConnection], reason: str) -> None:
    closed = sum(_shut_down(connection) for connection in connections)
    if closed:
        log.warning("connections_closed", connections=closed, reason=reason)


def _shut_down(connection: ClientConnection) -> bool:
    """End the connection, unless its file number now belongs to another one. The server then closes the file."""
    with suppress(OSError), socket_of(connection.number) as own:
        if os.fstat(own.fileno()).st_ino == connection.inode:
            own.shutdown(socket.SHUT_RDWR)
            return True
    return False
