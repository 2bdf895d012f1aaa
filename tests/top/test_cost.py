"""`holdfast top` never loads the database: every statement reads a bounded number of rows through indexes, although
nothing was ever analysed."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import json

from holdfast import sql
from holdfast.runtime import db
from holdfast.top.database_sample import (
    BACKLOG_MAX,
    BUSIEST_MAX,
    ENTRIES_MAX,
    HOLDING_MAX,
    HOLDS_MAX,
    LASTING_MAX,
    UPCOMING_MAX,
    DatabaseSampler,
)
from tests.support.harness import Org, connection_to, fresh_database

EVENTS = 4_000
LARGE = 20_000
FORBIDDEN = {"Hash Join", "Merge Join", "Bitmap Heap Scan"}

# Past events, more upcoming ones than top watches, and a large one that is being sold. Most of its bookings have ended.
FILL = """
INSERT INTO event (id, org_id, status, title, starts_at, currency, tax_bps, policy, details, version)
SELECT gen_random_uuid(), $1, 'active', 'Copy', now() + (n - {half}) * interval '1 day', 'EUR', 0, '{{}}', '{{}}', 5
FROM generate_series(1, {events}) AS n;
"""
# The first of the busiest events by id has all the bookings and journal entries.
FILL_LARGE = [
    """CREATE TEMPORARY TABLE large AS
       SELECT id FROM event WHERE starts_at > now() ORDER BY starts_at LIMIT 30""",
    """INSERT INTO pool (event_id, number, code, name, seated, capacity)
       SELECT id, 0, 'places', '', false, 1000000 FROM large""",
    """INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at,
                            expires_at, request_key, fingerprint, version)
       SELECT (SELECT id FROM large ORDER BY id LIMIT 1), gen_random_uuid(), gen_random_uuid(), 'u' || n,
              CASE WHEN n % 10 = 0 THEN 'held' ELSE 'expired' END, 0, 0, 0, 'EUR', now(),
              now() + CASE WHEN n % 20 = 0 THEN interval '30 s' ELSE interval '-1 s' END, n::text::bytea, '', n
       FROM generate_series(1, $1::integer) AS n""",
    """INSERT INTO journal (event_id, number, at, kind, actor, data, previous)
       SELECT (SELECT id FROM large ORDER BY id LIMIT 1), n, now(), 'held', '', '{}', sha256('')
       FROM generate_series(1, $1::integer) AS n""",
    """INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, created_at, due_at)
       SELECT gen_random_uuid(), n, 'email:' || n % 7, 'email', gen_random_uuid(), gen_random_uuid(), 'held', '{}',
              now(), now()
       FROM generate_series(1, $1::integer / 4) AS n""",
]


class Recorder:
    """A connection that explains every statement before it runs it."""

    def __init__(self, connection: db.Connection) -> None:
        self._connection = connection
        self.plans: dict[str, dict[str, Any]] = {}

    async def fetch(self, statement: str, *values: Any) -> Any:
        explained = await self._connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *values)
        self.plans[statement] = json.decode(explained)[0]["Plan"]
        return await self._connection.fetch(statement, *values)

    async def fetchrow(self, statement: str, *values: Any) -> Any:
        return (await self.fetch(statement, *values))[0]


@pytest.fixture(scope="module")
def plans(postgres: str) -> Iterator[dict[str, dict[str, Any]]]:
    """The plans of a sample with the most that there can be to read. They were first made on empty tables."""

    async def measure(url: str, org: bytes) -> dict[str, dict[str, Any]]:
        async with connection_to(url) as writer, connection_to(url, db.connect_watcher) as watcher:
            for row in await writer.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
                await writer.execute(f"ALTER TABLE {row['tablename']} SET (autovacuum_enabled = off)")
            recorder: Any = Recorder(watcher)
            sampler = DatabaseSampler(db.Database(recorder))
            await sampler.sample()
            await writer.execute(FILL.format(half=EVENTS // 2, events=EVENTS).replace("$1", f"'{org.hex()}'"))
            for statement in FILL_LARGE:
                await writer.execute(statement, *([LARGE] if "$1" in statement else []))
            sampler._discover_at = 0
            await sampler.sample()
            await writer.execute("UPDATE event SET version = version + $1 WHERE id IN (SELECT id FROM large)", LARGE)
            sample = await sampler.sample()
            assert len(sample.events) == BUSIEST_MAX
            assert sample.other_changes == (30 - BUSIEST_MAX) * LARGE
            plans: dict[str, dict[str, Any]] = recorder.plans
            return plans

    with fresh_database(postgres) as url:
        yield asyncio.run(measure(url, Org(url).id))


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def rows_read(plan: dict[str, Any]) -> Counter[str]:
    read: Counter[str] = Counter()
    for node in nodes(plan):
        if table := node.get("Relation Name"):
            removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            read[table] += round((node["Actual Rows"] + removed) * node["Actual Loops"])
    return read


def test_every_statement_uses_indexes(plans: dict[str, dict[str, Any]]) -> None:
    assert len(plans) == len(vars(sql.top))
    for statement, plan in plans.items():
        found = {node["Node Type"] for node in nodes(plan)}
        assert not found & FORBIDDEN, statement
        assert not [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"], statement


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        (sql.top.events_to_watch.text, {"event": UPCOMING_MAX + LASTING_MAX, "booking": HOLDING_MAX}),
        (sql.top.versions, {"event": UPCOMING_MAX + LASTING_MAX + HOLDING_MAX}),
        (sql.top.activity.text, {"journal": ENTRIES_MAX}),
        (sql.top.stock.text, {"event": BUSIEST_MAX, "pool": BUSIEST_MAX, "booking": 2 * HOLDS_MAX}),
        (sql.top.backlog, {"delivery": BACKLOG_MAX, "payment": BACKLOG_MAX}),
    ],
    ids=["events_to_watch", "versions", "activity", "stock", "backlog"],
)
def test_a_statement_reads_a_bounded_number_of_rows(
    plans: dict[str, dict[str, Any]], statement: str, most: dict[str, int]
) -> None:
    read = {table: count for table, count in rows_read(plans[statement]).items() if not table.startswith("pg_")}
    assert read
    for table, count in read.items():
        # The clock of the database may move on between the plan and the rows.
        assert count <= most[table] + 2, table
