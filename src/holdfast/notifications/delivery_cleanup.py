"""Deletes deliveries that nothing needs any more, because they say who got which message."""

from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

import structlog

from holdfast import sql
from holdfast.core.notification_rules import BUSES
from holdfast.notifications.relay import DueTarget
from holdfast.runtime import db
from holdfast.runtime.db import Database

log = structlog.get_logger()

DAY_SECONDS: Final = 24 * 3600
# No limit on emails or SMS looks back further.
HASH_SECONDS: Final = DAY_SECONDS
# How far the delivery log of a webhook endpoint goes back, and how long a message that a broker refused can be retried.
DONE_SECONDS: Final = 30 * DAY_SECONDS
# How long a message waits for a worker that has its channel. Later, the news would only confuse the buyer.
UNCLAIMED_SECONDS: Final = 7 * DAY_SECONDS
# Of one run, so that a backlog, for example after an upgrade, takes no time from a sale.
DELETE_MAX: Final = 1_000
TARGETS_AT_ONCE: Final = 1_000


class DeliveryCleanup:
    """`channels` are those that this worker serves."""

    def __init__(self, database: Database, channels: Collection[str]) -> None:
        self._database = database
        self._channels = channels

    async def run_once(self) -> int:
        """Returns how many rows it deleted or changed."""
        await self._database.shared.execute(sql.sms.delete_old_counts)
        rows = await self._run(sql.notifications.delete_old_hashes, HASH_SECONDS, DELETE_MAX)
        if rows < DELETE_MAX:
            rows += await self._run(sql.notifications.delete_done, DONE_SECONDS, DELETE_MAX - rows)
        return rows + await self._delete_unclaimed(DELETE_MAX - rows)

    async def _delete_unclaimed(self, rows_max: int) -> int:
        deleted = Counter[str]()
        async for unserved in self._unserved_targets():
            rest = rows_max - deleted.total()
            if rest <= 0:
                break
            deleted[unserved.channel] += await self._run(
                sql.notifications.delete_unclaimed, unserved.target, UNCLAIMED_SECONDS, rest
            )
        for channel, count in deleted.items():
            if count:
                log.warning("unsent_messages_deleted", channel=channel, messages=count)
        return deleted.total()

    async def _unserved_targets(self) -> AsyncIterator[DueTarget]:
        after = ""
        while True:
            async with self._lookups() as scope:
                rows = await scope.rows(DueTarget, sql.notifications.targets, after, TARGETS_AT_ONCE, UNCLAIMED_SECONDS)
            for row in rows:
                if row.due and row.channel not in self._channels and row.channel not in BUSES:
                    yield row
            if len(rows) < TARGETS_AT_ONCE:
                return
            after = rows[-1].target

    async def _run(self, statement: str, *values: object) -> int:
        async with self._lookups() as scope:
            result = await scope.execute(statement, *values)
        return int(result.rpartition(" ")[2])

    @asynccontextmanager
    async def _lookups(self) -> AsyncIterator[db.DatabaseScope]:
        """A transaction of its own for each statement, so that relays never wait for a long one."""
        async with self._database.all_events.transaction() as scope:
            await scope.execute(db.INDEX_LOOKUPS_ONLY)
            yield scope
