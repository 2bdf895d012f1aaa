"""Background jobs, and the one loop that runs them all.

A job that fails is retried with a growing backoff and does not stop the others. A job whose task ends stops the worker,
so that its supervisor restarts it: a job never dies unnoticed. Once a minute the loop logs what each job has done, so
that a job that hangs is noticed too.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from random import SystemRandom
from typing import Final

import structlog
from msgspec import Struct, to_builtins

from holdfast.runtime import metrics, tracing
from holdfast.runtime.backoff import Backoff

log = structlog.get_logger()

# Each wait is up to this much shorter or longer, so that workers started together drift apart.
JITTER: Final = 0.2
BACKOFF_MAX_SECONDS: Final = 15.0
HEARTBEAT_SECONDS: Final = 60.0

_random: Final = SystemRandom()


class Job(Struct, frozen=True, kw_only=True):
    """`run` returns how many items it worked on. Interval is the time to wait between runs. A job that `drains` skips
    the wait after a run that found items, because there may be more."""

    name: str
    run: Callable[[], Awaitable[int]]
    interval_seconds: float
    drains: bool = True

    def seconds_until_next_run(self, items: int, consecutive_failures: int) -> float:
        if consecutive_failures:
            longest = max(BACKOFF_MAX_SECONDS, self.interval_seconds)
            backoff = Backoff.exponential(2 * self.interval_seconds, longest)
            return _jitter(backoff.seconds_after(consecutive_failures))
        return 0.0 if items and self.drains else _jitter(self.interval_seconds)


class JobStats(Struct, kw_only=True):
    """The counts and the heartbeat of one job."""

    runs: int = 0
    items: int = 0
    errors: int = 0
    consecutive_failures: int = 0
    last_success_at: datetime | None = None

    def record_success(self, items: int) -> None:
        self.runs += 1
        self.items += items
        self.consecutive_failures = 0
        self.last_success_at = datetime.now(UTC)

    def record_failure(self) -> None:
        self.runs += 1
        self.errors += 1
        self.consecutive_failures += 1


class JobDiedError(RuntimeError):
    """The task of a job has ended although nobody asked it to."""


class JobLoop:
    """Runs each job in a task of its own. `stats` has the heartbeat of every job by its name."""

    def __init__(self, jobs: Sequence[Job], heartbeat_seconds: float = HEARTBEAT_SECONDS) -> None:
        self._jobs = jobs
        self._heartbeat_seconds = heartbeat_seconds
        self.stats: Mapping[str, JobStats] = {job.name: JobStats() for job in jobs}
        assert len(self.stats) == len(jobs), "two jobs have the same name"
        for job in jobs:
            metrics.JOB_RUNS.add(job.name, "failed", count=0)
            # A job that has never succeeded is overdue in time, like one that has stopped succeeding.
            metrics.JOB_LAST_SUCCESS.set(time.time(), job.name)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until asked to stop, then let every job finish its run. Raises `JobDiedError` if one dies."""
        tasks = {asyncio.create_task(self._repeat(job, stopping), name=job.name) for job in self._jobs}
        tasks.add(asyncio.create_task(self._log_heartbeats(stopping), name="heartbeat"))
        try:
            while tasks:
                ended, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    _check_end(task, is_expected=stopping.is_set())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, job: Job, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            seconds = await self._run_once(job)
            await _wait(seconds, stopping)

    async def _log_heartbeats(self, stopping: asyncio.Event) -> None:
        await _wait(self._heartbeat_seconds, stopping)
        while not stopping.is_set():
            for name, stats in self.stats.items():
                log.info("job_heartbeat", job=name, **to_builtins(stats))
            await _wait(self._heartbeat_seconds, stopping)

    async def _run_once(self, job: Job) -> float:
        """Returns how many seconds to wait before the next run."""
        stats = self.stats[job.name]
        started_at = time.time() if tracing.active is not None else 0.0
        try:
            items = await job.run()
        except Exception as error:
            if tracing.active is not None:
                tracing.active.record_job(job.name, started_at, 0, error)
            stats.record_failure()
            metrics.JOB_RUNS.add(job.name, "failed")
            seconds = job.seconds_until_next_run(0, stats.consecutive_failures)
            log.error(
                "job_failed",
                job=job.name,
                error=type(error).__name__,
                consecutive_failures=stats.consecutive_failures,
                next_run_seconds=round(seconds, 3),
            )
            return seconds
        if tracing.active is not None:
            tracing.active.record_job(job.name, started_at, items, None)
        stats.record_success(items)
        metrics.JOB_RUNS.add(job.name, "succeeded")
        metrics.JOB_ITEMS.add(job.name, count=items)
        metrics.JOB_LAST_SUCCESS.set(time.time(), job.name)
        return job.seconds_until_next_run(items, 0)


def _check_end(task: "asyncio.Task[None]", *, is_expected: bool) -> None:
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if is_expected and error is None:
        return
    log.critical("job_died", job=task.get_name(), error=type(error).__name__ if error else None)
    raise JobDiedError(f"The job {task.get_name()} has died.")


def _jitter(seconds: float) -> float:
    return seconds * _random.uniform(1 - JITTER, 1 + JITTER)


async def _wait(seconds: float, stopping: asyncio.Event) -> None:
    """Gives way to other tasks even if there is nothing to wait for."""
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return
