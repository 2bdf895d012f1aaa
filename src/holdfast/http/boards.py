"""Boards: events as they are now, kept in memory and brought up to date from their journals.

The journal of an event has no gaps and is committed in order, because whoever writes it holds the event's lock. So what
is in memory is always how the event was at one version, and it is current once it has reached the newest.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from msgspec import json

from holdfast import ids, sql
from holdfast.core.facts import FactData, PoolState
from holdfast.db import Connection, Pool
from holdfast.http import feed
from holdfast.http.picture import Picture
from holdfast.http.views import SeatView

# A board takes about half a kilobyte for each seat.
EVENTS_MAX: Final = 1_000
SEATS_MAX: Final = 500_000
# A board that is further behind is loaded anew.
FACTS_MAX: Final = 10_000


class Noted(NamedTuple):
    """A fact as a board reads it. One of the event as a whole may have changed anything."""

    number: int
    kind: str
    is_of_event: bool
    data: FactData


class Pulse(NamedTuple):
    """The version of an event, and how many holds have run out since: what everything that can be seen depends on."""

    version: int
    due: int


_noted: Final = json.Decoder(list[Noted]).decode
_pool_states: Final = json.Decoder(dict[str, PoolState]).decode


class Board:
    """One event. All that is needed is read first and then changed at once, so whoever looks sees one moment."""

    def __init__(self, pool: Pool, event: bytes) -> None:
        self._pool = pool
        self._reading: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._asked_after: int | None = None
        self.event = event
        self.org = b""
        self.is_published = False
        # None until the board has been read, and for ever where there is no such event.
        self.picture: Picture | None = None
        self.pulse = Pulse(0, 0)
        self.read_at = datetime.min.replace(tzinfo=UTC)
        # For watchers, if there are any: the last changes up to the version, and those they have not been told of yet.
        self._recent = feed.Tail()
        self.untold: list[str] | None = None

    @property
    def version(self) -> int:
        return self.pulse.version

    @property
    def size(self) -> int:
        return self.picture.size if self.picture is not None else 0

    async def refresh(self, after: int | None = None) -> None:
        """Returns when the board is at least as new as this call. Whoever asks while it is being read waits for the
        next reading, which then serves all of them. With `after`, what changed since is known afterwards, unless it is
        too much."""
        if after is not None:
            self._asked_after = after if self._asked_after is None else min(after, self._asked_after)
        if self._next is None:
            self._next = asyncio.create_task(self._read_next(self._reading))
            self._next.add_done_callback(_heard)
        await asyncio.shield(self._next)

    def changes_after(self, version: int) -> list[str] | None:
        """None if they are too many, or not known."""
        return self._recent.last(self.version - version)

    def forget(self) -> None:
        """Nobody watches any more."""
        self.untold = None
        self._recent.clear()

    async def _read_next(self, reading: "asyncio.Task[None] | None") -> None:
        if reading is not None:
            await asyncio.wait([reading])
        self._reading, self._next = self._next, None
        after, self._asked_after = self._asked_after, None
        await (self._load() if self.picture is None else self._read(self.picture))
        if after is not None:
            await self._recall(after)

    async def _read(self, picture: Picture) -> None:
        row = await self._pool.fetchrow(sql.reads.pulse, self.event, self.version, FACTS_MAX)
        pulse, facts, due = Pulse(row["version"], row["due"]), _noted(row["facts"]), None
        if pulse.due and pulse != self.pulse:
            due = await self._pool.fetchrow(sql.reads.due, self.event)
            facts += await self._facts(pulse.version, due["version"])
            pulse = Pulse(due["version"], due["due"])
        if pulse.version - self.version > FACTS_MAX or any(fact.is_of_event for fact in facts):
            await self._load()
            return
        for fact in facts:
            picture.set(fact.number, fact.data.seats, fact.data.pools)
        if due is not None:
            picture.set(pulse.version, dict.fromkeys(due["seats"], "free"), _pool_states(due["pools"]))
        self._tell(facts)
        self.pulse, self.read_at = pulse, row["at"]

    async def _load(self) -> None:
        async with self._pool.acquire() as connection, _one_moment(connection):
            row = await connection.fetchrow(sql.reads.pulse, self.event, 0, 0)
            if row is None:
                return
            picture = await _picture(connection, self.event, row["version"])
        if self.picture is None or row["version"] - self.version > FACTS_MAX:
            self._recent.clear()
        else:
            self._tell(await self._facts(self.version, row["version"]))
        self.org, self.is_published = row["org_id"], row["is_published"]
        self.picture, self.pulse, self.read_at = picture, Pulse(row["version"], row["due"]), row["at"]

    async def _facts(self, after: int, until: int) -> list[Noted]:
        if after >= until:
            return []
        return _noted(await self._pool.fetchval(sql.reads.facts_until, self.event, after, until))

    async def _recall(self, after: int) -> None:
        """Remember what happened after that, if it is not too long ago."""
        first = self.version - len(self._recent)
        if self.version - feed.MESSAGES_MAX <= after < first:
            self._recent.add_older(_changes(await self._facts(after, first)))

    def _tell(self, facts: Iterable[Noted]) -> None:
        if self.untold is None:
            self._recent.clear()
            return
        changes = _changes(facts)
        self._recent.add(changes)
        if len(self.untold) > FACTS_MAX:
            # Nobody takes them. Whoever does will see that there is a gap.
            self.untold.clear()
        self.untold += changes


class Boards:
    """The boards of a process. Those that nobody watches and nobody has asked for lately are forgotten."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._kept: OrderedDict[bytes, Board] = OrderedDict()

    async def get(self, event: bytes, after: int | None = None) -> Board | None:
        """The event's board, at least as new as this call."""
        board = self._kept.get(event)
        if board is None:
            board = self._kept[event] = Board(self._pool, event)
        self._kept.move_to_end(event)
        is_new = board.picture is None
        try:
            await board.refresh(after)
        finally:
            if board.picture is None:
                self._drop(board)
        if is_new:
            self._forget_oldest()
        return board if board.picture is not None else None

    def watch(self, board: Board) -> bool:
        """Keep the board, and gather what its watchers have to be told; False if there is no room for it."""
        watched = sum(each.size for each in self._kept.values() if each.untold is not None)
        if self._kept.setdefault(board.event, board) is not board or watched + board.size > max(SEATS_MAX, board.size):
            return False
        board.untold = []
        return True

    def unwatch(self, board: Board) -> None:
        board.forget()
        self._forget_oldest()

    def _drop(self, board: Board) -> None:
        if self._kept.get(board.event) is board:
            del self._kept[board.event]

    def _forget_oldest(self) -> None:
        seats = sum(board.size for board in self._kept.values())
        for board in list(self._kept.values())[:-1]:
            if seats <= SEATS_MAX and len(self._kept) <= EVENTS_MAX:
                return
            if board.untold is None:
                seats -= board.size
                self._drop(board)


def _one_moment(connection: Connection) -> Any:
    """A transaction in which everything is read as it was when it began."""
    return connection.transaction(isolation="repeatable_read", readonly=True)


async def _picture(connection: Connection, event: bytes, version: int) -> Picture:
    seats = [
        SeatView(label=label, pool=pool, row=row, number=place, x=x, y=y, state=state)
        for label, pool, row, place, x, y, state in await connection.fetch(sql.reads.seats, event)
    ]
    pools = {
        code: PoolState(capacity, held, sold, capacity - held - sold)
        for code, capacity, held, sold in await connection.fetch(sql.reads.availability, event)
    }
    return Picture(ids.event_text(event), version, seats, pools)


def _changes(facts: Iterable[Noted]) -> list[str]:
    return [feed.change(fact.number, fact.kind, fact.data) for fact in facts]


def _heard(reading: "asyncio.Task[Any]") -> None:
    """Whoever waited for it may be gone; what went wrong is then nobody's business."""
    if not reading.cancelled():
        reading.exception()
