"""Completes active events once their end has passed."""

from typing import Final

import structlog
from msgspec import Struct

from holdfast import sql
from holdfast.core.refusals import RefusedError
from holdfast.core.states import EventStatus
from holdfast.engine.event_editor import set_status
from holdfast.runtime import ids
from holdfast.runtime.db import Database

log = structlog.get_logger()

ACTOR: Final = "completer"
EVENTS_MAX: Final = 100


class EndedEvent(Struct, frozen=True):
    id: bytes
    org_id: bytes


async def run_once(database: Database) -> int:
    """Returns how many events have ended. The reaper then completes their bookings."""
    events = await database.all_events.rows(EndedEvent, sql.worker.events_to_complete, EVENTS_MAX)
    for event in events:
        try:
            await set_status(database, event.org_id, event.id, EventStatus.COMPLETED, ACTOR)
        except RefusedError:
            log.info("event_ended_already", subject=ids.format_event_id(event.id))
    return len(events)
