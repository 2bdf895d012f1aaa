"""Stops a process behind a proxy without losing a request.

A proxy keeps connections open and may send a request on one of them at the very moment at which the server closes it.
The proxy cannot know whether the server has received that request, so it must not repeat a POST, and its client gets an
error. The same happens to connections that the server has not accepted yet when it stops listening.

So a process that stops goes on serving at first, and closes each connection after its next response. The proxy closes
those that it does not use. Then the process ignores new connections, which the proxy opens to another server instead,
and serves the rest of its own.
"""

import asyncio
import ctypes
import socket
import struct
import time
from typing import Final

from starlette.types import Message, Scope, Send

from holdfast.api.client_connections import OPEN_FILES, client_connection, listening_ports, open_sockets, socket_of
from holdfast.api.endpoint import CLOSE

# Proxies have this long to close connections that they do not use.
IDLE_SECONDS: Final = 8.0
# Requests that are under way then have this long.
LAST_SECONDS: Final = 3.0
CHECK_SECONDS: Final = 0.05
# A handshake takes two round trips, so a connection may still arrive after the last SYN.
QUIET_CHECKS: Final = 3

# A socket option of Linux that Python does not name, and a filter for it. The filter drops packets that open a
# connection: it loads the flags of the TCP header, keeps SYN and ACK of them, and drops the packet if only SYN is set.
SO_ATTACH_FILTER: Final = 26
IGNORE_NEW: Final = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),
        (0x54, 0, 0, 0x12),
        (0x15, 0, 1, 0x02),
        (0x06, 0, 0, 0),
        (0x06, 0, 0, 2**32 - 1),
    )
)
# The number of connections that wait to be accepted, where `tcp_info` has `tcpi_unacked` for other sockets.
BACKLOG: Final = struct.Struct("=I")
BACKLOG_AT: Final = 24


class Drain:
    """The end of one process. It begins at most once."""

    def __init__(self, *, has_proxies: bool) -> None:
        self._has_proxies = has_proxies
        # The process stops, and the next response on each connection is its last.
        self.has_begun = False

    async def run(self) -> None:
        """Returns when the process can stop. Without a proxy, that is at once: a client has no other server, and many
        clients keep connections open for minutes."""
        self.has_begun = True
        if not self._has_proxies or not OPEN_FILES.is_dir():
            return
        ports = listening_ports(number for _, number in open_sockets())
        idle_until = time.monotonic() + IDLE_SECONDS
        before = _connections(ports)
        while before & _connections(ports) and time.monotonic() < idle_until:
            await asyncio.sleep(CHECK_SECONDS)
        # Those that are left belong to clients that keep connections for longer.
        kept = before & _connections(ports)
        ignore_new_connections()
        last_until = time.monotonic() + LAST_SECONDS
        quiet = 0
        while quiet < QUIET_CHECKS and time.monotonic() < last_until:
            is_quiet = not count_backlog() and not _connections(ports) - kept
            quiet = quiet + 1 if is_quiet else 0
            await asyncio.sleep(CHECK_SECONDS)

    def closing(self, scope: Scope, send: Send) -> Send:
        """Asks the client to close the connection after the response."""
        if scope["type"] != "http":
            return send

        async def send_closing(message: Message) -> None:
            if message["type"] == "http.response.start" and CLOSE not in message["headers"]:
                message = {**message, "headers": [*message["headers"], CLOSE]}
            await send(message)

        return send_closing


def _connections(ports: frozenset[int]) -> set[int]:
    """The inodes of all connections of clients."""
    return {inode for inode, number in open_sockets() if client_connection(number, inode, ports) is not None}


def _listening_sockets() -> list[int]:
    return [number for _, number in open_sockets() if listening_ports([number])]


def ignore_new_connections() -> None:
    """If the process stopped listening, the system would reset connections that the proxy believes to be open. It sends
    the SYN again a second later, to a port that is closed by then."""
    program = ctypes.create_string_buffer(IGNORE_NEW, len(IGNORE_NEW))
    option = struct.pack("@HP", len(IGNORE_NEW) // 8, ctypes.addressof(program))
    for number in _listening_sockets():
        with socket_of(number) as listener:
            listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, option)


def count_backlog() -> int:
    """How many connections wait to be accepted."""
    waiting = 0
    for number in _listening_sockets():
        with socket_of(number) as listener:
            info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BACKLOG_AT + BACKLOG.size)
            waiting += BACKLOG.unpack_from(info, BACKLOG_AT)[0]
    return waiting
