"""Buyers who hold and cancel seats over HTTP without a pause. A judge compares their answers with the journal."""

import asyncio
import itertools
import json
import random
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from msgspec import Struct

from holdfast.runtime import ids
from tests.support.command_line import run_audit
from tests.support.harness import IS_LONG, Server, query, wait_until

# Enough load to notice everything, and little enough to leave the machine to other tests.
SHOPPERS = 16 if IS_LONG else 8
PAUSE_SECONDS = 0.02 if IS_LONG else 0.15
SEATS = 60
# Long, so that a seat whose release got lost stays taken.
HOLD_SECONDS = 600
KEPT_SECONDS = 0.5
POOLS = [{"code": "hall", "seats": {"rows": ["A"], "numbers": SEATS}}]
POLICY = {"hold_seconds": HOLD_SECONDS, "max_hold_seconds": HOLD_SECONDS, "late_grace_seconds": 0}
PATIENCE_SECONDS = 30
# A seat that nobody has must not be refused for longer than this.
STALE_SECONDS = 5


class Attempt(Struct, frozen=True):
    """One request for a seat. Times are those of the machine, which the database shares."""

    label: str
    sent_at: float
    received_at: float
    status: int
    code: str | None

    @property
    def is_refused(self) -> bool:
        return self.code == "seat_taken"


class Taken(Struct, frozen=True):
    """From when to when a booking had a seat."""

    since: float
    until: float


class SeatShoppers:
    """Each request comes from a new user, as in a rush: nobody has been there before."""

    def __init__(self, server: Server, key: str, event: str) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {key}"}
        self._event = event
        self._stopping = False
        self.attempts: list[Attempt] = []
        self.acknowledged: set[str] = set()

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=SHOPPERS)
        async with httpx.AsyncClient(
            base_url=self._server.url, headers=self._headers, timeout=10, limits=limits
        ) as client:
            await asyncio.gather(*(self._shop(client) for _ in range(SHOPPERS)))

    def stop(self) -> None:
        self._stopping = True

    def shop_for(self, seconds: float) -> None:
        """Let them go on for a while, and until they have got some answers."""
        enough = len(self.attempts) + SHOPPERS
        time.sleep(seconds)
        wait_until(lambda: len(self.attempts) >= enough, PATIENCE_SECONDS)

    async def _shop(self, client: httpx.AsyncClient) -> None:
        while not self._stopping:
            label = f"A-{random.randint(1, SEATS)}"
            body = {"user": f"u-{secrets.token_hex(6)}", "items": [{"seat": label}]}
            answer = await self._post(client, label, f"/v1/events/{self._event}/holds", body)
            if answer is not None and answer.status_code == 201:
                booking = answer.json()["id"]
                self.acknowledged.add(booking)
                await asyncio.sleep(random.random() * KEPT_SECONDS)
                await self._cancel(client, booking)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _post(
        self, client: httpx.AsyncClient, label: str, path: str, body: dict[str, Any]
    ) -> httpx.Response | None:
        sent_at = time.time()
        try:
            answer = await client.post(path, json=body, headers={"Idempotency-Key": secrets.token_hex(8)})
        except httpx.TransportError:
            self.attempts.append(Attempt(label, sent_at, time.time(), 0, "no answer"))
            return None
        code = answer.json().get("code") if answer.status_code >= 400 else None
        self.attempts.append(Attempt(label, sent_at, time.time(), answer.status_code, code))
        return answer

    async def _cancel(self, client: httpx.AsyncClient, booking: str) -> None:
        for _ in range(100):
            try:
                answer = await client.post(f"/v1/bookings/{booking}/cancel", json={"reason": "changed my mind"})
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == 200:
                return
            await asyncio.sleep(0.05)

    def errors_after(self, at: float) -> Counter[str]:
        """Answers that are neither a hold nor an honest refusal."""
        return Counter(
            f"{attempt.status} {attempt.code}"
            for attempt in self.attempts
            if attempt.sent_at >= at and attempt.status != 201 and not attempt.is_refused
        )

    def count_after(self, at: float) -> int:
        return sum(attempt.sent_at >= at for attempt in self.attempts)


@contextmanager
def shopping_in_background(server: Server, key: str, event: str) -> Iterator[SeatShoppers]:
    """Run the shoppers in a thread. At the end, check that nothing was lost and nothing sold twice."""
    shoppers = SeatShoppers(server, key, event)
    thread = threading.Thread(target=lambda: asyncio.run(shoppers.run()))
    thread.start()
    try:
        wait_until(lambda: len(shoppers.attempts) >= 5 * SHOPPERS, PATIENCE_SECONDS)
        yield shoppers
    finally:
        shoppers.stop()
        thread.join()
    id_ = ids.parse_event_id(event)
    assert id_ is not None
    bookings = query(server.database_url, "SELECT id FROM booking WHERE event_id = $1", id_)
    assert shoppers.acknowledged <= {ids.format_booking_id(id_, row["id"]) for row in bookings}
    assert run_audit(database_url=server.database_url)["findings"] == []
    taken = read_taken(server.database_url, id_)
    assert find_overlaps(taken) == []
    assert find_unjust_refusals(shoppers.attempts, taken) == []


def read_taken(url: str, event: bytes) -> dict[str, list[Taken]]:
    """When somebody had each seat, from the journal: until the booking ended or its deadline passed."""
    rows = query(
        url,
        "SELECT journal.at, journal.data -> 'seats' AS seats, booking.id, booking.expires_at FROM journal"
        " JOIN booking ON booking.event_id = journal.event_id AND booking.id = journal.booking_id"
        " WHERE journal.event_id = $1 ORDER BY journal.number",
        event,
    )
    taken: dict[str, list[Taken]] = defaultdict(list)
    since: dict[bytes, float] = {}
    for row in rows:
        for label, state in json.loads(row["seats"] or "{}").items():
            if state == "held" and row["id"] not in since:
                since[row["id"]] = row["at"].timestamp()
                taken[label].append(Taken(since[row["id"]], row["expires_at"].timestamp()))
            elif state == "free":
                until = min(row["at"].timestamp(), row["expires_at"].timestamp())
                taken[label] = [
                    Taken(each.since, until) if each.since == since[row["id"]] else each for each in taken[label]
                ]
    return taken


def find_overlaps(taken: dict[str, list[Taken]]) -> list[str]:
    """Seats that two bookings had at the same time."""
    found = []
    for label, spans in taken.items():
        ordered = sorted(spans, key=lambda span: span.since)
        found += [label for first, second in itertools.pairwise(ordered) if second.since < first.until]
    return found


def find_unjust_refusals(attempts: list[Attempt], taken: dict[str, list[Taken]]) -> list[str]:
    """Refusals of seats that nobody had for some seconds before, and that nobody else was just asking for."""
    by_label: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_label[attempt.label].append(attempt)
    found = []
    for attempt in attempts:
        if not attempt.is_refused:
            continue
        was_taken = any(
            span.since <= attempt.received_at and span.until >= attempt.sent_at - STALE_SECONDS
            for span in taken[attempt.label]
        )
        has_rival = any(
            other is not attempt and other.sent_at <= attempt.received_at and other.received_at >= attempt.sent_at
            for other in by_label[attempt.label]
        )
        if not was_taken and not has_rival:
            found.append(f"{attempt.label} at {attempt.sent_at}")
    return found
