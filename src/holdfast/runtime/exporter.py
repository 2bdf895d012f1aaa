"""Hands what the instruments recorded to `prometheus_client`, and renders it for a scrape.

The processes of one `holdfast serve` share a folder, so a scrape of any of them sees the sums of all. Other processes
have a registry of their own.
"""

import asyncio
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast import __version__
from holdfast.runtime import metrics
from holdfast.runtime.instruments import Counter, Gauge, Histogram, Instrument, Labels

if TYPE_CHECKING:
    import prometheus_client

# `prometheus_client` shares its values through the folder that this variable names.
FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
FLUSH_SECONDS: Final = 1.0


class Exporter:
    """Create one in each process, after a fork. Nothing else may use `prometheus_client` before it."""

    def __init__(self, kind: str, instruments: Iterable[Instrument] = metrics.ALL) -> None:
        # Importing it decides whether its values are shared. It also takes a while, and most commands need no metrics.
        import prometheus_client

        folder = os.environ.get(FOLDER_VARIABLE)
        self._folder = Path(folder) if folder else None
        self._registry = prometheus_client.CollectorRegistry()
        if self._folder is None:
            prometheus_client.ProcessCollector(registry=self._registry)
        self._rendering = threading.Lock()
        own = None if self._folder is not None else self._registry
        instruments = list(instruments)
        self._counters = [
            (each, prometheus_client.Counter(each.name, each.help_text, each.labels, registry=own))
            for each in instruments
            if isinstance(each, Counter)
        ]
        self._gauges = [
            (
                each,
                prometheus_client.Gauge(
                    each.name, each.help_text, each.labels, registry=own, multiprocess_mode=each.combination
                ),
            )
            for each in instruments
            if isinstance(each, Gauge)
        ]
        self._histograms = [
            (
                each,
                prometheus_client.Histogram(each.name, each.help_text, each.labels, registry=own, buckets=each.bounds),
            )
            for each in instruments
            if isinstance(each, Histogram)
        ]
        for counter, exported in self._counters:
            for labels in counter.initial:
                _child(exported, labels).inc(0)
        metrics.PROCESSES.set(1, kind, __version__)
        metrics.PROCESS_STARTED.set(time.time(), kind)

    def flush(self) -> None:
        """Hand over what was recorded since the last call. Call it in the thread that records."""
        # First, because some of them change counters.
        for histogram, exported_histogram in self._histograms:
            for labels, observed in histogram.take().items():
                child = _child(exported_histogram, labels)
                # `observe` takes one value at a time. These two attributes are what it changes.
                for bucket, values in zip(child._buckets, observed.counts, strict=True):
                    if values:
                        bucket.inc(values)
                child._sum.inc(observed.total)
        for counter, exported in self._counters:
            for labels, count in counter.take().items():
                _child(exported, labels).inc(count)
        for gauge, exported_gauge in self._gauges:
            for labels, value in gauge.read().items():
                _child(exported_gauge, labels).set(value)

    async def run(self) -> None:
        while True:
            self.flush()
            await asyncio.sleep(FLUSH_SECONDS)

    def render(self) -> bytes:
        """The metrics in Prometheus's text format. Any thread may call this."""
        import prometheus_client
        from prometheus_client.multiprocess import MultiProcessCollector

        with self._rendering:
            if self._folder is None:
                return prometheus_client.generate_latest(self._registry)
            _forget_dead_processes(self._folder)
            shared = prometheus_client.CollectorRegistry()
            MultiProcessCollector(shared, str(self._folder))  # type: ignore[no-untyped-call]
            return prometheus_client.generate_latest(shared)


def _child(exported: "prometheus_client.metrics.MetricWrapperBase", labels: Labels):  # type: ignore[no-untyped-def]
    """The time series with these labels."""
    return exported.labels(*map(str, labels)) if labels else exported


def _forget_dead_processes(folder: Path) -> None:
    """Gauges of processes that are gone no longer count. Their counters do: a sum that falls would look like a restart
    of everything."""
    for file in folder.glob("gauge_live*.db"):
        if not _is_alive(int(file.stem.rpartition("_")[2])):
            file.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
