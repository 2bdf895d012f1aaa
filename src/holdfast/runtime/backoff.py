"""How long to wait before trying again."""

from msgspec import Struct


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
