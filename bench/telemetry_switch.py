"""Turns logs and metrics off and on again in a running server, and measures it meanwhile.

The speed of a machine changes from second to second by more than logs and metrics cost. So one server works with them
for a moment and without them for the next, under the same load.
"""

import asyncio
import time
from typing import Final

from msgspec import Struct

from bench.baselines import bench_operation
from holdfast.api.access import Access
from holdfast.api.call import ApiResponse, Call, Operation
from holdfast.engine import engine_logs, transition_log
from holdfast.engine.attempt_log import attempt_log
from holdfast.engine.load import LoadedBatch
from holdfast.runtime.exporter import Exporter
from holdfast.runtime.instruments import Counter, Gauge, Histogram
from holdfast.runtime.logs import COLLECT_SECONDS

SLICE_SECONDS: Final = 0.25
LOAD_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.01
# Commands of the time before a switch may still be on their way, and its log lines wait to be written.
SETTLING_SECONDS: Final = COLLECT_SECONDS + 0.03
_RECORDING: Final = [
    (kind, name, getattr(kind, name))
    for kind, name in ((Counter, "add"), (Gauge, "set"), (Histogram, "observe"), (Exporter, "flush"))
]


class Slice(Struct, frozen=True):
    """What the process committed in this time, and the CPU time it needed."""

    changes: int
    seconds: float
    cpu_seconds: float


class Pair(Struct, frozen=True):
    off: Slice
    on: Slice


class TelemetrySwitch:
    def __init__(self) -> None:
        self._changes = 0
        self._logs_changes = True
        self._turn = 0

    def install(self) -> None:
        """Before the engine starts."""
        vars(engine_logs)["log_transitions"] = self._on_commit

    @property
    def operations(self) -> list[Operation]:
        measurements = (self.measure_both, self.measure_logs, self.measure_metrics)
        return [bench_operation(each, Access.BUYERS, needs_idempotency_key=False) for each in measurements]

    async def measure_logs(self, call: Call) -> ApiResponse[Pair]:
        return ApiResponse(await self._measure(call, logs=True))

    async def measure_metrics(self, call: Call) -> ApiResponse[Pair]:
        return ApiResponse(await self._measure(call, metrics=True))

    async def measure_both(self, call: Call) -> ApiResponse[Pair]:
        return ApiResponse(await self._measure(call, logs=True, metrics=True))

    async def _measure(self, call: Call, *, logs: bool = False, metrics: bool = False) -> Pair:
        await self._wait_for_load()
        slices: dict[bool, Slice] = {}
        self._turn += 1
        # Every other pair begins with the other half, so that a trend of the machine favors neither.
        for is_on in (True, False) if self._turn % 2 else (False, True):
            if logs:
                self._logs_changes = is_on
                attempt_log.start(call.services.settings.log_attempts if is_on else 0)
            if metrics:
                _record(is_on)
            await asyncio.sleep(SETTLING_SECONDS)
            changes, began_at, cpu_seconds = self._changes, time.monotonic(), time.process_time()
            await asyncio.sleep(SLICE_SECONDS)
            seconds = time.monotonic() - began_at
            slices[is_on] = Slice(self._changes - changes, seconds, time.process_time() - cpu_seconds)
        return Pair(off=slices[False], on=slices[True])

    async def _wait_for_load(self) -> None:
        """The first holds may take long to arrive."""
        changes = self._changes
        async with asyncio.timeout(LOAD_SECONDS):
            while self._changes == changes:
                await asyncio.sleep(POLL_SECONDS)

    def _on_commit(self, batch: LoadedBatch) -> None:
        self._changes += sum(len(state.entries) for state in batch.states.values())
        if self._logs_changes:
            transition_log.log_transitions(batch)


def _record(is_on: bool) -> None:
    for kind, name, method in _RECORDING:
        setattr(kind, name, method if is_on else _ignore)


def _ignore(*_: object, **__: object) -> None:
    pass
