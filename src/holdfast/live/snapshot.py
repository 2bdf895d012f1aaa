"""The seats and pools of one event at one version, and the JSON that shows them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct, json

from holdfast.core.journal import PoolState, SeatState

_STATE: Final = b'"state":"%b"}'


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
    """Each seat is encoded once and patched when its state changes, so a change in a hall of 20,000 seats costs one
    seat. Whole documents are encoded on request and cached until the next change."""

    def __init__(self, event: str, version: int, seats: Sequence[SeatView], pools: Mapping[str, PoolState]) -> None:
        self._event = event
        self.version = version
        self._index = {seat.label: index for index, seat in enumerate(seats)}
        self._encoded_seats = [json.encode(seat) for seat in seats]
        self._documents: dict[str, bytes] = {}
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
        self._documents.clear()

    def _set_seat(self, label: str, state: SeatState) -> None:
        index = self._index[label]
        before = _STATE % self.taken.get(label, "free").encode()
        encoded = self._encoded_seats[index]
        assert encoded.endswith(before)
        self._encoded_seats[index] = encoded[: -len(before)] + _STATE % state.encode()
        if state == "free":
            self.taken.pop(label, None)
        else:
            self.taken[label] = state

    def seats_json(self) -> bytes:
        return self._cached("seats", self._encode_seats)

    def availability_json(self) -> bytes:
        return self._cached("availability", self._encode_availability)

    def taken_json(self) -> bytes:
        """The version, the pools and every seat that is not free, as the fields of a JSON object without braces."""
        return self._cached("taken", self._encode_taken)

    def _cached(self, name: str, encode: Callable[[], bytes]) -> bytes:
        if name not in self._documents:
            self._documents[name] = encode()
        return self._documents[name]

    def _encode_seats(self) -> bytes:
        head = f'{{"event":"{self._event}","version":{self.version},"seats":['.encode()
        return b"%b%b]}" % (head, b",".join(self._encoded_seats))

    def _encode_availability(self) -> bytes:
        return json.encode(Availability(event=self._event, version=self.version, pools=self._pool_list()))

    def _encode_taken(self) -> bytes:
        fields = {"version": self.version, "pools": self._pool_list(), "seats": self.taken}
        return json.encode(fields)[1:-1]

    def _pool_list(self) -> list[PoolAvailability]:
        return [
            PoolAvailability(code=code, capacity=p.capacity, held=p.held, sold=p.sold, remaining=p.remaining)
            for code, p in self.pools.items()
        ]
