"""Background jobs: each runs repeatedly, fails alone, and never dies unnoticed."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.worker import job as job_module
from holdfast.worker.job import BACKOFF_MAX_SECONDS, JITTER, Job, JobDiedError, JobLoop

RUNS = 20


async def do_nothing() -> int:
    return 0


def make_job(
    name: str = "job", run: Callable[[], Awaitable[int]] = do_nothing, seconds: float = 0.001, **more: Any
) -> Job:
    return Job(name=name, run=run, interval_seconds=seconds, **more)


def is_jittered(seconds: float, planned: float) -> bool:
    return planned * (1 - JITTER) <= seconds <= planned * (1 + JITTER)


def run_jobs(jobs: list[Job], stopping: asyncio.Event | None = None) -> JobLoop:
    """Run the jobs until they are done. A loop that never ends fails the test."""
    loop = JobLoop(jobs)

    async def main() -> None:
        async with asyncio.timeout(30):
            await loop.run(stopping or asyncio.Event())

    asyncio.run(main())
    return loop


def scripted_run(stopping: asyncio.Event, outcomes: list[int | Exception]) -> Callable[[], Awaitable[int]]:
    """A run function that returns or raises these outcomes, and stops the worker at the last one."""
    left = list(outcomes)

    async def run() -> int:
        outcome = left.pop(0)
        if not left:
            stopping.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return run


def test_a_wait_is_the_interval_plus_or_minus_the_jitter() -> None:
    waits = {make_job(seconds=10).seconds_until_next_run(0, 0) for _ in range(500)}
    assert all(is_jittered(seconds, 10) for seconds in waits)
    assert len(waits) > 1
    assert min(waits) < 10 < max(waits)


def test_the_backoff_doubles_up_to_its_cap_and_is_jittered(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(seconds=0.5)
    for failures, planned in enumerate([1, 2, 4, 8, BACKOFF_MAX_SECONDS, BACKOFF_MAX_SECONDS], 1):
        assert is_jittered(job.seconds_until_next_run(0, failures), planned)
    assert is_jittered(job.seconds_until_next_run(0, 10_000), BACKOFF_MAX_SECONDS)
    monkeypatch.setattr(job_module, "JITTER", 0)
    assert [job.seconds_until_next_run(0, failures) for failures in (1, 2, 3)] == [1, 2, 4]


def test_a_failing_job_never_runs_more_often_than_a_healthy_one() -> None:
    for seconds in (0.25, 5, 15, 60):
        job = make_job(seconds=seconds)
        assert all(job.seconds_until_next_run(0, failures) >= seconds * (1 - JITTER) for failures in range(1, 50))


def test_a_draining_job_runs_again_at_once_while_it_finds_items() -> None:
    assert make_job().seconds_until_next_run(3, 0) == 0
    assert make_job(drains=False).seconds_until_next_run(3, 0) > 0
    assert make_job().seconds_until_next_run(3, 1) > 0


def test_failures_are_logged_with_a_growing_backoff_that_resets_after_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_module, "JITTER", 0)
    stopping = asyncio.Event()
    outcomes: list[int | Exception] = [ValueError(), ValueError(), ValueError(), 0, KeyError(), 0]
    with capture_logs() as logs:
        run_jobs([make_job("audit", scripted_run(stopping, outcomes))], stopping)
    expected = [("ValueError", 1, 0.002), ("ValueError", 2, 0.004), ("ValueError", 3, 0.008), ("KeyError", 1, 0.002)]
    assert logs == [
        {
            "event": "job_failed",
            "log_level": "error",
            "job": "audit",
            "error": error,
            "consecutive_failures": failures,
            "next_run_seconds": seconds,
        }
        for error, failures, seconds in expected
    ]


def test_stats_count_the_runs_items_and_errors_of_a_job() -> None:
    stopping = asyncio.Event()
    stats = run_jobs([make_job("job", scripted_run(stopping, [5, ValueError(), 0, 2, ValueError()]))], stopping).stats[
        "job"
    ]
    assert (stats.runs, stats.items, stats.errors, stats.consecutive_failures) == (5, 7, 2, 1)
    assert stats.last_success_at is not None


def test_the_heartbeat_of_a_hanging_job_shows_no_success() -> None:
    stopping = asyncio.Event()

    async def hang() -> int:
        await stopping.wait()
        return 0

    async def work_until_both_are_logged() -> int:
        if len(logs) >= 4:
            stopping.set()
        return 1

    jobs = [make_job("stuck", hang), make_job("busy", work_until_both_are_logged, drains=False)]
    with capture_logs() as logs:
        asyncio.run(JobLoop(jobs, heartbeat_seconds=0.02).run(stopping))
    latest = {entry["job"]: entry for entry in logs if entry["event"] == "job_heartbeat"}
    assert (latest["stuck"]["runs"], latest["stuck"]["last_success_at"]) == (0, None)
    assert latest["busy"]["runs"] == latest["busy"]["items"] > 0
    assert latest["busy"]["last_success_at"] is not None


def test_a_failing_job_does_not_stop_the_others() -> None:
    stopping = asyncio.Event()

    async def fail() -> int:
        raise OSError

    with capture_logs():
        stats = run_jobs([make_job("bad", fail), make_job("good", scripted_run(stopping, [1] * RUNS))], stopping).stats
    assert (stats["good"].runs, stats["good"].errors) == (RUNS, 0)
    assert stats["bad"].runs == stats["bad"].errors > 0


def test_a_busy_job_does_not_starve_the_others() -> None:
    stopping = asyncio.Event()

    async def always_busy() -> int:
        if loop.stats["busy"].runs > 100_000:
            raise TimeoutError("no other job got a turn")
        return 1

    loop = JobLoop([make_job("busy", always_busy), make_job("calm", scripted_run(stopping, [0] * 3))])
    asyncio.run(loop.run(stopping))
    assert loop.stats["calm"].runs == 3
    assert loop.stats["busy"].errors == 0


def test_a_stopping_worker_lets_a_run_finish() -> None:
    stopping = asyncio.Event()
    finished: list[str] = []

    async def slow() -> int:
        stopping.set()
        await asyncio.sleep(0.05)
        finished.append("slow")
        return 0

    run_jobs([make_job("slow", slow), make_job("other")], stopping)
    assert finished == ["slow"]


def test_a_dead_job_is_logged_and_stops_the_worker() -> None:
    """A library may cancel its own task. `CancelledError` is no `Exception`, so nothing else would notice."""
    cancelled: list[str] = []

    async def die() -> int:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    async def hang() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("hang")
            raise
        return 0

    with capture_logs() as logs, pytest.raises(JobDiedError, match="relay"):
        run_jobs([make_job("relay", die), make_job("other", hang)])
    assert [(log["event"], log["log_level"], log["job"]) for log in logs] == [("job_died", "critical", "relay")]
    assert cancelled == ["hang"]


def test_an_error_in_the_loop_is_logged_and_stops_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> float:
        raise ZeroDivisionError

    monkeypatch.setattr(Job, "seconds_until_next_run", broken)
    with capture_logs() as logs, pytest.raises(JobDiedError):
        run_jobs([make_job("relay")])
    assert [(log["event"], log["error"]) for log in logs] == [("job_died", "ZeroDivisionError")]


def test_two_jobs_must_not_share_a_name() -> None:
    with pytest.raises(AssertionError):
        JobLoop([make_job("same"), make_job("same")])


DYING_WORKER = """
import asyncio
from holdfast.runtime.cli import app
from holdfast.worker.reaper import Reaper

async def die(self):
    raise asyncio.CancelledError

Reaper.run_once = die
app(["worker"])
"""


def test_a_worker_process_with_a_dead_job_logs_it_and_exits_with_1(database: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DYING_WORKER],
        env={**os.environ, "HOLDFAST_DATABASE_URL": database},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert '"job":"reaper"' in done.stderr
    assert '"event":"job_died"' in done.stderr
    assert "Traceback" not in done.stderr
