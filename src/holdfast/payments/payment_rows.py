"""A payment with what it belongs to, and the commands that background jobs submit about it."""

from datetime import datetime

import structlog
from msgspec import Struct

from holdfast.core.commands import Accepted, Remedy, ResolvePayment, SettlePayment
from holdfast.core.decide import Outcome
from holdfast.core.payment import Payment, PaymentResult, PaymentStatus
from holdfast.runtime import ids

log = structlog.get_logger()


class PaymentRow(Struct, frozen=True, kw_only=True):
    event: bytes
    org: bytes
    booking: bytes
    payment: Payment

    @property
    def public_id(self) -> str:
        return ids.format_payment_id(self.event, self.payment.id)

    def settle_command(
        self, actor: str, result: PaymentResult, amount: int | None = None, currency: str | None = None
    ) -> SettlePayment:
        return SettlePayment(
            event=self.event,
            org=self.org,
            booking=self.booking,
            payment=self.payment.id,
            actor=actor,
            result=result,
            amount=amount,
            currency=currency,
        )

    def alarm_if_in_review(self, outcome: Outcome) -> None:
        """Log an error if the provider's report left the payment to a person."""
        payment = outcome.payment if isinstance(outcome, Accepted) else None
        if payment is not None and payment.status is PaymentStatus.REVIEW:
            log.error("payment_needs_a_person", payment=self.public_id, reason=payment.reason)

    def review_command(self, actor: str, reason: str) -> ResolvePayment:
        return ResolvePayment(
            event=self.event,
            org=self.org,
            booking=self.booking,
            payment=self.payment.id,
            actor=actor,
            remedy=Remedy.REVIEW,
            reason=reason,
        )


class DuePayment(PaymentRow, frozen=True, kw_only=True):
    """A claimed payment. `attempts` includes this one but no polls during the hold, `now` is the database's clock, and
    `held` says whether the booking's hold is still active."""

    attempts: int
    now: datetime
    expires_at: datetime | None
    held: bool
