"""The messages of the live feed."""

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from msgspec import Struct, field, json

from holdfast.core.journal import PAYMENT_PREFIX, EntryData, PoolState, SeatState
from holdfast.live.snapshot import SeatSnapshot

MESSAGES_MAX: Final = 1_000
BYTES_MAX: Final = 4 * 1024 * 1024


class ChangeMessage(Struct, frozen=True, tag_field="type", tag="change"):
    """One fact: the seats and pools it touched, as they are after it."""

    seq: int
    kind: str
    seats: dict[str, SeatState]
    pools: dict[str, PoolState]


class MergedChanges(Struct, frozen=True, tag_field="type", tag="change"):
    """All facts from one number to another at once, with how everything is after the last."""

    from_: int = field(name="from")
    seq: int
    seats: dict[str, SeatState]
    pools: dict[str, PoolState]
    kind: str = "several"


class Heartbeat(Struct, frozen=True, tag_field="type", tag="beat"):
    version: int
    server_time: datetime


_encode: Final = json.Encoder().encode
_change: Final = json.Decoder(ChangeMessage).decode


def public_kind(kind: str) -> str:
    """How somebody pays is nobody else's business; that there is no gap is."""
    return "noted" if kind.startswith(PAYMENT_PREFIX) else kind


def change_message(number: int, kind: str, data: EntryData) -> str:
    return _encode(ChangeMessage(number, public_kind(kind), data.seats, data.pools)).decode()


def merged_message(changes: Iterable[str]) -> str:
    """Changes that follow each other, as one message."""
    told = [_change(text) for text in changes]
    seats: dict[str, SeatState] = {}
    pools: dict[str, PoolState] = {}
    for each in told:
        seats.update(each.seats)
        pools.update(each.pools)
    return _encode(MergedChanges(told[0].seq, told[-1].seq, seats, pools)).decode()


def snapshot_message(snapshot: SeatSnapshot, server_time: datetime) -> str:
    return f'{{"type":"snapshot","server_time":{_encode(server_time).decode()},{snapshot.not_free().decode()}}}'


def heartbeat_message(version: int, server_time: datetime) -> str:
    return _encode(Heartbeat(version, server_time)).decode()


class FeedMessage(Struct, frozen=True):
    """`version` is that of the event after the message."""

    text: str
    version: int
    is_change: bool = True


class ReaderBehindError(Exception):
    """A reader is so far behind that what comes next for it is gone."""


class Ring:
    """The last messages of one event, shared by all who read them. A reader's place is the number of the message that
    comes next for it, so readers cost nothing here, however slow they are."""

    def __init__(self) -> None:
        self._messages: deque[FeedMessage] = deque()
        self._bytes = 0
        self.end = 0

    def add(self, message: FeedMessage) -> None:
        self._messages.append(message)
        self._bytes += len(message.text)
        self.end += 1
        while len(self._messages) > 1 and self._is_full():
            self._bytes -= len(self._messages.popleft().text)

    def at(self, place: int) -> FeedMessage:
        index = place - self.end
        if -index > len(self._messages):
            raise ReaderBehindError
        return self._messages[index]

    def clear(self) -> None:
        """Nobody will ask for these again."""
        self._messages.clear()
        self._bytes = 0

    def _is_full(self) -> bool:
        return len(self._messages) > MESSAGES_MAX or self._bytes > BYTES_MAX


class Tail:
    """The last changes of an event, for those who come back and have missed some."""

    def __init__(self) -> None:
        self._changes: deque[str] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, changes: Iterable[str]) -> None:
        for each in changes:
            self._changes.append(each)
            self._bytes += len(each)
        while len(self._changes) > MESSAGES_MAX or self._bytes > BYTES_MAX:
            self._bytes -= len(self._changes.popleft())

    def add_older(self, changes: Iterable[str]) -> None:
        newer = list(self._changes)
        self.clear()
        self.add([*changes, *newer])

    def last(self, count: int) -> list[str] | None:
        """None if it does not reach so far back."""
        return list(self._changes)[len(self) - count :] if 0 <= count <= len(self) else None

    def clear(self) -> None:
        self._changes.clear()
        self._bytes = 0
