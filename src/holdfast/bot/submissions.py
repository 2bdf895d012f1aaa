"""Receipts that wait for a decision of the staff."""

from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.runtime.db import Database

SUBMISSIONS_MAX: Final = 500


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
