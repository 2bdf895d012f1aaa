"""Messages that are due because time has passed: before a shift, and while a receipt waits for its review."""

from datetime import datetime
from typing import Final

import structlog
from msgspec import Struct

from holdfast import sql
from holdfast.api import event_handlers as events
from holdfast.bot.markup import MessageBody, paragraphs, say, shorten_name
from holdfast.bot.org_api import BusyError, OrgApi, person_of
from holdfast.bot.outbox import NewMessage, write_messages
from holdfast.bot.people import load_people
from holdfast.bot.roster import load_attendees
from holdfast.bot.shift_texts import shift_html
from holdfast.bot.submissions import Submission, load_submissions
from holdfast.bot.telegram_bot import TelegramBot
from holdfast.core.states import Status
from holdfast.runtime import ids
from holdfast.runtime.backoff import Backoff, FailureBackoff
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS, Database

log = structlog.get_logger()

# Workers hear of a shift once more, so long before it starts.
SHIFT_SECONDS: Final = 12 * 3600
# Staff hear of a receipt that has waited for so long. The last one is an alert.
REVIEW_MINUTES: Final = (10, 30)
EVENTS_MAX: Final = 50
RETRIES: Final = Backoff.exponential(15, 300)


class StartingShift(Struct, frozen=True):
    event_id: bytes
    starts_at: datetime


class Reminders:
    def __init__(self, database: Database, api: OrgApi) -> None:
        self._database = database
        self._api = api
        self._failures = FailureBackoff[bytes](RETRIES)

    async def run_once(self, bot: TelegramBot) -> int:
        await self._remind_workers(bot)
        await self._remind_staff(bot)
        return 0

    async def _remind_workers(self, bot: TelegramBot) -> None:
        shifts = await self._database.org(bot.org_id).rows(
            StartingShift,
            *sql.telegram.reminders_due(
                org=bot.org_id, seconds=SHIFT_SECONDS, waiting=self._failures.waiting(), events_max=EVENTS_MAX
            ),
        )
        for shift in shifts:
            try:
                await self._remind_of_shift(bot, shift)
                self._failures.record_success(shift.event_id)
            except (*LOST_ERRORS, *BLOCKED_ERRORS, BusyError):
                raise
            except Exception as error:
                log.error("telegram_reminder_failed", event_id=ids.format_event_id(shift.event_id), exc_info=error)
                self._failures.record_failure(shift.event_id)

    async def _remind_of_shift(self, bot: TelegramBot, shift: StartingShift) -> None:
        messages = await self._shift_reminders(bot, shift)
        async with self._database.event(shift.event_id).transaction() as scope:
            await write_messages(scope, bot.org_id, messages)
            await scope.execute(sql.telegram.record_reminder, shift.event_id, shift.starts_at)

    async def _shift_reminders(self, bot: TelegramBot, shift: StartingShift) -> list[NewMessage]:
        event = shift.event_id
        view = await self._api.as_staff(None, events.get_event, ids.format_event_id(event))
        attendees = await load_attendees(self._database, bot.org_id, event, [Status.CONFIRMED])
        people = await load_people(self._database, bot.org_id, [person_of(one.user_id) for one in attendees])
        return [
            NewMessage(
                key=f"reminder:{event.hex()}:{int(shift.starts_at.timestamp())}:{person.person_id}",
                chat_id=person.person_id,
                body=MessageBody(
                    paragraphs(say(person.language, "notice.reminder"), shift_html(view, person.language))
                ),
            )
            for person in people.values()
        ]

    async def _remind_staff(self, bot: TelegramBot) -> None:
        if bot.admin_chat_id is None:
            return
        submissions = await load_submissions(self._database, bot.org_id)
        messages = [
            _review_reminder(bot, bot.admin_chat_id, submission, minutes)
            for submission in submissions
            for minutes in [max((m for m in REVIEW_MINUTES if m <= submission.minutes), default=0)]
            if minutes
        ]
        await write_messages(self._database.org(bot.org_id), bot.org_id, messages)


def _review_reminder(bot: TelegramBot, chat: int, submission: Submission, minutes: int) -> NewMessage:
    key = "review.alert" if minutes == REVIEW_MINUTES[-1] else "review.reminder"
    text = say(
        bot.language,
        key,
        name=shorten_name(submission.name or submission.user_id),
        reference=ids.booking_reference(submission.id),
        minutes=minutes,
    )
    return NewMessage(
        key=f"waiting:{submission.id.hex()}:{submission.number}:{minutes}",
        chat_id=chat,
        body=MessageBody(text),
        event_id=submission.event_id,
        booking_id=submission.id,
    )
