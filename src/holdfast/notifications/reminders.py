"""Reminds buyers of what they booked, some time before it starts: by email, by SMS, or both.

A worker goes through the bookings of an event page by page. One transaction writes the notifications of a page and how
far the worker has come, so however many workers run or crash, each booking gets one reminder of each start. Channels
check again before they send, because the booking may end or move in between.
"""

from datetime import datetime
from typing import Final

import structlog
from msgspec import Struct

from holdfast import sql
from holdfast.core.actors import CUSTOMER_ACTOR
from holdfast.core.notification_rules import (
    EMAIL,
    REMINDER,
    SMS,
    EmailBody,
    EmailLimit,
    SmsBody,
    buyer_hash,
    email_target,
    phone_hash,
    recipient_hash,
    sms_buyer_hash,
    sms_client_hash,
    sms_limit,
    sms_target,
)
from holdfast.core.states import Status
from holdfast.engine.rows import RowDocument, document
from holdfast.runtime import ids
from holdfast.runtime.backoff import Backoff, FailureBackoff
from holdfast.runtime.db import Database, DatabaseScope

log = structlog.get_logger()

HOUR_SECONDS: Final = 3600
# One page of each of these events gets its turn in a pass, so that a large event does not delay the others.
STARTS_MAX: Final = 50
PAGE_BOOKINGS: Final = 500
RETRIES: Final = Backoff.exponential(15, 600)


class DueStart(Struct, frozen=True):
    event_id: bytes
    starts_at: datetime


class ScannedBooking(Struct, frozen=True):
    id: bytes
    org: bytes
    email: str | None
    phone: str | None
    language: str | None
    generation: int
    total: int
    user: str
    client: bytes | None
    last_actor: str | None
    is_reminded: bool

    @property
    def actor(self) -> str:
        """Who causes the reminder, for the limits on what one buyer can cause. The journal has customers under
        pseudonyms, and it shows whether the booking is the work of a customer or of staff."""
        last = self.last_actor or ""
        return CUSTOMER_ACTOR + self.user if last.startswith(CUSTOMER_ACTOR) else last


class ReminderRow(RowDocument):
    """It names nobody. Pages of bookings are read without the lock of the event, so `holdfast erase` may erase a person
    whose reminder is being written."""

    booking: bytes
    target: str
    channel: str
    org: bytes
    kind: str
    body: EmailBody | SmsBody
    recipient_hash: bytes | None = None
    buyer_hash: bytes | None = None
    client_hash: bytes | None = None


class Reminders:
    """`hours` is how long before the start a reminder goes out. Channels that are not set up get none."""

    def __init__(self, database: Database, hours: float, channels: frozenset[str]) -> None:
        self._database = database
        self._seconds = hours * HOUR_SECONDS
        self._channels = channels
        self._failures = FailureBackoff[bytes](RETRIES)

    async def run_once(self) -> int:
        """Returns how many bookings it looked at."""
        starts = await self._database.all_events.rows(
            DueStart,
            *sql.reminders.due_starts(seconds=self._seconds, waiting=self._failures.waiting(), starts_max=STARTS_MAX),
        )
        return sum([await self._remind(start) for start in starts])

    async def _remind(self, start: DueStart) -> int:
        """An event that is broken does not stop the others. It waits longer after each failure."""
        try:
            async with self._database.event(start.event_id).transaction() as scope:
                scanned = await self._remind_page(scope, start)
        except Exception as error:
            log.error("reminder_failed", event_id=ids.format_event_id(start.event_id), error=type(error).__name__)
            self._failures.record_failure(start.event_id)
            return 0
        self._failures.record_success(start.event_id)
        return scanned

    async def _remind_page(self, scope: DatabaseScope, start: DueStart) -> int:
        await scope.execute(sql.reminders.start_run, start.event_id, start.starts_at)
        after = await scope.fetchval(sql.reminders.lock_run, start.event_id, start.starts_at)
        if after is None:
            return 0
        bookings = await scope.rows(
            ScannedBooking,
            *sql.reminders.bookings(
                event=start.event_id,
                starts_at=start.starts_at,
                seconds=self._seconds,
                after=after,
                scanned_max=PAGE_BOOKINGS,
            ),
        )
        rows = [row for booking in bookings if booking.is_reminded for row in self._rows(booking, start.starts_at)]
        if rows:
            reminded = list(dict.fromkeys(row.booking for row in rows))
            await scope.execute(sql.reminders.insert_deliveries, start.event_id, reminded, document(rows))
        await scope.execute(
            *sql.reminders.advance_run(
                event=start.event_id,
                starts_at=start.starts_at,
                last_booking=bookings[-1].id if bookings else after,
                is_done=len(bookings) < PAGE_BOOKINGS,
            )
        )
        return len(bookings)

    def _rows(self, booking: ScannedBooking, starts_at: datetime) -> list[ReminderRow]:
        rows = []
        if booking.email is not None and EMAIL in self._channels:
            rows.append(_email_row(booking, booking.email, starts_at))
        if booking.phone is not None and SMS in self._channels:
            rows.append(_sms_row(booking, booking.phone, starts_at))
        return rows


def _email_row(booking: ScannedBooking, email: str, starts_at: datetime) -> ReminderRow:
    limit = EmailLimit.FREE if booking.total == 0 else None
    body = EmailBody(None, booking.language, booking.generation, Status.CONFIRMED, None, limit, starts_at)
    row = ReminderRow(booking.id, email_target(booking.org), EMAIL, booking.org, REMINDER, body)
    if limit is not None:
        row.recipient_hash = recipient_hash(limit, booking.org, email)
        row.buyer_hash = buyer_hash(limit, booking.org, booking.actor, booking.user)
    return row


def _sms_row(booking: ScannedBooking, phone: str, starts_at: datetime) -> ReminderRow:
    limit = sms_limit(booking.total)
    body = SmsBody(booking.language, booking.generation, limit, starts_at)
    row = ReminderRow(booking.id, sms_target(booking.org), SMS, booking.org, REMINDER, body)
    row.recipient_hash = phone_hash(limit, booking.org, phone)
    row.buyer_hash = sms_buyer_hash(limit, booking.org, booking.actor)
    row.client_hash = sms_client_hash(limit, booking.org, booking.client, is_reminder=True)
    return row
