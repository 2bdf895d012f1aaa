"""The state table is total, and the engine does exactly what each cell says."""

from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from scripts.state_diagram import diagram, table

from holdfast.core.booking import Booking
from holdfast.core.commands import Accepted, SeatItem
from holdfast.core.decide import decide, end_bookings
from holdfast.core.event_state import SYSTEM, CounterShift
from holdfast.core.journal import EXTENDED, PoolState, SeatState
from holdfast.core.policy import Policy
from holdfast.core.refusals import Refusal
from holdfast.core.states import (
    CLAIMS,
    INITIAL,
    LIVE,
    TIMED,
    TRANSITIONS,
    Claim,
    EventStatus,
    Status,
    Verb,
    edges,
)
from tests.support.builders import (
    NOW,
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
    held_and_sold,
    is_unchanged,
    make_booking,
    make_event_state,
    make_free,
    make_id,
    place_command,
    seat_line,
    seconds_from_now,
    standing_line,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "states.md"

CELLS = list(product(Status, Verb))
TAKEN_AS: dict[Claim, tuple[int, int]] = {Claim.NONE: (0, 0), Claim.HELD: (1, 0), Claim.SOLD: (0, 1)}
SEEN_AS: dict[Claim, SeatState] = {Claim.NONE: "free", Claim.HELD: "held", Claim.SOLD: "sold"}

REFUSALS = [cell for cell in CELLS if isinstance(TRANSITIONS.get(cell), Refusal)]
MOVES = [cell for cell in CELLS if TRANSITIONS.get(cell) in set(Status) - {cell[0]}]
STAYS = [cell for cell in CELLS if TRANSITIONS.get(cell) is cell[0]]
EXTENSIONS = [cell for cell in STAYS if cell[1] is Verb.EXTEND]
REPEATS = [cell for cell in STAYS if cell[1] is not Verb.EXTEND]


def cells(chosen: list[tuple[Status, Verb]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("status", "verb"), chosen, ids=[f"{status}-{verb}" for status, verb in chosen])


def claim_in(status: Status) -> Booking:
    """Seat A-1 and two standing places, for nothing, so that no cell depends on money."""
    return make_free(make_booking("it", status, seat_line("A-1"), standing_line(2)))


def taken_by(claim: Claim, units: int) -> tuple[int, int]:
    held, sold = TAKEN_AS[claim]
    return held * units, sold * units


@cells(CELLS)
def test_every_verb_is_defined_in_every_status(status: Status, verb: Verb) -> None:
    assert isinstance(TRANSITIONS[status, verb], Status | Refusal)


def test_every_cell_is_tried_by_one_of_the_tests_below() -> None:
    assert sorted(MOVES + REPEATS + REFUSALS + EXTENSIONS) == sorted(CELLS)
    assert set(TRANSITIONS) == set(CELLS)


@cells(MOVES)
def test_a_move_changes_the_status_and_the_counters_with_it(status: Status, verb: Verb) -> None:
    target = TRANSITIONS[status, verb]
    assert isinstance(target, Status)
    state = make_event_state(bookings=[claim_in(status)])
    assert held_and_sold(state) == taken_by(CLAIMS[status], 2)
    moved = expect_booking(state, act_command("it", verb, reason="because"))
    assert moved.status is target
    assert moved == state.bookings[make_id("it")]
    assert moved.reason == "because"
    assert held_and_sold(state, STALLS) == taken_by(CLAIMS[target], 1)
    assert held_and_sold(state, STANDING) == taken_by(CLAIMS[target], 2)
    assert state.is_free(0) is (CLAIMS[target] is Claim.NONE)


@cells(MOVES)
def test_a_change_is_one_journal_entry_with_the_seats_and_pools_after_it(status: Status, verb: Verb) -> None:
    target = TRANSITIONS[status, verb]
    assert isinstance(target, Status)
    state = make_event_state(bookings=[claim_in(status)])
    moved = expect_booking(state, act_command("it", verb, reason="because"))
    (fact,) = state.entries
    assert (fact.number, fact.kind, fact.booking.id, fact.actor) == (VERSION + 1, target.value, moved.id, "the clerk")
    assert moved.version == state.version == VERSION + 1
    held, sold = taken_by(CLAIMS[target], 2)
    told = fact.data
    assert told.seats == {"A-1": SEEN_AS[CLAIMS[target]]}
    assert told.pools["standing"] == PoolState(STANDING_CAPACITY, held, sold, STANDING_CAPACITY - held - sold)
    assert set(told.pools) == {"stalls", "standing"}
    assert told.reason == "because"


@cells(MOVES)
def test_a_move_is_saved_as_the_difference_to_what_was_loaded(status: Status, verb: Verb) -> None:
    state = make_event_state(bookings=[claim_in(status)])
    before = held_and_sold(state)
    expect_booking(state, act_command("it", verb))
    shift = state.counter_shifts.get(STANDING, CounterShift())
    assert (before[0] + shift.held, before[1] + shift.sold) == held_and_sold(state)
    assert state.changed_bookings == {make_id("it"): status}
    assert not state.new_bookings


def test_a_repeated_payment_is_not_taken_twice() -> None:
    state = make_event_state(bookings=[claim_in(Status.HELD)])
    expect_booking(state, act_command("it", Verb.SETTLE))
    assert expect_refusal(state, act_command("it", Verb.SETTLE)) is Refusal.ALREADY_CONFIRMED


@cells([cell for cell in MOVES if cell[1] is not Verb.SETTLE])
def test_the_same_move_again_answers_with_the_same_booking_and_writes_no_fact(status: Status, verb: Verb) -> None:
    state = make_event_state(bookings=[claim_in(status)])
    first, again = decide(state, [act_command("it", verb), act_command("it", verb)])
    assert isinstance(first, Accepted)
    assert first == again
    assert len(state.entries) == 1


@cells(REPEATS)
def test_a_repeated_action_answers_with_the_booking_as_it_is(status: Status, verb: Verb) -> None:
    there = claim_in(status)
    state = make_event_state(bookings=[there])
    assert expect_booking(state, act_command("it", verb, reason="another")) == there
    assert is_unchanged(state)
    assert held_and_sold(state) == taken_by(CLAIMS[status], 2)


@cells(REFUSALS)
def test_a_refusal_says_why_and_writes_nothing(status: Status, verb: Verb) -> None:
    there = claim_in(status)
    state = make_event_state(bookings=[there])
    said = expect_refusal(state, act_command("it", verb))
    assert said is TRANSITIONS[status, verb]
    assert is_unchanged(state)
    assert state.bookings == {there.id: there}
    assert held_and_sold(state) == taken_by(CLAIMS[status], 2)
    assert state.version == VERSION


@cells(EXTENSIONS)
def test_an_extension_moves_the_deadline_and_nothing_else(status: Status, verb: Verb) -> None:
    there = structs.replace(claim_in(status), expires_at=seconds_from_now(10))
    state = make_event_state(bookings=[there])
    extended = expect_booking(state, act_command("it", verb))
    assert extended == structs.replace(there, expires_at=seconds_from_now(300), version=VERSION + 1)
    (fact,) = state.entries
    assert (fact.kind, fact.booking.id, fact.actor) == (EXTENDED, there.id, "the clerk")
    assert (fact.data.seats, fact.data.pools) == ({}, {})
    assert not state.counter_shifts
    assert held_and_sold(state) == taken_by(CLAIMS[status], 2)


@pytest.mark.parametrize(
    ("left", "limit", "until"),
    [(10, 1000, 300), (299, 1000, 300), (300, 1000, 300), (400, 1000, 400), (10, 200, 200), (200, 200, 200)],
)
def test_an_extension_is_the_later_deadline_but_never_beyond_the_longest_hold(
    left: int, limit: int, until: int
) -> None:
    there = make_booking(
        "it", Status.HELD, standing_line(1), expires_at=seconds_from_now(left), max_expires_at=seconds_from_now(limit)
    )
    state = make_event_state(bookings=[there])
    assert expect_booking(state, act_command("it", Verb.EXTEND)).expires_at == seconds_from_now(until)
    assert len(state.entries) == (until != left)


@given(
    left=st.integers(1, 5000),
    more=st.integers(0, 5000),
    extend_seconds=st.integers(0, 5000),
    times=st.integers(1, 3),
)
def test_extending_is_the_least_of_the_greatest(left: int, more: int, extend_seconds: int, times: int) -> None:
    there = make_booking(
        "it",
        Status.HELD,
        standing_line(1),
        expires_at=seconds_from_now(left),
        max_expires_at=seconds_from_now(left + more),
    )
    state = make_event_state(example_layout(policy=Policy(extend_seconds=extend_seconds)), [there])
    outcomes = decide(state, [act_command("it", Verb.EXTEND)] * times)
    expected = seconds_from_now(min(max(left, extend_seconds), left + more))
    assert [outcome.booking.expires_at for outcome in outcomes if isinstance(outcome, Accepted)] == [expected] * times
    assert len(state.entries) == (expected > seconds_from_now(left))


def test_a_paid_booking_is_not_cancelled_but_has_to_be_refunded() -> None:
    paid = make_booking("it", Status.CONFIRMED, seat_line("A-1"))
    state = make_event_state(bookings=[paid])
    assert expect_refusal(state, act_command("it", Verb.CANCEL)) is Refusal.ALREADY_CONFIRMED
    assert is_unchanged(state)
    assert expect_booking(state, act_command("it", Verb.REFUND)).status is Status.REFUNDED


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("who", [{"org": OTHER_ORG}, {"owner": "somebody else"}, {"booking": make_id("nobody's")}])
def test_a_booking_of_others_does_not_exist(verb: Verb, who: dict[str, object]) -> None:
    state = make_event_state(bookings=[claim_in(Status.HELD)])
    assert expect_refusal(state, act_command("it", verb, **who)) is Refusal.NOT_FOUND
    assert is_unchanged(state)


@pytest.mark.parametrize("verb", Verb)
def test_a_buyer_is_answered_about_their_own_booking_as_staff_is(verb: Verb) -> None:
    there = claim_in(Status.HELD)
    by_owner = decide(make_event_state(bookings=[there]), [act_command("it", verb, owner=there.user)])
    by_staff = decide(make_event_state(bookings=[there]), [act_command("it", verb)])
    assert [_gist(outcome) for outcome in by_owner] == [_gist(outcome) for outcome in by_staff]


def _gist(outcome: object) -> object:
    return outcome.booking if isinstance(outcome, Accepted) else outcome


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("status", sorted(TIMED))
def test_a_due_hold_expires_before_any_command_runs(status: Status, verb: Verb) -> None:
    due = structs.replace(claim_in(status), expires_at=NOW)
    state = make_event_state(bookings=[due])
    (outcome,) = decide(state, [act_command("it", verb)])
    expected = TRANSITIONS[Status.EXPIRED, verb]
    said = outcome.booking.status if isinstance(outcome, Accepted) else outcome.refusal
    assert said is expected
    first, *rest = state.entries
    assert (first.kind, first.booking.id, first.actor) == (Status.EXPIRED.value, due.id, SYSTEM)
    assert first.data.seats == {"A-1": "free"}
    assert [fact.kind for fact in rest] == ([expected] if expected in LIVE else [])
    now = state.bookings[due.id].status
    assert held_and_sold(state, STANDING) == taken_by(CLAIMS[now], 2)


@pytest.mark.parametrize("status", sorted(set(Status) - TIMED))
def test_a_deadline_means_nothing_once_a_booking_is_confirmed_or_has_ended(status: Status) -> None:
    state = make_event_state(bookings=[structs.replace(claim_in(status), expires_at=seconds_from_now(-1000))])
    assert decide(state, []) == []
    assert is_unchanged(state)


def test_a_hold_lives_until_the_last_instant_before_its_deadline() -> None:
    there = structs.replace(claim_in(Status.HELD), expires_at=NOW + timedelta(microseconds=1))
    assert (
        expect_booking(make_event_state(bookings=[there]), act_command("it", Verb.CONFIRM)).status is Status.CONFIRMED
    )


def test_the_seat_of_a_due_hold_is_free_for_the_next_buyer_at_once() -> None:
    due = make_booking("late", Status.HELD, seat_line("A-1"), expires_at=seconds_from_now(-1))
    state = make_event_state(bookings=[due])
    outcomes = decide(state, [act_command("late", Verb.CONFIRM), place_command("next", SeatItem("A-1"))])
    assert isinstance(outcomes[1], Accepted)
    assert [fact.kind for fact in state.entries] == ["expired", "held"]
    assert held_and_sold(state, STALLS) == (1, 0)
    assert state.taken == {0: make_id("next")}


def test_a_booking_can_be_placed_confirmed_and_cancelled_in_one_batch() -> None:
    state = make_event_state()
    outcomes = decide(
        state,
        [
            place_command("it", SeatItem("A-1")),
            act_command("it", Verb.CONFIRM),
            act_command("it", Verb.REFUND),
            place_command("next", SeatItem("A-1")),
        ],
    )
    assert all(isinstance(outcome, Accepted) for outcome in outcomes)
    assert [fact.kind for fact in state.entries] == ["held", "confirmed", "refunded", "held"]
    assert [fact.number for fact in state.entries] == [VERSION + n for n in range(1, 5)]
    assert state.new_bookings == {make_id("it"), make_id("next")}
    assert not state.changed_bookings
    assert held_and_sold(state, STALLS) == (1, 0)


ENDINGS: dict[EventStatus, dict[Status, Status]] = {
    EventStatus.DRAFT: {},
    EventStatus.ACTIVE: {},
    EventStatus.COMPLETED: {Status.CONFIRMED: Status.COMPLETED},
    EventStatus.CANCELLED: {
        Status.HELD: Status.CANCELLED,
        Status.PAYMENT_SUBMITTED: Status.CANCELLED,
        Status.CONFIRMED: Status.REFUNDED,
    },
}


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("event", EventStatus)
def test_bookings_end_with_their_event(event: EventStatus, status: Status) -> None:
    paid = make_booking("it", status, seat_line("A-1"), standing_line(2))
    state = make_event_state(example_layout(status=event), [paid])
    ending = ENDINGS[event].get(status, status)
    assert end_bookings(state) == (ending is not status)
    ended = state.bookings[paid.id]
    assert ended.status is ending
    assert held_and_sold(state, STANDING) == taken_by(CLAIMS[ending], 2)
    assert [(fact.kind, fact.actor) for fact in state.entries] == [(ending.value, SYSTEM)] * (ending is not status)
    assert (ended.reason is not None) is (event is EventStatus.CANCELLED and ending is not status)


@pytest.mark.parametrize("event", EventStatus)
def test_winding_up_twice_ends_nothing_more(event: EventStatus) -> None:
    state = make_event_state(example_layout(status=event), [make_booking(f"{s}", s, standing_line(1)) for s in Status])
    end_bookings(state)
    facts = list(state.entries)
    assert end_bookings(state) == 0
    assert state.entries == facts


def test_a_free_booking_of_a_cancelled_event_has_nothing_to_refund() -> None:
    state = make_event_state(example_layout(status=EventStatus.CANCELLED), [claim_in(Status.CONFIRMED)])
    assert end_bookings(state) == 1
    assert state.bookings[make_id("it")].status is Status.CANCELLED
    assert held_and_sold(state) == (0, 0)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("event", EventStatus)
def test_every_step_of_winding_up_is_in_the_table(event: EventStatus, status: Status) -> None:
    for there in (claim_in(status), make_booking("it", status, standing_line(1))):
        state = make_event_state(example_layout(status=event), [there])
        end_bookings(state)
        steps = {(status, state.bookings[there.id].status)} - {(status, status)}
        assert steps <= {(source, target) for source, target, _ in edges()}


def test_an_ended_booking_stays_ended() -> None:
    final = {Status.REJECTED, Status.CANCELLED, Status.REFUNDED, Status.COMPLETED}
    assert not final & {source for source, _, _ in edges()}
    assert not final & (LIVE | TIMED | INITIAL)


def test_every_status_with_a_deadline_can_expire() -> None:
    assert {source for source, target, _ in edges() if target is Status.EXPIRED} == TIMED
    assert all(CLAIMS[status] is not Claim.NONE for status in LIVE)


def test_the_edges_are_the_moves_of_the_table_the_ways_to_begin_and_the_ways_to_end_with_the_event() -> None:
    moves = {(status, TRANSITIONS[status, verb], verb.value) for status, verb in MOVES}
    beginnings = {(None, status, "place") for status in INITIAL}
    endings = {(*step, f"event {event}") for event, ends in ENDINGS.items() for step in ends.items()}
    free_endings = {(Status.CONFIRMED, Status.CANCELLED, "event cancelled")}
    assert set(edges()) == moves | beginnings | endings | free_endings


def test_the_document_shows_the_diagram_and_the_table_as_they_are() -> None:
    text = DOCUMENT.read_text()
    assert diagram() in text
    assert table() in text


def test_the_diagram_has_every_status_and_an_arrow_for_every_edge() -> None:
    drawn = diagram().splitlines()
    for source, target, cause in edges():
        assert any(line.startswith(f"    {source or '[*]'} --> {target}:") and cause in line for line in drawn)
    assert all(any(status in line for line in drawn) for status in Status)


def test_a_new_booking_answers_with_the_time_of_the_book() -> None:
    done = expect_accepted(make_event_state(), place_command("it", SeatItem("A-1")))
    assert (done.now, done.booking.created_at) == (NOW, NOW)


@pytest.mark.parametrize("verb", [Verb.CONFIRM, Verb.EXTEND])
def test_a_hold_of_a_cancelled_event_can_no_longer_be_confirmed(verb: Verb) -> None:
    held = make_booking("it", Status.HELD, standing_line(2))
    state = make_event_state(example_layout(status=EventStatus.CANCELLED), [held])
    assert expect_refusal(state, act_command("it", verb)) is Refusal.ALREADY_CANCELLED
    assert state.bookings[held.id].status is Status.CANCELLED
