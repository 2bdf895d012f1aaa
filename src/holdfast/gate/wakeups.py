"""Processes wake each other through Redis when an event changes, instead of asking PostgreSQL many times a second.

A message only says that an event has changed. Readers get the change itself from the journal, so a lost message costs
only time.
"""

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import structlog

from holdfast.gate.circuit_breaker import CircuitBreaker
from holdfast.gate.commit_writer import CHANNEL
from holdfast.gate.redis_client import Client

log = structlog.get_logger()

EVENT_BYTES: Final = 16
RECONNECT_SECONDS: Final = 1.0
# Every process sends an empty message this often. A subscription that is silent for longer than that is broken.
HEARTBEAT_SECONDS: Final = 2.0
SILENCE_SECONDS: Final = 6.0
# A process in which nobody has waited for messages in this time unsubscribes.
IDLE_SECONDS: Final = 30.0


class Wakeups:
    def __init__(self, client: Client, breaker: CircuitBreaker) -> None:
        self._client = client
        self._breaker = breaker
        self._is_subscribed = False
        self._changed: set[bytes] = set()
        self._arrived = asyncio.Event()
        self._wanted = asyncio.Event()
        self._wanted_at = 0.0

    @property
    def is_reliable(self) -> bool:
        """Whether messages arrive. Otherwise readers have to poll."""
        return self._is_subscribed and self._breaker.is_closed

    async def wait(self, events: Collection[bytes], seconds: float) -> None:
        """Return once one of the events has changed, after this time, or as soon as messages are not reliable. The
        first call makes the process subscribe."""
        self._wanted_at = time.monotonic()
        self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.is_reliable and not self._take_changed(events):
                    self._arrived.clear()
                    await self._arrived.wait()

    def _take_changed(self, events: Collection[bytes]) -> bool:
        """Whether any of the events has changed since the last call."""
        has_changed = not self._changed.isdisjoint(events)
        self._changed.clear()
        return has_changed

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                await self._listen()
            except Exception as error:
                log.warning("wakeups_lost", error=type(error).__name__)
            self._is_subscribed = False
            self._arrived.set()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self) -> None:
        """Returns if the subscription is silent for too long, or nobody needs it any more."""
        async with self._client.pubsub() as subscription:
            await subscription.subscribe(CHANNEL)
            while (message := await subscription.get_message(timeout=SILENCE_SECONDS)) is not None:
                self._is_subscribed = True
                if time.monotonic() - self._wanted_at > IDLE_SECONDS:
                    self._wanted.clear()
                    return
                data = message["data"]
                if isinstance(data, bytes) and data:
                    self._changed.update(data[at : at + EVENT_BYTES] for at in range(0, len(data), EVENT_BYTES))
                    self._arrived.set()
