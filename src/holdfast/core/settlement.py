"""Payments for a booking: starting one, submitting a receipt, settling what the provider reports, and refunds.

Every captured payment ends in exactly one outcome: it fulfils or revives its booking, it is refunded, or a person
reviews it. Results that a provider reports twice, or out of order, change nothing the second time.
"""

from typing import Final

from msgspec import structs

from holdfast.core.booking import Booking
from holdfast.core.commands import Accepted, Remedy, ResolvePayment, SettlePayment, StartPayment, SubmitReceipt
from holdfast.core.event_state import EventState
from holdfast.core.hoarding import check_late_receipt
from holdfast.core.payment import RECEIPT, Payment, PaymentOutcome, PaymentResult, PaymentStatus
from holdfast.core.reasons import Reason
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import TRANSITIONS, Status, Verb
from holdfast.core.transitions import apply_verb, end_with_event, extend_for_payment, find_booking, is_revivable

# Far more than any buyer needs for one booking.
PAYMENTS_MAX: Final = 50
RECEIPTS_MAX: Final = 20

_DISPUTE_REASONS: Final = {
    PaymentResult.DISPUTED: Reason.DISPUTED,
    PaymentResult.DISPUTE_WON: Reason.DISPUTE_WON,
    PaymentResult.DISPUTE_LOST: Reason.DISPUTE_LOST,
}
# Only a person can end these reviews. The provider cannot refund money that a bank has taken back. It would answer a
# repeated refund with the failed one, which has the same idempotency key, and it may report the failed one late.
_ENDED_BY_HAND: Final = frozenset({Reason.REFUND_FAILED, Reason.DISPUTED, Reason.DISPUTE_LOST})


def start_payment(state: EventState, command: StartPayment) -> Accepted:
    booking = end_with_event(state, find_booking(state, command))
    earlier = next((p for p in booking.payments if p.request_key == command.request_key), None)
    # A customer cannot see the payments of a transferred booking, not even one that came back to them.
    if earlier is not None and (command.owner is None or not booking.was_transferred):
        if earlier.fingerprint != command.fingerprint:
            raise RefusedError(Refusal.IDEMPOTENCY_KEY_REUSED)
        return Accepted(booking, state.layout, state.now, replayed=earlier.id != command.payment, payment=earlier)
    target = TRANSITIONS[booking.status, Verb.START_PAYMENT]
    if isinstance(target, Refusal):
        raise RefusedError(target)
    if command.provider == RECEIPT and booking.total > 0 and state.layout.policy.review != "manual":
        raise RefusedError(Refusal.REVIEW_NOT_OFFERED)
    offered = state.layout.providers
    is_offered = offered is None or command.provider in (RECEIPT, *offered)
    if booking.total > 0 and not is_offered:
        names = ", ".join(sorted(offered or ())) or "none"
        raise RefusedError(Refusal.UNKNOWN_PROVIDER, f"The event offers these payment providers: {names}.")
    _check_payment_count(booking)
    if not booking.payments:
        booking = extend_for_payment(state, booking, command.actor)
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
        if booking.status is Status.EXPIRED:
            check_late_receipt(state, booking)
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
        case PaymentResult.CAPTURED if payment.capture_assumed:
            booking = _confirm_assumed_capture(state, booking, payment, command)
        case PaymentResult.FAILED if payment.status is PaymentStatus.STARTED:
            failed = structs.replace(payment, status=PaymentStatus.FAILED)
            booking = state.record_payment(booking, failed, command.actor)
        case PaymentResult.REFUND_ACCEPTED if payment.status is PaymentStatus.REFUND_DUE:
            booking = _record_refund(state, booking, payment, command.actor)
        case PaymentResult.REFUNDED if payment.status is PaymentStatus.REFUND_DUE or _provider_can_refund(payment):
            booking = _record_refund(state, booking, payment, command.actor)
        case PaymentResult.REFUND_FAILED if _was_refunded_by_provider(payment):
            in_review = _in_review(state, payment, Reason.REFUND_FAILED)
            booking = state.record_payment(booking, in_review, command.actor)
        case PaymentResult.DISPUTED | PaymentResult.DISPUTE_WON | PaymentResult.DISPUTE_LOST:
            booking = _record_dispute(state, booking, payment, command)
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
            if _can_refund_after_review(payment):
                due = _refund_due(_assume_capture(state, payment), command.reason)
                booking = state.record_payment(booking, due, command.actor)
            elif payment.status not in (PaymentStatus.REFUND_DUE, PaymentStatus.REFUNDED):
                raise RefusedError(Refusal.NOT_REFUNDABLE)
        case Remedy.BY_HAND:
            if payment.status is PaymentStatus.REVIEW:
                by_hand = _refunded(_assume_capture(state, payment), command.reason)
                booking = state.record_payment(booking, by_hand, command.actor)
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
        due = _refund_due(structs.replace(payment, captured_at=state.now), refusal.code)
        return state.record_payment(booking, due, actor, is_unexpected=True)
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
    is_open_to_refunds = payment.status is not PaymentStatus.REFUNDED and not _is_ended_by_hand(payment)
    return payment.provider != RECEIPT and is_open_to_refunds


def _can_refund_after_review(payment: Payment) -> bool:
    is_in_review = payment.status is PaymentStatus.REVIEW
    return is_in_review and payment.provider != RECEIPT and not _is_ended_by_hand(payment)


def _is_ended_by_hand(payment: Payment) -> bool:
    return payment.status is PaymentStatus.REVIEW and payment.reason in _ENDED_BY_HAND


def _was_refunded_by_provider(payment: Payment) -> bool:
    """A refund can fail before we have recorded that the provider accepted it."""
    is_refunded = payment.status in (PaymentStatus.REFUND_DUE, PaymentStatus.REFUNDED)
    return is_refunded and payment.provider != RECEIPT


def _assume_capture(state: EventState, payment: Payment) -> Payment:
    """A person who refunds a payment says that the money was captured, even if we never learned of it."""
    if payment.captured_at is not None:
        return payment
    return structs.replace(payment, captured_at=state.now, capture_assumed=True)


def _confirm_assumed_capture(state: EventState, booking: Booking, payment: Payment, command: SettlePayment) -> Booking:
    """The provider reports a capture that staff have already dealt with. If they recorded a refund by hand, the buyer
    may already have the money. A refund here could be the second one, so a person decides."""
    known = structs.replace(payment, capture_assumed=False)
    if payment.status is PaymentStatus.REFUND_DUE:
        return state.record_payment(booking, known, command.actor)
    received = (command.amount, command.currency)
    return state.record_payment(
        booking,
        _in_review(state, known, Reason.CAPTURED_AFTER_ALL),
        command.actor,
        received=(None, None) if received == (payment.amount, payment.currency) else received,
    )


def _record_dispute(state: EventState, booking: Booking, payment: Payment, command: SettlePayment) -> Booking:
    """A person decides about a disputed payment and its booking, which stays as it is."""
    reason = _DISPUTE_REASONS[command.result]
    if payment.provider == RECEIPT or _is_old_dispute(payment, reason):
        return booking
    return state.record_payment(booking, _in_review(state, payment, reason), command.actor)


def _is_old_dispute(payment: Payment, reason: Reason) -> bool:
    """A dispute cannot start after its end. A won dispute matters only to a payment in review or refunded."""
    known = payment.reason if payment.status is PaymentStatus.REVIEW else None
    if reason is Reason.DISPUTED:
        return known in _DISPUTE_REASONS.values()
    if reason is Reason.DISPUTE_WON and payment.status not in (PaymentStatus.REVIEW, PaymentStatus.REFUNDED):
        return True
    return known == reason


def _in_review(state: EventState, payment: Payment, reason: Reason) -> Payment:
    """Every cause of this review proves that the provider captured the money."""
    return structs.replace(
        payment,
        status=PaymentStatus.REVIEW,
        outcome=PaymentOutcome.REVIEW,
        captured_at=payment.captured_at or state.now,
        capture_assumed=False,
        reason=reason,
    )


def _refund_due(payment: Payment, reason: str | None) -> Payment:
    return structs.replace(payment, status=PaymentStatus.REFUND_DUE, outcome=None, reason=reason)


def _refunded(payment: Payment, reason: str | None = None) -> Payment:
    return structs.replace(
        payment,
        status=PaymentStatus.REFUNDED,
        outcome=PaymentOutcome.REFUNDED,
        reason=reason or payment.reason,
    )


def _capture_refusal(state: EventState, booking: Booking) -> Refusal | None:
    """Why the booking cannot keep money that arrives now, or None if it can."""
    target = TRANSITIONS[booking.status, Verb.SETTLE]
    if isinstance(target, Refusal):
        return target
    is_payable = booking.status is not Status.EXPIRED or is_revivable(state, booking)
    return None if is_payable else Refusal.HOLD_EXPIRED


def _review_wrong_amount(state: EventState, booking: Booking, payment: Payment, command: SettlePayment) -> Booking:
    in_review = _in_review(state, payment, Reason.WRONG_AMOUNT)
    return state.record_payment(booking, in_review, command.actor, received=(command.amount, command.currency))


def _record_refund(state: EventState, booking: Booking, payment: Payment, actor: str) -> Booking:
    """The provider refunds the money, which proves that it had captured it. A booking that this payment paid for ends
    with it."""
    captured_at = payment.captured_at or state.now
    refunded = _refunded(structs.replace(payment, captured_at=captured_at, capture_assumed=False))
    paid_for_booking = payment.status is PaymentStatus.SUCCEEDED
    booking = state.record_payment(booking, refunded, actor)
    if paid_for_booking and booking.status is Status.CONFIRMED:
        booking = apply_verb(state, booking, Verb.REFUND, actor, Reason.REFUNDED_BY_PROVIDER)
    return booking
