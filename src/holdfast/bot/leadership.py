"""Elects one process per bot. PostgreSQL releases the lock of a process that dies, and another one takes over.

Telegram allows only one process to poll for updates of a bot, and only one may send, because a bot has to keep to
Telegram's limits as a whole.
"""

import asyncio
from typing import Final

import asyncpg
import structlog

from holdfast import sql
from holdfast.runtime import db

log = structlog.get_logger()

# Apart from the other advisory locks of Holdfast.
_LOCK_CLASS: Final = 0x7E1E
CHECK_SECONDS: Final = 5.0


class Leadership:
    """The locks that this process holds, on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: db.Connection | None = None
        self._turn = asyncio.Lock()
        self._led: set[int] = set()

    def leads(self, bot: int) -> bool:
        return bot in self._led and self._connection is not None and not self._connection.is_closed()

    async def try_lead(self, bot: int) -> bool:
        """Whether this process leads the bot now. A lost connection has lost all of its locks."""
        async with self._turn:
            try:
                return await self._try_lead(bot)
            except (*db.LOST_ERRORS, asyncpg.PostgresError) as error:
                log.warning("telegram_leadership_lost", error=type(error).__name__)
                await self._close()
                return False

    async def _try_lead(self, bot: int) -> bool:
        connection = self._connection
        if connection is None or connection.is_closed():
            self._led.clear()
            connection = self._connection = await db.connect(self._url)
            # PostgreSQL notices within half a minute that a host has vanished, and releases its locks.
            await db.Database(connection).shared.execute(sql.telegram.notice_loss)
        scope = db.Database(connection).shared
        async with asyncio.timeout(CHECK_SECONDS):
            if bot in self._led:
                await scope.fetchval(sql.telegram.ping)
                return True
            if await scope.fetchval(sql.telegram.try_lead, _LOCK_CLASS, bot % 2**31):
                self._led.add(bot)
        return bot in self._led

    async def close(self) -> None:
        async with self._turn:
            await self._close()

    async def _close(self) -> None:
        self._led.clear()
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
