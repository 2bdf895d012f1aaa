"""The whole way of a payment through the running product and Stripe: its hosted checkout on a local server, and
localstripe for what that has."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import stripe_sessions, things
from tests.answers import accepted
from tests.house import Org, fresh_database, serving, sql, wait_until
from tests.local_stripe import LOCAL_KEY, localstripe
from tests.things import checkout, payment_of, status_of


def test_a_seat_is_bought_and_refunded_through_stripes_hosted_checkout(postgres: str) -> None:
    with stripe_sessions.serving() as stripe, fresh_database(postgres) as url:
        keys = {"HOLDFAST_STRIPE_KEY": stripe_sessions.KEY, "HOLDFAST_STRIPE_WEBHOOK_SECRET": stripe_sessions.SECRET}
        with serving(url, workers=1, worker=True, HOLDFAST_STRIPE_API=stripe.url, **keys) as server:
            with server.client(Org(url).headers("admin")) as clerk:
                booking, payment = checkout(clerk, provider="stripe")
                assert payment["checkout_url"] == f"https://checkout.stripe.com/c/pay/{payment['provider_ref']}"
                for notice in stripe.pay(payment["provider_ref"]) * 2:
                    accepted(clerk.post("/v1/webhooks/stripe", content=notice.body, headers=notice.headers))
                assert status_of(clerk, booking) == "confirmed"
                assert payment_of(clerk, payment) == ("succeeded", "fulfilled")
                accepted(clerk.post(f"/v1/bookings/{booking}/refund"))
                wait_until(lambda: payment_of(clerk, payment) == ("refunded", "refunded"), 15)
                assert [refund["amount"] for refund in stripe.refunds] == [3570]


def test_a_checkout_at_stripe_is_closed_when_its_buyer_gives_up(postgres: str) -> None:
    with stripe_sessions.serving() as stripe, fresh_database(postgres) as url:
        keys = {"HOLDFAST_STRIPE_KEY": stripe_sessions.KEY, "HOLDFAST_STRIPE_WEBHOOK_SECRET": stripe_sessions.SECRET}
        with serving(url, workers=1, worker=True, HOLDFAST_STRIPE_API=stripe.url, **keys) as server:
            with server.client(Org(url).headers("admin")) as clerk:
                booking, payment = checkout(clerk, provider="stripe")
                accepted(clerk.post(f"/v1/bookings/{booking}/cancel"))
                wait_until(lambda: stripe.sessions[payment["provider_ref"]]["status"] == "expired", 15)
                wait_until(lambda: payment_of(clerk, payment) == ("failed", None), 15)


def test_a_seat_is_bought_and_refunded_with_an_intent_of_localstripe(postgres: str) -> None:
    """It has no hosted checkout. So the payment is begun with the sandbox, and is then made one of Stripe's."""
    secret = stripe_sessions.SECRET
    keys = {"HOLDFAST_STRIPE_KEY": LOCAL_KEY, "HOLDFAST_STRIPE_WEBHOOK_SECRET": secret}
    with localstripe() as stripe, fresh_database(postgres) as url:
        with serving(url, workers=1, worker=True, HOLDFAST_STRIPE_API=stripe.url, **keys) as server:
            with server.client(Org(url).headers("admin")) as clerk:
                booking, payment = checkout(clerk)
                intent = stripe.intent(amount=3570, metadata={"payment": payment["id"]})
                sql(url, "UPDATE payment SET provider = 'stripe', provider_ref = $1", intent)
                stripe.post("/_config/webhooks/ours", url=f"{server.url}/v1/webhooks/stripe", secret=secret)
                stripe.post(f"/v1/payment_intents/{intent}/confirm")
                wait_until(lambda: status_of(clerk, booking) == "confirmed", 15)
                accepted(clerk.post(f"/v1/bookings/{booking}/refund"))
                wait_until(lambda: payment_of(clerk, payment) == ("refunded", "refunded"), 15)
                assert [refund["amount"] for refund in stripe.refunds(intent)] == [3570]


@pytest.mark.parametrize(
    ("meanwhile", "status", "session"),
    [
        ("status = 'failed'", 410, "expired"),
        ("status = 'succeeded', outcome = 'fulfilled', captured_at = now()", 201, "open"),
    ],
)
def test_a_payment_that_has_ended_while_stripe_was_asked_is_not_offered_any_more(
    postgres: str, meanwhile: str, status: int, session: str
) -> None:
    """The reconciler has given it up, or the buyer has paid: either way nobody is sent to pay it again."""
    with stripe_sessions.serving() as stripe, fresh_database(postgres) as url:
        keys = {"HOLDFAST_STRIPE_KEY": stripe_sessions.KEY, "HOLDFAST_STRIPE_WEBHOOK_SECRET": stripe_sessions.SECRET}
        with (
            serving(url, workers=1, worker=False, HOLDFAST_STRIPE_API=stripe.url, **keys) as server,
            ThreadPoolExecutor(1) as aside,
        ):
            with server.client(Org(url).headers("admin")) as clerk:
                booking = things.held(clerk)
                with stripe.lock:
                    asking = aside.submit(things.pay, clerk, booking, provider="stripe")
                    wait_until(lambda: bool(sql(url, "SELECT FROM payment")), 5)
                    sql(url, f"UPDATE payment SET {meanwhile}")
                answer = asking.result(15)
                assert answer.status_code == status, answer.text
                assert [made["status"] for made in stripe.sessions.values()] == [session]
                assert answer.json().get("checkout_url") is None
                assert sql(url, "SELECT provider_ref FROM payment")[0][0] in stripe.sessions
