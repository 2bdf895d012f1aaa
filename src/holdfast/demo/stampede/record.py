"""The database row of a stampede, through which every process reads its report."""

from typing import Final

from msgspec import Struct, json, structs

from holdfast import sql
from holdfast.demo.stampede.report import Report, StampedeError, StampedeProblem, State
from holdfast.runtime.db import Database

# A running stampede saves its report twice a second. One that stays silent for this long was killed.
SILENT_SECONDS: Final = 20.0


class _LatestRow(Struct, frozen=True):
    report: Report
    is_silent: bool


async def create_record(database: Database, event: bytes, stampede: bytes, report: Report) -> None:
    async with database.event(event).transaction() as scope:
        await scope.execute(sql.stampede.lock_event, event)
        values = (event, stampede, json.encode(report).decode(), SILENT_SECONDS)
        if await scope.fetchval(sql.stampede.insert_record, *values) is None:
            raise StampedeError(
                StampedeProblem.ALREADY_RUNNING, "Another stampede is running on this event. Wait until it ends."
            )


async def save_report(database: Database, event: bytes, stampede: bytes, report: Report) -> None:
    has_ended = report.state is not State.RUNNING
    await database.event(event).execute(
        sql.stampede.save_report, event, stampede, json.encode(report).decode(), has_ended
    )


async def read_latest_report(database: Database, event: bytes) -> Report | None:
    """The report of the last stampede on the event, which may still be running."""
    row = await database.event(event).row(_LatestRow, sql.stampede.latest_report, event, SILENT_SECONDS)
    if row is None:
        return None
    if row.is_silent:
        return structs.replace(row.report, state=State.FAILED, failure=StampedeProblem.KILLED)
    return row.report
