"""One batch: commands to any number of events, decided and saved in one transaction."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from holdfast import sql
from holdfast.core.commands import Command
from holdfast.core.decide import Outcome, decide, end_bookings, expire_due
from holdfast.core.refusals import Refusal, Refused
from holdfast.engine.commit_metrics import record_commit
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.load import LoadedBatch, load_batch, load_free_events
from holdfast.engine.rows import VIOLATIONS
from holdfast.engine.save import save
from holdfast.runtime import metrics
from holdfast.runtime.db import Connection
from holdfast.runtime.tracing import span

# How many bookings one sweep expires, and how many it ends.
SWEEP_MAX: Final = 500
# How many lines the commands of a batch may change.
DECIDED_LINES_MAX: Final = 5_000
# As many webhook endpoints of an org make each line count twice, because every endpoint gets all of them.
ENDPOINTS_PER_COPY: Final = 10
NOT_FOUND: Final = Refused(Refusal.NOT_FOUND)

# Called after each commit with what the transaction loaded and changed. It must not raise.
CommitListener = Callable[[LoadedBatch], None]


def ignore_commit(_: LoadedBatch) -> None:
    pass


def notify_all(*listeners: CommitListener | None) -> CommitListener:
    """One listener that calls those that are there."""
    present = [listener for listener in listeners if listener is not None]
    if not present:
        return ignore_commit
    if len(present) == 1:
        return present[0]

    def notify(loaded: LoadedBatch) -> None:
        for listener in present:
            listener(loaded)

    return notify


async def run_batch(
    connection: Connection,
    layouts: LayoutCache,
    commands: Sequence[Command],
    lock_seconds: float | None = None,
    on_commit: CommitListener = ignore_commit,
) -> list[Outcome | None]:
    """One outcome per command, in order. When this returns, the transaction is committed.

    With `lock_seconds`, the batch waits that long for locks and for due holds to expire. Without it, the batch waits
    for nothing: the outcome is None for events that are locked, that have a large layout to load, or that have many due
    holds. The outcome is also None for commands that would make the batch too large."""
    by_event: dict[bytes, list[Command]] = defaultdict(list)
    for command in commands:
        by_event[command.event].append(command)
    if lock_seconds is None:
        async with _Transaction(connection, on_commit) as transaction:
            with span("load"):
                loaded = await load_free_events(connection, layouts, by_event)
            outcomes = _decide(loaded, by_event)
            await transaction.commit(loaded)
        left_out = loaded.left_out | loaded.unfinished
    else:
        outcomes, left_out = await _run_until_finished(connection, layouts, by_event, lock_seconds, on_commit)
    return [
        next(outcomes[c.event], None) if c.event in outcomes else None if c.event in left_out else NOT_FOUND
        for c in commands
    ]


async def _run_until_finished(
    connection: Connection,
    layouts: LayoutCache,
    by_event: Mapping[bytes, list[Command]],
    lock_seconds: float,
    on_commit: CommitListener,
) -> tuple[dict[bytes, Iterator[Outcome]], set[bytes]]:
    """Expire the due holds of each event before its commands, in as many transactions as that takes. Returns the
    outcomes by event, and the events that have more due holds than expire in this time."""
    await layouts.reload_large(connection, by_event)
    outcomes: dict[bytes, Iterator[Outcome]] = {}
    left = by_event
    give_up_at = time.monotonic() + lock_seconds
    while left and (left is by_event or time.monotonic() < give_up_at):
        async with _Transaction(connection, on_commit, lock_seconds) as transaction:
            with span("load"):
                loaded = await load_batch(connection, layouts, left)
            outcomes |= _decide(loaded, left)
            await transaction.commit(loaded)
        left = {event: by_event[event] for event in loaded.unfinished}
    return outcomes, set(left)


def _decide(loaded: LoadedBatch, by_event: Mapping[bytes, list[Command]]) -> dict[bytes, Iterator[Outcome]]:
    """The outcomes of each event. An unfinished one has none: it only expires what was loaded of its due holds."""
    with span("decide"):
        return _decide_events(loaded, by_event)


def _decide_events(loaded: LoadedBatch, by_event: Mapping[bytes, list[Command]]) -> dict[bytes, Iterator[Outcome]]:
    outcomes: dict[bytes, Iterator[Outcome]] = {}
    lines_left: float = DECIDED_LINES_MAX
    for event, state in loaded.states.items():
        if event in loaded.unfinished:
            expire_due(state)
        elif lines_left <= 0:
            outcomes[event] = iter(())
        else:
            copies = 1 + len(loaded.endpoints.get(state.layout.org, ())) / ENDPOINTS_PER_COPY
            decided = decide(state, by_event[event], math.ceil(lines_left / copies))
            lines_left -= state.line_count * copies
            outcomes[event] = iter(decided)
    return outcomes


async def sweep(
    connection: Connection,
    layouts: LayoutCache,
    event: bytes,
    lock: str = sql.engine.lock,
    bookings_max: int = SWEEP_MAX,
    on_commit: CommitListener = ignore_commit,
) -> int:
    """Expire up to `bookings_max` due holds of the event and, if it is completed or cancelled, end up to as many of its
    bookings. Returns how many bookings it ended."""
    await layouts.reload_large(connection, [event])
    with span("sweep"):
        async with _Transaction(connection, on_commit) as transaction:
            loaded = await load_batch(
                connection, layouts, {event: []}, lock, due_max=bookings_max, ending_max=bookings_max
            )
            ended = sum(expire_due(state) + end_bookings(state) for state in loaded.states.values())
            await transaction.commit(loaded)
        return ended


class _Transaction:
    """BEGIN and COMMIT, with the save in between if there is anything to save."""

    def __init__(self, connection: Connection, on_commit: CommitListener, lock_seconds: float | None = None) -> None:
        self._connection = connection
        self._on_commit = on_commit
        self._begin = "BEGIN"
        if lock_seconds is not None:
            self._begin += f"; SET LOCAL lock_timeout = {math.ceil(lock_seconds * 1000)}"

    async def __aenter__(self) -> "_Transaction":
        await self._connection.execute(self._begin)
        return self

    async def commit(self, loaded: LoadedBatch) -> None:
        has_changes = any(state.has_changes for state in loaded.states.values())
        if has_changes:
            with span("save"):
                await save(self._connection, loaded)
        began_at = time.monotonic()
        with span("commit"):
            await self._connection.execute("COMMIT")
        # A COMMIT without changes writes nothing to the disk.
        if has_changes:
            metrics.COMMIT_SECONDS.observe(time.monotonic() - began_at)
        record_commit(loaded)
        self._on_commit(loaded)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, VIOLATIONS):
            metrics.INVARIANT_VIOLATIONS.add()
        if kind is not None and not self._connection.is_closed():
            await self._connection.execute("ROLLBACK")
