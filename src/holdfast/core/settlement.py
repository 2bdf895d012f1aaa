"""Payments for a booking: starting one, submitting a receipt, settling what the provider reports, and refunds.

Every captured payment ends in exactly one outcome: it fulfils or revives its booking, it is refunded, or a person
reviews it. Results that a provider reports twice, or out of order, change nothing the second time.
"""

from datetime import datetime
from typing import Final

from msgspec import structs

from holdfast.core.booking import Booking
from holdfast.core.commands import Accepted, Remedy, ResolvePayment, SettlePayment, StartPayment, SubmitReceipt
from holdfast.core.event_state import EventState
from holdfast.core.payment import RECEIPT, Payment, PaymentOutcome, PaymentResult, PaymentStatus
from holdfast.core.reasons import Reason
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import TRANSITIONS, Status, Verb
from holdfast.core.transitions import apply_verb, end_with_event, extend_hold, find_booking, is_revivable

# Far more than any buyer needs for one booking.
PAYMENTS_MAX: Final = 50
RECEIPTS_MAX: Final = 20


def start_payment(state: EventState, command: StartPayment) -> Accepted:
    booking = end_with_event(state, find_booking(state, command))
    earlier = next((p for p in booking.payments if p.request_key == command.request_key), None)
    if earlier is not None:
        if earlier.fingerprint != command.fingerprint:
            raise RefusedError(Refusal.IDEMPOTENCY_KEY_REUSED)
        return Accepted(booking, state.layout, state.now, replayed=earlier.id != command.payment, payment=earlier)
    target = TRANSITIONS[booking.status, Verb.START_PAYMENT]
    if isinstance(target, Refusal):
        raise RefusedError(target)
    if command.provider == RECEIPT and booking.total > 0 and state.layout.policy.review != "manual":
        raise RefusedError(Refusal.REVIEW_NOT_OFFERED)
    _check_payment_count(booking)
    if not booking.payments:
        booking = extend_hold(state, booking, command.actor)
    payment = _new_payment(state, booking, command)
    booking = state.record_payment(booking, payment, command.actor)
    if booking.total == 0:
        booking = _capture(state, booking, payment, command.actor)
    return Accepted(booking, state.layout, state.now, payment=booking.payment(payment.id))


def submit_receipt(state: EventState, command: SubmitReceipt) -> Accepted:
    """Add a receipt to the booking. The deadline of the review replaces that of the hold."""
    booking = end_with_event(state, find_booking(state, command))
    target = TRANSITIONS[booking.status, Verb.SUBMIT]
    if isinstance(target, Refusal):
        raise RefusedError(target)
    if state.layout.policy.review != "manual":
        raise RefusedError(Refusal.REVIEW_NOT_OFFERED)
    is_new = command.receipt.hash not in booking.receipts
    if is_new and len(booking.receipts) >= RECEIPTS_MAX:
        raise RefusedError(Refusal.LIMIT_REACHED, f"A booking can have at most {RECEIPTS_MAX} receipts.")
    if booking.status is not Status.PAYMENT_SUBMITTED:
        _check_payment_count(booking)
        booking = apply_verb(state, booking, Verb.SUBMIT, command.actor)
        booking = state.record_payment(booking, _submitted_payment(state, booking, command), command.actor)
    if is_new:
        booking = state.add_receipt(booking, command.receipt)
    return Accepted(booking, state.layout, state.now)


def settle_payment(state: EventState, command: SettlePayment) -> Accepted:
    booking = end_with_event(state, find_booking(state, command))
    payment = _find_payment(booking, command)
    match command.result:
        case PaymentResult.CAPTURED if payment.is_open:
            if (command.amount, command.currency) == (payment.amount, payment.currency):
                booking = _capture(state, booking, payment, command.actor)
            else:
                booking = _review_wrong_amount(state, booking, payment, command)
        case PaymentResult.FAILED if payment.status is PaymentStatus.STARTED:
            failed = structs.replace(payment, status=PaymentStatus.FAILED)
            booking = state.record_payment(booking, failed, command.actor)
        case PaymentResult.REFUNDED if payment.status is PaymentStatus.REFUND_DUE or _provider_can_refund(payment):
            booking = _record_refund(state, booking, payment, command.actor)
        case _:
            pass
    return Accepted(booking, state.layout, state.now, payment=booking.payment(command.payment))


def resolve_payment(state: EventState, command: ResolvePayment) -> Accepted:
    booking = end_with_event(state, find_booking(state, command))
    payment = _find_payment(booking, command)
    match command.remedy:
        case Remedy.REVIEW:
            if payment.status in (PaymentStatus.REFUND_DUE, PaymentStatus.STARTED):
                in_review = structs.replace(
                    payment, status=PaymentStatus.REVIEW, outcome=PaymentOutcome.REVIEW, reason=command.reason
                )
                booking = state.record_payment(booking, in_review, command.actor)
        case Remedy.REFUND:
            if payment.status is PaymentStatus.REVIEW and payment.provider != RECEIPT:
                due = _refund_due(payment, command.reason, payment.captured_at or state.now)
                booking = state.record_payment(booking, due, command.actor)
            elif payment.status not in (PaymentStatus.REFUND_DUE, PaymentStatus.REFUNDED):
                raise RefusedError(Refusal.NOT_REFUNDABLE)
        case Remedy.BY_HAND:
            if payment.status is PaymentStatus.REVIEW:
                booking = _record_refund(state, booking, payment, command.actor, command.reason)
            elif payment.status is not PaymentStatus.REFUNDED:
                raise RefusedError(Refusal.NOT_REFUNDABLE)
    return Accepted(booking, state.layout, state.now, payment=booking.payment(command.payment))


def _find_payment(booking: Booking, command: SettlePayment | ResolvePayment) -> Payment:
    payment = booking.payment(command.payment)
    if payment is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return payment


def _check_payment_count(booking: Booking) -> None:
    if len(booking.payments) >= PAYMENTS_MAX:
        raise RefusedError(Refusal.LIMIT_REACHED, f"A booking can have at most {PAYMENTS_MAX} payments.")


def _new_payment(state: EventState, booking: Booking, command: StartPayment) -> Payment:
    return Payment(
        id=command.payment,
        provider=command.provider,
        status=PaymentStatus.STARTED,
        amount=booking.total,
        currency=booking.currency,
        request_key=command.request_key,
        fingerprint=command.fingerprint,
        created_at=state.now,
        return_url=command.return_url,
    )


def _submitted_payment(state: EventState, booking: Booking, command: SubmitReceipt) -> Payment:
    """The payment that a receipt is for: the receipt payment that was started last, or else a new one."""
    started = [p for p in booking.payments if p.provider == RECEIPT and p.status is PaymentStatus.STARTED]
    if started:
        return structs.replace(started[-1], status=PaymentStatus.SUBMITTED)
    return Payment(
        id=command.payment,
        provider=RECEIPT,
        status=PaymentStatus.SUBMITTED,
        amount=booking.total,
        currency=booking.currency,
        request_key=command.payment,
        fingerprint=command.receipt.hash,
        created_at=state.now,
    )


def _capture(state: EventState, booking: Booking, payment: Payment, actor: str) -> Booking:
    """Record a capture of the right amount. It confirms the booking, revives an expired one, or becomes a refund."""
    refusal = _capture_refusal(state, booking)
    if refusal is not None:
        return state.record_payment(booking, _refund_due(payment, refusal.code, state.now), actor, is_unexpected=True)
    late = booking.status is Status.EXPIRED
    captured = structs.replace(
        payment,
        status=PaymentStatus.SUCCEEDED,
        outcome=PaymentOutcome.REVIVED if late else PaymentOutcome.FULFILLED,
        captured_at=state.now,
        reason=None,
    )
    return apply_verb(state, state.record_payment(booking, captured, actor), Verb.SETTLE, actor)


def _provider_can_refund(payment: Payment) -> bool:
    """A merchant can refund at the provider's site without us. Receipts have no provider."""
    return payment.provider != RECEIPT and payment.status is not PaymentStatus.REFUNDED


def _refund_due(payment: Payment, reason: str | None, captured_at: datetime) -> Payment:
    """Requesting a refund implies that the money was captured."""
    return structs.replace(
        payment, status=PaymentStatus.REFUND_DUE, outcome=None, reason=reason, captured_at=captured_at
    )


def _capture_refusal(state: EventState, booking: Booking) -> Refusal | None:
    """Why the booking cannot keep money that arrives now, or None if it can."""
    target = TRANSITIONS[booking.status, Verb.SETTLE]
    if isinstance(target, Refusal):
        return target
    is_payable = booking.status is not Status.EXPIRED or is_revivable(state, booking)
    return None if is_payable else Refusal.HOLD_EXPIRED


def _review_wrong_amount(state: EventState, booking: Booking, payment: Payment, command: SettlePayment) -> Booking:
    in_review = structs.replace(
        payment,
        status=PaymentStatus.REVIEW,
        outcome=PaymentOutcome.REVIEW,
        captured_at=state.now,
        reason=Reason.WRONG_AMOUNT,
    )
    return state.record_payment(booking, in_review, command.actor, received=(command.amount, command.currency))


def _record_refund(
    state: EventState, booking: Booking, payment: Payment, actor: str, reason: str | None = None
) -> Booking:
    """The buyer has the money back, even if we never learned that it was captured. A booking that this payment paid
    for ends with it."""
    paid_for_booking = payment.status is PaymentStatus.SUCCEEDED
    refunded = structs.replace(
        payment,
        status=PaymentStatus.REFUNDED,
        outcome=PaymentOutcome.REFUNDED,
        captured_at=payment.captured_at or state.now,
        reason=reason or payment.reason,
    )
    booking = state.record_payment(booking, refunded, actor)
    if paid_for_booking and booking.status is Status.CONFIRMED:
        booking = apply_verb(state, booking, Verb.REFUND, actor, Reason.REFUNDED_BY_PROVIDER)
    return booking
