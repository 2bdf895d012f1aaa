"""Doing something to a booking that exists, and what each change of its status means for its payments."""

from datetime import timedelta
from typing import Final

from msgspec import structs

from holdfast.core.book import SYSTEM, Book
from holdfast.core.commands import Act, Done, Pay, Resolve, Settle, Submit, Transfer
from holdfast.core.model import Booking
from holdfast.core.money import RECEIPT, Payment, PaymentOutcome, PaymentStatus
from holdfast.core.place import check_user, short_pools
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


def act(book: Book, command: Act) -> Done:
    booking = ended(book, named(book, command))
    target = TRANSITIONS[booking.status, command.verb]
    if isinstance(target, Refusal):
        raise RefusedError(target)
    if command.verb is Verb.EXTEND:
        return Done(extended(book, booking, command.actor), book.layout, book.now)
    if target is booking.status:
        return Done(booking, book.layout, book.now)
    if command.verb is Verb.CANCEL and booking.status is Status.CONFIRMED and booking.total > 0:
        raise RefusedError(Refusal.ALREADY_CONFIRMED, "It was paid for: refund it instead.")
    if command.verb is Verb.APPROVE:
        booking = _approved(book, booking, command.actor)
    after = moved_by(book, booking, command.verb, command.actor, command.reason)
    return Done(after, book.layout, book.now)


def named(book: Book, command: Act | Pay | Submit | Settle | Resolve | Transfer) -> Booking:
    """The booking that a command is about, if whoever asks may know of it. Who may hand a booking on was looked at
    before: they know it no more once it is another's."""
    booking = book.bookings.get(command.booking)
    owner = command.owner if isinstance(command, Act | Pay | Submit) else None
    if booking is None or booking.org != command.org or owner not in (None, booking.user):
        raise RefusedError(Refusal.NOT_FOUND)
    return booking


def moved_by(book: Book, booking: Booking, verb: Verb, actor: str, reason: str | None = None) -> Booking:
    """The booking in the status that the verb leads to. One that has expired needs its units back for that."""
    target = TRANSITIONS[booking.status, verb]
    assert isinstance(target, Status)
    if booking.status is Status.EXPIRED and not is_revivable(book, booking):
        raise RefusedError(Refusal.HOLD_EXPIRED)
    return moved(book, booking, target, actor, reason)


def moved(book: Book, booking: Booking, status: Status, actor: str, reason: str | None = None) -> Booking:
    """The booking in another status, and its payments in what follows from that."""
    until = None
    if status is Status.PAYMENT_SUBMITTED:
        until = book.now + timedelta(seconds=book.layout.policy.review_seconds)
    after = book.move(booking, status, actor, reason, until)
    for payment in after.payments:
        change = _consequence(payment, status)
        if change is not None:
            after = book.pay(after, change, actor)
        elif payment.status is PaymentStatus.STARTED:
            book.turn_to(payment, after.id)
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


def _approved(book: Book, booking: Booking, actor: str) -> Booking:
    """Whoever approves a receipt says that the money is there."""
    for payment in booking.payments:
        if payment.status is PaymentStatus.SUBMITTED:
            captured = structs.replace(
                payment,
                status=PaymentStatus.SUCCEEDED,
                outcome=PaymentOutcome.FULFILLED,
                captured_at=book.now,
            )
            booking = book.pay(booking, captured, actor)
    return booking


def ended(book: Book, booking: Booking) -> Booking:
    """The booking as it is once it has ended with its event, if that has ended."""
    status = book.layout.status
    target = ENDINGS.get(status, {}).get((booking.status, booking.total == 0))
    if target is None:
        return booking
    reason = "The event was cancelled." if status is EventStatus.CANCELLED else None
    return moved(book, booking, target, SYSTEM, reason)


def extended(book: Book, booking: Booking, actor: str) -> Booking:
    assert booking.expires_at is not None
    assert booking.max_expires_at is not None
    wanted = book.now + timedelta(seconds=book.layout.policy.extend_seconds)
    until = min(max(booking.expires_at, wanted), booking.max_expires_at)
    return book.extend(booking, until, actor) if until > booking.expires_at else booking


def is_revivable(book: Book, booking: Booking) -> bool:
    """Whether an expired booking can have the same units again: late, but within the grace, and nobody took them."""
    assert booking.expires_at is not None
    grace = timedelta(seconds=book.layout.policy.late_grace_seconds)
    if book.layout.status is not EventStatus.ACTIVE or book.now > booking.expires_at + grace:
        return False
    if any(line.seat is not None and not book.is_free(line.seat) for line in booking.lines):
        return False
    if short_pools(book, booking.lines):
        return False
    try:
        check_user(book, booking.user, booking.lines)
    except RefusedError:
        return False
    return True
