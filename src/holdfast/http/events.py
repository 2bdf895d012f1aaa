"""Events: what is offered, how much is left, and what happened."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import json

from holdfast import ids, sql
from holdfast.core.facts import FactData
from holdfast.core.model import Policy
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import EventStatus
from holdfast.desk import events as desk
from holdfast.http.boards import Board
from holdfast.http.feed import public
from holdfast.http.operation import Answer, Call
from holdfast.http.picture import Picture
from holdfast.http.views import (
    Change,
    ChangeList,
    EventList,
    EventView,
    FactList,
    FactView,
    PoolView,
    Progress,
    TariffView,
)

# Before a change everything due has to end; of an event that has ended most is left to the worker.
SWEEPS_BEFORE_CHANGE_MAX: Final = 100
SWEEPS_AT_END_MAX: Final = 2


async def create_event(call: Call) -> Answer:
    async with call.house.pool.acquire() as connection:
        event = await desk.create_event(connection, call.by.org, call.body, call.by.actor)
    return Answer(await _view(call, event), 201, ((b"location", f"/v1/events/{ids.event_text(event)}".encode()),))


async def list_events(call: Call) -> Answer:
    """Staff see all events of their org; everybody else sees published ones."""
    query = call.query
    org = call.caller.org if call.caller else None
    if org is None and query.org is not None:
        found = await call.house.pool.fetchrow(sql.access.org_by_slug, query.org)
        if found is None:
            return Answer(EventList(items=[], next=None))
        org = found["id"]
    after = _cursor(query.after)
    rows = await call.house.pool.fetch(sql.reads.events, org, not _is_staff(call), query.status, after, query.limit + 1)
    items = await _views(call, rows[: query.limit])
    return Answer(EventList(items=items, next=items[-1].id if len(rows) > query.limit else None))


async def get_event(call: Call) -> Answer:
    return Answer(await _view(call, await visible_event(call)))


async def change_event(call: Call) -> Answer:
    event = await visible_event(call)
    await _sweep(call, event, SWEEPS_BEFORE_CHANGE_MAX)
    async with call.house.pool.acquire() as connection:
        await desk.change_event(connection, call.by.org, event, call.body, call.by.actor)
    return Answer(await _view(call, event))


async def publish_event(call: Call) -> Answer:
    return await _set_status(call, EventStatus.ACTIVE)


async def complete_event(call: Call) -> Answer:
    return await _set_status(call, EventStatus.COMPLETED)


async def cancel_event(call: Call) -> Answer:
    return await _set_status(call, EventStatus.CANCELLED)


async def get_progress(call: Call) -> Answer:
    row = await call.house.pool.fetchrow(sql.reads.progress, await visible_event(call))
    is_done = row["live"] == 0 and row["refunds_due"] == 0
    return Answer(Progress(**row, done=is_done))


async def get_availability(call: Call) -> Answer:
    return await _shown(call, Picture.availability_answer)


async def get_seats(call: Call) -> Answer:
    return await _shown(call, Picture.seats_answer)


async def _shown(call: Call, encode: Callable[[Picture], bytes]) -> Answer:
    board, picture = await visible_board(call)
    tag = f'"{board.pulse.version}.{board.pulse.due}"'.encode()
    if _has_already(call, tag):
        return Answer(b"", 304, ((b"etag", tag),))
    return Answer(encode(picture), headers=((b"etag", tag),))


async def list_changes(call: Call) -> Answer:
    rows = await _facts(call, await visible_event(call))
    changes = [
        Change(seq=row["number"], kind=public(row["kind"]), at=row["at"], seats=data.seats, pools=data.pools)
        for row, data in rows
    ]
    return Answer(ChangeList(changes=changes, next=changes[-1].seq if changes else call.query.after))


async def list_journal(call: Call) -> Answer:
    event = await visible_event(call)
    rows = await _facts(call, event)
    items = [
        FactView(
            seq=row["number"],
            at=row["at"],
            kind=row["kind"],
            booking=ids.booking_text(event, row["booking_id"]) if row["booking_id"] else None,
            payment=ids.payment_text(event, bytes.fromhex(data.payment)) if data.payment else None,
            actor=row["actor"],
            reason=data.reason,
            change=data.change,
            seats=data.seats,
            pools=data.pools,
        )
        for row, data in rows
    ]
    return Answer(FactList(items=items, next=items[-1].seq if len(items) == call.query.limit else None))


async def visible_event(call: Call) -> bytes:
    """The event that the path names, if the caller may know of it."""
    event = _named(call)
    row = await call.house.pool.fetchrow(sql.reads.event_owner, event)
    if row is None:
        raise RefusedError(Refusal.NOT_FOUND)
    _check_visible(call, row["org_id"], row["published_at"] is not None)
    return event


async def visible_board(call: Call, after: int | None = None) -> tuple[Board, Picture]:
    """The board of that event, as new as the call, and what is on it."""
    board = await call.house.boards.get(_named(call), after)
    if board is None or board.picture is None:
        raise RefusedError(Refusal.NOT_FOUND)
    _check_visible(call, board.org, board.is_published)
    return board, board.picture


def _check_visible(call: Call, org: bytes, is_published: bool) -> None:
    is_foreign = call.caller is not None and call.caller.org != org
    if is_foreign or not (is_published or _is_staff(call)):
        raise RefusedError(Refusal.NOT_FOUND)


def _named(call: Call) -> bytes:
    event = ids.parse_event(call.path["id"])
    if event is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return event


def _is_staff(call: Call) -> bool:
    return call.caller is not None and call.caller.user is None


def _cursor(after: str | None) -> bytes | None:
    if after is None:
        return None
    parsed = ids.parse_event(after)
    if parsed is None:
        raise RefusedError(Refusal.INVALID_REQUEST, "after: take it from `next` of the page before.")
    return parsed


async def _set_status(call: Call, status: EventStatus) -> Answer:
    event = _named(call)
    async with call.house.pool.acquire() as connection:
        await desk.set_status(connection, call.by.org, event, status, call.by.actor)
    if status is not EventStatus.ACTIVE:
        await _sweep(call, event, SWEEPS_AT_END_MAX)
    return Answer(await _view(call, event))


async def _sweep(call: Call, event: bytes, most: int) -> None:
    """End what is due or over before going on; what is left of very large events is for the worker."""
    for _ in range(most):
        if not await call.house.desk.sweep(event):
            return


async def _view(call: Call, event: bytes) -> EventView:
    return (await _views(call, [await call.house.pool.fetchrow(sql.reads.event, event)]))[0]


async def _views(call: Call, rows: list[Any]) -> list[EventView]:
    events = [row["id"] for row in rows]
    tariffs: dict[tuple[bytes, int], list[TariffView]] = {}
    for row in await call.house.pool.fetch(sql.reads.tariffs_of, events):
        tariff = TariffView(code=row["code"], name=row["name"], price=row["price"])
        tariffs.setdefault((row["event_id"], row["pool"]), []).append(tariff)
    pools: dict[bytes, list[PoolView]] = {event: [] for event in events}
    for row in await call.house.pool.fetch(sql.reads.pools_of, events):
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
        id=ids.event_text(row["id"]),
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


async def _facts(call: Call, event: bytes) -> list[tuple[Any, FactData]]:
    rows = await call.house.pool.fetch(sql.reads.facts, event, call.query.after, call.query.limit)
    return [(row, json.decode(row["data"], type=FactData)) for row in rows]
