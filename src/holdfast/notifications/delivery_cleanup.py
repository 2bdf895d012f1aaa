"""Deletes deliveries that nothing needs any more, because they say who got which message."""

from collections.abc import AsyncIterator, Collection
from typing import Final

from holdfast import sql
from holdfast.core.notification_rules import BUSES
from holdfast.notifications.relay import DueTarget
from holdfast.runtime import db
from holdfast.runtime.db import Database

DAY_SECONDS: Final = 24 * 3600
# No limit on emails or SMS looks back further.
HASH_SECONDS: Final = DAY_SECONDS
# How far the delivery log of a webhook endpoint goes back, and how long a message that a broker refused can be retried.
DONE_SECONDS: Final = 30 * DAY_SECONDS
# How long a message waits for a worker that has its channel. Later, the news would only confuse the buyer.
UNCLAIMED_SECONDS: Final = 7 * DAY_SECONDS
DELETE_MAX: Final = 1_000
TARGETS_AT_ONCE: Final = 1_000


class DeliveryCleanup:
    """`channels` are those that this worker serves."""

    def __init__(self, database: Database, channels: Collection[str]) -> None:
        self._database = database
        self._channels = channels

    async def run_once(self) -> int:
        """Returns how many rows it deleted or changed."""
        async with self._database.all_events.transaction() as scope:
            await scope.execute(db.INDEX_LOOKUPS_ONLY)
            results = [
                await scope.execute(sql.notifications.delete_old_hashes, HASH_SECONDS, DELETE_MAX),
                await scope.execute(sql.notifications.delete_done, DONE_SECONDS, DELETE_MAX),
                *[
                    await scope.execute(sql.notifications.delete_unclaimed, target, UNCLAIMED_SECONDS, DELETE_MAX)
                    async for target in self._unserved_targets(scope)
                ],
            ]
        await self._database.shared.execute(sql.sms.delete_old_counts)
        return sum(int(result.rpartition(" ")[2]) for result in results)

    async def _unserved_targets(self, scope: db.DatabaseScope) -> AsyncIterator[str]:
        after = ""
        while True:
            rows = await scope.rows(DueTarget, sql.notifications.targets, after, TARGETS_AT_ONCE)
            for row in rows:
                if row.due and row.channel not in self._channels and row.channel not in BUSES:
                    yield row.target
            if len(rows) < TARGETS_AT_ONCE:
                return
            after = rows[-1].target
