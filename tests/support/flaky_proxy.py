"""A proxy between the engine and its database that fails at the worst moments: just before the database sees a COMMIT,
or just after it committed and before the engine gets its answer."""

import asyncio
from enum import Enum
from urllib.parse import parse_qs, urlsplit

# PostgreSQL's ReadyForQuery message outside of a transaction.
READY = b"Z\x00\x00\x00\x05I"


class Cut(Enum):
    BEFORE_COMMIT = "the COMMIT does not reach the database, and the connection breaks"
    AFTER_COMMIT = "the answer to the COMMIT does not come back, and the connection breaks"
    SILENCE_AFTER_COMMIT = "the answer to the COMMIT does not come back, and nothing else does"


class FlakyProxy:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._folder = parse_qs(parts.query)["host"][0]
        self._database = parts.path.lstrip("/")
        self._ends: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        # The fault of the next COMMIT. The proxy resets it to None once it has happened.
        self.next_cut: Cut | None = None
        self.was_cut = asyncio.Event()

    async def open(self) -> str:
        """Start the proxy and return its URL."""
        self._server = await asyncio.start_server(self._serve_connection, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://postgres:@127.0.0.1:{port}/{self._database}?sslmode=disable"

    async def close(self) -> None:
        """Drop every connection, as when a process dies."""
        if self._server is not None:
            self._server.close()
        self._cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_next(self, cut: Cut | None) -> None:
        self.next_cut = cut
        self.was_cut.clear()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        database_reader, database_writer = await asyncio.open_unix_connection(f"{self._folder}/.s.PGSQL.5432")
        self._ends += [writer, database_writer]
        committing = asyncio.Event()
        directions = (
            self._forward_requests(reader, database_writer, committing),
            self._forward_replies(database_reader, writer, committing),
        )
        self._tasks += [asyncio.ensure_future(direction) for direction in directions]

    async def _forward_requests(
        self, engine: asyncio.StreamReader, database: asyncio.StreamWriter, committing: asyncio.Event
    ) -> None:
        while data := await _read(engine):
            if self.next_cut is not None and b"COMMIT" in data:
                if self.next_cut is Cut.BEFORE_COMMIT:
                    self._cut_now()
                    return
                committing.set()
            database.write(data)
        database.close()

    async def _forward_replies(
        self, database: asyncio.StreamReader, engine: asyncio.StreamWriter, committing: asyncio.Event
    ) -> None:
        while data := await _read(database):
            if not committing.is_set():
                engine.write(data)
            elif data.endswith(READY):
                silent = self.next_cut is Cut.SILENCE_AFTER_COMMIT
                self._cut_now(silent=silent)
                return
        engine.close()

    def _cut_now(self, *, silent: bool = False) -> None:
        self.next_cut = None
        self.was_cut.set()
        if not silent:
            self._cut()

    def _cut(self) -> None:
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65536)
    except ConnectionError:
        return b""
