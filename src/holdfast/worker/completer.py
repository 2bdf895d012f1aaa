"""Completes active events once their end has passed."""

from typing import Final

import structlog
from msgspec import Struct

from holdfast import sql
from holdfast.core.refusals import RefusedError
from holdfast.core.states import EventStatus
from holdfast.engine.event_editor import set_status
from holdfast.runtime import ids
from holdfast.runtime.backoff import Backoff, FailureBackoff
from holdfast.runtime.db import Database

log = structlog.get_logger()

ACTOR: Final = "completer"
EVENTS_MAX: Final = 100
RETRIES: Final = Backoff.exponential(5, 300)


class EndedEvent(Struct, frozen=True):
    id: bytes
    org_id: bytes


class Completer:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._failures = FailureBackoff[bytes](RETRIES)

    async def run_once(self) -> int:
        """Returns how many events were completed. The reaper then completes their bookings."""
        events = await self._database.all_events.rows(
            EndedEvent, sql.worker.events_to_complete, EVENTS_MAX, self._failures.waiting()
        )
        return sum([await self._complete(event) for event in events])

    async def _complete(self, event: EndedEvent) -> bool:
        """An event that is locked or broken does not stop the others. It waits longer after each failure."""
        try:
            await set_status(self._database, event.org_id, event.id, EventStatus.COMPLETED, ACTOR)
        except RefusedError:
            log.info("event_ended_already", event_id=ids.format_event_id(event.id))
        except Exception as error:
            log.error("completion_failed", event_id=ids.format_event_id(event.id), error=type(error).__name__)
            self._failures.record_failure(event.id)
            return False
        self._failures.record_success(event.id)
        return True
