"""Buyers who hold, pay and get their booking, and how long each of their requests took."""

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import secrets
import time
from statistics import quantiles
from typing import Any

from msgspec import Struct, field

from holdfast.demo.stampede.client import Client
from tests.support.harness import SANDBOX_SECRET, Org, Server

BUYERS = 6
PAUSE_SECONDS = 0.02


class Shopping(Struct):
    """What the buyers experienced. A failure is any answer that they did not deserve."""

    seconds: list[float] = field(default_factory=list)
    bookings: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def p95(self) -> float:
        return quantiles(self.seconds, n=20)[-1]


async def shop(server: Server, org: Org, event: str, seconds: float, address: str) -> Shopping:
    """Let buyers buy one place after the other for a while."""
    shopping = Shopping()
    ends_at = time.monotonic() + seconds
    client = Client(server.url)
    headers = {**org.headers("sales"), "x-forwarded-for": address, "content-type": "application/json"}
    await asyncio.gather(*(_buy_until(ends_at, client, headers, event, shopping) for _ in range(BUYERS)))
    client.close()
    return shopping


async def _buy_until(ends_at: float, client: Client, headers: dict[str, str], event: str, shopping: Shopping) -> None:
    for _ in itertools.count():
        if time.monotonic() > ends_at:
            return
        await _buy(client, headers, event, shopping)
        await asyncio.sleep(PAUSE_SECONDS)


async def _buy(client: Client, headers: dict[str, str], event: str, shopping: Shopping) -> None:
    user = f"honest-{secrets.token_hex(6)}"
    hold = {"user": user, "items": [{"pool": "places"}]}
    booking = await _send(client, headers, "POST", f"/v1/events/{event}/holds", hold, 201, shopping)
    if booking is None:
        return
    payment = await _send(
        client, headers, "POST", f"/v1/bookings/{booking['id']}/payments", {"provider": "sandbox"}, 201, shopping
    )
    if payment is None:
        return
    await _notify(client, headers, payment, shopping)
    paid = await _send(client, headers, "GET", f"/v1/bookings/{booking['id']}", None, 200, shopping)
    if paid is not None and paid["status"] != "confirmed":
        shopping.failures.append(f"paid, but {paid['status']}")
    shopping.bookings.append(booking["id"])


async def _notify(client: Client, headers: dict[str, str], payment: dict[str, Any], shopping: Shopping) -> None:
    """The sandbox reports the payment, as a provider does."""
    data = {name: payment[name] for name in ("provider_ref", "amount", "currency")}
    body = json.dumps({"type": "payment.succeeded", "data": data})
    id_, at = f"msg_{secrets.token_hex(8)}", str(int(time.time()))
    key = base64.b64decode(SANDBOX_SECRET.removeprefix("whsec_"))
    signature = base64.b64encode(hmac.new(key, f"{id_}.{at}.{body}".encode(), hashlib.sha256).digest()).decode()
    signed = {
        "x-forwarded-for": headers["x-forwarded-for"],
        "webhook-id": id_,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{signature}",
    }
    await _send(client, signed, "POST", "/v1/webhooks/sandbox", body, 200, shopping)


async def _send(
    client: Client, headers: dict[str, str], method: str, path: str, body: Any, status: int, shopping: Shopping
) -> dict[str, Any] | None:
    text = body if isinstance(body, str) else json.dumps(body) if body is not None else ""
    began = time.monotonic()
    response = await client.send(method, path, {**headers, "idempotency-key": secrets.token_hex(8)}, text.encode())
    shopping.seconds.append(time.monotonic() - began)
    if response.status != status:
        shopping.failures.append(f"{method} {path.rpartition('/')[2]}: {response.status} {response.body[:200]!r}")
        return None
    document: dict[str, Any] = json.loads(response.body)
    return document
