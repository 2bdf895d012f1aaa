"""Connections that the tests' statements share. To open one takes a hundred times as long as a statement, and tests
that wait for something ask for it many times a second."""

import asyncio
import threading
from collections import defaultdict
from typing import Any

from holdfast.runtime import db


class KeptConnections:
    """An event loop in a thread of its own, and the idle connections to each database."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._idle: dict[str, list[db.Connection]] = defaultdict(list)
        threading.Thread(target=self._loop.run_forever, name="queries", daemon=True).start()

    def fetch(self, url: str, statement: str, *values: Any) -> Any:
        """Run one statement and return its rows."""
        return self._run(self._fetch(url, statement, values))

    def close(self, url: str) -> None:
        """Call this before the database is dropped or its server stops."""
        self._run(self._close(url))

    def close_all(self) -> None:
        for url in list(self._idle):
            self.close(url)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _fetch(self, url: str, statement: str, values: tuple[Any, ...]) -> Any:
        connection = await self._take(url)
        try:
            rows = await connection.fetch(statement, *values)
        except BaseException:
            await connection.close(timeout=5)
            raise
        self._idle[url].append(connection)
        return rows

    async def _take(self, url: str) -> db.Connection:
        idle = self._idle[url]
        while idle:
            connection = idle.pop()
            if not connection.is_closed():
                return connection
        return await db.connect(url)

    async def _close(self, url: str) -> None:
        for connection in self._idle.pop(url, []):
            await connection.close(timeout=5)
