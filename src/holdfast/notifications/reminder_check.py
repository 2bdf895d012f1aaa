"""Checks that a reminder is still true when it is about to be sent."""

from datetime import datetime

from holdfast import sql
from holdfast.notifications.channel import Delivery, UndeliveredError
from holdfast.runtime.db import Database


async def check_reminder(database: Database, delivery: Delivery, generation: int, starts_at: datetime) -> None:
    """Raise `UndeliveredError` if the booking has ended, changed hands or moved, or if it has started by now."""
    is_current = await database.event(delivery.event).fetchval(
        *sql.reminders.is_current(
            event=delivery.event, booking=delivery.stream, generation=generation, starts_at=starts_at
        )
    )
    if not is_current:
        raise UndeliveredError("the booking has changed or started since", is_permanent=True)
