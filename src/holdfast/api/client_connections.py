"""The sockets of a process, found among its open files. The server keeps them to itself. This works only on Linux."""

import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

OPEN_FILES: Final = Path("/proc/self/fd")
INTERNET: Final = (socket.AF_INET, socket.AF_INET6)


class ClientConnection(Struct, frozen=True):
    """`inode` shows whether the file number still belongs to the same connection."""

    number: int
    inode: int
    address: str
    port: int


def open_sockets() -> Iterator[tuple[int, int]]:
    """The inode and the file number of each."""
    for name in os.listdir(OPEN_FILES):
        # Another thread may close a file at any moment.
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                yield status.st_ino, int(name)


@contextmanager
def socket_of(number: int) -> Iterator[socket.socket]:
    """Our own socket for an open file. The server cannot close it while we use it."""
    own = socket.socket(fileno=os.dup(number))
    try:
        yield own
    finally:
        own.close()


def listening_ports(numbers: Iterable[int]) -> frozenset[int]:
    ports = set()
    for number in numbers:
        with suppress(OSError), socket_of(number) as own:
            if own.family in INTERNET and own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                ports.add(own.getsockname()[1])
    return frozenset(ports)


def client_connection(number: int, inode: int, ports: frozenset[int]) -> ClientConnection | None:
    with suppress(OSError), socket_of(number) as own:
        if own.family in INTERNET and own.getsockname()[1] in ports:
            address, port, *_ = own.getpeername()
            return ClientConnection(number, inode, address, port)
    return None
