"""Finds the shifts of an org. It may have other events too."""

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from msgspec import Struct

from holdfast import sql
from holdfast.core.states import EventStatus
from holdfast.runtime.db import Database

DAY_MAX: Final = 50
NOT_CANCELLED: Final = (EventStatus.ACTIVE, EventStatus.COMPLETED)


class FoundShift(Struct, frozen=True):
    id: bytes
    order_number: str | None


async def find_shifts(
    database: Database,
    org: bytes,
    earliest: datetime,
    before: datetime | None,
    statuses: Sequence[EventStatus],
    shifts_max: int,
) -> list[FoundShift]:
    """Shifts that start in this period, soonest first."""
    return await database.org(org).rows(
        FoundShift,
        *sql.telegram.shifts(org=org, earliest=earliest, before=before, statuses=statuses, shifts_max=shifts_max),
    )


async def latest_shifts(database: Database, org: bytes, shifts_max: int) -> list[FoundShift]:
    """The shifts that were made last, newest first."""
    return await database.org(org).rows(FoundShift, sql.telegram.latest_shifts, org, shifts_max)


def local_day(day: date, timezone: str) -> tuple[datetime, datetime]:
    """Where the day starts and ends there."""
    zone = ZoneInfo(timezone)
    return datetime.combine(day, time(), zone), datetime.combine(day + timedelta(days=1), time(), zone)
