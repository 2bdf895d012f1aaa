"""Finds the embedded PostgreSQL that already runs, and starts nothing."""

from pathlib import Path
from typing import Final
from urllib.parse import quote

from msgspec import Struct

# The application connects as this role, and the superuser owns the tables.
APPLICATION_ROLE: Final = "holdfast"


class _PidFile(Struct, frozen=True):
    """What PostgreSQL writes about itself into its folder."""

    port: str
    socket_folder: str


def find_embedded_url(data_dir: Path) -> str | None:
    """The application's URL of the server that left its pid file in this folder. The server may have died since."""
    try:
        found = _read_pid_file(data_dir / "postgres" / "postmaster.pid")
    except (OSError, ValueError):
        return None
    if not found.socket_folder:
        return f"postgresql://{APPLICATION_ROLE}@127.0.0.1:{found.port}/postgres"
    return f"postgresql://{APPLICATION_ROLE}@/postgres?host={quote(found.socket_folder, safe='/')}&port={found.port}"


def _read_pid_file(file: Path) -> _PidFile:
    _pid, _folder, _started, port, socket_folder, *_ = file.read_text().split("\n")
    return _PidFile(port, socket_folder)
