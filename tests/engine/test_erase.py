"""`holdfast erase` removes a person from every table, and the journals stay whole."""

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Any

from msgspec import json

from holdfast.core.commands import Accepted, StartPayment, TransferBooking
from holdfast.core.notification_rules import KAFKA
from holdfast.runtime import db, ids
from tests.support.buyer_messages import STAFF, BuyerMessages, buyer_messages
from tests.support.command_line import call_holdfast, run_audit
from tests.support.engine_harness import EventHandle
from tests.support.harness import run_with_connection
from tests.support.relay_harness import insert_endpoint

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
    transfer = TransferBooking(
        event=event.id, org=event.org, booking=given, generation=0, user="bob", email="bob@example.org", actor=STAFF
    )
    assert isinstance(await shop.engine.submit(transfer), Accepted)
    held = await shop.hold(event, USER, **BUYER)
    payment = StartPayment(
        event=event.id,
        org=event.org,
        booking=held,
        payment=ids.new_id(),
        provider="sandbox",
        actor=f"user:{USER}",
        request_key=b"k",
        fingerprint=USER.encode(),
        return_url="https://shop.example/?name=family-name",
    )
    assert isinstance(await shop.engine.submit(payment), Accepted)
    await _store_surroundings(shop.connection, event, paid, given)
    for file in (OWN_FILE, SHARED_FILE):
        path = folder / "receipts" / event.org.hex() / file.hex()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"receipt")
    return event


async def _store_surroundings(connection: db.Connection, event: EventHandle, booking: bytes, other: bytes) -> None:
    values = {
        "$1": f"'{event.org.hex()}'::uuid",
        "$2": f"'{event.id.hex()}'::uuid",
        "$3": f"'{booking.hex()}'::uuid",
        "$4": str(PERSON),
        "$5": f"'{other.hex()}'::uuid",
        "$6": f"'\\x{OWN_FILE.hex()}'::bytea",
        "$7": f"'\\x{SHARED_FILE.hex()}'::bytea",
    }
    await connection.execute(re.sub(r"\$\d", lambda match: values[match.group()], SURROUNDINGS))


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


def test_erasing_a_person_of_an_unknown_org_says_so(database: str, tmp_path: Path) -> None:
    done = call_holdfast(database, "erase", "--org", "nobody", "--user", USER, HOLDFAST_DATA_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "There is no org nobody.\n")
