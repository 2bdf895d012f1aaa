"""Expires due holds, and ends the bookings of completed and cancelled events.

Buyers do not depend on it: every batch expires the due holds of its event first.
"""

from typing import Final

import structlog

from holdfast import sql
from holdfast.engine.batch import sweep
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime import ids
from holdfast.runtime.db import LOST_ERRORS, Connection, Database

log = structlog.get_logger()

EVENTS_MAX: Final = 200
FIRST: Final = bytes(16)


class Reaper:
    """Any number may run at once: each skips events that are locked, and ends only bookings that no other has ended."""

    def __init__(self) -> None:
        self._layouts = LayoutCache()
        self._after = FIRST

    async def run_once(self, connection: Connection) -> int:
        """Returns how many bookings ended. A pass is bounded, and the next one continues after its last event."""
        rows = await Database(connection).all_events.fetch(sql.worker.events_to_sweep, EVENTS_MAX, self._after)
        events = [row["id"] for row in rows]
        self._after = events[-1] if len(events) == EVENTS_MAX else FIRST
        ended = sum([await self._sweep(connection, event) for event in events])
        if events:
            log.info("reaped", events=len(events), bookings=ended)
        return ended

    async def _sweep(self, connection: Connection, event: bytes) -> int:
        """One transaction for each event, so that buyers wait only for their own event, and one broken event does not
        stop the others."""
        try:
            return await sweep(connection, self._layouts, event, sql.engine.lock_if_free)
        except LOST_ERRORS:
            raise
        except Exception as error:
            log.error("sweep_failed", subject=ids.format_event_id(event), error=type(error).__name__, detail=str(error))
            return 0
