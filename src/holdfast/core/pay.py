"""Money for a booking: begun, handed in as a receipt, captured in time or late, and paid back.

Every captured payment ends in exactly one outcome: it is fulfilled (or revives its booking), refunded, or left to a
person. Whatever a provider tells twice, or out of order, changes nothing the second time.
"""

from datetime import datetime
from typing import Final

from msgspec import structs

from holdfast.core.act import ended, extended, is_revivable, moved, moved_by, named
from holdfast.core.book import Book
from holdfast.core.commands import Done, Pay, Remedy, Resolve, Settle, Submit
from holdfast.core.model import Booking
from holdfast.core.money import RECEIPT, News, Payment, PaymentOutcome, PaymentStatus
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import TRANSITIONS, Status, Verb

# Nobody needs more attempts to pay for one booking.
PAYMENTS_MAX: Final = 50
RECEIPTS_MAX: Final = 20


def pay(book: Book, command: Pay) -> Done:
    booking = ended(book, named(book, command))
    earlier = next((p for p in booking.payments if p.request_key == command.request_key), None)
    if earlier is not None:
        if earlier.fingerprint != command.fingerprint:
            raise RefusedError(Refusal.IDEMPOTENCY_KEY_REUSED)
        return Done(booking, book.layout, book.now, replayed=earlier.id != command.payment, payment=earlier)
    payable = TRANSITIONS[booking.status, Verb.EXTEND]
    if isinstance(payable, Refusal):
        raise RefusedError(payable)
    if command.provider == RECEIPT and booking.total > 0 and book.layout.policy.review != "manual":
        raise RefusedError(Refusal.REVIEW_NOT_OFFERED)
    _check_attempts(booking)
    if not booking.payments:
        booking = extended(book, booking, command.actor)
    payment = _begun(book, booking, command)
    booking = book.pay(booking, payment, command.actor)
    if booking.total == 0:
        booking = _captured(book, booking, payment, command.actor)
    return Done(booking, book.layout, book.now, payment=booking.payment(payment.id))


def submit(book: Book, command: Submit) -> Done:
    """The receipt is kept with its booking, and the clock of the review replaces that of the payment."""
    booking = ended(book, named(book, command))
    target = TRANSITIONS[booking.status, Verb.SUBMIT]
    if isinstance(target, Refusal):
        raise RefusedError(target)
    if book.layout.policy.review != "manual":
        raise RefusedError(Refusal.REVIEW_NOT_OFFERED)
    is_new = command.receipt.hash not in booking.receipts
    if is_new and len(booking.receipts) >= RECEIPTS_MAX:
        raise RefusedError(Refusal.LIMIT_REACHED, f"A booking takes at most {RECEIPTS_MAX} receipts.")
    if booking.status is not Status.PAYMENT_SUBMITTED:
        _check_attempts(booking)
        booking = moved_by(book, booking, Verb.SUBMIT, command.actor)
        booking = book.pay(booking, _handed_in(book, booking, command), command.actor)
    if is_new:
        booking = book.prove(booking, command.receipt)
    return Done(booking, book.layout, book.now)


def settle(book: Book, command: Settle) -> Done:
    booking = ended(book, named(book, command))
    payment = booking.payment(command.payment)
    if payment is None:
        raise RefusedError(Refusal.NOT_FOUND)
    match command.news:
        case News.CAPTURED if payment.is_open:
            if (command.amount, command.currency) == (payment.amount, payment.currency):
                booking = _captured(book, booking, payment, command.actor)
            else:
                told = f"{command.amount} {command.currency} came instead of {payment.amount} {payment.currency}."
                booking = _into_review(book, booking, payment, command.actor, told, captured=True)
        case News.FAILED if payment.status is PaymentStatus.STARTED:
            booking = book.pay(booking, structs.replace(payment, status=PaymentStatus.FAILED), command.actor)
        case News.REFUNDED if payment.status is PaymentStatus.REFUND_DUE or _may_have_gone_back(payment):
            booking = _paid_back(book, booking, payment, command.actor)
        case _:
            pass
    return Done(booking, book.layout, book.now, payment=booking.payment(command.payment))


def resolve(book: Book, command: Resolve) -> Done:
    booking = ended(book, named(book, command))
    payment = booking.payment(command.payment)
    if payment is None:
        raise RefusedError(Refusal.NOT_FOUND)
    status = payment.status
    if command.remedy is Remedy.REVIEW:
        if status in (PaymentStatus.REFUND_DUE, PaymentStatus.STARTED):
            booking = _into_review(book, booking, payment, command.actor, command.reason or "")
    elif command.remedy is Remedy.REFUND:
        if status is PaymentStatus.REVIEW and payment.provider != RECEIPT:
            due = _due_back(payment, command.reason, payment.captured_at or book.now)
            booking = book.pay(booking, due, command.actor)
        elif status not in (PaymentStatus.REFUND_DUE, PaymentStatus.REFUNDED):
            raise RefusedError(Refusal.NOT_REFUNDABLE)
    elif status is PaymentStatus.REVIEW:
        booking = _paid_back(book, booking, payment, command.actor, command.reason)
    elif status is not PaymentStatus.REFUNDED:
        raise RefusedError(Refusal.NOT_REFUNDABLE)
    return Done(booking, book.layout, book.now, payment=booking.payment(command.payment))


def _check_attempts(booking: Booking) -> None:
    if len(booking.payments) >= PAYMENTS_MAX:
        raise RefusedError(Refusal.LIMIT_REACHED, f"A booking takes at most {PAYMENTS_MAX} attempts to pay.")


def _begun(book: Book, booking: Booking, command: Pay) -> Payment:
    return Payment(
        id=command.payment,
        provider=command.provider,
        status=PaymentStatus.STARTED,
        amount=booking.total,
        currency=booking.currency,
        request_key=command.request_key,
        fingerprint=command.fingerprint,
        created_at=book.now,
        return_url=command.return_url,
    )


def _handed_in(book: Book, booking: Booking, command: Submit) -> Payment:
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
        created_at=book.now,
    )


def _captured(book: Book, booking: Booking, payment: Payment, actor: str) -> Booking:
    """The right sum has come. In time it confirms the booking, late it revives it; else it goes back."""
    said = _objection(book, booking)
    if said is not None:
        return book.pay(booking, _due_back(payment, said.title, book.now), actor, is_surprise=True)
    late = booking.status is Status.EXPIRED
    kept = structs.replace(
        payment,
        status=PaymentStatus.SUCCEEDED,
        outcome=PaymentOutcome.REVIVED if late else PaymentOutcome.FULFILLED,
        captured_at=book.now,
        reason=None,
    )
    return moved_by(book, book.pay(booking, kept, actor), Verb.SETTLE, actor)


def _may_have_gone_back(payment: Payment) -> bool:
    """A merchant can pay back at the provider, without us. About receipts no provider has a say."""
    return payment.provider != RECEIPT and payment.status is not PaymentStatus.REFUNDED


def _due_back(payment: Payment, reason: str | None, captured_at: datetime) -> Payment:
    """Whoever pays it back says that it was captured."""
    return structs.replace(
        payment, status=PaymentStatus.REFUND_DUE, outcome=None, reason=reason, captured_at=captured_at
    )


def _objection(book: Book, booking: Booking) -> Refusal | None:
    """Why money for the booking cannot be kept."""
    target = TRANSITIONS[booking.status, Verb.SETTLE]
    if isinstance(target, Refusal):
        return target
    revivable = booking.status is not Status.EXPIRED or is_revivable(book, booking)
    return None if revivable else Refusal.HOLD_EXPIRED


def _into_review(
    book: Book, booking: Booking, payment: Payment, actor: str, reason: str, *, captured: bool = False
) -> Booking:
    kept = structs.replace(
        payment,
        status=PaymentStatus.REVIEW,
        outcome=PaymentOutcome.REVIEW,
        captured_at=book.now if captured else payment.captured_at,
        reason=reason,
    )
    return book.pay(booking, kept, actor)


def _paid_back(book: Book, booking: Booking, payment: Payment, actor: str, reason: str | None = None) -> Booking:
    """The money is back with the buyer, also where we never heard that it had come. A booking that it had paid for ends
    with it."""
    fulfilled = payment.status is PaymentStatus.SUCCEEDED
    done = structs.replace(
        payment,
        status=PaymentStatus.REFUNDED,
        outcome=PaymentOutcome.REFUNDED,
        captured_at=payment.captured_at or book.now,
        reason=reason or payment.reason,
    )
    booking = book.pay(booking, done, actor)
    if fulfilled and booking.status is Status.CONFIRMED:
        booking = moved(book, booking, Status.REFUNDED, actor, "The payment was refunded by the provider.")
    return booking
