"""Payments and payment commands built by hand, for tests of the pure core."""

from typing import Any, Final

from msgspec import structs

from holdfast.core.booking import Booking
from holdfast.core.commands import Receipt, Remedy, ResolvePayment, SettlePayment, StartPayment, SubmitReceipt
from holdfast.core.payment import RECEIPT, Payment, PaymentOutcome, PaymentResult, PaymentStatus
from tests.support import builders

OUTCOME_OF: Final = {
    PaymentStatus.SUCCEEDED: {PaymentOutcome.FULFILLED, PaymentOutcome.REVIVED},
    PaymentStatus.REFUNDED: {PaymentOutcome.REFUNDED},
    PaymentStatus.REVIEW: {PaymentOutcome.REVIEW},
}


# A captured payment is kept, being refunded, refunded or under review.
CAPTURED: Final = {*OUTCOME_OF, PaymentStatus.REFUND_DUE}


PAID_STATUSES: Final = {"confirmed", "completed"}


def make_payment(name: str, status: PaymentStatus = PaymentStatus.STARTED, **changes: Any) -> Payment:
    """A payment of EUR 30.00 as it looks in this status."""
    captured = status in CAPTURED
    payment = Payment(
        id=builders.make_id(name),
        provider=RECEIPT if status is PaymentStatus.SUBMITTED else "gateway",
        status=status,
        outcome=min(OUTCOME_OF[status]) if status in OUTCOME_OF else None,
        amount=3000,
        currency="EUR",
        request_key=builders.make_id(f"k {name}"),
        fingerprint=builders.make_id(f"f {name}"),
        created_at=builders.seconds_from_now(-30),
        captured_at=builders.seconds_from_now(-10) if captured else None,
    )
    return structs.replace(payment, **changes)


def pay_command(name: str, booking: str = "it", **changes: Any) -> StartPayment:
    fields: dict[str, Any] = {
        "payment": builders.make_id(name),
        "provider": "gateway",
        "request_key": builders.make_id(f"k {name}"),
        "fingerprint": builders.make_id(f"f {name}"),
    }
    return StartPayment(**{**_common_fields(booking, "the buyer"), **fields, **changes})


def settle_command(
    name: str, result: PaymentResult = PaymentResult.CAPTURED, booking: str = "it", **changes: Any
) -> SettlePayment:
    """The provider's result for a payment, of the right amount unless a test changes it."""
    fields: dict[str, Any] = {"payment": builders.make_id(name), "result": result, "amount": 3000, "currency": "EUR"}
    return SettlePayment(**{**_common_fields(booking, "provider:gateway"), **fields, **changes})


def resolve_command(name: str, remedy: Remedy, booking: str = "it", **changes: Any) -> ResolvePayment:
    fields: dict[str, Any] = {"payment": builders.make_id(name), "remedy": remedy}
    return ResolvePayment(**{**_common_fields(booking, "the clerk"), **fields, **changes})


def submit_command(name: str, booking: str = "it", **changes: Any) -> SubmitReceipt:
    receipt = Receipt(id=builders.make_id(f"r {name}"), hash=name.encode().rjust(32, b"."), file_ref=name)
    fields: dict[str, Any] = {"payment": builders.make_id(name), "receipt": receipt}
    return SubmitReceipt(**{**_common_fields(booking, "the buyer"), **fields, **changes})


def _common_fields(booking: str, actor: str) -> dict[str, Any]:
    return {"event": builders.EVENT, "org": builders.ORG, "booking": builders.make_id(booking), "actor": actor}


def check_payments(booking: Booking) -> None:
    """A booking keeps at most one payment, and only while it is confirmed. Each captured payment is kept, being
    refunded, refunded or under review. A payment that was not captured is none of these, except under review."""
    kept = [payment for payment in booking.payments if payment.status is PaymentStatus.SUCCEEDED]
    assert len(kept) <= 1, kept
    assert not kept or booking.status.value in PAID_STATUSES, (booking.status, kept)
    for payment in booking.payments:
        assert payment.outcome in OUTCOME_OF.get(payment.status, {None}), payment
        if payment.captured_at is not None:
            assert payment.status in CAPTURED, payment
        else:
            assert payment.status not in (PaymentStatus.SUCCEEDED, PaymentStatus.REFUND_DUE), payment
        if payment.capture_assumed:
            assert payment.captured_at is not None, payment
            assert payment.status in CAPTURED - {PaymentStatus.SUCCEEDED}, payment
