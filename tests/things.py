"""Something of each kind that a path can name, made over HTTP."""

import base64
import json
import secrets
from datetime import UTC, datetime
from typing import Any, Final

import httpx
from standardwebhooks import Webhook

from holdfast.api.call import Resource
from holdfast.runtime import ids
from tests.answers import accepted
from tests.house import SANDBOX_SECRET, hold, publish, show

# One pixel.
PICTURE: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

ABSENT: Final = {
    Resource.EVENT: ids.format_event_id(bytes(16)),
    Resource.BOOKING: ids.format_booking_id(bytes(16), bytes(16)),
    Resource.PAYMENT: ids.format_payment_id(bytes(16), bytes(16)),
    Resource.RECEIPT: ids.format_receipt_id(bytes(16), bytes(16)),
    Resource.TICKET: ids.format_ticket_id(bytes(16), bytes(16), 0, 0),
    Resource.ENDPOINT: ids.format_endpoint_id(bytes(16)),
}


def reviewed_show(**changes: Any) -> dict[str, Any]:
    """An event for which receipts are taken."""
    return show(**{"policy": {"review": "manual"}, **changes})


def held(client: httpx.Client, user: str = "u-1") -> str:
    id_: str = accepted(hold(client, publish(client, reviewed_show()), user=user, items=[{"seat": "A-1"}]), 201)["id"]
    return id_


def confirmed(client: httpx.Client, user: str = "u-1") -> str:
    booking = held(client, user)
    accepted(client.post(f"/v1/bookings/{booking}/confirm"))
    return booking


def submitted(client: httpx.Client, user: str = "u-1") -> str:
    booking = held(client, user)
    accepted(hand_in(client, booking))
    return booking


def hand_in(client: httpx.Client, booking: str, file: bytes = PICTURE) -> httpx.Response:
    return client.post(f"/v1/bookings/{booking}/receipt", files={"file": ("receipt.png", file, "image/png")})


def pay(client: httpx.Client, booking: str, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key or secrets.token_hex(8)}
    return client.post(f"/v1/bookings/{booking}/payments", json={"provider": "sandbox", **body}, headers=headers)


def started(client: httpx.Client, user: str = "u-1") -> dict[str, Any]:
    return accepted(pay(client, held(client, user)), 201)


def tell(
    client: httpx.Client,
    payment: dict[str, Any],
    kind: str = "payment.succeeded",
    id_: str | None = None,
    **changes: Any,
) -> httpx.Response:
    """What the sandbox would tell about a payment, signed as it signs."""
    data = {name: payment[name] for name in ("provider_ref", "amount", "currency")}
    return tell_raw(
        client, json.dumps({"type": kind, "data": {**data, **changes}}), id_ or f"msg_{secrets.token_hex(8)}"
    )


def tell_raw(client: httpx.Client, body: str, id_: str, at: datetime | None = None) -> httpx.Response:
    at = at or datetime.now(UTC)
    headers = {
        "webhook-id": id_,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(SANDBOX_SECRET).sign(id_, at, body),
    }
    return client.post("/v1/webhooks/sandbox", content=body, headers=headers)


def in_review(client: httpx.Client, user: str = "u-1") -> str:
    """A payment of which too little came."""
    payment = started(client, user)
    accepted(tell(client, payment, amount=1))
    id_: str = payment["id"]
    return id_


def receipt(client: httpx.Client, user: str = "u-1") -> str:
    listed = accepted(client.get(f"/v1/bookings/{submitted(client, user)}/receipts"))
    id_: str = listed["items"][0]["id"]
    return id_


def tickets(client: httpx.Client, booking: str) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/bookings/{booking}/tickets")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def ticket(client: httpx.Client, user: str = "u-1") -> str:
    id_: str = tickets(client, confirmed(client, user))[0]["id"]
    return id_


def endpoint(client: httpx.Client) -> str:
    id_: str = accepted(new_endpoint(client), 201)["id"]
    return id_


def new_endpoint(client: httpx.Client) -> httpx.Response:
    """The oldest go for it where there are many: there is a limit."""
    there = accepted(client.get("/v1/webhook-endpoints"))["items"]
    for oldest in there[: max(0, len(there) - 10)]:
        accepted(client.delete(f"/v1/webhook-endpoints/{oldest['id']}"))
    return client.post("/v1/webhook-endpoints", json={"url": "http://127.0.0.1:9/hook"})


def thing(client: httpx.Client, about: Resource, user: str = "u-1") -> str:
    """The id of a new thing of this kind, or what else stands in its place in a path."""
    match about:
        case Resource.EVENT:
            return publish(client, reviewed_show())
        case Resource.BOOKING:
            return held(client, user)
        case Resource.PAYMENT:
            id_: str = started(client, user)["id"]
            return id_
        case Resource.RECEIPT:
            return receipt(client, user)
        case Resource.TICKET:
            return ticket(client, user)
        case Resource.ENDPOINT:
            return endpoint(client)
        case Resource.PROVIDER:
            return "sandbox"
        case Resource.ORG | Resource.NOTHING:
            return ""


def checkout(clerk: httpx.Client, policy: dict[str, Any] | None = None, **payment: Any) -> tuple[str, dict[str, Any]]:
    """A seat that is held, and the payment that was begun for it."""
    event = publish(clerk, show(policy=policy or {}))
    booking: str = accepted(hold(clerk, event, items=[{"seat": "A-1"}]), 201)["id"]
    return booking, accepted(pay(clerk, booking, **payment), 201)


def status_of(clerk: httpx.Client, booking: str) -> str:
    status: str = accepted(clerk.get(f"/v1/bookings/{booking}"))["status"]
    return status


def payment_of(clerk: httpx.Client, payment: dict[str, Any]) -> tuple[str, str | None]:
    now = accepted(clerk.get(f"/v1/payments/{payment['id']}"))
    return now["status"], now["outcome"]
