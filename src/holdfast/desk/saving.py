"""Closing the books: what a batch has decided is written as a few documents, and every count of rows is checked."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Raw, Struct, json

from holdfast import sql
from holdfast.core.facts import FactData
from holdfast.core.model import Booking
from holdfast.core.states import CLAIMS, Claim
from holdfast.db import Connection
from holdfast.desk.opening import Books

_encode = json.Encoder().encode


class LostUpdateError(AssertionError):
    """Fewer or more rows changed than were decided. This is a bug in the engine, and must be loud."""


class Row(Struct, gc=False, omit_defaults=True):
    """A row to write. Its fields are the columns that `desk.sql` takes; ids and hashes are in hexadecimal."""


class MovedRow(Row):
    event_id: str
    id: str
    was: str
    status: str
    expires_at: datetime | None
    reason: str | None
    version: int


class FreedRow(Row):
    event_id: str
    booking_id: str
    number: int


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


async def _save_moved(connection: Connection, opened: Books) -> None:
    moved: list[Row] = []
    freed: list[Row] = []
    for event, book in opened.books.items():
        for id_, was in book.changed.items():
            b = book.bookings[id_]
            row = MovedRow(event.hex(), id_.hex(), was, b.status, b.expires_at, b.reason, b.version)
            moved.append(row)
            if CLAIMS[b.status] is Claim.NONE and CLAIMS[was] is not Claim.NONE:
                freed += [FreedRow(row.event_id, row.id, number) for number in range(len(b.lines))]
    if moved:
        saved = await connection.fetchrow(sql.desk.save_moved, _document(moved), _document(freed))
        _check("moved", saved, moved=len(moved), freed=len(freed))


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
        facts += [FactRow(event, f.number, f.kind, f.booking.hex(), f.actor, f.data) for f in book.facts]
    rows: dict[str, Sequence[Row]] = {
        "booked": bookings,
        "lined": lines,
        "counted": pools,
        "versioned": events,
        "noted": facts,
    }
    documents = [_document(each) for each in rows.values()]
    saved = await connection.fetchrow(sql.desk.save_new, *documents, opened.now)
    _check("new", saved, **{name: len(each) for name, each in rows.items()})


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
        request_key=_bytea(booking.request_key),
        fingerprint=_bytea(booking.fingerprint),
        version=booking.version,
        expires_at=booking.expires_at,
        max_expires_at=booking.max_expires_at,
        cart_hash=None if booking.cart_hash is None else _bytea(booking.cart_hash),
        details=None if booking.details is None else Raw(booking.details),
        reason=booking.reason,
    )


def _line_rows(booking: Booking) -> list[LineRow]:
    event, id_ = booking.event.hex(), booking.id.hex()
    live = CLAIMS[booking.status] is not Claim.NONE
    return [
        LineRow(event, id_, number, line.pool, line.tariff, line.quantity, line.unit_price, live, line.seat)
        for number, line in enumerate(booking.lines)
    ]


def _document(rows: Sequence[Row]) -> str:
    return _encode(rows).decode()


def _bytea(raw: bytes) -> str:
    return "\\x" + raw.hex()


def _check(what: str, saved: Any, **expected: int) -> None:
    if dict(saved) != expected:
        raise LostUpdateError(f"{what}: {dict(saved)} instead of {expected}")
