"""The application's database role: it can add journal entries, and change neither them nor the schema."""

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast.runtime import db, embedded, embedded_url
from tests.support.command_line import call_holdfast, run_holdfast
from tests.support.engine_harness import hold_many, lane_connection, new_event, one_pool
from tests.support.harness import Server, application_url, fresh_database, query, run_with_connection, with_database
from tests.support.old_schema import database_at_step

# Before the journal was a chain.
LAST_WITHOUT_ROLES = 19

FORBIDDEN = {
    "update": "UPDATE journal SET actor = 'nobody'",
    "delete": "DELETE FROM journal",
    "truncate": "TRUNCATE journal",
    "disable triggers": "ALTER TABLE journal DISABLE TRIGGER ALL",
    "add a trigger": "CREATE TRIGGER t AFTER INSERT ON journal EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "drop the journal": "DROP TABLE journal",
    "drop a constraint": "ALTER TABLE pool DROP CONSTRAINT pool_never_oversold",
    "create a table": "CREATE TABLE mine (number integer)",
    "replace the clock": "CREATE OR REPLACE FUNCTION holdfast_now() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
    "truncate bookings": "TRUNCATE booking",
    "change the schema version": "DELETE FROM schema_version",
}


@pytest.fixture(scope="module")
def url(postgres: str) -> Iterator[str]:
    """A database with one event and some bookings, as its owner connects to it."""

    async def sell(connection: db.Connection) -> None:
        await hold_many(connection, await new_event(connection, pools=one_pool(9)), 3)

    with fresh_database(postgres) as url:
        run_with_connection(sell, application_url(url))
        yield url


@pytest.fixture
def role(postgres: str) -> Iterator[str]:
    """A role of the test's own, that may log in."""
    name = f"role_{secrets.token_hex(4)}"
    query(postgres, f"CREATE ROLE {name} LOGIN")
    yield name
    query(postgres, f"DROP ROLE {name}")


def as_role(url: str, role: str) -> str:
    return application_url(url).replace(embedded_url.APPLICATION_ROLE, role, 1)


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_application_cannot(url: str, what: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        query(application_url(url), FORBIDDEN[what])


def test_the_owner_of_the_tables_can_do_all_of_this(url: str) -> None:
    """Otherwise, the test above would prove nothing."""

    async def run(connection: db.Connection) -> None:
        for statement in FORBIDDEN.values():
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(statement)
            await transaction.rollback()

    run_with_connection(run, url)


def test_a_server_connects_as_the_application(server: Server) -> None:
    with server.client() as client:
        assert client.get("/readyz").status_code == 200
    users = query(
        server.database_url,
        """SELECT DISTINCT usename FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'holdfast%' AND pid <> pg_backend_pid()""",
    )
    assert [row["usename"] for row in users] == [embedded_url.APPLICATION_ROLE]


def test_the_next_migration_lets_the_application_use_a_new_table(postgres: str) -> None:
    with fresh_database(postgres) as url:
        query(url, "CREATE TABLE later (number integer GENERATED ALWAYS AS IDENTITY, name text)")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            query(application_url(url), "SELECT * FROM later")
        done = call_holdfast(application_url(url), "migrate", HOLDFAST_MIGRATION_DATABASE_URL=url)
        assert done.returncode == 0, done.stderr
        query(application_url(url), "INSERT INTO later (name) VALUES ('x')")
        query(application_url(url), "DELETE FROM later")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            query(application_url(url), "DELETE FROM journal")


def test_one_role_for_everything_still_works(url: str) -> None:
    for of in (url, application_url(url)):
        done = call_holdfast(of, "audit")
        assert done.returncode == 0, done.stderr


def test_the_application_cannot_migrate_and_says_who_can(postgres: str) -> None:
    with database_at_step(postgres, LAST_WITHOUT_ROLES) as old:
        query(old, f"GRANT SELECT ON schema_version TO {embedded_url.APPLICATION_ROLE}")
        done = call_holdfast(application_url(old), "migrate")
        assert done.returncode == 2
        assert "Run `holdfast migrate` with HOLDFAST_MIGRATION_DATABASE_URL" in done.stderr
        done = call_holdfast(application_url(old), "migrate", HOLDFAST_MIGRATION_DATABASE_URL=old)
        assert done.returncode == 0, done.stderr
        assert call_holdfast(application_url(old), "audit").returncode == 0


def test_a_role_that_can_act_as_the_owner_is_refused(url: str, role: str) -> None:
    query(url, f"GRANT postgres TO {role}")
    done = call_holdfast(as_role(url, role), "migrate", HOLDFAST_MIGRATION_DATABASE_URL=url)
    assert done.returncode == 2
    assert f"The role {role} of HOLDFAST_DATABASE_URL can act as the owner" in done.stderr


def test_a_role_that_may_change_the_journal_in_another_way_is_refused(postgres: str, role: str) -> None:
    with fresh_database(postgres) as url:
        query(url, "GRANT DELETE ON journal TO PUBLIC")
        done = call_holdfast(as_role(url, role), "migrate", HOLDFAST_MIGRATION_DATABASE_URL=url)
        assert done.returncode == 2
        assert f"The role {role} may DELETE the journal, because another role or PUBLIC grants it." in done.stderr


def test_a_role_that_may_create_tables_is_refused(postgres: str, role: str) -> None:
    with fresh_database(postgres) as url:
        query(url, "GRANT CREATE ON SCHEMA public TO PUBLIC")
        done = call_holdfast(as_role(url, role), "migrate", HOLDFAST_MIGRATION_DATABASE_URL=url)
        assert done.returncode == 2
        assert "REVOKE CREATE ON SCHEMA public FROM PUBLIC" in done.stderr


def test_two_urls_of_different_databases_are_refused(url: str) -> None:
    elsewhere = application_url(with_database(url, "postgres"))
    done = call_holdfast(elsewhere, "migrate", HOLDFAST_MIGRATION_DATABASE_URL=url)
    assert done.returncode == 2
    assert "name different databases" in done.stderr


def test_an_owner_without_an_application_is_refused() -> None:
    done = call_holdfast("", "migrate", HOLDFAST_MIGRATION_DATABASE_URL="postgresql://owner@localhost/db")
    assert done.returncode == 2
    assert "HOLDFAST_MIGRATION_DATABASE_URL needs HOLDFAST_DATABASE_URL" in done.stderr


def test_an_existing_data_folder_gets_the_role_at_the_next_start(data_folder: Path) -> None:
    owner = embedded.start(data_folder)
    asyncio.run(db.migrate(owner))
    done = run_holdfast("audit", "--data", str(data_folder))
    assert done.returncode == 0, done.stderr

    async def sell() -> None:
        async with lane_connection(embedded.application_url(owner)) as connection:
            await hold_many(connection, await new_event(connection, pools=one_pool(9)), 3)

    asyncio.run(sell())
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        query(embedded.application_url(owner), "DELETE FROM journal")
