"""Receipts that wait for a decision of the staff."""

from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.bot.outbox import review
from holdfast.bot.turn import Turn
from holdfast.runtime.db import Database

SUBMISSIONS_MAX: Final = 200


class Submission(Struct, frozen=True):
    """`number` is that of the entry in the journal, and `minutes` is how long ago that was."""

    event_id: bytes
    id: bytes
    user_id: str
    name: str | None
    number: int
    minutes: int


async def load_submissions(database: Database, org: bytes) -> list[Submission]:
    """The oldest first."""
    return await database.org(org).rows(Submission, sql.telegram.submissions, org, SUBMISSIONS_MAX)


async def show_receipts(turn: Turn, chat: int) -> bool:
    """Bring the receipts that wait for a decision to the end of this chat. Returns whether there are any."""
    submissions = await load_submissions(turn.database, turn.bot.org_id)
    for submission in submissions:
        turn.show_again(review(submission.event_id, submission.id, submission.number, chat))
    return bool(submissions)
