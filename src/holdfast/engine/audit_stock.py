"""Checks pools, seats and the amounts and lines of bookings."""

from datetime import datetime

from msgspec import Struct

from holdfast import sql
from holdfast.engine.findings import EventFindings
from holdfast.runtime.db import DatabaseScope


class PoolRow(Struct, frozen=True):
    """`seats` is the number of seats on sale, if the pool has seats."""

    code: str
    capacity: int
    held: int
    sold: int
    held_lines: int
    sold_lines: int
    seats: int | None


class SeatRow(Struct, frozen=True):
    label: str
    lines: int
    is_unknown: bool
    is_blocked: bool
    is_in_other_pool: bool
    quantity: int


class UnknownPoolRow(Struct, frozen=True):
    number: int
    lines: int


class BookingRow(Struct, frozen=True):
    id: bytes
    status: str
    subtotal: int
    tax: int
    total: int
    is_claiming: bool
    lines: int
    live_lines: int
    line_total: int
    expires_at: datetime | None
    max_expires_at: datetime | None
    is_too_long: bool


async def check_stock(scope: DatabaseScope, event: bytes, findings: EventFindings) -> None:
    for pool in await scope.rows(PoolRow, sql.audit.pools, event):
        _report_pool(pool, findings)
    for seat in await scope.rows(SeatRow, sql.audit.seats, event):
        _report_seat(seat, findings)
    for unknown in await scope.rows(UnknownPoolRow, sql.audit.lines_in_unknown_pools, event):
        findings.add(
            "pool_unknown",
            str(unknown.number),
            f"{unknown.lines} live lines take units of pool {unknown.number}, which does not exist. "
            "Restore the pool from a backup.",
        )
    for booking in await scope.rows(BookingRow, sql.audit.bookings, event):
        _report_booking(booking, findings)


def _report_pool(pool: PoolRow, findings: EventFindings) -> None:
    counters = (("held", pool.held, pool.held_lines), ("sold", pool.sold, pool.sold_lines))
    for name, counted, taken in counters:
        if counted != taken:
            findings.add(
                f"{name}_counter",
                pool.code,
                f"Pool {pool.code} counts {counted} units as {name}, but its live lines add up to {taken}. "
                "Somebody has changed the counter or the lines without the engine.",
            )
    if pool.held + pool.sold > pool.capacity:
        findings.add(
            "capacity_exceeded",
            pool.code,
            f"Pool {pool.code} has a capacity of {pool.capacity}, but {pool.held + pool.sold} units are taken. "
            f"Raise the capacity or refund {pool.held + pool.sold - pool.capacity} units.",
        )
    if pool.seats is not None and pool.capacity != pool.seats:
        findings.add(
            "capacity_and_seats",
            pool.code,
            f"Pool {pool.code} has a capacity of {pool.capacity}, but {pool.seats} seats that are not blocked. "
            "Look for seats that were added, deleted or blocked without the engine.",
        )


def _report_seat(seat: SeatRow, findings: EventFindings) -> None:
    label = seat.label
    if seat.lines > 1:
        findings.add(
            "seat_taken_twice",
            label,
            f"{seat.lines} live lines take seat {label}, so several buyers have a claim to it. Find their bookings, "
            "and move all but one to other seats.",
        )
    if seat.is_unknown:
        findings.add(
            "seat_unknown",
            label,
            f"A live line takes the seat with the number {label}, which does not exist. Restore it from a backup.",
        )
    if seat.is_blocked:
        findings.add(
            "seat_blocked", label, f"Seat {label} is blocked and taken. Unblock it, or move its buyer to another seat."
        )
    if seat.is_in_other_pool:
        findings.add(
            "seat_pool",
            label,
            f"The line that takes seat {label} counts in another pool than the seat. Somebody has moved one of them "
            "without the engine.",
        )
    if seat.quantity != 1:
        findings.add(
            "seat_quantity",
            label,
            f"A line takes {seat.quantity} units of seat {label}, but a seat is only one. Check the booking's price.",
        )


def _report_booking(row: BookingRow, findings: EventFindings) -> None:
    booking = findings.booking(row.id)
    if row.lines == 0:
        findings.add(
            "booking_without_lines",
            booking,
            f"The booking is {row.status} and has no lines, so it claims nothing. Restore its lines from a backup.",
        )
    elif row.is_claiming and row.live_lines < row.lines:
        findings.add(
            "line_not_live",
            booking,
            f"The booking is {row.status}, but {row.lines - row.live_lines} of its {row.lines} lines are not live. "
            "Others can take its units.",
        )
    elif not row.is_claiming and row.live_lines:
        findings.add(
            "line_still_live",
            booking,
            f"The booking is {row.status}, but {row.live_lines} of its lines are still live, so nobody can take their "
            "units.",
        )
    if row.lines and row.line_total != row.subtotal:
        findings.add(
            "subtotal",
            booking,
            f"The booking has a subtotal of {row.subtotal}, but its lines add up to {row.line_total}. "
            "Compare it with what the buyer paid.",
        )
    if row.total != row.subtotal + row.tax:
        findings.add(
            "total",
            booking,
            f"The booking has a total of {row.total}, but subtotal and tax add up to {row.subtotal + row.tax}. "
            "Compare it with what the buyer paid.",
        )
    if row.is_too_long:
        findings.add(
            "deadline",
            booking,
            f"The hold lasts until {row.expires_at}, but it may last until {row.max_expires_at} at most. "
            "Somebody has moved its deadline without the engine.",
        )
