"""Buyers and a watcher behind nginx, who try everything once and count what fails."""

import asyncio
import json
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.harness import wait_until
from tests.support.nginx_process import Nginx

BUYERS = 8
PAUSE_SECONDS = 0.03
PATIENCE_SECONDS = 120


class Shoppers:
    """Buyers who try everything once: any answer but success is a failure. Each keeps its connection to nginx."""

    def __init__(self, nginx: Nginx, key: str, event: str) -> None:
        self._nginx = nginx
        self._headers = {"Authorization": f"Bearer {key}"}
        self._event = event
        self._stopping = False
        self.bookings: set[str] = set()
        self.requests = 0
        self.failures: Counter[str] = Counter()
        self.seen: list[tuple[int, int]] = []
        self.reconnects = 0

    async def run(self) -> None:
        watcher = asyncio.create_task(self._watch())
        await asyncio.gather(*(self._buy() for _ in range(BUYERS)))
        await self._catch_up(watcher)

    @contextmanager
    def shopping(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self.run()))
        thread.start()
        try:
            yield
        finally:
            self._stopping = True
            thread.join()

    def wait_for_more(self, requests: int) -> None:
        enough = self.requests + requests
        wait_until(lambda: self.requests >= enough or bool(self.failures), PATIENCE_SECONDS)

    async def _buy(self) -> None:
        async with httpx.AsyncClient(
            base_url=self._nginx.url, headers=self._headers, verify=self._nginx.tls, timeout=60
        ) as client:
            while not self._stopping:
                await self._hold(client)
                await self._request(client, "GET", f"/v1/events/{self._event}/availability")
                await asyncio.sleep(PAUSE_SECONDS)

    async def _hold(self, client: httpx.AsyncClient) -> None:
        body = {"user": f"u-{secrets.token_hex(6)}", "items": [{"pool": "places"}]}
        answer = await self._request(client, "POST", f"/v1/events/{self._event}/holds", body)
        if answer is not None:
            self.bookings.add(answer.json()["id"])

    async def _request(
        self, client: httpx.AsyncClient, method: str, path: str, body: object = None
    ) -> httpx.Response | None:
        self.requests += 1
        try:
            answer = await client.request(method, path, json=body, headers={"Idempotency-Key": secrets.token_hex(8)})
        except httpx.TransportError as error:
            self.failures[f"{method} {type(error).__name__}"] += 1
            return None
        if answer.status_code not in (200, 201):
            self.failures[f"{method} {answer.status_code}"] += 1
            return None
        return answer

    async def _watch(self) -> None:
        """Record the sequence numbers of every message, and reconnect after the last one."""
        url = f"wss://127.0.0.1:{self._nginx.port}/v1/events/{self._event}/live"
        while True:
            after = f"?after={self.version}" if self.seen else ""
            try:
                async with connect(url + after, ssl=self._nginx.tls) as socket:
                    async for text in socket:
                        self._note(json.loads(text))
            except ConnectionClosed:
                pass
            except InvalidStatus as error:
                self.failures[f"live {error.response.status_code}"] += 1
            self.reconnects += 1

    def _note(self, message: dict[str, object]) -> None:
        if message["type"] == "change":
            seq = message["seq"]
            first = message.get("from", seq)
            assert isinstance(first, int)
            assert isinstance(seq, int)
            self.seen.append((first, seq))
        elif message["type"] == "snapshot" and not self.seen:
            version = message["version"]
            assert isinstance(version, int)
            self.seen.append((version, version))
        elif message["type"] == "snapshot":
            self.failures["live snapshot instead of changes"] += 1

    @property
    def version(self) -> int:
        return self.seen[-1][1]

    def gaps(self) -> list[tuple[int, int]]:
        return [
            (last, first) for (_, last), (first, _) in zip(self.seen, self.seen[1:], strict=False) if first > last + 1
        ]

    async def _catch_up(self, watcher: "asyncio.Task[None]") -> None:
        """Watch until the last booking has arrived."""
        async with httpx.AsyncClient(base_url=self._nginx.url, headers=self._headers, verify=self._nginx.tls) as client:
            newest = (await client.get(f"/v1/events/{self._event}/availability")).json()["version"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.version < newest and not watcher.done():
                await asyncio.sleep(0.05)
        watcher.cancel()
