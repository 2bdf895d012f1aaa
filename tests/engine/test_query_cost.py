"""A hold costs the same in an empty event and in a full one, without any table statistics. The tests count pages, not
time."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import md5
from typing import Any, cast

import pytest
from msgspec import Struct, convert, json, structs

from holdfast import sql
from holdfast.api.event_search import BEGINNING, LATEST, SCANNED_MAX
from holdfast.core.commands import Accepted, BestSeats, Client, Command, SettlePayment, StartPayment, TransferBooking
from holdfast.core.event_schemas import EventChange, EventNew
from holdfast.core.payment import PaymentResult
from holdfast.core.states import EventStatus, Verb
from holdfast.engine.batch import run_batch, sweep
from holdfast.engine.event_editor import change_event, create_event, set_status
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime import db
from holdfast.runtime.ids import new_id
from holdfast.web.event_cards import DATES_ON_CARD
from holdfast.web.event_list_pages import CARDS_MAX
from tests.support.cases import case
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    hold_many,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    new_org,
    one_pool,
    run_commands,
    shift_clock,
)
from tests.support.harness import connection_to, example_event, fresh_database, query, wait_until

TINY, SMALL, LARGE = 28, 1_000, 100_000
# A lane would give up before a busy machine has written the large event.
FILL_SECONDS = 300
PLACES = 1_000_000
STOCK = [{"code": "hall", "seats": {"rows": list("ABCDEFGHIJ"), "numbers": 20}}, *one_pool(PLACES)]
FORBIDDEN = {"Seq Scan", "Hash Join", "Merge Join"}
STATEMENTS = {
    **{getattr(statement, "text", statement): name for name, statement in vars(sql.engine).items()},
    sql.reads.pools_of: "pools_of",
    sql.reads.tariffs_of: "tariffs_of",
}
# Reads that look for due holds. They run on connections with the default settings.
READS = {
    sql.reads.due: "due",
    sql.reads.event_version: "event_version",
    sql.reads.availability: "availability",
    sql.pages.listings: "listings",
}
# What the auditor reads about stock. Each takes the event alone.
AUDIT_OF_STOCK = (
    "pools",
    "seats",
    "lines_in_unknown_pools",
    "bookings",
    "strays",
    "event_status",
    "recorded_pools",
    "recorded_seats",
    "recorded_blocks",
)
PLANNED = ["when empty", "when full"]

# Bookings of one unit each, with a payment under the same id. Of every four, one is held, one confirmed, and two
# have ended. A few holds are due. Every eight bookings come from one address. All were held before the first ended.
FILL = """
CREATE OR REPLACE FUNCTION pg_temp.entry_data(held bigint, sold bigint) RETURNS json LANGUAGE sql RETURN
    json_build_object('pools', json_build_object('places', json_build_object(
        'capacity', {places}, 'held', held, 'sold', sold, 'remaining', {places} - held - sold)));
CREATE TEMPORARY TABLE made AS
    SELECT n, gen_random_uuid() AS id, (ARRAY['held', 'confirmed', 'expired', 'cancelled'])[n % 4 + 1] AS status
    FROM generate_series(1, {count}) AS n;
INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, expires_at,
                     max_expires_at, request_key, fingerprint, client, version)
    SELECT '{event}', id, '{org}', 'u' || n, status, 100, 0, 100, 'EUR', now(),
           now() + CASE WHEN n <= 16 THEN interval '-1 s' ELSE interval '1 h' END, now() + interval '1 h',
           decode(md5(n::text), 'hex'), '', decode(md5((n / 8)::text), 'hex'), n + 2 FROM made;
INSERT INTO line (event_id, booking_id, number, pool, tariff, quantity, unit_price, live)
    SELECT '{event}', id, 0, 1, 0, 1, 100, status IN ('held', 'confirmed') FROM made;
INSERT INTO payment (event_id, id, org_id, booking_id, provider, provider_ref, status, outcome, amount, currency,
                     request_key, fingerprint, created_at, captured_at, due_at)
    SELECT '{event}', id, '{org}', id, 'sandbox', id::text,
           CASE status WHEN 'held' THEN 'started' WHEN 'confirmed' THEN 'succeeded' ELSE 'failed' END,
           CASE status WHEN 'confirmed' THEN 'fulfilled' END, 100, 'EUR', decode(md5(n::text), 'hex'), '', now(),
           CASE status WHEN 'confirmed' THEN now() END, CASE status WHEN 'held' THEN now() + interval '1 h' END
    FROM made;
INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data, previous)
    SELECT '{event}', n + 2, now(), 'held', id, 'test', pg_temp.entry_data(n, 0), sha256('') FROM made;
INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data, previous)
    SELECT '{event}', {count} + 2 + step, now(), status, id, 'test', pg_temp.entry_data({count} - step, sold),
           sha256('')
    FROM (
        SELECT id, status, row_number() OVER later AS step,
               count(*) FILTER (WHERE status = 'confirmed') OVER later AS sold
        FROM made WHERE status <> 'held' WINDOW later AS (ORDER BY n)
    ) AS ended;
INSERT INTO push_subscription (event_id, booking_id, slot, org_id, endpoint, p256dh, auth, key_number, language,
                               created_at, due_at)
    SELECT '{event}', id, 0, '{org}', '', '', '', 1, 'en', now(), now() + interval '1 h'
    FROM made WHERE status = 'held';
UPDATE pool SET held = (SELECT count(*) FROM made WHERE status = 'held'),
                sold = (SELECT count(*) FROM made WHERE status = 'confirmed')
    WHERE event_id = '{event}' AND code = 'places';
UPDATE event SET version = (SELECT max(number) FROM journal WHERE event_id = '{event}') WHERE id = '{event}';
DROP TABLE made;
"""

# Free bookings of one unit each, all from one address: a few new ones, and many old ones in other events.
FILL_FREE = """
CREATE TEMPORARY TABLE made AS
    SELECT n, gen_random_uuid() AS id, CASE WHEN n <= {new} THEN '{event}' ELSE gen_random_uuid() END AS event_id
    FROM generate_series(1, {count}) AS n;
INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, max_expires_at,
                     request_key, fingerprint, client, version)
    SELECT event_id, id, '{org}', 'u' || n, 'confirmed', 0, 0, 0, 'EUR',
           now() - CASE WHEN n <= {new} THEN interval '1 min' ELSE interval '2 h' END, now(),
           decode(md5(n::text), 'hex'), '', '\\x{client}', n + 2 FROM made;
INSERT INTO line (event_id, booking_id, number, pool, tariff, quantity, unit_price, live)
    SELECT event_id, id, 0, 0, 0, 1, 0, true FROM made;
DROP TABLE made;
"""


class Cost(Struct, frozen=True):
    """The cost of one statement: the kinds of nodes in its plan, and the number of pages it touched."""

    nodes: frozenset[str]
    pages: int


Costs = dict[str, Cost]


class FullDatabase(Struct, frozen=True):
    """A database with a small and a large event, and the costs of a batch in each, by when its plans were made. `alone`
    has the costs in a tiny event while it was the only one. `reads` has the costs of `READS`."""

    url: str
    large: EventHandle
    alone: Costs
    costs: dict[tuple[str, int], Costs]
    reads: dict[tuple[str, int], Costs]


class Recorder:
    """A connection that keeps the first values of each statement, and never commits."""

    def __init__(self, connection: db.Connection) -> None:
        self._connection = connection
        self.statements: dict[str, tuple[Any, ...]] = {}

    async def fetch(self, statement: str, *values: Any) -> Any:
        self.statements.setdefault(statement, values)
        return await self._connection.fetch(statement, *values)

    async def fetchrow(self, statement: str, *values: Any) -> Any:
        self.statements.setdefault(statement, values)
        return await self._connection.fetchrow(statement, *values)

    async def fetchval(self, statement: str, *values: Any) -> Any:
        self.statements.setdefault(statement, values)
        return await self._connection.fetchval(statement, *values)

    async def execute(self, statement: str, *values: Any) -> None:
        if statement in STATEMENTS:
            self.statements.setdefault(statement, values)
        await self._connection.execute("ROLLBACK" if statement == "COMMIT" else statement, *values)

    def is_closed(self) -> bool:
        closed: bool = self._connection.is_closed()
        return closed


class Planner:
    """A connection on which each statement is prepared once, and explained whenever it runs."""

    def __init__(self, connection: db.Connection) -> None:
        self._connection = connection
        self._types: dict[str, list[str]] = {}

    async def costs(self, event: EventHandle) -> Costs:
        statements = await _record_statements(self._connection, event)
        await self._connection.execute("BEGIN")
        costs = {
            STATEMENTS[statement]: _cost(await self.explain(STATEMENTS[statement], statement, values))
            for statement, values in statements.items()
        }
        await self._connection.execute("ROLLBACK")
        return costs

    async def costs_of_reads(self, event: EventHandle) -> Costs:
        values: dict[str, tuple[Any, ...]] = {
            sql.reads.event_version: (event.id, 0, 10, 1_000),
            sql.pages.listings: ([event.id],),
        }
        return {
            name: _cost(await self.explain(name, statement, values.get(statement, (event.id,))))
            for statement, name in READS.items()
        }

    async def explain_audit(self, event: bytes) -> dict[str, dict[str, Any]]:
        return {name: await self.explain(name, getattr(sql.audit, name), (event,)) for name in AUDIT_OF_STOCK}

    async def explain(self, name: str, statement: str, values: tuple[Any, ...]) -> dict[str, Any]:
        """Run the statement and return its plan."""
        if name not in self._types:
            await self._connection.execute(f"PREPARE {name} AS {statement}")
            self._types[name] = [type_.name for type_ in (await self._connection.prepare(statement)).get_parameters()]
        literals = [
            await self._connection.fetchval(f"SELECT quote_nullable($1::{type_}::text)", value)
            for type_, value in zip(self._types[name], values, strict=True)
        ]
        explained = await self._connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name} ({', '.join(literals)})"
        )
        plan: dict[str, Any] = json.decode(explained)[0]["Plan"]
        return plan


def _cost(plan: dict[str, Any]) -> Cost:
    kinds = frozenset(node["Node Type"] for node in _nodes(plan))
    return Cost(kinds, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from _nodes(part)


async def _connect_reader(url: str) -> db.Connection:
    """A connection that keeps its first plans, as a pool's connections may."""
    connection = await db.connect(url)
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    return connection


async def _record_statements(connection: db.Connection, event: EventHandle) -> dict[str, tuple[Any, ...]]:
    """The statements of a batch of every kind of command and of a sweep, with their values. Nothing is changed."""
    recorder = Recorder(connection)
    held, other, third = await connection.fetch(
        "SELECT id FROM booking WHERE event_id = $1 AND status = 'held' AND expires_at > now() LIMIT 3", event.id
    )
    expired = await connection.fetchval(
        "SELECT id FROM booking WHERE event_id = $1 AND status = 'expired' AND expires_at > now() LIMIT 1", event.id
    )
    confirmed = await connection.fetchval(
        "SELECT id FROM booking WHERE event_id = $1 AND status = 'confirmed' LIMIT 1", event.id
    )
    of_event: dict[str, Any] = {"event": event.id, "org": event.org, "actor": "test"}
    commands: list[Command] = [
        new_hold_command(event, "A-1"),
        new_hold_command(event, user="u17"),
        structs.replace(new_hold_command(event, user="u18"), client=Client(md5(b"2").digest(), is_guest=True)),
        structs.replace(new_hold_command(event), items=(), best_available=BestSeats("hall", 3)),
        new_action_command(event, held["id"], Verb.CONFIRM),
        new_action_command(event, other["id"], Verb.CANCEL),
        StartPayment(
            **of_event, booking=third["id"], payment=new_id(), provider="x", request_key=b"k", fingerprint=b"f"
        ),
        SettlePayment(
            **of_event, booking=expired, payment=expired, result=PaymentResult.CAPTURED, amount=100, currency="EUR"
        ),
        TransferBooking(**of_event, booking=confirmed, generation=0, user="u18"),
    ]
    recording = cast(db.Connection, recorder)
    unknown = new_hold_command(EventHandle(new_id(), event.org))
    await run_batch(recording, LayoutCache(), [*commands, unknown])
    await run_batch(recording, LayoutCache(), commands, lock_seconds=3)
    await sweep(recording, LayoutCache(), event.id, sql.engine.lock_if_free)
    # A batch that reviews a receipt runs this one too.
    pushed = ([event.id], [held["id"]], ["booking.confirmed"], datetime.now(UTC))
    return {**recorder.statements, sql.engine.insert_push_deliveries: pushed}


async def _create_filled_event(connection: db.Connection, org: bytes, count: int) -> EventHandle:
    event = await new_event(connection, org, pools=STOCK, policy={"max_units_per_user": 10})
    fill = FILL.format(event=event.id.hex(), org=org.hex(), count=count, places=PLACES)
    await connection.execute(fill, timeout=FILL_SECONDS)
    return event


async def _keep_from_analysing(connection: db.Connection) -> None:
    """On a busy machine, a test may last until autovacuum comes by."""
    for row in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        await connection.execute(f"ALTER TABLE {row['tablename']} SET (autovacuum_enabled = off)")


async def _measure(url: str) -> FullDatabase:
    async with (
        lane_connection(url) as early,
        lane_connection(url) as late,
        lane_connection(url) as other,
        connection_to(url, _connect_reader) as early_reader,
        connection_to(url, _connect_reader) as late_reader,
    ):
        await other.execute("SET statement_timeout = 0")
        await _keep_from_analysing(other)
        org = await new_org(other)
        await other.execute(
            "INSERT INTO webhook_endpoint (id, org_id, url, kinds, secret) VALUES ($1, $2, '', '{}', '')", new_id(), org
        )
        planned_early = Planner(early)
        reads_planned_early = Planner(early_reader)
        tiny = await _create_filled_event(other, org, TINY)
        alone = await planned_early.costs(tiny)
        await reads_planned_early.costs_of_reads(tiny)
        events = {count: await _create_filled_event(other, org, count) for count in (SMALL, LARGE)}
        planners = {"when empty": planned_early, "when full": Planner(late)}
        costs = {
            (planned, count): await planner.costs(event)
            for planned, planner in planners.items()
            for count, event in events.items()
        }
        readers = {"when empty": reads_planned_early, "when full": Planner(late_reader)}
        reads = {
            (planned, count): await planner.costs_of_reads(event)
            for planned, planner in readers.items()
            for count, event in events.items()
        }
        assert await other.fetchval("SELECT count(*) FROM pg_stats WHERE schemaname = 'public'") == 0
    return FullDatabase(url, events[LARGE], alone, costs, reads)


@pytest.fixture(scope="module")
def full_database(postgres: str) -> Iterator[FullDatabase]:
    with fresh_database(postgres) as url:
        yield asyncio.run(_measure(url))


@pytest.mark.parametrize("planned", PLANNED)
def test_every_statement_of_a_batch_uses_an_index(full_database: FullDatabase, planned: str) -> None:
    costs = full_database.costs[planned, LARGE]
    assert set(costs) == set(STATEMENTS.values())
    assert {name: cost.nodes & FORBIDDEN for name, cost in costs.items() if cost.nodes & FORBIDDEN} == {}


@pytest.mark.parametrize("planned", PLANNED)
def test_a_batch_touches_as_few_pages_in_an_event_of_100000_bookings_as_in_one_of_1000(
    full_database: FullDatabase, planned: str
) -> None:
    assert _find_growth(full_database.costs[planned, SMALL], full_database.costs[planned, LARGE], by=1.5) == {}


@pytest.mark.parametrize("planned", PLANNED)
def test_a_batch_in_a_large_database_costs_only_deeper_indexes(full_database: FullDatabase, planned: str) -> None:
    assert _find_growth(full_database.alone, full_database.costs[planned, LARGE], by=3) == {}


@pytest.mark.parametrize("planned", PLANNED)
def test_reads_of_due_holds_touch_as_few_pages_in_an_event_of_100000_bookings_as_in_one_of_1000(
    full_database: FullDatabase, planned: str
) -> None:
    assert _find_growth(full_database.reads[planned, SMALL], full_database.reads[planned, LARGE], by=1.5) == {}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_page_of_an_export_reads_no_bookings_but_its_own(full_database: FullDatabase, mode: str) -> None:
    limit, after = 200, b"\x80" + bytes(15)
    page = sql.reads.bookings_of_event(event=full_database.large.id, after=after, limit=limit, lines_max=1_000)

    async def explain() -> dict[str, Any]:
        async with connection_to(full_database.url) as connection:
            await connection.execute(f"SET plan_cache_mode = {mode}")
            return await Planner(connection).explain("page", page[0], page[1:])

    scans = [node for node in _nodes(asyncio.run(explain())) if node.get("Relation Name") == "booking"]
    # Once to find each booking, and once to read it.
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= 2 * limit


def _find_growth(before: Costs, after: Costs, by: float) -> dict[str, tuple[int, int]]:
    """The statements that touch more than `by` times as many pages as before, with a margin of 8 pages."""
    pages = {name: (before[name].pages, after[name].pages) for name in after}
    return {name: (old, new) for name, (old, new) in pages.items() if new > by * old + 8}


@async_test
async def test_the_cost_of_reading_due_holds_depends_on_their_lines_alone(database: str) -> None:
    """Not on the number of pools or seats."""
    pools, seats = 30, 100
    halls = [
        {"code": f"hall-{n}", "seats": {"rows": [f"R{n}"], "numbers": seats}, "tariffs": one_pool(1)[0]["tariffs"]}
        for n in range(pools)
    ]
    async with lane_connection(database) as lane, connection_to(database, _connect_reader) as reader:
        event = await new_event(lane, pools=halls)
        holds = [new_hold_command(event, f"R{n}-1") for n in range(pools)]
        assert all(isinstance(outcome, Accepted) for outcome in await run_commands(lane, holds))
        await shift_clock(lane, 24 * 3600)
        plan = await Planner(reader).explain("due", sql.reads.due, (event.id,))
        row = await reader.fetchrow(sql.reads.due, event.id)
    scans = [node for node in _nodes(plan) if node.get("CTE Name") == "freed"]
    assert [node["Actual Loops"] for node in scans] == [1, 1], "once for the pools, once for the seats"
    lookups = [node for node in _nodes(plan) if node.get("Relation Name") == "seat"]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in lookups) == pools
    assert row is not None
    assert sorted(row["seats"]) == sorted(f"R{n}-1" for n in range(pools))
    freed = {"capacity": seats, "held": 0, "sold": 0, "remaining": seats}
    assert json.decode(row["pools"]) == {f"hall-{n}": freed for n in range(pools)}


def first_cards(org: bytes) -> tuple[Any, ...]:
    """The statement of an org's page and its values."""
    statement: tuple[Any, ...] = sql.pages.cards_of_org(
        org=org,
        patterns=[],
        any_day=True,
        zones=[],
        day_starts=[],
        day_ends=[],
        scan_max=SCANNED_MAX,
        dates_max=DATES_ON_CARD,
        after_at=BEGINNING.at,
        after_id=BEGINNING.id,
        limit=CARDS_MAX,
    )
    return statement


# Many past events that nobody has completed, some of them with an end, and some upcoming ones; of one org or another.
FILL_EVENTS = """
INSERT INTO event (id, org_id, status, title, starts_at, ends_at, currency, tax_bps, policy, details, published_at,
                   series_id)
SELECT gen_random_uuid(), '{org}', 'active', 'Copy', now() + days * interval '1 day',
       CASE WHEN days % 2 = 0 THEN now() + days * interval '1 day' + interval '1 hour' END, 'EUR', 0, '{{}}', '{{}}',
       now(), {series}
FROM generate_series({first}, {last}) AS days
"""


@async_test
async def test_lists_of_events_read_only_what_they_show(database: str) -> None:
    """Plans made while the tables are empty stay good, and past events and other orgs cost nothing."""
    series = new_id()
    async with lane_connection(database) as lane, connection_to(database, _connect_reader) as reader:
        org, other = await new_org(lane), await new_org(lane)
        await lane.execute("INSERT INTO series (id, org_id, title, details) VALUES ($1, $2, 'Film', '{}')", series, org)
        common: dict[str, Any] = {
            "only_published": True,
            "status": None,
            "patterns": [],
            "earliest": datetime.now(UTC),
            "before": LATEST,
            "after_at": BEGINNING.at,
            "after_id": BEGINNING.id,
            "limit": 5,
            "scan_max": 5,
            "bytes_max": 1_000_000,
        }
        statements = {
            "of_org": sql.reads.events_of_org(**common, org=org, has_earliest=True),
            "of_all": sql.reads.events_of_all_orgs(**common, has_earliest=True),
            "cards": first_cards(org),
        }
        planner = Planner(reader)
        for name, (statement, *values) in statements.items():
            await planner.explain(name, statement, tuple(values))
        await lane.execute(FILL_EVENTS.format(org=org.hex(), first=-4_000, last=-1, series="NULL"))
        await lane.execute(FILL_EVENTS.format(org=org.hex(), first=-2_000, last=8, series=f"'{series.hex()}'"))
        await lane.execute(FILL_EVENTS.format(org=other.hex(), first=10, last=4_000, series="NULL"))
        for name in ("of_org", "cards"):
            with case(name):
                assert await _events_read(planner, name, statements[name]) < 60
        # On an empty table, nothing but an order speaks for the index of all orgs.
        await lane.execute("ANALYZE event")
        for name in statements:
            with case(name, "analysed"):
                assert await _events_read(planner, name, statements[name]) < (60 if name != "of_all" else 2_100)


async def _events_read(planner: "Planner", name: str, statement: tuple[Any, ...]) -> int:
    """How many rows of `event` the statement reads. Upcoming events with an end are in both indexes, so some are read
    in vain."""
    plan = await planner.explain(name, statement[0], statement[1:])
    scans = [node for node in _nodes(plan) if node.get("Relation Name") == "event"]
    assert scans
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"]
    rows: int = sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) for node in scans
    )
    return rows


@async_test
async def test_a_list_of_events_reads_a_limited_number_of_due_holds(database: str) -> None:
    due, limit = 300, 100
    async with lane_connection(database) as lane, connection_to(database, _connect_reader) as reader:
        event = await new_event(lane, pools=one_pool(1_000))
        planner, (cards, *values) = Planner(reader), first_cards(event.org)
        await planner.explain("on_sale", cards, tuple(values))
        sold = await hold_many(lane, event, 400)
        await run_commands(lane, [new_action_command(event, booking, Verb.CONFIRM) for booking in sold])
        await hold_many(lane, event, due)
        await shift_clock(lane, 24 * 3600)
        plan = await planner.explain("on_sale", cards, tuple(values))
        (row,) = await reader.fetch(cards, *values)
    # Never more than there is, and never sold out when something is free.
    assert row["remaining"] == 1_000 - 400 - due + limit
    for table in ("booking", "line"):
        (scan,) = [node for node in _nodes(plan) if node.get("Relation Name") == table]
        rows = scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)
        assert rows * scan["Actual Loops"] == limit


@async_test
async def test_only_the_free_bookings_of_the_last_hour_are_read_to_limit_an_address(database: str) -> None:
    client, new = md5(b"client").digest(), 5
    async with lane_connection(database) as lane, connection_to(database, _connect_reader) as reader:
        event = await new_event(lane, pools=one_pool(1_000_000, price=0))
        elsewhere = sql.reads.unpaid_units_elsewhere(org=event.org, client=client, event=bytes(16), free_seconds=3600)
        of_event: dict[str, Any] = {"client_events": [event.id], "clients": [client], "client_outcomes": [3]}
        of_guests: dict[str, Any] = {"guest_events": [], "guests": [], "guest_outcomes": []}
        here = sql.engine.load_clients(**of_event, **of_guests, now=datetime.now(UTC), free_seconds=3600)
        lane_planner, reading_planner = Planner(lane), Planner(reader)

        async def explain() -> list[dict[str, Any]]:
            plans = [
                await reading_planner.explain("elsewhere", elsewhere[0], elsewhere[1:]),
                await lane_planner.explain("here", here[0], here[1:]),
            ]
            return [node for plan in plans for node in _nodes(plan)]

        await explain()
        fill = FILL_FREE.format(event=event.id.hex(), org=event.org.hex(), client=client.hex(), count=5_000, new=new)
        await lane.execute(fill)
        (row,) = await reader.fetch(*elsewhere)
        assert row["units"] == new
        scans = [node for node in await explain() if node.get("Index Name") == "booking_free_of_client"]
        assert [node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans] == [new, new]
        assert all(_cost(node).pages <= new + 4 for node in scans), "it must not read the whole index of the address"


def test_the_worker_completes_the_audit_of_an_event_of_100000_bookings(full_database: FullDatabase) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker"], env={**os.environ, "HOLDFAST_DATABASE_URL": full_database.url}
    )
    try:
        audited = """SELECT ARRAY(SELECT DISTINCT finding ->> 'what' FROM json_array_elements(findings) AS finding)
        FROM audit WHERE event_id = $1 AND version > 0"""
        wait_until(lambda: bool(query(full_database.url, audited, full_database.large.id)), 120)
        # The stock adds up. The bookings were made without the engine, and the auditor notices.
        found = set(query(full_database.url, audited, full_database.large.id)[0][0])
        assert found - {"chain_head"} == {"booking_version", "payment_status", "entry_changed"}
    finally:
        worker.terminate()
        assert worker.wait(60) == 0


@pytest.mark.parametrize("were_analysed", [False, True])
@async_test
async def test_an_audit_reads_each_pool_each_seat_and_each_entry_a_few_times(
    database: str, were_analysed: bool
) -> None:
    """However many pools or seats an entry of the journal is about, whatever the statistics say."""
    rows, numbers, booked = 1_000, 20, 100
    halls = [{"code": f"hall-{n}", "seats": {"rows": [f"R{n}"], "numbers": numbers}} for n in range(rows)]
    blocked = [f"R{n}-{number}" for n in range(rows // 10) for number in range(5, numbers)]
    async with lane_connection(database) as lane, connection_to(database) as auditing:
        await _keep_from_analysing(lane)
        everything, org = db.Database(lane), await new_org(lane)
        event = await create_event(everything, org, convert(example_event(pools=halls), EventNew), "test")
        await change_event(everything, org, event, EventChange(block_seats=blocked), "test")
        await set_status(everything, org, event, EventStatus.ACTIVE, "test")
        last = await lane.fetchrow("SELECT kind, data FROM journal WHERE event_id = $1 ORDER BY number DESC", event)
        assert last is not None
        assert (last["kind"], len(json.decode(last["data"])["pools"])) == ("event_published", rows)
        planner, handle = Planner(auditing), EventHandle(event, org)
        plans = {"before anybody booked": await planner.explain_audit(event)}
        if were_analysed:
            # These statistics say that there are no lines.
            await lane.execute("ANALYZE")
        holds = [new_hold_command(handle, *[f"R{n}-{number}" for number in (1, 2)]) for n in range(booked)]
        assert all(isinstance(outcome, Accepted) for outcome in await run_commands(lane, holds))
        plans["after some booked"] = await planner.explain_audit(event)
    for when, statements in plans.items():
        for name, plan in statements.items():
            with case(name, when):
                assert max(_rows_read(plan)) <= 2 * rows * numbers
                assert _cost(plan).pages <= 4 * rows


@async_test
async def test_a_seat_map_costs_as_much_as_its_seats_before_anything_was_analysed(database: str) -> None:
    """A hall that has just gone on sale has no statistics. PostgreSQL must not compare every seat with every line."""
    hall = [{"code": "hall", "seats": {"rows": list("ABCDEFGHIJ"), "numbers": 100}}]
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=hall)
        labels = [f"{row}-{number}" for row in "ABCDE" for number in range(1, 101)]
        commands = [new_hold_command(event, *labels[at : at + 10]) for at in range(0, len(labels), 10)]
        await run_commands(connection, commands)
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.reads.seats}"
        plan = json.decode(await connection.fetchval(explain, event.id))[0]["Plan"]
        assert max(_rows_read(plan)) <= 2 * 1_000


def _rows_read(plan: dict[str, Any]) -> Iterator[float]:
    """How many rows each node of the plan read."""
    removed = plan.get("Rows Removed by Join Filter", 0) + plan.get("Rows Removed by Filter", 0)
    yield (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    for part in plan.get("Plans", []):
        yield from _rows_read(part)
