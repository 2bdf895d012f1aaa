"""Buyers who do not give up: they come back after a broken connection or a "busy" with the same Idempotency-Key, and
remember what they were told."""

import asyncio
import random
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from holdfast.runtime import ids
from tests.house import Server, hold, sql, wait_until
from tests.inside import audit

SHOPPERS = 24
SEATS = 200
PLACES = 100_000
# Longer than any promise of recovery, so that a broken promise shows as one and not as a test that hangs.
PATIENCE_SECONDS = 15
STOCK = [
    {"code": "hall", "seats": {"rows": ["A"], "numbers": SEATS}},
    {"code": "places", "capacity": PLACES, "tariffs": [{"code": "full", "price": 100}]},
]


class Shoppers:
    """They hold seats and places of one event, and confirm every other hold, until they are told to stop."""

    def __init__(self, server: Server, key: str, event: str) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {key}"}
        self._event = event
        self._closing = False
        self.acknowledged: dict[str, str] = {}
        self.surprises: list[str] = []

    async def shop(self) -> None:
        async with httpx.AsyncClient(base_url=self._server.url, headers=self._headers, timeout=10) as client:
            await asyncio.gather(*(self._buy_until_closing(client) for _ in range(SHOPPERS)))

    def close(self) -> None:
        """What is under way is brought to its end."""
        self._closing = True

    def wait_for_more(self, bookings: int) -> None:
        enough = len(self.acknowledged) + bookings
        wait_until(lambda: len(self.acknowledged) >= enough or bool(self.surprises), PATIENCE_SECONDS)

    def is_served(self) -> bool:
        """Whether a new buyer gets a hold right now."""
        try:
            with self._server.client(self._headers) as client:
                answer = hold(client, self._event, items=[{"pool": "places"}])
        except httpx.TransportError:
            return False
        if answer.status_code == 201:
            self.acknowledged[answer.json()["id"]] = "held"
        return answer.status_code == 201

    async def _buy_until_closing(self, client: httpx.AsyncClient) -> None:
        while not self._closing and not self.surprises:
            item = {"pool": "places"} if random.random() < 0.8 else {"seat": f"A-{random.randint(1, SEATS)}"}
            body = {"user": "u", "items": [item]}
            placed = await self._insist(client, f"/v1/events/{self._event}/holds", {201, 409}, body)
            if placed is None or placed.status_code == 409:
                continue
            booking: str = placed.json()["id"]
            self.acknowledged[booking] = "held"
            if random.random() < 0.5 and await self._insist(client, f"/v1/bookings/{booking}/confirm", {200}):
                self.acknowledged[booking] = "confirmed"

    async def _insist(
        self, client: httpx.AsyncClient, path: str, expected: set[int], body: dict[str, Any] | None = None
    ) -> httpx.Response | None:
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < give_up_at:
            try:
                answer = await client.post(path, json=body or {}, headers=headers)
            except httpx.TransportError:
                await asyncio.sleep(0.02)
                continue
            if answer.status_code in expected:
                return answer
            if answer.status_code != 503:
                self.surprises.append(f"{path}: {answer.status_code} {answer.text}")
                return None
            await asyncio.sleep(0.02)
        self.surprises.append(f"{path}: not answered in {PATIENCE_SECONDS} s")
        return None


@contextmanager
def shopping(server: Server, key: str, event: str) -> Iterator[Shoppers]:
    """Shoppers at work in a thread of their own. Once they are done, what they were told is compared with what is."""
    shoppers = Shoppers(server, key, event)
    thread = threading.Thread(target=lambda: asyncio.run(shoppers.shop()))
    thread.start()
    try:
        shoppers.wait_for_more(50)
        yield shoppers
        shoppers.wait_for_more(50)
    finally:
        shoppers.close()
        thread.join()
    _check(server.database_url, event, shoppers)


def _check(url: str, event: str, shoppers: Shoppers) -> None:
    """Everything acknowledged is there as acknowledged, there is nothing else, and no unit is taken twice."""
    assert shoppers.surprises == []
    id_ = ids.parse_event_id(event)
    assert id_ is not None
    rows = sql(url, "SELECT id, status FROM booking WHERE event_id = $1", id_)
    assert {ids.format_booking_id(id_, row["id"]): row["status"] for row in rows} == shoppers.acknowledged
    seats = sql(url, "SELECT seat FROM line WHERE event_id = $1 AND live AND seat IS NOT NULL", id_)
    assert len({row["seat"] for row in seats}) == len(seats)
    assert audit(database_url=url) == {"ok": True, "events": 1, "findings": []}
