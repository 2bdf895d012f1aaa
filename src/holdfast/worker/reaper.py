"""Expires due holds, and ends the bookings of completed and cancelled events.

Buyers do not depend on it: every batch expires the due holds of its event first.
"""

from typing import Final

import structlog

from holdfast import sql
from holdfast.engine.batch import CommitListener, ignore_commit
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.sweeper import KeptConnection, NotConnectedError, Sweeper, SweepSizes
from holdfast.runtime import ids
from holdfast.runtime.backoff import Backoff, FailureBackoff
from holdfast.runtime.db import Connect, Database
from holdfast.runtime.logged_errors import error_text

log = structlog.get_logger()

EVENTS_MAX: Final = 200
# A sweep may take its full timeout before it fails, so a pass retries only a few events that failed before.
FAILED_MAX: Final = 3
RETRIES: Final = Backoff.exponential(2, 300)
FIRST: Final = bytes(16)


class Reaper:
    """Any number may run at once: each skips events that are locked, and ends only bookings that no other has ended."""

    def __init__(self, connect: Connect, on_commit: CommitListener = ignore_commit) -> None:
        self._connection = KeptConnection(connect)
        self._sweeper = Sweeper(self._connection, LayoutCache(), SweepSizes(), sql.engine.lock_if_free, on_commit)
        self._failures = FailureBackoff[bytes](RETRIES)
        self._after = FIRST

    async def run_once(self) -> int:
        """Returns how many bookings ended. A pass is bounded, and the next one continues after its last event."""
        events = await self._find_events()
        ended = sum([await self._sweep(event) for event in events])
        if events:
            log.info("reaped", events=len(events), bookings=ended)
        return ended

    async def close(self) -> None:
        self._connection.close()

    async def _find_events(self) -> list[bytes]:
        """Events that failed before come last, and wait longer after each failure."""
        async with self._connection as connection:
            rows = await Database(connection).all_events.fetch(
                sql.worker.events_to_sweep, EVENTS_MAX, self._after, self._failures.waiting()
            )
        events = [row["id"] for row in rows]
        self._after = events[-1] if len(events) == EVENTS_MAX else FIRST
        failed = [event for event in events if self._failures.has_failed(event)]
        return [event for event in events if event not in failed] + failed[:FAILED_MAX]

    async def _sweep(self, event: bytes) -> int:
        """One transaction for each event, so that buyers wait only for their own event, and one broken event does not
        stop the others, even if its sweep takes too long or loses the connection."""
        try:
            ended = await self._sweeper.sweep(event)
        except NotConnectedError:
            raise
        except Exception as error:
            log.error(
                "sweep_failed",
                event_id=ids.format_event_id(event),
                error=type(error).__name__,
                detail=error_text(error),
            )
            self._failures.record_failure(event)
            return 0
        self._failures.record_success(event)
        return ended
