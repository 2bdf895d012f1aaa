"""Rate limits: a token bucket for each key, user or client address."""

import time
from collections import Counter
from typing import Final, Never

from holdfast.core.refusals import Refusal, RefusedError
from holdfast.runtime import metrics

BUCKETS_MAX: Final = 100_000
BURST_SECONDS: Final = 2.0
# A process reports a caller to the others once the caller has spent this part of a full bucket.
UNSHARED_PART: Final = 0.05


class RateLimit:
    """Allows `rate` requests a second, and bursts of what gathers in `BURST_SECONDS`."""

    def __init__(self, name: str, rate: float, *, is_shared: bool = False) -> None:
        self.name = name
        self.rate = rate
        self.burst = max(rate * BURST_SECONDS, 1.0)
        self._is_shared = is_shared
        # What callers have spent since the last report, and the callers that the next report includes.
        self._spent: Counter[str] = Counter()
        self._to_share: set[str] = set()
        # The least recently used come first. We forget only those: a bucket at rest is full again anyway.
        self._buckets: dict[str, tuple[float, float]] = {}

    def spend(self, caller: str) -> None:
        """Count one request of this caller; refuse it if the caller has made too many."""
        now = time.monotonic()
        left = self._left(caller, now)
        is_allowed = left >= 1
        self._buckets.pop(caller, None)
        self._buckets[caller] = (left - is_allowed, now)
        if self._is_shared and is_allowed:
            self._count_spent(caller)
        if len(self._buckets) > BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        if not is_allowed:
            self._refuse()

    def check(self, caller: str) -> None:
        """Refuse the caller if the bucket is empty. This does not count as a request."""
        if self._left(caller, time.monotonic()) < 1:
            self._refuse()

    def _refuse(self) -> Never:
        metrics.RATE_LIMITED.add(self.name)
        raise RefusedError(Refusal.RATE_LIMITED)

    def _left(self, caller: str, now: float) -> float:
        bucket = self._buckets.get(caller)
        if bucket is None:
            return self.burst
        left, at = bucket
        return min(left + (now - at) * self.rate, self.burst)

    def take_spent(self, callers_max: int) -> dict[str, int]:
        """What callers have spent since the last call, unless it is too little to tell the other processes."""
        taken: dict[str, int] = {}
        while self._to_share and len(taken) < callers_max:
            caller = self._to_share.pop()
            taken[caller] = self._spent.pop(caller)
        return taken

    def set_left(self, caller: str, tokens: float) -> None:
        """Correct the bucket to what all processes together have left of it, less what was spent here since."""
        if caller in self._buckets:
            self._buckets[caller] = (tokens - self._spent[caller], time.monotonic())

    def _count_spent(self, caller: str) -> None:
        if len(self._spent) >= BUCKETS_MAX:
            self._spent.clear()
            self._to_share.clear()
        self._spent[caller] += 1
        if self._spent[caller] >= self.burst * UNSHARED_PART:
            self._to_share.add(caller)
