"""Keeps long-lived tasks running, and remembers which of them have failed."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Final

import structlog
from msgspec import Meta, Struct

from holdfast.runtime import metrics
from holdfast.runtime.backoff import Backoff

log = structlog.get_logger()

RESTARTS: Final = Backoff.exponential(0.1, 5.0)


class TaskReport(Struct, frozen=True, kw_only=True):
    """How a long-lived task of this process is doing. `failures` counts how often it has died."""

    name: str
    is_running: bool = True
    failures: int = 0
    failed_at: Annotated[datetime, Meta(tz=True)] | None = None


class TaskHealth:
    """The long-lived tasks of a process."""

    def __init__(self) -> None:
        self._reports: dict[str, TaskReport] = {}
        # The process has been asked to stop, and takes no more work than it must.
        self.is_stopping = False

    @property
    def reports(self) -> list[TaskReport]:
        return list(self._reports.values())

    @property
    def is_good(self) -> bool:
        return all(report.is_running for report in self._reports.values())

    def record_start(self, name: str) -> None:
        metrics.TASK_FAILURES.add(name, count=0)
        before = self._reports.get(name, TaskReport(name=name))
        self._reports[name] = TaskReport(name=name, failures=before.failures, failed_at=before.failed_at)

    def record_failure(self, name: str) -> int:
        """Returns how often the task has failed."""
        metrics.TASK_FAILURES.add(name)
        failures = self._reports[name].failures + 1
        self._reports[name] = TaskReport(name=name, is_running=False, failures=failures, failed_at=datetime.now(UTC))
        return failures


async def keep_running(
    name: str, run: Callable[[], Awaitable[None]], health: TaskHealth, on_failure: Callable[[], None]
) -> None:
    """Run until `run` returns. If it raises, call `on_failure`, which answers everyone who waits for the task, and
    start it again after a moment."""
    while True:
        health.record_start(name)
        try:
            await run()
            return
        except Exception as error:
            failures = health.record_failure(name)
            log.critical("task_failed", task=name, failures=failures, exc_info=error)
            on_failure()
        await asyncio.sleep(RESTARTS.seconds_after(failures))
