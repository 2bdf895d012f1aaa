"""Create one resource of each kind over HTTP."""

import base64
import json
import secrets
from datetime import UTC, datetime
from typing import Any, Final

import httpx
from standardwebhooks import Webhook

from holdfast.api.call import Resource
from holdfast.runtime import ids
from tests.support.harness import SANDBOX_SECRET, example_event, post_hold, publish_event
from tests.support.http_assertions import expect_ok

# One pixel.
TINY_PNG: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

THREE_DAYS: Final = "FREQ=DAILY;COUNT=3"

UNKNOWN_IDS: Final = {
    Resource.EVENT: ids.format_event_id(bytes(16)),
    Resource.BOOKING: ids.format_booking_id(bytes(16), bytes(16)),
    Resource.PAYMENT: ids.format_payment_id(bytes(16), bytes(16)),
    Resource.RECEIPT: ids.format_receipt_id(bytes(16), bytes(16)),
    Resource.TICKET: ids.format_ticket_id(bytes(16), bytes(16), 0, 0),
    Resource.ENDPOINT: ids.format_endpoint_id(bytes(16)),
    Resource.SERIES: ids.format_series_id(bytes(16)),
    Resource.SERIES_JOB: ids.format_series_job_id(bytes(16)),
}


def reviewed_event(**changes: Any) -> dict[str, Any]:
    """An event that accepts receipts."""
    return example_event(**{"policy": {"review": "manual"}, **changes})


def create_held_booking(client: httpx.Client, user: str = "u-1") -> str:
    id_: str = expect_ok(
        post_hold(client, publish_event(client, reviewed_event()), user=user, items=[{"seat": "A-1"}]), 201
    )["id"]
    return id_


def create_confirmed_booking(client: httpx.Client, user: str = "u-1") -> str:
    booking = create_held_booking(client, user)
    expect_ok(client.post(f"/v1/bookings/{booking}/confirm"))
    return booking


def create_submitted_booking(client: httpx.Client, user: str = "u-1") -> str:
    booking = create_held_booking(client, user)
    expect_ok(upload_receipt(client, booking))
    return booking


def upload_receipt(client: httpx.Client, booking: str, file: bytes = TINY_PNG) -> httpx.Response:
    return client.post(f"/v1/bookings/{booking}/receipt", files={"file": ("receipt.png", file, "image/png")})


def post_payment(client: httpx.Client, booking: str, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key or secrets.token_hex(8)}
    return client.post(f"/v1/bookings/{booking}/payments", json={"provider": "sandbox", **body}, headers=headers)


def start_payment(client: httpx.Client, user: str = "u-1") -> dict[str, Any]:
    return expect_ok(post_payment(client, create_held_booking(client, user)), 201)


def post_notice(
    client: httpx.Client,
    payment: dict[str, Any],
    kind: str = "payment.succeeded",
    id_: str | None = None,
    **changes: Any,
) -> httpx.Response:
    """Post the sandbox's notice about a payment, with its signature."""
    data = {name: payment[name] for name in ("provider_ref", "amount", "currency")}
    return post_raw_notice(
        client, json.dumps({"type": kind, "data": {**data, **changes}}), id_ or f"msg_{secrets.token_hex(8)}"
    )


def post_raw_notice(client: httpx.Client, body: str, id_: str, at: datetime | None = None) -> httpx.Response:
    at = at or datetime.now(UTC)
    headers = {
        "webhook-id": id_,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(SANDBOX_SECRET).sign(id_, at, body),
    }
    return client.post("/v1/webhooks/sandbox", content=body, headers=headers)


def create_payment_in_review(client: httpx.Client, user: str = "u-1") -> str:
    """Create a payment under review, because too little was paid."""
    payment = start_payment(client, user)
    expect_ok(post_notice(client, payment, amount=1))
    id_: str = payment["id"]
    return id_


def create_receipt(client: httpx.Client, user: str = "u-1") -> str:
    listed = expect_ok(client.get(f"/v1/bookings/{create_submitted_booking(client, user)}/receipts"))
    id_: str = listed["items"][0]["id"]
    return id_


def list_tickets(client: httpx.Client, booking: str) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/bookings/{booking}/tickets")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def create_ticket(client: httpx.Client, user: str = "u-1") -> str:
    id_: str = list_tickets(client, create_confirmed_booking(client, user))[0]["id"]
    return id_


def create_endpoint(client: httpx.Client) -> str:
    id_: str = expect_ok(post_endpoint(client), 201)["id"]
    return id_


def post_endpoint(client: httpx.Client) -> httpx.Response:
    """Create an endpoint. An org has a limit, so the oldest ones make room."""
    existing = expect_ok(client.get("/v1/webhook-endpoints"))["items"]
    for oldest in existing[: max(0, len(existing) - 10)]:
        expect_ok(client.delete(f"/v1/webhook-endpoints/{oldest['id']}"))
    return client.post("/v1/webhook-endpoints", json={"url": "http://127.0.0.1:9/hook"})


def create_series(client: httpx.Client, **changes: Any) -> str:
    """Create a series with one published event, so that everyone can see it."""
    id_: str = expect_ok(client.post("/v1/series", json={"title": "Casablanca", **changes}), 201)["id"]
    publish_event(client, example_event(series=id_))
    return id_


def post_series_events(
    client: httpx.Client, series: str, headers: dict[str, str] | None = None, /, **body: Any
) -> httpx.Response:
    """Ask for the events of a series; by default, for three days in a row."""
    rule = {} if "starts" in body else {"rule": THREE_DAYS}
    request = {"template": example_event(), **rule, **body}
    return client.post(f"/v1/series/{series}/events", json=request, headers=headers)


def create_series_job(client: httpx.Client) -> str:
    id_: str = expect_ok(post_series_events(client, create_series(client)), 202)["id"]
    return id_


def create_resource(client: httpx.Client, kind: Resource, user: str = "u-1") -> str:
    """Create a resource of this kind and return its id, as a path names it."""
    match kind:
        case Resource.EVENT:
            return publish_event(client, reviewed_event())
        case Resource.BOOKING:
            return create_held_booking(client, user)
        case Resource.PAYMENT:
            id_: str = start_payment(client, user)["id"]
            return id_
        case Resource.RECEIPT:
            return create_receipt(client, user)
        case Resource.TICKET:
            return create_ticket(client, user)
        case Resource.ENDPOINT:
            return create_endpoint(client)
        case Resource.SERIES:
            return create_series(client)
        case Resource.SERIES_JOB:
            return create_series_job(client)
        case Resource.PROVIDER:
            return "sandbox"
        case Resource.ORG | Resource.NOTHING:
            return ""


def start_checkout(
    clerk: httpx.Client, policy: dict[str, Any] | None = None, **payment: Any
) -> tuple[str, dict[str, Any]]:
    """Hold a seat and start its payment."""
    event = publish_event(clerk, example_event(policy=policy or {}))
    booking: str = expect_ok(post_hold(clerk, event, items=[{"seat": "A-1"}]), 201)["id"]
    return booking, expect_ok(post_payment(clerk, booking, **payment), 201)


def booking_status(clerk: httpx.Client, booking: str) -> str:
    status: str = expect_ok(clerk.get(f"/v1/bookings/{booking}"))["status"]
    return status


def payment_state(clerk: httpx.Client, payment: dict[str, Any]) -> tuple[str, str | None]:
    current = expect_ok(clerk.get(f"/v1/payments/{payment['id']}"))
    return current["status"], current["outcome"]
