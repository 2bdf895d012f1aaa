"""Ranks the seats of a pool. The ranking depends only on the layout, so Holdfast computes it once per layout and not
for every choice.

Positions count the seats of the pool from 0. A window is a group of adjacent seats, known by its first position.
"""

from collections.abc import Sequence
from heapq import merge
from itertools import accumulate
from typing import Final, NamedTuple

# A request for the best available seats may ask for at most this many.
BEST_SEATS_MAX: Final = 100
# A search looks at a long run section by section. A window is shorter than a section, so it ends in the next one at
# the latest.
SECTION_SEATS: Final = 128
SORTED_AT_ONCE: Final = 10_000
# Distances are whole multiples of this fraction of a unit. Their sums are exact, so a choice never depends on rounding.
_DISTANCE_STEPS: Final = 2**30


class Section(NamedTuple):
    """A part of a run. It stands for the windows that start in it, and `lowest_cost` is that of the best seat which
    such a window can contain."""

    lowest_cost: int
    start: int
    stop: int
    run: range


class PoolRanking:
    """`costs` says how far each seat is from the front centre, and `cost_sums` are its prefix sums. `nearest` has all
    positions, the best one first; `ranks` is the inverse of it. `sections` has the best one first, too."""

    def __init__(self, first_seat: int, runs: Sequence[range], distances: Sequence[float]) -> None:
        self.first_seat = first_seat
        self.costs = [round(distance * _DISTANCE_STEPS) for distance in distances]
        self.cost_sums = list(accumulate(self.costs, initial=0))
        self.nearest = self._sort_by_cost()
        self.ranks = [0] * len(self.nearest)
        for rank, position in enumerate(self.nearest):
            self.ranks[position] = rank
        self.run_at = [run for run in runs for _ in run]
        self.sections = sorted(section for run in runs for section in self._split(run))
        self._section_at = [0] * len(self.costs)
        self._with_room: list[list[int]] = [[] for _ in range(BEST_SEATS_MAX + 1)]
        for index, section in enumerate(self.sections):
            self._section_at[section.start : section.stop] = [index] * (section.stop - section.start)
            for quantity in range(1, min(section.run.stop - section.start, BEST_SEATS_MAX) + 1):
                self._with_room[quantity].append(index)

    def _sort_by_cost(self) -> list[int]:
        """All positions, the best one first. One large sort would keep all other threads from running."""
        cost_of = self.costs.__getitem__
        starts = range(0, len(self.costs), SORTED_AT_ONCE)
        parts = [sorted(range(start, min(start + SORTED_AT_ONCE, len(self.costs))), key=cost_of) for start in starts]
        return parts[0] if len(parts) == 1 else list(merge(*parts, key=cost_of))

    def _split(self, run: range) -> list[Section]:
        starts = range(run.start, run.stop, SECTION_SEATS)
        lowest = [min(self.costs[start : min(start + SECTION_SEATS, run.stop)]) for start in starts]
        return [
            Section(min(lowest[number : number + 2]), start, min(start + SECTION_SEATS, run.stop), run)
            for number, start in enumerate(starts)
        ]

    def sections_with_room(self, quantity: int) -> Sequence[int]:
        """The sections in which a window of this size can start, the best one first."""
        return self._with_room[quantity]

    def sections_near(self, position: int) -> tuple[int, int]:
        """The sections whose best window may change with the state of this seat: windows that contain it or leave it
        alone beside them. They lie in these two sections and nowhere between."""
        run = self.run_at[position]
        first = max(run.start, position - BEST_SEATS_MAX - 1)
        return self._section_at[first], self._section_at[min(position + 2, run.stop - 1)]


def gap_around(free: bytearray, run: range, position: int) -> range:
    """The free seats around a free seat of a run, without interruption."""
    taken_before = free.rfind(0, run.start, position)
    taken_after = free.find(0, position, run.stop)
    return range(taken_before + 1 if taken_before >= 0 else run.start, taken_after if taken_after >= 0 else run.stop)
