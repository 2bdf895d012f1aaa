"""Ends what is due in events that nobody else is working on, and winds up events that are over or called off."""

from typing import Final

import structlog

from holdfast import sql
from holdfast.engine.batch import sweep
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime import ids
from holdfast.runtime.db import LOST_ERRORS, Connection

log = structlog.get_logger()

EVENTS_MAX: Final = 200
FIRST: Final = bytes(16)


class Reaper:
    """Any number may run at once: each takes the events whose lock is free, and what one has ended the next does not
    find any more."""

    def __init__(self) -> None:
        self._layouts = LayoutCache()
        self._after = FIRST

    async def run_once(self, connection: Connection) -> int:
        """Returns how many bookings ended. There may be more: a pass is bounded, and the next one goes on behind it."""
        events = [row["id"] for row in await connection.fetch(sql.worker.events_to_sweep, EVENTS_MAX, self._after)]
        self._after = events[-1] if len(events) == EVENTS_MAX else FIRST
        ended = sum([await self._sweep(connection, event) for event in events])
        if events:
            log.info("reaped", events=len(events), bookings=ended)
        return ended

    async def _sweep(self, connection: Connection, event: bytes) -> int:
        """Each in a transaction of its own, so that no buyer waits for another event's housekeeping, and an event that
        is broken does not stop that of others."""
        try:
            return await sweep(connection, self._layouts, [event], sql.engine.lock_if_free)
        except LOST_ERRORS:
            raise
        except Exception as error:
            log.error("sweep_failed", subject=ids.format_event_id(event), error=type(error).__name__, detail=str(error))
            return 0
