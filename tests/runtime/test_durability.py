"""What Holdfast acknowledges is on disk, whatever the defaults of a user's own PostgreSQL say."""

from collections.abc import Awaitable, Callable

import pytest
from asyncpg import ServerVersion

from holdfast.runtime import db
from tests.support.command_line import run_installed_holdfast, with_free_port
from tests.support.engine_harness import async_test
from tests.support.harness import connection_to, query

UNSAFE_DEFAULTS = {"synchronous_commit": "off", "default_transaction_isolation": "serializable"}


@pytest.fixture
def careless_database(database: str) -> str:
    """A database whose defaults would undo the promise."""
    name = query(database, "SELECT current_database()")[0][0]
    for setting, value in UNSAFE_DEFAULTS.items():
        query(database, f"ALTER DATABASE {name} SET {setting} = '{value}'")
    return database


@pytest.mark.parametrize("connect", [db.connect, db.connect_lane], ids=["connection", "lane"])
@async_test
async def test_every_connection_waits_for_the_disk(
    careless_database: str, connect: Callable[[str], Awaitable[db.Connection]]
) -> None:
    async with connection_to(careless_database, connect) as connection:
        await _check(connection)


@async_test
async def test_every_connection_of_a_pool_waits_for_the_disk_again_and_again(careless_database: str) -> None:
    pool = await db.create_pool(careless_database, 1)
    for _ in range(2):
        async with pool.acquire() as connection:
            await _check(connection)
            await connection.execute("SET synchronous_commit = off")
    await pool.close()


async def _check(connection: db.Connection) -> None:
    assert await connection.fetchval("SHOW synchronous_commit") == "on"
    assert await connection.fetchval("SHOW transaction_isolation") == "read committed"


class CarelessConnection:
    """To a server with one unsafe setting."""

    def __init__(self, unsafe: str) -> None:
        self._unsafe = unsafe

    def get_server_version(self) -> ServerVersion:
        return ServerVersion(18, 0, 0, "final", 0)

    async def fetchval(self, _: str, setting: str) -> str:
        return "off" if setting == self._unsafe else "on"

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
@async_test
async def test_each_setting_that_may_lose_data_is_refused(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    async def connect(_: str) -> CarelessConnection:
        return CarelessConnection(setting)

    async def find_search_path(_: str) -> str:
        return "public, pg_temp"

    monkeypatch.setattr(db, "connect", connect)
    monkeypatch.setattr(db, "_find_search_path", find_search_path)
    with pytest.raises(db.SchemaError, match=f"{setting} = off"):
        await db.migrate("", allow_unsafe=False)


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_nothing_is_sold_on_a_server_that_may_lose_it(database: str, command: str) -> None:
    ended = run_installed_holdfast(database, *with_free_port(command), HOLDFAST_ALLOW_UNSAFE_DATABASE="false")
    assert ended.returncode == 2
    assert "fsync = off" in ended.stderr
    assert "HOLDFAST_ALLOW_UNSAFE_DATABASE" in ended.stderr
