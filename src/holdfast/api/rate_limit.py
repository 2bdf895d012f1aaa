"""Rate limits: a token bucket for each key or client address."""

import time
from typing import Final

from holdfast.core.refusals import Refusal, RefusedError

BUCKETS_MAX: Final = 100_000
BURST_SECONDS: Final = 2.0


class RateLimit:
    """Allows `rate` requests a second, and bursts of what gathers in `BURST_SECONDS`."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._burst = max(rate * BURST_SECONDS, 1.0)
        # The least recently used come first. We forget only those: a bucket at rest is full again anyway.
        self._buckets: dict[str, tuple[float, float]] = {}

    def spend(self, caller: str) -> None:
        """Count one request of this caller; refuse it if the caller has made too many."""
        now = time.monotonic()
        left = self._left(caller, now)
        is_allowed = left >= 1
        self._buckets.pop(caller, None)
        self._buckets[caller] = (left - is_allowed, now)
        if len(self._buckets) > BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        if not is_allowed:
            raise RefusedError(Refusal.RATE_LIMITED)

    def check(self, caller: str) -> None:
        """Refuse the caller if the bucket is empty. This does not count as a request."""
        if self._left(caller, time.monotonic()) < 1:
            raise RefusedError(Refusal.RATE_LIMITED)

    def _left(self, caller: str, now: float) -> float:
        bucket = self._buckets.get(caller)
        if bucket is None:
            return self._burst
        left, at = bucket
        return min(left + (now - at) * self._rate, self._burst)
