"""Connections to PostgreSQL, and the schema's migrations."""

from typing import Any, Final

import asyncpg

from holdfast import sql

Connection = Any  # asyncpg has no types
Pool = Any

# The outcome of what was under way on a connection that ends like this is unknown; it may have been committed.
LOST_ERRORS: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # A connection that was ended while idle, and on which the client has not noticed it yet.
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

# The transaction had no effect because others were in the way for too long; it is not known to be anybody's fault.
BLOCKED_ERRORS: Final = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError)

# A process that hangs with an event's lock in its hands loses it, and nobody waits for a lock for long.
_PATIENCE: Final = {"lock_timeout": "3s", "idle_in_transaction_session_timeout": "5s"}

# A batch is made of index look-ups by construction. With everything else switched off, a database that was never
# analysed plans it the same way as one that was, and a plan once made stays good.
_LANE_SETTINGS: Final = {
    "application_name": "holdfast-lane",
    "TimeZone": "UTC",
    "default_transaction_isolation": "read committed",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    "jit": "off",
    "statement_timeout": "15s",
    **_PATIENCE,
}

_MIGRATION_LOCK: Final = 0x401DFA57
_CONNECT_SECONDS: Final = 5
# A database that says nothing for so long, longer than any statement may take, is lost.
_MUTE_SECONDS: Final = 20


class SchemaError(RuntimeError):
    """The database cannot be used by this version of Holdfast."""


async def connect_lane(url: str) -> Connection:
    connection = await asyncpg.connect(
        url, timeout=_CONNECT_SECONDS, command_timeout=_MUTE_SECONDS, server_settings=_LANE_SETTINGS
    )
    await speak_bytes(connection)
    return connection


async def connect(url: str) -> Connection:
    connection = await asyncpg.connect(url, timeout=_CONNECT_SECONDS, server_settings={"application_name": "holdfast"})
    await speak_bytes(connection)
    return connection


async def create_pool(url: str, size: int) -> Pool:
    return await asyncpg.create_pool(
        url,
        min_size=0,
        max_size=size,
        timeout=_CONNECT_SECONDS,
        command_timeout=30,
        init=speak_bytes,
        server_settings={"application_name": "holdfast", "jit": "off", "TimeZone": "UTC", **_PATIENCE},
    )


async def speak_bytes(connection: Connection) -> None:
    """Ids travel as the 16 bytes of a UUID: nothing is parsed or built on the way."""
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary")


async def migrate(url: str) -> int:
    """Bring the schema up to date. Any number of processes may do so at once. Returns how many steps were run."""
    connection = await connect(url)
    try:
        await _refuse_old_server(connection)
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
            return await _run_missing_steps(connection)
    finally:
        await connection.close()


async def _refuse_old_server(connection: Connection) -> None:
    if connection.get_server_version().major < 15:
        raise SchemaError("Holdfast needs PostgreSQL 15 or newer.")


async def _run_missing_steps(connection: Connection) -> int:
    await connection.execute("CREATE TABLE IF NOT EXISTS schema_version (number integer PRIMARY KEY)")
    done = {row["number"] for row in await connection.fetch("SELECT number FROM schema_version")}
    steps = sql.migrations()
    newest = max(number for number, _ in steps)
    if done and max(done) > newest:
        raise SchemaError(
            f"The database has schema version {max(done)}, and this Holdfast knows versions up to {newest}. "
            "Install a newer Holdfast."
        )
    missing = [(number, text) for number, text in steps if number not in done]
    for number, text in missing:
        await connection.execute(text)
        await connection.execute("INSERT INTO schema_version VALUES ($1)", number)
    return len(missing)
