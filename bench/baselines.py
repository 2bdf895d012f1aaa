"""Baselines for the lanes, behind the same HTTP stack, with the same tables and the same response.

`for_update` and `guarded` never oversell. They are what a careful engineer writes who handles one request at a time.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from holdfast.api.access import Access
from holdfast.api.booking_handlers import place_hold, request_key
from holdfast.api.booking_schemas import BookingView, HoldNew, booking_view, hold_command
from holdfast.api.call import ApiResponse, Call, Handler, Operation, Resource
from holdfast.api.responses import Health
from holdfast.core.booking import Booking, Line
from holdfast.core.commands import SeatItem
from holdfast.core.layout import Layout
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import Status
from holdfast.gate.early_refusal import refuse_taken_seats
from holdfast.live.live_event import LiveEvent
from holdfast.runtime import db, ids

CONNECTIONS = 16
LIVE_MAP_SECONDS = 0.05
ANY_TIME = datetime(2030, 1, 1, tzinfo=UTC)

_INSERT_BOOKING = """
    INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at,
                         expires_at, max_expires_at, request_key, fingerprint, version)
    VALUES ($1, $2, $3, $4, 'held', $5, 0, $5, 'EUR', $6, $7, $7, $8, $8, $9)
"""
_INSERT_LINE = """
    INSERT INTO line (event_id, booking_id, number, pool, tariff, seat, quantity, unit_price, live)
    VALUES ($1, $2, 0, 0, 0, NULL, 1, $3, true)
"""
_INSERT_JOURNAL_ENTRY = """
    INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data, previous)
    VALUES ($1, $2, $3, 'held', $4, $5, '{}', sha256(''))
"""
_GUARDED_HOLD = """
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
    ), journal_entry AS (
        INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data, previous)
        SELECT $1, version, now(), 'held', $2, $7, '{}', sha256('') FROM event
    )
    SELECT * FROM booking
"""

_layouts: dict[bytes, Layout] = {}
_pools: dict[str, asyncio.Task[Any]] = {}
_live_maps: dict[bytes, tuple[float, LiveEvent | None]] = {}


async def bare(call: Call) -> ApiResponse[Health]:
    """Reads neither token nor body: the upper limit of the server."""
    return ApiResponse(Health(status="ok"), 201)


async def no_op(call: Call, body: HoldNew) -> ApiResponse[BookingView]:
    """The request and the response of a hold with no work in between: the upper limit of a hold."""
    return await _respond(call, body, _event_id(call), ANY_TIME, ANY_TIME, 1)


async def for_update(call: Call, body: HoldNew) -> ApiResponse[BookingView]:
    """One transaction per request, which locks the row of the event."""
    event, booking, key = _event_id(call), ids.new_id(), request_key(call)
    pool = await _pool(call)
    async with pool.acquire() as connection, connection.transaction():
        row = await connection.fetchrow("SELECT version FROM event WHERE id = $1 FOR UPDATE", event)
        stock = await connection.fetchrow(
            """SELECT clock_timestamp() AS now, capacity - held - sold AS left FROM pool
               WHERE event_id = $1 AND number = 0""",
            event,
        )
        if stock["left"] < 1:
            raise RefusedError(Refusal.SOLD_OUT)
        now, version = stock["now"], row["version"] + 1
        await connection.execute(
            _INSERT_BOOKING,
            event,
            booking,
            call.caller.org,
            body.user,
            100,
            now,
            now + timedelta(minutes=10),
            key,
            version,
        )
        await connection.execute(_INSERT_LINE, event, booking, 100)
        await connection.execute("UPDATE pool SET held = held + 1 WHERE event_id = $1 AND number = 0", event)
        await connection.execute(_INSERT_JOURNAL_ENTRY, event, version, now, booking, call.caller.actor)
        await connection.execute("UPDATE event SET version = $2 WHERE id = $1", event, version)
    return await _respond(call, body, booking, now, now + timedelta(minutes=10), version)


async def guarded(call: Call, body: HoldNew) -> ApiResponse[BookingView]:
    """One statement per request, with the guard in its WHERE clause."""
    event, booking = _event_id(call), ids.new_id()
    pool = await _pool(call)
    row = await pool.fetchrow(
        _GUARDED_HOLD, event, booking, call.caller.org, body.user, 100, request_key(call), call.caller.actor
    )
    if row is None:
        raise RefusedError(Refusal.SOLD_OUT)
    return await _respond(call, body, booking, row["created_at"], row["expires_at"], row["version"])


async def live_map(call: Call, body: HoldNew) -> ApiResponse[BookingView]:
    """Refuses taken seats from the seat map in the memory of the process, which is up to `LIVE_MAP_SECONDS` old. It
    does not know who has a seat or who already has a booking, so the product cannot use it."""
    event = _event_id(call)
    read_at, live_event = _live_maps.get(event, (0.0, None))
    if live_event is None or time.monotonic() - read_at > LIVE_MAP_SECONDS:
        live_event = await call.services.live_events.get(event)
        _live_maps[event] = (time.monotonic(), live_event)
    layout = call.services.engine.cached_layout(event)
    if layout is not None and live_event is not None and live_event.snapshot is not None:
        command = hold_command(
            body,
            event=event,
            org=call.caller.org,
            user=body.user or "",
            actor=call.caller.actor,
            staff=True,
            request_key=request_key(call),
            client=None,
        )
        labels = [item.label for item in command.items if isinstance(item, SeatItem)]
        taken = [label for label in labels if label in live_event.snapshot.taken]
        refused = refuse_taken_seats(layout, command, live_event.read_at, taken) if taken else None
        if refused is not None:
            raise RefusedError.of(refused)
    return await place_hold(call, body)


def _event_id(call: Call) -> bytes:
    event = ids.parse_event_id(call.path["id"])
    assert event is not None
    return event


async def _pool(call: Call) -> Any:
    url = call.services.settings.database_url
    assert url is not None
    if url not in _pools:
        _pools[url] = asyncio.create_task(_create_pool(url))
    return await _pools[url]


async def _create_pool(url: str) -> Any:
    return await asyncpg.create_pool(url, min_size=1, max_size=CONNECTIONS, init=db.register_uuid_codec)


async def _respond(
    call: Call, body: HoldNew, booking: bytes, now: datetime, expires_at: datetime, version: int
) -> ApiResponse[BookingView]:
    event = _event_id(call)
    if event not in _layouts:
        _layouts.update(await call.services.engine.layouts(call.services.database, {event: 2}))
    held = Booking(
        id=booking,
        event=event,
        org=call.caller.org,
        user=body.user or "",
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
    return ApiResponse(booking_view(held, _layouts[event].items(held.lines), now), 201)


def bench_operation(handler: Handler, access: Access, *, needs_idempotency_key: bool = True) -> Operation:
    path = f"/bench/{handler.__name__}/{{id}}"
    return Operation(
        "POST",
        path,
        handler,
        access,
        Resource.EVENT,
        "For benchmarks only.",
        status=201,
        needs_idempotency_key=needs_idempotency_key,
    )


BASELINES = (
    bench_operation(bare, Access.PUBLIC, needs_idempotency_key=False),
    bench_operation(no_op, Access.BUYERS),
    bench_operation(for_update, Access.BUYERS),
    bench_operation(guarded, Access.BUYERS),
    bench_operation(live_map, Access.BUYERS),
)
