"""Closing the books: what a batch has decided is written as a few documents, and every count of rows is checked."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Raw, Struct, json

from holdfast import sql
from holdfast.core.facts import FactData
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
    bookings: list[Row] = []
    lines: list[Row] = []
    pools: list[Row] = []
    events: list[Row] = []
    facts: list[Row] = []
    for event_id, book in opened.books.items():
        if not book.facts:
            continue
        event = event_id.hex()
        for id_ in book.created:
            b = book.bookings[id_]
            booking = id_.hex()
            live = CLAIMS[b.status] is not Claim.NONE
            bookings.append(
                BookingRow(
                    event_id=event,
                    id=booking,
                    org_id=b.org.hex(),
                    user_id=b.user,
                    status=b.status,
                    subtotal=b.subtotal,
                    tax=b.tax,
                    currency=b.currency,
                    created_at=b.created_at,
                    request_key=_bytea(b.request_key),
                    fingerprint=_bytea(b.fingerprint),
                    version=b.version,
                    expires_at=b.expires_at,
                    max_expires_at=b.max_expires_at,
                    cart_hash=None if b.cart_hash is None else _bytea(b.cart_hash),
                    details=None if b.details is None else Raw(b.details),
                    reason=b.reason,
                )
            )
            for number, line in enumerate(b.lines):
                lines.append(
                    LineRow(
                        event, booking, number, line.pool, line.tariff, line.quantity, line.unit_price, live, line.seat
                    )
                )
        pools += [PoolRow(event, pool, by.held, by.sold) for pool, by in book.shifts.items()]
        events.append(EventRow(event, opened.versions[event_id], book.version))
        facts += [FactRow(event, f.number, f.kind, f.booking.hex(), f.actor, f.data) for f in book.facts]
    saved = await connection.fetchrow(
        sql.desk.save_new,
        _document(bookings),
        _document(lines),
        _document(pools),
        _document(events),
        _document(facts),
        opened.now,
    )
    _check(
        "new",
        saved,
        booked=len(bookings),
        lined=len(lines),
        counted=len(pools),
        versioned=len(events),
        noted=len(facts),
    )


def _document(rows: Sequence[Row]) -> str:
    return _encode(rows).decode()


def _bytea(raw: bytes) -> str:
    return "\\x" + raw.hex()


def _check(what: str, saved: Any, **expected: int) -> None:
    if dict(saved) != expected:
        raise LostUpdateError(f"{what}: {dict(saved)} instead of {expected}")
