"""Publishes the deliveries of one bus: at least once, and in journal order for each booking.

The rows are those of the relay, with the same leases: a row is claimed only if no earlier row of its booking waits.
Three things differ. A bus takes every entry, so rows are claimed and finished many at a time. A broker may be away for
long, so rows wait for as long as it takes. And a row is deleted once it is published, because the journal keeps the
fact.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from holdfast import sql
from holdfast.notifications.bus import Bus
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.claimed_delivery import (
    DELIVERED,
    DETAIL_MAX,
    FAILED,
    STREAM_WAIT_SECONDS,
    ClaimedDelivery,
    claim_queue,
)
from holdfast.notifications.cloud_events import TOPICS, BusMessage, bus_message
from holdfast.runtime import metrics
from holdfast.runtime.backoff import Backoff, FailureBackoff
from holdfast.runtime.db import Database
from holdfast.runtime.fair_queue import RoundRobin

log = structlog.get_logger()

# Longer than the time-outs of the buses, so that a bus can report what went wrong.
PUBLISH_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 20.0
PUBLISHES_PER_LEASE: Final = 2
# A message that takes longer does not delay the messages of other bookings.
ROUND_SECONDS: Final = 0.25

TARGETS_MAX: Final = 20
CLAIM_MAX: Final = 100
UNDER_WAY_MAX: Final = 500
SLUGS_KNOWN_MAX: Final = 10_000

RETRIES: Final = Backoff((5, 10, 30))
# During an upgrade, newer workers publish what this one does not know. This is longer than a lease, so that the rows
# behind such a row wait as long as it does.
UNKNOWN_KIND_SECONDS: Final = 2 * PUBLISHES_PER_LEASE * PUBLISH_SECONDS
# A target that fails is tried with one row at a time until one arrives.
PAUSES: Final = Backoff((1, 2, 5, 10))
# Longer than any broker is away: 100 years.
RETRY_FOR_SECONDS: Final = 100 * 365 * 24 * 3600


class UnknownKindError(UndeliveredError):
    """A newer version of Holdfast wrote the row, and can publish it. Nothing is wrong with the bus."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"this version of Holdfast does not know {kind}, a newer one does", retry_after_seconds=UNKNOWN_KIND_SECONDS
        )


class BusRelay:
    """Serves each org in a task of its own. `start` only starts tasks, so a broker that hangs delays nobody else."""

    def __init__(
        self, database: Database, name: str, bus: Bus, public_url: str, *, publish_seconds: float = PUBLISH_SECONDS
    ) -> None:
        self._database = database
        self._name = name
        self._bus = bus
        self._public_url = public_url
        self._publish_seconds = publish_seconds
        self._queue = claim_queue(CLAIM_MAX, PUBLISHES_PER_LEASE * publish_seconds)
        self._round_robin = RoundRobin[str](self._serve, TARGETS_MAX)
        self._failures = FailureBackoff[str](PAUSES)
        self._slugs: dict[bytes, str] = {}
        self._published = 0

    def start(self, targets: Iterable[str]) -> None:
        """Start serving these targets, except those that have just failed."""
        waiting = set(self._failures.waiting())
        self._round_robin.start(target for target in targets if target not in waiting)

    def take_published(self) -> int:
        """How many messages were published since the last call."""
        published, self._published = self._published, 0
        return published

    async def close(self) -> None:
        """Wait a while for messages under way. The rest become due again when their leases end."""
        await self._round_robin.close(CLOSE_SECONDS)

    async def _serve(self, target: str) -> None:
        """Publish until nothing is due, until another target needs the place, or until the target fails."""
        under_way: set[asyncio.Task[_Result]] = set()
        try:
            while await self._serve_round(target, under_way):
                continue
        except Exception as error:
            log.error("bus_target_failed", bus=self._name, target=target, error=type(error).__name__)
        finally:
            for task in under_way:
                task.cancel()

    async def _serve_round(self, target: str, under_way: "set[asyncio.Task[_Result]]") -> bool:
        """Claim rows, and finish what arrives within a moment. Whether there may be more to do."""
        rows: list[ClaimedDelivery] = []
        results: list[_Result] = []
        room = UNDER_WAY_MAX - len(under_way)
        if room > 0 and not self._must_stop(target, under_way):
            rows = await self._claim(target, room)
            first = (row for row in rows if row.is_first_in_stream)
            under_way.update(asyncio.create_task(self._publish(row)) for row in first)
        if under_way:
            done, _ = await asyncio.wait(under_way, timeout=ROUND_SECONDS)
            under_way -= done
            results = [task.result() for task in done]
            await self._finish(target, results)
        # Rows that wait for a newer worker say nothing about the bus, however many are in front of those that do.
        goes_on = _are_unknown(results) or not self._failures.has_failed(target)
        return bool(under_way) or (bool(rows) and goes_on)

    def _must_stop(self, target: str, under_way: "set[asyncio.Task[_Result]]") -> bool:
        return self._round_robin.must_yield or (bool(under_way) and self._failures.has_failed(target))

    async def _claim(self, target: str, room: int) -> list[ClaimedDelivery]:
        return await self._queue.claim(
            self._database.all_events,
            target=target,
            stream_wait_seconds=STREAM_WAIT_SECONDS,
            retry_for_seconds=RETRY_FOR_SECONDS,
            claim_max=1 if self._failures.has_failed(target) else min(room, CLAIM_MAX),
        )

    async def _publish(self, row: ClaimedDelivery) -> "_Result":
        try:
            slug = await self._slug(row.org)
            message = self._make_message(row, slug)
            async with asyncio.timeout(self._publish_seconds):
                await self._bus.publish(message)
        except UndeliveredError as error:
            return row, error
        except Exception as error:
            log.warning("channel_failed", channel=self._name, error=type(error).__name__)
            return row, UndeliveredError(type(error).__name__)
        return row, None

    def _make_message(self, row: ClaimedDelivery, slug: str) -> BusMessage:
        """A row of a known kind that is no message now will not become one, and must not keep the others of its booking
        waiting. One of an unknown kind waits for a newer worker, and so do the later ones of its booking."""
        if row.kind not in TOPICS:
            raise UnknownKindError(row.kind)
        try:
            return bus_message(row, slug, self._public_url)
        except Exception as error:
            raise UndeliveredError(
                f"{row.kind} cannot be made a message: {type(error).__name__}", is_permanent=True
            ) from error

    async def _slug(self, org: bytes) -> str:
        """Slugs never change."""
        slug = self._slugs.get(org)
        if slug is None:
            found: str | None = await self._database.org(org).fetchval(sql.event_bus.org_slug, org)
            if found is None:
                raise UndeliveredError("the org does not exist", is_permanent=True)
            if len(self._slugs) >= SLUGS_KNOWN_MAX:
                self._slugs.clear()
            slug = self._slugs[org] = found
        return slug

    async def _finish(self, target: str, results: "list[_Result]") -> None:
        published = [row for row, error in results if error is None]
        if published:
            await self._delete(target, published)
        for row, error in results:
            if error is not None:
                await self._handle_failure(row, error)
        if any(error is None or error.is_permanent for _, error in results):
            self._failures.record_success(target)
        elif results and not _are_unknown(results):
            self._failures.record_failure(target)

    async def _delete(self, target: str, published: list[ClaimedDelivery]) -> None:
        # In one order, so that two relays never wait for each other.
        keys = sorted((row.event, row.number) for row in published)
        await self._database.all_events.execute(
            *sql.event_bus.finish(
                events=[event for event, _ in keys], numbers=[number for _, number in keys], target=target
            )
        )
        self._published += len(published)
        metrics.DELIVERIES.add(self._name, DELIVERED, count=len(published))

    async def _handle_failure(self, row: ClaimedDelivery, error: UndeliveredError) -> None:
        key = {"event": row.event, "number": row.number, "target": row.target}
        detail = str(error)[:DETAIL_MAX]
        if error.is_permanent:
            log.error("bus_message_refused", bus=self._name, target=row.target, number=row.number, error=detail)
            metrics.DELIVERIES.add(self._name, FAILED)
            statement = sql.notifications.finish(**key, status=FAILED, error=detail)
        else:
            if isinstance(error, UnknownKindError):
                log.warning("bus_message_unknown", bus=self._name, target=row.target, number=row.number, kind=row.kind)
            else:
                log.info("bus_message_postponed", bus=self._name, target=row.target, number=row.number, error=detail)
            metrics.DELIVERIES.add(self._name, "postponed")
            statement = sql.notifications.postpone(
                **key,
                attempts=row.attempts,
                seconds=max(RETRIES.seconds_after(row.attempts), error.retry_after_seconds),
                retry_for_seconds=RETRY_FOR_SECONDS,
                error=detail,
            )
        await self._database.event(row.event).execute(*statement)


_Result = tuple[ClaimedDelivery, UndeliveredError | None]


def _are_unknown(results: "list[_Result]") -> bool:
    return bool(results) and all(isinstance(error, UnknownKindError) for _, error in results)
