"""`holdfast erase` removes a person from every table, and the journals stay whole."""

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from holdfast import sql
from holdfast.core.commands import Accepted, StartPayment, TransferBooking
from holdfast.core.notification_rules import KAFKA
from holdfast.engine import erase as erase_module
from holdfast.engine.erase import erase_person
from holdfast.notifications.reminders import Reminders
from holdfast.runtime import db, ids
from holdfast.runtime.storage import open_storage
from holdfast.sql import NamedStatement
from tests.support.buyer_messages import STAFF, BuyerMessages, buyer_messages
from tests.support.command_line import call_holdfast, run_audit
from tests.support.engine_harness import EventHandle, async_test, is_waiting_for_lock, poll_until
from tests.support.harness import connection_to, run_with_connection
from tests.support.relay_harness import insert_endpoint

HOUR = 3600
PERSON = 471_147_114
USER = f"telegram:{PERSON}"
BUYER: dict[str, Any] = {"name": "Ada Lovelace", "email": "Ada@example.org", "phone": "+12125550147"}
TRACES = (str(PERSON), *BUYER.values(), "ada@example.org", "wheelchair", "family-name", "Ada L.")
OWN_FILE, SHARED_FILE = hashlib.sha256(b"own").digest(), hashlib.sha256(b"shared").digest()
# What other parts of Holdfast store about a person: $1 org, $2 event, $3 booking, $4 person, $5 another booking.
SURROUNDINGS = """
INSERT INTO push_subscription (event_id, booking_id, slot, org_id, endpoint, p256dh, auth, key_number, language,
    created_at, due_at) VALUES ($2, $3, 0, $1, 'https://push.example/ada@example.org', '', '', 1, 'en', now(), now());
INSERT INTO receipt (event_id, id, org_id, booking_id, at, hash, content_type, size, message_ref)
    VALUES ($2, gen_random_uuid(), $1, $3, now(), $6, 'image/png', 1, '$4'),
           ($2, gen_random_uuid(), $1, $3, now(), $7, 'image/png', 1, '$4'),
           ($2, gen_random_uuid(), $1, $5, now(), $7, 'image/png', 1, NULL);
INSERT INTO receipt_file (event_id, booking_id, hash) VALUES ($2, $3, $6), ($2, $3, $7), ($2, $5, $7);
INSERT INTO recovery_request (id, org_id, email, language, created_at, due_at)
    VALUES (gen_random_uuid(), $1, 'ada@example.org', 'en', now(), now());
INSERT INTO recovery_link (token_hash, request_id, org_id, email, expires_at)
    VALUES ('h', gen_random_uuid(), $1, 'Ada@example.org', now() + interval '1 h');
INSERT INTO payment_notice (provider, id, body) VALUES
    ('stripe', 'evt_1', convert_to('{"email": "ada@example.org"}', 'UTF8')),
    ('stripe', 'evt_2', 'someone else');
INSERT INTO payment_notice (provider, id, body, payment) SELECT 'sandbox', 'n', convert_to('Ada L.', 'UTF8'),
    'pay_' || replace(event_id::text || id::text, '-', '') FROM payment;
INSERT INTO sandbox_charge (ref, payment, amount, currency, description, return_url)
    SELECT 'r', 'pay_' || replace(event_id::text || id::text, '-', ''), 1, 'EUR', '', 'https://a.example/?u=family-name'
    FROM payment;
INSERT INTO telegram_person (org_id, person_id, name, phone, language) VALUES ($1, $4, 'Ada L.', '+12125550147', 'en');
INSERT INTO telegram_dialogue (org_id, chat_id, person_id, step, data) VALUES ($1, $4, $4, 's', '{"name": "Ada L."}');
INSERT INTO telegram_update (org_id, number, chat_id, body) VALUES
    ($1, 1, $4, '{"message": {"text": "Ada L."}}'),
    ($1, 2, -5, '{"message": {"from": {"id": $4, "first_name": "Ada L."}}}');
INSERT INTO telegram_message (org_id, key, chat_id, kind, body) VALUES ($1, 'k', $4, 'text', '{}');
INSERT INTO telegram_message (org_id, key, chat_id, kind, body, event_id, booking_id)
    VALUES ($1, 'card', -5, 'card', '{"name": "Ada L."}', $2, $3);
INSERT INTO telegram_receipt (event_id, booking_id, file_unique_id, org_id, file_id) VALUES ($2, $3, 'u', $1, 'Ada L.');
INSERT INTO telegram_no_show (event_id, booking_id, org_id, person_id, actor) VALUES ($2, $3, $1, $4, 'key:k');
"""


async def sell(shop: BuyerMessages, folder: Path) -> EventHandle:
    """The person has a paid booking, has transferred another to Bob, and holds a third. All messages still wait, except
    for those of the first."""
    event = await shop.new_event()
    await shop.connection.execute("INSERT INTO event_bus (name) VALUES ($1)", KAFKA)
    await insert_endpoint(shop.connection, event.org, "https://shop.example/hook")
    details: dict[str, Any] = {"details": '{"seat": "wheelchair"}'}
    paid = await shop.book(event, USER, **BUYER, **details)
    await shop.connection.execute("UPDATE delivery SET status = 'delivered', done_at = holdfast_now()")
    given = await shop.book(event, USER, **BUYER)
    await _give_to_bob(shop, event, given)
    held = await shop.hold(event, USER, **BUYER)
    await _start_payment(shop, event, held)
    await _store_surroundings(shop.connection, event, paid, given)
    for file in (OWN_FILE, SHARED_FILE):
        _store_file(folder / "receipts", event, file)
    return event


async def _start_payment(shop: BuyerMessages, event: EventHandle, booking: bytes) -> None:
    payment = StartPayment(
        event=event.id,
        org=event.org,
        booking=booking,
        payment=ids.new_id(),
        provider="sandbox",
        actor=f"user:{USER}",
        request_key=b"k",
        fingerprint=USER.encode(),
        return_url="https://shop.example/?name=family-name",
    )
    assert isinstance(await shop.engine.submit(payment), Accepted)


def _store_file(folder: Path, event: EventHandle, hash_: bytes) -> None:
    path = folder / event.org.hex() / hash_.hex()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"receipt")


async def _give_to_bob(shop: BuyerMessages, event: EventHandle, booking: bytes) -> None:
    transfer = TransferBooking(
        event=event.id, org=event.org, booking=booking, generation=0, user="bob", email="bob@example.org", actor=STAFF
    )
    assert isinstance(await shop.engine.submit(transfer), Accepted)


async def _store_surroundings(connection: db.Connection, event: EventHandle, booking: bytes, other: bytes) -> None:
    values = {
        "$1": _uuid(event.org),
        "$2": _uuid(event.id),
        "$3": _uuid(booking),
        "$4": str(PERSON),
        "$5": _uuid(other),
        "$6": _bytea(OWN_FILE),
        "$7": _bytea(SHARED_FILE),
    }
    await connection.execute(_fill(SURROUNDINGS, values))


def _fill(statements: str, values: dict[str, str]) -> str:
    """A script of several statements takes no parameters."""
    return re.sub(r"\$\d", lambda match: values[match.group()], statements)


def _uuid(id_: bytes) -> str:
    return f"'{id_.hex()}'::uuid"


def _bytea(value: bytes) -> str:
    return f"'\\x{value.hex()}'::bytea"


async def tables_with_traces(connection: db.Connection) -> set[str]:
    """The tables in which a dump of the database would show the person. Binary columns are in hexadecimal."""
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    found = set()
    for table in tables:
        rows = await connection.fetch(f'SELECT "{table[0]}"::text FROM "{table[0]}"')
        dump = "\n".join(row[0] for row in rows)
        if any(trace in dump or trace.encode().hex() in dump for trace in TRACES):
            found.add(table[0])
    return found


def erase(database: str, folder: Path, slug: str) -> dict[str, int]:
    done = call_holdfast(
        database, "erase", "--org", slug, "--user", USER, HOLDFAST_DATA_DIR=str(folder), HOLDFAST_RECEIPTS_URL=""
    )
    assert done.returncode == 0, done.stderr
    assert not any(trace in done.stdout for trace in TRACES)
    return json.decode(done.stdout, type=dict[str, int])


def test_after_erasing_a_person_no_table_and_no_file_says_anything_about_them(database: str, tmp_path: Path) -> None:
    async def fill() -> EventHandle:
        async with asyncio.timeout(60), buyer_messages(database) as shop:
            return await sell(shop, tmp_path)

    event = asyncio.run(fill())
    head = json.decode(call_holdfast(database, "audit", "--head").stdout)["hash"]
    assert run_with_connection(tables_with_traces, database) == {
        "booking",
        "delivery",
        "payment",
        "payment_notice",
        "push_subscription",
        "receipt",
        "recovery_link",
        "recovery_request",
        "sandbox_charge",
        "telegram_dialogue",
        "telegram_message",
        "telegram_no_show",
        "telegram_person",
        "telegram_receipt",
        "telegram_update",
    }
    slug = run_with_connection(lambda c: c.fetchval("SELECT slug FROM org WHERE id = $1", event.org), database)

    counts = erase(database, tmp_path, slug)
    assert [name for name, count in counts.items() if count == 0] == []
    assert run_with_connection(tables_with_traces, database) == set()
    assert run_audit(database_url=database) == {"ok": True, "events": 1, "findings": []}
    assert json.decode(call_holdfast(database, "audit", "--head").stdout)["hash"] == head
    files = {path.name for path in (tmp_path / "receipts" / event.org.hex()).iterdir()}
    assert files == {SHARED_FILE.hex()}, "another buyer has submitted the same file"
    assert set(erase(database, tmp_path, slug).values()) == {0}

    async def left(connection: db.Connection) -> dict[str, Any]:
        return {
            "holders": await connection.fetch("SELECT user_id, email FROM booking WHERE user_id NOT LIKE 'erased-%'"),
            "waiting": await connection.fetch(
                "SELECT DISTINCT channel, body ->> 'user' FROM delivery WHERE channel ~ 'kafka|webhook' ORDER BY 1, 2"
            ),
            "notices": await connection.fetchval("SELECT count(*) FROM payment_notice WHERE body = 'someone else'"),
        }

    rest = run_with_connection(left, database)
    assert [tuple(row) for row in rest["holders"]] == [("bob", "bob@example.org")]
    # Facts still reach the merchant's systems, without the person.
    assert [tuple(row) for row in rest["waiting"]] == [
        ("kafka", "bob"),
        ("kafka", "erased"),
        ("webhook", "bob"),
        ("webhook", "erased"),
    ]
    assert rest["notices"] == 1


@async_test
async def test_sales_go_on_while_the_messages_of_a_person_are_found(database: str, tmp_path: Path) -> None:
    """And what the person does meanwhile is erased too."""
    storage = open_storage(None, tmp_path)
    async with asyncio.timeout(120), buyer_messages(database) as shop, connection_to(database) as eraser:
        event = await shop.new_event()
        await shop.book(event, USER, **BUYER)
        await insert_endpoint(shop.connection, event.org, "https://shop.example/hook")
        pid = await eraser.fetchval("SELECT pg_backend_pid()")
        async with shop.connection.transaction():
            await shop.connection.execute("SELECT FROM delivery FOR UPDATE")
            erasing = asyncio.create_task(erase_person(db.Database(eraser), storage, event.org, USER))
            async with connection_to(database) as observer:
                await poll_until(lambda: is_waiting_for_lock(observer, pid), 60)
            await shop.book(event, "bob", email="bob@example.org")
            await shop.book(event, USER, **BUYER)
        await erasing
        assert await tables_with_traces(shop.connection) == set()
        emails = await shop.deliveries("email")
        assert [json.decode(row["body"])["email"] for row in emails] == ["bob@example.org"]


# What names the person only through their booking: $1 org, $2 event, $3 booking, $4 hash of the file.
LATECOMERS = """
INSERT INTO payment_notice (provider, id, body, payment) SELECT 'sandbox', 'late', convert_to('Ada L.', 'UTF8'),
    'pay_' || replace(event_id::text || id::text, '-', '') FROM payment;
INSERT INTO sandbox_charge (ref, payment, amount, currency, description, return_url)
    SELECT 'late', 'pay_' || replace(event_id::text || id::text, '-', ''), 1, 'EUR', '', 'https://a.example/?u=family-name'
    FROM payment;
INSERT INTO telegram_message (org_id, key, chat_id, kind, body, event_id, booking_id)
    VALUES ($1, 'late', -5, 'card', '{"name": "Ada L."}', $2, $3);
INSERT INTO receipt_file (event_id, booking_id, hash) VALUES ($2, $3, $4);
"""


async def _arrive_late(connection: db.Connection, event: EventHandle, booking: bytes, folder: Path) -> None:
    values = {"$1": _uuid(event.org), "$2": _uuid(event.id), "$3": _uuid(booking), "$4": _bytea(OWN_FILE)}
    await connection.execute(_fill(LATECOMERS, values))
    _store_file(folder, event, OWN_FILE)


def _stored_files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


@async_test
async def test_nothing_that_happens_just_before_the_bookings_are_erased_is_left(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A booking with its messages, a reminder, a recovery request, webhook events, a card for staff, and a receipt."""
    erase_bookings = erase_module._erase_bookings

    async def book_and_erase(*values: Any) -> None:
        await shop.book(event, USER, **BUYER)
        await shop.pass_seconds(25 * HOUR)
        await Reminders(shop.database, 24, frozenset({"email", "sms"})).run_once()
        await shop.connection.execute(
            "INSERT INTO recovery_request (id, org_id, email, language, created_at, due_at)"
            " VALUES (gen_random_uuid(), $1, 'ada@example.org', 'en', now(), now())",
            event.org,
        )
        await shop.connection.execute(
            "INSERT INTO payment_notice (provider, id, body) VALUES ('stripe', 'evt', $1)", b"ada@example.org"
        )
        await _arrive_late(shop.connection, event, held, tmp_path)
        await erase_bookings(*values)

    async with asyncio.timeout(120), buyer_messages(database) as shop:
        event = await shop.new_event(hours=48)
        await shop.book(event, USER, **BUYER)
        held = await shop.hold(event, USER, **BUYER)
        await _start_payment(shop, event, held)
        monkeypatch.setattr(erase_module, "_erase_bookings", book_and_erase)
        await erase_person(shop.database, open_storage(None, tmp_path), event.org, USER)
        assert await tables_with_traces(shop.connection) == set()
        assert _stored_files(tmp_path) == []
        channels = await shop.connection.fetch("SELECT channel FROM delivery WHERE kind = 'booking.reminder'")
        assert {row["channel"] for row in channels} == {"email", "sms"}


@async_test
async def test_a_command_that_was_interrupted_after_the_bookings_finds_what_was_left(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the person's bookings by their new users, and leaves those of others alone, erased or not."""
    storage = open_storage(None, tmp_path)
    erase_bookings = erase_module._erase_bookings

    async def erase_and_die(*values: Any) -> None:
        await _arrive_late(shop.connection, event, held, tmp_path)
        await erase_bookings(*values)
        raise ConnectionError

    async with asyncio.timeout(120), buyer_messages(database) as shop:
        event = await shop.new_event()
        held = await shop.hold(event, USER, **BUYER)
        await _start_payment(shop, event, held)
        with monkeypatch.context() as patch:
            patch.setattr(erase_module, "_erase_bookings", erase_and_die)
            with pytest.raises(ConnectionError):
                await erase_person(shop.database, storage, event.org, USER)
        other = await erase_person(shop.database, storage, event.org, "bob")
        assert set(other.values()) == {0}
        assert _stored_files(tmp_path) == [OWN_FILE.hex()]
        # The person has come back in between.
        await shop.book(event, USER, **BUYER)
        counts = await erase_person(shop.database, storage, event.org, USER)
        assert await tables_with_traces(shop.connection) == set()
        assert _stored_files(tmp_path) == []
        assert (counts["bookings"], counts["files"], counts["receipt_files"]) == (1, 1, 1)
        again = await erase_person(shop.database, storage, event.org, USER)
        assert set(again.values()) == {0}


@async_test
async def test_a_command_that_was_interrupted_between_two_events_leaves_nothing_behind(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person has given away their booking of the second event, and only the first one still has the address."""
    storage = open_storage(None, tmp_path)
    erase_bookings = erase_module._erase_bookings

    async def erase_and_die(*values: Any) -> None:
        await erase_bookings(*values)
        raise ConnectionError

    async with asyncio.timeout(120), buyer_messages(database) as shop:
        event = await shop.new_event()
        first, second = sorted([event, await shop.new_event(org=event.org)], key=lambda each: each.id)
        await shop.book(first, USER, **BUYER)
        await _give_to_bob(shop, second, await shop.book(second, USER, **BUYER))
        with monkeypatch.context() as patch:
            patch.setattr(erase_module, "_erase_bookings", erase_and_die)
            with pytest.raises(ConnectionError):
                await erase_person(shop.database, storage, event.org, USER)
        assert await shop.connection.fetchval("SELECT count(*) FROM booking WHERE user_id = $1", USER) == 0
        await erase_person(shop.database, storage, event.org, USER)
        assert await tables_with_traces(shop.connection) == set()


@async_test
async def test_emails_to_others_with_the_same_address_are_sent(database: str, tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    async with asyncio.timeout(120), buyer_messages(database) as shop:
        event = await shop.new_event()
        await shop.book(event, USER, **BUYER)
        theirs = await shop.book(event, "charles", email=BUYER["email"])
        await erase_person(shop.database, storage, event.org, USER)
        assert [row["stream"] for row in await shop.deliveries("email")] == [theirs]


NOTICES = {
    "upper case": (True, b'{"email": "ADA@Example.ORG"}'),
    "not UTF-8": (True, b"\xff\xfe\x00 ada@example.org \xff"),
    "after an escape": (True, b'"to:\\nada@example.org\\u003e"'),
    "in a form": (True, b"email=Ada%40x&to=%3cada@example.org%3e"),
    "after a quote": (True, "„ada@example.org“".encode()),
    "after a no-break space": (True, "\N{NO-BREAK SPACE}ada@example.org".encode()),
    "after a backspace": (True, b'"\\bada@example.org"'),
    "a number": (True, b"tel:+12125550147."),
    "of nobody known": (True, b"<ada@example.org>"),
    "a longer name": (False, b"nada@example.org, x.ada@example.org, 342ada@example.org"),
    "a longer domain": (False, b"ada@example.org.uk ada@example.organ"),
    "a longer number": (False, b"+121255501471"),
    "of another org": (False, b"ada@example.org"),
    "of a payment of another org": (False, b"ada@example.org"),
    "of a reference of another org": (False, b"ada@example.org"),
}


@async_test
async def test_only_notices_that_name_the_person_to_this_org_lose_their_body(database: str, tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    async with asyncio.timeout(120), buyer_messages(database) as shop:
        event, foreign = await shop.new_event(), await shop.new_event()
        await shop.book(event, USER, **BUYER)
        booking = await shop.hold(foreign, "bob")
        payment = StartPayment(
            event=foreign.id,
            org=foreign.org,
            booking=booking,
            payment=ids.new_id(),
            provider="stripe",
            actor="user:bob",
            request_key=b"k",
            fingerprint=b"f",
        )
        assert isinstance(await shop.engine.submit(payment), Accepted)
        await shop.connection.execute("UPDATE payment SET provider_ref = 'ref'")
        await shop.connection.executemany(
            "INSERT INTO payment_notice (provider, id, body) VALUES ('stripe', $1, $2)",
            [(id_, body) for id_, (_, body) in NOTICES.items()],
        )
        for column, value, id_ in (
            ("org_id", foreign.org, "of another org"),
            ("payment", ids.format_payment_id(foreign.id, payment.payment), "of a payment of another org"),
            ("provider_ref", "ref", "of a reference of another org"),
        ):
            await shop.connection.execute(f"UPDATE payment_notice SET {column} = $1 WHERE id = $2", value, id_)
        await erase_person(shop.database, storage, event.org, USER)
        rows = await shop.connection.fetch("SELECT id, body FROM payment_notice")
        assert {row["id"]: row["body"] for row in rows} == {
            id_: b"" if is_erased else body for id_, (is_erased, body) in NOTICES.items()
        }


# With these statistics, an event has one row of each table, so that an index by event looks as good as any other.
ONE_ROW_PER_EVENT = """
CREATE TEMP TABLE number AS
    SELECT gen_random_uuid() AS id, '00000000-0000-0000-0000-000000000000'::uuid AS org,
        uuid_send(gen_random_uuid()) AS hash FROM generate_series(1, 500);
INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, request_key,
    fingerprint, version) SELECT id, id, org, 'bob', 'confirmed', 0, 0, 0, 'EUR', now(), hash, hash, 1 FROM number;
INSERT INTO payment (event_id, id, org_id, booking_id, provider, status, amount, currency, request_key, fingerprint,
    created_at) SELECT id, id, id, id, 'sandbox', 'started', 1, 'EUR', hash, hash, now() FROM number;
INSERT INTO receipt (event_id, id, org_id, booking_id, at, hash) SELECT id, id, id, id, now(), hash FROM number;
INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, created_at, due_at)
    SELECT id, 1, 'email:', 'email', id, id, 'booking.confirmed', '{}', now(), now() FROM number;
ANALYZE;
"""


@pytest.mark.parametrize("are_misleading", [False, True], ids=["without statistics", "misleading statistics"])
@async_test
async def test_under_the_lock_of_an_event_everything_is_found_by_the_person_or_their_bookings(
    database: str, are_misleading: bool
) -> None:
    async with connection_to(database) as connection:
        if are_misleading:
            await connection.execute("SET session_replication_role = replica")
            await connection.execute(ONE_ROW_PER_EVENT)
        assert "(user_id = " in await condition(connection, sql.erase.own_bookings)
        for statement in erase_module.OF_EVENT.values():
            assert re.search(r"\b(booking_id|id) = ANY", await condition(connection, statement)), statement.text
        for statement in erase_module.MESSAGES.values():
            assert re.search(r"\(number > .* AND \(number < ", await condition(connection, statement)), statement.text


async def condition(connection: db.Connection, statement: NamedStatement) -> str:
    """The condition with which a statement under the lock finds its rows in an index."""
    async with connection.transaction():
        await connection.execute(db.INDEX_LOOKUPS_ONLY)
        await connection.execute(f"PREPARE erasing AS {statement.text}")
        values = ", ".join("NULL" for _ in statement.parameters)
        plan = [row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE erasing ({values})")]
        await connection.execute("DEALLOCATE erasing")
    return next((line for line in plan if "Index Cond: " in line), "")


def test_erasing_an_unknown_person_says_so(database: str, tmp_path: Path) -> None:
    call_holdfast(database, "orgs", "create", "acme")
    done = call_holdfast(database, "erase", "--org", "acme", "--user", "nobody", HOLDFAST_DATA_DIR=str(tmp_path))
    assert done.returncode == 0
    assert "Nothing in acme names the user nobody." in done.stderr
    assert set(json.decode(done.stdout).values()) == {0}


def test_erasing_a_person_of_an_unknown_org_says_so(database: str, tmp_path: Path) -> None:
    done = call_holdfast(database, "erase", "--org", "nobody", "--user", USER, HOLDFAST_DATA_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "There is no org nobody.\n")
