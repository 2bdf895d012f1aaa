"""Notices when something blocks the event loop.

While one request computes, every other request of the process waits, and so does every lane. So threads do all
work that takes longer than a moment.
"""

import asyncio
import time
from typing import Final

import structlog

from holdfast.runtime import metrics

log = structlog.get_logger()

# No request may block the loop for longer than this.
BLOCKED_SECONDS: Final = 0.05
TICK_SECONDS: Final = 0.02
# At most one line in the log in this time, however often the loop is blocked.
LOG_SECONDS: Final = 1.0


class LoopLag:
    """A timer that measures how late the loop calls it. A process that gets no CPU time looks the same."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._logged_at = float("-inf")
        self._unlogged_seconds = 0.0
        # The longest delay since the start, or since the last `reset`.
        self.max_seconds = 0.0

    def start(self) -> None:
        """Measure in the running loop until `stop`."""
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def reset(self) -> None:
        self.max_seconds = 0.0

    def _schedule(self) -> None:
        self._due_at = time.monotonic() + TICK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        now = time.monotonic()
        late_seconds = now - self._due_at
        metrics.LOOP_LAG_SECONDS.observe(late_seconds)
        self.max_seconds = max(self.max_seconds, late_seconds)
        if late_seconds > BLOCKED_SECONDS:
            self._unlogged_seconds = max(self._unlogged_seconds, late_seconds)
        if self._unlogged_seconds and now - self._logged_at >= LOG_SECONDS:
            log.warning("event_loop_blocked", milliseconds=round(self._unlogged_seconds * 1000))
            self._logged_at, self._unlogged_seconds = now, 0.0
        self._schedule()
