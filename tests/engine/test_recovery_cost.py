"""Looking up bookings by email reads a few pages, however many bookings the org has, even with plans that were made on
empty tables."""

import time
from typing import Any, Final

from msgspec import json

from holdfast import sql
from holdfast.runtime import db, ids
from tests.support.engine_harness import async_test, new_org
from tests.support.harness import connection_to

BOOKINGS: Final = 50_000
EACH: Final = 5
PAGES_MAX: Final = 200

# Bookings of guests. Each address has five, and each guest has two.
FILL: Final = """
INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, request_key,
                     fingerprint, email, version)
    SELECT '{event}', gen_random_uuid(), '{org}', 'guest-' || md5((n / 2)::text), 'confirmed', 0, 0, 0, 'EUR', now(),
           decode(md5(n::text), 'hex'), '', 'Guest-' || n / {each} || '@example.org', n
    FROM generate_series(0, {count} - 1) AS n
"""


async def _pages(connection: db.Connection, name: str, arguments: str) -> int:
    explained = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name} ({arguments})")
    plan: dict[str, Any] = json.decode(explained)[0]["Plan"]
    pages: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return pages


@async_test
async def test_a_look_up_by_email_reads_few_pages(database: str) -> None:
    async with connection_to(database) as connection:
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        await connection.execute("ALTER TABLE booking SET (autovacuum_enabled = off)")
        org, event = (await new_org(connection)).hex(), ids.new_id().hex()
        emails, at = "ARRAY['guest-7@EXAMPLE.org']", f"ARRAY[{time.time() + 60}]"
        # In the order in which the statements name their parameters.
        arguments = {
            "recipient": {"email": "'guest-7@EXAMPLE.org'", "org": f"'{org}'"},
            "bookings": {"emails": emails, "recovered_at": at, "org": f"'{org}'", "limit": "100", "lines_max": "5000"},
        }
        for name, values in arguments.items():
            statement = getattr(sql.recovery, name)
            assert statement.parameters == tuple(values)
            await connection.execute(f"PREPARE {name} AS {statement.text}")
            await _pages(connection, name, ", ".join(values.values()))
        await connection.execute(FILL.format(event=event, org=org, each=EACH, count=BOOKINGS))
        found = await connection.fetch(f"EXECUTE bookings ({', '.join(arguments['bookings'].values())})")
        assert len(found) == EACH
        for name, values in arguments.items():
            assert await _pages(connection, name, ", ".join(values.values())) <= PAGES_MAX, name
