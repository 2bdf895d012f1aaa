"""The messages of the live feed, and the buffers that hold the latest of them."""

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final

from msgspec import Meta, Struct, field, json

from holdfast.core.journal import PAYMENT_PREFIX, EntryData, PoolState, SeatState
from holdfast.live.snapshot import PoolAvailability, SeatSnapshot

MESSAGES_MAX: Final = 1_000
BYTES_MAX: Final = 4 * 1024 * 1024


class ChangeMessage(Struct, frozen=True, tag_field="type", tag="change"):
    """One journal entry: the seats and pools that it touched, in their new state."""

    seq: int
    kind: str
    seats: dict[str, SeatState]
    pools: dict[str, PoolState]


class MergedChanges(Struct, frozen=True, tag_field="type", tag="change"):
    """Several journal entries in a row, with the state after the last of them."""

    from_: int = field(name="from")
    seq: int
    seats: dict[str, SeatState]
    pools: dict[str, PoolState]
    kind: str = "several"


class SnapshotMessage(Struct, frozen=True, tag_field="type", tag="snapshot"):
    """Everything at one version. Seats that are not listed are free. `snapshot_message` writes it."""

    server_time: Annotated[datetime, Meta(tz=True)]
    version: int
    pools: list[PoolAvailability]
    seats: dict[str, SeatState]


class Heartbeat(Struct, frozen=True, tag_field="type", tag="beat"):
    """Nothing has changed, and the process can reach the database."""

    version: int
    server_time: datetime


_encode: Final = json.Encoder().encode
_decode_change: Final = json.Decoder(ChangeMessage).decode


def feed_kind(kind: str) -> str:
    """Payments are private, but the sequence must have no gap: watchers see that something happened, not what."""
    return "noted" if kind.startswith(PAYMENT_PREFIX) else kind


def change_message(number: int, kind: str, data: EntryData) -> str:
    return _encode(ChangeMessage(number, feed_kind(kind), data.seats, data.pools)).decode()


def merge_changes(changes: Iterable[str]) -> str:
    decoded = [_decode_change(text) for text in changes]
    seats: dict[str, SeatState] = {}
    pools: dict[str, PoolState] = {}
    for change in decoded:
        seats.update(change.seats)
        pools.update(change.pools)
    return _encode(MergedChanges(decoded[0].seq, decoded[-1].seq, seats, pools)).decode()


def snapshot_message(snapshot: SeatSnapshot, server_time: datetime) -> str:
    """Watchers who start at about the same time get the same text, because that of a large hall takes long to make."""

    def encode() -> str:
        return f'{{"type":"snapshot","server_time":{_encode(server_time).decode()},{snapshot.taken_json()}}}'

    return snapshot.message(server_time, encode)


def heartbeat_message(version: int, server_time: datetime) -> str:
    return _encode(Heartbeat(version, server_time)).decode()


class FeedMessage(Struct, frozen=True):
    """`version` is the event's version after the message."""

    text: str
    version: int
    is_change: bool = True


class ReaderBehindError(Exception):
    """The next message for this reader has already left the ring."""


class Ring:
    """The latest messages of one event, shared by all its readers. A reader only keeps the number of its next message,
    so any number of slow readers cost nothing here."""

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

    def at(self, position: int) -> FeedMessage:
        index = position - self.end
        if -index > len(self._messages):
            raise ReaderBehindError
        return self._messages[index]

    def clear(self) -> None:
        """Drop messages that every reader has read."""
        self._messages.clear()
        self._bytes = 0

    def _is_full(self) -> bool:
        return len(self._messages) > MESSAGES_MAX or self._bytes > BYTES_MAX


class RecentChanges:
    """The latest changes of an event, for clients that reconnect and missed some."""

    def __init__(self) -> None:
        self._changes: deque[str] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, changes: Iterable[str]) -> None:
        for change in changes:
            self._changes.append(change)
            self._bytes += len(change)
        while len(self._changes) > MESSAGES_MAX or self._bytes > BYTES_MAX:
            self._bytes -= len(self._changes.popleft())

    def add_older(self, changes: Iterable[str]) -> None:
        newer = list(self._changes)
        self.clear()
        self.add([*changes, *newer])

    def last(self, count: int) -> list[str] | None:
        """The last `count` changes, or None if fewer are left."""
        return list(self._changes)[len(self) - count :] if 0 <= count <= len(self) else None

    def clear(self) -> None:
        self._changes.clear()
        self._bytes = 0
