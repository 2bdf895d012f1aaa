"""Reads figures from the database for the metrics: what waits, and for how long."""

import time
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.notification_rules import BUSES, EMAIL, RECOVERY
from holdfast.runtime import metrics
from holdfast.runtime.db import Database, DatabaseScope
from holdfast.runtime.instruments import Gauge

# Of each channel.
COUNTED_MAX: Final = 100_000
# Each org has one target per channel, and each webhook endpoint is one.
TARGETS_MAX: Final = 20_000
# A target has few retries that are due, so there is a new row among the first of its rows if it has any.
DUE_MAX: Final = 100
# The age of the oldest audit is the only figure whose cost grows with the number of events.
AUDIT_AGE_SECONDS: Final = 60.0


class WaitingRow(Struct, frozen=True):
    waiting: int
    oldest_seconds: float | None


class HoldsRow(Struct, frozen=True):
    live: int
    overdue_seconds: float | None


class MoneyRow(Struct, frozen=True):
    refunds: int
    refunds_oldest_seconds: float | None
    in_review: int


class ChannelRow(WaitingRow, frozen=True):
    channel: str


class Figures:
    """Of notifications, it counts emails, those on the event bus, and those on `channels`, which this worker serves.
    Nobody needs to send SMS or push messages, but buyers rely on emails. So it also counts them without a mail server,
    which somebody may have forgotten to set."""

    def __init__(self, database: Database, channels: Collection[str]) -> None:
        self._database = database
        self._counted = {EMAIL, *channels, *BUSES}
        # A channel reports even when nothing waits. A bus does once something has waited for it.
        self._channels = {EMAIL, *channels}
        self._audit_age_due_at = 0.0

    async def run_once(self) -> int:
        async with self._database.all_events.transaction(readonly=True) as scope:
            # A database that was never analysed would scan whole tables.
            await scope.execute("SET LOCAL enable_seqscan = off")
            await self._read_holds(scope)
            await self._read_money(scope)
            await self._read_deliveries(scope)
            await self._read_audits(scope)
            metrics.EVENTS_OVERDUE.set(await scope.fetchval(sql.figures.events_overdue))
            await _read_waiting(
                scope,
                sql.figures.telegram_messages,
                metrics.TELEGRAM_MESSAGES_WAITING,
                metrics.TELEGRAM_MESSAGES_OLDEST,
            )
        return 0

    async def _read_holds(self, scope: DatabaseScope) -> None:
        holds = await scope.row(HoldsRow, sql.figures.holds)
        assert holds is not None
        metrics.LIVE_HOLDS.set(holds.live)
        _set_age(metrics.REAPER_LAG, holds.overdue_seconds)
        await _read_waiting(scope, sql.figures.receipts, metrics.RECEIPTS_WAITING, metrics.RECEIPTS_OLDEST)

    async def _read_money(self, scope: DatabaseScope) -> None:
        money = await scope.row(MoneyRow, sql.figures.money)
        assert money is not None
        metrics.REFUNDS_DUE.set(money.refunds)
        _set_age(metrics.REFUNDS_OLDEST, money.refunds_oldest_seconds)
        metrics.PAYMENTS_IN_REVIEW.set(money.in_review)
        await _read_waiting(scope, sql.figures.notices, metrics.NOTICES_WAITING, metrics.NOTICES_OLDEST)

    async def _read_deliveries(self, scope: DatabaseScope) -> None:
        """A channel that has nothing left reports zero from then on."""
        rows = await scope.rows(
            ChannelRow, *sql.figures.deliveries(counted_max=COUNTED_MAX, targets_max=TARGETS_MAX, due_max=DUE_MAX)
        )
        found = {row.channel: row for row in rows if row.channel in self._counted}
        self._channels |= found.keys()
        for channel in self._channels:
            row = found.get(channel, ChannelRow(0, None, channel))
            metrics.DELIVERIES_WAITING.set(row.waiting, channel)
            _set_age(metrics.DELIVERIES_OLDEST, row.oldest_seconds, channel)
        await _read_waiting(
            scope, sql.figures.recovery_requests, metrics.DELIVERIES_WAITING, metrics.DELIVERIES_OLDEST, RECOVERY
        )

    async def _read_audits(self, scope: DatabaseScope) -> None:
        metrics.AUDIT_FINDINGS.set(await scope.fetchval(sql.figures.audit_findings))
        if time.monotonic() >= self._audit_age_due_at:
            _set_age(metrics.AUDIT_OLDEST, await scope.fetchval(sql.figures.audit_oldest))
            self._audit_age_due_at = time.monotonic() + AUDIT_AGE_SECONDS


async def _read_waiting(scope: DatabaseScope, statement: str, count: Gauge, age: Gauge, *labels: str) -> None:
    row = await scope.row(WaitingRow, statement)
    assert row is not None
    count.set(row.waiting, *labels)
    _set_age(age, row.oldest_seconds, *labels)


def _set_age(gauge: Gauge, seconds: float | None, *labels: str) -> None:
    """Zero if there is nothing that could have an age."""
    gauge.set(max(seconds or 0.0, 0.0), *labels)
