"""A healthy installation passes, and `holdfast doctor` names each trouble with its remedy."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from nats.aio.client import Client
from rich.console import Console

from holdfast.api import app as api_app
from holdfast.bot import runner as bot_runner
from holdfast.doctor.check import CheckResult, Level
from holdfast.doctor.connections_check import OF_API_PROCESS, OF_BOT, OF_WORKER
from holdfast.doctor.database_check import Server, find_weaknesses
from holdfast.doctor.machine_check import GIB, judge_open_files, judge_space
from holdfast.doctor.printout import print_diagnosis
from holdfast.doctor.redis_check import RIGHTS, RedisInfo, judge_info
from holdfast.doctor.secret_filter import SecretFilter
from holdfast.doctor.unusable_settings import check_public_url
from holdfast.engine import auditor
from holdfast.runtime import db
from holdfast.worker import runner as worker_runner
from tests.support.command_line import call_holdfast
from tests.support.doctor_harness import (
    PASSWORD,
    ROLE,
    Environment,
    as_role,
    examine,
    examine_for,
    find_trouble,
    server_setting,
)
from tests.support.engine_harness import new_event, new_hold_command, new_org, one_pool, run_commands, shift_clock
from tests.support.harness import connection_to, fresh_database, query, run_with_connection, with_database
from tests.support.kafka_cluster import running_kafka
from tests.support.nats_process import running_nats
from tests.support.old_schema import database_at_step
from tests.support.redis_process import RedisServer, running_cluster, running_redis
from tests.support.stripe_balance_server import RESTRICTED_KEY

NOBODY = "127.0.0.1:1"


def test_a_healthy_installation_has_no_problem_and_no_warning(healthy: Environment, tmp_path: Path) -> None:
    diagnosis = examine(healthy)
    assert [result for result in diagnosis.results if result.level is not Level.OK] == []
    assert diagnosis.ok
    subjects = {result.subject for result in diagnosis.results}
    assert subjects >= {"settings", "production", "database", "schema", "rights", "connections", "clock", "redis"}
    assert subjects >= {"mail", "sms", "payments", "stripe", "telegram", "receipts", "machine", "worker", "auditor"}
    assert list(tmp_path.iterdir()) == [], "it left something behind"


def test_the_checks_leave_nothing_behind_in_redis(healthy: Environment, redis: RedisServer) -> None:
    redis.run("FLUSHALL")
    examine(healthy)
    assert redis.run("KEYS", "*") == []


@pytest.mark.parametrize(
    ("changes", "subject", "level", "text", "remedy"),
    [
        ({"HOLDFAST_LANES": "many"}, "settings", "problem", "HOLDFAST_LANES", "Correct"),
        ({"HOLDFAST_LANES": "0"}, "settings", "problem", "HOLDFAST_LANES", "Correct"),
        ({"HOLDFAST_SMPT_URL": "x"}, "settings", "problem", "HOLDFAST_SMPT_URL", "HOLDFAST_SMTP_URL"),
        ({"HOLDFAST_FLAVOUR": "x"}, "settings", "warning", "HOLDFAST_FLAVOUR", "Remove it"),
        ({"HOLDFAST_PUBLIC_URL": "tickets.example"}, "settings", "problem", "HOLDFAST_PUBLIC_URL", "Correct"),
        ({"HOLDFAST_PUBLIC_URL": "https://t.example/shop"}, "settings", "problem", "without a path", "Correct"),
        ({"HOLDFAST_PUBLIC_URL": "https://t.example:99999"}, "settings", "problem", "The port", "Correct"),
        ({"HOLDFAST_TELEGRAM_API": "api"}, "settings", "problem", "HOLDFAST_TELEGRAM_API", "https://"),
        ({"HOLDFAST_TELEGRAM_WEBHOOK_URL": "http://x.example"}, "settings", "problem", "https", "proxy"),
        ({"HOLDFAST_DEMO": "true"}, "production", "problem", "Demo mode", "HOLDFAST_DEMO"),
        ({"HOLDFAST_SANDBOX_WEBHOOK_SECRET": "whsec_c2VjcmV0"}, "production", "problem", "sandbox", "Remove"),
        ({"HOLDFAST_ALLOW_UNSAFE_DATABASE": "true"}, "production", "problem", "UNSAFE_DATABASE", "Remove"),
        ({"HOLDFAST_PUBLIC_URL": "http://127.0.0.1"}, "production", "warning", "only this machine", "PUBLIC_URL"),
        ({"HOLDFAST_PUBLIC_URL": "http://shop.example"}, "production", "warning", "not encrypted", "certificate"),
        ({"HOLDFAST_PROXIES": "0"}, "production", "warning", "HOLDFAST_PROXIES", "number of your proxies"),
        ({"HOLDFAST_WEBHOOKS_TO_PRIVATE_ADDRESSES": "true"}, "production", "warning", "private", "Remove"),
        ({"HOLDFAST_METRICS_TOKEN": ""}, "production", "warning", "/metrics", "HOLDFAST_METRICS_TOKEN"),
        ({"HOLDFAST_KAFKA_URL": "kafka://h?acks=1"}, "settings", "problem", "HOLDFAST_KAFKA_URL", "Correct"),
        ({"HOLDFAST_NATS_URL": "http://h"}, "settings", "problem", "HOLDFAST_NATS_URL", "Correct"),
        ({"HOLDFAST_BUS_PREFIX": "a b"}, "settings", "problem", "HOLDFAST_BUS_PREFIX", "Correct"),
        ({"HOLDFAST_KAFKA_URL": f"kafka://{NOBODY}"}, "bus", "problem", "does not answer", "HOLDFAST_KAFKA_URL"),
        ({"HOLDFAST_NATS_URL": f"nats://{NOBODY}"}, "bus", "problem", "does not answer", "HOLDFAST_NATS_URL"),
        (
            {"HOLDFAST_WEB_PUSH": "true", "HOLDFAST_EMAIL_FROM": "tickets@localhost"},
            "push",
            "warning",
            "contact",
            "HOLDFAST_EMAIL_FROM",
        ),
        ({"HOLDFAST_LIVE_SOCKETS": "2000000000"}, "machine", "warning", "files", "LimitNOFILE"),
        ({"HOLDFAST_LANES": "100"}, "connections", "problem", "connections", "max_connections"),
        ({"HOLDFAST_EMAIL_FROM": ""}, "mail", "warning", "tickets@localhost", "HOLDFAST_EMAIL_FROM"),
        ({"HOLDFAST_SMTP_URL": f"smtp://{NOBODY}"}, "mail", "problem", "unreachable", "HOLDFAST_SMTP_URL"),
        ({"HOLDFAST_SMTP_URL": "http://mail.example"}, "mail", "problem", "smtp://", "HOLDFAST_SMTP_URL"),
        (
            {"HOLDFAST_SMS_URL": "twilio+http://AC0:wrong@127.0.0.1:1?from=+15005550006"},
            "sms",
            "problem",
            "unreachable",
            "HOLDFAST_SMS_URL",
        ),
        ({"HOLDFAST_SMS_URL": "twilio://nowhere"}, "sms", "problem", "not usable", "Correct it"),
        ({"HOLDFAST_STRIPE_KEY": "sk_live_old"}, "stripe", "problem", "refuses the key", "dashboard"),
        ({"HOLDFAST_STRIPE_KEY": RESTRICTED_KEY}, "stripe", "warning", "does not let it", "restricted"),
        ({"HOLDFAST_STRIPE_WEBHOOK_SECRET": ""}, "stripe", "problem", "WEBHOOK_SECRET", "signing secret"),
        ({"HOLDFAST_STRIPE_KEY": ""}, "stripe", "warning", "nobody can pay", "HOLDFAST_STRIPE_KEY"),
        ({"HOLDFAST_TELEGRAM_TOKEN": "1:old-token"}, "telegram", "problem", "refuses", "@BotFather"),
        ({"HOLDFAST_TELEGRAM_API": f"http://{NOBODY}"}, "telegram", "problem", "cannot be reached", "TELEGRAM_API"),
        ({"HOLDFAST_REDIS_URL": f"redis://{NOBODY}"}, "redis", "problem", "cannot be reached", "HOLDFAST_REDIS_URL"),
        ({"HOLDFAST_REDIS_URL": "http://redis"}, "redis", "problem", "malformed", "redis://"),
        ({"HOLDFAST_RECEIPTS_URL": "ftp://x"}, "receipts", "problem", "address", "HOLDFAST_RECEIPTS_URL"),
        ({"HOLDFAST_DATABASE_URL": "mysql://u:secret@h/d"}, "database", "problem", "malformed", "postgresql://"),
        ({"HOLDFAST_DATABASE_URL": f"postgresql://u@{NOBODY}/d"}, "database", "problem", "reached", "server runs"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_a_wrong_setting_is_named_with_its_remedy(
    healthy: Environment, changes: Environment, subject: str, level: str, text: str, remedy: str
) -> None:
    trouble = find_trouble(examine_for(subject, {**healthy, **changes}))
    assert trouble.level == level
    assert text in trouble.text
    assert remedy in (trouble.remedy or "")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("tickets.example", "must start with https:// or http://"),
        ("https://[::1", "must start with https:// or http://"),
        ("https://t.example:99999", "The port must be a number from 1 to 65535"),
        ("https://t.example:0", "The port must be a number from 1 to 65535"),
        ("https://t.example:x/", "The port must be a number from 1 to 65535"),
        ("https://tickets example.com", "must not contain spaces"),
        (" https://t.example", "must not contain spaces"),
        ("https://t.example\n", "must not contain spaces, line breaks"),
        ("https://t.example\\shop", "backslashes"),
        ("https://t.example?", "without a path, @, ? or #"),
        ("https://t.example/#", "without a path, @, ? or #"),
        ("https://t.example/?a=b", "without a path, @, ? or #"),
        ("https://me@t.example", "without a path, @, ? or #"),
    ],
)
def test_an_unusable_public_url_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_public_url(url)


@pytest.mark.parametrize("url", ["https://t.example", "http://t.example/", "https://t.example:8443", "http://[::1]:80"])
def test_a_usable_public_url_is_accepted(url: str) -> None:
    check_public_url(url)


@pytest.mark.parametrize("proxies", ["0", "1"])
@pytest.mark.parametrize("url", ["tickets.example", "https://t.example/shop", "https://tickets example.com"])
def test_an_unusable_public_url_is_not_fit_for_production(healthy: Environment, url: str, proxies: str) -> None:
    assert examine_for("production", {**healthy, "HOLDFAST_PUBLIC_URL": url, "HOLDFAST_PROXIES": proxies}) == []


def test_a_public_url_may_end_in_a_slash(healthy: Environment) -> None:
    results = examine_for("settings", {**healthy, "HOLDFAST_PUBLIC_URL": "https://t.example:8443/"})
    assert [result.level for result in results] == [Level.OK]


def test_test_settings_are_only_a_warning_before_strangers_can_reach_them(healthy: Environment) -> None:
    local = {**healthy, "HOLDFAST_PUBLIC_URL": "http://127.0.0.1:8000", "HOLDFAST_DEMO": "true"}
    results = examine_for("production", local)
    assert [result.level for result in results] == [Level.WARNING, Level.WARNING]
    embedded = {**local, "HOLDFAST_DATABASE_URL": ""}
    assert [result.level for result in examine_for("production", embedded)] == [Level.OK]


def test_a_database_that_is_down_is_reported_once_and_the_rest_is_skipped(healthy: Environment) -> None:
    diagnosis = examine({**healthy, "HOLDFAST_DATABASE_URL": f"postgresql://u:{PASSWORD}@{NOBODY}/d"})
    assert not diagnosis.ok
    assert [result.subject for result in diagnosis.results if result.level is Level.PROBLEM] == ["database"]
    skipped = {result.subject for result in diagnosis.results if result.level is Level.SKIPPED}
    assert skipped == {"schema", "rights", "connections", "clock", "payments", "worker", "auditor"}


def test_a_wrong_password_of_the_database_is_named_and_not_printed(
    healthy: Environment, patient_database: str, safe_postgres: str
) -> None:
    name = query(patient_database, "SELECT current_database()")[0][0]
    wrong = {**healthy, "HOLDFAST_DATABASE_URL": as_role(safe_postgres, name, "hunter2-hunter2")}
    trouble = find_trouble(examine_for("database", wrong))
    assert "password" in trouble.text
    assert "hunter2" not in str(examine(wrong))


def test_an_owner_of_another_database_is_named(healthy: Environment, own_database: str) -> None:
    results = examine_for("database", {**healthy, "HOLDFAST_MIGRATION_DATABASE_URL": own_database})
    trouble = find_trouble(results)
    assert trouble.level is Level.PROBLEM
    assert "name different databases" in trouble.text
    own = {**healthy, "HOLDFAST_DATABASE_URL": own_database, "HOLDFAST_MIGRATION_DATABASE_URL": own_database}
    assert "name the same database" in examine_for("database", own)[-1].text
    unreachable = {**healthy, "HOLDFAST_MIGRATION_DATABASE_URL": f"postgresql://u@{NOBODY}/d"}
    assert "HOLDFAST_MIGRATION_DATABASE_URL" in (find_trouble(examine_for("database", unreachable)).remedy or "")


def test_an_owner_without_an_application_is_named(healthy: Environment) -> None:
    alone = {**healthy, "HOLDFAST_DATABASE_URL": "", "HOLDFAST_MIGRATION_DATABASE_URL": f"postgresql://u@{NOBODY}/d"}
    troubles = [result for result in examine_for("database", alone) if result.level is Level.PROBLEM]
    assert ["HOLDFAST_DATABASE_URL is not" in trouble.text for trouble in troubles] == [True]


@pytest.mark.parametrize("password", ["Zk3/9xQ", "123/9xQ", "Zk3?9xQ", "Zk3#9xQ"])
def test_a_password_that_is_not_encoded_is_named(healthy: Environment, password: str) -> None:
    url = f"postgresql://holdfast:{password}@127.0.0.1/x"
    trouble = find_trouble(examine_for("database", {**healthy, "HOLDFAST_DATABASE_URL": url}))
    assert "HOLDFAST_DATABASE_URL is malformed. " in trouble.text
    assert "%2F" in trouble.text


def test_an_unknown_database_is_named(healthy: Environment, safe_postgres: str) -> None:
    trouble = find_trouble(
        examine_for("database", {**healthy, "HOLDFAST_DATABASE_URL": as_role(safe_postgres, "nowhere")})
    )
    assert "no database of this name" in trouble.text
    assert "createdb" in (trouble.remedy or "")


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_may_lose_bookings_is_named(healthy: Environment, safe_postgres: str, setting: str) -> None:
    with server_setting(safe_postgres, setting, "off"):
        trouble = find_trouble(examine_for("database", healthy))
    assert trouble.level is Level.PROBLEM
    assert f"{setting} is off" in trouble.text
    assert f"{setting} = on" in (trouble.remedy or "")


def test_an_old_schema_and_a_newer_one_are_named(healthy: Environment, safe_postgres: str) -> None:
    with database_at_step(safe_postgres, 3) as url:
        old = examine({**healthy, "HOLDFAST_DATABASE_URL": url})
    trouble = find_trouble([result for result in old.results if result.subject == "schema"])
    assert "version 3" in trouble.text
    assert "holdfast migrate" in (trouble.remedy or "")
    skipped = {result.subject for result in old.results if result.level is Level.SKIPPED}
    assert skipped == {"clock", "payments", "worker", "auditor"}
    with fresh_database(safe_postgres) as url:
        query(url, "INSERT INTO schema_version VALUES (9999)")
        trouble = find_trouble(examine_for("schema", {**healthy, "HOLDFAST_DATABASE_URL": url}))
    assert trouble.level is Level.PROBLEM
    assert "newer" in (trouble.remedy or "")


def test_an_empty_database_is_only_a_warning(healthy: Environment, safe_postgres: str) -> None:
    query(safe_postgres, "CREATE DATABASE empty_patient")
    try:
        url = as_role(safe_postgres, "empty_patient").replace(f"{ROLE}:{PASSWORD}@", "postgres:@")
        trouble = find_trouble(examine_for("schema", {**healthy, "HOLDFAST_DATABASE_URL": url}))
    finally:
        query(safe_postgres, "DROP DATABASE empty_patient WITH (FORCE)")
    assert trouble.level is Level.WARNING
    assert "holdfast migrate" in (trouble.remedy or "")


def test_an_empty_database_of_a_role_that_may_not_create_tables_is_a_problem(
    healthy: Environment, safe_postgres: str
) -> None:
    query(safe_postgres, "CREATE DATABASE empty_patient")
    try:
        owner = with_database(safe_postgres, "empty_patient")
        limited = {**healthy, "HOLDFAST_DATABASE_URL": as_role(safe_postgres, "empty_patient")}
        trouble = find_trouble(examine_for("schema", limited))
        rights = examine_for("rights", limited)
        with_owner = find_trouble(examine_for("schema", {**limited, "HOLDFAST_MIGRATION_DATABASE_URL": owner}))
    finally:
        query(safe_postgres, "DROP DATABASE empty_patient WITH (FORCE)")
    assert trouble.level is Level.PROBLEM
    assert "may not create tables" in trouble.text
    assert "with HOLDFAST_MIGRATION_DATABASE_URL" in (trouble.remedy or "")
    assert [result.level for result in rights] == [Level.SKIPPED]
    assert with_owner.level is Level.WARNING


def test_an_encoding_that_cannot_store_names_is_a_problem(healthy: Environment, safe_postgres: str) -> None:
    query(safe_postgres, "CREATE DATABASE ascii_patient TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    try:
        url = as_role(safe_postgres, "ascii_patient").replace(f"{ROLE}:{PASSWORD}@", "postgres:@")
        trouble = find_trouble(examine_for("database", {**healthy, "HOLDFAST_DATABASE_URL": url}))
    finally:
        query(safe_postgres, "DROP DATABASE ascii_patient WITH (FORCE)")
    assert "SQL_ASCII" in trouble.text


@pytest.fixture
def own_database(safe_postgres: str) -> Iterator[str]:
    with fresh_database(safe_postgres) as url:
        yield url


def test_a_role_without_rights_is_named(healthy: Environment, own_database: str, safe_postgres: str) -> None:
    name = query(own_database, "SELECT current_database()")[0][0]
    limited = {**healthy, "HOLDFAST_DATABASE_URL": as_role(safe_postgres, name)}
    asyncio.run(db.migrate(own_database, application_url=limited["HOLDFAST_DATABASE_URL"]))
    query(own_database, f"REVOKE INSERT ON journal FROM {ROLE}")
    trouble = find_trouble(examine_for("rights", limited))
    assert "lacks INSERT on journal." in trouble.text
    query(own_database, f"GRANT INSERT, DELETE ON journal TO {ROLE}")
    trouble = find_trouble(examine_for("rights", limited))
    assert f"The role {ROLE} may DELETE journal." in trouble.text
    assert f"REVOKE DELETE ON journal FROM {ROLE}" in (trouble.remedy or "")
    query(own_database, f"REASSIGN OWNED BY {ROLE} TO postgres")
    query(own_database, f"DROP OWNED BY {ROLE}")


def test_a_role_that_has_no_rights_yet_is_named_and_the_rest_is_skipped(
    healthy: Environment, own_database: str, safe_postgres: str
) -> None:
    """The owner has migrated without HOLDFAST_MIGRATION_DATABASE_URL, so nobody has granted anything."""
    name = query(own_database, "SELECT current_database()")[0][0]
    diagnosis = examine({**healthy, "HOLDFAST_DATABASE_URL": as_role(safe_postgres, name)})
    (trouble,) = [result for result in diagnosis.results if result.level is Level.PROBLEM]
    assert trouble.subject == "rights"
    assert "The role lacks INSERT on api_key, " in trouble.text
    assert "with HOLDFAST_MIGRATION_DATABASE_URL" in (trouble.remedy or "")
    skipped = {result.subject: result.text for result in diagnosis.results if result.level is Level.SKIPPED}
    assert set(skipped) == {"schema", "clock", "payments", "worker", "auditor"}
    assert "may not read which version the schema has" in skipped["schema"]


def test_one_role_for_everything_is_named(healthy: Environment, own_database: str) -> None:
    trouble = find_trouble(examine_for("rights", {**healthy, "HOLDFAST_DATABASE_URL": own_database}))
    assert "could change or delete entries" in trouble.text
    assert "docs/audit.md" in (trouble.remedy or "")


def test_a_read_only_server_is_named(healthy: Environment, own_database: str) -> None:
    name = query(own_database, "SELECT current_database()")[0][0]
    query(own_database, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    trouble = find_trouble(examine_for("database", {**healthy, "HOLDFAST_DATABASE_URL": own_database}))
    assert "read-only" in trouble.text


def test_a_limit_of_the_database_counts(healthy: Environment, own_database: str) -> None:
    name = query(own_database, "SELECT current_database()")[0][0]
    query(own_database, f"ALTER DATABASE {name} CONNECTION LIMIT 77")
    needed = 2 * (4 + OF_API_PROCESS) + OF_WORKER
    trouble = find_trouble(examine_for("connections", {**healthy, "HOLDFAST_DATABASE_URL": own_database}))
    assert f"allows 77 connections, but 2 API processes with 4 lanes, 1 workers and 0 bots may open {needed}" in (
        trouble.text
    )


def test_the_numbers_of_connections_are_those_of_the_processes() -> None:
    pools = api_app.READ_CONNECTIONS + api_app.REPORT_CONNECTIONS
    assert pools < OF_API_PROCESS
    assert worker_runner.CONNECTIONS + worker_runner.LANES < OF_WORKER
    assert bot_runner.CONNECTIONS + bot_runner.LANES < OF_BOT
    text = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    assert f"`HOLDFAST_LANES` + {OF_API_PROCESS - 8} connections to PostgreSQL, and up to 8 more" in text
    assert f"Each worker opens up to {OF_WORKER - 4}, or {OF_WORKER} with an [event bus]" in text
    assert f"and each bot process up to {OF_BOT}." in text


@pytest.mark.parametrize(
    ("seconds", "level"), [(10, Level.WARNING), (-10, Level.WARNING), (3600, Level.PROBLEM), (-3600, Level.PROBLEM)]
)
def test_clocks_that_differ_are_named(healthy: Environment, own_database: str, seconds: int, level: Level) -> None:
    run_with_connection(lambda connection: shift_clock(connection, seconds), own_database)
    trouble = find_trouble(examine_for("clock", {**healthy, "HOLDFAST_DATABASE_URL": own_database}))
    assert trouble.level is level
    assert ("ahead of" if seconds > 0 else "behind") in trouble.text
    assert "NTP" in (trouble.remedy or "")


def test_the_work_that_waits_shows_that_no_worker_runs(healthy: Environment, own_database: str) -> None:
    async def leave_work(connection: db.Connection) -> None:
        event = await new_event(connection, await new_org(connection), pools=one_pool(10))
        await run_commands(connection, [new_hold_command(event)])
        await connection.execute("UPDATE booking SET expires_at = holdfast_now() - interval '5 minutes'")
        for channel in ("email", "webhook"):
            await connection.execute(
                "INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, created_at, "
                "due_at) VALUES ($1, 1, $2, $2, $1, $1, 'held', '{}', now(), holdfast_now() - interval '10 minutes')",
                event.id,
                channel,
            )

    environment = {**healthy, "HOLDFAST_DATABASE_URL": own_database}

    async def run() -> None:
        async with connection_to(own_database, db.connect_lane) as connection:
            await leave_work(connection)

    asyncio.run(run())
    found = examine_for("worker", environment)
    assert [result.level for result in found] == [Level.PROBLEM] * 3
    assert "overdue by 5 minutes, in 1 events" in found[0].text
    assert "by email" in found[1].text
    assert "by webhook" in found[2].text
    assert all("holdfast worker" in (result.remedy or "") for result in found)
    emails = examine_for("worker", {**environment, "HOLDFAST_SMTP_URL": ""})[1]
    assert emails.level is Level.WARNING
    assert "HOLDFAST_SMTP_URL" in (emails.remedy or "")


UNPAYABLE: dict[str, Any] = {"policy": {"review": "none"}, "pools": one_pool(10)}


@pytest.mark.parametrize(
    ("changes", "is_unpayable"),
    [
        (UNPAYABLE, True),
        ({**UNPAYABLE, "policy": {"review": "manual"}}, False),
        ({**UNPAYABLE, "payment_instructions": "By transfer."}, False),
        ({**UNPAYABLE, "providers": []}, False),
        ({**UNPAYABLE, "pools": one_pool(10, price=0)}, False),
    ],
    ids=["nothing says how to pay", "by receipt", "as instructed", "not online", "free"],
)
def test_an_event_that_nobody_can_pay_for_is_named(
    healthy: Environment, own_database: str, changes: dict[str, Any], is_unpayable: bool
) -> None:
    run_with_connection(lambda connection: new_event(connection, title="Hamlet", **changes), own_database)
    without_provider = {**healthy, "HOLDFAST_DATABASE_URL": own_database, "HOLDFAST_STRIPE_KEY": ""}
    if is_unpayable:
        trouble = find_trouble(examine_for("payments", without_provider))
        assert trouble.level is Level.WARNING
        assert "cannot pay in Holdfast for Hamlet (ev_" in trouble.text
        assert "HOLDFAST_STRIPE_KEY" in (trouble.remedy or "")
        assert "If your own back end confirms the bookings, set `providers` of" in (trouble.remedy or "")
    else:
        (result,) = examine_for("payments", without_provider)
        assert result.text == "No payment provider is set up, and no published event needs one."
    with_sandbox = {**without_provider, "HOLDFAST_SANDBOX_WEBHOOK_SECRET": "whsec_c2VjcmV0"}
    assert "with the sandbox" in examine_for("payments", with_sandbox)[0].text


@pytest.mark.parametrize(
    ("changes", "is_unpayable"),
    [
        ({**UNPAYABLE, "providers": ["stripe"]}, True),
        ({**UNPAYABLE, "providers": ["stripe"], "policy": {"review": "manual"}}, False),
        ({**UNPAYABLE, "providers": ["stripe", "sandbox"]}, False),
        ({**UNPAYABLE, "providers": []}, False),
        (UNPAYABLE, False),
    ],
    ids=["only another", "or by receipt", "one of two", "not online", "any"],
)
def test_an_event_whose_providers_are_not_set_up_is_named(
    healthy: Environment, own_database: str, changes: dict[str, Any], is_unpayable: bool
) -> None:
    run_with_connection(lambda connection: new_event(connection, title="Hamlet", **changes), own_database)
    sandbox = {"HOLDFAST_STRIPE_KEY": "", "HOLDFAST_SANDBOX_WEBHOOK_SECRET": "whsec_c2VjcmV0"}
    first, *others = examine_for("payments", {**healthy, "HOLDFAST_DATABASE_URL": own_database, **sandbox})
    assert first.text == "Buyers can pay online with the sandbox."
    if is_unpayable:
        trouble = find_trouble(others)
        assert trouble.level is Level.WARNING
        assert "for Hamlet (ev_" in trouble.text
        assert "none of its payment providers is set up (stripe)" in trouble.text
        assert "change `providers` of the event" in (trouble.remedy or "")
    else:
        assert others == []


def test_a_draft_needs_no_provider(healthy: Environment, own_database: str) -> None:
    run_with_connection(lambda connection: new_event(connection, **UNPAYABLE), own_database)
    query(own_database, "UPDATE event SET status = 'draft', published_at = NULL")
    without_provider = {**healthy, "HOLDFAST_DATABASE_URL": own_database, "HOLDFAST_STRIPE_KEY": ""}
    assert [result.level for result in examine_for("payments", without_provider)] == [Level.OK]


def test_findings_of_the_auditor_are_a_problem(healthy: Environment, own_database: str) -> None:
    async def break_a_counter() -> None:
        async with connection_to(own_database, db.connect_lane) as connection:
            await new_event(connection, await new_org(connection), pools=one_pool(10))
            await connection.execute("UPDATE pool SET sold = 1")
            await auditor.run_once(db.Database(connection))

    asyncio.run(break_a_counter())
    trouble = find_trouble(examine_for("auditor", {**healthy, "HOLDFAST_DATABASE_URL": own_database}))
    assert "1 findings" in trouble.text
    assert "holdfast audit" in (trouble.remedy or "")


def test_the_token_of_a_bot_that_an_org_has_connected_is_checked(healthy: Environment, own_database: str) -> None:
    query(own_database, "INSERT INTO org (id, slug, name, token_secret) VALUES (gen_random_uuid(), 'acme', '', '')")
    query(
        own_database,
        "INSERT INTO telegram_bot (org_id, bot_id, token, username, webhook_secret, language, currency, timezone) "
        "SELECT id, 1, '7654321:revoked', 'old', '', 'en', 'EUR', 'UTC' FROM org",
    )
    environment = {**healthy, "HOLDFAST_DATABASE_URL": own_database}
    assert "the bot of acme" in find_trouble(examine_for("telegram", environment)).text
    assert "7654321" not in str(examine(environment))


def test_a_mail_server_that_refuses_the_login_is_named(healthy: Environment, mail: str) -> None:
    trouble = find_trouble(examine_for("mail", {**healthy, "HOLDFAST_SMTP_URL": f"smtp://tickets:wrong-one@{mail}"}))
    assert trouble.level is Level.PROBLEM
    assert "refused the user or the password" in trouble.text
    assert "wrong-one" not in str(trouble)


@pytest.fixture(scope="module")
def guarded_redis() -> Iterator[RedisServer]:
    """A Redis with a user who has the rights that the doctor recommends, and one who may only read."""
    with running_redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        server.run("ACL SETUSER", "holdfast", "on", f">{PASSWORD}", *RIGHTS)
        server.run(
            "ACL SETUSER", "reader", "on", f">{PASSWORD}", "~*", "resetchannels", "+@read", "+ping", "+eval", "+info"
        )
        yield server


def with_user(redis: RedisServer, user: str, password: str = PASSWORD) -> str:
    return redis.url.replace("redis://", f"redis://{user}:{password}@")


def test_a_wrong_password_of_redis_is_named(healthy: Environment, guarded_redis: RedisServer) -> None:
    wrong = {**healthy, "HOLDFAST_REDIS_URL": with_user(guarded_redis, "holdfast", "wrong-one")}
    trouble = find_trouble(examine_for("redis", wrong))
    assert "refuses the user or the password" in trouble.text
    assert "wrong-one" not in str(trouble)


def test_a_redis_that_evicts_keys_is_a_warning(healthy: Environment, guarded_redis: RedisServer) -> None:
    trouble = find_trouble(
        examine_for("redis", {**healthy, "HOLDFAST_REDIS_URL": with_user(guarded_redis, "holdfast")})
    )
    assert trouble.level is Level.WARNING
    assert "allkeys-lru" in trouble.text
    assert "noeviction" in (trouble.remedy or "")


def test_rights_that_redis_denies_are_named(healthy: Environment, guarded_redis: RedisServer) -> None:
    results = examine_for("redis", {**healthy, "HOLDFAST_REDIS_URL": with_user(guarded_redis, "reader")})
    (trouble,) = [result for result in results if result.level is Level.PROBLEM]
    for command in ("SET", "HSET", "SADD", "DEL", "PUBLISH", "SUBSCRIBE"):
        assert command in trouble.text.replace(",", "").split(), command
    assert "HGET," not in trouble.text
    assert "ACL SETUSER" in (trouble.remedy or "")


def test_a_replica_of_redis_is_named(healthy: Environment, redis: RedisServer) -> None:
    with running_redis("--replicaof", "127.0.0.1", str(redis.port)) as replica:
        trouble = find_trouble(examine_for("redis", {**healthy, "HOLDFAST_REDIS_URL": replica.url}))
    assert "read-only replica" in trouble.text


def test_every_node_of_a_cluster_is_checked(healthy: Environment) -> None:
    with running_cluster() as cluster:
        found = examine_for("redis", {**healthy, "HOLDFAST_REDIS_URL": cluster.url})
        assert cluster.keys("*") == []
    assert {result.level for result in found} == {Level.OK}
    assert all(any(f":{node.port}: Version" in result.text for result in found) for node in cluster.nodes)


def test_an_old_or_full_redis_is_named() -> None:
    healthy = RedisInfo(redis_version="7.2.4", used_memory=1, maxmemory=100, maxmemory_policy="noeviction")
    assert [result.level for result in judge_info(healthy)] == [Level.OK]
    old = list(judge_info(structs.replace(healthy, redis_version="6.0.16")))
    assert "6.0.16" in find_trouble(old).text
    full = find_trouble(list(judge_info(structs.replace(healthy, used_memory=90))))
    assert "90%" in full.text


def test_a_folder_that_cannot_be_written_is_named(healthy: Environment, tmp_path: Path) -> None:
    (tmp_path / "receipts").write_text("a file where the folder should be")
    trouble = find_trouble(examine_for("receipts", healthy))
    assert trouble.level is Level.PROBLEM
    assert str(tmp_path / "receipts") in trouble.text
    assert "HOLDFAST_DATA_DIR" in (trouble.remedy or "")


def test_existing_receipts_stay(healthy: Environment, tmp_path: Path) -> None:
    (tmp_path / "receipts" / "ab").mkdir(parents=True)
    (tmp_path / "receipts" / "ab" / "cd").write_bytes(b"a receipt")
    assert [result.level for result in examine_for("receipts", healthy)] == [Level.OK]
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "receipts",
        "receipts/ab",
        "receipts/ab/cd",
    ]


@pytest.mark.parametrize(("free", "level"), [(3 * GIB, "ok"), (GIB, "warning"), (GIB // 10, "problem")])
def test_a_disk_that_fills_up_is_named(free: int, level: str) -> None:
    assert judge_space(free, Path("/data")).level == level


def test_the_hard_limit_of_open_files_counts() -> None:
    assert judge_open_files(10_999, 11_000).level is Level.WARNING
    assert judge_open_files(11_000, 11_000).level is Level.OK
    assert judge_open_files(-1, 11_000).level is Level.OK


@pytest.mark.parametrize(
    ("change", "text"),
    [({"major_version": 14}, "15 or newer"), ({"synchronous_commit": "off"}, "synchronous_commit is off")],
)
def test_servers_that_we_cannot_run_here_are_named_too(change: dict[str, Any], text: str) -> None:
    server = Server(
        major_version=16,
        version="16.1",
        encoding="UTF8",
        fsync="on",
        full_page_writes="on",
        synchronous_commit="on",
        is_read_only=False,
    )
    assert find_weaknesses(server) == []
    assert text in find_trouble(find_weaknesses(structs.replace(server, **change))).text


def test_the_embedded_database_is_found_while_it_runs(healthy: Environment, safe_postgres: str, tmp_path: Path) -> None:
    folder = Path(query(safe_postgres, "SHOW data_directory")[0][0]).parent
    embedded = {**healthy, "HOLDFAST_DATABASE_URL": "", "HOLDFAST_DATA_DIR": str(folder)}
    assert examine_for("database", embedded)[0].level is Level.OK
    nothing = find_trouble(examine_for("database", {**embedded, "HOLDFAST_DATA_DIR": str(tmp_path)}))
    assert nothing.level is Level.WARNING
    assert "holdfast serve" in (nothing.remedy or "")
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "postmaster.pid").write_text(f"1\n{tmp_path}\n0\n5432\n{tmp_path}\n\n")
    dead = find_trouble(examine_for("database", {**embedded, "HOLDFAST_DATA_DIR": str(tmp_path)}))
    assert "does not run" in dead.text


def test_the_command_prints_json_and_exits_with_1_if_there_is_a_problem(healthy: Environment) -> None:
    url = healthy.pop("HOLDFAST_DATABASE_URL")
    clean = dict.fromkeys(name for name in os.environ if name.startswith("HOLDFAST_"))
    good = call_holdfast(url, "doctor", "--json", **clean, **healthy)  # type: ignore[arg-type]
    assert (good.returncode, json.loads(good.stdout)["ok"]) == (0, True), good.stdout + good.stderr
    bad = call_holdfast(url, "doctor", "--json", **clean, **{**healthy, "HOLDFAST_LANES": "x"})  # type: ignore[arg-type]
    report = json.loads(bad.stdout)
    assert (bad.returncode, report["ok"]) == (1, False)
    assert {"subject", "level", "text", "remedy"} == set(report["results"][0])
    many = call_holdfast(url, "doctor", "--api-processes", "50", **clean, **healthy)  # type: ignore[arg-type]
    assert many.returncode == 1
    (line,) = [line for line in many.stdout.splitlines() if line.startswith("problem")]
    assert "50 API processes" in line


def test_a_terminal_shows_every_result_and_remedy(healthy: Environment) -> None:
    diagnosis = examine({**healthy, "HOLDFAST_DEMO": "true"})
    console = Console(force_terminal=True, width=60, record=True, file=StringIO())
    print_diagnosis(diagnosis, console)
    # Words that are longer than the column break.
    shown = "".join(console.export_text().split())
    for result in diagnosis.results:
        assert "".join(result.text.split()) in shown
        assert "".join((result.remedy or "").split()) in shown
    assert shown.endswith("1problem,nowarnings.")


def test_brokers_without_a_place_for_every_message_are_named(healthy: Environment) -> None:
    with running_kafka() as kafka, running_nats() as nats:
        environment = {**healthy, "HOLDFAST_KAFKA_URL": kafka.url, "HOLDFAST_NATS_URL": nats.url}
        found = examine_for("bus", environment)
        assert [result.level for result in found] == [Level.WARNING, Level.OK]
        assert "holdfast.bookings, holdfast.payments, holdfast.events" in found[0].text
        assert "will create its stream" in found[1].text
        assert kafka.topics() == set()
        asyncio.run(_add_stream(nats.url, "holdfast.*.bookings.*"))
        partly = examine_for("bus", environment)[1]
        assert partly.level is Level.PROBLEM
        assert "holdfast.*.payments.*, holdfast.*.events.*" in partly.text


async def _add_stream(url: str, subjects: str) -> None:
    client = Client()
    await client.connect(url)
    await client.jetstream().add_stream(name="PARTLY", subjects=[subjects])
    await client.close()


def test_the_token_of_nats_and_passwords_of_keys_are_secrets() -> None:
    hide = SecretFilter(
        {
            "HOLDFAST_NATS_URL": "nats://s3cr%40t-token@nats-1,nats-2",
            "HOLDFAST_KAFKA_URL": "kafka+ssl://kafka-1?ssl.key.password=keypass%21&compression.type=zstd",
        }
    ).hide
    assert hide("s3cr%40t-token s3cr@t-token keypass%21 keypass! zstd nats-1") == "*** *** *** *** zstd nats-1"


def test_no_secret_of_any_setting_is_printed(healthy: Environment) -> None:
    """Every server fails, so that every check quotes what it can."""
    secret = "p%40ss/wo#rd"
    environment = {
        **healthy,
        "HOLDFAST_DATABASE_URL": f"postgresql://holdfast:{secret}@{NOBODY}/d",
        "HOLDFAST_REDIS_URL": f"redis://:{secret}@{NOBODY}",
        "HOLDFAST_SMTP_URL": f"smtp://tickets:{secret}@{NOBODY}",
        "HOLDFAST_RECEIPTS_URL": f"s3://user:{secret}@bucket",
        "HOLDFAST_STRIPE_KEY": "sk_live_secret\nsecret",
        "HOLDFAST_TELEGRAM_TOKEN": "123:secret",
        "HOLDFAST_TELEGRAM_API": f"http://user:{secret}@{NOBODY}",
    }
    printed = str([(result.text, result.remedy) for result in examine(environment).results])
    for part in (secret, "p@ss/wo#rd", "p%40ss", "p@ss", "wo#rd", "sk_live_secret", "123:secret"):
        assert part not in printed


def test_a_result_reads_as_one_line(healthy: Environment) -> None:
    results: list[CheckResult] = examine(healthy).results
    assert all("\n" not in f"{result.text}{result.remedy}" and result.text.endswith(".") for result in results)
