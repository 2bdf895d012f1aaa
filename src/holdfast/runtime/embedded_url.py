"""Finds the embedded PostgreSQL that already runs, and starts nothing."""

from pathlib import Path
from urllib.parse import quote

from msgspec import Struct


class _PidFile(Struct, frozen=True):
    """What PostgreSQL writes about itself into its folder."""

    port: str
    socket_folder: str


def find_embedded_url(data_dir: Path) -> str | None:
    """The URL of the server that left its pid file in this folder. It may have died since."""
    try:
        found = _read_pid_file(data_dir / "postgres" / "postmaster.pid")
    except (OSError, ValueError):
        return None
    if not found.socket_folder:
        return f"postgresql://postgres@127.0.0.1:{found.port}/postgres"
    return f"postgresql://postgres@/postgres?host={quote(found.socket_folder, safe='/')}&port={found.port}"


def _read_pid_file(file: Path) -> _PidFile:
    _pid, _folder, _started, port, socket_folder, *_ = file.read_text().split("\n")
    return _PidFile(port, socket_folder)
