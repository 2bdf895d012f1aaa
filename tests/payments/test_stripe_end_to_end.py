"""A payment from start to refund through the running product and Stripe: hosted checkout on a local server, and
localstripe for everything that it supports."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from holdfast.runtime import ids
from tests.support import resources, stripe_checkout_server
from tests.support.harness import Org, Server, fresh_database, query, running_server, wait_until
from tests.support.http_assertions import expect_ok
from tests.support.localstripe_server import LOCAL_KEY, running_localstripe
from tests.support.resources import booking_status, payment_state, start_checkout
from tests.support.stripe_checkout_server import KEY, SECRET, StripeSessions


@pytest.fixture(scope="module")
def stripe() -> Iterator[StripeSessions]:
    with stripe_checkout_server.running_stripe() as stripe:
        yield stripe


@pytest.fixture(scope="module")
def server(postgres: str, stripe: StripeSessions) -> Iterator[Server]:
    """The product with Stripe as a provider."""
    keys = {"HOLDFAST_STRIPE_KEY": KEY, "HOLDFAST_STRIPE_WEBHOOK_SECRET": SECRET}
    with fresh_database(postgres) as url:
        with running_server(url, workers=1, worker=True, HOLDFAST_STRIPE_API=stripe.url, **keys) as server:
            yield server


def test_a_seat_is_bought_and_refunded_through_stripes_hosted_checkout(
    stripe: StripeSessions, admin: httpx.Client
) -> None:
    booking, payment = start_checkout(admin, provider="stripe")
    assert payment["checkout_url"] == f"https://checkout.stripe.com/c/pay/{payment['provider_ref']}"
    for notice in stripe.pay(payment["provider_ref"]) * 2:
        expect_ok(admin.post("/v1/webhooks/stripe", content=notice.body, headers=notice.headers))
    assert booking_status(admin, booking) == "confirmed"
    assert payment_state(admin, payment) == ("succeeded", "fulfilled")
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    wait_until(lambda: payment_state(admin, payment) == ("refunded", "refunded"), 15)
    assert [refund["amount"] for refund in stripe.refunds] == [3570]


def test_a_dispute_and_a_failed_refund_at_stripe_end_in_review(stripe: StripeSessions, admin: httpx.Client) -> None:
    booking, payment = start_checkout(admin, provider="stripe")
    for notice in stripe.pay(payment["provider_ref"]):
        expect_ok(admin.post("/v1/webhooks/stripe", content=notice.body, headers=notice.headers))
    intent = stripe.sessions[payment["provider_ref"]]["payment_intent"]
    dispute = {"id": f"dp_{intent}", "payment_intent": intent, "status": "needs_response"}

    def report(kind: str, subject: dict[str, Any]) -> None:
        notice = stripe.event(kind, subject)
        expect_ok(admin.post("/v1/webhooks/stripe", content=notice.body, headers=notice.headers))

    def reason() -> str | None:
        found: str | None = expect_ok(admin.get(f"/v1/payments/{payment['id']}"))["reason"]
        return found

    report("charge.dispute.created", dispute)
    wait_until(lambda: payment_state(admin, payment) == ("review", "review"), 15)
    assert (reason(), booking_status(admin, booking)) == ("disputed", "confirmed")
    report("charge.dispute.closed", {**dispute, "status": "won"})
    wait_until(lambda: reason() == "dispute_won", 15)
    refunds = len(stripe.refunds)
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    wait_until(lambda: payment_state(admin, payment) == ("refunded", "refunded"), 15)
    assert len(stripe.refunds) == refunds + 1
    report("refund.failed", {**stripe.refunds[-1], "status": "failed"})
    wait_until(lambda: payment_state(admin, payment) == ("review", "review"), 15)
    assert (reason(), booking_status(admin, booking)) == ("refund_failed", "refunded")
    expect_ok(admin.post(f"/v1/payments/{payment['id']}/refund", json={"by_hand": True}))
    report("charge.refund.updated", {**stripe.refunds[-1], "status": "failed"})
    assert payment_state(admin, payment) == ("refunded", "refunded")


def test_a_stripe_checkout_is_closed_when_the_buyer_cancels(stripe: StripeSessions, admin: httpx.Client) -> None:
    booking, payment = start_checkout(admin, provider="stripe")
    expect_ok(admin.post(f"/v1/bookings/{booking}/cancel"))
    wait_until(lambda: stripe.sessions[payment["provider_ref"]]["status"] == "expired", 15)
    wait_until(lambda: payment_state(admin, payment) == ("failed", None), 15)


@pytest.mark.parametrize(
    ("meanwhile", "status", "session"),
    [
        ("status = 'failed'", 410, "expired"),
        ("status = 'succeeded', outcome = 'fulfilled', captured_at = now()", 201, "open"),
    ],
    ids=["failed", "succeeded"],
)
def test_a_payment_that_ends_while_stripe_answers_gets_no_checkout_url(
    server: Server, stripe: StripeSessions, admin: httpx.Client, meanwhile: str, status: int, session: str
) -> None:
    """The reconciler gave it up, or the buyer paid. Either way the buyer must not pay again."""
    url, before = server.database_url, set(stripe.sessions)
    booking = resources.create_held_booking(admin)
    parsed = ids.parse_booking_id(booking)
    assert parsed is not None
    with ThreadPoolExecutor(1) as thread:
        with stripe.lock:
            posting = thread.submit(resources.post_payment, admin, booking, provider="stripe")
            wait_until(lambda: bool(query(url, "SELECT FROM payment WHERE event_id = $1", parsed[0])), 5)
            query(url, f"UPDATE payment SET {meanwhile} WHERE event_id = $1", parsed[0])
        answer = posting.result(15)
    assert answer.status_code == status, answer.text
    (created,) = set(stripe.sessions) - before
    assert stripe.sessions[created]["status"] == session
    assert answer.json().get("checkout_url") is None
    (payment,) = query(url, "SELECT provider_ref FROM payment WHERE event_id = $1", parsed[0])
    assert payment["provider_ref"] == created


def test_a_seat_is_bought_and_refunded_through_a_localstripe_intent(postgres: str) -> None:
    """localstripe has no hosted checkout, so the payment starts in the sandbox and is then moved to Stripe."""
    keys = {"HOLDFAST_STRIPE_KEY": LOCAL_KEY, "HOLDFAST_STRIPE_WEBHOOK_SECRET": SECRET}
    with running_localstripe() as stripe, fresh_database(postgres) as url:
        with running_server(url, workers=1, worker=True, HOLDFAST_STRIPE_API=stripe.url, **keys) as server:
            with server.client(Org(url).headers("admin")) as clerk:
                booking, payment = start_checkout(clerk)
                intent = stripe.create_intent(amount=3570, metadata={"payment": payment["id"]})
                query(url, "UPDATE payment SET provider = 'stripe', provider_ref = $1", intent)
                stripe.post("/_config/webhooks/ours", url=f"{server.url}/v1/webhooks/stripe", secret=SECRET)
                stripe.post(f"/v1/payment_intents/{intent}/confirm")
                wait_until(lambda: booking_status(clerk, booking) == "confirmed", 15)
                expect_ok(clerk.post(f"/v1/bookings/{booking}/refund"))
                wait_until(lambda: payment_state(clerk, payment) == ("refunded", "refunded"), 15)
                assert [refund["amount"] for refund in stripe.list_refunds(intent)] == [3570]
