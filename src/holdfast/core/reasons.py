"""Why a booking or payment is in its status, as codes.

A reason is either one of these codes, the code of a refusal (for late money), or text that a person typed. Pages and
emails translate the codes.
"""

from holdfast.core.states import FastStrEnum


class Reason(FastStrEnum):
    EVENT_CANCELLED = "event_cancelled"
    RECEIPT_NOT_REVIEWED = "receipt_not_reviewed"
    RECEIPT_REJECTED = "receipt_rejected"
    PAID_OTHERWISE = "paid_otherwise"
    BOOKING_GIVEN_UP = "booking_given_up"
    REFUNDED_BY_PROVIDER = "refunded_by_provider"
    WRONG_AMOUNT = "wrong_amount"
    # The buyer paid outside the product, so a person has to refund the money.
    REFUND_BY_HAND = "refund_by_hand"
    # The provider refuses to refund.
    REFUND_REFUSED = "refund_refused"
    # The provider accepted the refund, but could not complete it.
    REFUND_FAILED = "refund_failed"
    # The provider reports a capture after staff have refunded the payment, or recorded that they did.
    CAPTURED_AFTER_ALL = "captured_after_all"
    DISPUTED = "disputed"
    DISPUTE_WON = "dispute_won"
    DISPUTE_LOST = "dispute_lost"
    PROVIDER_UNREACHABLE = "provider_unreachable"
    PROVIDER_SILENT = "provider_silent"
