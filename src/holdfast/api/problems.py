"""Refusals as problem documents (RFC 9457)."""

from typing import Any, Final

from msgspec import json

from holdfast.api.call import ApiResponse
from holdfast.api.responses import Problem
from holdfast.core.refusals import Refusal, Refused

CONTENT_TYPE: Final = b"application/problem+json"
RETRY_AFTER: Final = {Refusal.BUSY: b"1", Refusal.RATE_LIMITED: b"1"}


def problem_about(refusal: Refusal, detail: str, **more: Any) -> ApiResponse:
    """A refusal that tells more than others of its kind."""
    return problem(Refused(refusal, detail), **more)


def problem(refused: Refused, **more: Any) -> ApiResponse:
    refusal = refused.refusal
    document = Problem(
        type=f"/docs#{refusal.code}",
        title=refusal.title,
        status=refusal.status,
        code=refusal.code,
        detail=refused.detail or refusal.title,
        retryable=refusal.retryable,
        conflicts=refused.conflicts,
        errors=refused.errors,
        **more,
    )
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if refusal in RETRY_AFTER:
        headers = ((b"retry-after", RETRY_AFTER[refusal]),)
    if refusal is Refusal.UNAUTHORIZED:
        headers = ((b"www-authenticate", b"Bearer"),)
    return ApiResponse(json.encode(document), refusal.status, headers, CONTENT_TYPE)
