"""Which seats are best, and which choices spoil a row.

A seat is nearer the best the closer it is to the middle of the front of its pool. An orphan is a single free seat
with taken neighbours on both sides: hardly anybody buys it.
"""

from collections.abc import Callable, Collection

from holdfast.core.layout import Layout
from holdfast.core.model import Pool

IsFree = Callable[[int], bool]
Window = tuple[bool, float, int]


class Chooser:
    """Finds the best free seats of a pool. It remembers the best window of each run, so that one choice after the
    other in the same hall only looks again at the runs that changed."""

    def __init__(self, layout: Layout, pool: Pool, is_free: IsFree) -> None:
        assert pool.seats is not None
        self._layout = layout
        self._is_free = is_free
        self._runs = [run for run in layout.runs if pool.seats[0] <= run.start <= pool.seats[1]]
        self._best: dict[tuple[range, int], Window | None] = {}

    def forget(self, seat: int) -> None:
        """The seat was taken or given back: what is remembered of its run no longer holds."""
        run = self._layout.run_of[seat]
        for key in [key for key in self._best if key[0] == run]:
            del self._best[key]

    def adjacent(self, quantity: int) -> list[int] | None:
        windows = [window for run in self._runs if (window := self._best_window(run, quantity))]
        if not windows:
            return None
        _, _, first = min(windows)
        return list(range(first, first + quantity))

    def scattered(self, quantity: int) -> list[int] | None:
        distances = self._layout.distances
        free = sorted((distances[seat], seat) for run in self._runs for seat in run if self._is_free(seat))
        if len(free) < quantity:
            return None
        nearest = [seat for _, seat in free]
        if not self._layout.policy.avoid_orphans:
            return sorted(nearest[:quantity])
        chosen: list[int] = []
        while len(chosen) < quantity:
            best = next((s for s in nearest if not orphans(self._layout, {*chosen, s}, self._is_free)), nearest[0])
            nearest.remove(best)
            chosen.append(best)
        return sorted(chosen)

    def _best_window(self, run: range, quantity: int) -> Window | None:
        key = (run, quantity)
        if key not in self._best:
            self._best[key] = min(self._windows(run, quantity), default=None)
        return self._best[key]

    def _windows(self, run: range, quantity: int) -> list[Window]:
        sums = self._layout.distance_sums
        found: list[Window] = []
        length = 0
        for seat in run:
            length = length + 1 if self._is_free(seat) else 0
            if length >= quantity:
                first = seat - quantity + 1
                chosen = range(first, seat + 1)
                spoils = self._layout.policy.avoid_orphans and bool(orphans(self._layout, chosen, self._is_free))
                found.append((spoils, sums[seat + 1] - sums[first], first))
        return found


def orphans(layout: Layout, chosen: Collection[int], is_free: IsFree) -> list[int]:
    """The single free seats that this choice would leave although another choice in the same gap would not."""
    left: set[int] = set()
    # Of seats in a row only those at its ends have neighbours that are not chosen.
    for seat in (chosen[0], chosen[-1]) if isinstance(chosen, range) else chosen:
        run = layout.run_of[seat]
        for beside, beyond in ((seat - 1, seat - 2), (seat + 1, seat + 2)):
            if beside in run and beyond in run and is_free(beside) and beside not in chosen:
                closed = beyond in chosen or not is_free(beyond)
                if closed and _is_avoidable(run, beside, chosen, is_free):
                    left.add(beside)
    return sorted(left)


def _is_avoidable(run: range, orphan: int, chosen: Collection[int], is_free: IsFree) -> bool:
    """In a gap of which all but one seat are chosen, one is left over whatever the buyer does."""
    first = last = orphan
    while first - 1 in run and is_free(first - 1):
        first -= 1
    while last + 1 in run and is_free(last + 1):
        last += 1
    gap = range(first, last + 1)
    return len(gap) - sum(seat in chosen for seat in gap) > 1
