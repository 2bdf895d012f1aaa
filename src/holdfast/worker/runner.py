"""The worker process: runs each job again and again, and goes on when one of them fails."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from holdfast import db
from holdfast.orphans import end_with_parent
from holdfast.worker import auditor
from holdfast.worker.reaper import Reaper

log = structlog.get_logger()

REAP_SECONDS: Final = 1.0
AUDIT_SECONDS: Final = 15.0

Job = Callable[[db.Connection], Awaitable[object]]
Connect = Callable[[str], Awaitable[db.Connection]]


async def run_worker(url: str, *, child: bool = False) -> None:
    """Work until asked to stop. A `child` also stops when its parent is gone."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    if child:
        end_with_parent()
    reaper = Reaper()
    await asyncio.gather(
        _repeat(url, reaper.run_once, REAP_SECONDS, stopping),
        _repeat(url, _audit, AUDIT_SECONDS, stopping, db.connect),
    )


async def _audit(connection: db.Connection) -> None:
    """What is found is in the log and the database; it is no reason not to rest."""
    await auditor.run_once(connection)


async def _repeat(
    url: str, job: Job, seconds: float, stopping: asyncio.Event, connect: Connect = db.connect_lane
) -> None:
    """Run the job, then rest; where there was something to do there may be more, so then do not rest."""
    connection: db.Connection | None = None
    while not stopping.is_set():
        found: object = None
        try:
            connection = connection or await connect(url)
            found = await job(connection)
        except Exception as error:
            log.error("job_failed", job=job.__qualname__, error=type(error).__name__, detail=str(error))
            if connection is not None:
                connection.terminate()
            connection = None
        if not found:
            await _rest(seconds, stopping)
    if connection is not None:
        await connection.close()


async def _rest(seconds: float, stopping: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), seconds)
    except TimeoutError:
        return
