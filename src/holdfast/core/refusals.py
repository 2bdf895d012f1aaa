"""Every "no" the product can say: its code, its HTTP status, its rank and what a person should read.

The order of the members is the order of precedence: where several reasons apply, the first one is told.
"""

from enum import Enum
from typing import Any

from msgspec import Struct


class Refusal(Enum):
    """`code = (HTTP status, whether the same request may succeed later, title)`."""

    PAYLOAD_TOO_LARGE = (413, False, "The body is larger than this address accepts.")
    RATE_LIMITED = (429, True, "Too many requests. Wait as long as Retry-After says, then try again.")
    INVALID_SIGNATURE = (400, False, "The notice is not signed by the provider, or is too old.")
    INVALID_REQUEST = (422, False, "The request is not of the form this address takes.")
    IDEMPOTENCY_KEY_MISSING = (400, False, "An Idempotency-Key header of 1 to 255 characters is needed.")
    UNAUTHORIZED = (401, False, "A valid token is needed: Authorization: Bearer <token>.")
    FORBIDDEN = (403, False, "This token's role may not do that.")
    NOT_FOUND = (404, False, "There is nothing here under this address.")
    METHOD_NOT_ALLOWED = (405, False, "This address does not take that method.")
    EVENT_NOT_ON_SALE = (409, False, "The event is not on sale.")
    EVENT_ENDED = (409, False, "The event is completed or cancelled and can no longer be changed.")
    IDEMPOTENCY_KEY_REUSED = (422, False, "This Idempotency-Key was used for a different request.")
    UNKNOWN_SEAT = (422, False, "The event has no such seat.")
    UNKNOWN_POOL = (422, False, "The event has no such pool.")
    UNKNOWN_TARIFF = (422, False, "The pool has no such tariff, or has several and none was named.")
    UNKNOWN_PROVIDER = (422, False, "Payments through this provider are not set up here.")
    INVALID_TICKET = (422, False, "This is not a ticket that was issued here.")
    TICKET_VOID = (409, False, "The ticket is no longer valid.")
    ALREADY_CHECKED_IN = (409, False, "Somebody was let in with this ticket already.")
    ALREADY_BOOKED = (409, False, "This user already has a live booking for the event.")
    LIMIT_REACHED = (409, False, "This would exceed a limit.")
    SEAT_TAKEN = (409, True, "A requested seat is taken.")
    SOLD_OUT = (409, True, "Not enough units are left.")
    ORPHAN_SEAT = (409, False, "The choice would leave a single seat that nobody can use.")
    CAPACITY_IN_USE = (409, True, "More units are taken than the new capacity allows.")
    HOLD_EXPIRED = (410, False, "The hold has expired; its units are free for others again.")
    ALREADY_SUBMITTED = (409, False, "A payment receipt for this booking is waiting for review.")
    ALREADY_CONFIRMED = (409, False, "The booking is confirmed.")
    ALREADY_REJECTED = (409, False, "The booking was rejected.")
    ALREADY_CANCELLED = (409, False, "The booking was cancelled.")
    ALREADY_TRANSFERRED = (409, True, "The booking was handed to somebody else meanwhile.")
    ALREADY_REFUNDED = (409, False, "The booking was refunded.")
    ALREADY_COMPLETED = (409, False, "The booking is completed: its event is over.")
    NOT_SUBMITTED = (409, False, "No payment receipt for this booking is waiting for review.")
    NOT_CONFIRMED = (409, False, "The booking is not confirmed.")
    REVIEW_NOT_OFFERED = (409, False, "Payment receipts are not taken for this event.")
    NOT_REFUNDABLE = (409, False, "No money of this payment is here to be paid back.")
    PROVIDER_REFUSED = (422, False, "The payment provider does not take this payment.")
    PROVIDER_UNAVAILABLE = (502, True, "The payment provider does not answer. Try again with the same key.")
    BUSY = (503, True, "More requests are waiting than can be served now. Try again shortly.")
    INTERNAL = (
        500,
        True,
        "Something went wrong on our side. The request had no effect, or is safe to repeat.",
    )

    def __init__(self, status: int, retryable: bool, title: str) -> None:
        self.status = status
        self.retryable = retryable
        self.title = title

    @property
    def code(self) -> str:
        return self.name.lower()

    @property
    def rank(self) -> int:
        return list(Refusal).index(self)


class FieldError(Struct, frozen=True):
    field: str
    message: str


class Refused(Struct, frozen=True):
    """The answer "no" to one command. A refusal writes nothing."""

    refusal: Refusal
    detail: str = ""
    conflicts: tuple[str, ...] = ()
    errors: tuple[FieldError, ...] = ()


class RefusedError(Exception):
    """A refusal on its way up through code that answers only "yes"."""

    def __init__(self, refusal: Refusal, detail: str = "", **more: Any) -> None:
        super().__init__(detail or refusal.title)
        self.refused = Refused(refusal, detail, **more)
