"""Lease queues: rows are claimed by one worker at a time, fail alone, keep their order, and come back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
from msgspec import Struct
from structlog.testing import capture_logs

from holdfast.runtime import db
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.lease_queue import LeaseQueue
from holdfast.sql import NamedStatement
from tests.support.engine_harness import async_test, shift_clock

TABLE: Final = """
CREATE TABLE task (id integer PRIMARY KEY, stream text, due_at timestamptz, attempts integer);
INSERT INTO task SELECT number, 'stream ' || number % 3, holdfast_now(), 0 FROM generate_series(1, 9) AS number
"""
CLAIM: Final = NamedStatement("""
WITH due AS MATERIALIZED (
    SELECT id FROM task WHERE due_at <= holdfast_now() AND stream LIKE :stream
    ORDER BY id LIMIT :claim_max FOR UPDATE SKIP LOCKED
)
UPDATE task SET due_at = holdfast_now() + make_interval(secs => :lease_seconds), attempts = attempts + 1
FROM due WHERE task.id = due.id RETURNING task.id, task.stream, task.attempts
""")


class Task(Struct, frozen=True):
    id: int
    stream: str
    attempts: int


def make_queue(*, claim_max: int = 100, in_order: bool = False) -> LeaseQueue[Task]:
    return LeaseQueue(
        name="tasks",
        row_type=Task,
        claim_statement=CLAIM,
        claim_max=claim_max,
        lease_seconds=60,
        label=lambda task: f"task {task.id}",
        order_key=(lambda task: task.stream) if in_order else None,
    )


@asynccontextmanager
async def tasks(database: str) -> AsyncIterator[db.DatabaseScope]:
    pool = await db.create_pool(database, 4)
    try:
        await pool.execute(TABLE)
        yield db.Database(pool).shared
    finally:
        await pool.close()


async def double(task: Task) -> int:
    await asyncio.sleep(0)
    return 2 * task.id


@async_test
async def test_a_pass_claims_a_limited_number_of_rows_and_counts_them(database: str) -> None:
    async with tasks(database) as scope:
        result = await make_queue(claim_max=4).run_once(scope, double, stream="%")
        assert (sorted(result.results), result.failures, result.rows) == ([2, 4, 6, 8], [], 4)
        assert [(await make_queue(claim_max=4).run_once(scope, double, stream="%")).rows for _ in range(3)] == [4, 1, 0]


@async_test
async def test_a_claim_can_be_filtered(database: str) -> None:
    async with tasks(database) as scope:
        assert {task.id for task in await make_queue().claim(scope, stream="stream 0")} == {3, 6, 9}


@async_test
async def test_simultaneous_claims_never_share_a_row(database: str) -> None:
    async with tasks(database) as scope:
        claims = await asyncio.gather(*(make_queue(claim_max=3).claim(scope, stream="%") for _ in range(8)))
        assert sorted(task.id for claim in claims for task in claim) == list(range(1, 10))


@async_test
async def test_a_failed_row_is_logged_and_returns_after_its_lease_without_stopping_others(database: str) -> None:
    async def fail_on_two(task: Task) -> int:
        if task.id == 2:
            raise ValueError("buyer@example.org is not to be in a log")
        return await double(task)

    async with tasks(database) as scope:
        with capture_logs() as logs:
            result = await make_queue().run_once(scope, fail_on_two, stream="%")
        assert (len(result.results), len(result.failures), result.rows) == (8, 1, 9)
        assert logs == [
            {
                "event": "queue_row_failed",
                "log_level": "error",
                "queue": "tasks",
                "row": "task 2",
                "error": "ValueError",
            }
        ]
        assert (await make_queue().run_once(scope, double, stream="%")).rows == 0
        await shift_clock(scope, 61)
        assert Task(2, "stream 2", 2) in await make_queue().claim(scope, stream="%")


@async_test
async def test_rows_run_concurrently_unless_the_queue_has_an_order(database: str) -> None:
    running: set[int] = set()
    maximum = 0

    async def record(task: Task) -> None:
        nonlocal maximum
        running.add(task.id)
        maximum = max(maximum, len(running))
        await asyncio.sleep(0.01)
        running.discard(task.id)

    async with tasks(database) as scope:
        rows = await make_queue().claim(scope, stream="%")
        await make_queue().work_on(rows, record)
        assert maximum == 9
        maximum = 0
        await make_queue(in_order=True).work_on(rows, record)
        assert maximum == 3


@async_test
async def test_rows_with_the_same_key_keep_their_order_even_after_a_failure(database: str) -> None:
    done: dict[str, list[int]] = {}

    async def slow_first(task: Task) -> None:
        await asyncio.sleep(0.02 / task.id)
        done.setdefault(task.stream, []).append(task.id)
        if task.id < 4:
            raise ValueError

    async with tasks(database) as scope:
        rows = sorted(await make_queue().claim(scope, stream="%"), key=lambda task: task.id)
        with capture_logs():
            result = await make_queue(in_order=True).work_on(rows, slow_first)
        assert done == {"stream 1": [1, 4, 7], "stream 2": [2, 5, 8], "stream 0": [3, 6, 9]}
        assert (len(result.results), len(result.failures)) == (6, 3)


@async_test
async def test_a_cancelled_row_does_not_count_as_failed(database: str) -> None:
    finished: list[int] = []

    async def cancel_two(task: Task) -> None:
        if task.id == 2:
            raise asyncio.CancelledError
        await asyncio.sleep(0.01)
        finished.append(task.id)

    async with tasks(database) as scope:
        rows = await make_queue().claim(scope, stream="%")
        with pytest.raises(asyncio.CancelledError):
            await make_queue().work_on(rows, cancel_two)
        assert sorted(finished) == [1, 3, 4, 5, 6, 7, 8, 9]


def test_a_backoff_repeats_its_last_wait_and_can_be_exhausted() -> None:
    backoff = Backoff((1, 5, 30))
    assert [backoff.seconds_after(attempts) for attempts in (0, 1, 2, 3, 4, 10_000)] == [1, 1, 5, 30, 30, 30]
    assert [backoff.is_exhausted(attempts) for attempts in (1, 3, 4)] == [False, False, True]


@pytest.mark.parametrize(
    ("first", "maximum", "waits"),
    [(1, 60, (1, 2, 4, 8, 16, 32, 60)), (2, 8, (2, 4, 8)), (30, 15, (15,)), (0.5, 0.5, (0.5,))],
)
def test_an_exponential_backoff_doubles_up_to_its_maximum(first: float, maximum: float, waits: tuple[float]) -> None:
    assert Backoff.exponential(first, maximum).waits_seconds == waits
