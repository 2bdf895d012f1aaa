"""Checks that the stock and the status of the event are as the journal leaves them. Somebody who changes a counter and
the lines alike contradicts only the journal."""

from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.journal import EVENT_CANCELLED, EVENT_COMPLETED, EVENT_CREATED, EVENT_PUBLISHED
from holdfast.core.states import EventStatus
from holdfast.engine.findings import EventFindings
from holdfast.runtime.db import DatabaseScope

STATUS_OF_KIND: Final = {
    EVENT_CREATED: EventStatus.DRAFT,
    EVENT_PUBLISHED: EventStatus.ACTIVE,
    EVENT_COMPLETED: EventStatus.COMPLETED,
    EVENT_CANCELLED: EventStatus.CANCELLED,
}
# One cause makes one finding: a pool with one of these contradicts its own lines or seats.
POOL_FINDINGS: Final = ("held_counter", "sold_counter", "capacity_exceeded", "capacity_and_seats")
# How many seats of a booking a sentence names.
SEATS_NAMED_MAX: Final = 5


class EventStatusRow(Struct, frozen=True):
    status: str
    kind: str
    number: int


class RecordedPoolRow(Struct, frozen=True):
    """What entry `number` of the journal says about the pool, and what the pool says: None if it does not exist."""

    code: str
    number: int
    recorded_capacity: str | None
    recorded_held: str | None
    recorded_sold: str | None
    capacity: int | None
    held: int | None
    sold: int | None


class RecordedSeatsRow(Struct, frozen=True):
    id: bytes
    number: int
    recorded: list[str]
    labels: list[str]


class RecordedBlockRow(Struct, frozen=True):
    label: str
    number: int
    blocked: bool


async def check_recorded_stock(scope: DatabaseScope, event: bytes, findings: EventFindings) -> None:
    latest = await scope.row(EventStatusRow, sql.audit.event_status, event)
    if latest is not None and latest.status != STATUS_OF_KIND[latest.kind]:
        findings.add(
            "event_status",
            findings.event,
            f"The event is {latest.status}, but entry {latest.number} of the journal says "
            f"{STATUS_OF_KIND[latest.kind]}. Somebody has changed its status without the engine.",
        )
    for pool in await scope.rows(RecordedPoolRow, sql.audit.recorded_pools, event):
        if not findings.has_any(POOL_FINDINGS, pool.code):
            findings.add("pool_history", pool.code, _describe_pool(pool))
    for booking in await scope.rows(RecordedSeatsRow, sql.audit.recorded_seats, event):
        findings.add(
            "booking_seats",
            findings.booking(booking.id),
            f"Entry {booking.number} of the journal says that the booking has {_name_seats(booking.recorded)}, but its "
            f"lines have {_name_seats(booking.labels)}. Somebody has moved it to other seats without the engine. "
            "Compare both with the buyer's ticket.",
        )
    for seat in await scope.rows(RecordedBlockRow, sql.audit.recorded_blocks, event):
        was, became = ("on sale", "blocked") if seat.blocked else ("blocked", "on sale")
        findings.add(
            "seat_history",
            seat.label,
            f"Seat {seat.label} is {became}, but entry {seat.number} of the journal says that it is {was}. Somebody "
            "has changed it without the engine.",
        )


def _describe_pool(pool: RecordedPoolRow) -> str:
    if pool.capacity is None:
        return f"Entry {pool.number} of the journal changes pool {pool.code}, which does not exist. Restore the pool."
    columns = (
        ("capacity", pool.recorded_capacity, pool.capacity),
        ("held units", pool.recorded_held, pool.held),
        ("sold units", pool.recorded_sold, pool.sold),
    )
    differences = [
        f"{name}: {recorded} in the journal, {found} in the pool"
        for name, recorded, found in columns
        if recorded is not None and recorded != str(found)
    ]
    return (
        f"Pool {pool.code} is not as entry {pool.number} of the journal left it ({'; '.join(differences)}). "
        "Somebody has changed the pool or its lines without the engine."
    )


def _name_seats(labels: list[str]) -> str:
    if not labels:
        return "no seats"
    more = f" and {len(labels) - SEATS_NAMED_MAX} more" if len(labels) > SEATS_NAMED_MAX else ""
    return f"{'seat' if len(labels) == 1 else 'seats'} {', '.join(labels[:SEATS_NAMED_MAX])}{more}"
