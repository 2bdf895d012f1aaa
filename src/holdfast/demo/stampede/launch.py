"""Starts a stampede beside a server, for a page. The page's process does not wait for it; it ends with that process."""

import os
import subprocess
import sys
import threading
from typing import Final

from holdfast import sql
from holdfast.demo.stampede.record import StampedeError, begin
from holdfast.demo.stampede.report import Report, State
from holdfast.runtime import ids
from holdfast.runtime.db import Pool
from holdfast.runtime.process_lifetime import set_parent_pid
from holdfast.runtime.settings import Settings

BUYERS_MAX: Final = 20_000
SECONDS_MAX: Final = 60.0


async def launch(pool: Pool, settings: Settings, event: bytes, *, buyers: int, seconds: float, url: str) -> bytes:
    """The id of the stampede. Its row is there when this returns."""
    if not settings.demo:
        raise StampedeError("Stampedes are started from pages in demo mode only: HOLDFAST_DEMO=true.")
    if not (1 <= buyers <= BUYERS_MAX and 0 <= seconds <= SECONDS_MAX):
        raise StampedeError(f"At most {BUYERS_MAX:,} buyers in at most {SECONDS_MAX:g} seconds.")
    stampede = ids.new_id()
    async with pool.acquire() as connection:
        found = await connection.fetchrow(sql.stampede.event, event)
        if found is None or found["status"] != "active":
            raise StampedeError("The event is not on sale.")
        left = await connection.fetchval(sql.stampede.left, event)
        report = Report(state=State.RUNNING, buyers=buyers, seconds=seconds, capacity=int(found["capacity"]), left=left)
        await begin(connection, event, stampede, report)
    _start(settings, [f"--event={ids.format_event_id(event)}", f"--row={stampede.hex()}", f"--url={url}"], report)
    return stampede


def _start(settings: Settings, options: list[str], report: Report) -> None:
    assert settings.database_url is not None
    set_parent_pid()
    process = subprocess.Popen(  # noqa: S603 (nothing of it is a text that somebody sent)
        [
            *(sys.executable, "-m", "holdfast", "stampede", "--json", *options),
            *(f"--buyers={report.buyers}", f"--seconds={report.seconds}"),
        ],
        env={**os.environ, "HOLDFAST_DATABASE_URL": settings.database_url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    # Somebody has to take note of its end.
    threading.Thread(target=process.wait, daemon=True).start()
