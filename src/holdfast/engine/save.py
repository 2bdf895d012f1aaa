"""Closing the books: what a batch has decided is written as a few documents, and every count of rows is checked."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Raw

from holdfast import sql
from holdfast.core.journal import EntryData
from holdfast.core.model import Booking
from holdfast.core.states import CLAIMS, Claim
from holdfast.engine.load import LoadedBatch
from holdfast.engine.rows import Row, bytea, check, document
from holdfast.engine.save_payments import save_notifications, save_payments
from holdfast.runtime.db import Connection


class MovedRow(Row):
    event_id: str
    id: str
    was: str
    status: str
    expires_at: datetime | None
    reason: str | None
    version: int


class ClaimRow(Row):
    event_id: str
    booking_id: str
    number: int


class HandedRow(Row):
    event_id: str
    id: str
    user_id: str
    email: str | None
    language: str | None
    generation: int


class BookingRow(Row):
    event_id: str
    id: str
    org_id: str
    user_id: str
    status: str
    subtotal: int
    tax: int
    currency: str
    created_at: datetime
    request_key: str
    fingerprint: str
    version: int
    expires_at: datetime | None = None
    max_expires_at: datetime | None = None
    cart_hash: str | None = None
    details: Raw | None = None
    email: str | None = None
    language: str | None = None
    reason: str | None = None


class LineRow(Row):
    event_id: str
    booking_id: str
    number: int
    pool: int
    tariff: int
    quantity: int
    unit_price: int
    live: bool
    seat: int | None = None


class PoolRow(Row):
    event_id: str
    number: int
    held: int
    sold: int


class EventRow(Row):
    id: str
    was: int
    version: int


class FactRow(Row):
    event_id: str
    number: int
    kind: str
    booking_id: str
    actor: str
    data: EntryData


async def save(connection: Connection, loaded: LoadedBatch) -> None:
    await _save_moved(connection, loaded)
    await _save_new(connection, loaded)
    await _save_handed(connection, loaded)
    await save_payments(connection, loaded)
    await save_notifications(connection, loaded)


async def _save_moved(connection: Connection, loaded: LoadedBatch) -> None:
    moved: list[Row] = []
    freed: list[Row] = []
    retaken: list[Row] = []
    for event, state in loaded.states.items():
        for id_, was in state.changed.items():
            b = state.bookings[id_]
            row = MovedRow(event.hex(), id_.hex(), was, b.status, b.expires_at, b.reason, b.version)
            moved.append(row)
            claimed, claims = CLAIMS[was] is not Claim.NONE, CLAIMS[b.status] is not Claim.NONE
            if claimed is not claims:
                lines = retaken if claims else freed
                lines += [ClaimRow(row.event_id, row.id, number) for number in range(len(b.lines))]
    if moved:
        saved = await connection.fetchrow(sql.engine.save_moved, document(moved), document(freed))
        check("moved", saved, moved=len(moved), freed=len(freed))
    if retaken:
        saved = await connection.fetchrow(sql.engine.save_retaken, document(retaken))
        check("retaken", saved, retaken=len(retaken))


async def _save_new(connection: Connection, loaded: LoadedBatch) -> None:
    written = {event: state for event, state in loaded.states.items() if state.entries}
    created = [state.bookings[id_] for state in written.values() for id_ in state.created]
    bookings = [_booking_row(booking) for booking in created]
    lines = [row for booking in created for row in _line_rows(booking)]
    pools: list[PoolRow] = []
    events: list[EventRow] = []
    entries: list[FactRow] = []
    for event_id, state in written.items():
        event = event_id.hex()
        pools += [PoolRow(event, pool, by.held, by.sold) for pool, by in state.shifts.items()]
        events.append(EventRow(event, loaded.versions[event_id], state.version))
        entries += [FactRow(event, f.number, f.kind, f.booking.id.hex(), f.actor, f.data) for f in state.entries]
    rows: dict[str, Sequence[Row]] = {
        "booked": bookings,
        "lined": lines,
        "counted": pools,
        "versioned": events,
        "noted": entries,
    }
    documents = [document(each) for each in rows.values()]
    saved = await connection.fetchrow(sql.engine.save_new, *documents, loaded.now)
    check("new", saved, **{name: len(each) for name, each in rows.items()})


async def _save_handed(connection: Connection, loaded: LoadedBatch) -> None:
    handed = [
        HandedRow(event.hex(), id_.hex(), b.user, b.email, b.language, b.generation)
        for event, state in loaded.states.items()
        for id_ in state.transferred
        if (b := state.bookings[id_])
    ]
    if handed:
        saved = await connection.fetchrow(sql.engine.save_handed, document(handed))
        check("handed", saved, transferred=len(handed))


def _booking_row(booking: Booking) -> BookingRow:
    return BookingRow(
        event_id=booking.event.hex(),
        id=booking.id.hex(),
        org_id=booking.org.hex(),
        user_id=booking.user,
        status=booking.status,
        subtotal=booking.subtotal,
        tax=booking.tax,
        currency=booking.currency,
        created_at=booking.created_at,
        request_key=bytea(booking.request_key),
        fingerprint=bytea(booking.fingerprint),
        version=booking.version,
        expires_at=booking.expires_at,
        max_expires_at=booking.max_expires_at,
        cart_hash=None if booking.cart_hash is None else bytea(booking.cart_hash),
        details=None if booking.details is None else Raw(booking.details),
        email=booking.email,
        language=booking.language,
        reason=booking.reason,
    )


def _line_rows(booking: Booking) -> list[LineRow]:
    event, id_ = booking.event.hex(), booking.id.hex()
    live = CLAIMS[booking.status] is not Claim.NONE
    return [
        LineRow(event, id_, number, line.pool, line.tariff, line.quantity, line.unit_price, live, line.seat)
        for number, line in enumerate(booking.lines)
    ]
