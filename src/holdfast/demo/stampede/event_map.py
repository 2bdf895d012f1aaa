"""The event as the buyers of one process see it: its pools, and which seats were free when they last looked."""

import random
from typing import Final, Literal

from msgspec import Struct

# Buyers take one of the best places that are free, seldom the very best: this many are as good to most of them.
GOOD_PLACES: Final = 25
# A row further back is as bad as one and a half seats further from the middle.
ROW_WIDTH: Final = 1.5
QUANTITIES: Final = (1, 2, 3, 4)


class HallTariff(Struct, frozen=True):
    code: str


class HallPool(Struct, frozen=True):
    code: str
    capacity: int
    seated: bool
    tariffs: tuple[HallTariff, ...]


class HallSeat(Struct, frozen=True):
    label: str
    pool: str
    row: str
    number: int | None
    state: Literal["free", "held", "sold", "blocked"]


class Offer(Struct, frozen=True):
    """What is read of `GET /v1/events/{id}`."""

    pools: tuple[HallPool, ...]


class HallMap(Struct, frozen=True):
    """What is read of `GET /v1/events/{id}/seats`."""

    seats: list[HallSeat]


class Hall:
    def __init__(self, offer: Offer) -> None:
        self.pools = offer.pools
        self._seats: list[HallSeat] = []
        self._number: dict[str, int] = {}
        self._free: list[bool] = []
        self._run_of: list[range] = []
        self._places: dict[int, list[range]] = {}
        self._open: dict[tuple[int, bool], list[range]] = {}
        self._sold_out: set[str] = set()

    def look(self, seats: list[HallSeat]) -> None:
        """See the map as it is now. A pool with a free seat is not sold out, whatever it said before."""
        if len(seats) != len(self._seats):
            self._arrange(seats)
        self._free = [seat.state == "free" for seat in seats]
        self._sold_out -= {seat.pool for seat in seats if seat.state == "free"}
        self._open.clear()

    def note_taken(self, labels: tuple[str, ...]) -> None:
        """What one buyer is told, the others on this map see at once, as they would with the live feed."""
        for label in labels:
            if label in self._number:
                self._free[self._number[label]] = False

    def note_sold_out(self, pool: HallPool) -> None:
        self._sold_out.add(pool.code)

    def is_sold_out(self, pool: HallPool) -> bool:
        return pool.code in self._sold_out

    def favourite(self) -> HallPool:
        """Where a buyer looks first: more look where there is more."""
        return random.choices(self.pools, [pool.capacity for pool in self.pools])[0]  # noqa: S311

    def pick(self, quantity: int, *, careful: bool) -> list[HallSeat] | None:
        """Neighbouring seats, rather near the middle of the front. The careful leave no gap on one side of them, and
        so no seat alone."""
        places = self._open_places(quantity, careful)
        if not places:
            return None
        first = min(int(random.expovariate(1 / GOOD_PLACES)), len(places) - 1)
        for at in range(first, first + len(places)):
            place = places[at % len(places)]
            if self._is_free(place):
                return [self._seats[seat] for seat in place]
        return None

    def _open_places(self, quantity: int, careful: bool) -> list[range]:
        """Kept until the next look."""
        key = (quantity, careful)
        if key not in self._open:
            places = [place for place in self._places.get(quantity, []) if self._is_free(place)]
            self._open[key] = [place for place in places if self._ends_a_gap(place)] if careful else places
        return self._open[key]

    def _is_free(self, place: range) -> bool:
        return all(self._free[place.start : place.stop])

    def _ends_a_gap(self, place: range) -> bool:
        run = self._run_of[place.start]
        before, after = place.start - 1, place.stop
        return not (before in run and self._free[before] and after in run and self._free[after])

    def _arrange(self, seats: list[HallSeat]) -> None:
        self._seats = seats
        self._number = {seat.label: number for number, seat in enumerate(seats)}
        runs = _runs(seats)
        self._run_of = [run for run in runs for _ in run]
        distances = _distances(seats)
        self._places = {quantity: _places(runs, quantity, distances) for quantity in QUANTITIES}


def _runs(seats: list[HallSeat]) -> list[range]:
    """Neighbours stand in one row of one pool and have numbers that follow each other."""
    starts = [at for at in range(len(seats)) if at == 0 or not _are_neighbours(seats[at - 1], seats[at])]
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(seats)], strict=True)]


def _are_neighbours(left: HallSeat, right: HallSeat) -> bool:
    if left.number is None or right.number is None:
        return False
    return left.pool == right.pool and left.row == right.row and right.number - left.number == 1


def _distances(seats: list[HallSeat]) -> list[float]:
    """For each seat how far it is from the middle of the front of its pool."""
    rows: dict[str, dict[str, list[int]]] = {}
    for at, seat in enumerate(seats):
        rows.setdefault(seat.pool, {}).setdefault(seat.row, []).append(at)
    found = [0.0] * len(seats)
    for pool in rows.values():
        for depth, row in enumerate(pool.values()):
            for offset, at in enumerate(row):
                found[at] = abs(offset - (len(row) - 1) / 2) + ROW_WIDTH * depth
    return found


def _places(runs: list[range], quantity: int, distances: list[float]) -> list[range]:
    """All places for so many next to each other, the best first."""
    places = [range(at, at + quantity) for run in runs for at in run[: len(run) - quantity + 1]]
    return sorted(places, key=lambda place: sum(distances[seat] for seat in place))
