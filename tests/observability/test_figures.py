"""The figures that a worker reads from the database say what waits, and for how long."""

import json
from typing import Any

import pytest

from holdfast import sql
from holdfast.core.notification_rules import EMAIL, PUSH, RECOVERY, SMS, WEBHOOK
from holdfast.engine import auditor
from holdfast.runtime import db, ids, metrics
from holdfast.runtime.instruments import Gauge
from holdfast.worker import figures
from holdfast.worker.figures import Figures
from tests.support.engine_harness import async_test, hold_many, lane_connection, new_event, new_org, one_pool

DELIVERIES = """
    INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, created_at, due_at, attempts)
    SELECT gen_random_uuid(), n, $1, $2, gen_random_uuid(), gen_random_uuid(), 'held', '{}',
           holdfast_now() - interval '1 day', holdfast_now() - make_interval(secs => $4), $5
    FROM generate_series(1, $3) AS n"""
# An event that began, and perhaps ended, so many hours ago.
MOVE = """
    UPDATE event SET starts_at = holdfast_now() - make_interval(hours => $2),
                     ends_at = holdfast_now() - make_interval(hours => $3) WHERE id = $1"""
TELEGRAM_MESSAGE = """
    INSERT INTO telegram_message (org_id, key, chat_id, kind, body, created_at, due_at, message_id)
    VALUES ($1, $2, 1, 'text', '{}', holdfast_now() - make_interval(secs => $3),
            holdfast_now() + make_interval(secs => $4), $5)"""
RECOVERY_REQUEST = """
    INSERT INTO recovery_request (id, org_id, email, language, created_at, due_at, attempts)
    VALUES (gen_random_uuid(), $1, 'ada@example.org', 'en', holdfast_now() - make_interval(secs => $2),
            holdfast_now(), $3)"""
PATIENCE_SECONDS = 60
CHANNELS = (EMAIL, SMS, PUSH, WEBHOOK)


def value(gauge: Gauge, *labels: str) -> float:
    return gauge.read()[labels]


async def read(connection: db.Connection) -> None:
    await Figures(db.Database(connection), CHANNELS).run_once()


async def age_journal(connection: db.Connection, event: bytes, number: int, seconds: int) -> None:
    """Let the entries from this number on be so many seconds old."""
    await connection.execute(
        "UPDATE journal SET at = holdfast_now() - make_interval(secs => $3) WHERE event_id = $1 AND number >= $2",
        event,
        number,
        seconds,
    )


@async_test
async def test_a_change_waits_for_its_audit_from_the_moment_it_is_made(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(5))
        await auditor.run_once(db.Database(connection))
        await connection.execute("UPDATE audit SET at = at - interval '1 hour'")
        await read(connection)
        assert value(metrics.AUDIT_OLDEST) == 0
        await hold_many(connection, event, 2)
        await read(connection)
        assert 0 < value(metrics.AUDIT_OLDEST) < PATIENCE_SECONDS
        audited = await connection.fetchval("SELECT version FROM audit")
        await age_journal(connection, event.id, audited + 1, 500)
        await age_journal(connection, event.id, audited + 2, 100)
        await read(connection)
        assert 500 <= value(metrics.AUDIT_OLDEST) < 500 + PATIENCE_SECONDS


@async_test
async def test_an_event_without_any_audit_waits_since_its_first_change(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(5))
        await age_journal(connection, event.id, 1, 700)
        await read(connection)
        assert 700 <= value(metrics.AUDIT_OLDEST) < 700 + PATIENCE_SECONDS


@pytest.mark.parametrize("has_been_audited", [False, True])
@async_test
async def test_an_audit_that_keeps_failing_is_late(
    database: str, monkeypatch: pytest.MonkeyPatch, has_been_audited: bool
) -> None:
    async def fail(*_: object, **__: object) -> auditor.Audit:
        raise TimeoutError

    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(5))
        if has_been_audited:
            await auditor.run_once(db.Database(connection))
            await hold_many(connection, event, 1)
        await age_journal(connection, event.id, 1, 4_000)
        monkeypatch.setattr(auditor, "audit_event", fail)
        for _ in range(2):
            await auditor.run_once(db.Database(connection))
        await read(connection)
        assert value(metrics.AUDIT_OLDEST) >= 4_000


@async_test
async def test_findings_of_the_auditor_are_counted(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(5))
        await new_event(connection, event.org, pools=one_pool(5))
        await connection.execute("UPDATE pool SET sold = 1 WHERE event_id = $1", event.id)
        await auditor.run_once(db.Database(connection))
        await read(connection)
        assert value(metrics.AUDIT_FINDINGS) == 1


@async_test
async def test_a_backlog_of_one_channel_does_not_hide_the_others(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "COUNTED_MAX", 50)
    async with lane_connection(database) as connection:
        for org in ("a", "b"):
            await connection.execute(DELIVERIES, f"kafka:{org}", "kafka", 40, 10.0, 0)
        await connection.execute(DELIVERIES, "email:a", "email", 3, 20.0, 0)
        await connection.execute(DELIVERIES, ids.new_id().hex(), "webhook", 2, 30.0, 0)
        await read(connection)
        waiting = {channel: value(metrics.DELIVERIES_WAITING, channel) for channel in ("kafka", "email", "webhook")}
        assert waiting == {"kafka": 50, "email": 3, "webhook": 2}
        for channel, seconds in (("kafka", 10), ("email", 20), ("webhook", 30)):
            assert seconds <= value(metrics.DELIVERIES_OLDEST, channel) < seconds + PATIENCE_SECONDS, channel


@async_test
async def test_emails_wait_even_if_no_worker_has_a_mail_server(database: str) -> None:
    """So that the alert about late notifications fires if somebody has forgotten to set it."""
    async with lane_connection(database) as connection:
        for channel in (EMAIL, SMS):
            await connection.execute(DELIVERIES, f"{channel}:a", channel, 1, 20_000.0, 0)
        metrics.DELIVERIES_WAITING.set(0, SMS)
        await Figures(db.Database(connection), [WEBHOOK]).run_once()
        assert {channel: value(metrics.DELIVERIES_WAITING, channel) for channel in (EMAIL, SMS)} == {EMAIL: 1, SMS: 0}
        assert value(metrics.DELIVERIES_OLDEST, EMAIL) >= 20_000


@async_test
async def test_a_retry_is_not_late_and_neither_is_what_is_not_due(database: str) -> None:
    async with lane_connection(database) as connection:
        dead = ids.new_id().hex()
        await connection.execute(DELIVERIES, dead, "webhook", 3, 100_000.0, 4)
        await connection.execute(DELIVERIES, dead, "webhook", 3, -5_000.0, 0)
        await read(connection)
        assert value(metrics.DELIVERIES_WAITING, "webhook") == 6
        assert value(metrics.DELIVERIES_OLDEST, "webhook") == 0
        await connection.execute(DELIVERIES, dead, "webhook", 1, 50.0, 0)
        await read(connection)
        assert 50 <= value(metrics.DELIVERIES_OLDEST, "webhook") < 50 + PATIENCE_SECONDS


@async_test
async def test_messages_that_telegram_has_do_not_age(database: str) -> None:
    """Of five messages, one waits to be sent, one for a retry, one for an edit and one for nothing."""
    async with lane_connection(database) as connection:
        org = await new_org(connection)
        await read(connection)
        assert (value(metrics.TELEGRAM_MESSAGES_WAITING), value(metrics.TELEGRAM_MESSAGES_OLDEST)) == (0, 0)
        for key, age, due_in, message in (
            ("new", 100, -100, None),
            ("retry", 700, 50, None),
            ("edit", 9_000, -10, 7),
            ("sent", 9_000, None, 8),
            ("refused", 9_000, None, None),
        ):
            await connection.execute(TELEGRAM_MESSAGE, org, key, age, due_in, message)
        await read(connection)
        assert value(metrics.TELEGRAM_MESSAGES_WAITING) == 2
        assert 700 <= value(metrics.TELEGRAM_MESSAGES_OLDEST) < 700 + PATIENCE_SECONDS


@async_test
async def test_requests_to_recover_bookings_wait_like_emails(database: str) -> None:
    async with lane_connection(database) as connection:
        org = await new_org(connection)
        for age, attempts in ((5_000, 2), (200, 0), (100, 0)):
            await connection.execute(RECOVERY_REQUEST, org, age, attempts)
        await read(connection)
        assert value(metrics.DELIVERIES_WAITING, RECOVERY) == 3
        assert 200 <= value(metrics.DELIVERIES_OLDEST, RECOVERY) < 200 + PATIENCE_SECONDS
        await connection.execute("DELETE FROM recovery_request")
        await read(connection)
        assert (value(metrics.DELIVERIES_WAITING, RECOVERY), value(metrics.DELIVERIES_OLDEST, RECOVERY)) == (0, 0)


@async_test
async def test_an_event_without_an_end_is_overdue_for_a_week(database: str) -> None:
    async with lane_connection(database) as connection:
        org = await new_org(connection)
        ages: list[tuple[int, int | None]] = [
            (20, None), (30, None), (8 * 24 + 1, None), (1_000, 20), (1_000, 30), (2_000, 1_000),
        ]  # fmt: skip
        for started, ended in ages:
            event = await new_event(connection, org, pools=one_pool(5))
            await connection.execute(MOVE, event.id, started, ended)
        await read(connection)
        assert value(metrics.EVENTS_OVERDUE) == 3


@async_test
async def test_the_figures_scan_no_table(database: str) -> None:
    """In a database that was never analysed."""

    def scans(plan: Any) -> list[str]:
        found = [plan["Relation Name"]] if plan["Node Type"] == "Seq Scan" else []
        return found + [name for child in plan.get("Plans", []) for name in scans(child)]

    async with lane_connection(database) as connection:
        await new_event(connection)
        deliveries = sql.figures.deliveries(counted_max=10, targets_max=10, due_max=10)
        without_values = (
            sql.figures.events_overdue, sql.figures.audit_oldest, sql.figures.notices, sql.figures.telegram_messages,
        )  # fmt: skip
        for statement, *values in (deliveries, *((each,) for each in without_values)):
            plan = await connection.fetchval(f"EXPLAIN (FORMAT json) {statement}", *values)
            assert scans(json.loads(plan)[0]["Plan"]) == []
