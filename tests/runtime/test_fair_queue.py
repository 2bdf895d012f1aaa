"""A fair queue gives every org its share, waits for no slow row, and keeps the order where there is one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec import Struct
from structlog.testing import capture_logs

from holdfast.runtime import db
from holdfast.runtime.fair_queue import ORGS_MAX, FairQueue
from holdfast.runtime.lease_queue import LeaseQueue
from holdfast.sql import NamedStatement
from tests.support.engine_harness import async_test, poll_until

TABLE: Final = """
CREATE TABLE task (org_id uuid, id integer PRIMARY KEY, stream text, due_at timestamptz);
CREATE INDEX task_due ON task (org_id, due_at) WHERE due_at IS NOT NULL;
"""
ORGS: Final = NamedStatement("""
SELECT org_id AS org, min(due_at) <= holdfast_now() AS due FROM task
WHERE due_at IS NOT NULL AND org_id > :after GROUP BY org_id ORDER BY org_id LIMIT :orgs_max
""")
CLAIM: Final = NamedStatement("""
WITH due AS MATERIALIZED (
    SELECT id FROM task WHERE org_id = :org AND due_at <= holdfast_now()
    ORDER BY due_at LIMIT :claim_max FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE task SET due_at = holdfast_now() + make_interval(secs => :lease_seconds)
    FROM due WHERE task.id = due.id RETURNING task.org_id AS org, task.id, task.stream
)
SELECT * FROM claimed ORDER BY id
""")
CLAIM_MAX: Final = 4


class Task(Struct, frozen=True):
    org: bytes
    id: int
    stream: str


class Tasks:
    """Queues over a table of tasks. `done` has the tasks in the order in which they ended."""

    def __init__(self, pool: db.Pool) -> None:
        self._pool = pool
        self._inserted = 0
        self.done: list[Task] = []

    async def insert(self, org: int, count: int, streams: int = 1_000_000) -> None:
        """Insert tasks that are due after all tasks so far."""
        await self._pool.execute(
            "INSERT INTO task SELECT $1, id, (id % $4)::text, holdfast_now() - interval '1 h' + id * interval '1 ms' "
            "FROM generate_series($2::int + 1, $2::int + $3::int) AS id",
            org.to_bytes(16),
            self._inserted,
            count,
            streams,
        )
        self._inserted += count

    def queue(self, before: Callable[[Task], Awaitable[Any]] | None = None) -> FairQueue[Task]:
        """A queue that runs `before` for each task and then notes it as done."""

        async def work(task: Task) -> None:
            await (before or (lambda _: asyncio.sleep(0)))(task)
            await self._pool.execute("UPDATE task SET due_at = NULL WHERE id = $1", task.id)
            self.done.append(task)

        lease_queue = LeaseQueue(
            name="tasks",
            row_type=Task,
            claim_statement=CLAIM,
            claim_max=CLAIM_MAX,
            lease_seconds=60,
            label=lambda task: f"task {task.id}",
            order_key=lambda task: (task.org, task.stream),
        )
        return FairQueue(lease_queue, ORGS, db.Database(self._pool).shared, work)


@asynccontextmanager
async def new_tasks(database: str) -> AsyncIterator[Tasks]:
    pool = await db.create_pool(database, 4)
    try:
        await pool.execute(TABLE)
        yield Tasks(pool)
    finally:
        await pool.close()


async def hang(_: object = None) -> None:
    await asyncio.Event().wait()


async def cancel(queue: FairQueue[Task]) -> None:
    for task in queue._round_robin.tasks.values():
        task.cancel()
    await queue.close()


@async_test
async def test_an_org_whose_rows_hang_has_a_few_under_way_and_delays_no_other(database: str) -> None:
    started = Counter[bytes]()

    async def hang_in_first_org(task: Task) -> None:
        started[task.org] += 1
        if task.org == (1).to_bytes(16):
            await hang()

    async with new_tasks(database) as tasks:
        await tasks.insert(org=1, count=100)
        await tasks.insert(org=2, count=10)
        queue = tasks.queue(hang_in_first_org)
        await queue.run_once()
        await poll_until(lambda: len(tasks.done) == 10)
        assert started == {(1).to_bytes(16): CLAIM_MAX, (2).to_bytes(16): 10}
        await tasks.insert(org=3, count=1)
        await queue.run_once()
        await poll_until(lambda: len(tasks.done) == 11)
        await cancel(queue)


@async_test
async def test_a_row_that_hangs_does_not_keep_its_org_from_the_next_rows(database: str) -> None:
    async with new_tasks(database) as tasks:
        await tasks.insert(org=1, count=30)
        queue = tasks.queue(lambda task: hang() if task.id == 1 else asyncio.sleep(0))
        await queue.run_once()
        await poll_until(lambda: len(tasks.done) == 29)
        await tasks.insert(org=1, count=1)
        await poll_until(lambda: len(tasks.done) == 30)
        await cancel(queue)


@async_test
async def test_orgs_take_turns_if_there_are_more_of_them_than_places(database: str) -> None:
    orgs = ORGS_MAX + 5
    async with new_tasks(database) as tasks:
        for org in range(1, orgs + 1):
            await tasks.insert(org, count=5 * CLAIM_MAX)
        queue = tasks.queue()
        async with asyncio.timeout(60):
            while len(tasks.done) < orgs * 5 * CLAIM_MAX:
                await queue.run_once()
                # Tasks that compete for connections would progress at different speeds.
                await queue.wait()
        first = {task.org: at for at, task in reversed(list(enumerate(tasks.done)))}
        last_to_start = max(first.values())
        assert max(Counter(task.org for task in tasks.done[:last_to_start]).values()) < 5 * CLAIM_MAX
        await queue.close()


@async_test
async def test_rows_with_the_same_key_keep_their_order_across_claims(database: str) -> None:
    async with new_tasks(database) as tasks:
        await tasks.insert(org=1, count=6 * CLAIM_MAX, streams=3)
        queue = tasks.queue(lambda task: asyncio.sleep(0.02 if task.id % 2 else 0))
        await queue.run_once()
        await queue.wait()
        for stream in "012":
            numbers = [task.id for task in tasks.done if task.stream == stream]
            assert len(numbers) == 2 * CLAIM_MAX
            assert numbers == sorted(numbers)
        assert queue._last_by_key == {}


@async_test
async def test_two_queues_share_the_rows_and_count_what_they_did(database: str) -> None:
    async with new_tasks(database) as tasks:
        for org in (1, 2, 3):
            await tasks.insert(org, count=20)
        queues = [tasks.queue(), tasks.queue()]
        for queue in queues:
            assert await queue.run_once() == 0
        await asyncio.gather(*(queue.wait() for queue in queues))
        assert sorted(task.id for task in tasks.done) == list(range(1, 61))
        assert sum([await queue.run_once() for queue in queues]) == 60
        assert [await queue.run_once() for queue in queues] == [0, 0]


@async_test
async def test_a_row_that_fails_stays_leased_and_stops_no_other(database: str) -> None:
    async def fail_on_two(task: Task) -> None:
        if task.id == 2:
            raise ValueError

    async with new_tasks(database) as tasks:
        await tasks.insert(org=1, count=10)
        queue = tasks.queue(fail_on_two)
        with capture_logs() as logs:
            await queue.run_once()
            await queue.wait()
        assert [(log["event"], log["row"]) for log in logs] == [("queue_row_failed", "task 2")]
        assert {task.id for task in tasks.done} == set(range(1, 11)) - {2}


@async_test
async def test_a_closing_queue_finishes_what_is_under_way_and_starts_nothing_new(database: str) -> None:
    released = asyncio.Event()
    async with new_tasks(database) as tasks:
        await tasks.insert(org=1, count=3 * CLAIM_MAX)
        started: list[int] = []

        async def wait_for_release(task: Task) -> None:
            started.append(task.id)
            await released.wait()

        queue = tasks.queue(wait_for_release)
        await queue.run_once()
        await poll_until(lambda: len(started) == CLAIM_MAX)
        closing = asyncio.create_task(queue.close())
        await asyncio.sleep(0)
        released.set()
        await closing
        await queue.run_once()
        assert sorted(task.id for task in tasks.done) == sorted(started) == list(range(1, CLAIM_MAX + 1))
