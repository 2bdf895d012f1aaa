"""The one connection pool that all checks share."""

import asyncio
from typing import Final

import asyncpg

from holdfast import sql
from holdfast.runtime import db

# Every check runs one statement at a time.
CONNECTIONS: Final = 3
COMMAND_SECONDS: Final = 5.0


class SkippedError(Exception):
    """The check needs something that does not work, and that another check reports."""


class DatabaseAccess:
    """Connects once, when the first check asks. `url` is None if there is no database yet."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self._opening: asyncio.Task[db.Database] | None = None
        self._pool: db.Pool | None = None

    async def open(self) -> db.Database:
        """Raises the error of the connection. All checks get the same one."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        # A check that runs out of time must not take the connection away from the others.
        return await asyncio.shield(self._opening)

    async def require(self) -> db.Database:
        """For checks that do not report why there is no database."""
        try:
            return await self.open()
        except Exception:
            raise SkippedError("This needs the database.") from None

    async def require_schema(self) -> db.Database:
        """For checks that read Holdfast's tables."""
        database = await self.require()
        if await read_schema_version(database) != newest_schema_version():
            raise SkippedError("This needs a schema that is up to date.")
        return database

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._pool is not None:
            self._pool.terminate()

    async def _open(self) -> db.Database:
        if self.url is None:
            raise FileNotFoundError("There is no database.")
        self._pool = await db.create_pool(self.url, CONNECTIONS, command_seconds=COMMAND_SECONDS)
        database = db.Database(self._pool)
        await database.shared.fetchval(sql.doctor.schema_exists)
        return database


async def read_schema_version(database: db.Database) -> int | None:
    """None if Holdfast has never migrated this database."""
    if not await database.shared.fetchval(sql.doctor.schema_exists):
        return None
    try:
        version: int | None = await database.shared.fetchval(sql.doctor.schema_version)
    except asyncpg.InsufficientPrivilegeError:
        raise SkippedError(
            "The role may not read which version the schema has. The check of its rights says what to do."
        ) from None
    return version


def newest_schema_version() -> int:
    return max(number for number, _ in sql.migrations())
