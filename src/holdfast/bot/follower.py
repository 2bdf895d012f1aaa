"""Follows the journals of an org's shifts, and tells workers and staff what has happened.

Each entry becomes its messages in the transaction that moves the cursor past it: exactly once, in order.
"""

from collections.abc import Sequence
from typing import Final

import structlog
from msgspec import Struct

from holdfast import sql
from holdfast.api import event_handlers as events
from holdfast.api.event_handlers import EntryRow
from holdfast.api.responses import EventView
from holdfast.bot.buttons import TakeButton
from holdfast.bot.markup import MessageBody, escape, label, pack_id, paragraphs, say
from holdfast.bot.org_api import BusyError, OrgApi, event_id_of, person_of
from holdfast.bot.outbox import NewMessage, booking_card, refresh_event, review, write_messages
from holdfast.bot.people import Person, load_people
from holdfast.bot.roster import load_attendees
from holdfast.bot.shift_texts import shift_html, title_html
from holdfast.bot.telegram_bot import TelegramBot
from holdfast.core.actors import CUSTOMER_ACTOR
from holdfast.core.journal import EVENT_CHANGED
from holdfast.core.reasons import Reason
from holdfast.core.states import EventStatus, Status
from holdfast.i18n.reason_texts import reason_text
from holdfast.runtime import ids
from holdfast.runtime.backoff import Backoff, FailureBackoff
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS, Database

log = structlog.get_logger()

EVENTS_MAX: Final = 50
ENTRIES_MAX: Final = 200
ENTRY_BYTES_MAX: Final = 512 * 1024
RETRIES: Final = Backoff.exponential(1, 60)
# Bookings whose workers get a message about a changed shift.
CONCERNED: Final = (Status.HELD, Status.PAYMENT_SUBMITTED, Status.CONFIRMED)
# A change of these is worth a message.
NOTICED_CHANGES: Final = frozenset({"starts_at", "ends_at", "timezone", "shift", "title", "details"})
# Entries that workers get a message about. A new hold shows up as a card instead.
NOTICES: Final = frozenset(set(Status) - {Status.HELD, Status.COMPLETED})
# After these, a worker may take a place again.
RETRIED: Final = (Status.EXPIRED, Status.REJECTED)


class EventBehind(Struct, frozen=True):
    event_id: bytes
    version: int


class FollowedBooking(Struct, frozen=True):
    id: bytes
    user_id: str
    total: int


class Effects:
    """What the entries of one event cause."""

    def __init__(self) -> None:
        self.messages: list[NewMessage] = []
        # The bookings whose cards and reviews show something else now.
        self.bookings: list[bytes] = []


class Follower:
    def __init__(self, database: Database, api: OrgApi) -> None:
        self._database = database
        self._api = api
        self._failures = FailureBackoff[bytes](RETRIES)

    async def run_once(self, bot: TelegramBot) -> int:
        """Follow every event that has moved on. Returns how many entries that were. An event that fails delays no
        other."""
        rows = await self._database.org(bot.org_id).rows(
            EventBehind, sql.telegram.events_behind, bot.org_id, EVENTS_MAX, self._failures.waiting()
        )
        entries = 0
        for row in rows:
            try:
                entries += await self._follow(bot, row)
                self._failures.record_success(row.event_id)
            except (*LOST_ERRORS, *BLOCKED_ERRORS, BusyError):
                raise
            except Exception as error:
                log.error("telegram_event_not_followed", event_id=ids.format_event_id(row.event_id), exc_info=error)
                self._failures.record_failure(row.event_id)
        return entries

    async def discover(self, bot: TelegramBot) -> int:
        """Find events that somebody published elsewhere, and stop following those that are over."""
        await self._database.org(bot.org_id).execute(sql.telegram.discover_events, bot.org_id)
        await self._database.org(bot.org_id).execute(sql.telegram.end_events, bot.org_id)
        return 0

    async def _follow(self, bot: TelegramBot, behind: EventBehind) -> int:
        event = behind.event_id
        entries = await self._database.event(event).rows(
            EntryRow,
            *sql.reads.entries(event=event, after=behind.version, limit=ENTRIES_MAX, bytes_max=ENTRY_BYTES_MAX),
        )
        if not entries:
            return 0
        effects = await self._effects(bot, event, entries)
        async with self._database.event(event).transaction() as scope:
            advanced = await scope.fetchval(
                *sql.telegram.advance_event(event=event, was=behind.version, version=entries[-1].number)
            )
            if advanced is not None:
                await write_messages(scope, bot.org_id, effects.messages)
                await refresh_event(scope, bot.org_id, event, effects.bookings)
        return len(entries)

    async def _effects(self, bot: TelegramBot, event: bytes, entries: Sequence[EntryRow]) -> Effects:
        view = await self._api.as_staff(None, events.get_event, ids.format_event_id(event))
        booked = await self._bookings(event, entries)
        people = await load_people(self._database, bot.org_id, [person_of(b.user_id) for b in booked.values()])
        effects = Effects()
        for entry in entries:
            if entry.booking_id is not None and entry.booking_id in booked:
                booking = booked[entry.booking_id]
                person = people.get(person_of(booking.user_id) or 0)
                self._follow_booking(bot, view, entry, booking, person, effects)
            elif entry.kind == EVENT_CHANGED:
                await self._follow_change(bot, view, entry, effects)
        return effects

    async def _bookings(self, event: bytes, entries: Sequence[EntryRow]) -> dict[bytes, FollowedBooking]:
        wanted = list({entry.booking_id for entry in entries if entry.booking_id is not None})
        rows = await self._database.event(event).rows(FollowedBooking, sql.telegram.bookings_by_id, event, wanted)
        return {row.id: row for row in rows}

    def _follow_booking(
        self,
        bot: TelegramBot,
        view: EventView,
        entry: EntryRow,
        booking: FollowedBooking,
        person: Person | None,
        effects: Effects,
    ) -> None:
        effects.bookings.append(booking.id)
        if entry.kind == Status.PAYMENT_SUBMITTED and bot.admin_chat_id is not None:
            effects.messages.append(review(event_id_of(view), booking.id, entry.number, bot.admin_chat_id))
        if person is None:
            return
        if entry.kind == Status.HELD:
            effects.messages.append(booking_card(event_id_of(view), booking.id, person.person_id))
        notice = _notice(bot, view, entry, booking, person)
        if notice is not None:
            effects.messages.append(
                NewMessage(key=_entry_key(view, entry, person), chat_id=person.person_id, body=notice)
            )

    async def _follow_change(self, bot: TelegramBot, view: EventView, entry: EntryRow, effects: Effects) -> None:
        """Show the changed shift to everyone who holds or has a place."""
        change = entry.data.change or {}
        # A long change names its fields only.
        if view.status is not EventStatus.ACTIVE or NOTICED_CHANGES.isdisjoint(change.get("fields", change)):
            return
        attendees = await load_attendees(self._database, bot.org_id, event_id_of(view), CONCERNED)
        people = await load_people(self._database, bot.org_id, [person_of(one.user_id) for one in attendees])
        for person in people.values():
            text = paragraphs(say(person.language, "notice.changed"), shift_html(view, person.language))
            effects.messages.append(
                NewMessage(key=_entry_key(view, entry, person), chat_id=person.person_id, body=MessageBody(text))
            )


def _entry_key(view: EventView, entry: EntryRow, person: Person) -> str:
    return f"entry:{event_id_of(view).hex()}:{entry.number}:{person.person_id}"


def _notice(
    bot: TelegramBot, view: EventView, entry: EntryRow, booking: FollowedBooking, person: Person
) -> MessageBody | None:
    """What the worker reads about this entry. A worker who gives up a place needs no message about it."""
    is_given_up = entry.kind == Status.CANCELLED and entry.actor.startswith(CUSTOMER_ACTOR)
    if entry.kind not in NOTICES or is_given_up:
        return None
    language = person.language
    reference = ids.booking_reference(booking.id)
    reason = entry.data.reason
    was_waiting = entry.kind == Status.EXPIRED and reason == Reason.RECEIPT_NOT_REVIEWED
    key = "notice.not_reviewed" if was_waiting else f"notice.{entry.kind}"
    if entry.kind == Status.CONFIRMED and booking.total == 0:
        key = "notice.confirmed_free"
    text = paragraphs(
        shift_html(view, language) if entry.kind == Status.CONFIRMED else title_html(view),
        say(language, key, org=bot.org_name, reference=reference),
        escape(reason_text(language, reason)) if reason and not was_waiting else None,
    )
    can_retry = entry.kind in RETRIED and view.status is EventStatus.ACTIVE
    retry = TakeButton(event=pack_id(event_id_of(view))).button(label(language, "try_again"))
    return MessageBody(text, [[retry]] if can_retry else [])
