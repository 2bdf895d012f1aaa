"""How long to wait before trying again."""

import time
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from msgspec import Struct

FAILURES_MAX: Final = 1_000

Key = TypeVar("Key", bound=Hashable)


class Backoff(Struct, frozen=True):
    """How many seconds to wait after the first failed attempt, the second, and so on. The last wait repeats."""

    waits_seconds: tuple[float, ...]

    @classmethod
    def exponential(cls, first_seconds: float, max_seconds: float) -> "Backoff":
        """Each wait is twice as long as the one before, up to a maximum."""
        assert first_seconds > 0, "doubling nothing never reaches the maximum"
        waits = [min(first_seconds, max_seconds)]
        while waits[-1] < max_seconds:
            waits.append(min(2 * waits[-1], max_seconds))
        return cls(tuple(waits))

    def seconds_after(self, attempts: int) -> float:
        return self.waits_seconds[min(max(attempts, 1), len(self.waits_seconds)) - 1]

    def is_exhausted(self, attempts: int) -> bool:
        """Whether so many attempts have used every wait, for callers that give up then."""
        return attempts > len(self.waits_seconds)


class _Failure(Struct, frozen=True):
    attempts: int
    retry_at: float


class FailureBackoff(Generic[Key]):
    """Which of many things failed, and when to try each of them again. Beyond `FAILURES_MAX` it forgets the oldest."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._failures: dict[Key, _Failure] = {}

    def has_failed(self, key: Key) -> bool:
        """Whether the last attempt failed."""
        return key in self._failures

    def waiting(self) -> list[Key]:
        """What failed so recently that it is too early to try again."""
        now = time.monotonic()
        return [key for key, failure in self._failures.items() if failure.retry_at > now]

    def record_failure(self, key: Key) -> None:
        before = self._failures.pop(key, None)
        attempts = before.attempts + 1 if before else 1
        if len(self._failures) >= FAILURES_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures[key] = _Failure(attempts, time.monotonic() + self._backoff.seconds_after(attempts))

    def record_success(self, key: Key) -> None:
        self._failures.pop(key, None)
