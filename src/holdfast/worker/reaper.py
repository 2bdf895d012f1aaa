"""Ends what is due in events that nobody else is working on, and winds up events that are over or called off."""

from typing import Final

import structlog

from holdfast import sql
from holdfast.db import Connection
from holdfast.desk.batch import sweep
from holdfast.desk.layouts import Layouts

log = structlog.get_logger()

EVENTS_MAX: Final = 200


class Reaper:
    """Any number may run at once: each takes the events whose lock is free, and what one has ended the next does not
    find any more."""

    def __init__(self) -> None:
        self._layouts = Layouts()

    async def run_once(self, connection: Connection) -> int:
        """Returns how many bookings ended. There may be more: the batch is bounded."""
        rows = await connection.fetch(sql.work.events_to_sweep, EVENTS_MAX)
        if not rows:
            return 0
        ended = 0
        for row in rows:
            # Each in a transaction of its own, so that no buyer waits for another event's housekeeping.
            ended += await sweep(connection, self._layouts, [row["id"]], sql.desk.lock_if_free)
        log.info("reaped", events=len(rows), bookings=ended)
        return ended
