"""A payment with what it belongs to, and the commands that background jobs submit about it."""

from datetime import datetime

from msgspec import Struct

from holdfast.core.commands import Remedy, ResolvePayment, SettlePayment
from holdfast.core.payment import Payment, PaymentResult
from holdfast.runtime import ids


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
