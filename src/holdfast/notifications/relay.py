"""Sends the rows of `delivery`: at least once, and in order for each stream and target.

Each target is a lease queue of its own. A row is claimed only if no earlier row of its stream waits for the target, so
the order holds for any number of relays.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

import structlog
from msgspec import Struct

from holdfast import sql
from holdfast.core.notifications import WEBHOOK
from holdfast.notifications.channel import Channel, Delivery, TargetGoneError, UndeliveredError
from holdfast.runtime import ids
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.db import Database
from holdfast.runtime.lease_queue import LeaseQueue

log = structlog.get_logger()

# Longer than a channel takes by itself, so that it can say what went wrong.
SEND_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 20.0
# A claim is sent at once, so a lease has to outlast one send, and the note of what came of it.
SENDS_PER_LEASE: Final = 2
# How long a row steps aside for one that is perhaps being sent just now.
ASIDE_SECONDS: Final = 2.0

TARGETS_SEEN_MAX: Final = 1_000
TARGETS_MAX: Final = 100
# Targets that could not be reached last time get no more than this part of the places.
AILING_MAX: Final = 75
AILING_KNOWN_MAX: Final = 10_000
CLAIM_MAX: Final = 8
GIVE_UP_MAX: Final = 200
DETAIL_MAX: Final = 200

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
RETRIES: Final = Backoff((5, 30, 2 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR))
PATIENCE_SECONDS: Final = 72 * HOUR

DELIVERED: Final = "delivered"
FAILED: Final = "failed"


class DueTarget(Struct, frozen=True):
    target: str
    due: bool


class ClaimedDelivery(Struct, frozen=True, kw_only=True):
    """A row that was due, and is leased if it `leads` its stream. No retry follows the last attempt."""

    event_id: bytes
    number: int
    target: str
    channel: str
    org_id: bytes
    stream: bytes
    kind: str
    body: str
    created_at: datetime
    attempts: int
    leads: bool
    is_last: bool

    @property
    def delivery(self) -> Delivery:
        return Delivery(
            event=self.event_id,
            number=self.number,
            target=self.target,
            channel=self.channel,
            org=self.org_id,
            stream=self.stream,
            kind=self.kind,
            body=self.body.encode(),
            created_at=self.created_at,
            attempts=self.attempts,
        )


class Relay:
    """Each target is served by a task of its own, so that one that is slow holds up nobody else."""

    def __init__(
        self, database: Database, channels: Mapping[str, Channel], *, send_seconds: float = SEND_SECONDS
    ) -> None:
        self._database = database
        self._channels = channels
        self._send_seconds = send_seconds
        self._queue = LeaseQueue(
            name="deliveries",
            row_type=ClaimedDelivery,
            claim_statement=sql.notifications.claim,
            claim_max=CLAIM_MAX,
            lease_seconds=SENDS_PER_LEASE * send_seconds,
            label=lambda row: f"{row.target}:{ids.format_event_id(row.event_id)}:{row.number}",
        )
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._ailing: set[str] = set()
        self._after = ""
        self._latest = ""
        self._crowded = False
        self._closing = False
        self._finished = 0

    async def run_once(self) -> int:
        """Start on targets for which something is due, without waiting for any. Returns how many deliveries have
        ended since the last call."""
        rows = await self._database.all_events.rows(DueTarget, sql.notifications.targets, self._after, TARGETS_SEEN_MAX)
        self._after = rows[-1].target if len(rows) == TARGETS_SEEN_MAX else ""
        self._crowded = False
        for target in self._in_turn([row.target for row in rows if row.due]):
            self._start(target)
        finished, self._finished = self._finished, 0
        return finished

    async def close(self) -> None:
        """Let what is under way end, for a while; what does not is due again when its lease runs out."""
        self._closing = True
        tasks = set(self._serving.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _in_turn(self, targets: Iterable[str]) -> list[str]:
        """Those behind the one that got a place last come first, so that all get one where there are too few."""
        return sorted(targets, key=lambda target: (target <= self._latest, target))

    def _start(self, target: str) -> None:
        if self._closing or target in self._serving:
            return
        if len(self._serving) >= TARGETS_MAX:
            self._crowded = True
        elif target not in self._ailing or len(self._serving.keys() & self._ailing) < AILING_MAX:
            self._latest = target
            task = self._serving[target] = asyncio.create_task(self._serve(target))
            task.add_done_callback(lambda _: self._serving.pop(target, None))

    async def _serve(self, target: str) -> None:
        """Claim after claim, unless others wait for the place."""
        try:
            while await self._serve_claim(target):
                if self._closing or self._crowded or target in self._ailing:
                    return
        except Exception as error:
            log.error("target_not_served", target=target, error=type(error).__name__)

    async def _serve_claim(self, target: str) -> bool:
        """Whether there may be more to do for the target now. After a row that failed there is not: something other
        than the target is broken, and the next pass starts with a new claim."""
        rows = await self._queue.claim(self._database.all_events, target, ASIDE_SECONDS, PATIENCE_SECONDS)
        worked = await self._queue.work_on([row for row in rows if row.leads], self._deliver)
        if worked.failures:
            return False
        if worked.results:
            self._note_health(target, is_well=True in worked.results)
        return bool(rows)

    def _note_health(self, target: str, *, is_well: bool) -> None:
        if is_well:
            self._ailing.discard(target)
        elif len(self._ailing) < AILING_KNOWN_MAX:
            self._ailing.add(target)
        else:
            self._ailing.clear()

    async def _deliver(self, claimed: ClaimedDelivery) -> bool:
        """Whether the target is well: it took the message, or it is settled that it never will."""
        delivery = claimed.delivery
        try:
            await self._send(delivery)
        except UndeliveredError as error:
            await self._undelivered(delivery, error, is_last=claimed.is_last)
            return error.for_good
        await self._finish(delivery, DELIVERED, None)
        return True

    async def _send(self, delivery: Delivery) -> None:
        channel = self._channels.get(delivery.channel)
        if channel is None:
            raise UndeliveredError("no such channel is set up", for_good=True)
        try:
            async with asyncio.timeout(self._send_seconds):
                await channel.send(delivery)
        except UndeliveredError:
            raise
        except Exception as error:
            log.warning("channel_failed", channel=delivery.channel, error=type(error).__name__)
            raise UndeliveredError(type(error).__name__) from error

    async def _undelivered(self, delivery: Delivery, error: UndeliveredError, *, is_last: bool) -> None:
        detail = str(error)[:DETAIL_MAX]
        if error.for_good or is_last:
            _tell(log.info if error.for_good else log.error, "delivery_failed", delivery)
            await self._finish(delivery, FAILED, detail)
        else:
            _tell(log.info, "delivery_postponed", delivery)
            await self._postpone(delivery, detail)
        if isinstance(error, TargetGoneError) and delivery.channel == WEBHOOK:
            await self._give_up(delivery, detail)

    async def _finish(self, delivery: Delivery, status: str, detail: str | None) -> None:
        await self._database.event(delivery.event).execute(
            sql.notifications.finish, delivery.event, delivery.number, delivery.target, status, detail
        )
        self._finished += 1

    async def _postpone(self, delivery: Delivery, detail: str) -> None:
        seconds = RETRIES.seconds_after(delivery.attempts)
        await self._database.event(delivery.event).execute(
            sql.notifications.postpone,
            delivery.event,
            delivery.number,
            delivery.target,
            delivery.attempts,
            seconds,
            PATIENCE_SECONDS,
            detail,
        )

    async def _give_up(self, delivery: Delivery, detail: str) -> None:
        """Send no more to this endpoint."""
        if await self._database.org(delivery.org).fetchval(sql.notifications.disable_endpoint, delivery.target, detail):
            _tell(log.warning, "endpoint_disabled", delivery)
        events = self._database.all_events
        while await events.execute(sql.notifications.give_up, delivery.target, detail, GIVE_UP_MAX) != "UPDATE 0":
            continue


def _tell(write: Callable[..., object], what: str, delivery: Delivery) -> None:
    write(
        what,
        subject=ids.format_event_id(delivery.event),
        number=delivery.number,
        kind=delivery.kind,
        channel=delivery.channel,
        target=delivery.target,
        attempts=delivery.attempts,
    )
