"""The tickets of a booking: one per seat or unit. They are derived from the booking and never stored."""

from msgspec import Struct

from holdfast.core.booking import Booking
from holdfast.core.layout import Layout
from holdfast.core.states import FastStrEnum
from holdfast.core.time_slot import TimeSlot


class TicketStatus(FastStrEnum):
    VALID = "valid"
    CHECKED_IN = "checked_in"
    VOID = "void"


class Ticket(Struct, frozen=True):
    line: int
    unit: int
    pool: str
    pool_name: str
    tariff: str
    tariff_name: str
    seat: str | None
    slot: TimeSlot


def tickets_of(booking: Booking, layout: Layout) -> list[Ticket]:
    return [ticket for line in range(len(booking.lines)) for ticket in _tickets_of_line(booking, layout, line)]


def ticket_at(booking: Booking, layout: Layout, line: int, unit: int) -> Ticket | None:
    if line >= len(booking.lines) or unit >= booking.lines[line].quantity:
        return None
    return _tickets_of_line(booking, layout, line)[unit]


def _tickets_of_line(booking: Booking, layout: Layout, number: int) -> list[Ticket]:
    line = booking.lines[number]
    pool = layout.pools[line.pool]
    tariff = pool.tariffs[line.tariff]
    seat = None if line.seat is None else layout.seats[line.seat].label
    slot = layout.time_slot(line.pool)
    return [
        Ticket(number, unit, pool.code, pool.name, tariff.code, tariff.name, seat, slot)
        for unit in range(line.quantity)
    ]
