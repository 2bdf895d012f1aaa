"""Finds the booking of a user who asks again for what they already have."""

from collections import Counter

from holdfast.core.booking import Booking, Line
from holdfast.core.commands import PlaceHold
from holdfast.core.event_state import EventState


def find_same_booking(state: EventState, command: PlaceHold, lines: tuple[Line, ...]) -> Booking | None:
    """The live booking of this user that already has exactly what the command asks for: the named seats, or, if a user
    can have only one booking, the same units."""
    if state.layout.policy.one_booking_per_user:
        id_ = state.users[command.user].booking
        booking = state.bookings.get(id_) if id_ is not None else None
        if booking is not None and _has_same_units(booking, lines):
            return booking
    if lines[0].seat is None or any(line.seat is None for line in lines):
        return None
    owner = state.owners.get(lines[0].seat)
    if owner is None or owner.user != command.user:
        return None
    booking = state.bookings.get(owner.id)
    return booking if booking is not None and _claims(booking.lines) == _claims(lines) else None


def _claims(lines: tuple[Line, ...]) -> set[tuple[int, int, int | None, int]]:
    return {(line.pool, line.tariff, line.seat, line.quantity) for line in lines}


def _has_same_units(booking: Booking, lines: tuple[Line, ...]) -> bool:
    """Whether the booking has as many units of each tariff as the lines, and every seat that the lines name."""
    seats = {line.seat for line in lines} - {None}
    return _count_units(booking.lines) == _count_units(lines) and seats <= {line.seat for line in booking.lines}


def _count_units(lines: tuple[Line, ...]) -> Counter[tuple[int, int]]:
    units: Counter[tuple[int, int]] = Counter()
    for line in lines:
        units[line.pool, line.tariff] += line.quantity
    return units
