"""Estimates PostgreSQL's clock without a query."""

import math
import time
from datetime import UTC, datetime
from typing import Final

# Read the clock again if the last reading is older than this.
FRESH_SECONDS: Final = 5.0
# A process forgets the highest reading after this time, so that it follows a clock that was set back.
WINDOW_SECONDS: Final = 10.0


class DatabaseClock:
    """An estimate from the timestamps that statements return. A timestamp is never later than the moment it arrives, so
    the estimate lags by a few milliseconds. It runs ahead only for some seconds after the clock was set back."""

    def __init__(self) -> None:
        self._offset = -math.inf
        self._previous_offset = -math.inf
        self._window_ends_at = -math.inf
        self._observed_at = -math.inf

    @property
    def is_fresh(self) -> bool:
        """Whether the last observation is recent."""
        return time.monotonic() - self._observed_at < FRESH_SECONDS

    def observe(self, at: datetime) -> None:
        """Learn from a time that a statement has just returned."""
        arrived_at = self._observed_at = time.monotonic()
        if arrived_at >= self._window_ends_at:
            self._previous_offset, self._offset = self._offset, -math.inf
            self._window_ends_at = arrived_at + WINDOW_SECONDS
        self._offset = max(self._offset, at.timestamp() - arrived_at)

    def now(self) -> datetime | None:
        """None until the first observation."""
        offset = max(self._offset, self._previous_offset)
        return datetime.fromtimestamp(time.monotonic() + offset, UTC) if offset > -math.inf else None
