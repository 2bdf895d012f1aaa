"""Refusals as problem documents (RFC 9457), each with its HTTP status."""

from typing import Final

from msgspec import json

from holdfast.api.call import ApiResponse, Header
from holdfast.api.responses import Problem
from holdfast.core.refusals import Refusal, Refused
from holdfast.runtime.ids import format_booking_id

CONTENT_TYPE: Final = b"application/problem+json"

HTTP_STATUS: Final = {
    Refusal.PAYLOAD_TOO_LARGE: 413,
    Refusal.RATE_LIMITED: 429,
    Refusal.INVALID_SIGNATURE: 400,
    Refusal.INVALID_REQUEST: 422,
    Refusal.IDEMPOTENCY_KEY_MISSING: 400,
    Refusal.UNAUTHORIZED: 401,
    Refusal.FORBIDDEN: 403,
    Refusal.NOT_FOUND: 404,
    Refusal.METHOD_NOT_ALLOWED: 405,
    Refusal.EVENT_NOT_ON_SALE: 409,
    Refusal.NOT_ON_SALE_YET: 409,
    Refusal.SALES_CLOSED: 409,
    Refusal.EVENT_ENDED: 409,
    Refusal.IDEMPOTENCY_KEY_REUSED: 422,
    Refusal.UNKNOWN_SEAT: 422,
    Refusal.UNKNOWN_POOL: 422,
    Refusal.UNKNOWN_TARIFF: 422,
    Refusal.CONTACT_REQUIRED: 422,
    Refusal.ANSWER_REQUIRED: 422,
    Refusal.COMPANION_REQUIRED: 422,
    Refusal.UNIT_COUNT: 422,
    Refusal.UNKNOWN_PROVIDER: 422,
    Refusal.INVALID_TICKET: 422,
    Refusal.WRONG_EVENT: 409,
    Refusal.TICKET_VOID: 409,
    Refusal.ALREADY_CHECKED_IN: 409,
    Refusal.ALREADY_BOOKED: 409,
    Refusal.LIMIT_REACHED: 409,
    Refusal.UNPAID_LIMIT_REACHED: 409,
    Refusal.ADDRESS_LIMIT_REACHED: 409,
    Refusal.TOO_MANY_EXPIRED_HOLDS: 429,
    Refusal.SEAT_TAKEN: 409,
    Refusal.SOLD_OUT: 409,
    Refusal.ORPHAN_SEAT: 409,
    Refusal.ORDER_NUMBER_USED: 409,
    Refusal.CAPACITY_IN_USE: 409,
    Refusal.HOLD_EXPIRED: 410,
    Refusal.ALREADY_SUBMITTED: 409,
    Refusal.ALREADY_CONFIRMED: 409,
    Refusal.ALREADY_REJECTED: 409,
    Refusal.ALREADY_CANCELLED: 409,
    Refusal.ALREADY_TRANSFERRED: 409,
    Refusal.ALREADY_REFUNDED: 409,
    Refusal.ALREADY_COMPLETED: 409,
    Refusal.NOT_SUBMITTED: 409,
    Refusal.NOT_CONFIRMED: 409,
    Refusal.REVIEW_NOT_OFFERED: 409,
    Refusal.NOT_REFUNDABLE: 409,
    Refusal.PROVIDER_REFUSED: 422,
    Refusal.PROVIDER_UNAVAILABLE: 502,
    Refusal.BUSY: 503,
    Refusal.INTERNAL: 500,
}

_HEADERS: Final[dict[Refusal, tuple[Header, ...]]] = {
    Refusal.BUSY: ((b"retry-after", b"1"),),
    Refusal.RATE_LIMITED: ((b"retry-after", b"1"),),
    Refusal.TOO_MANY_EXPIRED_HOLDS: ((b"retry-after", b"60"),),
    Refusal.UNAUTHORIZED: ((b"www-authenticate", b"Bearer"),),
}


def problem(refused: Refused) -> ApiResponse[Problem]:
    refusal = refused.refusal
    status = HTTP_STATUS[refusal]
    document = Problem(
        type=f"/docs#{refusal.code}",
        title=refusal.title,
        status=status,
        code=refusal.code,
        detail=refused.detail or refusal.title,
        retryable=refusal.retryable,
        conflicts=refused.conflicts,
        errors=refused.errors,
        checked_in_at=refused.checked_in_at,
        gate=refused.gate,
        sales_open_at=refused.sales_open_at,
        booking=format_booking_id(*refused.booking) if refused.booking else None,
    )
    return ApiResponse(json.encode(document), status, _headers(refused), CONTENT_TYPE)


def _headers(refused: Refused) -> tuple[Header, ...]:
    if refused.retry_after is not None:
        return ((b"retry-after", str(refused.retry_after).encode()),)
    return _HEADERS.get(refused.refusal, ())
