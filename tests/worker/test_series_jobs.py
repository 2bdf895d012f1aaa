"""Series jobs make each event exactly once, whatever happens to the workers, and report what they could not make."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
from msgspec import convert
from structlog.testing import capture_logs

from holdfast.core.event_schemas import EventNew
from holdfast.core.quotas import Quotas
from holdfast.core.refusals import Refusal
from holdfast.core.states import EventStatus
from holdfast.engine import event_editor
from holdfast.runtime import db, ids
from holdfast.worker import series_jobs
from holdfast.worker.series_jobs import ATTEMPTS_MAX, ERRORS_MAX, SeriesJobs
from tests.support.engine_harness import ACTOR, async_test, new_org
from tests.support.harness import Org, Server, example_event, query, wait_until
from tests.support.http_assertions import expect_ok
from tests.support.resources import post_series_events

DAYS = 12
DAYS_BEFORE_CRASH = 20
DAYS_WITH_CRASH = 200
POOLS = [{"code": "places", "capacity": 5}]


@pytest.fixture
def org(server: Server) -> Org:
    return Org(server.database_url)


@pytest.fixture
def admin(server: Server, org: Org) -> Iterator[httpx.Client]:
    with server.client(org.headers()) as client:
        yield client


def new_series(admin: httpx.Client) -> str:
    id_: str = expect_ok(admin.post("/v1/series", json={"title": "Shift"}), 201)["id"]
    return id_


def new_job(admin: httpx.Client, days: int = DAYS, **body: Any) -> dict[str, Any]:
    template = example_event(pools=POOLS, timezone="Europe/Madrid", shift={"order_number": f"W{secrets.token_hex(4)}"})
    request = {"template": template, "rule": f"FREQ=DAILY;COUNT={days}", **body}
    return expect_ok(post_series_events(admin, new_series(admin), **request), 202)


@async_test
async def test_an_event_that_exists_already_needs_no_room_in_the_quota(database: str) -> None:
    """A worker that dies after it made the last event of a quota makes it again, and goes on."""
    connection = await db.connect(database)
    org, new, event = await new_org(connection), convert(example_event(pools=POOLS), EventNew), ids.new_id()
    for _ in range(2):
        made = await event_editor.create_event(db.Database(connection), org, new, ACTOR, Quotas(events=1), event)
        assert made == event
    await connection.close()


def get_job(admin: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    return expect_ok(admin.get(f"/v1/series-jobs/{job['id']}"))


def list_events(admin: httpx.Client, job: dict[str, Any]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = expect_ok(admin.get("/v1/events", params={"series": job["series"], "limit": 200}))[
        "items"
    ]
    return items


def make_due(database_url: str, job: dict[str, Any]) -> None:
    """End the lease of a worker that is gone."""
    statement = "UPDATE series_job SET due_at = holdfast_now() WHERE id = $1 AND due_at IS NOT NULL"
    query(database_url, statement, ids.parse_series_job_id(job["id"]))


@asynccontextmanager
async def worker(url: str, quotas: Quotas | None = None) -> AsyncIterator[SeriesJobs]:
    pool = await db.create_pool(url, 5)
    try:
        yield SeriesJobs(db.Database(pool), quotas or Quotas())
    finally:
        await db.close_pool(pool)


async def work(jobs: SeriesJobs) -> None:
    await jobs.queue.run_once()
    await jobs.queue.wait()


def run_worker(url: str, quotas: Quotas | None = None) -> None:
    """Work until nothing of this database is due."""

    async def run() -> None:
        async with worker(url, quotas) as jobs:
            await work(jobs)

    asyncio.run(run())


def test_a_job_makes_drafts_and_reports_its_progress(server: Server, admin: httpx.Client) -> None:
    job = new_job(admin)
    run_worker(server.database_url)
    done = get_job(admin, job)
    assert (done["status"], done["created"], done["failed"], done["errors"]) == ("done", DAYS, 0, [])
    assert done["done_at"] is not None
    events = list_events(admin, job)
    assert len(events) == DAYS
    assert {event["status"] for event in events} == {"draft"}
    assert [event["starts_at"] for event in events][:2] == ["2027-03-05T19:00:00Z", "2027-03-06T19:00:00Z"]
    assert len({event["shift"]["order_number"] for event in events}) == DAYS
    (row,) = query(server.database_url, "SELECT template FROM series_job WHERE id = $1", bytes.fromhex(job["id"][3:]))
    assert row["template"] is None


def test_a_job_can_publish_its_events(server: Server, admin: httpx.Client) -> None:
    job = new_job(admin, publish=True)
    run_worker(server.database_url)
    assert [event["status"] for event in list_events(admin, job)] == ["active"] * DAYS
    actors = {
        (row["kind"], row["actor"])
        for row in query(
            server.database_url,
            "SELECT kind, actor FROM journal JOIN event ON event.id = event_id WHERE series_id = $1",
            ids.parse_series_id(job["series"]),
        )
    }
    # The journal names the key that asked for the events.
    assert {kind for kind, _ in actors} == {"event_created", "event_published"}
    assert len({actor for _, actor in actors}) == 1


def test_an_event_that_cannot_be_made_does_not_stop_the_others(server: Server, admin: httpx.Client) -> None:
    expect_ok(admin.post("/v1/events", json=example_event(shift={"order_number": 12})), 201)
    job = new_job(admin, 4, template=example_event(pools=POOLS, shift={"order_number": 10}))
    run_worker(server.database_url)
    done = get_job(admin, job)
    assert (done["status"], done["created"], done["failed"]) == ("done", 3, 1)
    (error,) = done["errors"]
    assert error == {
        "starts_at": "2027-03-07T19:00:00Z",
        "code": "order_number_used",
        "detail": Refusal.ORDER_NUMBER_USED.title,
    }
    assert [event["shift"]["order_number"] for event in list_events(admin, job)] == [10, 11, 13]


def test_a_job_that_makes_nothing_has_failed_and_reports_the_first_errors(server: Server, admin: httpx.Client) -> None:
    days = ERRORS_MAX + 1
    job = new_job(admin, days)
    run_worker(server.database_url, Quotas(events=0))
    done = get_job(admin, job)
    assert (done["status"], done["created"], done["failed"]) == ("failed", 0, days)
    assert [error["code"] for error in done["errors"]] == ["limit_reached"] * ERRORS_MAX


@async_test
async def test_workers_at_once_make_each_event_once(server: Server, org: Org) -> None:
    with server.client(org.headers()) as admin:
        jobs = [await asyncio.to_thread(new_job, admin) for _ in range(3)]
        async with worker(server.database_url) as one, worker(server.database_url) as other:
            for _ in range(3):
                await asyncio.gather(work(one), work(other))
        for job in jobs:
            done = await asyncio.to_thread(get_job, admin, job)
            assert (done["status"], done["created"]) == ("done", DAYS)
            assert len(await asyncio.to_thread(list_events, admin, job)) == DAYS


@async_test
async def test_a_worker_that_lost_its_lease_does_no_harm(
    server: Server, org: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker stops in the middle of an event, another one takes over and finishes, then the first goes on."""
    stopped, go_on = asyncio.Event(), asyncio.Event()
    create_event = event_editor.create_event

    async def create_slowly(*values: Any) -> bytes:
        if not stopped.is_set():
            stopped.set()
            await go_on.wait()
        return await create_event(*values)

    with server.client(org.headers()) as admin:
        job = await asyncio.to_thread(new_job, admin, publish=True)
        async with worker(server.database_url) as slow, worker(server.database_url) as other:
            monkeypatch.setattr(series_jobs, "create_event", create_slowly)
            late = asyncio.create_task(work(slow))
            await stopped.wait()
            await asyncio.to_thread(make_due, server.database_url, job)
            await work(other)
            assert (await asyncio.to_thread(get_job, admin, job))["status"] == "done"
            with capture_logs() as logs:
                go_on.set()
                await late
        assert [entry["event"] for entry in logs] == ["series_job_taken_over"]
        done = await asyncio.to_thread(get_job, admin, job)
        assert (done["status"], done["created"], done["failed"]) == ("done", DAYS, 0)
        assert len(await asyncio.to_thread(list_events, admin, job)) == DAYS


@async_test
async def test_an_event_made_just_before_a_crash_is_not_made_again(
    server: Server, org: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: Any) -> bool:
        raise RuntimeError("the worker dies after it has made an event")

    with server.client(org.headers()) as admin:
        job = await asyncio.to_thread(new_job, admin, publish=True)
        async with worker(server.database_url) as jobs:
            with monkeypatch.context() as patch:
                patch.setattr(SeriesJobs, "_advance", crash)
                await work(jobs)
            (made,) = await asyncio.to_thread(list_events, admin, job)
            before = await asyncio.to_thread(get_job, admin, job)
            assert (before["status"], before["created"]) == ("running", 0)
            # Somebody cancels the event before the job goes on. It stays cancelled.
            event = ids.parse_event_id(made["id"])
            assert event is not None
            async with worker(server.database_url) as other:
                await event_editor.set_status(other._database, org.id, event, EventStatus.CANCELLED, ACTOR)
            await asyncio.to_thread(make_due, server.database_url, job)
            await work(jobs)
        done = await asyncio.to_thread(get_job, admin, job)
        assert (done["status"], done["created"], done["failed"]) == ("done", DAYS, 0)
        events = await asyncio.to_thread(list_events, admin, job)
        assert [event["status"] for event in events] == ["cancelled"] + ["active"] * (DAYS - 1)


@async_test
async def test_an_event_that_keeps_failing_is_skipped_in_the_end(
    server: Server, org: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_event = event_editor.create_event

    async def fail_once(database: Any, org: bytes, new: Any, *values: Any) -> bytes:
        if new.starts_at.day == 6:
            raise RuntimeError("a bug")
        return await create_event(database, org, new, *values)

    monkeypatch.setattr(series_jobs, "create_event", fail_once)
    with server.client(org.headers()) as admin:
        job = await asyncio.to_thread(new_job, admin, 3)
        async with worker(server.database_url) as jobs:
            for _ in range(ATTEMPTS_MAX):
                await asyncio.to_thread(make_due, server.database_url, job)
                await work(jobs)
        done = await asyncio.to_thread(get_job, admin, job)
        assert (done["status"], done["created"], done["failed"]) == ("done", 2, 1)
        assert done["errors"][0]["code"] == "internal"
        assert "bug" not in done["errors"][0]["detail"]


@async_test
async def test_a_long_job_takes_turns_with_other_jobs(
    server: Server, org: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series_jobs, "TURN_SECONDS", 0.01)
    with server.client(org.headers()) as admin:
        long, short = [await asyncio.to_thread(new_job, admin, days) for days in (60, 1)]
        async with worker(server.database_url) as jobs:
            working = asyncio.create_task(work(jobs))
            async with asyncio.timeout(20):
                while (await asyncio.to_thread(get_job, admin, short))["status"] != "done":
                    await asyncio.sleep(0.01)
            assert (await asyncio.to_thread(get_job, admin, long))["status"] == "running"
            await working
        assert (await asyncio.to_thread(get_job, admin, long))["status"] == "done"


@contextmanager
def worker_process(url: str) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": url}
    process = subprocess.Popen([sys.executable, "-m", "holdfast", "worker"], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def test_a_killed_worker_neither_loses_nor_doubles_an_event(server: Server, admin: httpx.Client) -> None:
    job = new_job(admin, DAYS_WITH_CRASH, publish=True)
    with worker_process(server.database_url) as process:
        wait_until(lambda: get_job(admin, job)["created"] >= DAYS_BEFORE_CRASH, 60, 0.005)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    before = get_job(admin, job)
    assert before["status"] == "running"
    assert before["created"] < DAYS_WITH_CRASH
    make_due(server.database_url, job)
    with worker_process(server.database_url):
        wait_until(lambda: get_job(admin, job)["status"] == "done", 60)
    done = get_job(admin, job)
    assert (done["created"], done["failed"]) == (DAYS_WITH_CRASH, 0)
    events = list_events(admin, job)
    assert len(events) == DAYS_WITH_CRASH == len({event["starts_at"] for event in events})
    assert {event["status"] for event in events} == {"active"}


def test_a_job_whose_template_is_no_longer_accepted_ends_with_errors(server: Server, admin: httpx.Client) -> None:
    """Rules may become stricter between the request and the work."""
    job = new_job(admin, 2)
    statement = 'UPDATE series_job SET template = (template::jsonb || \'{"timezone": "Moon/Base"}\')::json'
    query(server.database_url, f"{statement} WHERE due_at IS NOT NULL")
    run_worker(server.database_url)
    done = get_job(admin, job)
    assert (done["status"], done["created"], done["failed"]) == ("failed", 0, 2)
    assert {error["code"] for error in done["errors"]} == {"invalid_request"}
