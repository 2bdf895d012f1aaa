"""Completes events that have an end, once it has come."""

from typing import Final

import structlog

from holdfast import sql
from holdfast.core.refusals import RefusedError
from holdfast.core.states import EventStatus
from holdfast.engine.event_editor import set_status
from holdfast.runtime import ids
from holdfast.runtime.db import Connection

log = structlog.get_logger()

ACTOR: Final = "completer"
EVENTS_MAX: Final = 100


async def run_once(connection: Connection) -> int:
    """Returns how many events are over. Their bookings are then wound up by the reaper."""
    rows = await connection.fetch(sql.worker.events_to_complete, EVENTS_MAX)
    for row in rows:
        try:
            await set_status(connection, row["org_id"], row["id"], EventStatus.COMPLETED, ACTOR)
        except RefusedError:
            log.info("event_ended_meanwhile", subject=ids.format_event_id(row["id"]))
    return len(rows)
