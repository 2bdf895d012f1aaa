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
from holdfast.core.policy import PRESETS, Policy
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
    expect_accepted,
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
    **{status.value: make_payment("payment", status) for status in PaymentStatus},
    "review of a silent provider": make_payment("payment", PaymentStatus.REVIEW, captured_at=None),
    "review of a receipt": make_payment("payment", PaymentStatus.REVIEW, captured_at=None, provider=RECEIPT),
    # Staff refunded these without knowing whether they were captured.
    "assumed refund due": make_payment("payment", PaymentStatus.REFUND_DUE, capture_assumed=True),
    "assumed refunded": make_payment("payment", PaymentStatus.REFUNDED, capture_assumed=True),
    "assumed review": make_payment("payment", PaymentStatus.REVIEW, capture_assumed=True, reason=Reason.REFUND_REFUSED),
}
RESULTS = {
    "captured": settle_command("payment"),
    "too little captured": settle_command("payment", amount=2999),
    "too much captured": settle_command("payment", amount=3001),
    "captured in another currency": settle_command("payment", currency="USD"),
    "captured, amount unknown": settle_command("payment", amount=None, currency=None),
    "failed": settle_command("payment", PaymentResult.FAILED),
    "refund accepted": settle_command("payment", PaymentResult.REFUND_ACCEPTED),
    "refunded": settle_command("payment", PaymentResult.REFUNDED),
    "refund failed": settle_command("payment", PaymentResult.REFUND_FAILED),
    "disputed": settle_command("payment", PaymentResult.DISPUTED),
    "dispute won": settle_command("payment", PaymentResult.DISPUTE_WON),
    "dispute lost": settle_command("payment", PaymentResult.DISPUTE_LOST),
}
# These can take the money of a refund away again.
AFTER_REFUND = {"refund failed", "disputed", "dispute won", "dispute lost"}
WRONG_AMOUNTS = ["too little captured", "too much captured", "captured in another currency", "captured, amount unknown"]
OPEN = ["started", "failed", "review of a silent provider"]
ENDED = [Status.REJECTED, Status.CANCELLED, Status.REFUNDED, Status.COMPLETED, Status.CONFIRMED]
# Only a confirmed booking, or a completed one, keeps a payment.
PAID = {Status.CONFIRMED, Status.COMPLETED}

every_status = pytest.mark.parametrize("status", Status)
every_payment = pytest.mark.parametrize("kind", PAYMENTS)


def booking_with(status: Status, *payments: Payment, **changes: object) -> Booking:
    """A booking of seat A-1 for 3000, with these payments. If it has expired, that was ten seconds ago."""
    expires_at = seconds_from_now(-10) if status is Status.EXPIRED else seconds_from_now(540)
    booking = make_booking("it", status, seat_line("A-1"), expires_at=expires_at, payments=payments)
    return structs.replace(booking, **changes)


def is_consistent(booking: Booking) -> bool:
    try:
        check_payments(booking)
    except AssertionError:
        return False
    return True


def expect_payment(state: EventState, command: Command) -> Payment:
    found = expect_accepted(state, command).payment
    assert found is not None
    return found


# Results from the provider.


# The next tests run every result in every state: what a result means depends on the payment and on its booking.


@every_payment
def test_every_provider_result_has_an_answer_in_every_state(kind: str) -> None:
    for status, result in product(Status, RESULTS):
        with case(status, result):
            state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
            outcome = expect_accepted(state, RESULTS[result])
            assert outcome.payment == state.bookings[make_id("it")].payment(make_id("payment"))


@every_payment
def test_a_repeated_provider_result_changes_nothing(kind: str) -> None:
    for status, result in product(Status, RESULTS):
        with case(status, result):
            state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
            first = expect_accepted(state, RESULTS[result]).booking
            written = len(state.entries)
            assert expect_accepted(state, RESULTS[result]).booking == first
            assert len(state.entries) == written
            reloaded = make_event_state(bookings=[first])
            assert expect_accepted(reloaded, RESULTS[result]).booking == first
            assert is_unchanged(reloaded)


@every_payment
def test_every_provider_result_leaves_consistent_payments(kind: str) -> None:
    consistent = [before for status in Status if is_consistent(before := booking_with(status, PAYMENTS[kind]))]
    assert consistent
    for before, result in product(consistent, RESULTS):
        with case(before.status, result):
            check_payments(expect_accepted(make_event_state(bookings=[before]), RESULTS[result]).booking)


@every_status
def test_only_a_confirmed_booking_can_start_with_a_kept_payment(status: Status) -> None:
    """Otherwise the test above would skip too many states."""
    skipped = {kind for kind, payment in PAYMENTS.items() if not is_consistent(booking_with(status, payment))}
    assert skipped == (set() if status in PAID else {"succeeded"})


@every_payment
def test_a_captured_payment_stays_captured_and_a_refunded_one_stays_refunded(kind: str) -> None:
    before = PAYMENTS[kind]
    for status, result in product(Status, RESULTS):
        with case(status, result):
            after = expect_payment(make_event_state(bookings=[booking_with(status, before)]), RESULTS[result])
            assert before.captured_at in (None, after.captured_at)
            if before.status is PaymentStatus.REFUNDED and result not in AFTER_REFUND:
                assert after == before or before.capture_assumed


@pytest.mark.parametrize(
    ("status", "kind"), [*((Status.HELD, kind) for kind in OPEN), (Status.PAYMENT_SUBMITTED, "started")]
)
def test_a_payment_in_time_confirms_the_booking(status: Status, kind: str) -> None:
    state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
    outcome = expect_accepted(state, settle_command("payment"))
    assert outcome.booking.status is Status.CONFIRMED
    assert outcome.payment is not None
    assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.SUCCEEDED, PaymentOutcome.FULFILLED)
    assert outcome.payment.captured_at == NOW
    assert held_and_sold(state, 0) == (0, 1)
    assert {entry.kind for entry in state.entries} == {"payment.succeeded", "confirmed"}


@pytest.mark.parametrize("kind", OPEN)
def test_a_late_payment_revives_the_booking(kind: str) -> None:
    state = make_event_state(bookings=[booking_with(Status.EXPIRED, PAYMENTS[kind])])
    outcome = expect_accepted(state, settle_command("payment"))
    assert outcome.booking.status is Status.CONFIRMED
    assert outcome.payment is not None
    assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.SUCCEEDED, PaymentOutcome.REVIVED)
    assert held_and_sold(state, 0) == (0, 1)


@pytest.mark.parametrize(
    ("status", "kind"),
    [*((status, "started") for status in ENDED), *((Status.CANCELLED, kind) for kind in OPEN if kind != "started")],
)
def test_a_payment_for_an_ended_or_paid_booking_is_refunded(status: Status, kind: str) -> None:
    state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
    outcome = expect_accepted(state, settle_command("payment"))
    assert outcome.booking.status is status
    assert outcome.payment is not None
    assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.REFUND_DUE, None)
    assert outcome.payment.captured_at == NOW
    assert outcome.payment.reason
    assert [entry.kind for entry in state.entries] == ["payment.refund_due"]
    assert not state.counter_shifts


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        *(("started", result) for result in WRONG_AMOUNTS),
        *((kind, "too little captured") for kind in OPEN if kind != "started"),
    ],
)
def test_a_wrong_amount_confirms_nothing_and_goes_to_review(kind: str, result: str) -> None:
    for status in Status:
        with case(status):
            state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
            outcome = expect_accepted(state, RESULTS[result])
            assert outcome.booking.status is status
            assert outcome.payment is not None
            assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.REVIEW, PaymentOutcome.REVIEW)
            assert outcome.payment.captured_at == NOW
            assert outcome.payment.reason == Reason.WRONG_AMOUNT
            recorded = state.entries[-1].data
            assert (recorded.amount, recorded.currency) == (RESULTS[result].amount, RESULTS[result].currency)
            assert not state.counter_shifts


@pytest.mark.parametrize("kind", ["submitted", "review of a receipt"])
def test_no_provider_result_changes_a_receipt(kind: str) -> None:
    for status, result in product(Status, RESULTS):
        with case(status, result):
            state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
            assert expect_payment(state, RESULTS[result]) == PAYMENTS[kind]
            assert is_unchanged(state)


@every_payment
def test_a_failure_counts_only_for_a_payment_without_any_other_result(kind: str) -> None:
    before = PAYMENTS[kind]
    for status in Status:
        with case(status):
            state = make_event_state(bookings=[booking_with(status, before)])
            after = expect_payment(state, settle_command("payment", PaymentResult.FAILED))
            assert after.status is (PaymentStatus.FAILED if kind == "started" else before.status)
            assert state.bookings[make_id("it")].status is status


@pytest.mark.parametrize(
    ("status", "order"),
    [
        (Status.HELD, (PaymentResult.FAILED, PaymentResult.CAPTURED)),
        (Status.HELD, (PaymentResult.CAPTURED, PaymentResult.FAILED)),
        (Status.EXPIRED, (PaymentResult.FAILED, PaymentResult.CAPTURED)),
    ],
)
def test_a_failure_and_a_success_in_either_order_are_a_success(
    status: Status, order: tuple[PaymentResult, PaymentResult]
) -> None:
    state = make_event_state(bookings=[booking_with(status, PAYMENTS["started"])])
    for result in order:
        outcome = expect_accepted(state, settle_command("payment", result))
    assert outcome.booking.status is Status.CONFIRMED
    assert outcome.payment is not None
    assert outcome.payment.status is PaymentStatus.SUCCEEDED


# Every pair: only the kept payment of a confirmed booking ends that booking.
@pytest.mark.parametrize("kind", [kind for kind, payment in PAYMENTS.items() if payment.captured_at is not None])
@every_status
def test_a_payment_refunded_by_the_provider_is_refunded(status: Status, kind: str) -> None:
    before = booking_with(status, PAYMENTS[kind])
    state = make_event_state(bookings=[before])
    outcome = expect_accepted(state, settle_command("payment", PaymentResult.REFUNDED))
    assert outcome.payment is not None
    assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.REFUNDED, PaymentOutcome.REFUNDED)
    ends = kind == "succeeded" and status is Status.CONFIRMED
    assert outcome.booking.status is (Status.REFUNDED if ends else status)


@pytest.mark.parametrize("status", [Status.HELD, Status.EXPIRED, Status.CONFIRMED])
def test_a_refund_that_arrives_before_its_capture_keeps_no_payment(status: Status) -> None:
    """Providers do not promise any order."""
    state = make_event_state(bookings=[booking_with(status, PAYMENTS["started"])])
    expect_accepted(state, settle_command("payment", PaymentResult.REFUNDED))
    outcome = expect_accepted(state, settle_command("payment", PaymentResult.CAPTURED))
    assert outcome.payment is not None
    assert outcome.payment.status is not PaymentStatus.SUCCEEDED
    assert outcome.booking.status is not Status.CONFIRMED or status is Status.CONFIRMED


# Money that comes, or goes, after the payment was settled.


@every_status
def test_a_capture_after_a_refund_by_hand_needs_a_person(status: Status) -> None:
    """Staff recorded a refund of a payment that nobody knew to be captured. Now the money is here."""
    for result in ("captured", "too little captured"):
        before = make_event_state(bookings=[booking_with(status, PAYMENTS["review of a silent provider"])])
        by_hand = expect_payment(before, resolve_command("payment", Remedy.BY_HAND, reason="In cash."))
        assert (by_hand.status, by_hand.capture_assumed) == (PaymentStatus.REFUNDED, True)
        state = make_event_state(bookings=before.bookings.values())
        outcome = expect_accepted(state, RESULTS[result])
        assert outcome.payment is not None
        assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.REVIEW, PaymentOutcome.REVIEW)
        assert outcome.payment.reason == Reason.CAPTURED_AFTER_ALL
        assert outcome.booking.status is status
        assert [entry.kind for entry in state.entries] == ["payment.review"]
        assert state.entries[0].data.amount == (None if result == "captured" else 2999)


def test_captures_after_a_refund_by_hand_are_settled_once() -> None:
    """However often the provider reports the capture, and whatever staff decide in between."""
    state = make_event_state(bookings=[booking_with(Status.EXPIRED, PAYMENTS["review of a silent provider"])])
    expect_accepted(state, resolve_command("payment", Remedy.BY_HAND))
    for _ in range(3):
        assert expect_payment(state, settle_command("payment")).status is PaymentStatus.REVIEW
    assert expect_payment(state, resolve_command("payment", Remedy.BY_HAND)).status is PaymentStatus.REFUNDED
    settled = len(state.entries)
    assert expect_payment(state, settle_command("payment")).status is PaymentStatus.REFUNDED
    assert len(state.entries) == settled


def test_a_capture_after_a_known_refund_changes_nothing() -> None:
    """Staff, or the provider, refunded money that we knew to be captured."""
    for kind, settlement in (
        ("review", resolve_command("payment", Remedy.BY_HAND)),
        ("review of a silent provider", settle_command("payment", PaymentResult.REFUNDED)),
        ("assumed refund due", settle_command("payment", PaymentResult.REFUND_ACCEPTED)),
    ):
        state = make_event_state(bookings=[booking_with(Status.EXPIRED, PAYMENTS[kind])])
        refunded = expect_payment(state, settlement)
        assert (refunded.status, refunded.capture_assumed) == (PaymentStatus.REFUNDED, False)
        assert expect_payment(state, settle_command("payment")) == refunded


def test_a_capture_after_a_refused_refund_is_not_lost() -> None:
    """Staff ask for a refund that the provider refuses, because nothing is paid yet. Then it is."""
    state = make_event_state(bookings=[booking_with(Status.EXPIRED, PAYMENTS["review of a silent provider"])])
    due = expect_payment(state, resolve_command("payment", Remedy.REFUND))
    assert (due.status, due.capture_assumed) == (PaymentStatus.REFUND_DUE, True)
    refused = structs.replace(due, status=PaymentStatus.REVIEW, outcome=PaymentOutcome.REVIEW)
    for payment, status in ((due, PaymentStatus.REFUND_DUE), (refused, PaymentStatus.REVIEW)):
        state = make_event_state(bookings=[booking_with(Status.EXPIRED, payment)])
        found = expect_payment(state, settle_command("payment"))
        assert (found.status, found.capture_assumed) == (status, False)
    assert found.reason == Reason.CAPTURED_AFTER_ALL


@pytest.mark.parametrize("kind", ["refund_due", "refunded"])
@every_status
def test_a_refund_that_fails_later_needs_a_person(status: Status, kind: str) -> None:
    state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
    outcome = expect_accepted(state, RESULTS["refund failed"])
    assert outcome.payment is not None
    assert (outcome.payment.status, outcome.payment.reason) == (PaymentStatus.REVIEW, Reason.REFUND_FAILED)
    assert outcome.booking.status is status
    assert [entry.kind for entry in state.entries] == ["payment.review"]


def test_only_a_person_ends_the_review_of_a_failed_refund() -> None:
    """The worker that asked for the refund, or the provider, may report the refund after its failure. Another request
    under the same idempotency key would only return the failed refund."""
    state = make_event_state(bookings=[booking_with(Status.REFUNDED, PAYMENTS["refund_due"])])
    failed = expect_payment(state, RESULTS["refund failed"])
    for result in ("refund accepted", "refunded", "refund failed", "captured"):
        assert expect_payment(state, RESULTS[result]) == failed
    assert expect_refusal(state, resolve_command("payment", Remedy.REFUND)) is Refusal.NOT_REFUNDABLE
    assert expect_payment(state, resolve_command("payment", Remedy.BY_HAND)).status is PaymentStatus.REFUNDED


@pytest.mark.parametrize("result", ["disputed", "dispute lost"])
@pytest.mark.parametrize("kind", [kind for kind, payment in PAYMENTS.items() if payment.provider != RECEIPT])
def test_a_disputed_payment_needs_a_person_and_leaves_its_booking_alone(kind: str, result: str) -> None:
    for before in (booking_with(status, PAYMENTS[kind]) for status in Status):
        with case(before.status):
            state = make_event_state(bookings=[before])
            outcome = expect_accepted(state, RESULTS[result])
            assert outcome.payment is not None
            assert outcome.payment.status is PaymentStatus.REVIEW
            assert outcome.payment.reason == result.replace(" ", "_")
            assert outcome.payment.captured_at is not None
            assert outcome.booking.status is before.status
            assert [entry.kind for entry in state.entries] == ["payment.review"]
            assert not state.counter_shifts
            assert expect_refusal(state, resolve_command("payment", Remedy.REFUND)) is Refusal.NOT_REFUNDABLE


def test_a_dispute_is_followed_to_its_end() -> None:
    for end, reason in (("dispute won", Reason.DISPUTE_WON), ("dispute lost", Reason.DISPUTE_LOST)):
        state = make_event_state(bookings=[booking_with(Status.CONFIRMED, PAYMENTS["succeeded"])])
        for result in ("disputed", "disputed", end, end, "disputed", "captured", "refund failed"):
            found = expect_payment(state, RESULTS[result])
        assert (found.status, found.reason) == (PaymentStatus.REVIEW, reason)
        assert [entry.kind for entry in state.entries] == ["payment.review"] * 2
        assert state.bookings[make_id("it")].status is Status.CONFIRMED


@pytest.mark.parametrize("kind", ["started", "failed", "succeeded", "refund_due"])
def test_a_won_dispute_changes_nothing_about_a_payment_that_was_not_disputed(kind: str) -> None:
    state = make_event_state(bookings=[booking_with(Status.CONFIRMED, PAYMENTS[kind])])
    assert expect_payment(state, RESULTS["dispute won"]) == PAYMENTS[kind]


@pytest.mark.parametrize(("end", "becomes"), [("dispute won", "refund_due"), ("disputed", "review")])
def test_refunding_a_booking_refunds_the_payment_whose_dispute_was_won(end: str, becomes: str) -> None:
    """Money that is still in dispute cannot be refunded."""
    state = make_event_state(bookings=[booking_with(Status.CONFIRMED, PAYMENTS["succeeded"])])
    for result in ("disputed", end):
        expect_accepted(state, RESULTS[result])
    it = expect_accepted(state, act_command("it", Verb.REFUND)).booking
    assert [payment.status for payment in it.payments] == [becomes]
    check_payments(it)


def test_a_payment_of_another_booking_is_not_found() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD, PAYMENTS["started"])])
    assert expect_refusal(state, settle_command("another")) is Refusal.NOT_FOUND
    assert expect_refusal(state, settle_command("payment", booking="nothing")) is Refusal.NOT_FOUND
    assert expect_refusal(state, settle_command("payment", org=make_id("stranger"))) is Refusal.NOT_FOUND
    assert is_unchanged(state)


# Remedies that staff choose.


@every_payment
def test_every_remedy_has_an_answer_and_repeating_it_changes_nothing(kind: str) -> None:
    for status, remedy in product(Status, Remedy):
        with case(status, remedy):
            state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
            first = decide_one(state, resolve_command("payment", remedy))
            written = len(state.entries)
            assert decide_one(state, resolve_command("payment", remedy)) == first
            assert len(state.entries) == written


@every_payment
def test_every_remedy_leaves_consistent_payments(kind: str) -> None:
    consistent = [before for status in Status if is_consistent(before := booking_with(status, PAYMENTS[kind]))]
    assert consistent
    for before, remedy in product(consistent, Remedy):
        with case(before.status, remedy):
            state = make_event_state(bookings=[before])
            decide_one(state, resolve_command("payment", remedy))
            check_payments(state.bookings[make_id("it")])
            assert state.bookings[make_id("it")].status is before.status


BECOMES = {
    ("refund_due", Remedy.REVIEW): PaymentStatus.REVIEW,
    ("started", Remedy.REVIEW): PaymentStatus.REVIEW,
    ("review", Remedy.REFUND): PaymentStatus.REFUND_DUE,
    ("review", Remedy.BY_HAND): PaymentStatus.REFUNDED,
    ("review of a silent provider", Remedy.BY_HAND): PaymentStatus.REFUNDED,
    ("review of a receipt", Remedy.BY_HAND): PaymentStatus.REFUNDED,
    ("assumed refund due", Remedy.REVIEW): PaymentStatus.REVIEW,
    ("assumed review", Remedy.REFUND): PaymentStatus.REFUND_DUE,
    ("assumed review", Remedy.BY_HAND): PaymentStatus.REFUNDED,
}
UNCHANGED = {
    *((kind, Remedy.REVIEW) for kind in PAYMENTS if kind not in ("refund_due", "assumed refund due", "started")),
    ("refund_due", Remedy.REFUND),
    ("assumed refund due", Remedy.REFUND),
    *((kind, remedy) for kind in ("refunded", "assumed refunded") for remedy in (Remedy.REFUND, Remedy.BY_HAND)),
}
# Nobody knows whether this payment was captured. The next test shows that its refund is recorded.
UNCLEAR = {("review of a silent provider", Remedy.REFUND)}


@pytest.mark.parametrize(("kind", "remedy"), [pair for pair in product(PAYMENTS, Remedy) if pair not in UNCLEAR])
def test_a_remedy_has_its_effect_or_is_refused(kind: str, remedy: Remedy) -> None:
    state = make_event_state(bookings=[booking_with(Status.EXPIRED, PAYMENTS[kind])])
    if (kind, remedy) in BECOMES:
        found = expect_payment(state, resolve_command("payment", remedy, reason="because"))
        assert (found.status, found.reason) == (BECOMES[kind, remedy], "because")
        assert [entry.kind for entry in state.entries] == [f"payment.{found.status}"]
    elif (kind, remedy) in UNCHANGED:
        assert expect_payment(state, resolve_command("payment", remedy)) == PAYMENTS[kind]
        assert is_unchanged(state)
    else:
        assert expect_refusal(state, resolve_command("payment", remedy)) is Refusal.NOT_REFUNDABLE
        assert is_unchanged(state)


@every_status
def test_a_refund_ordered_by_staff_is_recorded_when_it_arrives(status: Status) -> None:
    """Even if no result of the capture ever arrived."""
    for kind in ("review", "review of a silent provider"):
        state = make_event_state(bookings=[booking_with(status, PAYMENTS[kind])])
        if expect_payment(state, resolve_command("payment", Remedy.REFUND)).status is PaymentStatus.REFUND_DUE:
            refunded = expect_payment(
                state, settle_command("payment", PaymentResult.REFUNDED, amount=None, currency=None)
            )
            assert refunded.status is PaymentStatus.REFUNDED, kind


@every_status
def test_a_result_after_a_long_silence_still_counts(status: Status) -> None:
    state = make_event_state(bookings=[booking_with(status, PAYMENTS["started"])])
    assert expect_payment(state, resolve_command("payment", Remedy.REVIEW)).status is PaymentStatus.REVIEW
    assert expect_payment(state, settle_command("payment")).status in (
        PaymentStatus.SUCCEEDED,
        PaymentStatus.REFUND_DUE,
    )
    check_payments(state.bookings[make_id("it")])


# Late payments.


def expired_booking(seconds: float, **changes: object) -> Booking:
    """A booking of seat A-1 and two standing places that expired this long ago, and whose payment is still open."""
    lines = (seat_line("A-1"), standing_line(2))
    open_payment = make_payment("payment", amount=6000)
    booking = make_booking(
        "it", Status.EXPIRED, *lines, expires_at=NOW - timedelta(seconds=seconds), payments=(open_payment,)
    )
    return structs.replace(booking, user="the buyer", **changes)


def pay_late(layout: Layout | None = None, *others: Booking, seconds: float = 10, now: datetime = NOW) -> Booking:
    state = make_event_state(layout, [expired_booking(seconds), *others], now=now)
    return expect_accepted(state, settle_command("payment", amount=6000)).booking


def is_revived(it: Booking) -> bool:
    """Whether the payment revived the booking. If not, check that it is being refunded and nothing else changed."""
    payment = it.payments[0]
    check_payments(it)
    if it.status is Status.CONFIRMED:
        assert payment.outcome is PaymentOutcome.REVIVED
        return True
    assert (it.status, payment.status) == (Status.EXPIRED, PaymentStatus.REFUND_DUE)
    assert payment.reason == Refusal.HOLD_EXPIRED.code
    return False


MICROSECOND = 1e-6


@pytest.mark.parametrize(
    ("grace", "over", "revived"),
    [
        (120, -1, True),
        (120, -MICROSECOND, True),
        (120, 0, True),
        (120, MICROSECOND, False),
        (1, 0, True),
        (1, MICROSECOND, False),
        (0, 0, True),
        (0, MICROSECOND, False),
    ],
)
def test_a_late_payment_revives_until_the_very_end_of_the_grace_period(grace: int, over: float, revived: bool) -> None:
    layout = example_layout(policy=Policy(late_grace_seconds=grace))
    assert is_revived(pay_late(layout, seconds=grace + over)) is revived


def test_a_payment_at_the_moment_of_expiry_revives_the_booking_even_without_grace() -> None:
    held = structs.replace(expired_booking(0), status=Status.HELD)
    state = make_event_state(example_layout(policy=Policy(late_grace_seconds=0)), [held])
    outcome = expect_accepted(state, settle_command("payment", amount=6000))
    assert is_revived(outcome.booking)
    assert [entry.kind for entry in state.entries] == ["expired", "payment.succeeded", "confirmed"]


@pytest.mark.parametrize("status", EventStatus)
def test_a_late_payment_revives_only_while_the_event_is_on_sale(status: EventStatus) -> None:
    assert is_revived(pay_late(example_layout(status=status))) is (status is EventStatus.ACTIVE)


@every_status
def test_a_late_payment_does_not_take_another_buyers_seat(status: Status) -> None:
    taken = {Status.HELD, Status.PAYMENT_SUBMITTED, Status.CONFIRMED, Status.COMPLETED}
    other = make_booking("other", status, seat_line("A-1"))
    assert is_revived(pay_late(None, other)) is (status not in taken)


def test_a_late_payment_takes_a_seat_whose_hold_expires_at_that_moment() -> None:
    other = make_booking("other", Status.HELD, seat_line("A-1"), expires_at=NOW)
    assert is_revived(pay_late(None, other))


def test_a_late_payment_does_not_take_a_blocked_seat() -> None:
    layout = example_layout()
    blocked = tuple(structs.replace(seat, blocked=seat.label == "A-1") for seat in layout.seats)
    assert not is_revived(pay_late(example_layout(seats=blocked)))
    elsewhere = tuple(structs.replace(seat, blocked=seat.label == "A-2") for seat in layout.seats)
    assert is_revived(pay_late(example_layout(seats=elsewhere)))


@pytest.mark.parametrize(
    ("status", "taken", "revived"),
    [
        (Status.HELD, 8, True),
        (Status.HELD, 9, False),
        (Status.HELD, 10, False),
        (Status.CONFIRMED, 8, True),
        (Status.CONFIRMED, 9, False),
    ],
)
def test_a_late_payment_needs_room_in_the_pool(status: Status, taken: int, revived: bool) -> None:
    assert is_revived(pay_late(None, make_booking("other", status, standing_line(taken)))) is revived


@pytest.mark.parametrize(
    ("status", "policy", "units", "revived"),
    [
        (Status.HELD, Policy(one_booking_per_user=True), 0, True),
        (Status.HELD, Policy(one_booking_per_user=True), 1, False),
        (Status.HELD, Policy(max_units_per_user=5), 2, True),
        (Status.HELD, Policy(max_units_per_user=5), 3, False),
        (Status.HELD, Policy(), 3, True),
        (Status.PAYMENT_SUBMITTED, Policy(one_booking_per_user=True), 1, False),
        (Status.PAYMENT_SUBMITTED, Policy(max_units_per_user=5), 3, False),
        (Status.CONFIRMED, Policy(one_booking_per_user=True), 1, False),
        (Status.CONFIRMED, Policy(max_units_per_user=5), 3, False),
    ],
)
def test_a_late_payment_respects_the_limits_of_a_user(
    status: Status, policy: Policy, units: int, revived: bool
) -> None:
    others = [make_booking("other", status, standing_line(units), user="the buyer")] if units else []
    assert is_revived(pay_late(example_layout(policy=policy), *others)) is revived
    strangers = [make_booking("other", status, standing_line(units), user="another")] if units else []
    assert is_revived(pay_late(example_layout(policy=policy), *strangers))


def test_the_first_late_payment_for_a_seat_gets_it_and_the_second_is_refunded() -> None:
    first, second = (
        expired_booking(10),
        structs.replace(expired_booking(20), id=make_id("that"), request_key=make_id("k")),
    )
    state = make_event_state(bookings=[first, second])
    assert is_revived(expect_accepted(state, settle_command("payment", booking="that", amount=6000)).booking)
    assert not is_revived(expect_accepted(state, settle_command("payment", amount=6000)).booking)


def test_a_payment_for_a_cancelled_booking_is_refunded_even_if_the_seat_is_free() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD, PAYMENTS["started"])])
    expect_accepted(state, act_command("it", Verb.CANCEL))
    outcome = expect_accepted(state, settle_command("payment"))
    assert outcome.booking.status is Status.CANCELLED
    assert outcome.payment is not None
    assert outcome.payment.status is PaymentStatus.REFUND_DUE


# Two payments of one booking.


@pytest.mark.parametrize(
    ("status", "order"),
    [(Status.HELD, ("one", "two")), (Status.HELD, ("two", "one")), (Status.EXPIRED, ("one", "two"))],
)
def test_the_first_payment_of_a_booking_is_kept_and_the_second_is_refunded(
    status: Status, order: tuple[str, str]
) -> None:
    state = make_event_state(bookings=[booking_with(status, make_payment("one"), make_payment("two"))])
    for name in (*order, *order):
        it = expect_accepted(state, settle_command(name)).booking
        check_payments(it)
    first, second = (it.payment(make_id(name)) for name in order)
    assert first is not None
    assert second is not None
    assert (first.status, second.status) == (PaymentStatus.SUCCEEDED, PaymentStatus.REFUND_DUE)
    assert it.status is Status.CONFIRMED


def test_a_booking_stays_confirmed_when_its_second_payment_is_refunded() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD, make_payment("one"), make_payment("two"))])
    for command in (settle_command("one"), settle_command("two"), settle_command("two", PaymentResult.REFUNDED)):
        it = expect_accepted(state, command).booking
    assert it.status is Status.CONFIRMED
    assert [payment.status for payment in it.payments] == [PaymentStatus.SUCCEEDED, PaymentStatus.REFUNDED]


@pytest.mark.parametrize("status", [EventStatus.ACTIVE, EventStatus.CANCELLED])
def test_the_payment_of_a_refunded_booking_is_refunded_once(status: EventStatus) -> None:
    payments = (
        PAYMENTS["succeeded"],
        make_payment("back", PaymentStatus.REFUNDED),
        make_payment("failed", PaymentStatus.FAILED),
    )
    state = make_event_state(example_layout(status=status), [booking_with(Status.CONFIRMED, *payments)])
    if status is EventStatus.ACTIVE:
        expect_accepted(state, act_command("it", Verb.REFUND))
    else:
        end_bookings(state)
    it = state.bookings[make_id("it")]
    assert it.status is Status.REFUNDED
    assert [payment.status for payment in it.payments] == ["refund_due", "refunded", "failed"]
    assert [entry.kind for entry in state.entries] == ["refunded", "payment.refund_due"]


# Starting a payment.


def test_a_started_payment_has_the_price_of_the_booking_and_is_not_captured() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD)])
    started = expect_payment(state, pay_command("payment", return_url="https://shop.example/"))
    assert (started.status, started.outcome, started.captured_at) == (PaymentStatus.STARTED, None, None)
    assert (started.amount, started.currency, started.return_url) == (3000, "EUR", "https://shop.example/")
    assert [entry.kind for entry in state.entries] == ["extended", "payment.started"]


def test_starting_a_payment_extends_the_hold_from_its_deadline_and_only_once() -> None:
    state = make_event_state(example_layout(policy=Policy(extend_seconds=900)), [booking_with(Status.HELD)])
    assert expect_accepted(state, pay_command("one")).booking.expires_at == seconds_from_now(540 + 900)
    state = make_event_state(state.layout, state.bookings.values(), now=seconds_from_now(60))
    assert expect_accepted(state, pay_command("two")).booking.expires_at == seconds_from_now(540 + 900)


def test_starting_a_payment_gives_no_more_time_if_the_event_gives_none() -> None:
    state = make_event_state(example_layout(policy=PRESETS["shift"]), [booking_with(Status.HELD)])
    assert expect_accepted(state, pay_command("one")).booking.expires_at == seconds_from_now(540)


def test_starting_a_payment_never_extends_a_hold_past_its_maximum() -> None:
    state = make_event_state(example_layout(policy=Policy(extend_seconds=9000)), [booking_with(Status.HELD)])
    assert expect_accepted(state, pay_command("one")).booking.expires_at == seconds_from_now(1740)


def test_a_repeated_start_under_the_same_key_returns_the_same_payment() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD)])
    started = expect_payment(state, pay_command("payment"))
    written = len(state.entries)
    repeated = expect_accepted(state, pay_command("payment", payment=make_id("other")))
    assert (repeated.payment, repeated.replayed) == (started, True)
    assert not expect_accepted(state, pay_command("payment")).replayed
    assert expect_refusal(state, pay_command("payment", fingerprint=make_id("other"))) is Refusal.IDEMPOTENCY_KEY_REUSED
    assert len(state.entries) == written


@every_status
def test_a_repeated_start_returns_the_payment_in_every_state_of_the_booking(status: Status) -> None:
    state = make_event_state(bookings=[booking_with(status, PAYMENTS["failed"])])
    repeated = expect_accepted(state, pay_command("payment", payment=make_id("other")))
    assert (repeated.payment, repeated.replayed) == (PAYMENTS["failed"], True)
    assert is_unchanged(state)


def test_a_customer_with_a_transferred_booking_cannot_replay_its_payment() -> None:
    """Even if the booking returned to its first owner."""
    state = make_event_state(bookings=[booking_with(Status.CONFIRMED, PAYMENTS["succeeded"], user="ana", generation=2)])
    for command in (pay_command("payment", owner="ana"), pay_command("payment", owner="ana", provider="other")):
        assert expect_refusal(state, command) is Refusal.ALREADY_CONFIRMED
    assert expect_refusal(state, pay_command("payment", owner="ben")) is Refusal.NOT_FOUND
    assert expect_payment(state, pay_command("payment")) == PAYMENTS["succeeded"]
    assert is_unchanged(state)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.HELD])
def test_only_a_held_booking_can_start_a_payment(status: Status) -> None:
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
    assert expect_refusal(state, pay_command("payment")) is expected[status]
    assert is_unchanged(state)


def test_only_its_own_buyer_can_start_a_payment() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD, user="the buyer")])
    assert expect_refusal(state, pay_command("payment", owner="another")) is Refusal.NOT_FOUND
    assert expect_accepted(state, pay_command("payment", owner="the buyer"))


def test_a_booking_has_a_limited_number_of_payments() -> None:
    many = [make_payment(f"p{number}", PaymentStatus.FAILED) for number in range(PAYMENTS_MAX)]
    state = make_event_state(bookings=[booking_with(Status.HELD, *many)])
    assert expect_refusal(state, pay_command("payment")) is Refusal.LIMIT_REACHED
    assert expect_accepted(make_event_state(bookings=[booking_with(Status.HELD, *many[1:])]), pay_command("payment"))


def free_booking() -> Booking:
    return make_free(booking_with(Status.HELD))


@pytest.mark.parametrize("provider", ["gateway", RECEIPT])
def test_a_free_booking_is_confirmed_as_soon_as_payment_starts(provider: str) -> None:
    state = make_event_state(bookings=[free_booking()])
    outcome = expect_accepted(state, pay_command("payment", provider=provider))
    assert outcome.booking.status is Status.CONFIRMED
    assert outcome.payment is not None
    assert (outcome.payment.status, outcome.payment.outcome) == (PaymentStatus.SUCCEEDED, PaymentOutcome.FULFILLED)
    assert outcome.payment.amount == 0
    repeated = expect_accepted(state, pay_command("payment"))
    assert repeated.payment == outcome.payment
    check_payments(repeated.booking)


def test_a_cancelled_free_booking_leaves_consistent_payments() -> None:
    state = make_event_state(bookings=[free_booking()])
    expect_accepted(state, pay_command("payment"))
    it = expect_accepted(state, act_command("it", Verb.CANCEL)).booking
    assert it.status is Status.CANCELLED
    check_payments(it)


@pytest.mark.parametrize("status", [EventStatus.CANCELLED, EventStatus.COMPLETED])
def test_a_free_booking_that_ends_with_its_event_leaves_consistent_payments(status: EventStatus) -> None:
    state = make_event_state(bookings=[free_booking()])
    expect_accepted(state, pay_command("payment"))
    state = make_event_state(example_layout(status=status), state.bookings.values())
    assert end_bookings(state) == 1
    check_payments(state.bookings[make_id("it")])


# Receipts.

MANUAL = Policy(review="manual", review_seconds=3600)


def reviewed_state(*bookings: Booking, now: datetime = NOW, policy: Policy = MANUAL) -> EventState:
    return make_event_state(example_layout(policy=policy), bookings, now=now)


def submitted_booking() -> Booking:
    return expect_accepted(reviewed_state(booking_with(Status.HELD)), submit_command("receipt")).booking


def test_a_receipt_is_a_payment_that_waits_for_review() -> None:
    state = reviewed_state(booking_with(Status.HELD))
    it = expect_accepted(state, submit_command("receipt")).booking
    assert (it.status, it.expires_at) == (Status.PAYMENT_SUBMITTED, seconds_from_now(3600))
    (payment,) = it.payments
    assert (payment.status, payment.provider, payment.amount) == (PaymentStatus.SUBMITTED, RECEIPT, 3000)
    assert [receipt.file_ref for _, receipt in state.new_receipts] == ["receipt"]


def test_a_receipt_belongs_to_the_payment_that_was_started_for_it() -> None:
    state = reviewed_state(booking_with(Status.HELD))
    started = expect_payment(state, pay_command("payment", provider=RECEIPT))
    it = expect_accepted(state, submit_command("receipt")).booking
    assert it.payments == (structs.replace(started, status=PaymentStatus.SUBMITTED),)


def test_a_second_receipt_belongs_to_the_same_payment() -> None:
    state = reviewed_state(booking_with(Status.HELD))
    it = expect_accepted(state, submit_command("receipt")).booking
    second = expect_accepted(state, submit_command("second receipt")).booking
    assert (second.version, second.status, second.payments) == (it.version, it.status, it.payments)
    assert [receipt.file_ref for _, receipt in state.new_receipts] == ["receipt", "second receipt"]
    assert expect_accepted(state, submit_command("receipt")).booking == second
    assert len(state.new_receipts) == 2


def test_a_receipt_is_refused_if_the_policy_offers_no_review() -> None:
    state = make_event_state(bookings=[booking_with(Status.HELD)])
    assert expect_refusal(state, submit_command("receipt")) is Refusal.REVIEW_NOT_OFFERED
    assert is_unchanged(state)
    assert not state.new_receipts


def test_a_payment_by_receipt_is_refused_if_the_policy_offers_no_review() -> None:
    """Unlike one that starts, it does not extend the hold."""
    state = make_event_state(example_layout(policy=Policy(extend_seconds=900)), [booking_with(Status.HELD)])
    assert expect_refusal(state, pay_command("payment", provider=RECEIPT)) is Refusal.REVIEW_NOT_OFFERED
    assert is_unchanged(state)


def test_a_booking_at_its_payment_limit_takes_no_receipt() -> None:
    many = [make_payment(f"p{number}", PaymentStatus.FAILED) for number in range(PAYMENTS_MAX)]
    assert (
        expect_refusal(reviewed_state(booking_with(Status.HELD, *many)), submit_command("receipt"))
        is Refusal.LIMIT_REACHED
    )


def test_approving_a_receipt_captures_its_payment() -> None:
    state = reviewed_state(submitted_booking())
    it = expect_accepted(state, act_command("it", Verb.APPROVE)).booking
    assert it.status is Status.CONFIRMED
    (payment,) = it.payments
    assert (payment.status, payment.outcome) == (PaymentStatus.SUCCEEDED, PaymentOutcome.FULFILLED)
    assert payment.captured_at == NOW
    check_payments(it)


def test_a_rejected_receipt_captures_nothing() -> None:
    it = expect_accepted(
        reviewed_state(submitted_booking()), act_command("it", Verb.REJECT, reason="Unreadable.")
    ).booking
    assert (it.status, it.reason) == (Status.REJECTED, "Unreadable.")
    (payment,) = it.payments
    assert (payment.status, payment.outcome) == (PaymentStatus.FAILED, None)
    check_payments(it)


REASONS = {
    "not reviewed in time": Reason.RECEIPT_NOT_REVIEWED,
    "paid otherwise": Reason.PAID_OTHERWISE,
    "the event is cancelled": Reason.EVENT_CANCELLED,
}


@pytest.mark.parametrize("cause", REASONS)
def test_the_payment_of_an_unreviewed_receipt_goes_to_review(cause: str) -> None:
    it = submitted_booking()
    other = structs.replace(it, payments=(*it.payments, make_payment("payment")))
    if cause == "not reviewed in time":
        state = reviewed_state(it, now=seconds_from_now(3600))
        assert expire_due(state) == 1
    elif cause == "paid otherwise":
        state = reviewed_state(other)
        expect_accepted(state, settle_command("payment"))
    else:
        state = make_event_state(example_layout(policy=MANUAL, status=EventStatus.CANCELLED), [it])
        end_bookings(state)
    it = state.bookings[make_id("it")]
    payment = it.payments[0]
    assert (payment.status, payment.outcome) == (PaymentStatus.REVIEW, PaymentOutcome.REVIEW)
    assert payment.reason == REASONS[cause]
    check_payments(it)
    assert expect_payment(state, resolve_command(_name(payment), Remedy.BY_HAND)).status is PaymentStatus.REFUNDED


def _name(payment: Payment) -> str:
    return payment.id.decode().lstrip(".")


@pytest.mark.parametrize(("seconds", "taken"), [(120, False), (120.1, False), (10, True)])
def test_a_late_receipt_revives_the_booking_as_a_payment_does(seconds: float, taken: bool) -> None:
    it = structs.replace(expired_booking(seconds), payments=())
    others = [make_booking("other", Status.HELD, seat_line("A-1"))] if taken else []
    state = reviewed_state(it, *others)
    if taken or seconds > 120:
        assert expect_refusal(state, submit_command("receipt")) is Refusal.HOLD_EXPIRED
        assert is_unchanged(state)
        assert not state.new_receipts
    else:
        revived = expect_accepted(state, submit_command("receipt")).booking
        assert (revived.status, revived.expires_at) == (Status.PAYMENT_SUBMITTED, seconds_from_now(3600))
        assert [payment.status for payment in revived.payments] == [PaymentStatus.SUBMITTED]
        assert held_and_sold(state, STANDING) == (2, 0)


def test_an_unreviewed_receipt_can_be_submitted_again() -> None:
    expired = reviewed_state(submitted_booking(), now=seconds_from_now(3600))
    it = expect_accepted(expired, submit_command("third receipt")).booking
    assert it.status is Status.PAYMENT_SUBMITTED
    assert [payment.status for payment in it.payments] == [PaymentStatus.REVIEW, PaymentStatus.SUBMITTED]
    check_payments(it)


def test_the_payment_of_an_approved_receipt_is_refunded_by_hand() -> None:
    state = reviewed_state(submitted_booking())
    expect_accepted(state, act_command("it", Verb.APPROVE))
    it = expect_accepted(state, act_command("it", Verb.REFUND)).booking
    assert [payment.status for payment in it.payments] == [PaymentStatus.REFUND_DUE]
    expect_accepted(state, resolve_command("receipt", Remedy.REVIEW))
    assert expect_refusal(state, resolve_command("receipt", Remedy.REFUND)) is Refusal.NOT_REFUNDABLE
    assert expect_payment(state, resolve_command("receipt", Remedy.BY_HAND)).status is PaymentStatus.REFUNDED


# Any sequence of commands.

NAMES = ("one", "two")
AFTER_REFUND_REASONS = {
    Reason.CAPTURED_AFTER_ALL,
    Reason.REFUND_FAILED,
    Reason.DISPUTED,
    Reason.DISPUTE_WON,
    Reason.DISPUTE_LOST,
}
INTERNAL_VERBS = (Verb.SUBMIT, Verb.SETTLE)

commands = st.one_of(
    st.builds(pay_command, st.sampled_from(NAMES), provider=st.sampled_from(["gateway", RECEIPT])),
    st.builds(
        settle_command,
        st.sampled_from(NAMES),
        st.sampled_from(PaymentResult),
        amount=st.sampled_from([3000, 3000, 3000, 1, None]),
    ),
    st.builds(resolve_command, st.sampled_from(NAMES), st.sampled_from(Remedy)),
    st.builds(submit_command, st.sampled_from(["receipt", "second receipt"])),
    st.builds(act_command, st.just("it"), st.sampled_from([verb for verb in Verb if verb not in INTERNAL_VERBS])),
)
others = st.sampled_from(["nothing", "seat taken", "seat freed", "event cancelled", "event completed"])
steps = st.lists(st.tuples(st.sampled_from([0, 1, 60, 600]), others, commands), max_size=25)


@settings(max_examples=500 if IS_LONG else 200, deadline=None)
@given(steps, st.booleans())
def test_any_sequence_of_commands_leaves_consistent_payments(
    story: list[tuple[int, str, Command]], is_free: bool
) -> None:
    it = make_free(booking_with(Status.HELD)) if is_free else booking_with(Status.HELD)
    bookings = {it.id: it}
    status, now = EventStatus.ACTIVE, NOW
    for seconds, other, command in story:
        now += timedelta(seconds=seconds)
        if other == "event cancelled" and status is EventStatus.ACTIVE:
            status = EventStatus.CANCELLED
        if other == "event completed" and status is EventStatus.ACTIVE:
            status = EventStatus.COMPLETED
        state = make_event_state(example_layout(policy=MANUAL, status=status), bookings.values(), now=now)
        before = state.bookings[it.id]
        if other == "seat taken":
            decide_one(state, place_command("other", SeatItem("A-1")))
        if other == "seat freed":
            decide_one(state, act_command("other", Verb.CANCEL))
        decide_one(state, command)
        after = state.bookings[it.id]
        check_payments(after)
        _check_step(before, after)
        bookings = dict(state.bookings)


def _check_step(before: Booking, after: Booking) -> None:
    """A captured payment stays captured. A refunded one stays refunded, unless its refund or its money turns out to be
    something else: then a person reviews it."""
    assert [payment.id for payment in after.payments][: len(before.payments)] == [
        payment.id for payment in before.payments
    ]
    for old, new in zip(before.payments, after.payments, strict=False):
        assert (old.amount, old.currency, old.provider) == (new.amount, new.currency, new.provider)
        if old.captured_at is not None:
            assert new.captured_at == old.captured_at
        if old.status is PaymentStatus.REFUNDED:
            assert new == old or new.status is PaymentStatus.REVIEW
            assert new == old or new.reason in AFTER_REFUND_REASONS


def test_a_payment_starts_only_at_a_provider_that_the_event_offers() -> None:
    layout = example_layout(providers=frozenset({"stripe"}))
    state = make_event_state(layout, [booking_with(Status.HELD)])
    assert expect_refusal(state, pay_command("one")) is Refusal.UNKNOWN_PROVIDER
    assert expect_accepted(state, pay_command("two", provider="stripe")).payment is not None
    only_receipts = make_event_state(example_layout(providers=frozenset()), [booking_with(Status.HELD)])
    assert expect_refusal(only_receipts, pay_command("one")) is Refusal.UNKNOWN_PROVIDER
    free = make_event_state(layout, [make_free(booking_with(Status.HELD))])
    assert expect_accepted(free, pay_command("three")).booking.status is Status.CONFIRMED
