"""Starts a stampede for a page. It runs in separate processes, which end with the API process that started them."""

import os
import subprocess
import sys
import threading
from typing import Final

from holdfast.core.states import EventStatus
from holdfast.demo.stampede.event_stock import count_units_left, find_event
from holdfast.demo.stampede.record import create_record
from holdfast.demo.stampede.report import Report, StampedeError, StampedeProblem, State
from holdfast.runtime import ids
from holdfast.runtime.db import Database
from holdfast.runtime.process_lifetime import set_parent_pid
from holdfast.runtime.settings import Settings

BUYERS_MAX: Final = 20_000
SECONDS_MAX: Final = 60


async def launch(
    database: Database, settings: Settings, event: bytes, *, buyers: int, seconds: float, url: str
) -> bytes:
    """Returns the id of the stampede. Its row exists when this returns."""
    if not settings.demo:
        raise StampedeError(
            StampedeProblem.NOT_IN_DEMO_MODE, "Pages can start a stampede only in demo mode. Set HOLDFAST_DEMO=true."
        )
    if not (1 <= buyers <= BUYERS_MAX and 0 <= seconds <= SECONDS_MAX):
        raise StampedeError(
            StampedeProblem.OUT_OF_RANGE, f"Choose 1 to {BUYERS_MAX:,} buyers and 0 to {SECONDS_MAX} seconds."
        )
    found = await find_event(database, event)
    if found is None or found.status is not EventStatus.ACTIVE:
        raise StampedeError(StampedeProblem.NOT_ON_SALE, "The event is not on sale.")
    left = await count_units_left(database, event)
    report = Report(state=State.RUNNING, buyers=buyers, seconds=seconds, capacity=found.capacity, left=left)
    stampede = ids.new_id()
    await create_record(database, event, stampede, report)
    _start(settings, [f"--event={ids.format_event_id(event)}", f"--id={stampede.hex()}", f"--url={url}"], report)
    return stampede


def _start(settings: Settings, options: list[str], report: Report) -> None:
    assert settings.database_url is not None
    set_parent_pid()
    process = subprocess.Popen(  # noqa: S603 (no argument contains text from a request)
        [
            *(sys.executable, "-m", "holdfast", "stampede", "--json", *options),
            *(f"--buyers={report.buyers}", f"--seconds={report.seconds}"),
        ],
        env={**os.environ, "HOLDFAST_DATABASE_URL": settings.database_url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    # Without a wait the process would stay a zombie after its end.
    threading.Thread(target=process.wait, daemon=True).start()
