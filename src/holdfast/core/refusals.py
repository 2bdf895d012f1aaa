"""Every refusal of the product: a stable code, its rank, and a title that says what happened and what to do next.

The members stand in order of precedence: if several refusals apply, the caller gets the first one.
"""

from datetime import datetime
from enum import Enum
from typing import Self

from msgspec import Struct


class Refusal(Enum):
    """`NAME = (title, whether repeating the same request soon may succeed)`."""

    RATE_LIMITED = ("Too many requests. Wait for the number of seconds in Retry-After, then try again.", True)
    UNAUTHORIZED = ("This request needs a valid token. Send Authorization: Bearer <token>.", False)
    FORBIDDEN = ("Your role does not allow this request. Use a key with another role.", False)
    IDEMPOTENCY_KEY_MISSING = ("This request needs an Idempotency-Key header of 1 to 255 characters.", False)
    PAYLOAD_TOO_LARGE = ("The request body is too large. Send a smaller one.", False)
    INVALID_SIGNATURE = ("The signature does not match the body, or is too old. Check the signing secret.", False)
    INVALID_REQUEST = ("The request is not valid. `detail` says what to correct.", False)
    NOT_FOUND = ("Nothing was found at this URL. Check the path and the id.", False)
    METHOD_NOT_ALLOWED = (
        "This URL does not support this method. The Allow header lists the methods it supports.",
        False,
    )
    EVENT_NOT_ON_SALE = ("The event is not on sale: it is a draft, or it has ended.", False)
    NOT_ON_SALE_YET = ("Sales have not opened yet. `sales_open_at` says when they do.", False)
    SALES_CLOSED = ("Sales have closed.", False)
    EVENT_ENDED = ("The event is completed or cancelled and can no longer change.", False)
    IDEMPOTENCY_KEY_REUSED = ("This Idempotency-Key belongs to a different request. Send a new key.", False)
    UNKNOWN_SEAT = ("The event has no such seat. Choose one from its seat map.", False)
    UNKNOWN_POOL = ("The event has no such pool. Choose one of its pools.", False)
    UNKNOWN_TARIFF = ("The pool has no such tariff, or you did not name one. Choose one of its tariffs.", False)
    CONTACT_REQUIRED = ("The event requires more contact details. Send them in `contact`.", False)
    ANSWER_REQUIRED = ("The event requires answers to some of its questions. Send them in `answers`.", False)
    COMPANION_REQUIRED = (
        "This kind of ticket needs a companion. Add a ticket that can be booked alone.",
        False,
    )
    UNIT_COUNT = ("The booking has too few or too many units for this event.", False)
    UNKNOWN_PROVIDER = (
        "This payment provider is not set up here, or the event does not offer it. Choose another one.",
        False,
    )
    INVALID_TICKET = ("This code is not a ticket for one of your events.", False)
    WRONG_EVENT = ("This ticket is for another event. `detail` names the event.", False)
    TICKET_VOID = ("The ticket is no longer valid.", False)
    ALREADY_CHECKED_IN = ("This ticket has already been used to enter.", False)
    ALREADY_BOOKED = ("This user already has a booking for this event. The limit is one per user.", False)
    LIMIT_REACHED = ("The request would exceed a limit.", False)
    UNPAID_LIMIT_REACHED = ("This user holds too many unpaid units. Pay for them, or cancel them.", False)
    ADDRESS_LIMIT_REACHED = (
        "Buyers behind this network address hold too many unpaid units. Pay for yours, or try again later.",
        False,
    )
    TOO_MANY_EXPIRED_HOLDS = (
        "Too many holds in a row have expired without a payment. Wait for the number of seconds in Retry-After.",
        False,
    )
    SEAT_TAKEN = ("At least one of these seats is taken. Choose other seats.", False)
    SOLD_OUT = ("Not enough units are left. Ask for fewer, or choose another pool.", False)
    ORPHAN_SEAT = ("This choice would leave a single empty seat. Choose seats that leave no gap.", False)
    ORDER_NUMBER_USED = ("Another event has this order number. Choose another one.", False)
    CAPACITY_IN_USE = ("More units are taken than the new capacity allows. Set a higher capacity.", False)
    HOLD_EXPIRED = ("The hold has expired. Its units are on sale again. Start a new hold.", False)
    ALREADY_SUBMITTED = ("A payment receipt for this booking is waiting for review.", False)
    ALREADY_CONFIRMED = ("The booking is already confirmed.", False)
    ALREADY_REJECTED = ("The booking was rejected. Start a new hold.", False)
    ALREADY_CANCELLED = ("The booking was cancelled. Start a new hold.", False)
    ALREADY_TRANSFERRED = ("The booking was transferred to someone else in the meantime.", False)
    ALREADY_REFUNDED = ("The booking was refunded. Start a new hold.", False)
    ALREADY_COMPLETED = ("The event is over and the booking is completed.", False)
    NOT_SUBMITTED = ("The booking has no payment receipt to review.", False)
    NOT_CONFIRMED = ("The booking is not confirmed. Confirm it first.", False)
    REVIEW_NOT_OFFERED = ("This event does not accept payment receipts. Choose another way to pay.", False)
    NOT_REFUNDABLE = ("This payment cannot be refunded here. Refund the booking, or record a refund `by_hand`.", False)
    PROVIDER_REFUSED = ("The payment provider declined to start this payment. Choose another way to pay.", False)
    PROVIDER_UNAVAILABLE = ("The payment provider is not responding. Try again with the same Idempotency-Key.", True)
    BUSY = ("The server is busy. Try again in a moment.", True)
    INTERNAL = ("Something went wrong on our side. It is safe to send the same request again.", True)

    def __init__(self, title: str, retryable: bool) -> None:
        self.title = title
        self.retryable = retryable

    @property
    def code(self) -> str:
        return self.name.lower()

    @property
    def rank(self) -> int:
        return list(Refusal).index(self)


class FieldError(Struct, frozen=True):
    """What is wrong with one field of a request: `{"field": "quantity", "message": "must be at least 1"}`."""

    field: str
    message: str


class Refused(Struct, frozen=True):
    """The answer "no" to one command, which then writes nothing. An empty `detail` stands for the refusal's title."""

    refusal: Refusal
    detail: str = ""
    conflicts: tuple[str, ...] = ()
    errors: tuple[FieldError, ...] = ()
    # When and where a ticket was used before.
    checked_in_at: datetime | None = None
    gate: str | None = None
    # The number of seconds after which the same request may succeed.
    retry_after: int | None = None
    sales_open_at: datetime | None = None
    # The user's own booking that is in the way: the ids of its event and of the booking.
    booking: tuple[bytes, bytes] | None = None


class RefusedError(Exception):
    """Carries a refusal up through code that returns only successes."""

    def __init__(
        self,
        refusal: Refusal,
        detail: str = "",
        *,
        conflicts: tuple[str, ...] = (),
        errors: tuple[FieldError, ...] = (),
        checked_in_at: datetime | None = None,
        gate: str | None = None,
        retry_after: int | None = None,
        sales_open_at: datetime | None = None,
        booking: tuple[bytes, bytes] | None = None,
    ) -> None:
        super().__init__(detail or refusal.title)
        self.refused = Refused(
            refusal, detail, conflicts, errors, checked_in_at, gate, retry_after, sales_open_at, booking
        )

    @classmethod
    def of(cls, refused: Refused) -> Self:
        error = cls(refused.refusal, refused.detail)
        error.refused = refused
        return error
