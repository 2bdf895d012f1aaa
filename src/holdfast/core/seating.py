"""Finding the best seats, and the choices that would leave an orphan.

The best seat is the one closest to the front centre of its pool. An orphan is a single free seat between two taken
ones; hardly anybody buys it.

All commands of a batch share one chooser per pool. A choice looks only at seats that could be the best, and at what
changed since the last choice, so a full batch in the largest hall costs little more than reading the hall once.
"""

from collections.abc import Callable, Collection
from heapq import heappop, heappush
from operator import sub

from holdfast.core.layout import Layout, Pool
from holdfast.core.scattered_choice import ScatteredChoice, SeatQueue
from holdfast.core.seat_ranking import BEST_SEATS_MAX, PoolRanking, Section, gap_around

IsFree = Callable[[int], bool]
# The cost of a window and its first position: the smallest tuple is the best.
Window = tuple[int, int]


class SeatChooser:
    """Finds the best free seats of a pool."""

    def __init__(self, layout: Layout, pool: Pool, taken: set[int]) -> None:
        assert pool.seats is not None
        first, last = pool.seats
        self._ranking = layout.ranking(pool)
        self._avoids_orphans = layout.policy.avoid_orphans
        # One byte per seat: 1 if it is free. Searching bytes is fast.
        self._free = bytearray(layout.seat_plan.on_sale[first : last + 1])
        seats = range(first, last + 1)
        # Go through the smaller of the two: a batch may choose seats in each of many pools.
        for seat in taken.intersection(seats) if len(seats) < len(taken) else taken:
            if seat in seats:
                self._free[seat - first] = 0
        self._free_count = self._free.count(1)
        self._queue = SeatQueue(self._ranking, self._free, avoids_orphans=self._avoids_orphans)
        self._searches: dict[int, _WindowSearch] = {}
        # The sections that changed, in order.
        self._changed: list[int] = []

    def mark(self, seat: int, *, free: bool) -> None:
        """Call this after the seat was taken or released."""
        position = seat - self._ranking.first_seat
        self._free_count += free - self._free[position]
        self._free[position] = free
        self._queue.reconsider(position)
        self._changed += self._ranking.sections_near(position)

    def choose_adjacent(self, quantity: int) -> list[int] | None:
        assert quantity <= BEST_SEATS_MAX
        search = self._searches.get(quantity)
        if search is None:
            search = _WindowSearch(self._ranking, self._free, quantity, avoids_orphans=self._avoids_orphans)
            self._searches[quantity] = search
        first = search.best_window(self._changed)
        return None if first is None else self._seats(range(first, first + quantity))

    def choose_scattered(self, quantity: int) -> list[int] | None:
        assert quantity <= BEST_SEATS_MAX
        if self._free_count < quantity:
            return None
        if self._avoids_orphans:
            return self._seats(ScatteredChoice(self._ranking, self._free, self._queue).choose(quantity))
        return self._seats(self._queue.peek(quantity))

    def _seats(self, positions: Collection[int]) -> list[int]:
        return sorted(self._ranking.first_seat + position for position in positions)


class _WindowSearch:
    """The best window of one size. It visits sections in order of the best window they could have, keeps what it found
    in a heap, and stops as soon as no other section can have a better one."""

    def __init__(self, ranking: PoolRanking, free: bytearray, quantity: int, *, avoids_orphans: bool) -> None:
        self._ranking = ranking
        self._free = free
        self._quantity = quantity
        self._avoids_orphans = avoids_orphans
        self._needle = b"\1" * quantity
        self._sections = ranking.sections_with_room(quantity)
        self._visited = 0
        self._changes_seen = 0
        # The best window of each section that was visited.
        self._results: dict[int, Window | None] = {}
        # A heap of windows with their section. Those that are no longer its result are obsolete.
        self._found: list[tuple[Window, int]] = []

    def best_window(self, changed: list[int]) -> int | None:
        changes, self._changes_seen = set(changed[self._changes_seen :]), len(changed)
        # A section that the search has not visited has no result to correct.
        for section in changes & self._results.keys():
            self._visit(section)
        while self._visited < len(self._sections) and not self._is_settled():
            self._visit(self._sections[self._visited])
            self._visited += 1
        best = self._best()
        return None if best is None else best[1]

    def _is_settled(self) -> bool:
        """Whether no section that is left can have a better window."""
        best = self._best()
        following = self._ranking.sections[self._sections[self._visited]]
        return best is not None and best <= (following.lowest_cost * self._quantity, following.start)

    def _best(self) -> Window | None:
        while self._found:
            window, section = self._found[0]
            if self._results[section] == window:
                return window
            heappop(self._found)
        return None

    def _visit(self, section: int) -> None:
        window = min(self._windows(self._ranking.sections[section]), default=None)
        if window is not None and self._results.get(section) != window:
            heappush(self._found, (window, section))
        self._results[section] = window

    def _windows(self, section: Section) -> list[Window]:
        """The best window of each gap among those that start in the section."""
        _, start, stop, run = section
        quantity, windows = self._quantity, []
        last_seat = min(stop - 1 + quantity, run.stop)
        first = self._free.find(self._needle, start, last_seat)
        while first >= 0:
            gap = gap_around(self._free, run, first)
            firsts = range(first, min(gap.stop - quantity + 1, stop))
            windows.append(self._best_in_gap(gap, firsts, run))
            first = self._free.find(self._needle, gap.stop, last_seat)
        return [window for window in windows if window is not None]

    def _best_in_gap(self, gap: range, firsts: range, run: range) -> Window | None:
        quantity, sums = self._quantity, self._ranking.cost_sums
        costs = map(sub, sums[firsts.start + quantity : firsts.stop + quantity], sums[firsts.start : firsts.stop])
        best = min(zip(costs, firsts, strict=True))
        orphaning = self._orphaning_windows(gap, run)
        if best[1] not in orphaning:
            return best
        others = [(sums[first + quantity] - sums[first], first) for first in firsts if first not in orphaning]
        return min(others, default=None)

    def _orphaning_windows(self, gap: range, run: range) -> tuple[int, ...]:
        """The windows that leave one seat between them and a taken seat. If the gap has only one seat more than the
        window, every window does; otherwise the first window of the gap does not, so each gap has one to offer."""
        if not self._avoids_orphans or len(gap) - self._quantity <= 1:
            return ()
        after_taken = (gap.start + 1,) if gap.start > run.start else ()
        before_taken = (gap.stop - self._quantity - 1,) if gap.stop < run.stop else ()
        return after_taken + before_taken


def find_orphans(layout: Layout, chosen: Collection[int], is_free: IsFree) -> list[int]:
    """The orphans that this choice of free seats leaves and that another choice in the same gap would avoid."""
    chosen = frozenset(chosen)
    orphans: set[int] = set()
    for seat in chosen:
        run = layout.run_by_seat[seat]
        for beside, beyond in ((seat - 1, seat - 2), (seat + 1, seat + 2)):
            if beside in run and beyond in run and beside not in chosen and is_free(beside):
                is_closed = beyond in chosen or not is_free(beyond)
                if is_closed and _is_avoidable(run, beside, chosen, is_free):
                    orphans.add(beside)
    return sorted(orphans)


def _is_avoidable(run: range, orphan: int, chosen: frozenset[int], is_free: IsFree) -> bool:
    """A choice of all but one seat of a gap always leaves one seat over. So an orphan is avoidable if the gap has
    another free seat that is not chosen. Only chosen seats lie between the two, so the search is as short as the
    choice."""
    for step in (-1, 1):
        other = orphan + step
        while other in run and other in chosen:
            other += step
        if other in run and is_free(other):
            return True
    return False
