"""Buy tickets over HTTP, read the emails that bring them, and check them in."""

import secrets
from email.message import EmailMessage
from typing import Any

import httpx

from tests.support.harness import example_event, post_hold, wait_until
from tests.support.http_assertions import expect_ok
from tests.support.mail_server import Mailbox
from tests.support.resources import booking_status, post_payment

ARRIVES_SECONDS = 30
SENDER = "tickets@theatre.example"


def new_address() -> str:
    return f"buyer.{secrets.token_hex(6)}@example.org"


def theatre_event(**changes: Any) -> dict[str, Any]:
    fields = {"timezone": "Europe/Madrid", "ends_at": "2027-03-05T22:00:00Z", "details": {"address": "Calle Mayor 1"}}
    return example_event(**{**fields, "policy": {"review": "manual"}, **changes})


def buy_booking(client: httpx.Client, event: str, *items: dict[str, Any], **buyer: str) -> str:
    """Hold, pay in the sandbox, and wait for the confirmation."""
    booking = expect_ok(
        post_hold(client, event, items=list(items) or [{"pool": "standing", "tariff": "full"}], **buyer), 201
    )
    payment = expect_ok(post_payment(client, booking["id"]), 201)
    assert httpx.post(payment["checkout_url"], data={"action": "pay"}, timeout=30, verify=False).status_code == 303
    wait_until(lambda: booking_status(client, booking["id"]) == "confirmed", ARRIVES_SECONDS)
    id_: str = booking["id"]
    return id_


def emails_to(mailbox: Mailbox, address: str) -> list[EmailMessage]:
    return [message for message in mailbox.messages if message["To"] == address]


def wait_for_emails(mailbox: Mailbox, address: str, count: int = 1) -> list[EmailMessage]:
    wait_until(lambda: len(emails_to(mailbox, address)) >= count, ARRIVES_SECONDS)
    return emails_to(mailbox, address)


def plain_text(email: EmailMessage) -> str:
    body = email.get_body(("plain",))
    assert body is not None
    return str(body.get_content())


def attachments(email: EmailMessage) -> dict[str, bytes]:
    return {str(part.get_filename()): part.get_payload(decode=True) for part in email.iter_attachments()}  # type: ignore[misc]


def check_in(client: httpx.Client, code: str, gate: str | None = "north", nonce: str | None = None) -> httpx.Response:
    return client.post("/v1/checkins", json={"code": code, "gate": gate, "nonce": nonce})
