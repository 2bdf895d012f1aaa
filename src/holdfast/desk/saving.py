"""Closing the books: what a batch has decided is written as arrays, and every count of rows is checked."""

from collections.abc import Iterable
from typing import Any

from holdfast import sql
from holdfast.core.states import CLAIMS, Claim
from holdfast.db import Connection
from holdfast.desk.opening import Books


class LostUpdateError(AssertionError):
    """Fewer or more rows changed than were decided. This is a bug in the engine, and must be loud."""


async def save(connection: Connection, opened: Books) -> None:
    await _save_moved(connection, opened)
    await _save_new(connection, opened)


async def _save_moved(connection: Connection, opened: Books) -> None:
    moved = [(book.bookings[id_], was) for book in opened.books.values() for id_, was in book.changed.items()]
    if not moved:
        return
    freed = [
        (booking.event, booking.id, number)
        for booking, was in moved
        if CLAIMS[booking.status] is Claim.NONE and CLAIMS[was] is not Claim.NONE
        for number in range(len(booking.lines))
    ]
    rows = [(b.event, b.id, was, b.status, b.expires_at, b.reason, b.version) for b, was in moved]
    saved = await connection.fetchrow(sql.desk.save_moved, *_columns(rows, 7), *_columns(freed, 3))
    _check("moved", saved, moved=len(moved), freed=len(freed))


async def _save_new(connection: Connection, opened: Books) -> None:
    written = [(event, book) for event, book in opened.books.items() if book.facts]
    bookings = [book.bookings[id_] for _, book in written for id_ in book.created]
    booked = [
        (
            b.event, b.id, b.org, b.user, b.status, b.subtotal, b.tax, b.currency, b.created_at, b.expires_at,
            b.max_expires_at, b.request_key, b.fingerprint, b.cart_hash, b.details, b.reason, b.version,
        )
        for b in bookings
    ]  # fmt: skip
    lined = [
        (
            b.event,
            b.id,
            number,
            n.pool,
            n.tariff,
            n.seat,
            n.quantity,
            n.unit_price,
            CLAIMS[b.status] is not Claim.NONE,
        )
        for b in bookings
        for number, n in enumerate(b.lines)
    ]
    counted = [(event, pool, by.held, by.sold) for event, book in written for pool, by in book.shifts.items()]
    versioned = [(event, opened.versions[event], book.version) for event, book in written]
    noted = [(event, f.number, f.kind, f.booking, f.actor, f.data) for event, book in written for f in book.facts]
    saved = await connection.fetchrow(
        sql.desk.save_new,
        *_columns(booked, 17),
        *_columns(lined, 9),
        *_columns(counted, 4),
        *_columns(versioned, 3),
        opened.now,
        *_columns(noted, 6),
    )
    _check(
        "new",
        saved,
        booked=len(booked),
        lined=len(lined),
        counted=len(counted),
        versioned=len(versioned),
        noted=len(noted),
    )


def _check(what: str, saved: Any, **expected: int) -> None:
    if dict(saved) != expected:
        raise LostUpdateError(f"{what}: {dict(saved)} instead of {expected}")


def _columns(rows: Iterable[tuple[Any, ...]], width: int) -> list[tuple[Any, ...]]:
    return list(zip(*rows, strict=True)) or [()] * width
