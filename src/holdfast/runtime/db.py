"""Connections to PostgreSQL, and the schema's migrations.

Everything outside the lanes runs its statements in a scope of `Database`, which says what they are about: one event,
one org, all events, or tables that all orgs share. Today every scope leads to the same pool. When events are spread
over several servers, `Database` decides where a statement goes, as `Engine.submit` does for lanes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, get_type_hints

import asyncpg
from msgspec import Struct, convert, inspect, json, structs

from holdfast import sql
from holdfast.runtime.database_identity import is_same_database
from holdfast.runtime.database_roles import RoleError, grant_to_application

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Record: TypeAlias = asyncpg.Record
    Connection: TypeAlias = asyncpg.Connection[Record] | PoolConnectionProxy[Record]
    Pool: TypeAlias = asyncpg.Pool[Record]
else:
    # asyncpg's classes take no type parameters at run time.
    Record = asyncpg.Record
    Connection = asyncpg.Connection
    Pool = asyncpg.Pool

Connect: TypeAlias = Callable[[], Awaitable[Connection]]
Row = TypeVar("Row", bound=Struct)
CLOSE_SECONDS: Final = 5

# After one of these errors the outcome is unknown: the statement may have been committed.
LOST_ERRORS: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # The server closed an idle connection, and the client has not noticed yet.
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.TooManyConnectionsError,
    OSError,
    TimeoutError,
)

# The transaction waited or ran too long, and had no effect.
BLOCKED_ERRORS: Final = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError)

# The server has no room left. Another transaction would fail the same way.
EXHAUSTED_ERRORS: Final = (asyncpg.InsufficientResourcesError, asyncpg.PostgresIOError)

# A process that hangs while it holds an event's lock loses the lock, and nobody waits long for one.
_TIMEOUTS: Final = {"lock_timeout": "3s", "idle_in_transaction_session_timeout": "5s"}

# The defaults of a role or a database must not break two promises: acknowledged work is on disk, and every statement
# sees everything that was committed before it.
_PROMISES: Final = {"synchronous_commit": "on", "default_transaction_isolation": "read committed"}

# A batch is made of index lookups by construction. With everything else switched off, a database that was never
# analysed plans it the same way as one that was, and a plan once made stays good.
_INDEX_LOOKUPS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    "jit": "off",
}
# The same for one transaction of another connection.
INDEX_LOOKUPS_ONLY: Final = "; ".join(f"SET LOCAL {name} = {value}" for name, value in _INDEX_LOOKUPS.items())
_LANE_SETTINGS: Final = {
    "application_name": "holdfast-lane",
    "TimeZone": "UTC",
    **_INDEX_LOOKUPS,
    "statement_timeout": "15s",
    **_TIMEOUTS,
    **_PROMISES,
}

# A command that watches a sale must not get in its way, whatever it finds.
_WATCHER_SETTINGS: Final = {
    **_LANE_SETTINGS,
    "application_name": "holdfast-top",
    "default_transaction_read_only": "on",
    "statement_timeout": "5s",
}

_MIGRATION_LOCK: Final = 0x401DFA57
_CONNECT_SECONDS: Final = 5
# Longer than any statement may take. A database that stays silent for so long is lost.
_COMMAND_TIMEOUT_SECONDS: Final = 20
_POOL_COMMAND_SECONDS: Final = 30
# How long a statement waits for a connection. After that, the caller hears "busy" instead of nothing.
_ACQUIRE_SECONDS: Final = 5


# The search path of each database, by its URL, as this process found it with its first connection or last migrated it.
_search_paths: Final[dict[str, str]] = {}


class DatabaseScope:
    """Runs statements about one event, about one org, or about one of the other things that `Database` lists."""

    def __init__(self, executor: Connection | Pool) -> None:
        self._executor = executor

    async def fetch(self, statement: str, *values: object) -> list[Record]:
        async with self._connection() as connection:
            return await connection.fetch(statement, *values)

    async def fetchrow(self, statement: str, *values: object) -> Record | None:
        async with self._connection() as connection:
            return await connection.fetchrow(statement, *values)

    async def fetchval(self, statement: str, *values: object) -> Any:
        async with self._connection() as connection:
            return await connection.fetchval(statement, *values)

    async def execute(self, statement: str, *values: object) -> str:
        async with self._connection() as connection:
            return await connection.execute(statement, *values)

    async def rows(self, kind: type[Row], statement: str, *values: object) -> list[Row]:
        """All rows as structs: a column that is missing or of another type is an error here, not somewhere later."""
        return [read_row(kind, record) for record in await self.fetch(statement, *values)]

    async def row(self, kind: type[Row], statement: str, *values: object) -> Row | None:
        record = await self.fetchrow(statement, *values)
        return read_row(kind, record) if record is not None else None

    @asynccontextmanager
    async def transaction(
        self, isolation: Literal["read_committed", "repeatable_read"] = "read_committed", *, readonly: bool = False
    ) -> AsyncIterator["DatabaseScope"]:
        """The same scope, on one connection and in one transaction."""
        async with self._connection() as connection, connection.transaction(isolation=isolation, readonly=readonly):
            yield DatabaseScope(connection)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        if isinstance(self._executor, asyncpg.Pool):
            async with self._executor.acquire(timeout=_ACQUIRE_SECONDS) as connection:
                yield connection
        else:
            yield self._executor


class Database:
    """The entry point to PostgreSQL. Choose a scope, then run statements in it."""

    def __init__(self, executor: Connection | Pool) -> None:
        self._scope = DatabaseScope(executor)

    def event(self, event: bytes) -> DatabaseScope:
        """For statements about one event: its bookings, payments, journal and everything else that has its id."""
        return self._scope

    def org(self, org: bytes) -> DatabaseScope:
        """For statements about one org: its keys, webhook endpoints, branding, and lists over its events."""
        return self._scope

    @property
    def shared(self) -> DatabaseScope:
        """For tables that belong to no org: secrets, the sandbox, and lookups by a key or slug."""
        return self._scope

    @property
    def all_events(self) -> DatabaseScope:
        """For background work that looks for something to do in any event, and for lists over several events."""
        return self._scope


def read_row(kind: type[Row], record: Record) -> Row:
    """The record as a struct. A JSON column is decoded into the type of its field."""
    values = dict(record)
    for name, decoder in _json_decoders(kind).items():
        if isinstance(values.get(name), str):
            values[name] = decoder.decode(values[name])
    return convert(values, kind)


@cache
def _json_decoders(kind: type[Struct]) -> "dict[str, json.Decoder[Any]]":
    """A decoder for each field that a JSON column fills: one that is no text but a struct, a dictionary or a list."""
    hints = get_type_hints(kind)
    return {field.name: json.Decoder(hints[field.name]) for field in structs.fields(kind) if _is_document(field.type)}


def _is_document(kind: Any) -> bool:
    info = inspect.type_info(kind)
    members = info.types if isinstance(info, inspect.UnionType) else (info,)
    return any(isinstance(m, inspect.StructType | inspect.DictType | inspect.ListType) for m in members)


class SchemaError(RuntimeError):
    """The database cannot be used by this version of Holdfast."""


class DroppedSettingError(SchemaError):
    """A connection lacks a setting that Holdfast asked for. Some poolers drop settings without an error."""


class DatabaseUrlError(ValueError):
    """The driver does not understand the URL. It has no text, because the driver's may quote the password."""


async def _connect(url: str, settings: Mapping[str, str], command_seconds: float | None = None) -> Connection:
    """Connect with these settings and with a search path of nothing but the schema that Holdfast's tables are in.
    PostgreSQL would also look among temporary tables and in a schema with the name of the user, and would look there
    first: whoever can make a table could put it in place of one of ours."""
    if url not in _search_paths:
        _search_paths[url] = await _find_search_path(url)
    return await _connect_driver(url, command_seconds, {**settings, "search_path": _search_paths[url]})


async def _connect_driver(
    url: str, command_seconds: float | None, settings: dict[str, str] | None = None
) -> Connection:
    try:
        return await asyncpg.connect(
            url, timeout=_CONNECT_SECONDS, command_timeout=command_seconds, server_settings=settings
        )
    except LOST_ERRORS:
        # Some of them are ValueErrors too.
        raise
    except ValueError:
        raise DatabaseUrlError from None


async def _find_search_path(url: str) -> str:
    async with _plain_connection(url) as connection:
        schema: str = await connection.fetchval(sql.roles.schema_in_use)
    return f"{schema}, pg_temp"


@asynccontextmanager
async def _plain_connection(url: str) -> AsyncIterator[Connection]:
    """Without settings of ours, for the first look at a database."""
    connection = await _connect_driver(url, _COMMAND_TIMEOUT_SECONDS)
    try:
        yield connection
        await connection.close(timeout=_CONNECT_SECONDS)
    finally:
        connection.terminate()


def _required(url: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Of these settings, those that must not be dropped on the way."""
    promised = {name: value for name, value in settings.items() if name in _PROMISES or name in _TIMEOUTS}
    return {**promised, "search_path": _search_paths[url]}


async def connect_lane(url: str) -> Connection:
    connection = await _connect(url, _LANE_SETTINGS, _COMMAND_TIMEOUT_SECONDS)
    try:
        await _require_settings(connection, _required(url, _LANE_SETTINGS))
        # Behind a pooler that drops them, the others may be set later: they only make batches fast.
        await connection.execute(
            "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS setting (name, value)"
            " WHERE current_setting(name) <> value",
            list(_LANE_SETTINGS),
            list(_LANE_SETTINGS.values()),
        )
        await register_uuid_codec(connection)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def connect_watcher(url: str) -> Connection:
    """For reads that run next to a sale: they change nothing, use only indexes, and end soon."""
    connection = await _connect(url, _WATCHER_SETTINGS, _COMMAND_TIMEOUT_SECONDS)
    await register_uuid_codec(connection)
    return connection


async def check_sessions(url: str) -> None:
    """Refuse a pooler that gives two connections the same session, before anything is sold through it. Each would
    change the other's settings and hold the other's locks, and two processes would lead the same bot."""
    first = await connect_lane(url)
    try:
        second = await connect_lane(url)
        try:
            await _require_own_session(first, second)
        finally:
            await second.close()
    finally:
        await first.close()


async def _require_own_session(first: Connection, second: Connection) -> None:
    """A pooler that shares sessions gives the one of an idle connection to the next one that begins a transaction."""
    own = await first.fetchval("SELECT pg_backend_pid()")
    async with second.transaction():
        is_shared = await second.fetchval("SELECT pg_backend_pid()") == own
        if is_shared or await first.fetchval("SELECT pg_backend_pid()") != own:
            raise DroppedSettingError(
                "Two connections share one session of PostgreSQL. Does a pooler such as PgBouncer run in transaction "
                "mode? Connect to PostgreSQL itself, or use session mode (docs/deployment.md)."
            )


async def _require_settings(connection: Connection, settings: Mapping[str, str]) -> None:
    rows = await connection.fetch(
        "SELECT name, value FROM unnest($1::text[], $2::text[]) AS setting (name, value)"
        " WHERE current_setting(name) <> value",
        list(settings),
        list(settings.values()),
    )
    if rows:
        dropped = ", ".join(f"{row['name']} = {row['value']}" for row in rows)
        raise DroppedSettingError(
            f"The connection does not have {dropped}. Does a pooler such as PgBouncer ignore startup parameters? "
            "Connect to PostgreSQL itself, or set them as defaults of the user (docs/deployment.md)."
        )


async def connect(url: str) -> Connection:
    connection = await _connect(url, {"application_name": "holdfast", **_PROMISES})
    try:
        await _require_settings(connection, _required(url, _PROMISES))
        await register_uuid_codec(connection)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def connect_reader(url: str) -> Connection:
    """A connection that changes nothing, whatever it is asked for."""
    connection = await connect(url)
    try:
        await connection.execute("SET default_transaction_read_only = on")
    except BaseException:
        connection.terminate()
        raise
    return connection


async def create_pool(
    url: str, size: int, *, command_seconds: float = _POOL_COMMAND_SECONDS, looks_up: bool = False
) -> Pool:
    """A pool that `looks_up` plans index lookups only, as lanes do."""
    plans = _INDEX_LOOKUPS if looks_up else {"jit": "off"}
    settings = {"application_name": "holdfast", "TimeZone": "UTC", **plans, **_TIMEOUTS, **_PROMISES}

    async def connect_member(*_: Any, **__: Any) -> Any:
        return await _connect(url, settings, command_seconds)

    async def init(connection: Connection) -> None:
        await _require_settings(connection, _required(url, settings))
        await register_uuid_codec(connection)

    return await asyncpg.create_pool(url, min_size=0, max_size=size, connect=connect_member, init=init)


async def close_pool(pool: Pool) -> None:
    """Wait for statements under way, up to a limit."""
    try:
        await asyncio.wait_for(pool.close(), CLOSE_SECONDS)
    except TimeoutError:
        pool.terminate()


async def register_uuid_codec(connection: Connection) -> None:
    """Ids travel as the 16 bytes of a UUID: nothing is parsed or built on the way."""
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary")


async def migrate(url: str, *, allow_unsafe: bool = True, application_url: str | None = None) -> int:
    """Bring the schema up to date. Any number of processes may do so at once. Returns how many steps were run. Unless
    `allow_unsafe`, the server must keep what it acknowledges. `application_url` is that of the role that may use the
    tables, if `url` is that of their owner."""
    if application_url is not None:
        await require_same_database(url, application_url)
    # This process may have connected before there was a schema, and found another one.
    _search_paths[url] = await _find_search_path(url)
    connection = await connect(url)
    try:
        await _refuse_old_server(connection)
        if not allow_unsafe:
            await _refuse_unsafe_server(connection)
        # The end of the connection releases the lock.
        await connection.execute("SELECT pg_advisory_lock($1)", _MIGRATION_LOCK)
        steps = await _run_missing_steps(connection, is_owner=application_url is not None)
        if application_url is not None:
            # Before the first grant, the application cannot see the schema, and has found another one if it looked.
            _search_paths[application_url] = _search_paths[url]
            await _restrict_application(connection, application_url)
        return steps
    finally:
        await connection.close()


async def require_same_database(owner_url: str, application_url: str) -> None:
    """Refuse two URLs that lead to different databases, before anything changes in either of them."""
    async with _plain_connection(owner_url) as owner, _plain_connection(application_url) as application:
        if not await is_same_database(owner, application):
            owners = await owner.fetchval("SELECT current_database()")
            applications = await application.fetchval("SELECT current_database()")
            raise SchemaError(
                "HOLDFAST_DATABASE_URL and HOLDFAST_MIGRATION_DATABASE_URL name different databases: "
                f"{applications} and {owners}{', on different servers' if owners == applications else ''}. Holdfast "
                "changed nothing. Let both URLs name the same database: usually, only the user and the password differ."
            )


async def _restrict_application(owner: Connection, url: str) -> None:
    application = await connect(url)
    try:
        role = await application.fetchval("SELECT current_user")
        if role == await owner.fetchval("SELECT current_user"):
            return
        await grant_to_application(owner, role)
    except RoleError as error:
        raise SchemaError(str(error)) from None
    finally:
        await application.close()


async def _refuse_old_server(connection: Connection) -> None:
    if connection.get_server_version().major < 15:
        raise SchemaError("Holdfast needs PostgreSQL 15 or newer.")


async def _refuse_unsafe_server(connection: Connection) -> None:
    """After a crash, a server without these settings may have lost or corrupted what it acknowledged."""
    for setting in ("fsync", "full_page_writes"):
        if await connection.fetchval("SELECT current_setting($1)", setting) != "on":
            raise SchemaError(
                f"PostgreSQL runs with {setting} = off, so a power cut can lose acknowledged bookings. "
                f"Set {setting} = on, or set HOLDFAST_ALLOW_UNSAFE_DATABASE=true if you can lose this database."
            )


async def _run_missing_steps(connection: Connection, *, is_owner: bool) -> int:
    """`is_owner` says that HOLDFAST_MIGRATION_DATABASE_URL names the role of the connection."""
    missing = (await _read_schema_status(connection)).missing
    try:
        if missing:
            await connection.execute("CREATE TABLE IF NOT EXISTS schema_version (number integer PRIMARY KEY)")
            await connection.execute(
                "ALTER TABLE schema_version ADD COLUMN IF NOT EXISTS rolling boolean NOT NULL DEFAULT false"
            )
        for step in missing:
            # Each step commits, so that its locks do not last until the end of the last one.
            async with connection.transaction():
                await connection.execute(step.text)
                await connection.execute(
                    "INSERT INTO schema_version (number, rolling) VALUES ($1, $2)", step.number, step.is_rolling
                )
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(
            f"The schema must be migrated to version {missing[-1].number}, and the role of "
            f"HOLDFAST_{'MIGRATION_' if is_owner else ''}DATABASE_URL may not do so: {error}. "
            + (
                "Set it to a role that owns the tables, or that may create them if there are none yet."
                if is_owner
                else "Run `holdfast migrate` with HOLDFAST_MIGRATION_DATABASE_URL set to the owner of the tables."
            )
        ) from None
    return len(missing)


class SchemaStatus(Struct, frozen=True):
    """The newest step that a database has, 0 if it is empty, and the steps that it lacks."""

    version: int
    missing: tuple[sql.Migration, ...]

    @property
    def can_roll(self) -> bool:
        """Whether processes of the old version can go on running while this version migrates and starts."""
        return not self.version or all(step.is_rolling for step in self.missing)


async def read_schema_status(url: str, application_url: str | None = None) -> SchemaStatus:
    """Compare the schema with this version of Holdfast, and change nothing. The URLs are those of `migrate`."""
    if application_url is not None:
        await require_same_database(url, application_url)
    connection = await connect(url)
    try:
        await _refuse_old_server(connection)
        return await _read_schema_status(connection)
    finally:
        await connection.close()


async def _read_schema_status(connection: Connection) -> SchemaStatus:
    """A newer version of Holdfast may have added steps, if each of them lets older processes go on. The database keeps
    that with each step, because an older version does not have the step's file."""
    steps = sql.migrations()
    if await connection.fetchval("SELECT to_regclass('schema_version') IS NULL"):
        return SchemaStatus(0, tuple(steps))
    rows = await connection.fetch(
        # The column is missing until the first migration by a version that knows it.
        "SELECT number, coalesce((to_jsonb(step) ->> 'rolling')::boolean, false) AS rolling FROM schema_version AS step"
    )
    done = {row["number"]: row["rolling"] for row in rows}
    newest = steps[-1].number
    if any(number > newest and not is_rolling for number, is_rolling in done.items()):
        raise SchemaError(
            f"The database has schema version {max(done)}, but this version of Holdfast supports only up to {newest}. "
            "Install a newer Holdfast."
        )
    return SchemaStatus(max(done, default=0), tuple(step for step in steps if step.number not in done))
