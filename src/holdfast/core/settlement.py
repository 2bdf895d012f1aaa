"""Money for a booking: begun, handed in as a receipt, captured in time or late, and paid back.

Every captured payment ends in exactly one outcome: it is fulfilled (or revives its booking), refunded, or left to a
person. Whatever a provider tells twice, or out of order, changes nothing the second time.
"""

from datetime import datetime
from typing import Final

from msgspec import structs

from holdfast.core.commands import Accepted, Remedy, ResolvePayment, SettlePayment, StartPayment, SubmitReceipt
from holdfast.core.event_state import EventState
from holdfast.core.model import Booking
from holdfast.core.payment import RECEIPT, Payment, PaymentOutcome, PaymentResult, PaymentStatus
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import TRANSITIONS, Status, Verb
from holdfast.core.transitions import apply_verb, end_with_event, extend_hold, find_booking, is_revivable, transition

# Nobody needs more attempts to pay for one booking.
PAYMENTS_MAX: Final = 50
RECEIPTS_MAX: Final = 20


def start_payment(state: EventState, command: StartPayment) -> Accepted:
    booking = end_with_event(state, find_booking(state, command))
    earlier = next((p for p in booking.payments if p.request_key == command.request_key), None)
    if earlier is not None:
        if earlier.fingerprint != command.fingerprint:
            raise RefusedError(Refusal.IDEMPOTENCY_KEY_REUSED)
        return Accepted(booking, state.layout, state.now, replayed=earlier.id != command.payment, payment=earlier)
    payable = TRANSITIONS[booking.status, Verb.EXTEND]
    if isinstance(payable, Refusal):
        raise RefusedError(payable)
    if command.provider == RECEIPT and booking.total > 0 and state.layout.policy.review != "manual":
        raise RefusedError(Refusal.REVIEW_NOT_OFFERED)
    _check_attempts(booking)
    if not booking.payments:
        booking = extend_hold(state, booking, command.actor)
    payment = _begun(state, booking, command)
    booking = state.pay(booking, payment, command.actor)
    if booking.total == 0:
        booking = _captured(state, booking, payment, command.actor)
    return Accepted(booking, state.layout, state.now, payment=booking.payment(payment.id))


def submit_receipt(state: EventState, command: SubmitReceipt) -> Accepted:
    """The receipt is kept with its booking, and the clock of the review replaces that of the payment."""
    booking = end_with_event(state, find_booking(state, command))
    target = TRANSITIONS[booking.status, Verb.SUBMIT]
    if isinstance(target, Refusal):
        raise RefusedError(target)
    if state.layout.policy.review != "manual":
        raise RefusedError(Refusal.REVIEW_NOT_OFFERED)
    is_new = command.receipt.hash not in booking.receipts
    if is_new and len(booking.receipts) >= RECEIPTS_MAX:
        raise RefusedError(Refusal.LIMIT_REACHED, f"A booking takes at most {RECEIPTS_MAX} receipts.")
    if booking.status is not Status.PAYMENT_SUBMITTED:
        _check_attempts(booking)
        booking = apply_verb(state, booking, Verb.SUBMIT, command.actor)
        booking = state.pay(booking, _handed_in(state, booking, command), command.actor)
    if is_new:
        booking = state.add_receipt(booking, command.receipt)
    return Accepted(booking, state.layout, state.now)


def settle_payment(state: EventState, command: SettlePayment) -> Accepted:
    booking = end_with_event(state, find_booking(state, command))
    payment = booking.payment(command.payment)
    if payment is None:
        raise RefusedError(Refusal.NOT_FOUND)
    match command.result:
        case PaymentResult.CAPTURED if payment.is_open:
            if (command.amount, command.currency) == (payment.amount, payment.currency):
                booking = _captured(state, booking, payment, command.actor)
            else:
                told = f"{command.amount} {command.currency} came instead of {payment.amount} {payment.currency}."
                booking = _into_review(state, booking, payment, command.actor, told, captured=True)
        case PaymentResult.FAILED if payment.status is PaymentStatus.STARTED:
            booking = state.pay(booking, structs.replace(payment, status=PaymentStatus.FAILED), command.actor)
        case PaymentResult.REFUNDED if payment.status is PaymentStatus.REFUND_DUE or _may_have_gone_back(payment):
            booking = _paid_back(state, booking, payment, command.actor)
        case _:
            pass
    return Accepted(booking, state.layout, state.now, payment=booking.payment(command.payment))


def resolve_payment(state: EventState, command: ResolvePayment) -> Accepted:
    booking = end_with_event(state, find_booking(state, command))
    payment = booking.payment(command.payment)
    if payment is None:
        raise RefusedError(Refusal.NOT_FOUND)
    status = payment.status
    if command.remedy is Remedy.REVIEW:
        if status in (PaymentStatus.REFUND_DUE, PaymentStatus.STARTED):
            booking = _into_review(state, booking, payment, command.actor, command.reason or "")
    elif command.remedy is Remedy.REFUND:
        if status is PaymentStatus.REVIEW and payment.provider != RECEIPT:
            due = _due_back(payment, command.reason, payment.captured_at or state.now)
            booking = state.pay(booking, due, command.actor)
        elif status not in (PaymentStatus.REFUND_DUE, PaymentStatus.REFUNDED):
            raise RefusedError(Refusal.NOT_REFUNDABLE)
    elif status is PaymentStatus.REVIEW:
        booking = _paid_back(state, booking, payment, command.actor, command.reason)
    elif status is not PaymentStatus.REFUNDED:
        raise RefusedError(Refusal.NOT_REFUNDABLE)
    return Accepted(booking, state.layout, state.now, payment=booking.payment(command.payment))


def _check_attempts(booking: Booking) -> None:
    if len(booking.payments) >= PAYMENTS_MAX:
        raise RefusedError(Refusal.LIMIT_REACHED, f"A booking takes at most {PAYMENTS_MAX} attempts to pay.")


def _begun(state: EventState, booking: Booking, command: StartPayment) -> Payment:
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


def _handed_in(state: EventState, booking: Booking, command: SubmitReceipt) -> Payment:
    """The payment that a receipt proves: the one that was begun for it, or a new one."""
    begun = [p for p in booking.payments if p.provider == RECEIPT and p.status is PaymentStatus.STARTED]
    if begun:
        return structs.replace(begun[-1], status=PaymentStatus.SUBMITTED)
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


def _captured(state: EventState, booking: Booking, payment: Payment, actor: str) -> Booking:
    """The right sum has come. In time it confirms the booking, late it revives it; else it goes back."""
    said = _objection(state, booking)
    if said is not None:
        return state.pay(booking, _due_back(payment, said.title, state.now), actor, is_unexpected=True)
    late = booking.status is Status.EXPIRED
    kept = structs.replace(
        payment,
        status=PaymentStatus.SUCCEEDED,
        outcome=PaymentOutcome.REVIVED if late else PaymentOutcome.FULFILLED,
        captured_at=state.now,
        reason=None,
    )
    return apply_verb(state, state.pay(booking, kept, actor), Verb.SETTLE, actor)


def _may_have_gone_back(payment: Payment) -> bool:
    """A merchant can pay back at the provider, without us. About receipts no provider has a say."""
    return payment.provider != RECEIPT and payment.status is not PaymentStatus.REFUNDED


def _due_back(payment: Payment, reason: str | None, captured_at: datetime) -> Payment:
    """Whoever pays it back says that it was captured."""
    return structs.replace(
        payment, status=PaymentStatus.REFUND_DUE, outcome=None, reason=reason, captured_at=captured_at
    )


def _objection(state: EventState, booking: Booking) -> Refusal | None:
    """Why money for the booking cannot be kept."""
    target = TRANSITIONS[booking.status, Verb.SETTLE]
    if isinstance(target, Refusal):
        return target
    revivable = booking.status is not Status.EXPIRED or is_revivable(state, booking)
    return None if revivable else Refusal.HOLD_EXPIRED


def _into_review(
    state: EventState, booking: Booking, payment: Payment, actor: str, reason: str, *, captured: bool = False
) -> Booking:
    kept = structs.replace(
        payment,
        status=PaymentStatus.REVIEW,
        outcome=PaymentOutcome.REVIEW,
        captured_at=state.now if captured else payment.captured_at,
        reason=reason,
    )
    return state.pay(booking, kept, actor)


def _paid_back(state: EventState, booking: Booking, payment: Payment, actor: str, reason: str | None = None) -> Booking:
    """The money is back with the buyer, also where we never heard that it had come. A booking that it had paid for ends
    with it."""
    fulfilled = payment.status is PaymentStatus.SUCCEEDED
    done = structs.replace(
        payment,
        status=PaymentStatus.REFUNDED,
        outcome=PaymentOutcome.REFUNDED,
        captured_at=payment.captured_at or state.now,
        reason=reason or payment.reason,
    )
    booking = state.pay(booking, done, actor)
    if fulfilled and booking.status is Status.CONFIRMED:
        booking = transition(state, booking, Status.REFUNDED, actor, "The payment was refunded by the provider.")
    return booking
