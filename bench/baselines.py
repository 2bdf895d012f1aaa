"""What the lanes are measured against, behind the same HTTP stack, with the same tables and the same answer.

Both are correct: neither oversells. They are how a careful engineer would write it, one request at a time.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from holdfast import db, ids
from holdfast.core.layout import Layout
from holdfast.core.model import Booking, Line
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import Status
from holdfast.http.bookings import request_key
from holdfast.http.operation import About, Answer, Call, Operation, Who
from holdfast.http.requests import HoldNew
from holdfast.http.views import BookingView, Health, booking_view

CONNECTIONS = 16
MOMENT = datetime(2030, 1, 1, tzinfo=UTC)

_INSERTS = """
    INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at,
                         expires_at, max_expires_at, request_key, fingerprint, version)
    VALUES ($1, $2, $3, $4, 'held', $5, 0, $5, 'EUR', $6, $7, $7, $8, $8, $9)
"""
_LINE = """
    INSERT INTO line (event_id, booking_id, number, pool, tariff, seat, quantity, unit_price, live)
    VALUES ($1, $2, 0, 0, 0, NULL, 1, $3, true)
"""
_FACT = """
    INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data) VALUES ($1, $2, $3, 'held', $4, $5, '{}')
"""
_GUARDED = """
    WITH pool AS (
        UPDATE pool SET held = held + 1
        WHERE event_id = $1 AND number = 0 AND held + sold + 1 <= capacity RETURNING 1
    ), event AS (
        UPDATE event SET version = version + 1 FROM pool WHERE event.id = $1 RETURNING version
    ), booking AS (
        INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at,
                             expires_at, max_expires_at, request_key, fingerprint, version)
        SELECT $1, $2, $3, $4, 'held', $5, 0, $5, 'EUR', now(), now() + interval '10 minutes',
               now() + interval '10 minutes', $6, $6, version FROM event
        RETURNING created_at, expires_at, version
    ), line AS (
        INSERT INTO line (event_id, booking_id, number, pool, tariff, seat, quantity, unit_price, live)
        SELECT $1, $2, 0, 0, 0, NULL, 1, $5, true FROM event
    ), fact AS (
        INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data)
        SELECT $1, version, now(), 'held', $2, $7, '{}' FROM event
    )
    SELECT * FROM booking
"""

_layouts: dict[bytes, Layout] = {}
_pools: dict[str, asyncio.Task[Any]] = {}


async def bare(call: Call) -> Answer:
    """Neither token nor body: what the server can do at all."""
    return Answer(Health(status="ok"), 201)


async def no_op(call: Call) -> Answer:
    """The same request and the same answer as a hold, with nothing in between."""
    return await _answer(call, _event(call), MOMENT, MOMENT, 1)


async def for_update(call: Call) -> Answer:
    """One transaction for each request, which locks the event's row."""
    event, booking, key = _event(call), ids.new_id(), request_key(call)
    pool = await _pool(call)
    async with pool.acquire() as connection, connection.transaction():
        row = await connection.fetchrow("SELECT version FROM event WHERE id = $1 FOR UPDATE", event)
        left = await connection.fetchrow(
            """SELECT clock_timestamp() AS now, capacity - held - sold AS left FROM pool
               WHERE event_id = $1 AND number = 0""",
            event,
        )
        if left["left"] < 1:
            raise RefusedError(Refusal.SOLD_OUT)
        now, version = left["now"], row["version"] + 1
        await connection.execute(
            _INSERTS, event, booking, call.by.org, call.body.user, 100, now, now + timedelta(minutes=10), key, version
        )
        await connection.execute(_LINE, event, booking, 100)
        await connection.execute("UPDATE pool SET held = held + 1 WHERE event_id = $1 AND number = 0", event)
        await connection.execute(_FACT, event, version, now, booking, call.by.actor)
        await connection.execute("UPDATE event SET version = $2 WHERE id = $1", event, version)
    return await _answer(call, booking, now, now + timedelta(minutes=10), version)


async def guarded(call: Call) -> Answer:
    """One statement for each request, whose guard is in its WHERE clause."""
    event, booking = _event(call), ids.new_id()
    pool = await _pool(call)
    row = await pool.fetchrow(
        _GUARDED, event, booking, call.by.org, call.body.user, 100, request_key(call), call.by.actor
    )
    if row is None:
        raise RefusedError(Refusal.SOLD_OUT)
    return await _answer(call, booking, row["created_at"], row["expires_at"], row["version"])


def _event(call: Call) -> bytes:
    event = ids.parse_event(call.path["id"])
    assert event is not None
    return event


async def _pool(call: Call) -> Any:
    url = call.house.settings.database_url
    assert url is not None
    if url not in _pools:
        _pools[url] = asyncio.create_task(_open(url))
    return await _pools[url]


async def _open(url: str) -> Any:
    return await asyncpg.create_pool(url, min_size=1, max_size=CONNECTIONS, init=db.speak_bytes)


async def _answer(call: Call, booking: bytes, now: Any, expires_at: Any, version: int) -> Answer:
    event = _event(call)
    if event not in _layouts:
        _layouts.update(await call.house.desk.layouts(call.house.pool, {event: 2}))
    made = Booking(
        id=booking,
        event=event,
        org=call.by.org,
        user=call.body.user,
        status=Status.HELD,
        lines=(Line(0, 0, None, 1, 100),),
        subtotal=100,
        tax=0,
        total=100,
        currency="EUR",
        created_at=now,
        expires_at=expires_at,
        max_expires_at=expires_at,
        request_key=booking,
        fingerprint=booking,
        version=version,
    )
    return Answer(booking_view(made, _layouts[event], now), 201)


def _baseline(name: str, function: Any, who: Who, **more: Any) -> Operation:
    return Operation(
        name=name,
        method="POST",
        path=f"/bench/{name}/{{id}}",
        summary="Only for measuring.",
        who=who,
        about=About.EVENT,
        function=function,
        status=201,
        **more,
    )


BASELINES = (
    _baseline("bare", bare, Who.PUBLIC, gives=Health),
    _baseline("no_op", no_op, Who.BUYERS, takes=HoldNew, gives=BookingView, needs_idempotency_key=True),
    _baseline("for_update", for_update, Who.BUYERS, takes=HoldNew, gives=BookingView, needs_idempotency_key=True),
    _baseline("guarded", guarded, Who.BUYERS, takes=HoldNew, gives=BookingView, needs_idempotency_key=True),
)
