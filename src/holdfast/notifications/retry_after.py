"""Reads the header `Retry-After` of a response."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

RETRY_AFTER_SECONDS_MAX: Final = 3600.0


def parse_retry_after(value: str | None) -> float:
    """How many seconds the other side asks us to wait, within bounds. The header has seconds or a date; anything else
    counts as zero."""
    text = (value or "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:9]), RETRY_AFTER_SECONDS_MAX)
    try:
        seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
    return min(max(seconds, 0.0), RETRY_AFTER_SECONDS_MAX)
