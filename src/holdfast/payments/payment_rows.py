"""A payment as the background jobs read it, and the commands they submit about it."""

from datetime import datetime

from msgspec import Struct

from holdfast.core.commands import Remedy, ResolvePayment, SettlePayment
from holdfast.core.payment import PaymentResult
from holdfast.runtime import ids


class PaymentRow(Struct, frozen=True, kw_only=True):
    event_id: bytes
    id: bytes
    org_id: bytes
    booking_id: bytes
    provider: str
    provider_ref: str | None

    @property
    def public_id(self) -> str:
        return ids.format_payment_id(self.event_id, self.id)

    def settle(
        self, actor: str, result: PaymentResult, amount: int | None = None, currency: str | None = None
    ) -> SettlePayment:
        return SettlePayment(
            event=self.event_id,
            org=self.org_id,
            booking=self.booking_id,
            payment=self.id,
            actor=actor,
            result=result,
            amount=amount,
            currency=currency,
        )

    def escalate_to_review(self, actor: str, reason: str) -> ResolvePayment:
        return ResolvePayment(
            event=self.event_id,
            org=self.org_id,
            booking=self.booking_id,
            payment=self.id,
            actor=actor,
            remedy=Remedy.REVIEW,
            reason=reason,
        )


class DuePayment(PaymentRow, frozen=True, kw_only=True):
    """A claimed payment. `attempts` includes this one but no polls during the hold, `now` is the database's clock, and
    `held` says whether the booking's hold still runs."""

    amount: int
    currency: str
    attempts: int
    created_at: datetime
    now: datetime
    expires_at: datetime | None
    held: bool
