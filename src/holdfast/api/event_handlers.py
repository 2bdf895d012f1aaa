"""Events: what is offered, how much is left, and what happened."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import json

from holdfast import sql
from holdfast.api.call import ApiResponse, Call
from holdfast.api.responses import (
    Change,
    ChangeList,
    EventList,
    EventView,
    JournalEntryView,
    JournalList,
    PoolView,
    Progress,
    TariffView,
)
from holdfast.core.journal import EntryData
from holdfast.core.policy import Policy
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import EventStatus
from holdfast.engine import event_editor as desk
from holdfast.live.live_event import LiveEvent
from holdfast.live.messages import public_kind
from holdfast.live.snapshot import SeatSnapshot
from holdfast.runtime import ids

# Before a change everything due has to end; of an event that has ended most is left to the worker.
SWEEPS_BEFORE_CHANGE_MAX: Final = 100
SWEEPS_AT_END_MAX: Final = 2


async def create_event(call: Call) -> ApiResponse:
    async with call.services.pool.acquire() as connection:
        event = await desk.create_event(connection, call.caller.org, call.body, call.caller.actor)
    return ApiResponse(
        await _view(call, event), 201, ((b"location", f"/v1/events/{ids.format_event_id(event)}".encode()),)
    )


async def list_events(call: Call) -> ApiResponse:
    """Staff see all events of their org; everybody else sees published ones."""
    query = call.query
    org = call.caller_or_none.org if call.caller_or_none else None
    if org is None and query.org is not None:
        found = await call.services.pool.fetchrow(sql.credentials.org_by_slug, query.org)
        if found is None:
            return ApiResponse(EventList(items=[], next=None))
        org = found["id"]
    after = _cursor(query.after)
    rows = await call.services.pool.fetch(
        sql.reads.events, org, not _is_staff(call), query.status, after, query.limit + 1
    )
    items = await _views(call, rows[: query.limit])
    return ApiResponse(EventList(items=items, next=items[-1].id if len(rows) > query.limit else None))


async def get_event(call: Call) -> ApiResponse:
    return ApiResponse(await _view(call, await visible_event(call)))


async def change_event(call: Call) -> ApiResponse:
    event = await visible_event(call)
    await _sweep(call, event, SWEEPS_BEFORE_CHANGE_MAX)
    async with call.services.pool.acquire() as connection:
        await desk.change_event(connection, call.caller.org, event, call.body, call.caller.actor)
    return ApiResponse(await _view(call, event))


async def publish_event(call: Call) -> ApiResponse:
    return await _set_status(call, EventStatus.ACTIVE)


async def complete_event(call: Call) -> ApiResponse:
    return await _set_status(call, EventStatus.COMPLETED)


async def cancel_event(call: Call) -> ApiResponse:
    return await _set_status(call, EventStatus.CANCELLED)


async def get_progress(call: Call) -> ApiResponse:
    row = await call.services.pool.fetchrow(sql.reads.progress, await visible_event(call))
    is_done = row["live"] == 0 and row["refunds_due"] == 0
    return ApiResponse(Progress(**row, done=is_done))


async def get_availability(call: Call) -> ApiResponse:
    return await _shown(call, SeatSnapshot.availability_json)


async def get_seats(call: Call) -> ApiResponse:
    return await _shown(call, SeatSnapshot.seats_json)


async def _shown(call: Call, encode: Callable[[SeatSnapshot], bytes]) -> ApiResponse:
    live_event, snapshot = await visible_live_event(call)
    tag = f'"{live_event.event_version.version}.{live_event.event_version.due}"'.encode()
    if _has_already(call, tag):
        return ApiResponse(b"", 304, ((b"etag", tag),))
    return ApiResponse(encode(snapshot), headers=((b"etag", tag),))


async def list_changes(call: Call) -> ApiResponse:
    rows = await _entries(call, await visible_event(call))
    changes = [
        Change(seq=row["number"], kind=public_kind(row["kind"]), at=row["at"], seats=data.seats, pools=data.pools)
        for row, data in rows
    ]
    return ApiResponse(ChangeList(changes=changes, next=changes[-1].seq if changes else call.query.after))


async def list_journal(call: Call) -> ApiResponse:
    event = await visible_event(call)
    rows = await _entries(call, event)
    items = [
        JournalEntryView(
            seq=row["number"],
            at=row["at"],
            kind=row["kind"],
            booking=ids.format_booking_id(event, row["booking_id"]) if row["booking_id"] else None,
            payment=ids.format_payment_id(event, bytes.fromhex(data.payment)) if data.payment else None,
            actor=row["actor"],
            reason=data.reason,
            change=data.change,
            seats=data.seats,
            pools=data.pools,
        )
        for row, data in rows
    ]
    return ApiResponse(JournalList(items=items, next=items[-1].seq if len(items) == call.query.limit else None))


async def visible_event(call: Call) -> bytes:
    """The event that the path names, if the caller may know of it."""
    event = _named(call)
    row = await call.services.pool.fetchrow(sql.reads.event_owner, event)
    if row is None:
        raise RefusedError(Refusal.NOT_FOUND)
    _check_visible(call, row["org_id"], row["published_at"] is not None)
    return event


async def visible_live_event(call: Call, after: int | None = None) -> tuple[LiveEvent, SeatSnapshot]:
    """The board of that event, as new as the call, and what is on it."""
    live_event = await call.services.live_events.get(_named(call), after)
    if live_event is None or live_event.snapshot is None:
        raise RefusedError(Refusal.NOT_FOUND)
    _check_visible(call, live_event.org, live_event.is_published)
    return live_event, live_event.snapshot


def _check_visible(call: Call, org: bytes, is_published: bool) -> None:
    is_foreign = call.caller_or_none is not None and call.caller_or_none.org != org
    if is_foreign or not (is_published or _is_staff(call)):
        raise RefusedError(Refusal.NOT_FOUND)


def _named(call: Call) -> bytes:
    event = ids.parse_event_id(call.path["id"])
    if event is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return event


def _is_staff(call: Call) -> bool:
    return call.caller_or_none is not None and call.caller_or_none.user is None


def _cursor(after: str | None) -> bytes | None:
    if after is None:
        return None
    parsed = ids.parse_event_id(after)
    if parsed is None:
        raise RefusedError(Refusal.INVALID_REQUEST, "after: take it from `next` of the page before.")
    return parsed


async def _set_status(call: Call, status: EventStatus) -> ApiResponse:
    event = _named(call)
    async with call.services.pool.acquire() as connection:
        await desk.set_status(connection, call.caller.org, event, status, call.caller.actor)
    if status is not EventStatus.ACTIVE:
        await _sweep(call, event, SWEEPS_AT_END_MAX)
    return ApiResponse(await _view(call, event))


async def _sweep(call: Call, event: bytes, most: int) -> None:
    """End what is due or over before going on; what is left of very large events is for the worker."""
    for _ in range(most):
        if not await call.services.engine.sweep(event):
            return


async def _view(call: Call, event: bytes) -> EventView:
    return (await _views(call, [await call.services.pool.fetchrow(sql.reads.event, event)]))[0]


async def _views(call: Call, rows: list[Any]) -> list[EventView]:
    events = [row["id"] for row in rows]
    tariffs: dict[tuple[bytes, int], list[TariffView]] = {}
    for row in await call.services.pool.fetch(sql.reads.tariffs_of, events):
        tariff = TariffView(code=row["code"], name=row["name"], price=row["price"])
        tariffs.setdefault((row["event_id"], row["pool"]), []).append(tariff)
    pools: dict[bytes, list[PoolView]] = {event: [] for event in events}
    for row in await call.services.pool.fetch(sql.reads.pools_of, events):
        pools[row["event_id"]].append(
            PoolView(
                code=row["code"],
                name=row["name"],
                capacity=row["capacity"],
                seated=row["seated"],
                tariffs=tariffs[row["event_id"], row["number"]],
            )
        )
    return [_event_view(row, pools[row["id"]]) for row in rows]


def _event_view(row: Any, pools: list[PoolView]) -> EventView:
    return EventView(
        id=ids.format_event_id(row["id"]),
        title=row["title"],
        status=EventStatus(row["status"]),
        preset=row["preset"],
        starts_at=row["starts_at"],
        ends_at=row["ends_at"],
        timezone=row["timezone"],
        currency=row["currency"],
        tax_bps=row["tax_bps"],
        policy=json.decode(row["policy"], type=Policy),
        details=json.decode(row["details"]),
        pools=pools,
        version=row["version"],
        created_at=row["created_at"],
    )


def _has_already(call: Call, tag: bytes) -> bool:
    known = [each.strip().removeprefix(b"W/") for each in call.headers.get(b"if-none-match", b"").split(b",")]
    return tag in known or b"*" in known


async def _entries(call: Call, event: bytes) -> list[tuple[Any, EntryData]]:
    rows = await call.services.pool.fetch(sql.reads.entries, event, call.query.after, call.query.limit)
    return [(row, json.decode(row["data"], type=EntryData)) for row in rows]
