"""Warns buyers whose hold is about to end, if their browser subscribed to push messages about the booking.

One statement writes the messages and when to look at each subscription next, so however many workers run or crash, a
browser hears once of each deadline.
"""

from typing import Final

from holdfast import sql
from holdfast.core.notification_rules import HOLD_ENDING
from holdfast.runtime.db import Database

WARNING_SECONDS: Final = 120
SUBSCRIPTIONS_MAX: Final = 200
# How long a subscription waits for its last message before a worker looks at it again.
WAITING_SECONDS: Final = 600


async def warn_of_ending_holds(database: Database) -> int:
    """Returns how many subscriptions were due."""
    due: int = await database.all_events.fetchval(
        *sql.push.warn(
            kind=HOLD_ENDING,
            warning_seconds=WARNING_SECONDS,
            waiting_seconds=WAITING_SECONDS,
            subscriptions_max=SUBSCRIPTIONS_MAX,
        )
    )
    return due
