"""Saving the changes of a batch as a few JSON documents. Every statement's row counts are checked."""

from msgspec import Raw

from holdfast import sql
from holdfast.core.actors import journal_actor
from holdfast.core.booking import Booking
from holdfast.core.event_state import EventState
from holdfast.core.journal_chain import encode_time, entry_hash
from holdfast.core.states import CLAIMING, Status
from holdfast.engine.load import Chain, LoadedBatch
from holdfast.engine.rows import RowDocument, check_counts, document, encode
from holdfast.engine.save_notifications import save_notifications
from holdfast.engine.save_payments import save_payments
from holdfast.runtime.db import Connection


class ChangedBookingRow(RowDocument):
    was: Status
    booking: Booking


class CounterShiftRow(RowDocument):
    event: bytes
    pool: int
    held: int
    sold: int


class EventVersionRow(RowDocument):
    event: bytes
    was: int
    version: int
    head: bytes


class JournalRow(RowDocument):
    event: bytes
    number: int
    kind: str
    booking: bytes
    actor: str
    data: Raw
    previous: bytes


async def save(connection: Connection, loaded: LoadedBatch) -> None:
    await _update_bookings(connection, loaded)
    await _insert_bookings(connection, loaded)
    await save_payments(connection, loaded)
    await save_notifications(connection, loaded)


async def _update_bookings(connection: Connection, loaded: LoadedBatch) -> None:
    changed = [
        ChangedBookingRow(was, state.bookings[booking])
        for state in loaded.states.values()
        for booking, was in state.changed_bookings.items()
    ]
    if not changed:
        return
    released = [row.booking for row in changed if row.was in CLAIMING and row.booking.status not in CLAIMING]
    revived = [row.booking for row in changed if row.was not in CLAIMING and row.booking.status in CLAIMING]
    if revived or any(row.booking.was_transferred for row in changed):
        await _release_users(connection, [row.booking for row in changed])
    saved = await connection.fetchrow(sql.engine.update_bookings, document(changed))
    check_counts("update_bookings", saved, bookings=len(changed), released_lines=_count_lines(released))
    if revived:
        await _reclaim_lines(connection, revived)


async def _release_users(connection: Connection, bookings: list[Booking]) -> None:
    await connection.execute(
        sql.engine.release_users, [booking.event for booking in bookings], [booking.id for booking in bookings]
    )


async def _reclaim_lines(connection: Connection, revived: list[Booking]) -> None:
    saved = await connection.fetchrow(
        sql.engine.reclaim_lines, [booking.event for booking in revived], [booking.id for booking in revived]
    )
    check_counts("reclaim_lines", saved, reclaimed_lines=_count_lines(revived))


async def _insert_bookings(connection: Connection, loaded: LoadedBatch) -> None:
    bookings: list[Booking] = []
    shifts: list[CounterShiftRow] = []
    events: list[EventVersionRow] = []
    entries: list[JournalRow] = []
    now = encode_time(loaded.now)
    for event, state in loaded.states.items():
        if state.entries:
            bookings += [state.bookings[id_] for id_ in state.new_bookings]
            shifts += [CounterShiftRow(event, pool, by.held, by.sold) for pool, by in state.counter_shifts.items()]
            chain = loaded.chains[event]
            head = _append_entries(entries, event, state, chain, now)
            events.append(EventVersionRow(event, state.version - len(state.entries), state.version, head))
    saved = await connection.fetchrow(
        *sql.engine.insert_bookings(
            bookings=document(bookings),
            shifts=document(shifts),
            events=document(events),
            entries=document(entries),
            now=loaded.now,
        )
    )
    check_counts(
        "insert_bookings",
        saved,
        bookings=len(bookings),
        lines=_count_lines(bookings),
        pools=len(shifts),
        events=len(events),
        entries=len(entries),
    )


def _append_entries(rows: list[JournalRow], event: bytes, state: EventState, chain: Chain, now: bytes) -> bytes:
    """Add the event's new entries to the rows, each with the hash of the one before it. Returns the last one's hash."""
    previous = chain.head
    for entry in state.entries:
        actor, data = journal_actor(chain.actor_key, entry.actor), encode(entry.data)
        rows.append(JournalRow(event, entry.number, entry.kind, entry.booking.id, actor, Raw(data), previous))
        previous = entry_hash(previous, now, entry.booking.id, entry.kind, actor, data)
    return previous


def _count_lines(bookings: list[Booking]) -> int:
    return sum([len(booking.lines) for booking in bookings])
