"""The fast search for seats chooses exactly what a simple one chooses, and looks at few seats to do so."""

from collections.abc import Collection, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.core.commands import BestSeats
from holdfast.core.decide import decide
from holdfast.core.layout import Layout, Pool, Seat, Tariff
from holdfast.core.policy import Policy
from holdfast.core.refusals import Refusal, Refused
from holdfast.core.seat_ranking import BEST_SEATS_MAX, SECTION_SEATS
from holdfast.core.seating import SeatChooser, find_orphans
from tests.support.builders import (
    example_layout,
    expect_refused,
    make_event_state,
    place_command,
    seat_grid,
    seated_layout,
)
from tests.support.call_counter import count_calls
from tests.support.harness import IS_LONG

# A row that is searched in several sections.
LONG_ROW = 2 * SECTION_SEATS + 40


class SimpleChooser:
    """Compares every window with every other, and tries every seat for every pick."""

    def __init__(self, layout: Layout, pool: Pool, free: Collection[int]) -> None:
        assert pool.seats is not None
        self.layout = layout
        self.first, self.last = pool.seats
        self.free = free
        self.costs = layout.ranking(pool).costs

    def cost(self, seat: int) -> int:
        return self.costs[seat - self.first]

    def leaves_orphan(self, chosen: Collection[int]) -> bool:
        return self.layout.policy.avoid_orphans and bool(simple_orphans(self.layout, chosen, self.free))

    def choose_adjacent(self, quantity: int) -> list[int] | None:
        windows = []
        for run in self.layout.runs:
            for first in range(run.start, run.stop - quantity + 1):
                window = range(first, first + quantity)
                if self.first <= first <= self.last and all(seat in self.free for seat in window):
                    windows.append((self.leaves_orphan(window), sum(map(self.cost, window)), first))
        if not windows:
            return None
        first = min(windows)[2]
        return list(range(first, first + quantity))

    def choose_scattered(self, quantity: int) -> list[int] | None:
        seats = range(self.first, self.last + 1)
        nearest = sorted((seat for seat in seats if seat in self.free), key=lambda seat: (self.cost(seat), seat))
        if len(nearest) < quantity:
            return None
        chosen: list[int] = []
        while len(chosen) < quantity:
            best = next((seat for seat in nearest if not self.leaves_orphan({*chosen, seat})), nearest[0])
            nearest.remove(best)
            chosen.append(best)
        return sorted(chosen)


def simple_orphans(layout: Layout, chosen: Collection[int], free: Collection[int]) -> list[int]:
    orphans = set()
    for seat in chosen:
        run = layout.run_by_seat[seat]
        for beside, beyond in ((seat - 1, seat - 2), (seat + 1, seat + 2)):
            if beside in run and beyond in run and beside in free and beside not in chosen:
                gap = gap_of(run, beside, free)
                is_closed = beyond in chosen or beyond not in free
                if is_closed and len(gap) - sum(seat in chosen for seat in gap) > 1:
                    orphans.add(beside)
    return sorted(orphans)


def gap_of(run: range, seat: int, free: Collection[int]) -> range:
    first = last = seat
    while first - 1 in run and first - 1 in free:
        first -= 1
    while last + 1 in run and last + 1 in free:
        last += 1
    return range(first, last + 1)


def random_layout(random: Random, row_max: int) -> Layout:
    """A pool of a few rows beside a pool of one seat. Aisles and unnumbered seats interrupt the rows."""
    seats = [Seat(0, "X", 0, "A", 0, None, None, False)]
    at_coordinates = random.random() < 0.5
    for row in "ABCD"[: random.randint(1, 4)]:
        number = 1
        for _ in range(random.randint(1, row_max)):
            number += 1 if random.random() < 0.97 else 2
            x, y = (float(random.randint(0, 9)), float(random.randint(0, 9))) if at_coordinates else (None, None)
            number_in_row = number if random.random() < 0.99 else None
            seats.append(Seat(len(seats), f"{row}{len(seats)}", 1, row, number_in_row, x, y, False))
    tariffs = (Tariff(0, "full", "Full", 3000),)
    pools = (Pool(0, "box", "Box", tariffs, (0, 0)), Pool(1, "hall", "Hall", tariffs, (1, len(seats) - 1)))
    return example_layout(pools=pools, seats=tuple(seats), policy=Policy(avoid_orphans=random.random() < 0.8))


def make_chooser(layout: Layout, pool: Pool, free: Collection[int]) -> SeatChooser:
    return SeatChooser(layout, pool, {seat.number for seat in layout.seats if seat.number not in free})


def compare_choosers(random: Random, row_max: int, quantity_max: int, steps: int) -> None:
    """Choose and change seats in turns, with one fast chooser for all steps."""
    layout = random_layout(random, row_max)
    pool = layout.pools[1]
    seats = range(1, len(layout.seats))
    taken_share = random.choice((0.0, 0.1, 0.3, 0.7))
    free = {seat for seat in seats if random.random() >= taken_share}
    fast, simple = make_chooser(layout, pool, free), SimpleChooser(layout, pool, free)
    for _ in range(steps):
        quantity = random.randint(1, quantity_max)
        choose = random.choice(("choose_adjacent", "choose_scattered"))
        chosen = getattr(fast, choose)(quantity)
        assert chosen == getattr(simple, choose)(quantity), (choose, quantity)
        others = random.sample(seats, min(len(seats), random.randint(0, 4)))
        for seat in others if random.random() < 0.5 or chosen is None else chosen:
            free ^= {seat}
            fast.mark(seat, free=seat in free)


@settings(max_examples=2_000 if IS_LONG else 300)
@given(seed=st.integers(0, 2**32))
def test_in_a_small_hall_both_searches_choose_the_same_seats(seed: int) -> None:
    compare_choosers(Random(seed), row_max=12, quantity_max=8, steps=12)


@settings(max_examples=60 if IS_LONG else 12)
@given(seed=st.integers(0, 2**32))
def test_in_long_rows_both_searches_choose_the_same_seats(seed: int) -> None:
    compare_choosers(Random(seed), row_max=LONG_ROW, quantity_max=12, steps=4)


@settings(max_examples=20 if IS_LONG else 5)
@given(seed=st.integers(0, 2**32))
def test_both_searches_choose_the_same_windows_of_the_largest_size(seed: int) -> None:
    random = Random(seed)
    layout = seated_layout(seat_grid("A", LONG_ROW), policy=Policy(avoid_orphans=random.random() < 0.5))
    free = set(range(LONG_ROW)) - set(random.sample(range(LONG_ROW), 2))
    pool = layout.pools[0]
    fast, simple = make_chooser(layout, pool, free), SimpleChooser(layout, pool, free)
    while (chosen := fast.choose_adjacent(random.randint(90, BEST_SEATS_MAX))) is not None:
        assert chosen == simple.choose_adjacent(len(chosen))
        for seat in chosen:
            free.discard(seat)
            fast.mark(seat, free=False)


@settings(max_examples=1_000 if IS_LONG else 200)
@given(seed=st.integers(0, 2**32))
def test_both_searches_find_the_same_orphans(seed: int) -> None:
    random = Random(seed)
    layout = random_layout(random, 15)
    free = {seat for seat in range(1, len(layout.seats)) if random.random() < 0.8}
    chosen = {seat for seat in free if random.random() < 0.4}
    assert find_orphans(layout, chosen, free.__contains__) == simple_orphans(layout, chosen, free)


def large_hall(rows: int, numbers: int, taken_every: int = 0) -> tuple[Layout, set[int]]:
    names = [chr(0x4E00 + row) for row in range(rows)]
    layout = seated_layout(seat_grid("".join(names), numbers), policy=Policy(avoid_orphans=True))
    return layout, {seat.number for seat in layout.seats if not taken_every or seat.number % taken_every}


def calls_per_choice(rows: int, numbers: int, taken_every: int, choose: str) -> int:
    """The most expensive of several choices in a row, after the first one has read the hall."""
    layout, free = large_hall(rows, numbers, taken_every)
    chooser = make_chooser(layout, layout.pools[0], free)
    quantity = 2 if choose == "choose_adjacent" and taken_every else BEST_SEATS_MAX
    getattr(chooser, choose)(quantity)

    def hold() -> None:
        chosen = getattr(chooser, choose)(quantity)
        assert chosen is not None
        for seat in chosen:
            free.discard(seat)
            chooser.mark(seat, free=False)

    return max(count_calls(hold) for _ in range(5))


@pytest.mark.parametrize("choose", ["choose_adjacent", "choose_scattered"])
@pytest.mark.parametrize("taken_every", [0, 4])
def test_a_choice_costs_the_same_in_a_hall_of_any_size(choose: str, taken_every: int) -> None:
    small = calls_per_choice(10, 100, taken_every, choose)
    for rows, numbers in ((160, 100), (10, 1_600), (1, 16_000)):
        assert calls_per_choice(rows, numbers, taken_every, choose) < 3 * small


class CountedSeats(set[int]):
    """Counts how often somebody goes through the seats."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return super().__iter__()


@pytest.mark.parametrize("adjacent", [True, False])
def test_a_batch_of_the_largest_requests_reads_the_taken_seats_once(adjacent: bool) -> None:
    layout, _ = large_hall(60, 100)
    taken = CountedSeats({0, 5_999})
    chooser = SeatChooser(layout, layout.pools[0], taken)
    held = 0
    while chosen := (chooser.choose_adjacent if adjacent else chooser.choose_scattered)(BEST_SEATS_MAX - held % 7):
        held += len(chosen)
        for seat in chosen:
            chooser.mark(seat, free=False)
    assert held > 5_000
    assert taken.passes == 1


def test_a_choice_in_a_small_pool_does_not_go_through_the_taken_seats_of_others() -> None:
    layout, _ = large_hall(10, 10)
    taken = CountedSeats(range(50, 5_000))
    chooser = SeatChooser(layout, layout.pools[0], taken)
    assert taken.passes == 0
    assert chooser.choose_adjacent(11) is None
    chosen = chooser.choose_adjacent(10)
    assert chosen is not None
    assert max(chosen) < 50


def test_the_orphans_of_many_named_seats_cost_no_more_than_the_seats() -> None:
    """Every other seat of a very long row: each one leaves an orphan, in one gap that is as long as the row."""
    layout, free = large_hall(1, 50_000)
    chosen = range(1, 401, 2)
    reads = 0

    def is_free(seat: int) -> bool:
        nonlocal reads
        reads += 1
        return seat in free

    assert len(find_orphans(layout, chosen, is_free)) == len(chosen) - 1
    assert reads < 10 * len(chosen)


@pytest.mark.parametrize("adjacent", [True, False])
def test_one_request_cannot_ask_for_more_than_a_hundred_of_the_best_seats(adjacent: bool) -> None:
    layout = seated_layout(seat_grid("AB", 150))
    best = BestSeats("stalls", BEST_SEATS_MAX, adjacent=adjacent)
    (placed,) = decide(make_event_state(layout), [place_command("it", best_available=best)])
    assert not isinstance(placed, Refused)
    too_many = structs.replace(best, quantity=BEST_SEATS_MAX + 1)
    refused = expect_refused(make_event_state(layout), place_command("it", best_available=too_many))
    assert refused.refusal is Refusal.INVALID_REQUEST
