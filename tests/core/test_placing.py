"""Placing a booking: its price, its deadline, and which refusal wins when several apply."""

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs

from holdfast.core.booking import Booking, Line
from holdfast.core.commands import Accepted, BestSeats, PoolItem, SeatItem
from holdfast.core.decide import decide
from holdfast.core.event_state import EventState, OversoldError, PoolCounter
from holdfast.core.journal import PoolState
from holdfast.core.policy import Policy
from holdfast.core.refusals import Refusal, Refused
from holdfast.core.states import TIMED, EventStatus, Status, Verb
from tests.support.builders import (
    OTHER_ORG,
    STALLS,
    STANDING,
    STANDING_CAPACITY,
    VERSION,
    act_command,
    example_layout,
    expect_accepted,
    expect_booking,
    expect_refusal,
    expect_refused,
    held_and_sold,
    is_unchanged,
    make_booking,
    make_event_state,
    make_id,
    place_command,
    seat_line,
    seconds_from_now,
    standing_line,
)

FAMILY = (SeatItem("A-3"), PoolItem("standing", 1, "full"), PoolItem("standing", 2, "child"))


def test_the_total_is_the_sum_of_the_items_plus_tax() -> None:
    placed = expect_booking(make_event_state(), place_command("it", *FAMILY))
    assert (placed.subtotal, placed.tax, placed.total) == (3000 + 1500 + 2 * 700, 1121, 7021)
    assert placed.currency == "EUR"
    assert [(line.quantity, line.unit_price) for line in placed.lines] == [(1, 3000), (1, 1500), (2, 700)]


@pytest.mark.parametrize(
    ("price", "tax_bps", "tax"),
    [
        (100, 1900, 19),
        (1, 4999, 0),
        (1, 5000, 1),
        (50, 100, 1),
        (49, 100, 0),
        (333, 750, 25),
        (100, 0, 0),
        (7, 10_000, 7),
    ],
)
def test_half_a_cent_of_tax_is_rounded_up(price: int, tax_bps: int, tax: int) -> None:
    placed = expect_booking(
        make_event_state(_layout_with_price(price, tax_bps)), place_command("it", PoolItem("standing", 1, "full"))
    )
    assert (placed.tax, placed.total) == (tax, price + tax)


@given(price=st.integers(0, 100_000_000_000), quantity=st.integers(1, 10), tax_bps=st.integers(0, 10_000))
def test_tax_is_rounded_once_over_the_whole_booking(price: int, quantity: int, tax_bps: int) -> None:
    placed = expect_booking(
        make_event_state(_layout_with_price(price, tax_bps)),
        place_command("it", PoolItem("standing", quantity, "full")),
    )
    assert placed.subtotal == price * quantity
    assert placed.tax == floor(Fraction(price * quantity * tax_bps, 10_000) + Fraction(1, 2))
    assert placed.total == placed.subtotal + placed.tax


def _layout_with_price(price: int, tax_bps: int) -> Any:
    stalls, standing = example_layout().pools
    full = structs.replace(standing.tariffs[0], price=price)
    pools = (stalls, structs.replace(standing, tariffs=(full, standing.tariffs[1])))
    return example_layout(pools=pools, tax_bps=tax_bps)


def test_a_booking_keeps_its_price_when_prices_change() -> None:
    agreed = expect_booking(make_event_state(), place_command("it", PoolItem("standing", 2, "full")))
    repriced = make_event_state(_layout_with_price(9999, 2500), [agreed])
    confirmed = expect_booking(repriced, act_command("it", Verb.CONFIRM))
    assert (confirmed.subtotal, confirmed.tax, confirmed.total, confirmed.lines) == (
        agreed.subtotal,
        agreed.tax,
        agreed.total,
        agreed.lines,
    )


def test_an_item_needs_no_tariff_if_its_pool_has_only_one() -> None:
    placed = expect_booking(make_event_state(), place_command("it", SeatItem("A-1"), SeatItem("A-2", "full")))
    assert [line.unit_price for line in placed.lines] == [3000, 3000]


def test_an_item_must_name_its_tariff_if_its_pool_has_several() -> None:
    refused = expect_refused(make_event_state(), place_command("it", PoolItem("standing", 1)))
    assert (refused.refusal, refused.conflicts) == (Refusal.UNKNOWN_TARIFF, ("standing",))
    assert "full, child" in refused.detail


def test_quantities_of_one_pool_and_tariff_become_one_line() -> None:
    items = (PoolItem("standing", 1, "full"), PoolItem("standing", 2, "child"), PoolItem("standing", 3, "full"))
    placed = expect_booking(make_event_state(), place_command("it", *items))
    assert placed.lines == (Line(STANDING, 0, None, 4, 1500), Line(STANDING, 1, None, 2, 700))
    assert placed.units == 6


def test_all_items_of_a_pool_count_together_against_its_capacity() -> None:
    half = STANDING_CAPACITY // 2
    items = (PoolItem("standing", half, "full"), PoolItem("standing", half + 1, "child"))
    refused = expect_refused(make_event_state(), place_command("it", *items))
    assert (refused.refusal, refused.conflicts) == (Refusal.SOLD_OUT, ("standing",))


def test_a_seat_named_twice_is_refused() -> None:
    state = make_event_state()
    assert expect_refusal(state, place_command("it", SeatItem("A-1"), SeatItem("A-1"))) is Refusal.INVALID_REQUEST
    assert is_unchanged(state)


def test_a_pool_with_seats_is_not_sold_by_quantity() -> None:
    assert expect_refusal(make_event_state(), place_command("it", PoolItem("stalls", 1))) is Refusal.INVALID_REQUEST


def test_best_available_is_refused_in_a_pool_without_seats() -> None:
    best = BestSeats("standing", 1, "full")
    assert expect_refusal(make_event_state(), place_command("it", best_available=best)) is Refusal.INVALID_REQUEST


def test_a_hold_takes_its_units_and_writes_one_journal_entry() -> None:
    state = make_event_state()
    placed = expect_booking(state, place_command("it", *FAMILY, cart_hash=b"cart", details='{"a": 1}'))
    assert placed.status is Status.HELD
    assert (placed.user, placed.cart_hash, placed.details) == ("user of it", b"cart", '{"a": 1}')
    assert (held_and_sold(state, STALLS), held_and_sold(state, STANDING)) == ((1, 0), (3, 0))
    assert state.taken == {2}
    (entry,) = state.entries
    assert (entry.number, entry.kind, entry.booking.id, entry.actor) == (VERSION + 1, "held", placed.id, "actor of it")
    assert entry.data.seats == {"A-3": "held"}
    assert entry.data.pools == {
        "stalls": PoolState(10, 1, 0, 9),
        "standing": PoolState(STANDING_CAPACITY, 3, 0, STANDING_CAPACITY - 3),
    }
    assert state.new_bookings == {placed.id}
    assert placed.version == state.version == VERSION + 1


@pytest.mark.parametrize(("hold", "maximum", "limit"), [(600, 1800, 1800), (600, 600, 600), (600, 60, 600)])
def test_a_hold_lasts_as_long_as_the_policy_says(hold: int, maximum: int, limit: int) -> None:
    layout = example_layout(policy=Policy(hold_seconds=hold, max_hold_seconds=maximum))
    placed = expect_booking(make_event_state(layout), place_command("it", *FAMILY))
    assert (placed.expires_at, placed.max_expires_at) == (seconds_from_now(hold), seconds_from_now(limit))


def test_a_policy_that_confirms_at_once_sells_without_a_deadline() -> None:
    state = make_event_state(example_layout(policy=Policy(confirm_at_once=True)))
    placed = expect_booking(state, place_command("it", *FAMILY))
    assert (placed.status, placed.expires_at, placed.max_expires_at) == (Status.CONFIRMED, None, None)
    assert (held_and_sold(state, STALLS), held_and_sold(state, STANDING)) == ((0, 1), (0, 3))
    (entry,) = state.entries
    assert (entry.kind, entry.data.seats) == ("confirmed", {"A-3": "sold"})


@pytest.mark.parametrize(
    "missing",
    [SeatItem("A-2"), SeatItem("Z-9"), PoolItem("standing", STANDING_CAPACITY + 1, "full"), PoolItem("balcony", 1)],
    ids=["a taken seat", "an unknown seat", "more than is left", "an unknown pool"],
)
def test_an_order_is_accepted_as_a_whole_or_refused(missing: SeatItem | PoolItem) -> None:
    state = make_event_state(bookings=[make_booking("other", Status.CONFIRMED, seat_line("A-2"))])
    assert isinstance(decide(state, [place_command("it", *FAMILY, missing)])[0], Refused)
    assert is_unchanged(state)
    assert (held_and_sold(state, STALLS), held_and_sold(state, STANDING)) == ((0, 1), (0, 0))


def test_a_refusal_names_every_conflict() -> None:
    others = [make_booking("other", Status.HELD, seat_line("A-2"), seat_line("B-1"))]
    refused = expect_refused(
        make_event_state(bookings=others), place_command("it", SeatItem("B-1"), SeatItem("A-1"), SeatItem("A-2"))
    )
    assert (refused.refusal, refused.conflicts) == (Refusal.SEAT_TAKEN, ("B-1", "A-2"))


def test_a_blocked_seat_is_not_sold() -> None:
    seats = tuple(structs.replace(seat, blocked=seat.label == "A-1") for seat in example_layout().seats)
    assert (
        expect_refusal(make_event_state(example_layout(seats=seats)), place_command("it", SeatItem("A-1")))
        is Refusal.SEAT_TAKEN
    )


def test_the_first_order_of_a_batch_gets_the_seat() -> None:
    state = make_event_state()
    first, second = decide(state, [place_command("first", SeatItem("A-1")), place_command("second", SeatItem("A-1"))])
    assert isinstance(first, Accepted)
    assert isinstance(second, Refused)
    assert second.refusal is Refusal.SEAT_TAKEN
    assert len(state.entries) == 1


def test_a_batch_sells_exactly_the_remaining_units() -> None:
    state = make_event_state()
    orders = [place_command(f"{n}", PoolItem("standing", 3, "full")) for n in range(6)]
    outcomes = decide(state, orders)
    assert [isinstance(outcome, Accepted) for outcome in outcomes] == [True, True, True, False, False, False]
    assert isinstance(decide(state, [place_command("last", PoolItem("standing", 1, "full"))])[0], Accepted)
    assert held_and_sold(state) == (STANDING_CAPACITY, 0)


LIVE = [Status.HELD, Status.PAYMENT_SUBMITTED, Status.CONFIRMED]


@pytest.mark.parametrize("status", Status)
def test_only_live_bookings_count_against_one_booking_per_user(status: Status) -> None:
    earlier = make_booking("earlier", status, standing_line(1), user="ann")
    state = make_event_state(example_layout(policy=Policy(one_booking_per_user=True)), [earlier])
    (outcome,) = decide(state, [place_command("it", SeatItem("A-1"), user="ann")])
    assert _refusal_of(outcome) is (Refusal.ALREADY_BOOKED if status in LIVE else None)


@pytest.mark.parametrize("status", Status)
def test_only_live_units_count_against_the_limit(status: Status) -> None:
    earlier = make_booking("earlier", status, standing_line(2), user="ann")
    state = make_event_state(example_layout(policy=Policy(max_units_per_user=4)), [earlier])
    (outcome,) = decide(state, [place_command("it", PoolItem("standing", 3, "full"), user="ann")])
    assert _refusal_of(outcome) is (Refusal.LIMIT_REACHED if status in LIVE else None)


def test_a_buyer_may_reach_the_limit_but_not_exceed_it() -> None:
    state = make_event_state(example_layout(policy=Policy(max_units_per_user=4)))
    orders = [place_command(f"{n}", PoolItem("standing", n, "full"), user="ann") for n in (3, 2, 1)]
    assert [_refusal_of(outcome) for outcome in decide(state, orders)] == [None, Refusal.LIMIT_REACHED, None]


def test_best_available_seats_count_against_the_limit() -> None:
    state = make_event_state(example_layout(policy=Policy(max_units_per_user=3)))
    best = BestSeats("stalls", 2)
    orders = [place_command(f"{n}", best_available=best, user="ann") for n in range(2)]
    assert [_refusal_of(outcome) for outcome in decide(state, orders)] == [None, Refusal.LIMIT_REACHED]


def test_the_bookings_of_one_buyer_do_not_limit_another() -> None:
    policy = Policy(one_booking_per_user=True, max_units_per_user=1)
    state = make_event_state(
        example_layout(policy=policy), [make_booking("earlier", Status.HELD, standing_line(1), user="ann")]
    )
    assert expect_booking(state, place_command("it", SeatItem("A-1"), user="bob")).user == "bob"


def test_a_buyer_who_cancels_may_book_again_in_the_same_batch() -> None:
    state = make_event_state(example_layout(policy=Policy(one_booking_per_user=True, max_units_per_user=1)))
    first, second = (
        place_command("first", SeatItem("A-1"), user="ann"),
        place_command("second", SeatItem("A-2"), user="ann"),
    )
    outcomes = decide(state, [first, second, act_command("first", Verb.CANCEL), second])
    assert [_refusal_of(outcome) for outcome in outcomes] == [None, Refusal.ALREADY_BOOKED, None, None]


def test_a_due_hold_does_not_count_against_its_buyer() -> None:
    due = make_booking("due", Status.HELD, standing_line(1), user="ann", expires_at=seconds_from_now(0))
    state = make_event_state(example_layout(policy=Policy(one_booking_per_user=True)), [due])
    assert expect_booking(state, place_command("it", SeatItem("A-1"), user="ann")).status is Status.HELD


def test_a_repeated_key_and_body_return_the_same_booking() -> None:
    state = make_event_state()
    first = expect_accepted(state, place_command("it", *FAMILY))
    repeated = expect_accepted(state, place_command("it", *FAMILY, booking=make_id("another id")))
    assert (first.replayed, repeated.replayed) == (False, True)
    assert repeated.booking == first.booking
    assert len(state.entries) == 1
    assert held_and_sold(state, STALLS) == (1, 0)


def test_a_key_repeated_in_one_batch_makes_one_booking() -> None:
    state = make_event_state()
    outcomes = decide(state, [place_command("it", *FAMILY, booking=make_id(f"id {n}")) for n in range(5)])
    assert [outcome.replayed for outcome in outcomes if isinstance(outcome, Accepted)] == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert {outcome.booking.id for outcome in outcomes if isinstance(outcome, Accepted)} == {make_id("id 0")}
    assert len(state.entries) == 1


def test_a_retried_batch_finds_its_own_booking_and_does_not_report_a_replay() -> None:
    command = place_command("it", *FAMILY)
    committed = expect_booking(make_event_state(), command)
    reopened = make_event_state(bookings=[committed])
    done = expect_accepted(reopened, command)
    assert (done.booking, done.replayed) == (committed, False)
    assert is_unchanged(reopened)


@pytest.mark.parametrize("status", Status)
def test_a_replay_returns_the_booking_in_its_current_status(status: Status) -> None:
    earlier = make_booking("it", status, standing_line(2))
    state = make_event_state(bookings=[earlier])
    done = expect_accepted(state, place_command("it", PoolItem("standing", 2, "full"), booking=make_id("another id")))
    assert (done.booking, done.replayed) == (earlier, True)
    assert is_unchanged(state)


@pytest.mark.parametrize("event", EventStatus)
def test_a_replay_succeeds_even_if_the_event_is_no_longer_on_sale(event: EventStatus) -> None:
    earlier = make_booking("it", Status.CONFIRMED, standing_line(2))
    assert (
        expect_booking(
            make_event_state(example_layout(status=event), [earlier]),
            place_command("it", booking=make_id("another id")),
        )
        == earlier
    )


def test_a_replay_after_a_transfer_reveals_the_booking_only_to_staff() -> None:
    command = place_command("it", SeatItem("A-1"), user="ana")
    placed = expect_booking(make_event_state(), command)
    transferred = structs.replace(placed, user="ben", generation=1, status=Status.CONFIRMED)
    for layout in (example_layout(), example_layout(status=EventStatus.COMPLETED)):
        state = make_event_state(layout, [transferred])
        again = structs.replace(command, booking=make_id("again"))
        refused = expect_refused(state, structs.replace(again, staff=False))
        assert refused.refusal is Refusal.ALREADY_TRANSFERRED
        assert not any(secret in f"{refused}" for secret in ("ben", "A-1", placed.id.hex()))
        assert is_unchanged(state), "the key places no second booking"
    outcome = expect_accepted(make_event_state(bookings=[transferred]), again)
    assert (outcome.booking, outcome.replayed) == (transferred, True)
    returned = structs.replace(transferred, user="ana", generation=2)
    assert expect_booking(make_event_state(bookings=[returned]), structs.replace(again, staff=False)) == returned


def test_a_replay_succeeds_even_if_the_pool_is_sold_out() -> None:
    everything = make_booking("it", Status.HELD, standing_line(STANDING_CAPACITY))
    policy = Policy(one_booking_per_user=True, max_units_per_user=1)
    state = make_event_state(example_layout(policy=policy), [everything])
    repeated = place_command("it", PoolItem("standing", STANDING_CAPACITY, "full"), booking=make_id("another id"))
    assert expect_booking(state, repeated) == everything


def test_the_same_key_with_another_body_is_refused() -> None:
    earlier = make_booking("it", Status.CANCELLED, standing_line(2))
    state = make_event_state(bookings=[earlier])
    other_body = place_command("it", PoolItem("standing", 1, "full"), fingerprint=make_id("something else"))
    assert expect_refusal(state, other_body) is Refusal.IDEMPOTENCY_KEY_REUSED
    assert is_unchanged(state)


def test_a_refused_order_is_decided_again_under_the_same_key() -> None:
    state = make_event_state(bookings=[make_booking("other", Status.HELD, seat_line("A-1"))])
    command = place_command("it", SeatItem("A-1"))
    outcomes = decide(state, [command, act_command("other", Verb.CANCEL), command])
    assert [_refusal_of(outcome) for outcome in outcomes] == [Refusal.SEAT_TAKEN, None, None]


class OrderScenario(Struct):
    """An order that would be accepted: seat A-3. Each flaw adds one reason to refuse it."""

    items: list[SeatItem | PoolItem]
    bookings: list[Booking]
    policy: dict[str, Any]
    layout: dict[str, Any]
    order: dict[str, Any]

    def refusal(self) -> Refusal | None:
        layout = example_layout(**self.layout, policy=Policy(**self.policy))
        state = make_event_state(layout, self.bookings)
        (outcome,) = decide(state, [place_command("it", *self.items, user="ann", **self.order)])
        assert is_unchanged(state) is isinstance(outcome, Refused)
        return _refusal_of(outcome)


def _refusal_of(outcome: Accepted | Refused) -> Refusal | None:
    return outcome.refusal if isinstance(outcome, Refused) else None


def _name_seat_twice(scenario: OrderScenario) -> None:
    scenario.items += [SeatItem("B-5"), SeatItem("B-5")]


def _name_event_of_another_org(scenario: OrderScenario) -> None:
    scenario.order["org"] = OTHER_ORG


def _order_before_the_sale(scenario: OrderScenario) -> None:
    scenario.layout["status"] = EventStatus.DRAFT


def _reuse_idempotency_key(scenario: OrderScenario) -> None:
    request = {"request_key": place_command("it").request_key, "fingerprint": b"of something else"}
    scenario.bookings.append(make_booking("request", Status.EXPIRED, standing_line(1), **request))


def _order_unknown_seat(scenario: OrderScenario) -> None:
    scenario.items.append(SeatItem("Z-9"))


def _order_unknown_pool(scenario: OrderScenario) -> None:
    scenario.items.append(PoolItem("balcony", 1))


def _order_unknown_tariff(scenario: OrderScenario) -> None:
    scenario.items.append(PoolItem("standing", 1, "senior"))


def _add_own_booking(scenario: OrderScenario) -> None:
    scenario.policy["one_booking_per_user"] = True
    scenario.bookings.append(make_booking("ann's", Status.CONFIRMED, seat_line("B-1"), user="ann"))


def _exceed_limit(scenario: OrderScenario) -> None:
    scenario.policy["max_units_per_user"] = 1
    scenario.items.append(SeatItem("A-4"))


def _order_taken_seat(scenario: OrderScenario) -> None:
    scenario.bookings.append(make_booking("taker", Status.HELD, seat_line("B-3")))
    scenario.items.append(SeatItem("B-3"))


def _order_more_than_is_left(scenario: OrderScenario) -> None:
    scenario.items.append(PoolItem("standing", STANDING_CAPACITY + 1, "child"))


def _leave_orphan(scenario: OrderScenario) -> None:
    scenario.policy["avoid_orphans"] = True
    scenario.bookings.append(make_booking("neighbour", Status.HELD, seat_line("A-1")))


FLAWS: dict[Refusal, Callable[[OrderScenario], None]] = {
    Refusal.INVALID_REQUEST: _name_seat_twice,
    Refusal.NOT_FOUND: _name_event_of_another_org,
    Refusal.EVENT_NOT_ON_SALE: _order_before_the_sale,
    Refusal.IDEMPOTENCY_KEY_REUSED: _reuse_idempotency_key,
    Refusal.UNKNOWN_SEAT: _order_unknown_seat,
    Refusal.UNKNOWN_POOL: _order_unknown_pool,
    Refusal.UNKNOWN_TARIFF: _order_unknown_tariff,
    Refusal.ALREADY_BOOKED: _add_own_booking,
    Refusal.LIMIT_REACHED: _exceed_limit,
    Refusal.SEAT_TAKEN: _order_taken_seat,
    Refusal.SOLD_OUT: _order_more_than_is_left,
    Refusal.ORPHAN_SEAT: _leave_orphan,
}


# A caller from another org must not learn that the event exists, not even from an error about the request.
RANKED = sorted(FLAWS, key=lambda flaw: (flaw is not Refusal.NOT_FOUND, flaw.rank))


def scenario_with(*flaws: Refusal) -> OrderScenario:
    scenario = OrderScenario([SeatItem("A-3")], [], {}, {}, {})
    for flaw in flaws:
        FLAWS[flaw](scenario)
    return scenario


def test_an_order_without_a_flaw_is_accepted() -> None:
    assert scenario_with().refusal() is None


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.code)
def test_an_order_with_one_flaw_gets_that_refusal(flaw: Refusal) -> None:
    assert scenario_with(flaw).refusal() is flaw


@pytest.mark.parametrize(
    ("first", "second"),
    list(combinations(RANKED, 2)),
    ids=lambda flaw: flaw.code,
)
def test_the_higher_ranking_of_two_refusals_is_reported(first: Refusal, second: Refusal) -> None:
    assert scenario_with(second, first).refusal() is first
    assert scenario_with(first, second).refusal() is first


@pytest.mark.parametrize("flaw", RANKED, ids=lambda flaw: flaw.code)
def test_fixing_one_flaw_reveals_the_next_refusal(flaw: Refusal) -> None:
    assert scenario_with(*RANKED[RANKED.index(flaw) :]).refusal() is flaw


BEST_FLAWS: list[tuple[Refusal, dict[str, Any]]] = [
    (Refusal.UNKNOWN_POOL, {"best_available": BestSeats("balcony", 20, "senior")}),
    (Refusal.INVALID_REQUEST, {"best_available": BestSeats("standing", 20, "senior")}),
    (Refusal.UNKNOWN_TARIFF, {"best_available": BestSeats("stalls", 20, "senior")}),
    (Refusal.ALREADY_BOOKED, {"best_available": BestSeats("stalls", 20), "user": "user of other"}),
    (Refusal.LIMIT_REACHED, {"best_available": BestSeats("stalls", 20)}),
    (Refusal.SOLD_OUT, {"best_available": BestSeats("stalls", 9, adjacent=False)}),
    (Refusal.SOLD_OUT, {"best_available": BestSeats("stalls", 5)}),
]


@pytest.mark.parametrize(("refusal", "order"), BEST_FLAWS, ids=[flaw.code for flaw, _ in BEST_FLAWS])
def test_best_available_is_refused_in_the_same_order(refusal: Refusal, order: dict[str, Any]) -> None:
    others = [make_booking("other", Status.HELD, seat_line("A-3"), seat_line("B-3"))]
    state = make_event_state(example_layout(policy=Policy(one_booking_per_user=True, max_units_per_user=10)), others)
    assert expect_refusal(state, place_command("it", **order)) is refusal
    assert is_unchanged(state)


def test_a_held_counter_below_zero_raises_an_error() -> None:
    state = make_event_state(bookings=[make_booking("it", Status.HELD, standing_line(2))])
    state.counters[STANDING] = PoolCounter(STANDING_CAPACITY, 1, 0)
    with pytest.raises(OversoldError):
        decide(state, [act_command("it", Verb.CANCEL)])


def test_counters_above_the_capacity_raise_an_error() -> None:
    state = make_event_state()
    state.counters[STALLS] = PoolCounter(10, 5, 5)
    with pytest.raises(OversoldError):
        state.add_booking(make_booking("it", Status.HELD, seat_line("A-1"), version=VERSION + 1), "actor")


def test_a_sold_counter_below_zero_raises_an_error() -> None:
    state = make_event_state(bookings=[make_booking("it", Status.CONFIRMED, standing_line(1))])
    state.counters[STANDING] = PoolCounter(STANDING_CAPACITY, 5, 0)
    with pytest.raises(OversoldError):
        decide(state, [act_command("it", Verb.REFUND)])


def test_a_seat_that_belongs_to_another_booking_raises_an_error() -> None:
    state = make_event_state(bookings=[make_booking("it", Status.HELD, seat_line("A-1"))])
    another = make_booking("another", Status.HELD, seat_line("A-1"), version=VERSION + 1)
    with pytest.raises(AssertionError, match="another booking already has"):
        state.add_booking(another, "actor")


@given(
    orders=st.lists(
        st.tuples(st.sampled_from(["full", "child"]), st.integers(1, 6), st.sampled_from([None, *Verb])), max_size=12
    )
)
def test_counters_always_equal_the_sum_of_live_bookings(orders: list[tuple[str, int, Verb | None]]) -> None:
    state: EventState = make_event_state()
    for number, (tariff, quantity, verb) in enumerate(orders):
        decide(state, [place_command(f"{number}", PoolItem("standing", quantity, tariff))])
        if verb is not None:
            decide(state, [act_command(f"{number}", verb)])
        held = sum(b.units for b in state.bookings.values() if b.status in TIMED)
        sold = sum(b.units for b in state.bookings.values() if b.status in (Status.CONFIRMED, Status.COMPLETED))
        assert held_and_sold(state) == (held, sold)
        assert held + sold <= STANDING_CAPACITY
