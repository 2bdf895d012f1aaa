"""The event as the buyers of one process see it: its pools, and the seats that were free in the last snapshot."""

import random
from typing import Final, Literal

from msgspec import Struct

# A buyer picks one of this many best choices at random. If everyone wanted the very best, nobody would get one.
GOOD_CHOICES: Final = 25
# One row further back costs a buyer as much as one and a half seats further from the middle.
ROW_COST: Final = 1.5
QUANTITIES: Final = (1, 2, 3, 4)


class MapTariff(Struct, frozen=True):
    code: str


class MapPool(Struct, frozen=True):
    code: str
    capacity: int
    seated: bool
    tariffs: tuple[MapTariff, ...]


class MapSeat(Struct, frozen=True):
    label: str
    pool: str
    row: str
    number: int | None
    state: Literal["free", "held", "sold", "blocked"]


class EventResponse(Struct, frozen=True):
    """The fields that buyers read from `GET /v1/events/{id}`."""

    pools: tuple[MapPool, ...]


class SeatsResponse(Struct, frozen=True):
    """The fields that buyers read from `GET /v1/events/{id}/seats`."""

    seats: list[MapSeat]


class EventMap:
    """A choice is a range of neighbouring seats, by their positions in the snapshot."""

    def __init__(self, event: EventResponse) -> None:
        self.pools = event.pools
        self._seats: list[MapSeat] = []
        self._position: dict[str, int] = {}
        self._is_free: list[bool] = []
        self._run_at: list[range] = []
        self._choices: dict[int, list[range]] = {}
        self._free_choices: dict[tuple[int, bool], list[range]] = {}
        self._sold_out: set[str] = set()

    def update(self, seats: list[MapSeat]) -> None:
        """Apply a new snapshot. A pool with a free seat is no longer sold out."""
        if len(seats) != len(self._seats):
            self._index(seats)
        self._is_free = [seat.state == "free" for seat in seats]
        self._sold_out -= {seat.pool for seat in seats if seat.state == "free"}
        self._free_choices.clear()

    def mark_taken(self, labels: tuple[str, ...]) -> None:
        """All buyers of the process see at once what one of them learns, as they would with the live feed."""
        for label in labels:
            if label in self._position:
                self._is_free[self._position[label]] = False

    def mark_sold_out(self, pool: MapPool) -> None:
        self._sold_out.add(pool.code)

    def is_sold_out(self, pool: MapPool) -> bool:
        return pool.code in self._sold_out

    def choose_pool(self) -> MapPool:
        """Larger pools attract more buyers."""
        return random.choices(self.pools, [pool.capacity for pool in self.pools])[0]  # noqa: S311

    def choose_seats(self, quantity: int, *, careful: bool) -> list[MapSeat] | None:
        """Choose neighbouring seats, preferably near the middle of the front. A careful buyer takes the end of a gap,
        which leaves no single seat."""
        choices = self._find_free_choices(quantity, careful)
        if not choices:
            return None
        first = min(int(random.expovariate(1 / GOOD_CHOICES)), len(choices) - 1)
        for at in range(first, first + len(choices)):
            choice = choices[at % len(choices)]
            if self._is_choice_free(choice):
                return [self._seats[position] for position in choice]
        return None

    def _find_free_choices(self, quantity: int, careful: bool) -> list[range]:
        """Cached until the next snapshot."""
        key = (quantity, careful)
        if key not in self._free_choices:
            choices = [choice for choice in self._choices.get(quantity, []) if self._is_choice_free(choice)]
            self._free_choices[key] = (
                [choice for choice in choices if self._is_end_of_gap(choice)] if careful else choices
            )
        return self._free_choices[key]

    def _is_choice_free(self, choice: range) -> bool:
        return all(self._is_free[choice.start : choice.stop])

    def _is_end_of_gap(self, choice: range) -> bool:
        run = self._run_at[choice.start]
        before, after = choice.start - 1, choice.stop
        return not (before in run and self._is_free[before] and after in run and self._is_free[after])

    def _index(self, seats: list[MapSeat]) -> None:
        self._seats = seats
        self._position = {seat.label: position for position, seat in enumerate(seats)}
        runs = _find_runs(seats)
        self._run_at = [run for run in runs for _ in run]
        distances = _measure_distances(seats)
        self._choices = {quantity: _rank_choices(runs, quantity, distances) for quantity in QUANTITIES}


def _find_runs(seats: list[MapSeat]) -> list[range]:
    """A run is a series of seats in one row of one pool whose numbers follow each other."""
    starts = [at for at in range(len(seats)) if at == 0 or not _are_neighbours(seats[at - 1], seats[at])]
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(seats)], strict=True)]


def _are_neighbours(left: MapSeat, right: MapSeat) -> bool:
    if left.number is None or right.number is None:
        return False
    return left.pool == right.pool and left.row == right.row and right.number - left.number == 1


def _measure_distances(seats: list[MapSeat]) -> list[float]:
    """The distance of each seat from the middle of the front of its pool."""
    rows: dict[str, dict[str, list[int]]] = {}
    for position, seat in enumerate(seats):
        rows.setdefault(seat.pool, {}).setdefault(seat.row, []).append(position)
    distances = [0.0] * len(seats)
    for pool in rows.values():
        for depth, row in enumerate(pool.values()):
            for offset, position in enumerate(row):
                distances[position] = abs(offset - (len(row) - 1) / 2) + ROW_COST * depth
    return distances


def _rank_choices(runs: list[range], quantity: int, distances: list[float]) -> list[range]:
    """All choices of this size, best first."""
    choices = [range(at, at + quantity) for run in runs for at in run[: len(run) - quantity + 1]]
    return sorted(choices, key=lambda choice: sum(distances[position] for position in choice))
