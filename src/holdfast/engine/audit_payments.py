"""Checks that every captured payment has one outcome, which fits its booking and which the journal explains."""

from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.payment import PaymentOutcome, PaymentStatus
from holdfast.engine.findings import EventFindings
from holdfast.runtime.db import DatabaseScope

# Workers ask about a started payment and retry a refund at least this often, with an hour of slack.
POLL_MAX: Final = timedelta(hours=2)
REFUND_WAIT_MAX: Final = timedelta(hours=9)
# After all its retries, a refund goes to a person. The slack is about a day, for workers that stand still.
REFUND_MAX: Final = timedelta(hours=60)
# Workers retry a notice every few minutes until it takes effect, or for a day if they cannot find its payment.
NOTICE_MAX: Final = timedelta(days=2)

_WITH_CAPTURE: Final[frozenset[str]] = frozenset(
    {PaymentStatus.SUCCEEDED, PaymentStatus.REFUND_DUE, PaymentStatus.REFUNDED, PaymentStatus.REVIEW}
)
_NEEDS_CAPTURE: Final[frozenset[str]] = frozenset({PaymentStatus.SUCCEEDED, PaymentStatus.REFUND_DUE})
_OUTCOMES: Final[dict[str, frozenset[str | None]]] = {
    PaymentStatus.SUCCEEDED: frozenset({PaymentOutcome.FULFILLED, PaymentOutcome.REVIVED}),
    PaymentStatus.REFUNDED: frozenset({PaymentOutcome.REFUNDED}),
    PaymentStatus.REVIEW: frozenset({PaymentOutcome.REVIEW}),
}


class PaymentRow(Struct, frozen=True):
    """`booking_status`, `total` and `is_sold` are None if there is no such booking. Statuses and outcomes are texts:
    one that does not exist is a finding too."""

    id: bytes
    status: str
    outcome: str | None
    amount: int
    currency: str
    is_captured: bool
    capture_assumed: bool
    booking_status: str | None
    total: int | None
    booking_currency: str | None
    is_sold: bool | None
    is_forgotten: bool
    is_kept_twice: bool


class RecordedPaymentRow(Struct, frozen=True):
    """The status that the journal records since `at`, and the one that the payment has."""

    id: bytes
    recorded: str | None
    status: str | None
    at: datetime | None


class UnhandledCaptureRow(Struct, frozen=True):
    id: bytes
    status: str
    received_at: datetime


async def check_payments(scope: DatabaseScope, event: bytes, findings: EventFindings) -> None:
    now: datetime = await scope.fetchval(sql.audit.now)
    payments = sql.audit.payments(
        event=event,
        now=now,
        poll_seconds_max=POLL_MAX.total_seconds(),
        refund_seconds_max=REFUND_WAIT_MAX.total_seconds(),
    )
    for payment in await scope.rows(PaymentRow, *payments):
        subject = findings.payment(payment.id)
        for what, detail in _contradictions(payment):
            findings.add(what, subject, detail)
    recorded = sql.audit.recorded_payments(event=event, now=now, refund_seconds=REFUND_MAX.total_seconds())
    for row in await scope.rows(RecordedPaymentRow, *recorded):
        findings.add(*_describe_record(row, findings.payment(row.id)))
    unhandled = sql.audit.unhandled_captures(event=event, now=now, notice_seconds=NOTICE_MAX.total_seconds())
    for notice in await scope.rows(UnhandledCaptureRow, *unhandled):
        findings.add(
            "capture_unhandled",
            findings.payment(notice.id),
            f"The provider reported on {notice.received_at:%Y-%m-%d} that it has captured the money, and no worker has "
            f"acted on it: the payment is still {notice.status}. Look for `inbox` in the log, and refund the payment "
            "at the provider if the buyer has no ticket.",
        )


def _contradictions(payment: PaymentRow) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    status: str = payment.status
    if payment.booking_status is None:
        found.append(("payment_without_booking", f"The payment is {status}, but its booking does not exist."))
    elif (payment.amount, payment.currency) != (payment.total, payment.booking_currency):
        found.append(
            (
                "payment_amount",
                f"The payment is for {payment.amount} {payment.currency}, but the booking costs {payment.total} "
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
                f"The payment is {status}, but there is no record of its capture. Look it up at the provider.",
            )
        )
    if payment.capture_assumed and (not payment.is_captured or status not in _WITH_CAPTURE - {PaymentStatus.SUCCEEDED}):
        found.append(
            (
                "assumed_capture_kept",
                f"The payment is {status}, but only staff have reported its capture. Look it up at the provider.",
            )
        )
    if payment.outcome not in _OUTCOMES.get(status, frozenset({None})):
        found.append(
            ("payment_outcome", f"The payment is {status}, but its outcome is {payment.outcome or 'missing'}.")
        )
    if status == PaymentStatus.SUCCEEDED and payment.is_sold is False:
        found.append(
            (
                "paid_but_not_confirmed",
                f"The payment is kept, but its booking is {payment.booking_status}. Refund the payment, or book for "
                "the buyer again.",
            )
        )
    if payment.is_kept_twice:
        found.append(("paid_twice", "Another payment for the same booking is kept too. Refund one of them."))
    if payment.is_forgotten and status == PaymentStatus.REFUND_DUE:
        found.append(
            (
                "refund_forgotten",
                "The payment is due for a refund, but no worker will send it. Refund it at the provider.",
            )
        )
    elif payment.is_forgotten:
        found.append(
            (
                "payment_forgotten",
                "The buyer may have paid, but no worker will ask the provider about the payment. Look it up there.",
            )
        )
    return found


def _describe_record(row: RecordedPaymentRow, payment: str) -> tuple[str, str, str]:
    if row.status is None:
        return (
            "payment_missing",
            payment,
            f"The journal says that this payment is {row.recorded}, but the payment does not exist. "
            "Nothing else here records this money: look it up at the provider.",
        )
    if row.recorded is None:
        return "payment_status", payment, f"The payment is {row.status}, but the journal does not have it."
    if row.recorded != row.status:
        return "payment_status", payment, f"The payment is {row.status}, but the journal says {row.recorded}."
    return (
        "refund_overdue",
        payment,
        f"A refund has been due since {row.at:%Y-%m-%d}, and the payment is neither refunded nor in review. "
        "Check that a worker runs, and refund the payment at the provider.",
    )
