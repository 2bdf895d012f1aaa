"""One batch: commands to any number of events, decided and saved in one transaction."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from holdfast import sql
from holdfast.core.commands import Command
from holdfast.core.decide import Outcome, decide, end_bookings, expire_due
from holdfast.core.refusals import Refusal, Refused
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.load import LoadedBatch, load_batch
from holdfast.engine.save import save
from holdfast.runtime.db import Connection

ENDINGS_MAX: Final = 500


async def run_batch(connection: Connection, layouts: LayoutCache, commands: Sequence[Command]) -> list[Outcome]:
    """One outcome per command, in order. When this returns, the transaction is committed."""
    by_event: dict[bytes, list[Command]] = defaultdict(list)
    for command in commands:
        by_event[command.event].append(command)
    while True:
        async with _Transaction(connection) as transaction:
            loaded = await load_batch(connection, layouts, by_event)
            if not loaded.unfinished:
                outcomes = {event: iter(decide(state, by_event[event])) for event, state in loaded.states.items()}
                await transaction.commit(loaded)
                break
            for state in loaded.states.values():
                expire_due(state)
            await transaction.commit(loaded)
    return [next(outcomes[c.event]) if c.event in outcomes else Refused(Refusal.NOT_FOUND) for c in commands]


async def sweep(connection: Connection, layouts: LayoutCache, event: bytes, lock: str = sql.engine.lock) -> int:
    """Expire the event's due holds and, if it is completed or cancelled, end its bookings, up to the limits of one
    batch. Returns how many bookings it ended."""
    async with _Transaction(connection) as transaction:
        loaded = await load_batch(connection, layouts, {event: []}, lock, ending_max=ENDINGS_MAX)
        ended = sum(expire_due(state) + end_bookings(state) for state in loaded.states.values())
        await transaction.commit(loaded)
    return ended


class _Transaction:
    """BEGIN and COMMIT, with the save in between if there is anything to save."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def __aenter__(self) -> "_Transaction":
        await self._connection.execute("BEGIN")
        return self

    async def commit(self, loaded: LoadedBatch) -> None:
        if any(state.has_changes for state in loaded.states.values()):
            await save(self._connection, loaded)
        await self._connection.execute("COMMIT")

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._connection.is_closed():
            await self._connection.execute("ROLLBACK")
