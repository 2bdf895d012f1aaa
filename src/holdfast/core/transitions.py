"""Acting on an existing booking, and what each change of its status means for its payments."""

from datetime import datetime, timedelta
from typing import Final

from msgspec import structs

from holdfast.core.booking import Booking
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
from holdfast.core.holds import check_user_limits, find_short_pools
from holdfast.core.payment import RECEIPT, Payment, PaymentOutcome, PaymentStatus
from holdfast.core.reasons import Reason
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import CLAIMING, ENDINGS, LIVE, TRANSITIONS, EventStatus, Status, Verb

# What a booking's new status does to a payment whose receipt is waiting for review, and why.
_SUBMITTED_PAYMENTS_BECOME: Final = {
    Status.CONFIRMED: (PaymentStatus.REVIEW, Reason.PAID_OTHERWISE),
    Status.REJECTED: (PaymentStatus.FAILED, Reason.RECEIPT_REJECTED),
    Status.EXPIRED: (PaymentStatus.REVIEW, Reason.RECEIPT_NOT_REVIEWED),
    Status.CANCELLED: (PaymentStatus.REVIEW, Reason.EVENT_CANCELLED),
}

_ENDED: Final = frozenset(Status) - LIVE


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
        raise RefusedError(Refusal.ALREADY_CONFIRMED, "The booking is paid. Refund it instead.")
    if command.verb is Verb.APPROVE:
        booking = _capture_submitted(state, booking, command.actor)
    after = apply_verb(state, booking, command.verb, command.actor, command.reason)
    return Accepted(after, state.layout, state.now)


def find_booking(
    state: EventState,
    command: ActOnBooking | StartPayment | SubmitReceipt | SettlePayment | ResolvePayment | TransferBooking,
) -> Booking:
    """The booking that the command names, if the caller may see it. The API checks the owner of a transfer before it
    submits one, because a repeated transfer comes from somebody who no longer owns the booking."""
    booking = state.bookings.get(command.booking)
    owner = command.owner if isinstance(command, ActOnBooking | StartPayment | SubmitReceipt) else None
    if booking is None or booking.org != command.org or owner not in (None, booking.user):
        raise RefusedError(Refusal.NOT_FOUND)
    return booking


def apply_verb(state: EventState, booking: Booking, verb: Verb, actor: str, reason: str | None = None) -> Booking:
    """Move the booking to the status that the verb leads to. An expired booking has to get its units back first."""
    target = TRANSITIONS[booking.status, verb]
    assert isinstance(target, Status)
    if booking.status is Status.EXPIRED and not is_revivable(state, booking):
        raise RefusedError(Refusal.HOLD_EXPIRED)
    return transition(state, booking, target, actor, reason)


def transition(state: EventState, booking: Booking, status: Status, actor: str, reason: str | None = None) -> Booking:
    """Change the booking's status, and its payments accordingly."""
    expires_at = None
    if status is Status.PAYMENT_SUBMITTED:
        expires_at = state.now + timedelta(seconds=state.layout.policy.review_seconds)
    after = state.move_booking(booking, status, actor, reason, expires_at)
    for payment in after.payments:
        changed = _follow_booking(payment, status)
        if changed is not None:
            after = state.record_payment(after, changed, actor)
        elif payment.status is PaymentStatus.STARTED:
            state.schedule_payment_check(payment, after.id)
    return after


def _follow_booking(payment: Payment, status: Status) -> Payment | None:
    """The payment after its booking's change of status, or None if it stays the same."""
    if payment.status is PaymentStatus.SUBMITTED and status in _SUBMITTED_PAYMENTS_BECOME:
        new_status, reason = _SUBMITTED_PAYMENTS_BECOME[status]
        outcome = PaymentOutcome.REVIEW if new_status is PaymentStatus.REVIEW else None
        return structs.replace(payment, status=new_status, outcome=outcome, reason=reason)
    if _is_kept(payment) and status not in CLAIMING:
        return structs.replace(payment, status=PaymentStatus.REFUND_DUE, outcome=None, reason=Reason.BOOKING_GIVEN_UP)
    if payment.status is PaymentStatus.STARTED and payment.provider == RECEIPT and status in _ENDED:
        return structs.replace(payment, status=PaymentStatus.FAILED)
    return None


def _is_kept(payment: Payment) -> bool:
    """The merchant also keeps a payment whose dispute they won, although it is still in review."""
    is_won = payment.status is PaymentStatus.REVIEW and payment.reason == Reason.DISPUTE_WON
    return payment.status is PaymentStatus.SUCCEEDED or is_won


def _capture_submitted(state: EventState, booking: Booking, actor: str) -> Booking:
    """Approving a receipt confirms that the money has arrived."""
    for payment in booking.payments:
        if payment.status is PaymentStatus.SUBMITTED:
            captured = structs.replace(
                payment,
                status=PaymentStatus.SUCCEEDED,
                outcome=PaymentOutcome.FULFILLED,
                captured_at=state.now,
            )
            booking = state.record_payment(booking, captured, actor)
    return booking


def end_with_event(state: EventState, booking: Booking) -> Booking:
    """End the booking if its event is completed or cancelled."""
    status = state.layout.status
    target = ENDINGS.get(status, {}).get((booking.status, booking.total == 0))
    if target is None:
        return booking
    reason = Reason.EVENT_CANCELLED if status is EventStatus.CANCELLED else None
    return transition(state, booking, target, SYSTEM, reason)


def extend_hold(state: EventState, booking: Booking, actor: str) -> Booking:
    """Give the buyer `extend_seconds` from now."""
    return _extend_until(state, booking, state.now + timedelta(seconds=state.layout.policy.extend_seconds), actor)


def extend_for_payment(state: EventState, booking: Booking, actor: str) -> Booking:
    """Give the buyer `extend_seconds` more than they had. Paying early costs no time."""
    assert booking.expires_at is not None
    extra = timedelta(seconds=state.layout.policy.extend_seconds)
    return _extend_until(state, booking, booking.expires_at + extra, actor)


def _extend_until(state: EventState, booking: Booking, wanted: datetime, actor: str) -> Booking:
    assert booking.expires_at is not None
    assert booking.max_expires_at is not None
    expires_at = min(wanted, booking.max_expires_at)
    return state.extend_booking(booking, expires_at, actor) if expires_at > booking.expires_at else booking


def is_revivable(state: EventState, booking: Booking) -> bool:
    """Whether an expired booking can have its units back: within the grace period, and nobody else took them."""
    assert booking.expires_at is not None
    grace = timedelta(seconds=state.layout.policy.late_grace_seconds)
    if state.layout.status is not EventStatus.ACTIVE or state.now > booking.expires_at + grace:
        return False
    if any(line.seat is not None and not state.is_free(line.seat) for line in booking.lines):
        return False
    if find_short_pools(state, booking.lines):
        return False
    try:
        check_user_limits(state, booking.user, booking.lines)
    except RefusedError:
        return False
    return True
