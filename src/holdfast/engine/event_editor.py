"""Creating and changing events. This is rare, so each change has its own transaction, under the event's lock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from secrets import token_bytes
from typing import Any, Final

from asyncpg import UniqueViolationError
from msgspec import UNSET, Struct, to_builtins

from holdfast import sql
from holdfast.core.actors import KEY_BYTES, journal_actor
from holdfast.core.buyer_form import ContactRules, Question
from holdfast.core.event_schemas import (
    EventChange,
    EventNew,
    check_prices,
    check_schedule,
    check_service_fee,
    merge_contact,
    merge_policy,
)
from holdfast.core.journal import (
    EVENT_CANCELLED,
    EVENT_CHANGED,
    EVENT_COMPLETED,
    EVENT_CREATED,
    EVENT_PUBLISHED,
    NO_CHANGE,
    EntryData,
)
from holdfast.core.notification_rules import webhook_kind
from holdfast.core.policy import Policy
from holdfast.core.quotas import Quotas
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import invalid_field
from holdfast.core.sales_window import merge_schedule, schedule_of
from holdfast.core.shift import Shift
from holdfast.core.states import ENDINGS, EventStatus
from holdfast.core.stock_schemas import count_seats
from holdfast.engine.rows import VIOLATIONS, LostUpdateError, document
from holdfast.engine.stock_editor import (
    PoolCounts,
    change_pools,
    change_seats,
    charge_service_fee,
    check_quotas,
    insert_stock,
    pool_states,
    prepare_stock,
)
from holdfast.engine.transition_log import log_event_change
from holdfast.runtime import metrics
from holdfast.runtime.db import Database, DatabaseScope
from holdfast.runtime.ids import format_event_id, new_id, parse_series_id

CHANGE_MAX: Final = 2_000
DEFAULT_QUOTAS: Final = Quotas()
ENTRY_KINDS: Final = {
    EventStatus.ACTIVE: EVENT_PUBLISHED,
    EventStatus.COMPLETED: EVENT_COMPLETED,
    EventStatus.CANCELLED: EVENT_CANCELLED,
}


class _LockedEvent(Struct, frozen=True):
    status: EventStatus
    title: str
    starts_at: datetime
    ends_at: datetime | None
    timezone: str
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
    actor_key: bytes


async def create_event(
    database: Database,
    org: bytes,
    new: EventNew,
    actor: str,
    quotas: Quotas = DEFAULT_QUOTAS,
    event: bytes | None = None,
) -> bytes:
    """Create a draft. Buyers see it after somebody publishes it. Creating the same `event` again changes nothing."""
    if event is not None and await database.event(event).fetchval(sql.events.exists, event):
        return event
    policy = new.merged_policy
    pools = charge_service_fee(new.shift, new.pools)
    seats = count_seats(pools)
    await check_quotas(database.org(org), org, quotas, new_events=1, new_seats=seats)
    series = await _find_series(database, org, new.series) if new.series is not None else None
    stock = await asyncio.to_thread(prepare_stock, pools)
    event = event or new_id()
    actor_key = token_bytes(KEY_BYTES)
    async with _edit(database, event) as scope:
        inserted = await scope.execute(
            *sql.events.insert_event(
                id=event,
                org=org,
                title=new.title,
                preset=new.preset,
                starts_at=new.starts_at,
                ends_at=new.ends_at,
                timezone=new.timezone,
                currency=new.currency,
                tax_bps=new.tax_bps,
                policy=document(policy),
                details=document(new.details),
                seat_count=seats,
                sales_open_at=new.sales_open_at,
                sales_close_at=new.sales_close_at,
                contact=document(merge_contact(ContactRules(), new.contact)),
                questions=document(new.questions),
                payment_instructions=new.payment_instructions,
                providers=new.providers,
                shift=document(new.shift) if new.shift is not None else None,
                order_number=_order_number(new.shift),
                series=series,
                one_per_user=policy.one_booking_per_user,
                actor_key=actor_key,
            )
        )
        if inserted == "INSERT 0 0":
            return event
        await scope.execute(*sql.events.insert_first_entry(event=event, actor=journal_actor(actor_key, actor)))
        await insert_stock(scope, event, stock)
        if any(pool.starts_at is not None for pool in pools):
            await scope.execute(sql.events.set_last_slot, event)
    log_event_change(EVENT_CREATED, org, event, actor)
    return event


async def _find_series(database: Database, org: bytes, public_id: str) -> bytes:
    series = parse_series_id(public_id)
    if series is None or await database.org(org).fetchval(sql.series.owner, series) != org:
        raise invalid_field("series", "must be the id of a series of your org")
    return series


def _order_number(shift: Shift | None) -> str | None:
    """1042, "1042" and "1042 " are the same order."""
    return str(shift.order_number).strip() if shift is not None and shift.order_number is not None else None


@asynccontextmanager
async def _edit(database: Database, event: bytes) -> AsyncIterator[DatabaseScope]:
    """A transaction that changes what an event sells."""
    try:
        async with database.event(event).transaction() as scope:
            yield scope
    except VIOLATIONS as error:
        # Only this constraint can tell that an org uses an order number twice.
        if isinstance(error, UniqueViolationError) and error.constraint_name == "event_order_number":
            raise RefusedError(Refusal.ORDER_NUMBER_USED) from None
        metrics.INVARIANT_VIOLATIONS.add()
        raise


async def change_event(
    database: Database, org: bytes, event: bytes, change: EventChange, actor: str, quotas: Quotas = DEFAULT_QUOTAS
) -> None:
    series = await _find_series(database, org, change.series) if isinstance(change.series, str) else None
    async with _edit(database, event) as scope:
        locked = await _lock_event(scope, org, event)
        if locked.status in ENDINGS:
            raise RefusedError(Refusal.EVENT_ENDED)
        series = locked.series_id if change.series is UNSET else series
        await _change_event_row(scope, event, locked, change, series)
        shift = locked.shift if change.shift is UNSET else change.shift
        await change_pools(scope, org, event, change.pools, shift, quotas)
        if any(pool.starts_at is not UNSET for pool in change.pools):
            await scope.execute(sql.events.set_last_slot, event)
        if change.pools or _changes_rules(change):
            await _check_changed_event(scope, org, event)
        seats = await change_seats(scope, event, change.block_seats, blocked=True)
        seats |= await change_seats(scope, event, change.unblock_seats, blocked=False)
        pools = await pool_states(scope, event) if change.pools or seats else {}
        data = EntryData(seats, pools, change=_describe_change(change))
        changes_seats = bool(seats) or any(pool.seats is not UNSET for pool in change.pools)
        await _insert_revision(scope, event, locked, EVENT_CHANGED, actor, data, changes_seats=changes_seats)
    log_event_change(EVENT_CHANGED, org, event, actor)


async def set_status(database: Database, org: bytes, event: bytes, status: EventStatus, actor: str) -> None:
    """Publish, complete or cancel an event. Repeating a change has no effect, and an ended event stays ended."""
    async with _edit(database, event) as scope:
        locked = await _lock_event(scope, org, event)
        if locked.status is status:
            return
        if locked.status in ENDINGS:
            raise RefusedError(Refusal.EVENT_ENDED, f"The event is {locked.status}.")
        if locked.status is EventStatus.DRAFT and status is EventStatus.COMPLETED:
            raise RefusedError(Refusal.EVENT_NOT_ON_SALE, "The event is a draft.")
        await scope.execute(sql.events.set_status, event, status)
        # The auditor compares capacities with the journal, from the moment at which somebody can book.
        is_published = status is EventStatus.ACTIVE
        data = EntryData(pools=await pool_states(scope, event)) if is_published else NO_CHANGE
        await _insert_revision(scope, event, locked, ENTRY_KINDS[status], actor, data)
    log_event_change(ENTRY_KINDS[status], org, event, actor)


async def _insert_revision(
    scope: DatabaseScope,
    event: bytes,
    locked: _LockedEvent,
    kind: str,
    actor: str,
    data: EntryData,
    *,
    changes_seats: bool = False,
) -> None:
    inserted = await scope.execute(
        *sql.events.insert_revision(
            event=event,
            kind=kind,
            webhook_kind=webhook_kind(kind),
            public_id=format_event_id(event),
            actor=journal_actor(locked.actor_key, actor),
            data=document(data),
            changes_seats=changes_seats,
        )
    )
    if inserted != "INSERT 0 1":
        raise LostUpdateError(f"insert_revision: {inserted}")


async def _lock_event(scope: DatabaseScope, org: bytes, event: bytes) -> _LockedEvent:
    locked = await scope.row(_LockedEvent, sql.events.lock, event, org)
    if locked is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return locked


def _changes_rules(change: EventChange) -> bool:
    schedule = (change.starts_at, change.ends_at, change.sales_open_at, change.sales_close_at)
    is_scheduled = any(time is not UNSET for time in schedule)
    return is_scheduled or change.shift is not UNSET or change.policy.confirm_at_once is not UNSET


async def _check_changed_event(scope: DatabaseScope, org: bytes, event: bytes) -> None:
    """Refuse a change after which the event contradicts itself."""
    after = await _lock_event(scope, org, event)
    pools = await scope.rows(PoolCounts, sql.events.pools, event)
    check_schedule(schedule_of(after), {pool.code: schedule_of(pool) for pool in pools})
    prices = [row["price"] for row in await scope.fetch(sql.events.prices, event)]
    check_prices(after.policy, prices)
    check_service_fee(after.shift, prices)


async def _change_event_row(
    scope: DatabaseScope, event: bytes, locked: _LockedEvent, change: EventChange, series: bytes | None
) -> None:
    schedule = merge_schedule(schedule_of(locked), change)
    policy = merge_policy(locked.policy, change.policy)
    shift = locked.shift if change.shift is UNSET else change.shift
    await scope.execute(
        *sql.events.set_event(
            id=event,
            title=locked.title if change.title is UNSET else change.title,
            starts_at=schedule.starts_at,
            ends_at=schedule.ends_at,
            sales_open_at=schedule.sales_open_at,
            sales_close_at=schedule.sales_close_at,
            timezone=locked.timezone if change.timezone is UNSET else change.timezone,
            tax_bps=locked.tax_bps if change.tax_bps is UNSET else change.tax_bps,
            policy=document(policy),
            one_per_user=policy.one_booking_per_user,
            details=document(locked.details if change.details is UNSET else change.details),
            contact=document(merge_contact(locked.contact, change.contact)),
            questions=document(locked.questions if change.questions is UNSET else change.questions),
            payment_instructions=locked.payment_instructions
            if change.payment_instructions is UNSET
            else change.payment_instructions,
            providers=locked.providers if change.providers is UNSET else change.providers,
            shift=document(shift) if shift is not None else None,
            order_number=_order_number(shift),
            series=series,
        )
    )


def _describe_change(change: EventChange) -> dict[str, Any]:
    """The requested change, or only its field names if it is large, because every reader of the journal loads it."""
    fields: dict[str, Any] = to_builtins(change)
    if len(document(fields)) <= CHANGE_MAX:
        return fields
    return {"fields": sorted(name for name in fields if fields[name])}
