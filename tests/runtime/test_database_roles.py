"""The application's database role: it can add journal entries, and change neither them nor the schema."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from holdfast.runtime import database_roles, db, embedded, embedded_url
from tests.support.command_line import call_holdfast, run_holdfast
from tests.support.engine_harness import hold_many, lane_connection, new_event, one_pool
from tests.support.harness import Server, application_url, fresh_database, query, run_with_connection, with_database
from tests.support.old_schema import database_at_step

# Before the journal was a chain.
LAST_WITHOUT_ROLES = 19

OWN_RELATIONS = """
SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, oid::regclass::text FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'S') AND relname <> 'theirs'
  AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype IN ('a', 'i') AND relkind = 'S')
"""

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
    **{f"delete from {table}": f"DELETE FROM {table} WHERE false" for table in database_roles.KEPT},
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


@contextmanager
def group_role(url: str) -> Iterator[str]:
    """A role that has nothing in other databases than this one."""
    name = f"group_{secrets.token_hex(4)}"
    query(url, f"CREATE ROLE {name}")
    yield name
    query(url, f"REASSIGN OWNED BY {name} TO postgres")
    query(url, f"DROP OWNED BY {name}")
    query(url, f"DROP ROLE {name}")


def execute(url: str, statements: str) -> None:
    async def run(connection: db.Connection) -> None:
        await connection.execute(statements)

    run_with_connection(run, url)


def as_role(url: str, role: str) -> str:
    return application_url(url).replace(embedded_url.APPLICATION_ROLE, role, 1)


async def connect_pooled(url: str) -> db.Connection:
    pool = await db.create_pool(url, 1)
    # What a pool resets, when it takes a connection back, must not be the search path.
    async with pool.acquire() as connection:
        await connection.execute("SELECT 1")
    return await pool.acquire()


@pytest.mark.parametrize(
    "connect", [db.connect, db.connect_lane, db.connect_watcher, db.connect_reader, connect_pooled]
)
def test_no_table_can_be_put_in_place_of_ours(url: str, connect: Callable[[str], Awaitable[db.Connection]]) -> None:
    """PostgreSQL looks among temporary tables and in a schema with the name of the user first."""

    async def count() -> list[int]:
        connection = await connect(application_url(url))
        try:
            await connection.execute("SET default_transaction_read_only = off")
            await connection.execute("CREATE TEMP TABLE journal (number bigint)")
            return [await connection.fetchval(f"SELECT count(*) FROM {name}") for name in ("journal", "line")]
        finally:
            connection.terminate()

    name = embedded_url.APPLICATION_ROLE
    execute(
        url, f"CREATE SCHEMA {name}; CREATE TABLE {name}.line (number bigint); GRANT USAGE ON SCHEMA {name} TO {name}"
    )
    execute(url, f"GRANT SELECT ON {name}.line TO {name}")
    try:
        assert asyncio.run(count()) == [5, 3]
    finally:
        execute(url, f"DROP SCHEMA {name} CASCADE")


def test_the_tables_can_be_in_a_schema_of_their_own(postgres: str, role: str) -> None:
    """Where they are follows from the default of the database's users, as before."""
    name = f"test_{secrets.token_hex(6)}"
    query(postgres, f"CREATE DATABASE {name}")
    query(postgres, f"ALTER DATABASE {name} SET search_path = shop")
    try:
        url = with_database(postgres, name)
        # Both roles connect before the schema exists, and find another one.
        query(as_role(url, role), "SELECT 1")
        query(url, "CREATE SCHEMA shop")
        done = call_holdfast(as_role(url, role), "migrate", HOLDFAST_MIGRATION_DATABASE_URL=url)
        assert done.returncode == 0, done.stderr
        assert query(as_role(url, role), "SELECT count(*) FROM shop.journal")[0][0] == 0
        assert call_holdfast(as_role(url, role), "audit").returncode == 0
    finally:
        query(postgres, f"DROP DATABASE {name} WITH (FORCE)")


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


OUTSIDE = {
    "a superuser": (
        "ALTER ROLE {role} SUPERUSER",
        "can change the journal as SUPERUSER",
        "ALTER ROLE {role} NOSUPERUSER",
    ),
    "one that makes roles": ("ALTER ROLE {role} CREATEROLE", "as CREATEROLE", "ALTER ROLE {role} NOCREATEROLE"),
    "one that replicates": ("ALTER ROLE {role} REPLICATION", "as REPLICATION", "ALTER ROLE {role} NOREPLICATION"),
    "one that sees all rows": ("ALTER ROLE {role} BYPASSRLS", "as BYPASSRLS", "ALTER ROLE {role} NOBYPASSRLS"),
    "a member of the owner": (
        "GRANT postgres TO {role}",
        "can act as the owner of the tables, because it is a member of postgres",
        "REVOKE postgres FROM {role}",
    ),
    "a member that has to change its role first": (
        "ALTER ROLE {role} NOINHERIT; GRANT {group} TO {role}; GRANT UPDATE ON journal TO {group}",
        "may UPDATE journal, because it is a member of {group}",
        "REVOKE {group} FROM {role}",
    ),
    "one that may change a column": (
        "GRANT {group} TO {role}; GRANT UPDATE (actor) ON journal TO {group}",
        "may UPDATE journal, because it is a member of {group}",
        "REVOKE {group} FROM {role}",
    ),
    "one that may write all tables": (
        "GRANT pg_write_all_data TO {role}",
        "is a member of pg_write_all_data",
        "REVOKE pg_write_all_data FROM {role}",
    ),
    "one that may run programs": (
        "GRANT pg_execute_server_program TO {role}",
        "is a member of pg_execute_server_program",
        "REVOKE pg_execute_server_program FROM {role}",
    ),
    "one that may make schemas": (
        "GRANT CREATE ON DATABASE {database} TO {role}",
        "may create tables of its own in the database {database}",
        "REVOKE CREATE ON DATABASE {database} FROM {role}",
    ),
    "everyone may delete entries": (
        "GRANT DELETE ON journal TO PUBLIC",
        "may DELETE journal, because PUBLIC may",
        "REVOKE DELETE ON journal FROM PUBLIC",
    ),
    "everyone may delete events": (
        "GRANT DELETE ON event TO PUBLIC",
        "may DELETE event, because PUBLIC may",
        "REVOKE DELETE ON event FROM PUBLIC",
    ),
    "everyone may create tables": (
        "GRANT CREATE ON SCHEMA public TO PUBLIC",
        "may create tables of its own in the schema public, because PUBLIC may",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_role_that_could_change_the_past_is_refused_with_advice(postgres: str, role: str, name: str) -> None:
    with fresh_database(postgres) as url, group_role(url) as group:
        names = {"role": role, "group": group, "database": query(url, "SELECT current_database()")[0][0]}
        given, sentence, remedy = (text.format(**names) for text in OUTSIDE[name])
        execute(url, given)
        done = call_holdfast(as_role(url, role), "migrate", HOLDFAST_MIGRATION_DATABASE_URL=url)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert f"The role {role} " in done.stderr
        assert done.stderr.strip().endswith(f"Run as a superuser: {remedy}")
        execute(url, remedy)
        done = call_holdfast(as_role(url, role), "migrate", HOLDFAST_MIGRATION_DATABASE_URL=url)
        assert done.returncode == 0, done.stderr


def test_somebody_elses_table_in_the_schema_stays_theirs(postgres: str, role: str) -> None:
    with fresh_database(postgres) as url, group_role(url) as owner, group_role(url) as other:
        execute(
            url,
            f"""ALTER ROLE {owner} LOGIN; GRANT CREATE ON SCHEMA public TO {owner};
            CREATE TABLE theirs (number integer GENERATED ALWAYS AS IDENTITY); ALTER TABLE theirs OWNER TO {other}""",
        )
        for kind, name in query(url, OWN_RELATIONS):
            execute(url, f"ALTER {kind} {name} OWNER TO {owner}")
        done = call_holdfast(as_role(url, role), "migrate", HOLDFAST_MIGRATION_DATABASE_URL=as_role(url, owner))
        assert done.returncode == 0, done.stderr
        query(as_role(url, role), "SELECT * FROM event")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            query(as_role(url, role), "SELECT * FROM theirs")


def test_a_sequence_that_was_revoked_is_granted_again(postgres: str) -> None:
    with fresh_database(postgres) as url:
        query(url, f"REVOKE ALL ON SEQUENCE delivery_number FROM {embedded_url.APPLICATION_ROLE}")
        done = call_holdfast(application_url(url), "migrate", HOLDFAST_MIGRATION_DATABASE_URL=url)
        assert done.returncode == 0, done.stderr
        query(application_url(url), "SELECT nextval('delivery_number')")


@pytest.fixture
def empty_database(postgres: str) -> Iterator[str]:
    name = f"empty_{secrets.token_hex(4)}"
    query(postgres, f"CREATE DATABASE {name}")
    yield with_database(postgres, name)
    query(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("arguments", [["migrate"], ["migrate", "--check"], ["reap"]], ids=" ".join)
def test_the_owner_of_another_database_is_refused_before_it_changes(
    url: str, empty_database: str, arguments: list[str]
) -> None:
    """Whether or not the application's database is up to date."""
    for application, owner in ((url, empty_database), (empty_database, url)):
        done = call_holdfast(application_url(application), *arguments, HOLDFAST_MIGRATION_DATABASE_URL=owner)
        assert done.returncode == 2
        assert "name different databases" in done.stderr
        assert query(empty_database, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace") == []


def test_a_database_of_the_same_name_on_another_server_is_refused(postgres: str, data_folder: Path) -> None:
    owner = embedded.start(data_folder)
    other = application_url(with_database(postgres, "postgres"))
    done = call_holdfast(other, "migrate", HOLDFAST_MIGRATION_DATABASE_URL=owner)
    assert done.returncode == 2
    assert "postgres and postgres, on different servers" in done.stderr
    assert query(owner, "SELECT to_regclass('schema_version')")[0][0] is None


def test_an_owner_that_may_not_create_tables_is_named(empty_database: str, role: str) -> None:
    done = call_holdfast(
        application_url(empty_database), "migrate", HOLDFAST_MIGRATION_DATABASE_URL=as_role(empty_database, role)
    )
    assert done.returncode == 2
    assert "the role of HOLDFAST_MIGRATION_DATABASE_URL may not do so" in done.stderr
    assert "Set it to a role that owns the tables" in done.stderr


def test_an_owner_without_an_application_is_refused() -> None:
    done = call_holdfast("", "migrate", HOLDFAST_MIGRATION_DATABASE_URL="postgresql://owner@localhost/db")
    assert done.returncode == 2
    assert "HOLDFAST_MIGRATION_DATABASE_URL needs HOLDFAST_DATABASE_URL" in done.stderr


def test_an_existing_data_folder_gets_the_role_at_the_next_start(data_folder: Path) -> None:
    owner = embedded.start(data_folder)
    asyncio.run(db.migrate(owner))
    done = run_holdfast("migrate", "--data", str(data_folder))
    assert done.returncode == 0, done.stderr

    async def sell() -> None:
        async with lane_connection(embedded.application_url(owner)) as connection:
            await hold_many(connection, await new_event(connection, pools=one_pool(9)), 3)

    asyncio.run(sell())
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        query(embedded.application_url(owner), "DELETE FROM journal")
