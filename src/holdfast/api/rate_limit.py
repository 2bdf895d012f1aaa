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
        self._buckets: dict[str, tuple[float, float]] = {}

    def spend(self, caller: str) -> None:
        now = time.monotonic()
        left, at = self._buckets.get(caller, (self._burst, now))
        left = min(left + (now - at) * self._rate, self._burst) - 1
        if left < 0:
            raise RefusedError(Refusal.RATE_LIMITED)
        if len(self._buckets) >= BUCKETS_MAX:
            self._buckets.clear()
        self._buckets[caller] = (left, now)
