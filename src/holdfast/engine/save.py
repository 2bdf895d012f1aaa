"""Saving the changes of a batch as a few JSON documents. Every statement's row counts are checked."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Raw

from holdfast import sql
from holdfast.core.booking import Booking
from holdfast.core.journal import EntryData
from holdfast.core.states import CLAIMS, Claim
from holdfast.engine.load import LoadedBatch
from holdfast.engine.rows import Row, bytea, check, document
from holdfast.engine.save_payments import save_notifications, save_payments
from holdfast.runtime.db import Connection


class ChangedBookingRow(Row):
    event_id: str
    id: str
    was: str
    status: str
    expires_at: datetime | None
    reason: str | None
    version: int


class LineKeyRow(Row):
    event_id: str
    booking_id: str
    number: int


class TransferredBookingRow(Row):
    event_id: str
    id: str
    user_id: str
    email: str | None
    language: str | None
    generation: int


class NewBookingRow(Row):
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


class NewLineRow(Row):
    event_id: str
    booking_id: str
    number: int
    pool: int
    tariff: int
    quantity: int
    unit_price: int
    live: bool
    seat: int | None = None


class CounterRow(Row):
    event_id: str
    number: int
    held: int
    sold: int


class EventVersionRow(Row):
    id: str
    was: int
    version: int


class JournalRow(Row):
    event_id: str
    number: int
    kind: str
    booking_id: str
    actor: str
    data: EntryData


async def save(connection: Connection, loaded: LoadedBatch) -> None:
    await _update_bookings(connection, loaded)
    await _insert_bookings(connection, loaded)
    await _transfer_bookings(connection, loaded)
    await save_payments(connection, loaded)
    await save_notifications(connection, loaded)


async def _update_bookings(connection: Connection, loaded: LoadedBatch) -> None:
    changed: list[Row] = []
    released: list[Row] = []
    reclaimed: list[Row] = []
    for event, state in loaded.states.items():
        for id_, was in state.changed_bookings.items():
            b = state.bookings[id_]
            row = ChangedBookingRow(event.hex(), id_.hex(), was, b.status, b.expires_at, b.reason, b.version)
            changed.append(row)
            claimed, claims = CLAIMS[was] is not Claim.NONE, CLAIMS[b.status] is not Claim.NONE
            if claimed is not claims:
                lines = reclaimed if claims else released
                lines += [LineKeyRow(row.event_id, row.id, number) for number in range(len(b.lines))]
    if changed:
        saved = await connection.fetchrow(sql.engine.update_bookings, document(changed), document(released))
        check("update_bookings", saved, bookings=len(changed), released_lines=len(released))
    if reclaimed:
        saved = await connection.fetchrow(sql.engine.reclaim_lines, document(reclaimed))
        check("reclaim_lines", saved, reclaimed_lines=len(reclaimed))


async def _insert_bookings(connection: Connection, loaded: LoadedBatch) -> None:
    written = {event: state for event, state in loaded.states.items() if state.entries}
    created = [state.bookings[id_] for state in written.values() for id_ in state.new_bookings]
    bookings = [_booking_row(booking) for booking in created]
    lines = [row for booking in created for row in _line_rows(booking)]
    pools: list[CounterRow] = []
    events: list[EventVersionRow] = []
    entries: list[JournalRow] = []
    for event_id, state in written.items():
        event = event_id.hex()
        pools += [CounterRow(event, pool, by.held, by.sold) for pool, by in state.counter_shifts.items()]
        events.append(EventVersionRow(event, loaded.versions[event_id], state.version))
        entries += [JournalRow(event, f.number, f.kind, f.booking.id.hex(), f.actor, f.data) for f in state.entries]
    rows: dict[str, Sequence[Row]] = {
        "bookings": bookings,
        "lines": lines,
        "pools": pools,
        "events": events,
        "entries": entries,
    }
    documents = [document(table) for table in rows.values()]
    saved = await connection.fetchrow(sql.engine.insert_bookings, *documents, loaded.now)
    check("insert_bookings", saved, **{name: len(table) for name, table in rows.items()})


async def _transfer_bookings(connection: Connection, loaded: LoadedBatch) -> None:
    transferred = [
        TransferredBookingRow(event.hex(), id_.hex(), b.user, b.email, b.language, b.generation)
        for event, state in loaded.states.items()
        for id_ in state.transferred_bookings
        if (b := state.bookings[id_])
    ]
    if transferred:
        saved = await connection.fetchrow(sql.engine.transfer_bookings, document(transferred))
        check("transfer_bookings", saved, bookings=len(transferred))


def _booking_row(booking: Booking) -> NewBookingRow:
    return NewBookingRow(
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


def _line_rows(booking: Booking) -> list[NewLineRow]:
    event, id_ = booking.event.hex(), booking.id.hex()
    live = CLAIMS[booking.status] is not Claim.NONE
    return [
        NewLineRow(event, id_, number, line.pool, line.tariff, line.quantity, line.unit_price, live, line.seat)
        for number, line in enumerate(booking.lines)
    ]
