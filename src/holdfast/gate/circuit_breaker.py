"""Stops asking Redis while it fails, and tries again after a while."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import structlog
from msgspec import Struct

from holdfast.runtime import metrics

log = structlog.get_logger()

# The breaker opens after this many consecutive failures.
FAILURES_MAX: Final = 5
OPEN_SECONDS: Final = 5.0


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerReport(Struct, frozen=True, kw_only=True):
    """`failures` counts consecutive failed calls, `opened` how often the breaker has opened."""

    state: BreakerState
    since: datetime
    failures: int
    opened: int
    last_error: str | None


class CircuitBreaker:
    """Closed: calls go through. Open: no calls go through. After `OPEN_SECONDS` it is half open: one probe call goes
    through, and its outcome closes or reopens the breaker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state = BreakerState.CLOSED
        self._since = datetime.now(UTC)
        self._failures = 0
        self._retry_at = 0.0
        self._last_error: str | None = None
        self._opened = 0

    @property
    def is_closed(self) -> bool:
        return self._state is BreakerState.CLOSED

    @property
    def may_try(self) -> bool:
        """Whether a call would go through now."""
        return self._state is BreakerState.CLOSED or self._clock() >= self._retry_at

    @property
    def report(self) -> BreakerReport:
        return BreakerReport(
            state=self._state,
            since=self._since,
            failures=self._failures,
            opened=self._opened,
            last_error=self._last_error,
        )

    def try_begin(self) -> bool:
        """Whether a call may go through. Each call that does must record its outcome. If the probe call of a
        half-open breaker never does, another call may try after `OPEN_SECONDS`."""
        if not self.may_try:
            return False
        if self._state is BreakerState.CLOSED:
            return True
        self._retry_at = self._clock() + OPEN_SECONDS
        if self._state is BreakerState.OPEN:
            self._move(BreakerState.HALF_OPEN)
        return True

    def record_success(self) -> None:
        """A call that began before the breaker opened does not close it."""
        if self._state is BreakerState.OPEN:
            return
        self._failures = 0
        if self._state is BreakerState.HALF_OPEN:
            self._move(BreakerState.CLOSED)

    def record_failure(self, error: BaseException) -> None:
        self._failures += 1
        self._last_error = type(error).__name__
        is_over = self._state is BreakerState.CLOSED and self._failures >= FAILURES_MAX
        if is_over or self._state is BreakerState.HALF_OPEN:
            self._retry_at = self._clock() + OPEN_SECONDS
            self._opened += 1
            metrics.BREAKER_OPENED.add()
            self._move(BreakerState.OPEN)

    def _move(self, state: BreakerState) -> None:
        self._state, self._since = state, datetime.now(UTC)
        log.warning("redis_breaker", state=state, failures=self._failures, error=self._last_error)
