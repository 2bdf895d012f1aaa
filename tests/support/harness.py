"""What tests need to run Holdfast: databases, real servers in real processes, orgs and example events."""

import asyncio
import atexit
import base64
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import httpx

from holdfast.runtime import db, embedded
from holdfast.runtime.credentials import Role, create_key, create_org
from tests.support.child_processes import children_without, listens
from tests.support.kept_connections import KeptConnections

T = TypeVar("T")
# Polling more often would slow the start down.
START_PAUSE_SECONDS = 0.1
TEMPLATE = "holdfast_template"
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 1024**3
# `make test-long` runs every race, crash and property in full.
IS_LONG = "HOLDFAST_LONG_TESTS" in os.environ
# The tests' PostgreSQL runs without fsync, in memory.
os.environ.setdefault("HOLDFAST_ALLOW_UNSAFE_DATABASE", "true")
SANDBOX_SECRET = "whsec_" + base64.b64encode(b"the sandbox signs with this").decode()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder in memory if there is room: no test cuts the power, so nothing needs to reach a disk. It is not below
    pytest's own folder, which the user that runs PostgreSQL for root cannot enter."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN
    with tempfile.TemporaryDirectory(
        prefix="holdfast-", dir=MEMORY if has_room else None, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


_until_exit = ExitStack()
atexit.register(_until_exit.close)


@cache
def shared_data_folder() -> Path:
    """The data folder of all servers that this process starts."""
    return _until_exit.enter_context(temporary_folder())


def with_database(url: str, name: str) -> str:
    head, _, query = url.partition("?")
    return f"{head.rpartition('/')[0]}/{name}" + (f"?{query}" if query else "")


@asynccontextmanager
async def connection_to(
    url: str, connect: Callable[[str], Awaitable[db.Connection]] = db.connect
) -> AsyncIterator[db.Connection]:
    connection = await connect(url)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


def run_with_connection(work: Callable[[db.Connection], Awaitable[T]], url: str) -> T:
    """Run a coroutine on a connection of its own."""

    async def run() -> T:
        async with connection_to(url) as connection:
            return await work(connection)

    return asyncio.run(run())


@cache
def _kept_connections() -> KeptConnections:
    kept = KeptConnections()
    _until_exit.callback(kept.close_all)
    return kept


def query(url: str, statement: str, *values: Any) -> Any:
    """Run one statement and return its rows. Not for statements that change their session."""
    return _kept_connections().fetch(url, statement, *values)


def start_postgres() -> str:
    """The URL of an embedded PostgreSQL that runs as long as this process. A new database costs milliseconds."""
    url = embedded.start(_until_exit.enter_context(temporary_folder()))
    for setting in ("fsync = off", "full_page_writes = off"):
        query(url, f"ALTER SYSTEM SET {setting}")
    query(url, "SELECT pg_reload_conf()")
    make_template(url)
    return url


def make_template(server_url: str) -> None:
    async def make() -> None:
        connection = await asyncpg.connect(server_url)
        await connection.execute(f"CREATE DATABASE {TEMPLATE}")
        await connection.close()
        url = with_database(server_url, TEMPLATE)
        await embedded.create_application_role(url)
        await db.migrate(url, application_url=embedded.application_url(url))

    asyncio.run(make())


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """A migrated, empty database."""
    name = f"test_{secrets.token_hex(6)}"
    query(server_url, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy")
    try:
        yield with_database(server_url, name)
    finally:
        _kept_connections().close(with_database(server_url, name))
        query(server_url, f"DROP DATABASE {name} WITH (FORCE)")


class Org:
    """A tenant of a database, with a key for each role. Tests that share a database each have an org of their own."""

    def __init__(self, url: str, slug: str | None = None) -> None:
        slug = self.slug = slug or f"org-{secrets.token_hex(4)}"

        async def make(connection: db.Connection) -> tuple[bytes, dict[str, str]]:
            org = await create_org(db.Database(connection), slug)
            assert org is not None
            roles = (Role.ADMIN, Role.SALES, Role.REVIEW, Role.DOOR)
            return org, {role.value: await create_key(db.Database(connection), org, role) for role in roles}

        self.id, self.keys = run_with_connection(make, url)

    def headers(self, role: str = "admin") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[role]}"}


class Server:
    """`holdfast serve` on a free port."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str, database_url: str) -> None:
        self.process = process
        self.url = url
        self.database_url = database_url
        self.port = int(url.rpartition(":")[2])

    def api_pids(self) -> list[int]:
        """The processes that serve requests: children that listen on the port."""
        return [child.pid for child in children_without("worker", self.process.pid) if listens(child, self.port)]

    def client(self, headers: dict[str, str] | None = None) -> httpx.Client:
        # Loading certificates takes long, and there is no TLS here.
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=False)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def free_port(ports: range = range(10_000, 32_768)) -> int:
    """A port below those from which the system takes ports for outgoing connections: one of them could come first."""
    while True:
        port = secrets.choice(ports)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def running_server(
    database_url: str, *, workers: int = 2, worker: bool = False, **environment: str
) -> Iterator[Server]:
    with running_server_on(free_port(), database_url, workers, worker, environment) as server:
        yield server


@contextmanager
def running_server_on(
    port: int, database_url: str, workers: int = 2, worker: bool = False, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    command = [sys.executable, "-m", "holdfast", "serve", "--port", str(port), "--workers", str(workers)]
    process = subprocess.Popen(
        [*command, "--worker" if worker else "--no-worker"],
        env={**os.environ, **_environment(database_url), **redis_environment(), **(environment or {})},
    )
    server = Server(process, f"http://127.0.0.1:{port}", database_url)
    try:
        with httpx.Client(base_url=server.url, timeout=5, verify=False) as client:
            wait_until(lambda: _is_ready(server, client) and len(server.api_pids()) == workers, 60, START_PAUSE_SECONDS)
        yield server
    finally:
        server.stop()


def application_url(database_url: str) -> str:
    """The database as the application connects to it. Tests connect as its owner, and plant what they need."""
    return embedded.application_url(database_url)


def _environment(database_url: str) -> dict[str, str]:
    """Settings that let every part run on one machine."""
    return {
        "HOLDFAST_DATABASE_URL": application_url(database_url),
        "HOLDFAST_MIGRATION_DATABASE_URL": database_url,
        "HOLDFAST_DATA_DIR": str(shared_data_folder()),
        "HOLDFAST_SANDBOX_WEBHOOK_SECRET": SANDBOX_SECRET,
        "HOLDFAST_WEBHOOKS_TO_PRIVATE_ADDRESSES": "true",
        # Some machines set it, but a server must not need it.
        "PYTHONUNBUFFERED": "",
    }


@cache
def redis_environment() -> dict[str, str]:
    """With `make test-redis`, every server of the tests has a Redis in front of it: HOLDFAST_TEST_REDIS says of which
    kind. Without it, only the servers of tests that ask for one."""
    kind = os.environ.get("HOLDFAST_TEST_REDIS")
    if not kind:
        return {}
    from tests.support.redis_process import running_redis_of_kind

    return {"HOLDFAST_REDIS_URL": _until_exit.enter_context(running_redis_of_kind(kind))}


def _is_ready(server: Server, client: httpx.Client) -> bool:
    assert server.process.poll() is None, "the server ended"
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float, pause_seconds: float = 0.04) -> None:
    """Poll until the condition holds. The deadline only keeps a test from hanging."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, f"did not happen in {seconds} s"
        time.sleep(pause_seconds)


def example_event(**changes: Any) -> dict[str, Any]:
    """An event to POST: two rows of twenty seats, and standing room at two tariffs."""
    event: dict[str, Any] = {
        "title": "Friday night",
        "starts_at": "2027-03-05T19:00:00Z",
        "currency": "EUR",
        "tax_bps": 1900,
        "pools": [
            {
                "code": "stalls",
                "name": "Stalls",
                "tariffs": [{"code": "full", "price": 3000}],
                "seats": {"rows": ["A", "B"], "numbers": 20},
            },
            {
                "code": "standing",
                "capacity": 500,
                "tariffs": [{"code": "full", "price": 1500}, {"code": "child", "price": 700}],
            },
        ],
    }
    return {**event, **changes}


def publish_event(client: httpx.Client, event: dict[str, Any]) -> str:
    """Create the event as an admin, publish it, and return its id."""
    created = client.post("/v1/events", json=event)
    assert created.status_code == 201, created.text
    id_: str = created.json()["id"]
    assert client.post(f"/v1/events/{id_}/publish").status_code == 200
    return id_


def post_hold(client: httpx.Client, event: str, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key or secrets.token_hex(8)}
    return client.post(f"/v1/events/{event}/holds", json={"user": "u-1", **body}, headers=headers)
