"""The row of a stampede, through which every process can see how far it is."""

from typing import Final

from msgspec import json, structs

from holdfast import sql
from holdfast.demo.stampede.report import Report, State
from holdfast.runtime.db import Connection, Pool

# A stampede keeps its report twice a second. One that has been silent for so long was killed.
SILENT_SECONDS: Final = 20.0


class StampedeError(Exception):
    """The stampede cannot be carried out, and why, for people to read."""


async def begin(connection: Connection, event: bytes, stampede: bytes, report: Report) -> None:
    async with connection.transaction():
        await connection.execute(sql.stampede.lock, event)
        values = (event, stampede, json.encode(report).decode(), SILENT_SECONDS)
        if await connection.fetchval(sql.stampede.begin, *values) is None:
            raise StampedeError("Another stampede on this event is running. Wait until it has ended.")


async def keep(connection: Connection, event: bytes, stampede: bytes, report: Report) -> None:
    is_over = report.state is not State.RUNNING
    await connection.execute(sql.stampede.keep, event, stampede, json.encode(report).decode(), is_over)


async def latest(pool: Pool | Connection, event: bytes) -> Report | None:
    """How far the last stampede on the event is, or what came of it."""
    row = await pool.fetchrow(sql.stampede.latest, event, SILENT_SECONDS)
    if row is None:
        return None
    report = json.decode(row["report"], type=Report)
    if row["is_silent"]:
        return structs.replace(report, state=State.FAILED, trouble="The stampede was killed.")
    return report
