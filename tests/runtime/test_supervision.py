"""A long-lived task that dies starts again, nobody waits for it in vain, and the health check says so."""

import asyncio

import pytest
from structlog.testing import capture_logs

from holdfast.api.app import make_services
from holdfast.api.call import Call
from holdfast.api.endpoint import Limits
from holdfast.api.health_handlers import readyz
from holdfast.api.live_socket import LiveFeed
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.engine.engine import Engine
from holdfast.runtime import db, supervision
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.settings import Settings
from holdfast.runtime.supervision import TaskHealth, keep_running
from tests.support.engine_harness import async_test, poll_until

LONG_BACKOFF = Backoff((3600,))


class Bugs:
    """A task that fails a number of times and then waits."""

    def __init__(self, failures: int) -> None:
        self._left = failures
        self.refused = 0

    async def run(self) -> None:
        if self._left:
            self._left -= 1
            raise RuntimeError("a bug")
        await asyncio.get_running_loop().create_future()

    def refuse(self) -> None:
        self.refused += 1


@async_test
async def test_a_task_that_dies_starts_again_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "RESTARTS", Backoff((0.001,)))
    bugs, health = Bugs(failures=3), TaskHealth()
    with capture_logs() as logs:
        task = asyncio.create_task(keep_running("feed", bugs.run, health, bugs.refuse))
        await poll_until(lambda: bugs.refused == 3 and health.is_good)
    task.cancel()
    assert [(entry["event"], entry["task"]) for entry in logs] == [("task_failed", "feed")] * 3
    (report,) = health.reports
    assert (report.name, report.failures, report.is_running) == ("feed", 3, True)
    assert report.failed_at is not None


@async_test
async def test_the_health_check_is_not_ready_while_a_task_is_down(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "RESTARTS", LONG_BACKOFF)
    pool = await db.create_pool(database, 2)
    health = TaskHealth()
    engine = Engine(database, lanes=2, health=health)
    engine.start()
    call = Call(make_services(Settings(database_url=database), pool, engine, health), None, {}, {})
    await asyncio.sleep(0)
    assert [report.name for report in (await readyz(call)).content.tasks] == ["lane-1", "lane-2"]
    bugs = Bugs(failures=1)
    with capture_logs():
        task = asyncio.create_task(keep_running("feed", bugs.run, health, bugs.refuse))
        await poll_until(lambda: not health.is_good)
    with pytest.raises(RefusedError) as raised:
        await readyz(call)
    assert raised.value.refused.refusal is Refusal.BUSY
    assert "feed" in raised.value.refused.detail
    task.cancel()
    await engine.close()
    await pool.close()


@async_test
async def test_a_live_feed_that_dies_runs_again(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "RESTARTS", Backoff((0.001,)))
    pool = await db.create_pool(database, 2)
    engine = Engine(database, lanes=1)
    services = make_services(Settings(database_url=database), pool, engine)
    feed = LiveFeed(services, Limits(services))
    with monkeypatch.context() as patched, capture_logs():
        patched.setattr(feed, "_has_watchers", None)
        feed.start()
        await poll_until(lambda: any(report.failures for report in services.task_health.reports))
    await poll_until(lambda: services.task_health.is_good)
    assert [report.name for report in services.task_health.reports] == ["live_feed"]
    await feed.close()
    await pool.close()
