"""An engine whose bookings cause notifications to buyers, and a relay that sends them when the test says so."""

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core.commands import Accepted, ActOnBooking, BookingAction, PlaceHold, PoolItem
from holdfast.core.states import Verb
from holdfast.engine.engine import Engine
from holdfast.notifications.channel import Channel
from holdfast.runtime import db, ids
from tests.support.engine_harness import EventHandle, lane_connection, new_event, one_pool, poll_until, shift_clock
from tests.support.relay_harness import running_relay

STAFF = "key:hf_sk_1"


class BuyerMessages:
    def __init__(self, url: str, connection: db.Connection, pool: db.Pool) -> None:
        self.url = url
        self.connection = connection
        self.pool = pool
        self.database = db.Database(pool)
        self.engine = Engine(url, 1)
        self.engine.start()
        self._seconds = 0

    async def new_event(self, price: int = 100, *, hours: float = 1_000, **changes: Any) -> EventHandle:
        """An event that starts after some hours, with one pool unless the changes have others."""
        starts_at = datetime.now(UTC) + timedelta(hours=hours, seconds=self._seconds)
        event = {"starts_at": starts_at.isoformat(), "pools": one_pool(1000, price), **changes}
        return await new_event(self.connection, **event)

    async def hold(
        self, event: EventHandle, user: str = "ada", *, pool: str = "places", actor: str | None = None, **buyer: Any
    ) -> bytes:
        booking = ids.new_id()
        command = PlaceHold(
            event=event.id,
            org=event.org,
            booking=booking,
            user=user,
            actor=actor or f"user:{user}",
            request_key=hashlib.blake2b(booking, digest_size=16).digest(),
            fingerprint=booking,
            items=(PoolItem(pool, 1),),
            **buyer,
        )
        assert isinstance(await self.engine.submit(command), Accepted)
        return booking

    async def act(self, event: EventHandle, booking: bytes, verb: BookingAction, actor: str = STAFF) -> None:
        command = ActOnBooking(event=event.id, org=event.org, booking=booking, verb=verb, actor=actor)
        outcome = await self.engine.submit(command)
        assert isinstance(outcome, Accepted), outcome

    async def book(self, event: EventHandle, user: str = "ada", **buyer: Any) -> bytes:
        """A confirmed booking."""
        booking = await self.hold(event, user, **buyer)
        await self.act(event, booking, Verb.CONFIRM)
        return booking

    async def pass_seconds(self, seconds: int) -> None:
        self._seconds += seconds
        await shift_clock(self.connection, self._seconds)

    async def send_all(self, channels: Mapping[str, Channel]) -> None:
        """Run a relay until nothing is due any more."""
        async with running_relay(self.url, channels):
            await poll_until(self._is_nothing_due, 30)

    async def deliveries(self, channel: str) -> list[Any]:
        return list(await self.connection.fetch("SELECT * FROM delivery WHERE channel = $1 ORDER BY number", channel))

    async def errors(self, channel: str) -> list[str | None]:
        return [row["last_error"] for row in await self.deliveries(channel) if row["status"] != "delivered"]

    async def _is_nothing_due(self) -> bool:
        """A row that a relay is sending has a lease, so it is due within minutes. One that failed has an error."""
        waits: bool = await self.connection.fetchval(
            "SELECT EXISTS (SELECT FROM delivery WHERE status = 'waiting' AND last_error IS NULL)"
        )
        return not waits


@asynccontextmanager
async def buyer_messages(database: str) -> AsyncIterator[BuyerMessages]:
    pool = await db.create_pool(database, 8)
    async with lane_connection(database) as connection:
        messages = BuyerMessages(database, connection, pool)
        try:
            yield messages
        finally:
            await messages.engine.close()
            await pool.close()
