"""Events: creating, changing and ending them, their availability, and their journal."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import structlog
from msgspec import Struct, UnsetType

from holdfast import sql
from holdfast.api.call import ApiResponse, Call
from holdfast.api.event_search import (
    BEGINNING,
    EARLIEST,
    LATEST,
    SCANNED_MAX,
    EventCursor,
    clamp_time,
    parse_cursor,
    search_patterns,
)
from holdfast.api.requests import Empty, EventsQuery, JournalQuery
from holdfast.api.responses import (
    Change,
    ChangeList,
    EventList,
    EventView,
    JournalEntryView,
    JournalList,
    PoolView,
    Progress,
    SeatMap,
    TariffView,
)
from holdfast.core.actors import reveal_customer
from holdfast.core.buyer_form import ContactRules, Question
from holdfast.core.event_schemas import EventChange, EventNew
from holdfast.core.journal import EntryData
from holdfast.core.policy import Policy
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import invalid_field
from holdfast.core.sales_window import pool_window, schedule_of
from holdfast.core.shift import Shift
from holdfast.core.states import EventStatus
from holdfast.engine import event_editor
from holdfast.live.live_event import LiveEvent
from holdfast.live.messages import feed_kind
from holdfast.live.snapshot import Availability, SeatSnapshot
from holdfast.runtime import ids
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS, DatabaseScope, Record, read_row
from holdfast.sql import NamedStatement

log = structlog.get_logger()

# A change waits until every due hold has expired. The worker ends most bookings of an event that was cancelled.
SWEEPS_BEFORE_CHANGE_MAX: Final = 100
SWEEPS_AT_END_MAX: Final = 2
# A page of events ends with the event that reaches this size, roughly.
EVENTS_PAGE_BYTES: Final = 1024 * 1024
# A page of the journal ends with the entry that reaches this size.
JOURNAL_PAGE_BYTES: Final = 512 * 1024


class EventRow(Struct, frozen=True):
    id: bytes
    status: EventStatus
    version: int
    title: str
    preset: str | None
    starts_at: datetime
    ends_at: datetime | None
    timezone: str
    currency: str
    tax_bps: int
    policy: Policy
    details: dict[str, Any]
    sales_open_at: datetime | None
    sales_close_at: datetime | None
    contact: ContactRules
    questions: list[Question]
    payment_instructions: str | None
    providers: list[str] | None
    shift: Shift | None
    series_id: bytes | None
    created_at: datetime


class ListedEventRow(EventRow, frozen=True):
    # How many events the page would have if they were small.
    found: int


class PoolRow(Struct, frozen=True):
    event_id: bytes
    number: int
    code: str
    name: str
    seated: bool
    capacity: int
    starts_at: datetime | None
    ends_at: datetime | None
    sales_open_at: datetime | None
    sales_close_at: datetime | None


class TariffRow(Struct, frozen=True):
    event_id: bytes
    pool: int
    code: str
    name: str
    price: int
    needs_companion: bool


class EntryRow(Struct, frozen=True):
    number: int
    at: datetime
    kind: str
    booking_id: bytes | None
    actor: str
    data: EntryData
    # How many entries the page would have if they were small.
    found: int


class HoldersRow(Struct, frozen=True):
    """`user_by_booking` has the ids of bookings in hexadecimal."""

    actor_key: bytes
    user_by_booking: dict[str, str]


class OwnerRow(Struct, frozen=True):
    org_id: bytes
    published_at: datetime | None


async def create_event(call: Call, body: EventNew) -> ApiResponse[EventView]:
    check_providers(call, body.providers)
    event = await event_editor.create_event(
        call.services.database, call.caller.org, body, call.caller.actor, call.services.settings.quotas
    )
    location = f"/v1/events/{ids.format_event_id(event)}".encode()
    return ApiResponse(await _view(call, event), 201, ((b"location", location),))


def check_providers(call: Call, providers: list[str] | UnsetType | None) -> None:
    """A name with a typo would make the event unpayable."""
    unknown = [name for name in providers or () if name not in call.services.providers]
    if unknown:
        raise RefusedError(Refusal.UNKNOWN_PROVIDER, f"The payment provider `{unknown[0]}` is not set up here.")


async def list_events(call: Call, query: EventsQuery) -> ApiResponse[EventList]:
    """Staff list every event of their org; everyone else lists published events."""
    after = parse_cursor(query.after) if query.after is not None else BEGINNING
    if after is None:
        raise invalid_field("after", "must be the `next` of the previous page")
    statement, scope_values = await _list_statement(call, query)
    if statement is None:
        return ApiResponse(EventList(items=[], next=None))
    patterns = search_patterns(query.q)
    scope = call.services.database.all_events
    records = await scope.fetch(
        *statement(
            **scope_values,
            only_published=not call.is_staff,
            status=query.status,
            earliest=clamp_time(query.earliest or EARLIEST),
            before=clamp_time(query.before or LATEST),
            patterns=patterns,
            after_at=after.at,
            after_id=after.id,
            limit=query.limit + 1,
            scan_max=SCANNED_MAX if patterns else query.limit + 1,
            bytes_max=EVENTS_PAGE_BYTES,
        )
    )
    rows = [read_row(ListedEventRow, record) for record in records if record["id"] is not None]
    items = await _views(scope, rows[: query.limit])
    return ApiResponse(EventList(items=items, next=_next_cursor(rows, len(items), records, is_search=bool(patterns))))


async def _list_statement(call: Call, query: EventsQuery) -> tuple[NamedStatement | None, dict[str, object]]:
    """The statement that lists what the caller may see, and its own parameters. None: no such org or series exists."""
    org = call.caller_or_none.org if call.caller_or_none else None
    if org is None and query.org is not None:
        org = await call.services.database.shared.fetchval(sql.credentials.org_by_slug, query.org)
        if org is None:
            return None, {}
    if query.series is not None:
        series = ids.parse_series_id(query.series)
        owner = await call.services.database.shared.fetchval(sql.series.owner, series) if series else None
        is_visible = owner is not None and org in (None, owner)
        return (sql.reads.events_of_series, {"series": series}) if is_visible else (None, {})
    values: dict[str, object] = {"has_earliest": query.earliest is not None}
    return (sql.reads.events_of_org, {**values, "org": org}) if org else (sql.reads.events_of_all_orgs, values)


def _next_cursor(
    rows: Sequence[ListedEventRow], shown: int, records: Sequence[Record], *, is_search: bool
) -> str | None:
    """A search that looked at too many events continues where it stopped, even if it has found few."""
    if rows and rows[0].found > shown:
        return str(EventCursor(rows[shown - 1].starts_at, rows[shown - 1].id))
    if is_search and records[0]["scan_end_id"] is not None:
        return str(EventCursor(records[0]["scan_end_at"], records[0]["scan_end_id"]))
    return None


async def get_event(call: Call) -> ApiResponse[EventView]:
    return ApiResponse(await _view(call, await require_event(call)))


async def change_event(call: Call, body: EventChange) -> ApiResponse[EventView]:
    event = await require_event(call)
    check_providers(call, body.providers)
    await _sweep(call, event, SWEEPS_BEFORE_CHANGE_MAX)
    await event_editor.change_event(
        call.services.database, call.caller.org, event, body, call.caller.actor, call.services.settings.quotas
    )
    await _tell_redis(call, event)
    return ApiResponse(await _view(call, event))


async def publish_event(call: Call, body: Empty) -> ApiResponse[EventView]:
    return await _set_status(call, EventStatus.ACTIVE)


async def complete_event(call: Call, body: Empty) -> ApiResponse[EventView]:
    return await _set_status(call, EventStatus.COMPLETED)


async def cancel_event(call: Call, body: Empty) -> ApiResponse[EventView]:
    return await _set_status(call, EventStatus.CANCELLED)


async def get_progress(call: Call) -> ApiResponse[Progress]:
    event = await require_event(call)
    progress = await call.services.reports.event(event).row(Progress, sql.reads.progress, event)
    assert progress is not None
    return ApiResponse(progress)


async def get_availability(call: Call) -> ApiResponse[Availability]:
    return ApiResponse(*await _encode_snapshot(call, SeatSnapshot.availability_json))


async def get_seats(call: Call) -> ApiResponse[SeatMap]:
    return ApiResponse(*await _encode_snapshot(call, SeatSnapshot.seats_json))


async def _encode_snapshot(
    call: Call, encode: Callable[[SeatSnapshot], bytes | tuple[bytes, ...]]
) -> tuple[bytes | tuple[bytes, ...], int, tuple[tuple[bytes, bytes]]]:
    """Body, status and headers: the encoded snapshot, or 304 if the caller has it."""
    live_event, snapshot = await require_live_event(call)
    etag = f'"{live_event.event_version.version}.{live_event.event_version.due}"'.encode()
    if _matches_etag(call, etag):
        return b"", 304, ((b"etag", etag),)
    return encode(snapshot), 200, ((b"etag", etag),)


def _matches_etag(call: Call, etag: bytes) -> bool:
    tags = [tag.strip().removeprefix(b"W/") for tag in call.headers.get(b"if-none-match", b"").split(b",")]
    return etag in tags or b"*" in tags


async def list_changes(call: Call, query: JournalQuery) -> ApiResponse[ChangeList]:
    entries = await _read_entries(call, await require_event(call), query)
    changes = [
        Change(seq=row.number, kind=feed_kind(row.kind), at=row.at, seats=row.data.seats, pools=row.data.pools)
        for row in entries
    ]
    return ApiResponse(ChangeList(changes=changes, next=changes[-1].seq if changes else query.after))


async def list_journal(call: Call, query: JournalQuery) -> ApiResponse[JournalList]:
    event = await require_event(call)
    entries = await _read_entries(call, event, query)
    holders = await _read_holders(call, event, entries)
    items = [_journal_entry_view(event, row, holders) for row in entries]
    has_more = bool(entries) and (len(entries) < entries[0].found or len(entries) == query.limit)
    return ApiResponse(JournalList(items=items, next=items[-1].seq if has_more else None))


async def _read_holders(call: Call, event: bytes, entries: list[EntryRow]) -> HoldersRow:
    bookings = list({row.booking_id for row in entries if row.booking_id is not None})
    holders = await call.services.reports.event(event).row(HoldersRow, sql.reads.holders, event, bookings)
    assert holders is not None
    return holders


def _journal_entry_view(event: bytes, row: EntryRow, holders: HoldersRow) -> JournalEntryView:
    data = row.data
    user = holders.user_by_booking.get(row.booking_id.hex()) if row.booking_id is not None else None
    return JournalEntryView(
        seq=row.number,
        at=row.at,
        kind=row.kind,
        booking=ids.format_booking_id(event, row.booking_id) if row.booking_id else None,
        payment=ids.format_payment_id(event, bytes.fromhex(data.payment)) if data.payment else None,
        actor=reveal_customer(holders.actor_key, row.actor, user),
        reason=data.reason,
        change=data.change,
        seats=data.seats,
        pools=data.pools,
    )


async def _read_entries(call: Call, event: bytes, query: JournalQuery) -> list[EntryRow]:
    """A page of the journal. Large entries make it shorter: a single entry can name half a hall."""
    database = call.services.reports if call.is_staff else call.services.database
    return await database.event(event).rows(
        EntryRow,
        *sql.reads.entries(event=event, after=query.after, limit=query.limit, bytes_max=JOURNAL_PAGE_BYTES),
    )


async def require_event(call: Call) -> bytes:
    """The id of the event in the path, which exists and which the caller may see."""
    event = call.path_id(ids.parse_event_id)
    owner = await call.services.database.event(event).row(OwnerRow, sql.reads.event_owner, event)
    if owner is None:
        raise RefusedError(Refusal.NOT_FOUND)
    _check_visible(call, owner.org_id, owner.published_at is not None)
    return event


async def require_live_event(call: Call, after: int | None = None) -> tuple[LiveEvent, SeatSnapshot]:
    """The event in the path from the read model, brought up to date, and its snapshot."""
    live_event = await call.services.live_events.get(call.path_id(ids.parse_event_id), after)
    if live_event is None or live_event.snapshot is None:
        raise RefusedError(Refusal.NOT_FOUND)
    _check_visible(call, live_event.org, live_event.is_published)
    return live_event, live_event.snapshot


def _check_visible(call: Call, org: bytes, is_published: bool) -> None:
    is_foreign = call.caller_or_none is not None and call.caller_or_none.org != org
    if is_foreign or not (is_published or call.is_staff):
        raise RefusedError(Refusal.NOT_FOUND)


async def _set_status(call: Call, status: EventStatus) -> ApiResponse[EventView]:
    event = call.path_id(ids.parse_event_id)
    await event_editor.set_status(call.services.database, call.caller.org, event, status, call.caller.actor)
    await _tell_redis(call, event)
    if status is not EventStatus.ACTIVE:
        await _sweep(call, event, SWEEPS_AT_END_MAX)
    return ApiResponse(await _view(call, event))


async def _tell_redis(call: Call, event: bytes) -> None:
    if call.services.redis is not None:
        await call.services.redis.event_changed(call.caller.org, event)


async def _sweep(call: Call, event: bytes, batches_max: int) -> None:
    """Expire due holds and end the bookings of an ended event. If the event is very large, or the sweep fails,
    the worker finishes."""
    try:
        for _ in range(batches_max):
            if not await call.services.engine.sweep(event):
                return
    except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
        log.warning("sweep_left_to_worker", event_id=ids.format_event_id(event), error=type(error).__name__)


async def _view(call: Call, event: bytes) -> EventView:
    scope = call.services.database.event(event)
    row = await scope.row(EventRow, sql.reads.event, event)
    assert row is not None
    (view,) = await _views(scope, [row])
    return view


async def _views(scope: DatabaseScope, rows: Sequence[EventRow]) -> list[EventView]:
    events = [row.id for row in rows]
    tariffs: dict[tuple[bytes, int], list[TariffView]] = {}
    for tariff in await scope.rows(TariffRow, sql.reads.tariffs_of, events):
        view = TariffView(
            code=tariff.code, name=tariff.name, price=tariff.price, needs_companion=tariff.needs_companion
        )
        tariffs.setdefault((tariff.event_id, tariff.pool), []).append(view)
    pools: dict[bytes, list[PoolView]] = {event: [] for event in events}
    for pool in await scope.rows(PoolRow, sql.reads.pools_of, events):
        pools[pool.event_id].append(_pool_view(pool, tariffs[pool.event_id, pool.number]))
    return [event_view(row, pools[row.id]) for row in rows]


def _pool_view(row: PoolRow, tariffs: list[TariffView]) -> PoolView:
    return PoolView(
        code=row.code,
        name=row.name,
        capacity=row.capacity,
        seated=row.seated,
        tariffs=tariffs,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        sales_open_at=row.sales_open_at,
        sales_close_at=row.sales_close_at,
    )


def _last_close(row: EventRow, pools: list[PoolView]) -> datetime:
    """When the last pool closes by default. A slot closes when it begins, the others when the event does."""
    event = schedule_of(row)
    windows = [pool_window(event, schedule_of(pool)) for pool in pools]
    return max(window.closes_at for window in windows)


def event_view(row: EventRow, pools: list[PoolView]) -> EventView:
    return EventView(
        id=ids.format_event_id(row.id),
        title=row.title,
        status=row.status,
        preset=row.preset,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        timezone=row.timezone,
        currency=row.currency,
        tax_bps=row.tax_bps,
        policy=row.policy,
        details=row.details,
        sales_open_at=row.sales_open_at,
        sales_close_at=row.sales_close_at or _last_close(row, pools),
        contact=row.contact,
        questions=row.questions,
        payment_instructions=row.payment_instructions,
        providers=row.providers,
        shift=row.shift,
        series=ids.format_series_id(row.series_id) if row.series_id is not None else None,
        pools=pools,
        version=row.version,
        created_at=row.created_at,
    )
