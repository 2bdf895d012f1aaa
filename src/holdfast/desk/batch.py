"""One batch: commands to any number of events, decided and written in one transaction."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from holdfast import sql
from holdfast.core.commands import Command
from holdfast.core.decide import Outcome, decide, expire_due, wind_up
from holdfast.core.refusals import Refusal, Refused
from holdfast.db import Connection
from holdfast.desk.layouts import Layouts
from holdfast.desk.opening import Books, open_books
from holdfast.desk.saving import save

WIND_UP_MAX: Final = 500


async def run_batch(connection: Connection, layouts: Layouts, commands: Sequence[Command]) -> list[Outcome]:
    """One outcome for each command, in order. They are true once this returns: the transaction is committed."""
    by_event: dict[bytes, list[Command]] = defaultdict(list)
    for command in commands:
        by_event[command.event].append(command)
    while True:
        async with _Transaction(connection) as transaction:
            opened = await open_books(connection, layouts, by_event)
            if not opened.unfinished:
                outcomes = {event: iter(decide(book, by_event[event])) for event, book in opened.books.items()}
                await transaction.close(opened)
                break
            for book in opened.books.values():
                expire_due(book)
            await transaction.close(opened)
    return [next(outcomes[c.event]) if c.event in outcomes else Refused(Refusal.NOT_FOUND) for c in commands]


async def sweep(connection: Connection, layouts: Layouts, events: Sequence[bytes], lock: str = sql.desk.lock) -> int:
    """End what is due in these events, and wind up those that are over or called off, as far as one batch goes.
    Returns how many bookings ended."""
    nothing: dict[bytes, list[Command]] = {event: [] for event in events}
    async with _Transaction(connection) as transaction:
        opened = await open_books(connection, layouts, nothing, lock, ending_max=WIND_UP_MAX)
        ended = sum(expire_due(book) + wind_up(book) for book in opened.books.values())
        await transaction.close(opened)
    return ended


class _Transaction:
    """BEGIN … COMMIT. Books in which nothing was written are closed without a trace."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def __aenter__(self) -> "_Transaction":
        await self._connection.execute("BEGIN")
        return self

    async def close(self, opened: Books) -> None:
        if any(book.is_touched for book in opened.books.values()):
            await save(self._connection, opened)
        await self._connection.execute("COMMIT")

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._connection.is_closed():
            await self._connection.execute("ROLLBACK")
