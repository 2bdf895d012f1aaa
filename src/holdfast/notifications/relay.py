"""Sends the rows of `delivery`: at least once, and in order for each stream and target.

Each target is a lease queue of its own. A row is claimed only if no earlier row of its stream waits for the target, so
the order holds for any number of relays.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from msgspec import Struct

from holdfast import sql
from holdfast.core.notification_rules import WEBHOOK
from holdfast.notifications.bus_relay import BusRelay
from holdfast.notifications.channel import Channel, Delivery, TargetGoneError, UndeliveredError
from holdfast.notifications.claimed_delivery import (
    DELIVERED,
    DETAIL_MAX,
    FAILED,
    STREAM_WAIT_SECONDS,
    ClaimedDelivery,
    claim_queue,
)
from holdfast.runtime import ids, metrics, tracing
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.db import Database
from holdfast.runtime.fair_queue import RoundRobin

log = structlog.get_logger()

# Longer than the timeouts of the channels, so that a channel can report what went wrong.
SEND_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 20.0
# The rows of a claim are sent at the same time, so a lease has to outlast one send and the statement after it.
SENDS_PER_LEASE: Final = 2

TARGETS_SCANNED_MAX: Final = 1_000
TARGETS_MAX: Final = 100
# Targets that failed last time get at most this many of the places above.
FAILING_MAX: Final = 75
FAILING_KNOWN_MAX: Final = 10_000
CLAIM_MAX: Final = 8
FAIL_WAITING_MAX: Final = 200

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
RETRIES: Final = Backoff((5, 30, 2 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR))
RETRY_FOR_SECONDS: Final = 72 * HOUR


class DueTarget(Struct, frozen=True):
    target: str
    channel: str
    due: bool


class Relay:
    """Serves each target in a task of its own, so that a slow target delays no other. Targets on a bus have their own
    relay. Rows of a bus or a channel that this process does not have wait for a process that has it."""

    def __init__(
        self,
        database: Database,
        channels: Mapping[str, Channel],
        *,
        buses: Mapping[str, BusRelay] | None = None,
        send_seconds: float = SEND_SECONDS,
    ) -> None:
        self._database = database
        self._channels = channels
        self._buses = buses or {}
        self._send_seconds = send_seconds
        self._queue = claim_queue(CLAIM_MAX, SENDS_PER_LEASE * send_seconds)
        self._round_robin = RoundRobin[str](self._serve, TARGETS_MAX)
        self._failing: set[str] = set()
        self._scan_after = ""
        self._finished = 0

    async def run_once(self) -> int:
        """Start serving targets that have due rows, without waiting for any of them. Returns how many deliveries ended
        since the last call."""
        rows = await self._database.all_events.rows(
            DueTarget, sql.notifications.targets, self._scan_after, TARGETS_SCANNED_MAX, 0
        )
        self._scan_after = rows[-1].target if len(rows) == TARGETS_SCANNED_MAX else ""
        due = [row for row in rows if row.due]
        self._round_robin.start((row.target for row in due if row.channel in self._channels), self._may_start)
        for name, bus in self._buses.items():
            bus.start(row.target for row in due if row.channel == name)
        finished, self._finished = self._finished, 0
        return finished + sum(bus.take_published() for bus in self._buses.values())

    async def close(self) -> None:
        """Wait a while for deliveries in progress. The rest become due again when their leases end."""
        await asyncio.gather(self._round_robin.close(CLOSE_SECONDS), *(bus.close() for bus in self._buses.values()))

    def _may_start(self, target: str) -> bool:
        return target not in self._failing or len(self._round_robin.tasks.keys() & self._failing) < FAILING_MAX

    async def _serve(self, target: str) -> None:
        """Claim and deliver until nothing is due, or until another target needs the place."""
        try:
            while await self._serve_claim(target):
                if self._round_robin.must_yield or target in self._failing:
                    return
        except Exception as error:
            log.error("target_failed", target=target, error=type(error).__name__)

    async def _serve_claim(self, target: str) -> bool:
        """Whether the target may have more due rows. After an unexpected failure the answer is no, because something
        other than the target is broken; the next pass claims again."""
        rows = await self._queue.claim(
            self._database.all_events,
            target=target,
            stream_wait_seconds=STREAM_WAIT_SECONDS,
            retry_for_seconds=RETRY_FOR_SECONDS,
        )
        result = await self._queue.work_on([row for row in rows if row.is_first_in_stream], self._deliver)
        if result.failures:
            return False
        if result.results:
            self._record_health(target, is_healthy=True in result.results)
        return bool(rows)

    def _record_health(self, target: str, *, is_healthy: bool) -> None:
        if is_healthy:
            self._failing.discard(target)
        elif len(self._failing) < FAILING_KNOWN_MAX:
            self._failing.add(target)
        else:
            self._failing.clear()

    async def _deliver(self, delivery: ClaimedDelivery) -> bool:
        """Whether the target is healthy: it accepted the message, or it never will."""
        try:
            await self._send(delivery)
        except UndeliveredError as error:
            await self._handle_failure(delivery, error)
            return error.is_permanent
        await self._finish(delivery, DELIVERED, None)
        metrics.DELIVERIES.add(delivery.channel, DELIVERED)
        return True

    async def _send(self, delivery: Delivery) -> None:
        try:
            with tracing.span(f"deliver {delivery.channel}"):
                async with asyncio.timeout(self._send_seconds):
                    await self._channels[delivery.channel].send(delivery)
        except UndeliveredError:
            raise
        except Exception as error:
            log.warning("channel_failed", channel=delivery.channel, error=type(error).__name__)
            raise UndeliveredError(type(error).__name__) from error

    async def _handle_failure(self, delivery: ClaimedDelivery, error: UndeliveredError) -> None:
        detail = str(error)[:DETAIL_MAX]
        if error.is_permanent or delivery.is_last:
            _log_delivery(log.info if error.is_permanent else log.error, "delivery_failed", delivery)
            metrics.DELIVERIES.add(delivery.channel, FAILED)
            await self._finish(delivery, FAILED, detail)
        else:
            _log_delivery(log.info, "delivery_postponed", delivery)
            metrics.DELIVERIES.add(delivery.channel, "postponed")
            await self._postpone(delivery, detail, error.retry_after_seconds)
        if isinstance(error, TargetGoneError) and delivery.channel == WEBHOOK:
            await self._disable_endpoint(delivery, detail)

    async def _finish(self, delivery: Delivery, status: str, detail: str | None) -> None:
        await self._database.event(delivery.event).execute(
            *sql.notifications.finish(
                event=delivery.event, number=delivery.number, target=delivery.target, status=status, error=detail
            )
        )
        self._finished += 1

    async def _postpone(self, delivery: Delivery, detail: str, retry_after_seconds: float) -> None:
        await self._database.event(delivery.event).execute(
            *sql.notifications.postpone(
                event=delivery.event,
                number=delivery.number,
                target=delivery.target,
                attempts=delivery.attempts,
                seconds=max(RETRIES.seconds_after(delivery.attempts), retry_after_seconds),
                retry_for_seconds=RETRY_FOR_SECONDS,
                error=detail,
            )
        )

    async def _disable_endpoint(self, delivery: Delivery, detail: str) -> None:
        """Send nothing more to this endpoint, and fail what waits for it."""
        if await self._database.org(delivery.org).fetchval(sql.notifications.disable_endpoint, delivery.target, detail):
            _log_delivery(log.warning, "endpoint_disabled", delivery)
        values = (delivery.target, detail, FAIL_WAITING_MAX)
        while await self._database.all_events.execute(sql.notifications.fail_waiting, *values) != "UPDATE 0":
            continue


def _log_delivery(write: Callable[..., object], message: str, delivery: Delivery) -> None:
    write(
        message,
        event_id=ids.format_event_id(delivery.event),
        number=delivery.number,
        kind=delivery.kind,
        channel=delivery.channel,
        target=delivery.target,
        attempts=delivery.attempts,
    )
