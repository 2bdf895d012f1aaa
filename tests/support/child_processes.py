"""Find the children of a process, also while some of them end."""

from collections.abc import Iterator

import psutil


def children_with(argument: str, pid: int) -> list[psutil.Process]:
    """The running children whose command line has this argument."""
    return [child for child, command_line in _running_children(pid) if argument in command_line]


def children_without(argument: str, pid: int) -> list[psutil.Process]:
    """The running children whose command line does not have this argument."""
    return [child for child, command_line in _running_children(pid) if argument not in command_line]


def listens(process: psutil.Process, port: int) -> bool:
    try:
        return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in process.net_connections("inet"))
    except psutil.NoSuchProcess:
        return False


def _running_children(pid: int) -> Iterator[tuple[psutil.Process, list[str]]]:
    for child in psutil.Process(pid).children():
        try:
            yield child, child.cmdline()
        except psutil.NoSuchProcess:
            # It has ended, or is a zombie that its parent has not collected yet.
            continue
