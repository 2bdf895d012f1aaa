"""A process notices when a request blocks its event loop."""

import asyncio
import time

from structlog.testing import capture_logs

from holdfast.runtime.loop_lag import BLOCKED_SECONDS, LOG_SECONDS, TICK_SECONDS, LoopLag
from tests.support.engine_harness import async_test


@async_test
async def test_a_blocked_loop_is_measured_and_logged_once() -> None:
    lag = LoopLag()
    with capture_logs() as logs:
        lag.start()
        for _ in range(3):
            await asyncio.sleep(TICK_SECONDS)
            time.sleep(2 * BLOCKED_SECONDS + TICK_SECONDS)  # noqa: ASYNC251 (this is the fault)
        await asyncio.sleep(TICK_SECONDS)
        lag.stop()
    assert lag.max_seconds >= 2 * BLOCKED_SECONDS
    blocked = [entry for entry in logs if entry["event"] == "event_loop_blocked"]
    assert blocked[0]["milliseconds"] > 1000 * BLOCKED_SECONDS
    assert blocked[0]["log_level"] == "warning"
    lag.reset()
    assert lag.max_seconds == 0


@async_test
async def test_however_often_the_loop_is_blocked_the_log_has_one_line_per_second() -> None:
    lag = LoopLag()
    started_at = time.monotonic()
    with capture_logs() as logs:
        lag.start()
        for _ in range(10):
            time.sleep(BLOCKED_SECONDS + 2 * TICK_SECONDS)  # noqa: ASYNC251
            await asyncio.sleep(0)
            await asyncio.sleep(TICK_SECONDS)
        lag.stop()
    assert 1 <= len(logs) <= 1 + (time.monotonic() - started_at) / LOG_SECONDS


@async_test
async def test_a_stopped_timer_measures_nothing() -> None:
    lag = LoopLag()
    lag.start()
    lag.stop()
    time.sleep(2 * TICK_SECONDS)  # noqa: ASYNC251
    await asyncio.sleep(2 * TICK_SECONDS)
    assert lag.max_seconds == 0
