"""The cost of one hold without load and without HTTP: against bare transactions, and in events of different sizes."""

import secrets
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import uvloop

from holdfast.core.commands import Accepted, PlaceHold, PoolItem
from holdfast.core.event_schemas import EventNew
from holdfast.core.states import EventStatus
from holdfast.core.stock_schemas import PoolNew, TariffNew
from holdfast.engine.engine import Engine
from holdfast.engine.event_editor import create_event, set_status
from holdfast.runtime import db, ids

SMALL = 1_000
ROUNDS = 400
WARMUP_ROUNDS = 50

_FILL_BOOKINGS = """
    INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, expires_at,
                         max_expires_at, request_key, fingerprint, version)
    SELECT $1, md5('b' || n)::uuid, $2, 'u' || n, 'confirmed', 100, 0, 100, 'EUR', now(), now(), now(),
           decode(md5('k' || n), 'hex'), '\\x00', n + 2
    FROM generate_series(1, $3::integer) AS n
"""
_FILL_LINES = """
    INSERT INTO line (event_id, booking_id, number, pool, tariff, quantity, unit_price, live)
    SELECT $1, md5('b' || n)::uuid, 0, 0, 0, 1, 100, true FROM generate_series(1, $2::integer) AS n
"""
_FILL_JOURNAL = """
    INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data, previous)
    SELECT $1, n + 2, now(), 'confirmed', md5('b' || n)::uuid, 'bench', '{}', sha256('')
    FROM generate_series(1, $2::integer) AS n
"""

_INSERT_BOOKING = """
    INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, expires_at,
                         max_expires_at, request_key, fingerprint, version)
    VALUES ($1, $2, $3, 'u', 'held', 100, 0, 100, 'EUR', now(), now() + interval '1 hour', now(), $4, $4, $5)
"""
_INSERT_LINE = """
    INSERT INTO line (event_id, booking_id, number, pool, tariff, quantity, unit_price, live)
    VALUES ($1, $2, 0, 0, 0, 1, 100, true)
"""
_INSERT_JOURNAL_ENTRY = """
    INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data, previous)
    VALUES ($1, $2, now(), 'held', $3, 'bench', '{}', sha256(''))
"""


def measure_costs(url: str, large: int) -> dict[str, Any]:
    return uvloop.run(_measure_costs(url, large))


async def _measure_costs(url: str, large: int) -> dict[str, Any]:
    connection = await db.connect(url)
    org = await connection.fetchval("SELECT id FROM org")
    # A vacuum or analyze in the middle would change the plans that are measured.
    for name in ("booking", "line", "journal", "pool", "event"):
        await connection.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")
    events = [await _create_filled_event(connection, org, size) for size in (SMALL, large)]
    engine = Engine(url, lanes=1)
    engine.start()
    bare, minimal, small, big = await _time_in_turns(
        [
            lambda: _hold_in_bare_transaction(connection, events[0], org),
            lambda: _hold_in_minimal_transaction(connection, events[0], org),
            lambda: _hold_in_engine(engine, events[0], org),
            lambda: _hold_in_engine(engine, events[1], org),
        ]
    )
    await engine.close()
    await connection.close()
    return {
        "bare_ms": bare,
        "minimal_ms": minimal,
        "hold_ms": small,
        "bare_ratio": small / bare,
        "minimal_ratio": small / minimal,
        "small": SMALL,
        "large": large,
        "size_ratio": big / small,
    }


async def _create_filled_event(connection: Any, org: bytes, size: int) -> bytes:
    pool = PoolNew(code="places", capacity=10_000_000, tariffs=[TariffNew(code="full", price=100)])
    new = EventNew(title="Benchmark", starts_at=datetime(2030, 1, 1, tzinfo=UTC), currency="EUR", pools=[pool])
    event = await create_event(db.Database(connection), org, new, "bench")
    await set_status(db.Database(connection), org, event, EventStatus.ACTIVE, "bench")
    async with connection.transaction():
        await connection.execute(_FILL_BOOKINGS, event, org, size)
        await connection.execute(_FILL_LINES, event, size)
        await connection.execute(_FILL_JOURNAL, event, size)
        await connection.execute("UPDATE pool SET sold = $2 WHERE event_id = $1", event, size)
        await connection.execute("UPDATE event SET version = $2 WHERE id = $1", event, size + 2)
    return event


async def _time_in_turns(works: list[Callable[[], Awaitable[None]]]) -> list[float]:
    """The median milliseconds of each. They take turns, so that noise affects all of them alike."""
    times: list[list[float]] = [[] for _ in works]
    for number in range(WARMUP_ROUNDS + ROUNDS):
        for work, taken in zip(works, times, strict=True):
            start = time.perf_counter()
            await work()
            if number >= WARMUP_ROUNDS:
                taken.append((time.perf_counter() - start) * 1000)
    return [statistics.median(taken) for taken in times]


async def _hold_in_bare_transaction(connection: Any, event: bytes, org: bytes) -> None:
    """Writes the same rows as a hold."""
    booking = ids.new_id()
    async with connection.transaction():
        version = await connection.fetchval("SELECT version + 1 FROM event WHERE id = $1 FOR UPDATE", event)
        await connection.execute(_INSERT_BOOKING, event, booking, org, secrets.token_bytes(16), version)
        await connection.execute(_INSERT_LINE, event, booking)
        await connection.execute("UPDATE pool SET held = held + 1 WHERE event_id = $1 AND number = 0", event)
        await connection.execute(_INSERT_JOURNAL_ENTRY, event, version, booking)
        await connection.execute("UPDATE event SET version = $2 WHERE id = $1", event, version)


async def _hold_in_minimal_transaction(connection: Any, event: bytes, org: bytes) -> None:
    """The minimum of a hold: a lock, one row and one counter."""
    async with connection.transaction():
        await connection.fetchval("SELECT version FROM event WHERE id = $1 FOR UPDATE", event)
        await connection.execute(_INSERT_BOOKING, event, ids.new_id(), org, secrets.token_bytes(16), 0)
        await connection.execute("UPDATE pool SET held = held + 1 WHERE event_id = $1 AND number = 0", event)


async def _hold_in_engine(engine: Engine, event: bytes, org: bytes) -> None:
    outcome = await engine.submit(
        PlaceHold(
            event=event,
            org=org,
            booking=ids.new_id(),
            user=secrets.token_hex(8),
            actor="bench",
            request_key=secrets.token_bytes(16),
            fingerprint=b"",
            items=(PoolItem("places", 1),),
        )
    )
    assert isinstance(outcome, Accepted), outcome
