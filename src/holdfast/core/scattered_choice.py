"""Choosing the nearest free seats, wherever they are, without leaving an orphan if another choice can avoid it.

The choice picks one seat after another: the nearest one that leaves no orphan or, if every seat leaves one, the nearest
of all. Whether a seat leaves an orphan depends on two seats to either side of it, and on how many seats its gap has
left, so a pick changes the verdict only on a few others.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from holdfast.core.seat_ranking import PoolRanking, gap_around

# How far a pick reaches: it may isolate the seat beside it, and so rules out the seat beyond that one.
REACH = 2


class SeatQueue:
    """The free seats of a pool as ranks, the nearest first, without those that would leave an orphan as the only
    choice. It finds them on demand, and keeps its place between the choices of a batch."""

    def __init__(self, ranking: PoolRanking, free: bytearray, *, avoids_orphans: bool) -> None:
        self._ranking = ranking
        self._free = free
        self._avoids_orphans = avoids_orphans
        self._passed = 0
        # Ranks that the search has passed and that may be available again.
        self._returned: list[int] = []

    def take(self) -> int | None:
        """Remove the nearest seat and return its rank. Give it back with `put_back` if it stays free."""
        while self._returned:
            rank = heappop(self._returned)
            while self._returned and self._returned[0] == rank:
                heappop(self._returned)
            if self._is_available(self._ranking.nearest[rank]):
                return rank
        free, nearest = self._free, self._ranking.nearest
        # Most seats of a hall may be taken, so this loop stays lean.
        for rank in range(self._passed, len(nearest)):
            if free[nearest[rank]] and self._is_available(nearest[rank]):
                self._passed = rank + 1
                return rank
        self._passed = len(nearest)
        return None

    def put_back(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            heappush(self._returned, rank)

    def peek(self, count: int) -> list[int]:
        """The positions of the nearest seats. The pool must have that many."""
        ranks = [rank for _ in range(count) if (rank := self.take()) is not None]
        self.put_back(ranks)
        return [self._ranking.nearest[rank] for rank in ranks]

    def reconsider(self, position: int) -> None:
        """Call this after the seat was taken or released: that also decides whether its neighbours leave an orphan."""
        run = self._ranking.run_at[position]
        for near in range(max(position - REACH, run.start), min(position + REACH + 1, run.stop)):
            if self._ranking.ranks[near] < self._passed and self._is_available(near):
                heappush(self._returned, self._ranking.ranks[near])

    def _is_available(self, position: int) -> bool:
        if not self._free[position]:
            return False
        if not self._avoids_orphans:
            return True
        free, run = self._free, self._ranking.run_at[position]
        before = position > run.start and free[position - 1]
        after = position + 1 < run.stop and free[position + 1]
        # If one neighbour is taken, the other one is isolated only where every choice in the gap isolates a seat.
        if not (before and after):
            return True
        isolates_before = position - 2 >= run.start and not free[position - 2]
        isolates_after = position + 2 < run.stop and not free[position + 2]
        return not (isolates_before or isolates_after)


class _Gap:
    """Free seats of a run without interruption: how many of them are not chosen, and which of those are isolated."""

    def __init__(self, seats: range) -> None:
        self.seats = seats
        self.left = len(seats)
        self.isolated: set[int] = set()

    @property
    def has_orphans(self) -> bool:
        """A gap with one seat left has no orphan, because every choice would leave one."""
        return self.left > 1 and bool(self.isolated)


class ScatteredChoice:
    """One choice. Candidates are ranks; `_candidates` has those to look at next to the queue's, and `_set_aside` those
    that leave an orphan as things are."""

    def __init__(self, ranking: PoolRanking, free: bytearray, queue: SeatQueue) -> None:
        self._ranking = ranking
        self._free = free
        self._queue = queue
        self._taken_from_queue: list[int] = []
        self._next_in_queue: int | None = None
        self._candidates: list[int] = []
        self._set_aside: set[int] = set()
        self._chosen: set[int] = set()
        self._gaps: dict[int, _Gap] = {}
        self._gaps_with_orphans: set[int] = set()

    def choose(self, quantity: int) -> list[int]:
        """The positions of this many seats. The pool must have them."""
        self._advance_queue()
        while len(self._chosen) < quantity:
            self._pick(self._best_candidate())
        self._queue.put_back(self._taken_from_queue)
        return list(self._chosen)

    def _advance_queue(self) -> None:
        self._next_in_queue = self._queue.take()
        if self._next_in_queue is not None:
            self._taken_from_queue.append(self._next_in_queue)

    def _best_candidate(self) -> int:
        if self._gaps_with_orphans:
            return self._nearest_repair()
        while (rank := self._next_candidate()) is not None:
            position = self._ranking.nearest[rank]
            if position in self._chosen:
                continue
            if not self._leaves_orphan(position):
                return position
            self._set_aside.add(rank)
        # Every seat that is left leaves an orphan. All of them are beside a chosen one, so all are set aside.
        return self._ranking.nearest[min(self._set_aside)]

    def _next_candidate(self) -> int | None:
        queued = self._next_in_queue
        if self._candidates and (queued is None or self._candidates[0] <= queued):
            return heappop(self._candidates)
        if queued is not None:
            self._advance_queue()
        return queued

    def _nearest_repair(self) -> int:
        """The nearest seat that no longer leaves an orphan, or else the nearest one. Earlier picks could not avoid an
        orphan, so every other seat is already a candidate, and there are few of them."""
        left = sorted(
            rank for rank in {*self._set_aside, *self._candidates} if self._ranking.nearest[rank] not in self._chosen
        )
        if len(self._gaps_with_orphans) == 1:
            (start,) = self._gaps_with_orphans
            for rank in left:
                position = self._ranking.nearest[rank]
                if position in self._gaps[start].seats and not self._leaves_orphan(position):
                    return position
        return self._ranking.nearest[left[0]]

    def _leaves_orphan(self, position: int) -> bool:
        """Whether the gap of this seat has an orphan once the seat is chosen."""
        gap = self._gap(position)
        isolated = len(gap.isolated) - (position in gap.isolated) + len(self._isolated_by(position))
        return gap.left - 1 > 1 and isolated > 0

    def _isolated_by(self, position: int) -> list[int]:
        run = self._ranking.run_at[position]
        return [
            beside
            for beside, beyond in ((position - 1, position - 2), (position + 1, position + 2))
            if beyond in run and self._is_open(beside) and not self._is_open(beyond)
        ]

    def _is_open(self, position: int) -> bool:
        return bool(self._free[position]) and position not in self._chosen

    def _pick(self, position: int) -> None:
        gap = self._gap(position)
        gap.isolated.discard(position)
        gap.isolated.update(self._isolated_by(position))
        gap.left -= 1
        self._chosen.add(position)
        self._set_aside.discard(self._ranking.ranks[position])
        had_orphans = bool(self._gaps_with_orphans)
        (self._gaps_with_orphans.add if gap.has_orphans else self._gaps_with_orphans.discard)(gap.seats.start)
        self._reconsider(position, gap)
        if had_orphans and not self._gaps_with_orphans:
            self._return_to_candidates(self._set_aside.copy())

    def _reconsider(self, position: int, gap: _Gap) -> None:
        """Check the seats that the pick affects again. When a gap has two seats left, both may be chosen."""
        near = range(max(position - REACH, gap.seats.start), min(position + REACH + 1, gap.seats.stop))
        ranks = {self._ranking.ranks[other] for other in near if other not in self._chosen}
        if gap.left == 2:
            ranks.update(rank for rank in self._set_aside if self._ranking.nearest[rank] in gap.seats)
        self._return_to_candidates(ranks)

    def _return_to_candidates(self, ranks: set[int]) -> None:
        self._set_aside -= ranks
        for rank in ranks:
            heappush(self._candidates, rank)

    def _gap(self, position: int) -> _Gap:
        seats = gap_around(self._free, self._ranking.run_at[position], position)
        if seats.start not in self._gaps:
            self._gaps[seats.start] = _Gap(seats)
        return self._gaps[seats.start]
