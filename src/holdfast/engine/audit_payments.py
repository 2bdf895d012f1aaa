"""Checks that every captured payment has one outcome, which fits its booking and which the journal explains."""

from msgspec import Struct

from holdfast import sql
from holdfast.core.payment import PaymentOutcome, PaymentStatus
from holdfast.core.states import Status
from holdfast.engine.findings import EventFindings
from holdfast.runtime.db import DatabaseScope

_WITH_CAPTURE = frozenset(
    {PaymentStatus.SUCCEEDED, PaymentStatus.REFUND_DUE, PaymentStatus.REFUNDED, PaymentStatus.REVIEW}
)
_NEEDS_CAPTURE = frozenset({PaymentStatus.SUCCEEDED, PaymentStatus.REFUND_DUE})
_OUTCOMES = {
    PaymentStatus.SUCCEEDED: {PaymentOutcome.FULFILLED, PaymentOutcome.REVIVED},
    PaymentStatus.REFUNDED: {PaymentOutcome.REFUNDED},
    PaymentStatus.REVIEW: {PaymentOutcome.REVIEW},
}


class PaymentRow(Struct, frozen=True):
    """`booking_status`, `total` and `is_sold` are None if there is no such booking."""

    id: bytes
    status: PaymentStatus
    outcome: PaymentOutcome | None
    amount: int
    currency: str
    is_captured: bool
    capture_assumed: bool
    booking_status: Status | None
    total: int | None
    booking_currency: str | None
    is_sold: bool | None
    is_forgotten: bool
    is_kept_twice: bool


class RecordedPaymentRow(Struct, frozen=True):
    """The status that the journal records, and the one that the payment has."""

    id: bytes
    recorded: str | None
    status: PaymentStatus | None


async def check_payments(scope: DatabaseScope, event: bytes, findings: EventFindings) -> None:
    for payment in await scope.rows(PaymentRow, sql.audit.payments, event):
        subject = findings.payment(payment.id)
        for what, detail in _contradictions(payment):
            findings.add(what, subject, detail)
    for row in await scope.rows(RecordedPaymentRow, sql.audit.recorded_payments, event):
        findings.add(*_describe_record(row, findings.payment(row.id)))


def _contradictions(payment: PaymentRow) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    status = payment.status
    if payment.booking_status is None:
        found.append(("payment_without_booking", f"The payment is {status}, but its booking does not exist."))
    elif (payment.amount, payment.currency) != (payment.total, payment.booking_currency):
        found.append(
            (
                "payment_amount",
                f"The payment is over {payment.amount} {payment.currency}, but the booking costs {payment.total} "
                f"{payment.booking_currency}. Compare both with the provider's records.",
            )
        )
    if payment.is_captured and status not in _WITH_CAPTURE:
        found.append(
            (
                "capture_without_outcome",
                f"The provider has captured the money, but the payment is {status}: it is neither kept nor refunded. "
                "Refund it at the provider, or find the booking that it pays for.",
            )
        )
    if not payment.is_captured and status in _NEEDS_CAPTURE:
        found.append(
            (
                "outcome_without_capture",
                f"The payment is {status}, but nothing says that its money was captured. Look it up at the provider.",
            )
        )
    if payment.capture_assumed and (not payment.is_captured or status not in _WITH_CAPTURE - {PaymentStatus.SUCCEEDED}):
        found.append(
            (
                "assumed_capture_kept",
                f"The payment is {status}, but only staff have reported its capture. Look it up at the provider.",
            )
        )
    if payment.outcome not in _OUTCOMES.get(status, {None}):
        found.append(
            ("payment_outcome", f"The payment is {status}, but its outcome is {payment.outcome or 'missing'}.")
        )
    if status is PaymentStatus.SUCCEEDED and payment.is_sold is False:
        found.append(
            (
                "paid_but_not_confirmed",
                f"The payment is kept, but its booking is {payment.booking_status}. Refund the payment, or book for "
                "the buyer again.",
            )
        )
    if payment.is_kept_twice:
        found.append(("paid_twice", "Another payment for the same booking is kept too. Refund one of them."))
    if payment.is_forgotten:
        found.append(
            ("refund_forgotten", "The payment is to be refunded, but no worker will do so. Refund it at the provider.")
        )
    return found


def _describe_record(row: RecordedPaymentRow, payment: str) -> tuple[str, str, str]:
    if row.status is None:
        return (
            "payment_missing",
            payment,
            f"The journal says that this payment is {row.recorded}, but the payment does not exist. "
            "Its booking claims money that nothing here shows: look it up at the provider.",
        )
    if row.recorded is None:
        return "payment_status", payment, f"The payment is {row.status}, but the journal does not have it."
    return "payment_status", payment, f"The payment is {row.status}, but the journal says {row.recorded}."
