"""Counters, gauges and histograms that cost next to nothing to record.

`prometheus_client` takes one to two microseconds for each value, and a hold records several. So recording only changes
a plain dictionary, and `runtime/exporter.py` hands the sums to `prometheus_client` once a second. Record from the
thread of the event loop only.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

Label = str | int
Labels = tuple[Label, ...]
# How to combine a gauge that several processes of `holdfast serve` report.
Combination = Literal["livesum", "livemax"]

MILLISECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
MINUTES: Final = (15, 30, 60, 120, 180, 300, 600, 900, 1200, 1800, 3600, 7200, 21_600, 86_400)
POWERS_OF_TWO: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Instrument:
    """What all kinds have: a name, a sentence for people, and the names of the labels. Two of them never have the same
    name."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)


class Counter(Instrument):
    """Only goes up. `initial` are the labels that start at zero, so that their first increase counts as one."""

    def __init__(self, name: str, help_text: str, *labels: str, initial: Iterable[Labels] = ()) -> None:
        super().__init__(name, help_text, labels)
        self.initial: tuple[Labels, ...] = tuple(initial) if labels else ((),)
        # Lists of one number, because adding to it takes no second look-up.
        self._counts: dict[Labels, list[float]] = {}

    def add(self, *labels: Label, count: float = 1) -> None:
        try:
            self._counts[labels][0] += count
        except KeyError:
            self._counts[labels] = [count]

    def take(self) -> Mapping[Labels, float]:
        """What was added since the last call."""
        counts, self._counts = self._counts, {}
        return {labels: count for labels, (count,) in counts.items()}


class Gauge(Instrument):
    """Goes up and down. It has a value from the first `set`, or from when it follows a function."""

    def __init__(self, name: str, help_text: str, *labels: str, combination: Combination = "livemax") -> None:
        super().__init__(name, help_text, labels)
        self.combination: Combination = combination
        self._values: dict[Labels, float] = {}
        self._readers: dict[Labels, Callable[[], float]] = {}

    def set(self, value: float, *labels: Label) -> None:
        self._values[labels] = value

    def follow(self, read: Callable[[], float], *labels: Label) -> None:
        """Ask this function for the value, once a second."""
        self._readers[labels] = read

    def read(self) -> Mapping[Labels, float]:
        return self._values | {labels: read() for labels, read in self._readers.items()}


class Observations:
    """How many values fell into each bucket, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total = 0.0


class Histogram(Instrument):
    """Counts values by size. A value belongs to the first bucket whose bound it does not exceed."""

    def __init__(self, name: str, help_text: str, *labels: str, bounds: Sequence[float] = MILLISECONDS) -> None:
        super().__init__(name, help_text, labels)
        self.bounds = tuple(bounds)
        self._observed: dict[Labels, Observations] = {}

    def observe(self, value: float, *labels: Label) -> None:
        observed = self._observed.get(labels)
        if observed is None:
            # The last bucket is for values above all bounds.
            observed = self._observed[labels] = Observations(len(self.bounds) + 1)
        observed.counts[bisect_left(self.bounds, value)] += 1
        observed.total += value

    def take(self) -> Mapping[Labels, Observations]:
        """What was observed since the last call."""
        observed, self._observed = self._observed, {}
        return observed


class CountedHistogram(Histogram):
    """Its values have the labels of a counter. One call observes a value and counts it, and the histogram has only the
    first of the labels."""

    def __init__(self, name: str, help_text: str, *labels: str, counter: Counter) -> None:
        super().__init__(name, help_text, *labels)
        self._counter = counter

    def take(self) -> Mapping[Labels, Observations]:
        merged: dict[Labels, Observations] = {}
        for labels, observed in super().take().items():
            self._counter.add(*labels, count=sum(observed.counts))
            of_label = merged.setdefault(labels[: len(self.labels)], Observations(len(self.bounds) + 1))
            of_label.counts = [old + new for old, new in zip(of_label.counts, observed.counts, strict=True)]
            of_label.total += observed.total
        return merged


def stop_recording() -> None:
    """Without an exporter, nobody would take what the instruments record."""
    for kind, method in ((Counter, "add"), (Gauge, "set"), (Gauge, "follow"), (Histogram, "observe")):
        setattr(kind, method, _ignore)


def _ignore(*_: object, **__: object) -> None:
    pass
