"""The seats and pools of one event at one version, and the JSON that shows them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, get_args

from msgspec import Struct, json

from holdfast.core.journal import PoolState, SeatState

# How an encoded seat ends in each state.
_ENDS: Final[dict[SeatState, bytes]] = {state: b'"state":"%b"}' % state.encode() for state in get_args(SeatState)}
# How many seats a part of the seat map has.
PART_SEATS: Final = 2_000
MESSAGE_SECONDS: Final = 1.0


class PoolAvailability(Struct, frozen=True, kw_only=True):
    code: str
    capacity: int
    held: int
    sold: int
    remaining: int


class Availability(Struct, frozen=True, kw_only=True):
    event: str
    version: int
    pools: list[PoolAvailability]


class SeatView(Struct, frozen=True, kw_only=True, gc=False):
    label: str
    pool: str
    row: str
    number: int | None
    x: float | None
    y: float | None
    # `SeatSnapshot` replaces the end of the encoded seat, so this stays the last field.
    state: SeatState


class SeatSnapshot:
    """Each seat is encoded once and patched when its state changes. The seat map consists of parts with some of the
    seats, so a change in a hall of 100,000 seats costs a read one part. Other documents are encoded as a whole. All are
    cached until the next change."""

    def __init__(self, event: str, version: int, seats: Sequence[SeatView], pools: Mapping[str, PoolState]) -> None:
        self._event = event
        self.version = version
        self._index = {seat.label: index for index, seat in enumerate(seats)}
        self._encoded_seats = [json.encode(seat) for seat in seats]
        self._parts = [self._join_part(number) for number in range(-(-len(seats) // PART_SEATS))]
        self._changed_parts: set[int] = set()
        self._seats_json: tuple[bytes, ...] | None = None
        self._message: tuple[datetime, str] | None = None
        self._availability_json: bytes | None = None
        self.taken: dict[str, SeatState] = {seat.label: seat.state for seat in seats if seat.state != "free"}
        self.pools = dict(pools)

    @property
    def size(self) -> int:
        return len(self._encoded_seats)

    def apply(self, version: int, seats: Mapping[str, SeatState], pools: Mapping[str, PoolState]) -> None:
        for label, state in seats.items():
            self._set_seat(label, state)
        self.pools.update(pools)
        self.version = version
        self._seats_json = None
        self._message = None
        self._availability_json = None

    def _set_seat(self, label: str, state: SeatState) -> None:
        index = self._index[label]
        end = _ENDS[self.taken.get(label, "free")]
        encoded = self._encoded_seats[index]
        assert encoded.endswith(end)
        self._encoded_seats[index] = encoded[: -len(end)] + _ENDS[state]
        self._changed_parts.add(index // PART_SEATS)
        if state == "free":
            self.taken.pop(label, None)
        else:
            self.taken[label] = state

    def seats_json(self) -> tuple[bytes, ...]:
        """The seat map, in one or several parts."""
        if self._seats_json is None:
            for number in self._changed_parts:
                self._parts[number] = self._join_part(number)
            self._changed_parts.clear()
            head = f'{{"event":"{self._event}","version":{self.version},"seats":['.encode()
            parts = list(self._parts) or [b""]
            parts[0] = head + parts[0]
            parts[-1] += b"]}"
            self._seats_json = tuple(parts)
        return self._seats_json

    def availability_json(self) -> bytes:
        if self._availability_json is None:
            availability = Availability(event=self._event, version=self.version, pools=self._pool_list())
            self._availability_json = json.encode(availability)
        return self._availability_json

    def taken_json(self) -> str:
        """The version, the pools and every seat that is not free, as the fields of a JSON object without braces."""
        fields = {"version": self.version, "pools": self._pool_list(), "seats": self.taken}
        return json.encode(fields)[1:-1].decode()

    def message(self, server_time: datetime, encode: Callable[[], str]) -> str:
        """The message with this snapshot. It is at most `MESSAGE_SECONDS` old, and never older than the last change."""
        if self._message is None or (server_time - self._message[0]).total_seconds() > MESSAGE_SECONDS:
            self._message = (server_time, encode())
        return self._message[1]

    def _join_part(self, number: int) -> bytes:
        start = number * PART_SEATS
        part = b",".join(self._encoded_seats[start : start + PART_SEATS])
        return b"," + part if number else part

    def _pool_list(self) -> list[PoolAvailability]:
        return [
            PoolAvailability(code=code, capacity=p.capacity, held=p.held, sold=p.sold, remaining=p.remaining)
            for code, p in self.pools.items()
        ]
