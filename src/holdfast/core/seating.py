"""Finding the best seats, and the choices that would leave an orphan.

The best seat is the one closest to the front centre of its pool. An orphan is a single free seat between two taken
ones; hardly anybody buys it.
"""

from collections.abc import Callable, Collection

from holdfast.core.layout import Layout, Pool

IsFree = Callable[[int], bool]
# Whether the window leaves an orphan, the sum of its distances, and its first seat: the smallest tuple is the best.
Window = tuple[bool, float, int]


class SeatChooser:
    """Finds the best free seats of a pool. It caches the best window of each run, so that consecutive choices in one
    hall only search the runs that changed."""

    def __init__(self, layout: Layout, pool: Pool, is_free: IsFree) -> None:
        assert pool.seats is not None
        self._layout = layout
        self._is_free = is_free
        self._runs = [run for run in layout.runs if pool.seats[0] <= run.start <= pool.seats[1]]
        self._best_windows: dict[range, dict[int, Window | None]] = {}

    def invalidate(self, seat: int) -> None:
        """Drop the cached windows of the seat's run, because the seat was taken or released."""
        self._best_windows.pop(self._layout.run_by_seat[seat], None)

    def choose_adjacent(self, quantity: int) -> list[int] | None:
        windows = [window for run in self._runs if (window := self._best_window(run, quantity))]
        if not windows:
            return None
        _, _, first = min(windows)
        return list(range(first, first + quantity))

    def choose_scattered(self, quantity: int) -> list[int] | None:
        distances = self._layout.distances
        free = sorted((distances[seat], seat) for run in self._runs for seat in run if self._is_free(seat))
        if len(free) < quantity:
            return None
        nearest = [seat for _, seat in free]
        if not self._layout.policy.avoid_orphans:
            return sorted(nearest[:quantity])
        chosen: list[int] = []
        while len(chosen) < quantity:
            best = next((s for s in nearest if not find_orphans(self._layout, {*chosen, s}, self._is_free)), nearest[0])
            nearest.remove(best)
            chosen.append(best)
        return sorted(chosen)

    def _best_window(self, run: range, quantity: int) -> Window | None:
        by_quantity = self._best_windows.setdefault(run, {})
        if quantity not in by_quantity:
            by_quantity[quantity] = min(self._windows(run, quantity), default=None)
        return by_quantity[quantity]

    def _windows(self, run: range, quantity: int) -> list[Window]:
        sums = self._layout.distance_sums
        windows: list[Window] = []
        length = 0
        for seat in run:
            length = length + 1 if self._is_free(seat) else 0
            if length >= quantity:
                first = seat - quantity + 1
                chosen = range(first, seat + 1)
                leaves_orphan = self._layout.policy.avoid_orphans and bool(
                    find_orphans(self._layout, chosen, self._is_free)
                )
                windows.append((leaves_orphan, sums[seat + 1] - sums[first], first))
        return windows


def find_orphans(layout: Layout, chosen: Collection[int], is_free: IsFree) -> list[int]:
    """The orphans that this choice leaves and that another choice in the same gap would avoid."""
    orphans: set[int] = set()
    # In a range of adjacent seats, only the two ends have neighbours outside the choice.
    for seat in (chosen[0], chosen[-1]) if isinstance(chosen, range) else chosen:
        run = layout.run_by_seat[seat]
        for beside, beyond in ((seat - 1, seat - 2), (seat + 1, seat + 2)):
            if beside in run and beyond in run and is_free(beside) and beside not in chosen:
                is_closed = beyond in chosen or not is_free(beyond)
                if is_closed and _is_avoidable(run, beside, chosen, is_free):
                    orphans.add(beside)
    return sorted(orphans)


def _is_avoidable(run: range, orphan: int, chosen: Collection[int], is_free: IsFree) -> bool:
    """A choice of all but one seat of a gap always leaves one over."""
    first = last = orphan
    while first - 1 in run and is_free(first - 1):
        first -= 1
    while last + 1 in run and is_free(last + 1):
        last += 1
    gap = range(first, last + 1)
    return len(gap) - sum(seat in chosen for seat in gap) > 1
