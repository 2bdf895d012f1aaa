"""Best-available seats are together, in front and central, and leave no single free seat behind if they can avoid
it."""

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

AVOIDING = Policy(avoid_orphans=True)


def best(quantity: int, *, adjacent: bool = True) -> BestSeats:
    return BestSeats("stalls", quantity, adjacent=adjacent)


def given_to(layout: Layout, quantity: int, taken: Iterable[str] = (), *, adjacent: bool = True) -> list[str]:
    """The seats of a buyer who asks for the best."""
    others = [make_booking("other", Status.HELD, *(seat_line(label, layout) for label in taken))]
    placed = expect_booking(
        make_event_state(layout, others), place_command("it", best_available=best(quantity, adjacent=adjacent))
    )
    return [layout.seats[line.seat].label for line in placed.lines if line.seat is not None]


def blocked(layout: Layout, *labels: str) -> Layout:
    seats = [structs.replace(seat, blocked=seat.label in labels) for seat in layout.seats]
    return seated_layout(seats, policy=layout.policy)


@pytest.mark.parametrize(
    ("quantity", "seats"),
    [(1, ["A-3"]), (2, ["A-2", "A-3"]), (3, ["A-2", "A-3", "A-4"]), (5, ["A-1", "A-2", "A-3", "A-4", "A-5"])],
)
def test_the_best_seats_are_in_the_middle_of_the_front_row(quantity: int, seats: list[str]) -> None:
    assert given_to(seated_layout(seat_grid("AB", 5)), quantity) == seats


def test_seats_together_further_back_are_better_than_seats_apart_in_front() -> None:
    assert given_to(seated_layout(seat_grid("AB", 5)), 3, taken=["A-3"]) == ["B-2", "B-3", "B-4"]


def test_seats_apart_are_the_nearest_ones_wherever_they_are() -> None:
    layout = seated_layout(seat_grid("AB", 5))
    assert given_to(layout, 3, taken=["A-3"], adjacent=False) == ["A-2", "A-4", "B-3"]


def test_every_buyer_of_a_batch_gets_the_best_that_the_ones_before_have_left() -> None:
    state = make_event_state(seated_layout(seat_grid("AB", 4)))
    decide(state, [place_command(f"{n}", best_available=best(2)) for n in range(4)])
    chosen = [tuple(line.seat for line in placed.lines) for placed in state.bookings.values()]
    assert chosen == [(1, 2), (5, 6)]
    assert expect_refused(state, place_command("late", best_available=best(2))).refusal is Refusal.SOLD_OUT
    assert [line.seat for line in expect_booking(state, place_command("alone", best_available=best(1))).lines] == [0]


def test_seats_cancelled_in_the_same_batch_are_available_again() -> None:
    state = make_event_state(seated_layout(seat_grid("AB", 5)))
    decide(
        state,
        [
            place_command("first", best_available=best(3)),
            act_command("first", Verb.CANCEL),
            place_command("second", best_available=best(3)),
        ],
    )
    first, second = state.bookings.values()
    assert first.lines == second.lines


def test_a_row_that_bends_is_measured_by_where_its_seats_stand() -> None:
    middle_is_far = [0.0, 1.0, 9.0, 1.0, 0.0]
    seats = [
        structs.replace(seat, x=float(at), y=middle_is_far[at])
        for at, seat in enumerate(seated_layout(seat_grid("A", 5)).seats)
    ]
    assert given_to(seated_layout(seats), 1) == ["A-2"]
    assert given_to(seated_layout(seats), 2) == ["A-1", "A-2"]


def test_shorter_rows_are_centred_before_the_front_is_measured() -> None:
    seats = [*seat_grid("A", 2), *seat_grid("B", 6, first=2)]
    assert given_to(seated_layout(seats), 1, taken=["A-1", "A-2"]) == ["B-3"]


def test_an_aisle_keeps_seats_apart() -> None:
    seats = [structs.replace(seat, number_in_row=seat.number + 1 + (seat.number > 1)) for seat in seat_grid("A", 4)]
    assert given_to(seated_layout(seats), 2) == ["A-1", "A-2"]
    said = expect_refused(make_event_state(seated_layout(seats)), place_command("it", best_available=best(3)))
    assert (said.refusal, said.conflicts) == (Refusal.SOLD_OUT, ("stalls",))


def test_rows_and_unnumbered_seats_have_no_neighbours() -> None:
    loose = [structs.replace(seat, number_in_row=None) for seat in seat_grid("A", 4)]
    assert (
        expect_refused(make_event_state(seated_layout(loose)), place_command("it", best_available=best(2))).refusal
        is Refusal.SOLD_OUT
    )
    assert given_to(seated_layout(loose), 2, adjacent=False) == ["A-2", "A-3"]
    assert (
        expect_refused(
            make_event_state(seated_layout(seat_grid("AB", 2))), place_command("it", best_available=best(3))
        ).refusal
        is Refusal.SOLD_OUT
    )


def test_blocked_seats_are_never_sold() -> None:
    layout = blocked(seated_layout(seat_grid("A", 5)), "A-3")
    assert given_to(layout, 1) == ["A-2"]
    assert given_to(layout, 2) == ["A-1", "A-2"]
    assert given_to(layout, 4, adjacent=False) == ["A-1", "A-2", "A-4", "A-5"]
    assert (
        expect_refused(make_event_state(layout), place_command("it", best_available=best(3))).refusal
        is Refusal.SOLD_OUT
    )


@pytest.mark.parametrize("adjacent", [True, False])
def test_a_pool_without_seats_left_is_sold_out(adjacent: bool) -> None:
    layout = seated_layout(seat_grid("A", 3))
    others = [make_booking("other", Status.CONFIRMED, *(seat_line(f"A-{n}", layout) for n in (1, 2, 3)))]
    assert (
        expect_refused(
            make_event_state(layout, others), place_command("it", best_available=best(1, adjacent=adjacent))
        ).refusal
        is Refusal.SOLD_OUT
    )
    assert (
        expect_refused(make_event_state(layout), place_command("it", best_available=best(4, adjacent=adjacent))).refusal
        is Refusal.SOLD_OUT
    )


def test_the_best_seats_cost_their_tariff() -> None:
    placed = expect_booking(make_event_state(), place_command("it", best_available=best(2)))
    assert (placed.subtotal, placed.tax, placed.total) == (6000, 1140, 7140)


def test_a_row_that_runs_through_two_pools_is_two_rows() -> None:
    layout = two_pools([structs.replace(seat, pool=int(seat.number > 2)) for seat in seat_grid("A", 6)], AVOIDING)
    placed = expect_booking(make_event_state(layout), place_command("it", best_available=BestSeats("circle", 2)))
    assert [line.seat for line in placed.lines] == [3, 4]
    assert (
        expect_refused(make_event_state(layout), place_command("it", best_available=BestSeats("circle", 4))).refusal
        is Refusal.SOLD_OUT
    )
    assert expect_booking(make_event_state(layout), place_command("it", SeatItem("A-2"), SeatItem("A-4")))


def two_pools(seats: list[Seat], policy: Policy | None = None) -> Layout:
    last = max(seat.number for seat in seats if seat.pool == 0)
    stalls = Pool(0, "stalls", "Stalls", (Tariff(0, "full", "Full", 3000),), (0, last))
    circle = Pool(1, "circle", "Circle", (Tariff(0, "full", "Full", 2000),), (last + 1, len(seats) - 1))
    return example_layout(pools=(stalls, circle), seats=tuple(seats), policy=policy or Policy())


def test_a_single_seat_left_between_taken_ones_is_refused_and_named() -> None:
    layout = seated_layout(seat_grid("A", 6), policy=AVOIDING)
    others = [make_booking("other", Status.HELD, seat_line("A-1", layout))]
    said = expect_refused(make_event_state(layout, others), place_command("it", SeatItem("A-3")))
    assert (said.refusal, said.conflicts) == (Refusal.ORPHAN_SEAT, ("A-2",))
    assert expect_booking(make_event_state(layout, others), place_command("it", SeatItem("A-2")))
    assert expect_booking(make_event_state(layout, others), place_command("it", SeatItem("A-2"), SeatItem("A-3")))


def test_without_the_policy_any_seats_may_be_chosen() -> None:
    layout = seated_layout(seat_grid("A", 6))
    assert expect_booking(make_event_state(layout), place_command("it", SeatItem("A-1"), SeatItem("A-3")))


def test_a_choice_may_not_leave_a_hole_in_itself() -> None:
    layout = seated_layout(seat_grid("A", 6), policy=AVOIDING)
    said = expect_refused(make_event_state(layout), place_command("it", SeatItem("A-2"), SeatItem("A-4")))
    assert (said.refusal, said.conflicts) == (Refusal.ORPHAN_SEAT, ("A-3",))


def test_a_blocked_seat_closes_a_gap_as_a_taken_one_does() -> None:
    layout = blocked(seated_layout(seat_grid("A", 6), policy=AVOIDING), "A-1")
    assert expect_refused(make_event_state(layout), place_command("it", SeatItem("A-3"))).conflicts == ("A-2",)


def test_a_seat_at_the_end_of_a_row_is_not_between_taken_ones() -> None:
    layout = seated_layout(seat_grid("A", 6), policy=AVOIDING)
    assert expect_booking(make_event_state(layout), place_command("it", SeatItem("A-2"), SeatItem("A-3")))


def test_where_one_seat_of_a_gap_is_left_over_anyway_it_may_be_left() -> None:
    layout = seated_layout(seat_grid("A", 5), policy=AVOIDING)
    others = [make_booking("other", Status.HELD, seat_line("A-1", layout), seat_line("A-5", layout))]
    assert expect_booking(make_event_state(layout, others), place_command("it", SeatItem("A-2"), SeatItem("A-3")))
    assert expect_refused(make_event_state(layout, others), place_command("it", SeatItem("A-3"))).conflicts == (
        "A-2",
        "A-4",
    )


def test_the_best_seats_leave_no_orphan_where_others_would_not() -> None:
    assert given_to(seated_layout(seat_grid("A", 7)), 1, taken=["A-2"]) == ["A-4"]
    assert given_to(seated_layout(seat_grid("A", 7), policy=AVOIDING), 1, taken=["A-2"]) == ["A-3"]


def test_best_available_never_picks_seats_that_would_be_refused_by_name() -> None:
    layout = seated_layout(seat_grid("A", 7), policy=AVOIDING)
    (label,) = given_to(layout, 1, taken=["A-2"], adjacent=False)
    others = [make_booking("other", Status.HELD, seat_line("A-2", layout))]
    assert expect_booking(make_event_state(layout, others), place_command("it", SeatItem(label)))


class Hall(Struct, frozen=True):
    """A small hall behind another pool, some of it taken or blocked."""

    layout: Layout
    free: frozenset[int]
    distances: dict[int, float]
    # For each seat its neighbours, lower and higher: those in the same row with the places before and after its own.
    beside: dict[int, tuple[int | None, int | None]]

    def chooser(self, free: Collection[int]) -> SeatChooser:
        return SeatChooser(self.layout, self.layout.pools[1], free.__contains__)

    def when(self, free: Iterable[int]) -> "Hall":
        return structs.replace(self, free=frozenset(free))


@st.composite
def halls(draw: st.DrawFn, *policies: Policy) -> Hall:
    seats = draw(st.sampled_from([_rows, _spread]))(draw)
    foremost = seats[0]
    beside_it = structs.replace(
        foremost, number=0, pool=0, label="X", number_in_row=(foremost.number_in_row or 0) - 1, blocked=False
    )
    layout = two_pools([beside_it, *seats], draw(st.sampled_from(policies or (AVOIDING, AVOIDING, Policy()))))
    gone = draw(st.lists(st.sampled_from([False, False, True]), min_size=len(seats), max_size=len(seats)))
    free = frozenset(seat.number for seat, is_gone in zip(seats, gone, strict=True) if not (is_gone or seat.blocked))
    return Hall(layout, free, _distances(seats), _neighbours(seats))


def _rows(draw: st.DrawFn) -> list[Seat]:
    """Up to three rows, with an aisle or a seat that is off sale here and there."""
    seats: list[Seat] = []
    for row in "ABC"[: draw(st.integers(1, 3))]:
        place_in_row = draw(st.integers(-2, 2))
        for step in draw(
            st.lists(st.sampled_from([1, 1, 1, 1, 2]), min_size=draw(st.sampled_from([1, 6])), max_size=9)
        ):
            off_sale = step == 1 and draw(st.integers(0, 9)) == 9
            label = f"{row}{place_in_row}"
            seats.append(Seat(1 + len(seats), label, 1, row, place_in_row, None, None, off_sale))
            place_in_row += step
    return seats


def _spread(draw: st.DrawFn) -> list[Seat]:
    """The same, but the seats stand anywhere."""
    spots = st.tuples(st.integers(0, 6), st.integers(0, 4))
    seats = _rows(draw)
    placed = draw(st.lists(spots, min_size=len(seats), max_size=len(seats)))
    return [structs.replace(seat, x=x, y=y) for seat, (x, y) in zip(seats, placed, strict=True)]


def _distances(seats: list[Seat]) -> dict[int, float]:
    rows = sorted({seat.row for seat in seats})
    spots: dict[int, complex] = {}
    for seat in seats:
        row = sorted(other.number for other in seats if other.row == seat.row)
        centred = complex(row.index(seat.number) - (len(row) - 1) / 2, rows.index(seat.row))
        spots[seat.number] = centred if seat.x is None or seat.y is None else complex(seat.x, seat.y)
    across = [spot.real for spot in spots.values()]
    best_spot = complex((min(across) + max(across)) / 2, min(spot.imag for spot in spots.values()))
    return {number: abs(spot - best_spot) for number, spot in spots.items()}


def _neighbours(seats: list[Seat]) -> dict[int, tuple[int | None, int | None]]:
    at = {(seat.row, seat.number_in_row): seat.number for seat in seats}
    places = {seat.number: (seat.row, seat.number_in_row or 0) for seat in seats}
    return {number: (at.get((row, n - 1)), at.get((row, n + 1))) for number, (row, n) in places.items()}


def spoilt(hall: Hall, chosen: frozenset[int]) -> list[int]:
    """The seats that a choice shuts in, in gaps where another choice of as many seats would leave nobody alone."""
    found: set[int] = set()
    for gap in {gap_of(hall, seat) for seat in chosen}:
        others = [gap - frozenset(other) for other in combinations(gap, len(gap & chosen))]
        if any(not any(is_alone(hall, seat, left) for seat in left) for left in others):
            left = gap - chosen
            found |= {seat for seat in left if is_alone(hall, seat, left) and None not in hall.beside[seat]}
    return sorted(found)


def is_alone(hall: Hall, seat: int, free: frozenset[int]) -> bool:
    return not any(neighbour in free for neighbour in hall.beside[seat])


def gap_of(hall: Hall, seat: int) -> frozenset[int]:
    """The seat and all the free ones that can be reached from it over free neighbours."""
    gap = {seat}
    while more := {n for s in gap for n in hall.beside[s] if n is not None and n in hall.free} - gap:
        gap |= more
    return frozenset(gap)


def together(hall: Hall, quantity: int) -> list[frozenset[int]]:
    """Every set of that many free seats that are neighbours in a row."""
    chains = [[seat] for seat in hall.free]
    for _ in range(quantity - 1):
        chains = [[*chain, n] for chain in chains if (n := hall.beside[chain[-1]][1]) is not None and n in hall.free]
    return [frozenset(chain) for chain in chains]


def worth(hall: Hall, chosen: frozenset[int]) -> tuple[bool, float]:
    spoils = hall.layout.policy.avoid_orphans and bool(spoilt(hall, chosen))
    return spoils, round(sum(hall.distances[seat] for seat in chosen), 6)


def check_best(hall: Hall, quantity: int, chosen: list[int] | None) -> None:
    possible = together(hall, quantity)
    if chosen is None:
        assert not possible
    else:
        assert frozenset(chosen) in possible
        assert worth(hall, frozenset(chosen)) == min(worth(hall, other) for other in possible)


@settings(max_examples=300 if IS_LONG else 100)
@given(hall=halls(), quantity=st.integers(1, 4))
def test_no_other_seats_together_are_better_than_those_chosen(hall: Hall, quantity: int) -> None:
    check_best(hall, quantity, hall.chooser(hall.free).choose_adjacent(quantity))


@given(hall=halls(Policy()), quantity=st.integers(1, 5))
def test_no_other_seats_apart_are_nearer_than_those_chosen(hall: Hall, quantity: int) -> None:
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
    on_sale = sorted(number for number in hall.beside if not hall.layout.seats[number].blocked)
    chooser = hall.chooser(free)
    for quantity, other in steps:
        chosen = chooser.choose_adjacent(quantity)
        check_best(hall.when(free), quantity, chosen)
        changed = on_sale[other % len(on_sale) :][:1] if other is not None and on_sale else chosen or []
        for seat in changed:
            free ^= {seat}
            chooser.invalidate(seat)


@settings(max_examples=300 if IS_LONG else 100)
@given(hall=halls(), picks=st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_orphans_are_the_seats_shut_in_that_another_choice_would_spare(hall: Hall, picks: list[int]) -> None:
    free = sorted(hall.free)
    chosen = frozenset(free[pick % len(free)] for pick in picks if free)
    assert find_orphans(hall.layout, chosen, hall.free.__contains__) == spoilt(hall, chosen)
