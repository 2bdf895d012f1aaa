"""Whatever a provider reports and a person decides, a captured payment is kept for a confirmed booking, refunded, or
under review. Repeating a command changes nothing."""

from datetime import datetime, timedelta
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.core.booking import Booking
from holdfast.core.commands import Command, Remedy, SeatItem
from holdfast.core.decide import end_bookings, expire_due
from holdfast.core.event_state import EventState
from holdfast.core.layout import Layout
from holdfast.core.payment import RECEIPT, Payment, PaymentOutcome, PaymentResult, PaymentStatus
from holdfast.core.policy import Policy
from holdfast.core.reasons import Reason
from holdfast.core.refusals import Refusal
from holdfast.core.settlement import PAYMENTS_MAX
from holdfast.core.states import EventStatus, Status, Verb
from tests.support.builders import (
    NOW,
    STANDING,
    act_command,
    decide_one,
    example_layout,
    expect_done,
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
from tests.support.cases import case
from tests.support.harness import IS_LONG
from tests.support.payment_builders import (
    check_payments,
    make_payment,
    pay_command,
    resolve_command,
    settle_command,
    submit_command,
)

PAYMENTS = {
    **{status.value: make_payment("money", status) for status in PaymentStatus},
    "review of a silent provider": make_payment("money", PaymentStatus.REVIEW, captured_at=None),
    "review of a receipt": make_payment("money", PaymentStatus.REVIEW, captured_at=None, provider=RECEIPT),
}
NEWS = {
    "captured": settle_command("money"),
    "too little captured": settle_command("money", amount=2999),
    "too much captured": settle_command("money", amount=3001),
    "captured in another currency": settle_command("money", currency="USD"),
    "captured, who knows how much": settle_command("money", amount=None, currency=None),
    "failed": settle_command("money", PaymentResult.FAILED),
    "refunded": settle_command("money", PaymentResult.REFUNDED),
}
WRONG = ["too little captured", "too much captured", "captured in another currency", "captured, who knows how much"]
OPEN = ["started", "failed", "review of a silent provider"]
ENDED = [Status.REJECTED, Status.CANCELLED, Status.REFUNDED, Status.COMPLETED, Status.CONFIRMED]
# Only a confirmed booking, or one whose event is over, has money that is kept.
KEEPING = {Status.CONFIRMED, Status.COMPLETED}

every_status = pytest.mark.parametrize("status", Status)
every_payment = pytest.mark.parametrize("kind", PAYMENTS)
every_remedy = pytest.mark.parametrize("remedy", Remedy)


def booking_with(status: Status, *payments: Payment, **changes: object) -> Booking:
    """A booking of seat A-1 for 3000, with these payments. If it has expired, that was ten seconds ago."""
    expires_at = seconds_from_now(-10) if status is Status.EXPIRED else seconds_from_now(540)
    made = make_booking("it", status, seat_line("A-1"), expires_at=expires_at, payments=payments)
    return structs.replace(made, **changes)


def is_sound(made: Booking) -> bool:
    try:
        check_payments(made)
    except AssertionError:
        return False
    return True


def settled(state: EventState, command: Command) -> Payment:
    found = expect_done(state, command).payment
    assert found is not None
    return found


# What a provider tells.


@every_payment
def test_every_provider_result_has_an_answer_in_every_state(kind: str) -> None:
    for status, news in product(Status, NEWS):
        with case(status, news):
            state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
            outcome = expect_done(state, NEWS[news])
            assert outcome.payment == state.bookings[make_id("it")].payment(make_id("money"))


@every_payment
def test_a_repeated_provider_result_changes_nothing(kind: str) -> None:
    for status, news in product(Status, NEWS):
        with case(status, news):
            state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
            once = expect_done(state, NEWS[news]).booking
            written = len(state.entries)
            assert expect_done(state, NEWS[news]).booking == once
            assert len(state.entries) == written
            reloaded = make_event_state(bookings=[once])
            assert expect_done(reloaded, NEWS[news]).booking == once
            assert is_unchanged(reloaded)


@every_payment
def test_every_provider_result_leaves_consistent_payments(kind: str) -> None:
    sound = [before for status in Status if is_sound(before := booking_with(status, PAYMENTS[kind]))]
    assert sound
    for before, news in product(sound, NEWS):
        with case(before.status, news):
            check_payments(expect_done(make_event_state(bookings=[before]), NEWS[news]).booking)


@every_status
def test_only_a_confirmed_booking_can_start_with_a_kept_payment(status: Status) -> None:
    """Otherwise the test above would skip more states than it has to."""
    skipped = {kind for kind, one in PAYMENTS.items() if not is_sound(booking_with(status, one))}
    assert skipped == (set() if status in KEEPING else {"succeeded"})


@every_payment
def test_a_captured_payment_stays_captured_and_a_refunded_one_stays_refunded(kind: str) -> None:
    before = PAYMENTS[kind]
    for status, news in product(Status, NEWS):
        with case(status, news):
            now = settled(make_event_state(bookings=[booking_with(status, before)]), NEWS[news])
            assert before.captured_at in (None, now.captured_at)
            assert before.status is not PaymentStatus.REFUNDED or now == before


@pytest.mark.parametrize("kind", OPEN)
@pytest.mark.parametrize("status", [Status.HELD, Status.PAYMENT_SUBMITTED])
def test_a_payment_in_time_confirms_the_booking(status: Status, kind: str) -> None:
    state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
    outcome = expect_done(state, settle_command("money"))
    assert outcome.booking.status is Status.CONFIRMED
    assert outcome.payment is not None
    assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.SUCCEEDED, PaymentOutcome.FULFILLED)
    assert outcome.payment.captured_at == NOW
    assert held_and_sold(state, 0) == (0, 1)
    assert {fact.kind for fact in state.entries} == {"payment.succeeded", "confirmed"}


@pytest.mark.parametrize("kind", OPEN)
def test_a_late_payment_revives_the_booking(kind: str) -> None:
    state = make_event_state(bookings=[booking_with(Status.EXPIRED, PAYMENTS[kind])])
    outcome = expect_done(state, settle_command("money"))
    assert outcome.booking.status is Status.CONFIRMED
    assert outcome.payment is not None
    assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.SUCCEEDED, PaymentOutcome.REVIVED)
    assert held_and_sold(state, 0) == (0, 1)


@pytest.mark.parametrize("kind", OPEN)
@pytest.mark.parametrize("status", ENDED)
def test_a_payment_for_an_ended_or_paid_booking_is_refunded(status: Status, kind: str) -> None:
    state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
    outcome = expect_done(state, settle_command("money"))
    assert outcome.booking.status is status
    assert outcome.payment is not None
    assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.REFUND_DUE, None)
    assert outcome.payment.captured_at == NOW
    assert outcome.payment.reason
    assert [fact.kind for fact in state.entries] == ["payment.refund_due"]
    assert not state.counter_shifts


@pytest.mark.parametrize("kind", OPEN)
@pytest.mark.parametrize("news", WRONG)
def test_a_wrong_amount_confirms_nothing_and_goes_to_review(kind: str, news: str) -> None:
    for status in Status:
        with case(status):
            state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
            outcome = expect_done(state, NEWS[news])
            assert outcome.booking.status is status
            assert outcome.payment is not None
            assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.REVIEW, PaymentOutcome.REVIEW)
            assert outcome.payment.captured_at == NOW
            assert outcome.payment.reason == Reason.WRONG_AMOUNT
            came = state.entries[-1].data
            assert (came.amount, came.currency) == (NEWS[news].amount, NEWS[news].currency)
            assert not state.counter_shifts


@pytest.mark.parametrize("kind", ["submitted", "review of a receipt"])
def test_no_provider_result_changes_a_receipt(kind: str) -> None:
    for status, news in product(Status, NEWS):
        with case(status, news):
            state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
            assert settled(state, NEWS[news]) == PAYMENTS[kind]
            assert is_unchanged(state)


@every_payment
def test_a_failure_counts_only_for_a_payment_without_any_other_result(kind: str) -> None:
    before = PAYMENTS[kind]
    for status in Status:
        with case(status):
            state = make_event_state(bookings=[booking_with(status, before)])
            now = settled(state, settle_command("money", PaymentResult.FAILED))
            assert now.status is (PaymentStatus.FAILED if kind == "started" else before.status)
            assert state.bookings[make_id("it")].status is status


@pytest.mark.parametrize("status", [Status.HELD, Status.EXPIRED])
@pytest.mark.parametrize(
    "order", [(PaymentResult.FAILED, PaymentResult.CAPTURED), (PaymentResult.CAPTURED, PaymentResult.FAILED)]
)
def test_a_failure_and_a_success_are_a_success_in_whatever_order(
    status: Status, order: tuple[PaymentResult, PaymentResult]
) -> None:
    state = make_event_state(bookings=[booking_with(status, PAYMENTS["started"])])
    for news in order:
        outcome = expect_done(state, settle_command("money", news))
    assert outcome.booking.status is Status.CONFIRMED
    assert outcome.payment is not None
    assert outcome.payment.status is PaymentStatus.SUCCEEDED


@pytest.mark.parametrize("kind", [kind for kind, one in PAYMENTS.items() if one.captured_at is not None])
@every_status
def test_a_payment_refunded_by_the_provider_is_refunded(status: Status, kind: str) -> None:
    before = booking_with(status, PAYMENTS[kind])
    state = make_event_state(bookings=[before])
    outcome = expect_done(state, settle_command("money", PaymentResult.REFUNDED))
    assert outcome.payment is not None
    assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.REFUNDED, PaymentOutcome.REFUNDED)
    ends = kind == "succeeded" and status is Status.CONFIRMED
    assert outcome.booking.status is (Status.REFUNDED if ends else status)


@pytest.mark.parametrize("status", [Status.HELD, Status.EXPIRED, Status.CONFIRMED])
def test_a_refund_that_overtakes_its_capture_leaves_nothing_kept(status: Status) -> None:
    """Providers do not promise any order."""
    state = make_event_state(bookings=[booking_with(status, PAYMENTS["started"])])
    expect_done(state, settle_command("money", PaymentResult.REFUNDED))
    outcome = expect_done(state, settle_command("money", PaymentResult.CAPTURED))
    assert outcome.payment is not None
    assert outcome.payment.status is not PaymentStatus.SUCCEEDED
    assert outcome.booking.status is not Status.CONFIRMED or status is Status.CONFIRMED


def test_a_payment_of_another_booking_is_not_found() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD, PAYMENTS["started"])])
    assert expect_refusal(state, settle_command("another")) is Refusal.NOT_FOUND
    assert expect_refusal(state, settle_command("money", of="nothing")) is Refusal.NOT_FOUND
    assert expect_refusal(state, settle_command("money", org=make_id("stranger"))) is Refusal.NOT_FOUND
    assert is_unchanged(state)


# What a person decides.


@every_payment
def test_every_remedy_has_an_answer_and_repeating_it_changes_nothing(kind: str) -> None:
    for status, remedy in product(Status, Remedy):
        with case(status, remedy):
            state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
            once = decide_one(state, resolve_command("money", remedy))
            written = len(state.entries)
            again = decide_one(state, resolve_command("money", remedy))
            assert again == once
            assert len(state.entries) == written


@every_payment
def test_every_remedy_leaves_consistent_payments(kind: str) -> None:
    sound = [before for status in Status if is_sound(before := booking_with(status, PAYMENTS[kind]))]
    assert sound
    for before, remedy in product(sound, Remedy):
        with case(before.status, remedy):
            state = make_event_state(bookings=[before])
            decide_one(state, resolve_command("money", remedy))
            check_payments(state.bookings[make_id("it")])
            assert state.bookings[make_id("it")].status is before.status


BECOMES = {
    ("refund_due", Remedy.REVIEW): PaymentStatus.REVIEW,
    ("started", Remedy.REVIEW): PaymentStatus.REVIEW,
    ("review", Remedy.REFUND): PaymentStatus.REFUND_DUE,
    ("review", Remedy.BY_HAND): PaymentStatus.REFUNDED,
    ("review of a silent provider", Remedy.BY_HAND): PaymentStatus.REFUNDED,
    ("review of a receipt", Remedy.BY_HAND): PaymentStatus.REFUNDED,
}
STAYS = {
    *((kind, Remedy.REVIEW) for kind in PAYMENTS if kind not in ("refund_due", "started")),
    ("refund_due", Remedy.REFUND),
    ("refunded", Remedy.REFUND),
    ("refunded", Remedy.BY_HAND),
}
# Of one that was never captured there may be something to be paid back or not; what matters is that it comes to an end.
UNCLEAR = {("review of a silent provider", Remedy.REFUND)}


@every_payment
@every_remedy
def test_a_remedy_does_what_it_says_or_is_refused(kind: str, remedy: Remedy) -> None:
    state = make_event_state(bookings=[booking_with(Status.EXPIRED, PAYMENTS[kind])])
    if (kind, remedy) in UNCLEAR:
        return
    if (kind, remedy) in BECOMES:
        found = settled(state, resolve_command("money", remedy, reason="because"))
        assert (found.status, found.reason) == (BECOMES[kind, remedy], "because")
        assert [fact.kind for fact in state.entries] == [f"payment.{found.status}"]
    elif (kind, remedy) in STAYS:
        assert settled(state, resolve_command("money", remedy)) == PAYMENTS[kind]
        assert is_unchanged(state)
    else:
        assert expect_refusal(state, resolve_command("money", remedy)) is Refusal.NOT_REFUNDABLE
        assert is_unchanged(state)


@every_status
def test_a_refund_ordered_by_a_person_is_recorded_when_it_arrives(status: Status) -> None:
    """Also if the provider was silent for so long that we never heard that the money had come."""
    for kind in ("review", "review of a silent provider"):
        state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
        if settled(state, resolve_command("money", Remedy.REFUND)).status is PaymentStatus.REFUND_DUE:
            back = settled(state, settle_command("money", PaymentResult.REFUNDED, amount=None, currency=None))
            assert back.status is PaymentStatus.REFUNDED, kind


@every_status
def test_the_result_of_a_long_silent_provider_still_counts(status: Status) -> None:
    state = make_event_state(bookings=[booking_with(status, PAYMENTS["started"])])
    assert settled(state, resolve_command("money", Remedy.REVIEW)).status is PaymentStatus.REVIEW
    now = settled(state, settle_command("money"))
    assert now.status in (PaymentStatus.SUCCEEDED, PaymentStatus.REFUND_DUE)
    check_payments(state.bookings[make_id("it")])


# Late money.


def late(seconds: float, **changes: object) -> Booking:
    """A booking of seat A-1 and two standing places that expired so long ago, and whose payment is still open."""
    lines = (seat_line("A-1"), standing_line(2))
    money = make_payment("money", amount=6000)
    made = make_booking("it", Status.EXPIRED, *lines, expires_at=NOW - timedelta(seconds=seconds), payments=(money,))
    return structs.replace(made, user="the buyer", **changes)


def comes_late(layout: Layout | None = None, *others: Booking, seconds: float = 10, now: datetime = NOW) -> Booking:
    state = make_event_state(layout, [late(seconds), *others], now=now)
    return expect_done(state, settle_command("money", amount=6000)).booking


def is_revived(it: Booking) -> bool:
    """Whether it is; if not, its money is on the way back and nothing else has changed."""
    money = it.payments[0]
    check_payments(it)
    if it.status is Status.CONFIRMED:
        assert money.outcome is PaymentOutcome.REVIVED
        return True
    assert (it.status, money.status) == (Status.EXPIRED, PaymentStatus.REFUND_DUE)
    assert money.reason == Refusal.HOLD_EXPIRED.code
    return False


MICROSECOND = 1e-6


@pytest.mark.parametrize("grace", [0, 1, 120])
@pytest.mark.parametrize(("over", "revived"), [(-1, True), (-MICROSECOND, True), (0, True), (MICROSECOND, False)])
def test_a_late_payment_revives_until_the_very_end_of_the_grace_period(grace: int, over: float, revived: bool) -> None:
    if grace + over >= 0:
        layout = example_layout(policy=Policy(late_grace_seconds=grace))
        assert is_revived(comes_late(layout, seconds=grace + over)) is revived


def test_a_payment_at_the_moment_of_expiry_revives_the_booking_even_without_grace() -> None:
    held = structs.replace(late(0), status=Status.HELD)
    state = make_event_state(example_layout(policy=Policy(late_grace_seconds=0)), [held])
    outcome = expect_done(state, settle_command("money", amount=6000))
    assert is_revived(outcome.booking)
    assert [fact.kind for fact in state.entries] == ["expired", "payment.succeeded", "confirmed"]


@pytest.mark.parametrize("status", EventStatus)
def test_a_late_payment_revives_only_while_the_event_is_on_sale(status: EventStatus) -> None:
    assert is_revived(comes_late(example_layout(status=status))) is (status is EventStatus.ACTIVE)


@every_status
def test_a_late_payment_does_not_take_the_seat_of_another(status: Status) -> None:
    taken = {Status.HELD, Status.PAYMENT_SUBMITTED, Status.CONFIRMED, Status.COMPLETED}
    other = make_booking("other", status, seat_line("A-1"))
    assert is_revived(comes_late(None, other)) is (status not in taken)


def test_a_late_payment_takes_a_seat_whose_other_hold_expires_at_that_moment() -> None:
    other = make_booking("other", Status.HELD, seat_line("A-1"), expires_at=NOW)
    assert is_revived(comes_late(None, other))


def test_a_late_payment_does_not_take_a_blocked_seat() -> None:
    layout = example_layout()
    blocked = tuple(structs.replace(seat, blocked=seat.label == "A-1") for seat in layout.seats)
    assert not is_revived(comes_late(example_layout(seats=blocked)))
    elsewhere = tuple(structs.replace(seat, blocked=seat.label == "A-2") for seat in layout.seats)
    assert is_revived(comes_late(example_layout(seats=elsewhere)))


@pytest.mark.parametrize(("taken", "revived"), [(8, True), (9, False), (10, False)])
@pytest.mark.parametrize("status", [Status.HELD, Status.CONFIRMED])
def test_a_late_payment_needs_room_in_the_pool(status: Status, taken: int, revived: bool) -> None:
    assert is_revived(comes_late(None, make_booking("other", status, standing_line(taken)))) is revived


@pytest.mark.parametrize(
    ("policy", "has", "revived"),
    [
        (Policy(one_booking_per_user=True), 0, True),
        (Policy(one_booking_per_user=True), 1, False),
        (Policy(max_units_per_user=5), 2, True),
        (Policy(max_units_per_user=5), 3, False),
        (Policy(), 3, True),
    ],
)
@pytest.mark.parametrize("status", [Status.HELD, Status.PAYMENT_SUBMITTED, Status.CONFIRMED])
def test_a_late_payment_respects_the_limits_of_a_user(status: Status, policy: Policy, has: int, revived: bool) -> None:
    others = [make_booking("other", status, standing_line(has), user="the buyer")] if has else []
    assert is_revived(comes_late(example_layout(policy=policy), *others)) is revived
    strangers = [make_booking("other", status, standing_line(has), user="another")] if has else []
    assert is_revived(comes_late(example_layout(policy=policy), *strangers))


def test_the_first_late_payment_for_a_seat_gets_it_and_the_second_is_refunded() -> None:
    first, second = late(10), structs.replace(late(20), id=make_id("that"), request_key=make_id("k"))
    state = make_event_state(bookings=[first, second])
    assert is_revived(expect_done(state, settle_command("money", of="that", amount=6000)).booking)
    assert not is_revived(expect_done(state, settle_command("money", amount=6000)).booking)


def test_a_payment_for_a_cancelled_booking_is_refunded_although_the_seat_is_free() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD, PAYMENTS["started"])])
    expect_done(state, act_command("it", Verb.CANCEL))
    outcome = expect_done(state, settle_command("money"))
    assert outcome.booking.status is Status.CANCELLED
    assert outcome.payment is not None
    assert outcome.payment.status is PaymentStatus.REFUND_DUE


# Two payments of one booking.


@pytest.mark.parametrize("status", [Status.HELD, Status.EXPIRED])
@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_the_first_payment_of_a_booking_is_kept_and_the_second_is_refunded(
    status: Status, order: tuple[str, str]
) -> None:
    state = make_event_state(bookings=[booking_with(status, make_payment("one"), make_payment("two"))])
    for name in (*order, *order):
        it = expect_done(state, settle_command(name)).booking
        check_payments(it)
    first, second = (it.payment(make_id(name)) for name in order)
    assert first is not None
    assert second is not None
    assert (first.status, second.status) == (PaymentStatus.SUCCEEDED, PaymentStatus.REFUND_DUE)
    assert it.status is Status.CONFIRMED


def test_the_booking_stays_when_its_second_payment_is_back() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD, make_payment("one"), make_payment("two"))])
    for command in (settle_command("one"), settle_command("two"), settle_command("two", PaymentResult.REFUNDED)):
        it = expect_done(state, command).booking
    assert it.status is Status.CONFIRMED
    assert [one.status for one in it.payments] == [PaymentStatus.SUCCEEDED, PaymentStatus.REFUNDED]


@pytest.mark.parametrize("status", [EventStatus.ACTIVE, EventStatus.CANCELLED])
def test_the_payment_of_a_refunded_booking_is_refunded_once(status: EventStatus) -> None:
    money = (
        PAYMENTS["succeeded"],
        make_payment("back", PaymentStatus.REFUNDED),
        make_payment("failed", PaymentStatus.FAILED),
    )
    state = make_event_state(example_layout(status=status), [booking_with(Status.CONFIRMED, *money)])
    if status is EventStatus.ACTIVE:
        expect_done(state, act_command("it", Verb.REFUND))
    else:
        end_bookings(state)
    it = state.bookings[make_id("it")]
    assert it.status is Status.REFUNDED
    assert [one.status for one in it.payments] == ["refund_due", "refunded", "failed"]
    assert [fact.kind for fact in state.entries] == ["refunded", "payment.refund_due"]


# Beginning a payment.


def test_a_payment_is_of_what_the_booking_costs_and_is_not_captured() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD)])
    begun = settled(state, pay_command("money", return_url="https://shop.example/"))
    assert (begun.status, begun.outcome, begun.captured_at) == (PaymentStatus.STARTED, None, None)
    assert (begun.amount, begun.currency, begun.return_url) == (3000, "EUR", "https://shop.example/")
    assert [fact.kind for fact in state.entries] == ["payment.started"]


def test_beginning_to_pay_extends_the_hold_once() -> None:
    state = make_event_state(example_layout(policy=Policy(extend_seconds=900)), [booking_with(Status.HELD)])
    assert expect_done(state, pay_command("one")).booking.expires_at == seconds_from_now(900)
    state = make_event_state(state.layout, state.bookings.values(), now=seconds_from_now(60))
    assert expect_done(state, pay_command("two")).booking.expires_at == seconds_from_now(900)


def test_beginning_to_pay_extends_no_further_than_a_hold_may_last() -> None:
    state = make_event_state(example_layout(policy=Policy(extend_seconds=9000)), [booking_with(Status.HELD)])
    assert expect_done(state, pay_command("one")).booking.expires_at == seconds_from_now(1740)


def test_a_payment_that_is_begun_again_with_the_same_key_is_the_same() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD)])
    begun = settled(state, pay_command("money"))
    written = len(state.entries)
    again = expect_done(state, pay_command("money", payment=make_id("other")))
    assert (again.payment, again.replayed) == (begun, True)
    assert not expect_done(state, pay_command("money")).replayed
    assert expect_refusal(state, pay_command("money", fingerprint=make_id("other"))) is Refusal.IDEMPOTENCY_KEY_REUSED
    assert len(state.entries) == written


@every_status
def test_a_payment_that_was_begun_is_found_again_whatever_became_of_the_booking(status: Status) -> None:
    state = make_event_state(bookings=[booking_with(status, PAYMENTS["failed"])])
    again = expect_done(state, pay_command("money", payment=make_id("other")))
    assert (again.payment, again.replayed) == (PAYMENTS["failed"], True)
    assert is_unchanged(state)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.HELD])
def test_only_a_hold_can_be_paid_for(status: Status) -> None:
    state = make_event_state(bookings=[booking_with(status)])
    expected = {
        Status.PAYMENT_SUBMITTED: Refusal.ALREADY_SUBMITTED,
        Status.CONFIRMED: Refusal.ALREADY_CONFIRMED,
        Status.REJECTED: Refusal.ALREADY_REJECTED,
        Status.EXPIRED: Refusal.HOLD_EXPIRED,
        Status.CANCELLED: Refusal.ALREADY_CANCELLED,
        Status.REFUNDED: Refusal.ALREADY_REFUNDED,
        Status.COMPLETED: Refusal.ALREADY_COMPLETED,
    }
    assert expect_refusal(state, pay_command("money")) is expected[status]
    assert is_unchanged(state)


def test_only_its_own_buyer_begins_to_pay() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD, user="the buyer")])
    assert expect_refusal(state, pay_command("money", owner="another")) is Refusal.NOT_FOUND
    assert expect_done(state, pay_command("money", owner="the buyer"))


def test_a_booking_can_start_only_so_many_payments() -> None:
    many = [make_payment(f"p{number}", PaymentStatus.FAILED) for number in range(PAYMENTS_MAX)]
    state = make_event_state(bookings=[booking_with(Status.HELD, *many)])
    assert expect_refusal(state, pay_command("money")) is Refusal.LIMIT_REACHED
    assert expect_done(make_event_state(bookings=[booking_with(Status.HELD, *many[1:])]), pay_command("money"))


def free() -> Booking:
    return make_free(booking_with(Status.HELD))


@pytest.mark.parametrize("provider", ["gateway", RECEIPT])
def test_a_free_booking_is_confirmed_as_soon_as_payment_starts(provider: str) -> None:
    state = make_event_state(bookings=[free()])
    outcome = expect_done(state, pay_command("money", provider=provider))
    assert outcome.booking.status is Status.CONFIRMED
    assert outcome.payment is not None
    assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.SUCCEEDED, PaymentOutcome.FULFILLED)
    assert outcome.payment.amount == 0
    again = expect_done(state, pay_command("money"))
    assert again.payment == outcome.payment
    check_payments(again.booking)


def test_a_cancelled_free_booking_leaves_consistent_payments() -> None:
    state = make_event_state(bookings=[free()])
    expect_done(state, pay_command("money"))
    it = expect_done(state, act_command("it", Verb.CANCEL)).booking
    assert it.status is Status.CANCELLED
    check_payments(it)


@pytest.mark.parametrize("status", [EventStatus.CANCELLED, EventStatus.COMPLETED])
def test_a_free_booking_that_ends_with_its_event_leaves_consistent_payments(status: EventStatus) -> None:
    state = make_event_state(bookings=[free()])
    expect_done(state, pay_command("money"))
    state = make_event_state(example_layout(status=status), state.bookings.values())
    assert end_bookings(state) == 1
    check_payments(state.bookings[make_id("it")])


# Receipts.

MANUAL = Policy(review="manual", review_seconds=3600)


def reviewed(*bookings: Booking, now: datetime = NOW, policy: Policy = MANUAL) -> EventState:
    return make_event_state(example_layout(policy=policy), bookings, now=now)


def submitted() -> Booking:
    return expect_done(reviewed(booking_with(Status.HELD)), submit_command("paper")).booking


def test_a_receipt_is_a_payment_that_waits_for_review() -> None:
    state = reviewed(booking_with(Status.HELD))
    it = expect_done(state, submit_command("paper")).booking
    assert (it.status, it.expires_at) == (Status.PAYMENT_SUBMITTED, seconds_from_now(3600))
    (proof,) = it.payments
    assert (proof.status, proof.provider, proof.amount) == (PaymentStatus.SUBMITTED, RECEIPT, 3000)
    assert [receipt.file_ref for _, receipt in state.new_receipts] == ["paper"]


def test_a_receipt_belongs_to_the_payment_that_was_begun_for_it() -> None:
    state = reviewed(booking_with(Status.HELD))
    begun = settled(state, pay_command("money", provider=RECEIPT))
    it = expect_done(state, submit_command("paper")).booking
    assert it.payments == (structs.replace(begun, status=PaymentStatus.SUBMITTED),)


def test_a_second_receipt_is_another_proof_of_the_same_payment() -> None:
    state = reviewed(booking_with(Status.HELD))
    it = expect_done(state, submit_command("paper")).booking
    again = expect_done(state, submit_command("more paper")).booking
    assert (again.version, again.status, again.payments) == (it.version, it.status, it.payments)
    assert [receipt.file_ref for _, receipt in state.new_receipts] == ["paper", "more paper"]
    assert expect_done(state, submit_command("paper")).booking == again
    assert len(state.new_receipts) == 2


def test_receipts_are_taken_only_where_somebody_reviews_them() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD)])
    assert expect_refusal(state, submit_command("paper")) is Refusal.REVIEW_NOT_OFFERED
    assert is_unchanged(state)
    assert not state.new_receipts


def test_a_booking_takes_only_so_many_receipts() -> None:
    many = [make_payment(f"p{number}", PaymentStatus.FAILED) for number in range(PAYMENTS_MAX)]
    assert expect_refusal(reviewed(booking_with(Status.HELD, *many)), submit_command("paper")) is Refusal.LIMIT_REACHED


def test_approving_a_receipt_captures_its_payment() -> None:
    state = reviewed(submitted())
    it = expect_done(state, act_command("it", Verb.APPROVE)).booking
    assert it.status is Status.CONFIRMED
    (proof,) = it.payments
    assert (proof.status, proof.outcome) == (PaymentStatus.SUCCEEDED, PaymentOutcome.FULFILLED)
    assert proof.captured_at == NOW
    check_payments(it)


def test_a_rejected_receipt_captures_nothing() -> None:
    it = expect_done(reviewed(submitted()), act_command("it", Verb.REJECT, reason="Unreadable.")).booking
    assert (it.status, it.reason) == (Status.REJECTED, "Unreadable.")
    (proof,) = it.payments
    assert (proof.status, proof.outcome) == (PaymentStatus.FAILED, None)
    check_payments(it)


REASONS = {
    "not reviewed in time": Reason.RECEIPT_NOT_REVIEWED,
    "paid otherwise": Reason.PAID_OTHERWISE,
    "the event is cancelled": Reason.EVENT_CANCELLED,
}


@pytest.mark.parametrize("how", REASONS)
def test_the_payment_of_an_unreviewed_receipt_goes_to_review(how: str) -> None:
    it = submitted()
    other = structs.replace(it, payments=(*it.payments, make_payment("money")))
    if how == "not reviewed in time":
        state = reviewed(it, now=seconds_from_now(3600))
        assert expire_due(state) == 1
    elif how == "paid otherwise":
        state = reviewed(other)
        expect_done(state, settle_command("money"))
    else:
        state = make_event_state(example_layout(policy=MANUAL, status=EventStatus.CANCELLED), [it])
        end_bookings(state)
    it = state.bookings[make_id("it")]
    proof = it.payments[0]
    assert (proof.status, proof.outcome) == (PaymentStatus.REVIEW, PaymentOutcome.REVIEW)
    assert proof.reason == REASONS[how]
    check_payments(it)
    assert settled(state, resolve_command(_name(proof), Remedy.BY_HAND)).status is PaymentStatus.REFUNDED


def _name(proof: Payment) -> str:
    return proof.id.decode().lstrip(".")


@pytest.mark.parametrize(("seconds", "taken"), [(120, False), (120.1, False), (10, True)])
def test_a_late_receipt_revives_the_booking_as_a_payment_does(seconds: float, taken: bool) -> None:
    it = structs.replace(late(seconds), payments=())
    others = [make_booking("other", Status.HELD, seat_line("A-1"))] if taken else []
    state = reviewed(it, *others)
    if taken or seconds > 120:
        assert expect_refusal(state, submit_command("paper")) is Refusal.HOLD_EXPIRED
        assert is_unchanged(state)
        assert not state.new_receipts
    else:
        revived = expect_done(state, submit_command("paper")).booking
        assert (revived.status, revived.expires_at) == (Status.PAYMENT_SUBMITTED, seconds_from_now(3600))
        assert [one.status for one in revived.payments] == [PaymentStatus.SUBMITTED]
        assert held_and_sold(state, STANDING) == (2, 0)


def test_an_unreviewed_receipt_can_be_submitted_again() -> None:
    expired = reviewed(submitted(), now=seconds_from_now(3600))
    it = expect_done(expired, submit_command("paper again")).booking
    assert it.status is Status.PAYMENT_SUBMITTED
    assert [one.status for one in it.payments] == [PaymentStatus.REVIEW, PaymentStatus.SUBMITTED]
    check_payments(it)


def test_the_payment_of_an_approved_receipt_is_refunded_by_hand() -> None:
    state = reviewed(submitted())
    expect_done(state, act_command("it", Verb.APPROVE))
    it = expect_done(state, act_command("it", Verb.REFUND)).booking
    assert [one.status for one in it.payments] == [PaymentStatus.REFUND_DUE]
    expect_done(state, resolve_command("paper", Remedy.REVIEW))
    assert expect_refusal(state, resolve_command("paper", Remedy.REFUND)) is Refusal.NOT_REFUNDABLE
    assert settled(state, resolve_command("paper", Remedy.BY_HAND)).status is PaymentStatus.REFUNDED


# Everything at once.

NAMES = ("one", "two")
VERBS = (Verb.SUBMIT, Verb.SETTLE)

commands = st.one_of(
    st.builds(pay_command, st.sampled_from(NAMES), provider=st.sampled_from(["gateway", RECEIPT])),
    st.builds(
        settle_command,
        st.sampled_from(NAMES),
        st.sampled_from(PaymentResult),
        amount=st.sampled_from([3000, 3000, 3000, 1, None]),
    ),
    st.builds(resolve_command, st.sampled_from(NAMES), st.sampled_from(Remedy)),
    st.builds(submit_command, st.sampled_from(["paper", "more paper"])),
    st.builds(act_command, st.just("it"), st.sampled_from([verb for verb in Verb if verb not in VERBS])),
)
others = st.sampled_from(["nothing", "seat taken", "seat freed", "event cancelled", "event completed"])
steps = st.lists(st.tuples(st.sampled_from([0, 1, 60, 600]), others, commands), max_size=25)


@settings(max_examples=500 if IS_LONG else 200, deadline=None)
@given(steps, st.booleans())
def test_any_sequence_of_commands_leaves_consistent_payments(
    story: list[tuple[int, str, Command]], costs_nothing: bool
) -> None:
    it = make_free(booking_with(Status.HELD)) if costs_nothing else booking_with(Status.HELD)
    there = {it.id: it}
    status, now = EventStatus.ACTIVE, NOW
    for seconds, other, command in story:
        now += timedelta(seconds=seconds)
        if other == "event cancelled" and status is EventStatus.ACTIVE:
            status = EventStatus.CANCELLED
        if other == "event completed" and status is EventStatus.ACTIVE:
            status = EventStatus.COMPLETED
        state = make_event_state(example_layout(policy=MANUAL, status=status), there.values(), now=now)
        before = state.bookings[it.id]
        if other == "seat taken":
            decide_one(state, place_command("other", SeatItem("A-1")))
        if other == "seat freed":
            decide_one(state, act_command("other", Verb.CANCEL))
        decide_one(state, command)
        after_ = state.bookings[it.id]
        check_payments(after_)
        _check_step(before, after_)
        there = dict(state.bookings)


def _check_step(before: Booking, now: Booking) -> None:
    """Nothing that was captured is forgotten, and nothing that is back comes again."""
    assert [one.id for one in now.payments][: len(before.payments)] == [one.id for one in before.payments]
    for old, new in zip(before.payments, now.payments, strict=False):
        assert (old.amount, old.currency, old.provider) == (new.amount, new.currency, new.provider)
        if old.captured_at is not None:
            assert new.captured_at == old.captured_at
        if old.status is PaymentStatus.REFUNDED:
            assert new == old
