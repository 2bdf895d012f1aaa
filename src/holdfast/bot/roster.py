"""Who comes to a shift."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.bot.markup import escape, say, shorten_name
from holdfast.core.states import Status
from holdfast.runtime.db import Database

ATTENDEES_MAX: Final = 10_000
# More do not fit into a message. The export has all of them.
LISTED_MAX: Final = 30
COMING: Final = (Status.CONFIRMED, Status.COMPLETED, Status.PAYMENT_SUBMITTED, Status.HELD)


class Attendee(Struct, frozen=True):
    id: bytes
    user_id: str
    status: Status
    name: str | None
    phone: str | None
    is_no_show: bool

    @property
    def shown_name(self) -> str:
        return shorten_name(self.name or self.user_id)


async def load_attendees(
    database: Database, org: bytes, event: bytes, statuses: Sequence[Status] = COMING
) -> list[Attendee]:
    return await database.event(event).rows(Attendee, sql.telegram.attendees, event, org, statuses, ATTENDEES_MAX)


async def load_attendee(database: Database, org: bytes, event: bytes, booking: bytes) -> Attendee | None:
    return await database.event(event).row(Attendee, sql.telegram.attendee, event, org, booking)


def attendee_lines(attendees: Sequence[Attendee], language: str) -> list[str]:
    lines = [_line(number, attendee, language) for number, attendee in enumerate(attendees[:LISTED_MAX], 1)]
    if not lines:
        return [say(language, "roster.none")]
    if len(attendees) > LISTED_MAX:
        lines.append(say(language, "roster.more", count=len(attendees) - LISTED_MAX))
    return lines


def _line(number: int, attendee: Attendee, language: str) -> str:
    mark = " ❌" if attendee.is_no_show else ""
    status = say(language, f"status.{attendee.status}")
    return f"{number}. {escape(attendee.shown_name)}, {escape(attendee.phone or '')}, {status}{mark}"
