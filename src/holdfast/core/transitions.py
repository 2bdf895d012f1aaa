"""Doing something to a booking that exists, and what each change of its status means for its payments."""

from datetime import timedelta
from typing import Final

from msgspec import structs

from holdfast.core.commands import (
    Accepted,
    ActOnBooking,
    ResolvePayment,
    SettlePayment,
    StartPayment,
    SubmitReceipt,
    TransferBooking,
)
from holdfast.core.event_state import SYSTEM, EventState
from holdfast.core.holds import check_user, short_pools
from holdfast.core.model import Booking
from holdfast.core.payment import RECEIPT, Payment, PaymentOutcome, PaymentStatus
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import ENDINGS, LIVE, TRANSITIONS, EventStatus, Status, Verb

# What becomes of money that is on its way when a booking comes into another status, and why.
_SUBMITTED: Final = {
    Status.CONFIRMED: (PaymentStatus.REVIEW, "The booking was paid for otherwise."),
    Status.REJECTED: (PaymentStatus.FAILED, "The receipt was rejected."),
    Status.EXPIRED: (PaymentStatus.REVIEW, "The receipt was not reviewed in time."),
    Status.CANCELLED: (PaymentStatus.REVIEW, "The event was cancelled before the receipt was reviewed."),
}

_GIVEN_UP: Final = frozenset({Status.REFUNDED, Status.CANCELLED})
_OVER: Final = frozenset(Status) - LIVE


def act_on_booking(state: EventState, command: ActOnBooking) -> Accepted:
    booking = end_with_event(state, find_booking(state, command))
    target = TRANSITIONS[booking.status, command.verb]
    if isinstance(target, Refusal):
        raise RefusedError(target)
    if command.verb is Verb.EXTEND:
        return Accepted(extend_hold(state, booking, command.actor), state.layout, state.now)
    if target is booking.status:
        return Accepted(booking, state.layout, state.now)
    if command.verb is Verb.CANCEL and booking.status is Status.CONFIRMED and booking.total > 0:
        raise RefusedError(Refusal.ALREADY_CONFIRMED, "It was paid for: refund it instead.")
    if command.verb is Verb.APPROVE:
        booking = _approved(state, booking, command.actor)
    after = apply_verb(state, booking, command.verb, command.actor, command.reason)
    return Accepted(after, state.layout, state.now)


def find_booking(
    state: EventState,
    command: ActOnBooking | StartPayment | SubmitReceipt | SettlePayment | ResolvePayment | TransferBooking,
) -> Booking:
    """The booking that a command is about, if whoever asks may know of it. Who may hand a booking on was looked at
    before: they know it no more once it is another's."""
    booking = state.bookings.get(command.booking)
    owner = command.owner if isinstance(command, ActOnBooking | StartPayment | SubmitReceipt) else None
    if booking is None or booking.org != command.org or owner not in (None, booking.user):
        raise RefusedError(Refusal.NOT_FOUND)
    return booking


def apply_verb(state: EventState, booking: Booking, verb: Verb, actor: str, reason: str | None = None) -> Booking:
    """The booking in the status that the verb leads to. One that has expired needs its units back for that."""
    target = TRANSITIONS[booking.status, verb]
    assert isinstance(target, Status)
    if booking.status is Status.EXPIRED and not is_revivable(state, booking):
        raise RefusedError(Refusal.HOLD_EXPIRED)
    return transition(state, booking, target, actor, reason)


def transition(state: EventState, booking: Booking, status: Status, actor: str, reason: str | None = None) -> Booking:
    """The booking in another status, and its payments in what follows from that."""
    until = None
    if status is Status.PAYMENT_SUBMITTED:
        until = state.now + timedelta(seconds=state.layout.policy.review_seconds)
    after = state.move(booking, status, actor, reason, until)
    for payment in after.payments:
        change = _consequence(payment, status)
        if change is not None:
            after = state.pay(after, change, actor)
        elif payment.status is PaymentStatus.STARTED:
            state.schedule_check(payment, after.id)
    return after


def _consequence(payment: Payment, status: Status) -> Payment | None:
    if payment.status is PaymentStatus.SUBMITTED and status in _SUBMITTED:
        becomes, reason = _SUBMITTED[status]
        outcome = PaymentOutcome.REVIEW if becomes is PaymentStatus.REVIEW else None
        return structs.replace(payment, status=becomes, outcome=outcome, reason=reason)
    if payment.status is PaymentStatus.SUCCEEDED and status in _GIVEN_UP:
        reason = "The booking was given up."
        return structs.replace(payment, status=PaymentStatus.REFUND_DUE, outcome=None, reason=reason)
    if payment.status is PaymentStatus.STARTED and payment.provider == RECEIPT and status in _OVER:
        return structs.replace(payment, status=PaymentStatus.FAILED)
    return None


def _approved(state: EventState, booking: Booking, actor: str) -> Booking:
    """Whoever approves a receipt says that the money is there."""
    for payment in booking.payments:
        if payment.status is PaymentStatus.SUBMITTED:
            captured = structs.replace(
                payment,
                status=PaymentStatus.SUCCEEDED,
                outcome=PaymentOutcome.FULFILLED,
                captured_at=state.now,
            )
            booking = state.pay(booking, captured, actor)
    return booking


def end_with_event(state: EventState, booking: Booking) -> Booking:
    """The booking as it is once it has ended with its event, if that has ended."""
    status = state.layout.status
    target = ENDINGS.get(status, {}).get((booking.status, booking.total == 0))
    if target is None:
        return booking
    reason = "The event was cancelled." if status is EventStatus.CANCELLED else None
    return transition(state, booking, target, SYSTEM, reason)


def extend_hold(state: EventState, booking: Booking, actor: str) -> Booking:
    assert booking.expires_at is not None
    assert booking.max_expires_at is not None
    wanted = state.now + timedelta(seconds=state.layout.policy.extend_seconds)
    until = min(max(booking.expires_at, wanted), booking.max_expires_at)
    return state.extend(booking, until, actor) if until > booking.expires_at else booking


def is_revivable(state: EventState, booking: Booking) -> bool:
    """Whether an expired booking can have the same units again: late, but within the grace, and nobody took them."""
    assert booking.expires_at is not None
    grace = timedelta(seconds=state.layout.policy.late_grace_seconds)
    if state.layout.status is not EventStatus.ACTIVE or state.now > booking.expires_at + grace:
        return False
    if any(line.seat is not None and not state.is_free(line.seat) for line in booking.lines):
        return False
    if short_pools(state, booking.lines):
        return False
    try:
        check_user(state, booking.user, booking.lines)
    except RefusedError:
        return False
    return True
