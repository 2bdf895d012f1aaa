"""Rebuilds the copy of an event in Redis from PostgreSQL."""

import secrets
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.states import CLAIMING
from holdfast.gate.changes import BookedSeats, ChangeBuilder
from holdfast.gate.entries import Change, EventKeys, format_time
from holdfast.gate.event_mark import Head, begin_generation, complete_generation
from holdfast.gate.redis_client import RedisCalls
from holdfast.gate.user_hash import UserHasher
from holdfast.runtime.database_clock import DatabaseClock
from holdfast.runtime.db import Database

PAGE_BOOKINGS: Final = 500
# An event with more bookings does without Redis.
BOOKINGS_MAX: Final = 500_000
# The most seats and buyers in one call, because a script blocks all other clients of Redis.
CALL_MAX: Final = 1_000
# How long a builder keeps its lease without making progress. After that, another process may build the event.
LEASE_SECONDS: Final = 5
FIRST: Final = bytes(16)


class TooLargeError(Exception):
    """The event has more than `BOOKINGS_MAX` bookings."""


class _BookingRow(Struct, frozen=True):
    booking: BookedSeats


class EventBuilder:
    def __init__(self, calls: RedisCalls, database: Database, hasher: UserHasher, clock: DatabaseClock) -> None:
        self._calls = calls
        self._database = database
        self._hasher = hasher
        self._clock = clock

    async def build(self, event: bytes) -> bool:
        """Begin a new generation, and write every booking of the event. The event stays asleep until a follower has
        replayed the journal from the version at which the build began. Returns False if another process is building
        the event, or if Redis has lost a part of the build meanwhile."""
        head = await self.read_head(event)
        secret = await self._hasher.secret()
        keys, generation = EventKeys(head.org, event), secrets.token_hex(8)
        (is_mine,) = await self._calls.run([("SET", keys.build, generation, "NX", "EX", LEASE_SECONDS)])
        if not is_mine:
            return False
        await self._calls.run([begin_generation(keys, head, generation, secret)])
        change = Change(now=format_time(head.at), generation=generation)
        after, count, parts, is_last = FIRST, 0, 0, False
        while not is_last:
            bookings = await self._read_bookings(event, after)
            builder = ChangeBuilder(head.org, event, secret, head.at)
            for booking in bookings:
                if booking.status in CLAIMING:
                    builder.add_booking(booking)
                else:
                    builder.add_buyer(booking.user, booking.request_key, booking.client)
                if builder.size >= CALL_MAX:
                    parts += 1
                    builder.add_part(generation, parts)
                    await self._calls.run([builder.command(change)])
                    builder = ChangeBuilder(head.org, event, secret, head.at)
            parts += 1
            builder.add_part(generation, parts)
            await self._calls.run([builder.command(change), ("EXPIRE", keys.build, LEASE_SECONDS)])
            is_last = len(bookings) < PAGE_BOOKINGS
            after = bookings[-1].id if bookings else after
            count += len(bookings)
            if count > BOOKINGS_MAX:
                raise TooLargeError
        (is_complete,) = await self._calls.run([complete_generation(keys, generation, parts)])
        return bool(is_complete)

    async def read_all(self, event: bytes) -> list[BookedSeats]:
        """All bookings of the event."""
        bookings: list[BookedSeats] = []
        while len(page := await self._read_bookings(event, bookings[-1].id if bookings else FIRST)) == PAGE_BOOKINGS:
            bookings += page
        return bookings + page

    async def find_head(self, event: bytes) -> Head | None:
        return await self._database.event(event).row(Head, sql.gate.event_head, event)

    async def read_head(self, event: bytes) -> Head:
        head = await self.find_head(event)
        assert head is not None, "events are never deleted"
        self._clock.observe(head.at)
        return head

    async def _read_bookings(self, event: bytes, after: bytes) -> list[BookedSeats]:
        rows = await self._database.event(event).rows(
            _BookingRow, *sql.gate.bookings(event=event, after=after, limit=PAGE_BOOKINGS)
        )
        return [row.booking for row in rows]
