"""Payments: what becomes of one when its provider tells something about it, and how captured money ends."""

from datetime import datetime
from typing import Final

from msgspec import Struct

from holdfast.core.states import FastStrEnum


class PaymentStatus(FastStrEnum):
    STARTED = "started"
    SUBMITTED = "submitted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUND_DUE = "refund_due"
    REFUNDED = "refunded"
    REVIEW = "review"


class PaymentOutcome(FastStrEnum):
    """Every captured payment ends in exactly one of these."""

    FULFILLED = "fulfilled"
    REVIVED = "revived"
    REFUNDED = "refunded"
    REVIEW = "review"


class PaymentResult(FastStrEnum):
    """What a provider can tell about a payment."""

    CAPTURED = "captured"
    FAILED = "failed"
    REFUNDED = "refunded"


# Who approves by hand takes the buyer's receipt for the money.
RECEIPT: Final = "receipt"


_MAY_COME: Final = frozenset({PaymentStatus.STARTED, PaymentStatus.FAILED, PaymentStatus.REVIEW})


class Payment(Struct, frozen=True, kw_only=True):
    id: bytes
    provider: str
    status: PaymentStatus
    amount: int
    currency: str
    request_key: bytes
    fingerprint: bytes
    created_at: datetime
    outcome: PaymentOutcome | None = None
    provider_ref: str | None = None
    checkout_url: str | None = None
    return_url: str | None = None
    captured_at: datetime | None = None
    reason: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was not captured and may still be. One that has failed may succeed after all; one whose provider
        was silent for too long is with a person, but the provider may yet speak."""
        return self.provider != RECEIPT and self.captured_at is None and self.status in _MAY_COME
