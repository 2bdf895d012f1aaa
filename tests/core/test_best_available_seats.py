"""Best-available seats are adjacent, in front and central, and leave no orphan seat if another choice can avoid it."""

from collections.abc import Collection, Iterable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs

from holdfast.core.commands import BestSeats, SeatItem
from holdfast.core.decide import decide
from holdfast.core.layout import Layout, Pool, Seat, Tariff
from holdfast.core.policy import Policy
from holdfast.core.refusals import Refusal
from holdfast.core.seating import SeatChooser, find_orphans
from holdfast.core.states import Status, Verb
from tests.support.builders import (
    act_command,
    example_layout,
    expect_booking,
    expect_refused,
    make_booking,
    make_event_state,
    place_command,
    seat_grid,
    seat_line,
    seated_layout,
)
from tests.support.harness import IS_LONG

NO_ORPHANS = Policy(avoid_orphans=True)


def best_seats(quantity: int, *, adjacent: bool = True) -> BestSeats:
    return BestSeats("stalls", quantity, adjacent=adjacent)


def hold_best(layout: Layout, quantity: int, taken: Iterable[str] = (), *, adjacent: bool = True) -> list[str]:
    """Hold the best available seats and return their labels."""
    others = [make_booking("other", Status.HELD, *(seat_line(label, layout) for label in taken))]
    placed = expect_booking(
        make_event_state(layout, others), place_command("it", best_available=best_seats(quantity, adjacent=adjacent))
    )
    return [layout.seats[line.seat].label for line in placed.lines if line.seat is not None]


def block_seats(layout: Layout, *labels: str) -> Layout:
    seats = [structs.replace(seat, blocked=seat.label in labels) for seat in layout.seats]
    return seated_layout(seats, policy=layout.policy)


@pytest.mark.parametrize(
    ("quantity", "seats"),
    [(1, ["A-3"]), (2, ["A-2", "A-3"]), (3, ["A-2", "A-3", "A-4"]), (5, ["A-1", "A-2", "A-3", "A-4", "A-5"])],
)
def test_the_best_seats_are_in_the_middle_of_the_front_row(quantity: int, seats: list[str]) -> None:
    assert hold_best(seated_layout(seat_grid("AB", 5)), quantity) == seats


def test_adjacent_seats_further_back_beat_scattered_seats_in_front() -> None:
    assert hold_best(seated_layout(seat_grid("AB", 5)), 3, taken=["A-3"]) == ["B-2", "B-3", "B-4"]


def test_scattered_seats_are_the_nearest_free_ones() -> None:
    layout = seated_layout(seat_grid("AB", 5))
    assert hold_best(layout, 3, taken=["A-3"], adjacent=False) == ["A-2", "A-4", "B-3"]


def test_each_buyer_of_a_batch_gets_the_best_of_the_remaining_seats() -> None:
    state = make_event_state(seated_layout(seat_grid("AB", 4)))
    decide(state, [place_command(f"{n}", best_available=best_seats(2)) for n in range(4)])
    chosen = [tuple(line.seat for line in placed.lines) for placed in state.bookings.values()]
    assert chosen == [(1, 2), (5, 6)]
    assert expect_refused(state, place_command("late", best_available=best_seats(2))).refusal is Refusal.SOLD_OUT
    assert [
        line.seat for line in expect_booking(state, place_command("alone", best_available=best_seats(1))).lines
    ] == [0]


def test_seats_cancelled_in_the_same_batch_are_available_again() -> None:
    state = make_event_state(seated_layout(seat_grid("AB", 5)))
    decide(
        state,
        [
            place_command("first", best_available=best_seats(3)),
            act_command("first", Verb.CANCEL),
            place_command("second", best_available=best_seats(3)),
        ],
    )
    first, second = state.bookings.values()
    assert first.lines == second.lines


def test_distances_in_a_curved_row_follow_the_coordinates_of_its_seats() -> None:
    middle_is_far = [0.0, 1.0, 9.0, 1.0, 0.0]
    seats = [
        structs.replace(seat, x=float(at), y=middle_is_far[at])
        for at, seat in enumerate(seated_layout(seat_grid("A", 5)).seats)
    ]
    assert hold_best(seated_layout(seats), 1) == ["A-2"]
    assert hold_best(seated_layout(seats), 2) == ["A-1", "A-2"]


def test_shorter_rows_are_centred_before_the_front_is_measured() -> None:
    seats = [*seat_grid("A", 2), *seat_grid("B", 6, first=2)]
    assert hold_best(seated_layout(seats), 1, taken=["A-1", "A-2"]) == ["B-3"]


def test_seats_across_an_aisle_are_not_adjacent() -> None:
    seats = [structs.replace(seat, number_in_row=seat.number + 1 + (seat.number > 1)) for seat in seat_grid("A", 4)]
    assert hold_best(seated_layout(seats), 2) == ["A-1", "A-2"]
    refused = expect_refused(make_event_state(seated_layout(seats)), place_command("it", best_available=best_seats(3)))
    assert (refused.refusal, refused.conflicts) == (Refusal.SOLD_OUT, ("stalls",))


def test_unnumbered_seats_and_seats_of_two_rows_are_not_adjacent() -> None:
    loose = [structs.replace(seat, number_in_row=None) for seat in seat_grid("A", 4)]
    assert (
        expect_refused(
            make_event_state(seated_layout(loose)), place_command("it", best_available=best_seats(2))
        ).refusal
        is Refusal.SOLD_OUT
    )
    assert hold_best(seated_layout(loose), 2, adjacent=False) == ["A-2", "A-3"]
    assert (
        expect_refused(
            make_event_state(seated_layout(seat_grid("AB", 2))), place_command("it", best_available=best_seats(3))
        ).refusal
        is Refusal.SOLD_OUT
    )


def test_blocked_seats_are_never_sold() -> None:
    layout = block_seats(seated_layout(seat_grid("A", 5)), "A-3")
    assert hold_best(layout, 1) == ["A-2"]
    assert hold_best(layout, 2) == ["A-1", "A-2"]
    assert hold_best(layout, 4, adjacent=False) == ["A-1", "A-2", "A-4", "A-5"]
    assert (
        expect_refused(make_event_state(layout), place_command("it", best_available=best_seats(3))).refusal
        is Refusal.SOLD_OUT
    )


@pytest.mark.parametrize("adjacent", [True, False])
def test_a_pool_without_seats_left_is_sold_out(adjacent: bool) -> None:
    layout = seated_layout(seat_grid("A", 3))
    others = [make_booking("other", Status.CONFIRMED, *(seat_line(f"A-{n}", layout) for n in (1, 2, 3)))]
    assert (
        expect_refused(
            make_event_state(layout, others), place_command("it", best_available=best_seats(1, adjacent=adjacent))
        ).refusal
        is Refusal.SOLD_OUT
    )
    assert (
        expect_refused(
            make_event_state(layout), place_command("it", best_available=best_seats(4, adjacent=adjacent))
        ).refusal
        is Refusal.SOLD_OUT
    )


def test_the_best_seats_cost_the_price_of_their_tariff() -> None:
    placed = expect_booking(make_event_state(), place_command("it", best_available=best_seats(2)))
    assert (placed.subtotal, placed.tax, placed.total) == (6000, 1140, 7140)


def test_a_row_across_two_pools_counts_as_two_rows() -> None:
    layout = two_pool_layout(
        [structs.replace(seat, pool=int(seat.number > 2)) for seat in seat_grid("A", 6)], NO_ORPHANS
    )
    placed = expect_booking(make_event_state(layout), place_command("it", best_available=BestSeats("circle", 2)))
    assert [line.seat for line in placed.lines] == [3, 4]
    assert (
        expect_refused(make_event_state(layout), place_command("it", best_available=BestSeats("circle", 4))).refusal
        is Refusal.SOLD_OUT
    )
    assert expect_booking(make_event_state(layout), place_command("it", SeatItem("A-2"), SeatItem("A-4")))


def two_pool_layout(seats: list[Seat], policy: Policy | None = None) -> Layout:
    last = max(seat.number for seat in seats if seat.pool == 0)
    stalls = Pool(0, "stalls", "Stalls", (Tariff(0, "full", "Full", 3000),), (0, last))
    circle = Pool(1, "circle", "Circle", (Tariff(0, "full", "Full", 2000),), (last + 1, len(seats) - 1))
    return example_layout(pools=(stalls, circle), seats=tuple(seats), policy=policy or Policy())


def test_a_hold_that_leaves_an_orphan_is_refused_and_names_the_seat() -> None:
    layout = seated_layout(seat_grid("A", 6), policy=NO_ORPHANS)
    others = [make_booking("other", Status.HELD, seat_line("A-1", layout))]
    refused = expect_refused(make_event_state(layout, others), place_command("it", SeatItem("A-3")))
    assert (refused.refusal, refused.conflicts) == (Refusal.ORPHAN_SEAT, ("A-2",))
    assert expect_booking(make_event_state(layout, others), place_command("it", SeatItem("A-2")))
    assert expect_booking(make_event_state(layout, others), place_command("it", SeatItem("A-2"), SeatItem("A-3")))


def test_without_the_policy_a_hold_may_leave_orphans() -> None:
    layout = seated_layout(seat_grid("A", 6))
    assert expect_booking(make_event_state(layout), place_command("it", SeatItem("A-1"), SeatItem("A-3")))


def test_a_hold_may_not_leave_an_orphan_between_its_own_seats() -> None:
    layout = seated_layout(seat_grid("A", 6), policy=NO_ORPHANS)
    refused = expect_refused(make_event_state(layout), place_command("it", SeatItem("A-2"), SeatItem("A-4")))
    assert (refused.refusal, refused.conflicts) == (Refusal.ORPHAN_SEAT, ("A-3",))


def test_a_blocked_seat_counts_as_taken_when_orphans_are_counted() -> None:
    layout = block_seats(seated_layout(seat_grid("A", 6), policy=NO_ORPHANS), "A-1")
    assert expect_refused(make_event_state(layout), place_command("it", SeatItem("A-3"))).conflicts == ("A-2",)


def test_a_single_free_seat_at_the_end_of_a_row_is_not_an_orphan() -> None:
    layout = seated_layout(seat_grid("A", 6), policy=NO_ORPHANS)
    assert expect_booking(make_event_state(layout), place_command("it", SeatItem("A-2"), SeatItem("A-3")))


def test_a_hold_may_leave_an_orphan_if_every_choice_would() -> None:
    layout = seated_layout(seat_grid("A", 5), policy=NO_ORPHANS)
    others = [make_booking("other", Status.HELD, seat_line("A-1", layout), seat_line("A-5", layout))]
    assert expect_booking(make_event_state(layout, others), place_command("it", SeatItem("A-2"), SeatItem("A-3")))
    assert expect_refused(make_event_state(layout, others), place_command("it", SeatItem("A-3"))).conflicts == (
        "A-2",
        "A-4",
    )


def test_best_available_avoids_orphans_if_the_policy_does() -> None:
    assert hold_best(seated_layout(seat_grid("A", 7)), 1, taken=["A-2"]) == ["A-4"]
    assert hold_best(seated_layout(seat_grid("A", 7), policy=NO_ORPHANS), 1, taken=["A-2"]) == ["A-3"]


def test_best_available_only_picks_seats_that_a_buyer_may_choose() -> None:
    layout = seated_layout(seat_grid("A", 7), policy=NO_ORPHANS)
    (label,) = hold_best(layout, 1, taken=["A-2"], adjacent=False)
    others = [make_booking("other", Status.HELD, seat_line("A-2", layout))]
    assert expect_booking(make_event_state(layout, others), place_command("it", SeatItem(label)))


class Hall(Struct, frozen=True):
    """A small hall next to another pool, with some seats taken or blocked."""

    layout: Layout
    free: frozenset[int]
    distances: dict[int, float]
    # For each seat, the seats before and after it in its row.
    neighbours: dict[int, tuple[int | None, int | None]]

    def chooser(self, free: Collection[int]) -> SeatChooser:
        taken = {seat.number for seat in self.layout.seats if seat.number not in free}
        return SeatChooser(self.layout, self.layout.pools[1], taken)

    def with_free(self, free: Iterable[int]) -> "Hall":
        return structs.replace(self, free=frozenset(free))


@st.composite
def halls(draw: st.DrawFn, *policies: Policy) -> Hall:
    seats = draw(st.sampled_from([_rows, _scattered_rows]))(draw)
    first = seats[0]
    neighbour = structs.replace(
        first, number=0, pool=0, label="X", number_in_row=(first.number_in_row or 0) - 1, blocked=False
    )
    layout = two_pool_layout([neighbour, *seats], draw(st.sampled_from(policies or (NO_ORPHANS, NO_ORPHANS, Policy()))))
    taken = draw(st.lists(st.sampled_from([False, False, True]), min_size=len(seats), max_size=len(seats)))
    free = frozenset(seat.number for seat, is_taken in zip(seats, taken, strict=True) if not (is_taken or seat.blocked))
    return Hall(layout, free, _distances(seats), _neighbours(seats))


def _rows(draw: st.DrawFn) -> list[Seat]:
    """Up to three rows, some with an aisle or a blocked seat."""
    seats: list[Seat] = []
    for row in "ABC"[: draw(st.integers(1, 3))]:
        number_in_row = draw(st.integers(-2, 2))
        for step in draw(
            st.lists(st.sampled_from([1, 1, 1, 1, 2]), min_size=draw(st.sampled_from([1, 6])), max_size=9)
        ):
            off_sale = step == 1 and draw(st.integers(0, 9)) == 9
            label = f"{row}{number_in_row}"
            seats.append(Seat(1 + len(seats), label, 1, row, number_in_row, None, None, off_sale))
            number_in_row += step
    return seats


def _scattered_rows(draw: st.DrawFn) -> list[Seat]:
    """The same seats at any coordinates."""
    positions = st.tuples(st.integers(0, 6), st.integers(0, 4))
    seats = _rows(draw)
    placed = draw(st.lists(positions, min_size=len(seats), max_size=len(seats)))
    return [structs.replace(seat, x=x, y=y) for seat, (x, y) in zip(seats, placed, strict=True)]


def _distances(seats: list[Seat]) -> dict[int, float]:
    rows = sorted({seat.row for seat in seats})
    positions: dict[int, complex] = {}
    for seat in seats:
        row = sorted(other.number for other in seats if other.row == seat.row)
        centred = complex(row.index(seat.number) - (len(row) - 1) / 2, rows.index(seat.row))
        positions[seat.number] = centred if seat.x is None or seat.y is None else complex(seat.x, seat.y)
    across = [position.real for position in positions.values()]
    best_position = complex((min(across) + max(across)) / 2, min(position.imag for position in positions.values()))
    return {number: abs(position - best_position) for number, position in positions.items()}


def _neighbours(seats: list[Seat]) -> dict[int, tuple[int | None, int | None]]:
    at = {(seat.row, seat.number_in_row): seat.number for seat in seats}
    in_row = {seat.number: (seat.row, seat.number_in_row or 0) for seat in seats}
    return {number: (at.get((row, n - 1)), at.get((row, n + 1))) for number, (row, n) in in_row.items()}


def orphans_left(hall: Hall, chosen: frozenset[int]) -> list[int]:
    """The seats that a choice isolates, in gaps where another choice of as many seats would isolate none."""
    found: set[int] = set()
    for gap in {gap_of(hall, seat) for seat in chosen}:
        others = [gap - frozenset(other) for other in combinations(gap, len(gap & chosen))]
        if any(not any(is_isolated(hall, seat, left) for seat in left) for left in others):
            left = gap - chosen
            found |= {seat for seat in left if is_isolated(hall, seat, left) and None not in hall.neighbours[seat]}
    return sorted(found)


def is_isolated(hall: Hall, seat: int, free: frozenset[int]) -> bool:
    return not any(neighbour in free for neighbour in hall.neighbours[seat])


def gap_of(hall: Hall, seat: int) -> frozenset[int]:
    """The seat and every free seat next to it, and next to those, and so on."""
    gap = {seat}
    while more := {n for s in gap for n in hall.neighbours[s] if n is not None and n in hall.free} - gap:
        gap |= more
    return frozenset(gap)


def adjacent_choices(hall: Hall, quantity: int) -> list[frozenset[int]]:
    """Every set of this many free seats that are neighbours in a row."""
    chains = [[seat] for seat in hall.free]
    for _ in range(quantity - 1):
        chains = [
            [*chain, n] for chain in chains if (n := hall.neighbours[chain[-1]][1]) is not None and n in hall.free
        ]
    return [frozenset(chain) for chain in chains]


def rank(hall: Hall, chosen: frozenset[int]) -> tuple[bool, float]:
    leaves_orphans = hall.layout.policy.avoid_orphans and bool(orphans_left(hall, chosen))
    return leaves_orphans, round(sum(hall.distances[seat] for seat in chosen), 6)


def check_best(hall: Hall, quantity: int, chosen: list[int] | None) -> None:
    possible = adjacent_choices(hall, quantity)
    if chosen is None:
        assert not possible
    else:
        assert frozenset(chosen) in possible
        assert rank(hall, frozenset(chosen)) == min(rank(hall, other) for other in possible)


@settings(max_examples=300 if IS_LONG else 100)
@given(hall=halls(), quantity=st.integers(1, 4))
def test_no_other_adjacent_seats_are_better_than_the_chosen_ones(hall: Hall, quantity: int) -> None:
    check_best(hall, quantity, hall.chooser(hall.free).choose_adjacent(quantity))


@given(hall=halls(Policy()), quantity=st.integers(1, 5))
def test_no_other_scattered_seats_are_nearer_than_the_chosen_ones(hall: Hall, quantity: int) -> None:
    chosen = hall.chooser(hall.free).choose_scattered(quantity)
    if chosen is None:
        assert len(hall.free) < quantity
    else:
        assert set(chosen) <= hall.free
        nearest = sorted(round(hall.distances[seat], 6) for seat in hall.free)[:quantity]
        assert sorted(round(hall.distances[seat], 6) for seat in chosen) == nearest


@given(
    hall=halls(),
    steps=st.lists(st.tuples(st.integers(1, 4), st.none() | st.integers(0, 20)), min_size=2, max_size=10),
)
def test_the_best_seats_stay_best_while_others_book_and_cancel(hall: Hall, steps: list[tuple[int, int | None]]) -> None:
    free = set(hall.free)
    on_sale = sorted(number for number in hall.neighbours if not hall.layout.seats[number].blocked)
    chooser = hall.chooser(free)
    for quantity, other in steps:
        chosen = chooser.choose_adjacent(quantity)
        check_best(hall.with_free(free), quantity, chosen)
        changed = on_sale[other % len(on_sale) :][:1] if other is not None and on_sale else chosen or []
        for seat in changed:
            free ^= {seat}
            chooser.mark(seat, free=seat in free)


@settings(max_examples=300 if IS_LONG else 100)
@given(hall=halls(), picks=st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_orphans_are_isolated_seats_that_another_choice_would_avoid(hall: Hall, picks: list[int]) -> None:
    free = sorted(hall.free)
    chosen = frozenset(free[pick % len(free)] for pick in picks if free)
    assert find_orphans(hall.layout, chosen, hall.free.__contains__) == orphans_left(hall, chosen)
