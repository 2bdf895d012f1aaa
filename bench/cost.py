"""What one hold costs alone, in process: against a bare transaction, and in events of different sizes."""

import secrets
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import uvloop

from holdfast.core.commands import Accepted, PlaceHold, PoolItem
from holdfast.core.event_schemas import EventNew, PoolNew, TariffNew
from holdfast.core.states import EventStatus
from holdfast.engine.engine import Engine
from holdfast.engine.event_editor import create_event, set_status
from holdfast.runtime import db, ids

SMALL = 1_000
TURNS = 400

_FILL = """
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
    INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data)
    SELECT $1, n + 2, now(), 'confirmed', md5('b' || n)::uuid, 'bench', '{}' FROM generate_series(1, $2::integer) AS n
"""

_BOOKING = """
    INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, expires_at,
                         max_expires_at, request_key, fingerprint, version)
    VALUES ($1, $2, $3, 'u', 'held', 100, 0, 100, 'EUR', now(), now() + interval '1 hour', now(), $4, $4, $5)
"""
_LINE = """
    INSERT INTO line (event_id, booking_id, number, pool, tariff, quantity, unit_price, live)
    VALUES ($1, $2, 0, 0, 0, 1, 100, true)
"""
_FACT = """
    INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data)
    VALUES ($1, $2, now(), 'held', $3, 'bench', '{}')
"""


def costs(url: str, large: int) -> dict[str, Any]:
    return uvloop.run(_costs(url, large))


async def _costs(url: str, large: int) -> dict[str, Any]:
    connection = await db.connect(url)
    org = (await connection.fetchrow("SELECT id FROM org"))["id"]
    # Nobody is to analyse these tables while they are measured.
    for name in ("booking", "line", "journal", "pool", "event"):
        await connection.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")
    events = [await _filled(connection, org, size) for size in (SMALL, large)]
    desk = Engine(url, lanes=1)
    desk.start()
    bare, least, small, big = await _interleaved(
        [
            lambda: _bare(connection, events[0], org),
            lambda: _least(connection, events[0], org),
            lambda: _hold(desk, events[0], org),
            lambda: _hold(desk, events[1], org),
        ]
    )
    await desk.close()
    await connection.close()
    return {
        "bare_ms": bare,
        "least_ms": least,
        "hold_ms": small,
        "bare_ratio": small / bare,
        "least_ratio": small / least,
        "small": SMALL,
        "large": large,
        "size_ratio": big / small,
    }


async def _filled(connection: Any, org: bytes, size: int) -> bytes:
    pool = PoolNew(code="places", capacity=10_000_000, tariffs=[TariffNew(code="full", price=100)])
    offer = EventNew(title="x", starts_at=datetime(2030, 1, 1, tzinfo=UTC), currency="EUR", pools=[pool])
    event = await create_event(connection, org, offer, "bench")
    await set_status(connection, org, event, EventStatus.ACTIVE, "bench")
    async with connection.transaction():
        await connection.execute(_FILL, event, org, size)
        await connection.execute(_FILL_LINES, event, size)
        await connection.execute(_FILL_JOURNAL, event, size)
        await connection.execute("UPDATE pool SET sold = $2 WHERE event_id = $1", event, size)
        await connection.execute("UPDATE event SET version = $2 WHERE id = $1", event, size + 2)
    return event


async def _interleaved(works: list[Callable[[], Awaitable[None]]]) -> list[float]:
    """The median milliseconds of each, taken in turns so that noise hits all alike."""
    times: list[list[float]] = [[] for _ in works]
    for turn in range(TURNS + 50):
        for work, taken in zip(works, times, strict=True):
            start = time.perf_counter()
            await work()
            if turn >= 50:
                taken.append((time.perf_counter() - start) * 1000)
    return [statistics.median(taken) for taken in times]


async def _bare(connection: Any, event: bytes, org: bytes) -> None:
    """The rows of a hold, written by hand in one transaction."""
    booking = ids.new_id()
    async with connection.transaction():
        version = await connection.fetchval("SELECT version + 1 FROM event WHERE id = $1 FOR UPDATE", event)
        await connection.execute(_BOOKING, event, booking, org, secrets.token_bytes(16), version)
        await connection.execute(_LINE, event, booking)
        await connection.execute("UPDATE pool SET held = held + 1 WHERE event_id = $1 AND number = 0", event)
        await connection.execute(_FACT, event, version, booking)
        await connection.execute("UPDATE event SET version = $2 WHERE id = $1", event, version)


async def _least(connection: Any, event: bytes, org: bytes) -> None:
    """The least that could be called a hold: lock, one row, one counter."""
    async with connection.transaction():
        await connection.fetchval("SELECT version FROM event WHERE id = $1 FOR UPDATE", event)
        await connection.execute(_BOOKING, event, ids.new_id(), org, secrets.token_bytes(16), 0)
        await connection.execute("UPDATE pool SET held = held + 1 WHERE event_id = $1 AND number = 0", event)


async def _hold(desk: Engine, event: bytes, org: bytes) -> None:
    outcome = await desk.submit(
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
