"""What an event's seats and pools look like at one moment, and the answers that show it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import json

from holdfast.api.responses import Availability, PoolAvailability, SeatView
from holdfast.core.journal import PoolState, SeatState

_STATE: Final = b'"state":"%b"}'


class SeatSnapshot:
    """Changed seat by seat. An answer is encoded when it is first asked for, and kept until the next change; of a hall
    with thousands of seats only those that changed are encoded anew."""

    def __init__(self, event: str, version: int, seats: Sequence[SeatView], pools: Mapping[str, PoolState]) -> None:
        self._event = event
        self.version = version
        self._places = {seat.label: place for place, seat in enumerate(seats)}
        self._encoded = [json.encode(seat) for seat in seats]
        self._kept: dict[str, bytes] = {}
        self.taken: dict[str, SeatState] = {seat.label: seat.state for seat in seats if seat.state != "free"}
        self.pools = dict(pools)

    @property
    def size(self) -> int:
        return len(self._encoded)

    def set(self, version: int, seats: Mapping[str, SeatState], pools: Mapping[str, PoolState]) -> None:
        """How these seats and pools are from this version on."""
        for label, state in seats.items():
            self._set_seat(label, state)
        self.pools.update(pools)
        self.version = version
        self._kept.clear()

    def _set_seat(self, label: str, state: SeatState) -> None:
        place = self._places[label]
        before = _STATE % self.taken.get(label, "free").encode()
        encoded = self._encoded[place]
        assert encoded.endswith(before)
        self._encoded[place] = encoded[: -len(before)] + _STATE % state.encode()
        if state == "free":
            self.taken.pop(label, None)
        else:
            self.taken[label] = state

    def seats_answer(self) -> bytes:
        return self._keep("seats", self._encode_seats)

    def availability_answer(self) -> bytes:
        return self._keep("availability", self._encode_availability)

    def not_free(self) -> bytes:
        """The pools, and the states of all seats that are not free, as the fields of a JSON object."""
        return self._keep("not_free", self._encode_not_free)

    def _keep(self, name: str, encode: Callable[[], bytes]) -> bytes:
        if name not in self._kept:
            self._kept[name] = encode()
        return self._kept[name]

    def _encode_seats(self) -> bytes:
        head = f'{{"event":"{self._event}","version":{self.version},"seats":['.encode()
        return b"%b%b]}" % (head, b",".join(self._encoded))

    def _encode_availability(self) -> bytes:
        return json.encode(Availability(event=self._event, version=self.version, pools=self._listed()))

    def _encode_not_free(self) -> bytes:
        fields = {"version": self.version, "pools": self._listed(), "seats": self.taken}
        return json.encode(fields)[1:-1]

    def _listed(self) -> list[PoolAvailability]:
        return [
            PoolAvailability(code=code, capacity=p.capacity, held=p.held, sold=p.sold, remaining=p.remaining)
            for code, p in self.pools.items()
        ]
