"""Closing the books: what a batch has decided is written as a few documents, and every count of rows is checked."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Raw

from holdfast import sql
from holdfast.core.facts import FactData
from holdfast.core.model import Booking
from holdfast.core.states import CLAIMS, Claim
from holdfast.db import Connection
from holdfast.desk.opening import Books
from holdfast.desk.rows import Row, bytea, check, document
from holdfast.desk.saving_money import save_messages, save_money


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
    data: FactData


async def save(connection: Connection, opened: Books) -> None:
    await _save_moved(connection, opened)
    await _save_new(connection, opened)
    await _save_handed(connection, opened)
    await save_money(connection, opened)
    await save_messages(connection, opened)


async def _save_moved(connection: Connection, opened: Books) -> None:
    moved: list[Row] = []
    freed: list[Row] = []
    retaken: list[Row] = []
    for event, book in opened.books.items():
        for id_, was in book.changed.items():
            b = book.bookings[id_]
            row = MovedRow(event.hex(), id_.hex(), was, b.status, b.expires_at, b.reason, b.version)
            moved.append(row)
            claimed, claims = CLAIMS[was] is not Claim.NONE, CLAIMS[b.status] is not Claim.NONE
            if claimed is not claims:
                lines = retaken if claims else freed
                lines += [ClaimRow(row.event_id, row.id, number) for number in range(len(b.lines))]
    if moved:
        saved = await connection.fetchrow(sql.desk.save_moved, document(moved), document(freed))
        check("moved", saved, moved=len(moved), freed=len(freed))
    if retaken:
        saved = await connection.fetchrow(sql.desk.save_retaken, document(retaken))
        check("retaken", saved, retaken=len(retaken))


async def _save_new(connection: Connection, opened: Books) -> None:
    written = {event: book for event, book in opened.books.items() if book.facts}
    created = [book.bookings[id_] for book in written.values() for id_ in book.created]
    bookings = [_booking_row(booking) for booking in created]
    lines = [row for booking in created for row in _line_rows(booking)]
    pools: list[PoolRow] = []
    events: list[EventRow] = []
    facts: list[FactRow] = []
    for event_id, book in written.items():
        event = event_id.hex()
        pools += [PoolRow(event, pool, by.held, by.sold) for pool, by in book.shifts.items()]
        events.append(EventRow(event, opened.versions[event_id], book.version))
        facts += [FactRow(event, f.number, f.kind, f.booking.id.hex(), f.actor, f.data) for f in book.facts]
    rows: dict[str, Sequence[Row]] = {
        "booked": bookings,
        "lined": lines,
        "counted": pools,
        "versioned": events,
        "noted": facts,
    }
    documents = [document(each) for each in rows.values()]
    saved = await connection.fetchrow(sql.desk.save_new, *documents, opened.now)
    check("new", saved, **{name: len(each) for name, each in rows.items()})


async def _save_handed(connection: Connection, opened: Books) -> None:
    handed = [
        HandedRow(event.hex(), id_.hex(), b.user, b.email, b.language, b.generation)
        for event, book in opened.books.items()
        for id_ in book.handed
        if (b := book.bookings[id_])
    ]
    if handed:
        saved = await connection.fetchrow(sql.desk.save_handed, document(handed))
        check("handed", saved, handed=len(handed))


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
