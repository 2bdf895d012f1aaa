"""Counts the unpaid units of buyers and their addresses, for the limits against hoarding.

A client is the address of a buyer, as a keyed hash. A booking has no client if these limits do not apply to it.
"""

from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from holdfast.core.booking import Booking
from holdfast.core.states import HOLDING, LIVE, SOLD, Status

# A free booking counts like a hold for this long. Otherwise nothing would limit free events.
FREE_BOOKING_SECONDS: Final = 3600


class ExpiryStreak(Struct):
    """How many holds have expired since the last confirmed booking, and when the last of them did."""

    expired: int = 0
    last_at: datetime | None = None

    def follow(self, before: Booking | None, after: Booking) -> None:
        if after.status in SOLD:
            self.expired = 0
        elif after.status is Status.EXPIRED and (before is None or before.status is not Status.EXPIRED):
            self.expired += 1
            assert after.expires_at is not None
            self.last_at = max(self.last_at or after.expires_at, after.expires_at)


class UserRecord(Struct):
    """The live bookings of one user in an event: how many, their units, how many of those are unpaid, and the id of one
    of them."""

    bookings: int = 0
    units: int = 0
    unpaid_units: int = 0
    booking: bytes | None = None

    def add(self, booking: Booking, now: datetime) -> None:
        self._count(booking, now, 1)
        if booking.status in LIVE:
            self.booking = booking.id

    def remove(self, booking: Booking, now: datetime) -> None:
        self._count(booking, now, -1)
        if self.booking == booking.id:
            self.booking = None

    def _count(self, booking: Booking, now: datetime, sign: int) -> None:
        if booking.status in LIVE:
            self.bookings += sign
            self.units += sign * booking.units
            self.unpaid_units += sign * unpaid_units(booking, now)


class ClientRecord(Struct):
    unpaid_units: int
    streak: ExpiryStreak


class ClientRecords:
    """The clients and users whose holds a batch decides. The counts follow every change that the batch makes."""

    def __init__(self, by_client: dict[bytes, ClientRecord], streak_by_user: dict[str, ExpiryStreak]) -> None:
        self._by_client = by_client
        self._streak_by_user = streak_by_user

    def of_client(self, client: bytes) -> ClientRecord:
        return self._by_client.setdefault(client, ClientRecord(0, ExpiryStreak()))

    def streak_of_user(self, user: str) -> ExpiryStreak:
        return self._streak_by_user.setdefault(user, ExpiryStreak())

    def follow(self, before: Booking | None, after: Booking, now: datetime) -> None:
        """Count a change of a booking that has a client."""
        assert after.client is not None
        record = self.of_client(after.client)
        record.unpaid_units += unpaid_units(after, now) - (unpaid_units(before, now) if before else 0)
        record.streak.follow(before, after)
        self.streak_of_user(after.user).follow(before, after)


def unpaid_units(booking: Booking, now: datetime) -> int:
    """The units of a hold and, for a while, those of a free booking. Paid bookings have none."""
    if booking.status in HOLDING:
        return booking.units
    is_free = booking.total == 0 or booking.expires_at is None
    is_recent = booking.created_at > now - timedelta(seconds=FREE_BOOKING_SECONDS)
    return booking.units if booking.status in SOLD and is_free and is_recent else 0
