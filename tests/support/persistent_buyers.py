"""Buyers who never give up: they retry lost connections and "busy" answers under the same Idempotency-Key and record
every answer."""

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
from tests.support.command_line import run_audit
from tests.support.harness import IS_LONG, Server, post_hold, query, wait_until

BUYERS = 24
# Between two purchases. `make test` leaves the machine to other tests.
PAUSE_SECONDS = 0.0 if IS_LONG else 0.1
SEATS = 200
PLACES = 100_000
# Longer than any promised recovery, so that a broken promise fails the test instead of hanging it.
PATIENCE_SECONDS = 15
POOLS = [
    {"code": "hall", "seats": {"rows": ["A"], "numbers": SEATS}},
    {"code": "places", "capacity": PLACES, "tariffs": [{"code": "full", "price": 100}]},
]


class PersistentBuyers:
    """They hold seats and places of one event and confirm every other hold until they are stopped."""

    def __init__(self, server: Server, key: str, event: str) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {key}"}
        self._event = event
        self._stopping = False
        self.acknowledged: dict[str, str] = {}
        self.unexpected_answers: list[str] = []

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self._server.url, headers=self._headers, timeout=10) as client:
            await asyncio.gather(*(self._buy_until_stopped(client) for _ in range(BUYERS)))

    def stop(self) -> None:
        """Let running requests finish, and start no more."""
        self._stopping = True

    def wait_for_more(self, bookings: int) -> None:
        enough = len(self.acknowledged) + bookings
        wait_until(lambda: len(self.acknowledged) >= enough or bool(self.unexpected_answers), PATIENCE_SECONDS)

    def can_buy(self) -> bool:
        """Whether a new buyer gets a hold right now."""
        try:
            with self._server.client(self._headers) as client:
                answer = post_hold(client, self._event, items=[{"pool": "places"}])
        except httpx.TransportError:
            return False
        if answer.status_code == 201:
            self.acknowledged[answer.json()["id"]] = "held"
        return answer.status_code == 201

    async def _buy_until_stopped(self, client: httpx.AsyncClient) -> None:
        while not self._stopping and not self.unexpected_answers:
            item = {"pool": "places"} if random.random() < 0.8 else {"seat": f"A-{random.randint(1, SEATS)}"}
            body = {"user": f"u-{secrets.token_hex(6)}", "items": [item]}
            answer = await self._post_until_answered(client, f"/v1/events/{self._event}/holds", {201, 409}, body)
            if answer is not None and answer.status_code != 409:
                await self._confirm_every_other(client, answer.json()["id"])
            await asyncio.sleep(PAUSE_SECONDS)

    async def _confirm_every_other(self, client: httpx.AsyncClient, booking: str) -> None:
        self.acknowledged[booking] = "held"
        if random.random() < 0.5 and await self._post_until_answered(client, f"/v1/bookings/{booking}/confirm", {200}):
            self.acknowledged[booking] = "confirmed"

    async def _post_until_answered(
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
                self.unexpected_answers.append(f"{path}: {answer.status_code} {answer.text}")
                return None
            await asyncio.sleep(0.02)
        self.unexpected_answers.append(f"{path}: not answered in {PATIENCE_SECONDS} s")
        return None


@contextmanager
def buying_in_background(server: Server, key: str, event: str) -> Iterator[PersistentBuyers]:
    """Run the buyers in a thread, and compare every answer they got with the database at the end."""
    buyers = PersistentBuyers(server, key, event)
    thread = threading.Thread(target=lambda: asyncio.run(buyers.run()))
    thread.start()
    try:
        buyers.wait_for_more(50)
        yield buyers
        buyers.wait_for_more(50)
    finally:
        buyers.stop()
        thread.join()
    _check_database(server.database_url, event, buyers)


def _check_database(url: str, event: str, buyers: PersistentBuyers) -> None:
    """Check that the database has exactly the acknowledged bookings and that no seat is sold twice."""
    assert buyers.unexpected_answers == []
    id_ = ids.parse_event_id(event)
    assert id_ is not None
    rows = query(url, "SELECT id, status FROM booking WHERE event_id = $1", id_)
    assert {ids.format_booking_id(id_, row["id"]): row["status"] for row in rows} == buyers.acknowledged
    seats = query(url, "SELECT seat FROM line WHERE event_id = $1 AND live AND seat IS NOT NULL", id_)
    assert len({row["seat"] for row in seats}) == len(seats)
    assert run_audit(database_url=url) == {"ok": True, "events": 1, "findings": []}
