"""The chain of a journal: how it is written, verified, published and compared, and what erasing a person does to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec import json, structs

from holdfast.core.actors import journal_actor
from holdfast.core.commands import Accepted
from holdfast.core.journal_chain import chain_start, encode_time, entry_hash
from holdfast.core.states import Verb
from holdfast.engine import audit_chain, auditor, findings, journal_heads
from holdfast.runtime import cli_audit, db, ids
from tests.support.command_line import call_holdfast, run_audit
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    hold_many,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    one_pool,
    run_commands,
)
from tests.support.harness import application_url, connection_to, fresh_database, query, run_with_connection
from tests.support.old_schema import database_at_step

LAST_WITHOUT_CHAIN = 19
USER = "ann@example.org"
COLUMNS = "SELECT column_name::text FROM information_schema.columns WHERE table_name = $1 ORDER BY ordinal_position"
ENTRIES = "SELECT at, kind, booking_id, actor, data, previous FROM journal WHERE event_id = $1 ORDER BY number"


async def sell(connection: db.Connection) -> EventHandle:
    """An event with bookings of a customer and of staff."""
    event = await new_event(connection, pools=one_pool(99))
    hold = structs.replace(new_hold_command(event, user=USER), actor=f"user:{USER}")
    (placed,) = await run_commands(connection, [hold])
    assert isinstance(placed, Accepted)
    await run_commands(connection, [new_action_command(event, hold.booking, Verb.CONFIRM)])
    await hold_many(connection, event, 5)
    return event


@pytest.fixture(scope="module")
def sold(postgres: str) -> Iterator[tuple[str, EventHandle]]:
    """Do not change this database: its tests share it."""
    with fresh_database(postgres) as url:
        yield url, run_with_connection(sell, url)


@async_test
async def test_the_hashes_can_be_computed_from_the_rows_alone(sold: tuple[str, EventHandle]) -> None:
    url, event = sold
    async with lane_connection(url) as connection:
        rows = await connection.fetch(ENTRIES, event.id)
        assert len(rows) == 9
        expected = chain_start(event.id)
        for row in rows:
            assert row["previous"] == expected
            booking = row["booking_id"] or bytes(16)
            at, data = encode_time(row["at"]), row["data"].encode()
            expected = entry_hash(expected, at, booking, row["kind"], row["actor"], data)
        assert await connection.fetchval("SELECT journal_head FROM event WHERE id = $1", event.id) == expected


def test_the_hash_of_an_entry_stays_the_same_forever() -> None:
    """Published heads depend on it."""
    at = (1_700_000_000_123_456).to_bytes(8, "big")
    found = entry_hash(chain_start(bytes(range(16))), at, bytes(16), "held", "key:hf_sk_é", b'{"seats":{}}')
    assert found.hex() == "0317bd8709be34bc2f132d5d99696d506ed2d438d07a615eb75f70e1c0ccd02e"


@async_test
async def test_no_user_appears_in_the_journal(sold: tuple[str, EventHandle]) -> None:
    url, event = sold
    async with lane_connection(url) as connection:
        assert (
            await connection.fetchval("SELECT count(*) FROM journal WHERE journal::text LIKE '%' || $1 || '%'", USER)
            == 0
        )
        key = await connection.fetchval("SELECT actor_key FROM event WHERE id = $1", event.id)
        actors = {row["actor"] for row in await connection.fetch(ENTRIES, event.id)}
        assert actors == {"test", journal_actor(key, f"user:{USER}")}
        assert journal_actor(key, "telegram:123").startswith("telegram:")
        assert journal_actor(key, "telegram:123").removeprefix("telegram:") != "123"
        for nobody in ("system", "key:k", "telegram:bot"):
            assert journal_actor(key, nobody) == nobody


def test_erasing_a_person_leaves_the_chain_whole(database: str) -> None:
    run_with_connection(sell, database)
    before = call_holdfast(database, "audit", "--head").stdout
    query(
        database,
        """UPDATE booking SET user_id = 'erased-1', name = NULL, email = NULL, phone = NULL, details = NULL,
            answers = NULL, client = NULL WHERE user_id = $1""",
        USER,
    )
    query(database, "UPDATE event SET actor_key = uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())")
    assert run_audit(database_url=database) == {"ok": True, "events": 1, "findings": []}
    assert json.decode(call_holdfast(database, "audit", "--head").stdout)["hash"] == json.decode(before)["hash"]


async def _rewrite(connection: db.Connection) -> None:
    """Rewrite the history of all events from entry 4 on, with valid hashes, as an owner of the database can."""
    for event in await connection.fetch("SELECT id FROM event"):
        await connection.execute("UPDATE journal SET actor = 'nobody' WHERE number = 4 AND event_id = $1", event["id"])
        previous = chain_start(event["id"])
        for number, row in enumerate(await connection.fetch(ENTRIES, event["id"]), 1):
            await connection.execute(
                "UPDATE journal SET previous = $3 WHERE event_id = $1 AND number = $2", event["id"], number, previous
            )
            at, booking = encode_time(row["at"]), row["booking_id"] or bytes(16)
            previous = entry_hash(previous, at, booking, row["kind"], row["actor"], row["data"].encode())
        await connection.execute("UPDATE event SET journal_head = $2 WHERE id = $1", event["id"], previous)


def _save_head(database: str, folder: Path) -> Path:
    done = call_holdfast(database, "audit", "--head")
    assert done.returncode == 0, done.stderr
    file = folder / "head.json"
    file.write_text(done.stdout)
    return file


def _compare(database: str, file: Path) -> list[tuple[str, str]]:
    done = call_holdfast(database, "audit", "--against", str(file))
    report = json.decode(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    return [(finding["what"], finding["subject"]) for finding in report["findings"]]


def test_a_saved_head_finds_a_chain_that_was_rewritten_as_a_whole(database: str, tmp_path: Path) -> None:
    event = run_with_connection(sell, database)
    file = _save_head(database, tmp_path)
    head = json.decode(file.read_bytes())
    assert [(each["event"], each["version"]) for each in head["events"]] == [(event.text, 9)]

    async def sell_more(connection: db.Connection) -> None:
        await hold_many(connection, event, 3)
        await sell(connection)

    run_with_connection(sell_more, database)
    assert _compare(database, file) == [], "a journal that goes on continues the saved one"
    run_with_connection(_rewrite, database)
    assert run_audit(database_url=database)["ok"], "the new chain is valid in itself"
    assert _compare(database, file) == [("history_rewritten", "9")]
    query(database, "DELETE FROM journal WHERE event_id = $1 AND number > 8", event.id)
    assert ("history_shorter", "9") in _compare(database, file)


def test_a_broken_chain_has_no_head_to_publish(database: str) -> None:
    run_with_connection(sell, database)
    query(database, "UPDATE journal SET kind = 'expired' WHERE number = 4")
    done = call_holdfast(database, "audit", "--head")
    assert done.returncode == 1
    assert [finding["what"] for finding in json.decode(done.stdout)["findings"]] == ["entry_changed"]


def test_a_deleted_event_is_found_and_has_no_head_to_publish(database: str) -> None:
    event = run_with_connection(sell, database)
    query(database, "DELETE FROM tariff")
    query(database, "DELETE FROM pool")
    query(database, "DELETE FROM event")
    for command in (["audit"], ["audit", "--head"]):
        done = call_holdfast(database, *command)
        assert done.returncode == 1
        (finding,) = json.decode(done.stdout)["findings"]
        assert (finding["what"], finding["subject"]) == ("event_deleted", event.text)
        assert "9 journal entries, 6 bookings and 0 payments" in finding["detail"]


@pytest.mark.parametrize("table", ["journal", "booking", "line", "payment"])
def test_an_event_that_only_one_table_knows_is_audited(database: str, table: str) -> None:
    """Nobody hides a sale by deleting it from all tables but one. The nil id is the one that a look-up could skip."""
    run_with_connection(sell, database)
    nil, last = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
    events = [nil, last] if table == "journal" else [last]
    for event in events:
        if table == "payment":
            query(
                database,
                f"""INSERT INTO payment (event_id, id, org_id, booking_id, provider, status, amount, currency,
                    request_key, fingerprint, created_at)
                SELECT id, id, id, id, 'receipt', 'submitted', 1, 'EUR', 'k', '', now()
                FROM (SELECT '{event}'::uuid) AS given (id)""",
            )
        else:
            columns = [r[0] for r in query(database, COLUMNS, table) if r[0] != "event_id"]
            query(
                database,
                f"INSERT INTO {table} (event_id, {', '.join(columns)}) SELECT '{event}', {', '.join(columns)} "
                f"FROM {table} LIMIT 1",
            )
    found = run_audit(database_url=database)["findings"]
    assert [finding["what"] for finding in found] == ["event_deleted"] * len(events)


ONLY_READ = ("audit", "audit --head", "reap --dry-run", "orgs list", "keys list --org acme", "bot list", "bus status")


def test_a_command_that_only_reads_migrates_nothing_and_refuses_another_schema(postgres: str) -> None:
    with database_at_step(postgres, LAST_WITHOUT_CHAIN) as url:
        for command in ONLY_READ:
            done = call_holdfast(url, *command.split())
            assert (done.returncode, done.stdout) == (2, "")
            assert "The database has schema version 19, and this version of Holdfast needs" in done.stderr
            assert "run `holdfast migrate` first" in done.stderr
        assert query(url, "SELECT max(number) FROM schema_version")[0][0] == LAST_WITHOUT_CHAIN


@async_test
async def test_the_connection_of_an_audit_cannot_write(sold: tuple[str, EventHandle]) -> None:
    async with connection_to(sold[0], db.connect_reader) as connection:
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await connection.execute("UPDATE event SET version = 0")


def test_an_audit_that_ends_with_an_error_has_no_findings(
    sold: tuple[str, EventHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 means findings, and a script must not take a crash for them."""

    async def crash(_database: db.Database) -> None:
        raise ZeroDivisionError("no clue")

    monkeypatch.setattr(cli_audit, "audit_all", crash)
    done = call_holdfast(sold[0], "audit")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "The audit ended with an error, and says nothing about the database: ZeroDivisionError: no clue" in done.stderr
    )


def test_an_entry_that_breaks_the_auditor_hides_no_other_event(database: str) -> None:
    """The application may add entries, so whoever breaks into it may add any that the schema takes."""
    forged = run_with_connection(sell, database)
    damaged = run_with_connection(sell, database)
    query(database, "ALTER TABLE journal DROP CONSTRAINT journal_time")
    query(
        application_url(database),
        """INSERT INTO journal SELECT event_id, number + 1, 'infinity', 'payment.x', NULL, actor,
            '{"payment": "\\u0000"}', previous FROM journal WHERE event_id = $1 ORDER BY number DESC LIMIT 1""",
        forged.id,
    )
    query(database, "UPDATE pool SET held = held + 1 WHERE event_id = $1", damaged.id)
    found = {(f["event"], f["what"]) for f in run_audit(database_url=database)["findings"]}
    assert found == {(forged.text, "entry_inserted"), (damaged.text, "held_counter")}


@pytest.mark.parametrize(
    ("column", "value", "constraint"),
    [
        ("at", "'infinity'", "journal_time"),
        ("at", "'290001-01-01'", "journal_time"),
        ("number", "0", "journal_number"),
        ("previous", "''", "journal_previous"),
    ],
)
def test_the_schema_refuses_an_entry_that_no_reader_can_take(
    sold: tuple[str, EventHandle], column: str, value: str, constraint: str
) -> None:
    columns = [row[0] for row in query(sold[0], COLUMNS, "journal")]
    values = [value if name == column else "number + 1000" if name == "number" else name for name in columns]
    with pytest.raises(asyncpg.CheckViolationError, match=constraint):
        query(application_url(sold[0]), f"INSERT INTO journal SELECT {', '.join(values)} FROM journal LIMIT 1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "Cannot read"),
        ("{}", "is not a file that `holdfast audit --head` has printed"),
        ("\xff", "is not a file that `holdfast audit --head` has printed"),
        ('{"at": "2026-01-01T00:00:00Z", "hash": "00", "events": []}', "Somebody has changed"),
    ],
)
def test_a_file_that_is_no_head_is_refused(
    sold: tuple[str, EventHandle], tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "head.json"
    if content is not None:
        file.write_text(content, encoding="latin-1")
    done = call_holdfast(sold[0], "audit", "--against", str(file))
    assert done.returncode == 2
    assert message in done.stderr


def test_head_and_against_exclude_each_other(sold: tuple[str, EventHandle]) -> None:
    done = call_holdfast(sold[0], "audit", "--head", "--against", "x")
    assert (done.returncode, done.stderr) == (2, "Choose either --head or --against.\n")


@async_test
async def test_the_worker_verifies_only_what_is_new(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[int] = []
    broken_links = audit_chain._broken_links

    async def count(scope: db.DatabaseScope, event: bytes, first: int, head: bytes) -> Any:
        verified.append(first)
        return await broken_links(scope, event, first, head)

    monkeypatch.setattr(audit_chain, "_broken_links", count)
    async with lane_connection(database) as connection:
        event = await sell(connection)
        for _ in range(2):
            assert await auditor.run_once(db.Database(connection)) == []
            await hold_many(connection, event, 1)
        assert verified == [audit_chain.FIRST_POSSIBLE, 10]
        await connection.execute("UPDATE journal SET actor = 'nobody' WHERE number = 4")
        assert await auditor.run_once(db.Database(connection)) == [], "it has verified entry 4 before"
        assert (await auditor.audit_all(db.Database(connection)))[1], "`holdfast audit` verifies everything"
        await connection.execute("UPDATE journal SET actor = 'nobody' WHERE number = 11")
        for _ in range(2):
            await hold_many(connection, event, 1)
            found = [finding.subject for finding in await auditor.run_once(db.Database(connection))]
            assert found == ["4", "11"], "once it notices something, it verifies everything, again and again"
        assert await connection.fetchval("SELECT chain_version FROM audit") == 11


@async_test
async def test_a_journal_that_cannot_be_verified_hides_nothing_else(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(scope: db.DatabaseScope, *_: object) -> None:
        await scope.fetch("SELECT 1 / 0")

    async with lane_connection(database) as connection:
        event = await sell(connection)
        await connection.execute("UPDATE pool SET held = held + 1")
        monkeypatch.setattr(audit_chain, "_broken_links", fail)
        audit = await auditor.audit_event(db.Database(connection), event.id)
        assert [(found.what, found.subject) for found in audit.findings] == [
            ("held_counter", "places"),
            ("audit_failed", "chain"),
        ]
        heads, found = await journal_heads.read_heads(db.Database(connection))
        assert (heads.events, [each.what for each in found]) == ([], ["audit_failed"])


def _fill_old_schema(url: str, entries: int) -> bytes:
    event = ids.new_id()
    query(url, "INSERT INTO org (id, slug, name, token_secret) VALUES ($1, 'old', 'Old', '')", event)
    query(
        url,
        """INSERT INTO event (id, org_id, status, version, title, starts_at, currency, tax_bps, policy, details)
        VALUES ($1, $1, 'active', $2, 'Old', now(), 'EUR', 0, '{}', '{}')""",
        event,
        entries,
    )
    query(
        url,
        """INSERT INTO journal SELECT $1, n, now() + n * interval '1 ms', 'event_changed', NULL,
            (ARRAY['user:ann', 'telegram:42', 'telegram:bot', 'key:hf_sk_1'])[1 + n % 4], '{"change": { "a":  "é"} }'
        FROM generate_series(1, $2::bigint) AS n""",
        event,
        entries,
    )
    return event


def test_an_old_journal_gets_a_chain_and_loses_its_names(postgres: str) -> None:
    with database_at_step(postgres, LAST_WITHOUT_CHAIN) as url:
        event = _fill_old_schema(url, 40)
        assert call_holdfast(url, "migrate").returncode == 0
        assert run_audit(database_url=url) == {"ok": True, "events": 1, "findings": []}
        (row,) = query(url, "SELECT actor_key FROM event")
        actors = {row["actor"] for row in query(url, "SELECT actor FROM journal")}
        assert actors == {
            journal_actor(row["actor_key"], actor)
            for actor in ("user:ann", "telegram:42", "telegram:bot", "key:hf_sk_1")
        }
        assert actors.isdisjoint({"user:ann", "telegram:42"})
        query(url, "UPDATE journal SET kind = 'event_published' WHERE event_id = $1 AND number = 20", event)
        (finding,) = run_audit(database_url=url)["findings"]
        assert (finding["what"], finding["subject"]) == ("entry_changed", "20")


@async_test
async def test_many_findings_of_one_kind_are_counted(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "FINDINGS_MAX", 2)
    async with lane_connection(database) as connection:
        event = await sell(connection)
        await connection.execute("UPDATE booking SET subtotal = subtotal + 1, total = total + 1")
        audit = await auditor.audit_event(db.Database(connection), event.id)
        assert [finding.what for finding in audit.findings] == ["subtotal"] * 3
        assert audit.findings[-1].detail == "There are 4 more findings of this kind."
