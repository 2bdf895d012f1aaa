"""A payment, its statuses, and the outcomes of captured money."""

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
    """What a provider can report about a payment."""

    CAPTURED = "captured"
    FAILED = "failed"
    # The provider has accepted a refund that we asked for. It can still fail, even days later.
    REFUND_ACCEPTED = "refund_accepted"
    REFUNDED = "refunded"
    REFUND_FAILED = "refund_failed"
    # The buyer asked their bank to take the money back; the merchant then won or lost the dispute.
    DISPUTED = "disputed"
    DISPUTE_WON = "dispute_won"
    DISPUTE_LOST = "dispute_lost"


# The provider of payments that staff approve by hand, on the evidence of a receipt.
RECEIPT: Final = "receipt"


_CAPTURABLE: Final = frozenset({PaymentStatus.STARTED, PaymentStatus.FAILED, PaymentStatus.REVIEW})


class Payment(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    # Whether staff refunded the payment before its provider reported a capture.
    capture_assumed: bool = False
    reason: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the provider may still capture it. A failed payment can succeed on a retry, and a provider can report
        a capture after a person has started to review the payment."""
        return self.provider != RECEIPT and self.captured_at is None and self.status in _CAPTURABLE
