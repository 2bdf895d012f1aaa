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
COUNTED_AS: dict[Claim, tuple[int, int]] = {Claim.NONE: (0, 0), Claim.HELD: (1, 0), Claim.SOLD: (0, 1)}
SEEN_AS: dict[Claim, SeatState] = {Claim.NONE: "free", Claim.HELD: "held", Claim.SOLD: "sold"}

REFUSALS = [cell for cell in CELLS if isinstance(TRANSITIONS.get(cell), Refusal)]
CHANGES = [cell for cell in CELLS if TRANSITIONS.get(cell) in set(Status) - {cell[0]}]
STAYS = [cell for cell in CELLS if TRANSITIONS.get(cell) is cell[0]]
EXTENSIONS = [cell for cell in STAYS if cell[1] is Verb.EXTEND]
REPEATS = [cell for cell in STAYS if cell[1] is not Verb.EXTEND]


def cells(chosen: list[tuple[Status, Verb]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("status", "verb"), chosen, ids=[f"{status}-{verb}" for status, verb in chosen])


def free_booking(status: Status) -> Booking:
    """A free booking of seat A-1 and two standing places, so that no cell depends on a payment."""
    return make_free(make_booking("it", status, seat_line("A-1"), standing_line(2)))


def held_and_sold_by(claim: Claim, units: int) -> tuple[int, int]:
    held, sold = COUNTED_AS[claim]
    return held * units, sold * units


@cells(CELLS)
def test_every_verb_is_defined_in_every_status(status: Status, verb: Verb) -> None:
    assert isinstance(TRANSITIONS[status, verb], Status | Refusal)


def test_the_tests_below_cover_every_cell() -> None:
    assert sorted(CHANGES + REPEATS + REFUSALS + EXTENSIONS) == sorted(CELLS)
    assert set(TRANSITIONS) == set(CELLS)


@cells(CHANGES)
def test_a_verb_changes_the_status_and_the_counters(status: Status, verb: Verb) -> None:
    target = TRANSITIONS[status, verb]
    assert isinstance(target, Status)
    state = make_event_state(bookings=[free_booking(status)])
    assert held_and_sold(state) == held_and_sold_by(CLAIMS[status], 2)
    booking = expect_booking(state, act_command("it", verb, reason="because"))
    assert booking.status is target
    assert booking == state.bookings[make_id("it")]
    assert booking.reason == "because"
    assert held_and_sold(state, STALLS) == held_and_sold_by(CLAIMS[target], 1)
    assert held_and_sold(state, STANDING) == held_and_sold_by(CLAIMS[target], 2)
    assert state.is_free(0) is (CLAIMS[target] is Claim.NONE)


@cells(CHANGES)
def test_a_change_writes_one_journal_entry_with_the_seats_and_pools_after_it(status: Status, verb: Verb) -> None:
    target = TRANSITIONS[status, verb]
    assert isinstance(target, Status)
    state = make_event_state(bookings=[free_booking(status)])
    booking = expect_booking(state, act_command("it", verb, reason="because"))
    (entry,) = state.entries
    assert (entry.number, entry.kind, entry.booking.id, entry.actor) == (
        VERSION + 1,
        target.value,
        booking.id,
        "the clerk",
    )
    assert booking.version == state.version == VERSION + 1
    held, sold = held_and_sold_by(CLAIMS[target], 2)
    data = entry.data
    assert data.seats == {"A-1": SEEN_AS[CLAIMS[target]]}
    assert data.pools["standing"] == PoolState(STANDING_CAPACITY, held, sold, STANDING_CAPACITY - held - sold)
    assert set(data.pools) == {"stalls", "standing"}
    assert data.reason == "because"


@cells(CHANGES)
def test_a_change_saves_the_difference_to_the_loaded_counters(status: Status, verb: Verb) -> None:
    state = make_event_state(bookings=[free_booking(status)])
    before = held_and_sold(state)
    expect_booking(state, act_command("it", verb))
    shift = state.counter_shifts.get(STANDING, CounterShift())
    assert (before[0] + shift.held, before[1] + shift.sold) == held_and_sold(state)
    assert state.changed_bookings == {make_id("it"): status}
    assert not state.new_bookings


def test_a_booking_is_settled_only_once() -> None:
    state = make_event_state(bookings=[free_booking(Status.HELD)])
    expect_booking(state, act_command("it", Verb.SETTLE))
    assert expect_refusal(state, act_command("it", Verb.SETTLE)) is Refusal.ALREADY_CONFIRMED


@cells([cell for cell in CHANGES if cell[1] is not Verb.SETTLE])
def test_a_repeated_change_returns_the_same_booking_and_writes_no_entry(status: Status, verb: Verb) -> None:
    state = make_event_state(bookings=[free_booking(status)])
    first, again = decide(state, [act_command("it", verb), act_command("it", verb)])
    assert isinstance(first, Accepted)
    assert first == again
    assert len(state.entries) == 1


@cells(REPEATS)
def test_a_verb_that_has_had_its_effect_returns_the_booking_unchanged(status: Status, verb: Verb) -> None:
    booking = free_booking(status)
    state = make_event_state(bookings=[booking])
    assert expect_booking(state, act_command("it", verb, reason="another")) == booking
    assert is_unchanged(state)
    assert held_and_sold(state) == held_and_sold_by(CLAIMS[status], 2)


@cells(REFUSALS)
def test_a_refused_verb_gets_its_refusal_and_writes_nothing(status: Status, verb: Verb) -> None:
    booking = free_booking(status)
    state = make_event_state(bookings=[booking])
    refusal = expect_refusal(state, act_command("it", verb))
    assert refusal is TRANSITIONS[status, verb]
    assert is_unchanged(state)
    assert state.bookings == {booking.id: booking}
    assert held_and_sold(state) == held_and_sold_by(CLAIMS[status], 2)
    assert state.version == VERSION


@cells(EXTENSIONS)
def test_an_extension_changes_the_deadline_and_nothing_else(status: Status, verb: Verb) -> None:
    booking = structs.replace(free_booking(status), expires_at=seconds_from_now(10))
    state = make_event_state(bookings=[booking])
    extended = expect_booking(state, act_command("it", verb))
    assert extended == structs.replace(booking, expires_at=seconds_from_now(300), version=VERSION + 1)
    (entry,) = state.entries
    assert (entry.kind, entry.booking.id, entry.actor) == (EXTENDED, booking.id, "the clerk")
    assert (entry.data.seats, entry.data.pools) == ({}, {})
    assert not state.counter_shifts
    assert held_and_sold(state) == held_and_sold_by(CLAIMS[status], 2)


@pytest.mark.parametrize(
    ("left", "limit", "until"),
    [(10, 1000, 300), (299, 1000, 300), (300, 1000, 300), (400, 1000, 400), (10, 200, 200), (200, 200, 200)],
)
def test_an_extension_ends_at_the_later_deadline_within_the_maximum(left: int, limit: int, until: int) -> None:
    booking = make_booking(
        "it", Status.HELD, standing_line(1), expires_at=seconds_from_now(left), max_expires_at=seconds_from_now(limit)
    )
    state = make_event_state(bookings=[booking])
    assert expect_booking(state, act_command("it", Verb.EXTEND)).expires_at == seconds_from_now(until)
    assert len(state.entries) == (until != left)


@given(
    left=st.integers(1, 5000),
    more=st.integers(0, 5000),
    extend_seconds=st.integers(0, 5000),
    times=st.integers(1, 3),
)
def test_an_extension_never_shortens_a_hold_or_exceeds_its_maximum(
    left: int, more: int, extend_seconds: int, times: int
) -> None:
    booking = make_booking(
        "it",
        Status.HELD,
        standing_line(1),
        expires_at=seconds_from_now(left),
        max_expires_at=seconds_from_now(left + more),
    )
    state = make_event_state(example_layout(policy=Policy(extend_seconds=extend_seconds)), [booking])
    outcomes = decide(state, [act_command("it", Verb.EXTEND)] * times)
    expected = seconds_from_now(min(max(left, extend_seconds), left + more))
    assert [outcome.booking.expires_at for outcome in outcomes if isinstance(outcome, Accepted)] == [expected] * times
    assert len(state.entries) == (expected > seconds_from_now(left))


def test_a_paid_booking_can_be_refunded_but_not_cancelled() -> None:
    paid = make_booking("it", Status.CONFIRMED, seat_line("A-1"))
    state = make_event_state(bookings=[paid])
    assert expect_refusal(state, act_command("it", Verb.CANCEL)) is Refusal.ALREADY_CONFIRMED
    assert is_unchanged(state)
    assert expect_booking(state, act_command("it", Verb.REFUND)).status is Status.REFUNDED


@pytest.mark.parametrize(
    ("verb", "caller"),
    [
        *((verb, {"org": OTHER_ORG}) for verb in Verb),
        (Verb.CANCEL, {"owner": "somebody else"}),
        (Verb.CANCEL, {"booking": make_id("unknown")}),
    ],
)
def test_a_booking_of_someone_else_is_not_found(verb: Verb, caller: dict[str, object]) -> None:
    state = make_event_state(bookings=[free_booking(Status.HELD)])
    assert expect_refusal(state, act_command("it", verb, **caller)) is Refusal.NOT_FOUND
    assert is_unchanged(state)


@pytest.mark.parametrize("verb", Verb)
def test_buyers_and_staff_get_the_same_answer(verb: Verb) -> None:
    booking = free_booking(Status.HELD)
    by_owner = decide(make_event_state(bookings=[booking]), [act_command("it", verb, owner=booking.user)])
    by_staff = decide(make_event_state(bookings=[booking]), [act_command("it", verb)])
    assert [_booking_or_refusal(outcome) for outcome in by_owner] == [
        _booking_or_refusal(outcome) for outcome in by_staff
    ]


def _booking_or_refusal(outcome: object) -> object:
    return outcome.booking if isinstance(outcome, Accepted) else outcome


@pytest.mark.parametrize(
    ("status", "verb"), [*((Status.HELD, verb) for verb in Verb), (Status.PAYMENT_SUBMITTED, Verb.APPROVE)]
)
def test_a_due_hold_expires_before_any_command_runs(status: Status, verb: Verb) -> None:
    due = structs.replace(free_booking(status), expires_at=NOW)
    state = make_event_state(bookings=[due])
    (outcome,) = decide(state, [act_command("it", verb)])
    expected = TRANSITIONS[Status.EXPIRED, verb]
    result = outcome.booking.status if isinstance(outcome, Accepted) else outcome.refusal
    assert result is expected
    first, *rest = state.entries
    assert (first.kind, first.booking.id, first.actor) == (Status.EXPIRED.value, due.id, SYSTEM)
    assert first.data.seats == {"A-1": "free"}
    assert [entry.kind for entry in rest] == ([expected] if expected in LIVE else [])
    now = state.bookings[due.id].status
    assert held_and_sold(state, STANDING) == held_and_sold_by(CLAIMS[now], 2)


@pytest.mark.parametrize("status", sorted(set(Status) - TIMED))
def test_a_confirmed_or_ended_booking_never_expires(status: Status) -> None:
    state = make_event_state(bookings=[structs.replace(free_booking(status), expires_at=seconds_from_now(-1000))])
    assert decide(state, []) == []
    assert is_unchanged(state)


def test_a_hold_lasts_until_the_last_microsecond_before_its_deadline() -> None:
    booking = structs.replace(free_booking(Status.HELD), expires_at=NOW + timedelta(microseconds=1))
    assert (
        expect_booking(make_event_state(bookings=[booking]), act_command("it", Verb.CONFIRM)).status is Status.CONFIRMED
    )


def test_the_seat_of_a_due_hold_is_free_at_once() -> None:
    due = make_booking("late", Status.HELD, seat_line("A-1"), expires_at=seconds_from_now(-1))
    state = make_event_state(bookings=[due])
    outcomes = decide(state, [act_command("late", Verb.EXTEND), place_command("next", SeatItem("A-1"))])
    assert isinstance(outcomes[1], Accepted)
    assert [entry.kind for entry in state.entries] == ["expired", "held"]
    assert held_and_sold(state, STALLS) == (1, 0)
    assert state.taken == {0}
    assert state.bookings[make_id("next")].status is Status.HELD


def test_a_booking_can_be_placed_confirmed_and_refunded_in_one_batch() -> None:
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
    assert [entry.kind for entry in state.entries] == ["held", "confirmed", "refunded", "held"]
    assert [entry.number for entry in state.entries] == [VERSION + n for n in range(1, 5)]
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


# Every pair, here and below: whether a booking ends depends on its own status and on the status of its event.
@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("event", EventStatus)
def test_bookings_end_with_their_event(event: EventStatus, status: Status) -> None:
    paid = make_booking("it", status, seat_line("A-1"), standing_line(2))
    state = make_event_state(example_layout(status=event), [paid])
    ending = ENDINGS[event].get(status, status)
    assert end_bookings(state) == (ending is not status)
    ended = state.bookings[paid.id]
    assert ended.status is ending
    assert held_and_sold(state, STANDING) == held_and_sold_by(CLAIMS[ending], 2)
    assert [(entry.kind, entry.actor) for entry in state.entries] == [(ending.value, SYSTEM)] * (ending is not status)
    assert (ended.reason is not None) is (event is EventStatus.CANCELLED and ending is not status)


@pytest.mark.parametrize("event", EventStatus)
def test_a_second_wind_up_ends_no_more_bookings(event: EventStatus) -> None:
    state = make_event_state(example_layout(status=event), [make_booking(f"{s}", s, standing_line(1)) for s in Status])
    end_bookings(state)
    entries = list(state.entries)
    assert end_bookings(state) == 0
    assert state.entries == entries


def test_a_free_booking_of_a_cancelled_event_is_cancelled_not_refunded() -> None:
    state = make_event_state(example_layout(status=EventStatus.CANCELLED), [free_booking(Status.CONFIRMED)])
    assert end_bookings(state) == 1
    assert state.bookings[make_id("it")].status is Status.CANCELLED
    assert held_and_sold(state) == (0, 0)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("event", EventStatus)
def test_every_transition_of_the_wind_up_is_an_edge(event: EventStatus, status: Status) -> None:
    for booking in (free_booking(status), make_booking("it", status, standing_line(1))):
        state = make_event_state(example_layout(status=event), [booking])
        end_bookings(state)
        steps = {(status, state.bookings[booking.id].status)} - {(status, status)}
        assert steps <= {(source, target) for source, target, _ in edges()}


def test_an_ended_booking_stays_ended() -> None:
    final = {Status.REJECTED, Status.CANCELLED, Status.REFUNDED, Status.COMPLETED}
    assert not final & {source for source, _, _ in edges()}
    assert not final & (LIVE | TIMED | INITIAL)


def test_every_status_with_a_deadline_can_expire() -> None:
    assert {source for source, target, _ in edges() if target is Status.EXPIRED} == TIMED
    assert all(CLAIMS[status] is not Claim.NONE for status in LIVE)


def test_the_edges_are_the_changes_of_the_table_and_the_beginnings_and_endings_of_bookings() -> None:
    moves = {(status, TRANSITIONS[status, verb], verb.value) for status, verb in CHANGES}
    beginnings = {(None, status, "place") for status in INITIAL}
    endings = {(*step, f"event {event}") for event, ends in ENDINGS.items() for step in ends.items()}
    free_endings = {(Status.CONFIRMED, Status.CANCELLED, "event cancelled")}
    assert set(edges()) == moves | beginnings | endings | free_endings


def test_the_document_shows_the_current_diagram_and_table() -> None:
    text = DOCUMENT.read_text()
    assert diagram() in text
    assert table() in text


def test_the_diagram_has_every_status_and_an_arrow_for_every_edge() -> None:
    drawn = diagram().splitlines()
    for source, target, cause in edges():
        assert any(line.startswith(f"    {source or '[*]'} --> {target}:") and cause in line for line in drawn)
    assert all(any(status in line for line in drawn) for status in Status)


def test_a_new_booking_is_created_at_the_events_time() -> None:
    done = expect_accepted(make_event_state(), place_command("it", SeatItem("A-1")))
    assert (done.now, done.booking.created_at) == (NOW, NOW)


@pytest.mark.parametrize("verb", [Verb.CONFIRM, Verb.EXTEND])
def test_a_hold_of_a_cancelled_event_can_no_longer_be_confirmed(verb: Verb) -> None:
    held = make_booking("it", Status.HELD, standing_line(2))
    state = make_event_state(example_layout(status=EventStatus.CANCELLED), [held])
    assert expect_refusal(state, act_command("it", verb)) is Refusal.ALREADY_CANCELLED
    assert state.bookings[held.id].status is Status.CANCELLED
