"""Upgrading from the schema without business rules while an older version goes on selling, and to a chained journal."""

import asyncio
from collections.abc import Iterator
from uuid import UUID, uuid4

import asyncpg
import pytest
from msgspec import json

from holdfast.api.booking_schemas import HoldNew, hold_command
from holdfast.runtime import db
from tests.support.command_line import call_holdfast, run_audit
from tests.support.old_schema import database_at_step, run_steps

LAST_WITHOUT_RULES = 14
LAST_WITHOUT_CHAIN = 19
SELLERS = 3
POLICY = '{{"hold_seconds": 600, "one_booking_per_user": {one}, "max_hold_seconds": 1800}}'

# One hold as the older version wrote it: under the event's lock, with no column that is new.
SELL = """
WITH locked AS MATERIALIZED (SELECT id, org_id, version FROM event WHERE id = $1 FOR UPDATE),
booked AS (
    INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, expires_at,
                         max_expires_at, request_key, fingerprint, email, version)
    SELECT id, $2, org_id, $3, 'held', 100, 0, 100, 'EUR', now(), now() + interval '1 h', now() + interval '1 h',
           uuid_send($2), '', 'ada@example.org', version + 1 FROM locked
),
lined AS (
    INSERT INTO line (event_id, booking_id, number, pool, tariff, quantity, unit_price, live)
    SELECT id, $2, 0, 0, 0, 1, 100, true FROM locked
),
counted AS (UPDATE pool SET held = held + 1 WHERE event_id = $1),
versioned AS (UPDATE event SET version = event.version + 1 FROM locked WHERE event.id = locked.id)
INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data)
SELECT id, version + 1, now(), 'held', $2, 'old', '{}' FROM locked
"""


@pytest.fixture
def old_database(postgres: str) -> Iterator[str]:
    with database_at_step(postgres, LAST_WITHOUT_RULES) as url:
        yield url


async def _create_event(connection: asyncpg.Connection, one: bool) -> UUID:
    event, org = uuid4(), uuid4()
    await connection.execute(
        "INSERT INTO org (id, slug, name, token_secret) VALUES ($1, $2, 'Acme', '')", org, f"org-{org}"
    )
    await connection.execute(
        """INSERT INTO event (id, org_id, status, version, title, starts_at, currency, tax_bps, policy, details,
                              published_at)
        VALUES ($1, $2, 'active', 1, 'Old', now() + interval '1 day', 'EUR', 0, $3, '{}', now())""",
        event,
        org,
        POLICY.format(one="true" if one else "false"),
    )
    await connection.execute("INSERT INTO pool VALUES ($1, 0, 'p', 'P', false, 1000000, 0, 0)", event)
    await connection.execute("INSERT INTO tariff VALUES ($1, 0, 0, 't', 'T', 100)", event)
    await connection.execute("INSERT INTO journal VALUES ($1, 1, now(), 'event_published', NULL, 'old', '{}')", event)
    return event


async def _sell_while_migrating(url: str) -> tuple[dict[UUID, UUID], int, UUID]:
    """Sell one booking after the other until some have been sold after the migration. Return every acknowledged booking
    with its event, how many of them came after the migration, and the event with one booking per user."""
    connections = [await asyncpg.connect(url) for _ in range(SELLERS)]
    limited, unlimited = [await _create_event(connections[0], one) for one in (True, False)]
    sold: dict[UUID, UUID] = {}
    migrated = asyncio.Event()
    sold_after = 0

    async def sell(connection: asyncpg.Connection) -> None:
        nonlocal sold_after
        while sold_after < 30:
            booking, event = uuid4(), (limited, unlimited)[len(sold) % 2]
            is_after = migrated.is_set()
            await connection.execute(SELL, event, booking, f"user {booking}")
            sold[booking] = event
            sold_after += is_after

    for _ in range(2):
        twice = uuid4()
        await connections[0].execute(SELL, limited, twice, "bought twice before the rule")
        sold[twice] = limited
    sellers = [asyncio.create_task(sell(connection)) for connection in connections]
    while len(sold) < 50:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(run_steps, url, LAST_WITHOUT_RULES + 1, LAST_WITHOUT_CHAIN)
    migrated.set()
    await asyncio.gather(*sellers)
    for connection in connections:
        await connection.close()
    return sold, sold_after, limited


def test_an_older_version_goes_on_selling_while_and_after_the_schema_changes(old_database: str) -> None:
    async def check() -> None:
        sold, sold_after, limited = await _sell_while_migrating(old_database)
        assert sold_after >= 30
        connection = await asyncpg.connect(old_database)
        stored = await connection.fetch("SELECT id, event_id, user_id, one_per_user, email FROM booking")
        assert {row["id"]: row["event_id"] for row in stored} == sold
        assert {row["email"] for row in stored} == {"ada@example.org"}
        guarded = [row for row in stored if row["one_per_user"]]
        assert len(guarded) >= 20
        assert {row["event_id"] for row in guarded} == {limited}
        assert not [row for row in guarded if row["user_id"] == "bought twice before the rule"]
        await connection.close()

    asyncio.run(check())
    # The rest of the steps give the journal its chain.
    assert call_holdfast(old_database, "migrate").returncode == 0
    assert run_audit(database_url=old_database)["ok"]


def test_an_older_version_cannot_add_to_a_chained_journal(old_database: str) -> None:
    """It would break the chain. Its transaction fails as a whole."""

    async def check() -> None:
        connection = await asyncpg.connect(old_database)
        event = await _create_event(connection, one=False)
        await asyncio.to_thread(lambda: asyncio.run(db.migrate(old_database)))
        with pytest.raises(asyncpg.NotNullViolationError, match="previous"):
            await connection.execute(SELL, event, uuid4(), "late")
        assert await connection.fetchval("SELECT count(*) FROM booking") == 0
        await connection.close()

    asyncio.run(check())
    assert run_audit(database_url=old_database)["ok"]


def test_a_request_from_before_the_upgrade_can_still_be_replayed() -> None:
    """The fingerprint of a request without new fields is the one that older versions stored."""
    body = json.decode(
        b'{"user":"u-1","items":[{"seat":"A-5"},{"pool":"standing","tariff":"child","quantity":2}],'
        b'"cart_token":"c","email":"ada@example.org","details":{"a":[1]}}',
        type=HoldNew,
    )
    command = hold_command(body, event=b"e", org=b"o", user="u-1", actor="a", staff=True, request_key=b"k")
    assert command.fingerprint.hex() == "9e7f97b2ede11eef37db3afc6b10835f"
