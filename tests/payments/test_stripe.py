"""A buyer pays once through Stripe, only Stripe's own signature counts, and each refund happens once."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, TypeVar

import pytest
from msgspec import structs
from stripe import HTTPClient

from holdfast.core.payment import PaymentResult
from holdfast.payments.provider import (
    CheckoutRequest,
    Notice,
    NoticeError,
    Provider,
    ProviderError,
    ProviderRefusedError,
    ProviderStatus,
)
from holdfast.payments.stripe import Stripe
from tests.support import stripe_checkout_server
from tests.support.harness import free_port, wait_until
from tests.support.localstripe_server import LOCAL_KEY, TAGS, LocalStripe, running_localstripe
from tests.support.stripe_checkout_server import KEY, SECRET, SignedRequest, StripeSessions, sign

# Stripe's library passes forms to httpx in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

T = TypeVar("T")
PAID = ProviderStatus(PaymentResult.CAPTURED, 4200, "EUR")
FAILED = ProviderStatus(PaymentResult.FAILED)
OPEN = ProviderStatus(None)
BUYER = "ada@example.org"


def run_with_provider(
    api: str | None, work: Callable[[Stripe], Awaitable[T]], key: str = KEY, call_seconds: float = 10
) -> T:
    """Run the work with a provider of its own and return its result."""

    async def run() -> T:
        provider = Stripe(key, SECRET, api, call_seconds=call_seconds)
        try:
            return await work(provider)
        finally:
            await provider.aclose()

    return asyncio.run(run())


def checkout_request(**changes: Any) -> CheckoutRequest:
    request = CheckoutRequest(
        payment="py_1",
        amount=4200,
        currency="EUR",
        description="Friday night, 2 places",
        return_url="https://tickets.example/back",
        email=BUYER,
        expires_at=datetime.now(UTC) + timedelta(minutes=10),
    )
    return structs.replace(request, **changes)


def start(stripe: StripeSessions, **changes: Any) -> str:
    return run_with_provider(stripe.url, lambda provider: provider.start(checkout_request(**changes))).ref


def look_up(stripe: StripeSessions, ref: str) -> ProviderStatus:
    return run_with_provider(stripe.url, lambda provider: provider.look_up(ref))


def close(stripe: StripeSessions, ref: str) -> ProviderStatus:
    return run_with_provider(stripe.url, lambda provider: provider.close(ref))


def refund(stripe: StripeSessions, ref: str, key: str = "refund-1") -> None:
    run_with_provider(stripe.url, lambda provider: provider.refund(ref, key))


def verify(signed: SignedRequest) -> Notice:
    return Stripe(KEY, SECRET, None).verify(signed.headers, signed.body)


def event_body(kind: str, **subject: Any) -> bytes:
    return json.dumps({"id": "evt_1", "type": kind, "data": {"object": subject}}).encode()


@pytest.fixture(autouse=True)
def _short_retry_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library waits half a second or more before a retry."""
    monkeypatch.setattr(HTTPClient, "INITIAL_DELAY", 0.01)


@pytest.fixture
def stripe() -> Iterator[StripeSessions]:
    with stripe_checkout_server.running_stripe() as account:
        yield account


def test_stripe_implements_the_provider_protocol() -> None:
    provider: Provider = Stripe(KEY, SECRET, None)
    assert provider is not None


def test_a_checkout_page_of_stripe_carries_our_payment(stripe: StripeSessions) -> None:
    created = run_with_provider(stripe.url, lambda provider: provider.start(checkout_request()))
    session = stripe.sessions[created.ref]
    assert created.checkout_url == session["url"]
    assert session["mode"] == "payment"
    assert (session["amount_total"], session["currency"]) == (4200, "eur")
    assert session["_name"] == "Friday night, 2 places"
    assert session["customer_email"] == BUYER
    assert session["success_url"] == session["cancel_url"] == "https://tickets.example/back"
    assert session["client_reference_id"] == "py_1"
    assert session["metadata"] == session["_of_intent"] == {"payment": "py_1"}


def test_an_email_address_is_optional(stripe: StripeSessions) -> None:
    assert stripe.sessions[start(stripe, email=None)]["customer_email"] is None


def test_a_repeated_start_returns_the_same_session_even_seconds_later(stripe: StripeSessions) -> None:
    same = checkout_request()
    first = run_with_provider(stripe.url, lambda provider: provider.start(same))
    time.sleep(1.1)
    assert run_with_provider(stripe.url, lambda provider: provider.start(same)) == first
    assert len(stripe.sessions) == 1
    assert start(stripe, payment="py_2") != first.ref


def test_a_session_with_a_lost_answer_is_not_created_twice(stripe: StripeSessions) -> None:
    stripe.answers_to_lose = 1
    ref = start(stripe)
    assert list(stripe.sessions) == [ref]
    assert len(stripe.calls) == 2


def test_another_price_for_the_same_payment_is_refused(stripe: StripeSessions) -> None:
    same = checkout_request()
    run_with_provider(stripe.url, lambda provider: provider.start(same))
    with pytest.raises(ProviderRefusedError):
        run_with_provider(stripe.url, lambda provider: provider.start(structs.replace(same, amount=1)))


@pytest.mark.parametrize("minutes", [0.5, 10, 30, 120, 23 * 60])
def test_a_session_outlives_the_hold_and_is_never_shorter_than_stripe_allows(
    stripe: StripeSessions, minutes: float
) -> None:
    until = datetime.now(UTC) + timedelta(minutes=minutes)
    assert stripe.sessions[start(stripe, expires_at=until)]["expires_at"] >= until.timestamp()


@pytest.mark.parametrize("days", [None, 1, 30])
def test_a_hold_of_days_gets_the_longest_session_that_stripe_allows(stripe: StripeSessions, days: int | None) -> None:
    until = datetime.now(UTC) + timedelta(days=days) if days else None
    left = stripe.sessions[start(stripe, expires_at=until)]["expires_at"] - time.time()
    assert 23 * 3600 < left <= 24 * 3600


def test_no_session_is_created_for_an_ended_hold(stripe: StripeSessions) -> None:
    with pytest.raises(ProviderRefusedError):
        start(stripe, expires_at=datetime.now(UTC) - timedelta(minutes=5))
    assert stripe.sessions == {}


@pytest.mark.parametrize(
    ("currency", "ours", "theirs"),
    [
        ("JPY", 500, 500),
        ("HUF", 12345, 12345),
        ("TWD", 12345, 12345),
        ("ISK", 500, 50000),
        ("UGX", 5000, 500000),
        ("KWD", 5120, 5120),
    ],
)
def test_an_amount_survives_the_conversion_to_stripe_and_back(
    stripe: StripeSessions, currency: str, ours: int, theirs: int
) -> None:
    ref = start(stripe, amount=ours, currency=currency)
    assert stripe.sessions[ref]["amount_total"] == theirs
    notices = [verify(request) for request in stripe.pay(ref)]
    assert [(notice.amount, notice.currency) for notice in notices] == [(ours, currency)] * 2
    assert look_up(stripe, ref) == ProviderStatus(PaymentResult.CAPTURED, ours, currency)


@pytest.mark.parametrize(("currency", "amount"), [("KWD", 5124), ("TND", 1), ("MGA", 500)])
def test_an_amount_that_stripe_cannot_represent_is_refused_not_rounded(
    stripe: StripeSessions, currency: str, amount: int
) -> None:
    with pytest.raises(ProviderRefusedError, match="amount_not_supported"):
        start(stripe, amount=amount, currency=currency)
    assert stripe.calls == []


def test_a_session_is_open_until_it_is_paid_or_expires(stripe: StripeSessions) -> None:
    paid, over = start(stripe), start(stripe, payment="py_2")
    assert look_up(stripe, paid) == look_up(stripe, over) == OPEN
    stripe.pay(paid)
    stripe.expire(over)
    assert look_up(stripe, paid) == PAID
    assert look_up(stripe, over) == FAILED


@pytest.mark.parametrize("status", ["processing", "requires_action"])
def test_a_pending_debit_or_transfer_has_no_result_until_it_ends(stripe: StripeSessions, status: str) -> None:
    good, bad = start(stripe), start(stripe, payment="py_2")
    stripe.start_delayed_payment(good, status)
    stripe.start_delayed_payment(bad, status)
    assert look_up(stripe, good) == look_up(stripe, bad) == OPEN
    stripe.settle_delayed_payment(good)
    stripe.fail_delayed_payment(bad)
    assert look_up(stripe, good) == PAID
    assert look_up(stripe, bad) == FAILED


def test_a_free_checkout_is_captured_when_the_buyer_completes_it(stripe: StripeSessions) -> None:
    ref = start(stripe, amount=0)
    stripe.sessions[ref]["payment_status"] = "no_payment_required"
    assert look_up(stripe, ref) == OPEN
    notice = verify(stripe.complete_for_free(ref))
    assert look_up(stripe, ref) == ProviderStatus(PaymentResult.CAPTURED, 0, "EUR")
    assert (notice.result, notice.amount) == (PaymentResult.CAPTURED, 0)
    refund(stripe, ref)
    assert stripe.refunds == []


def test_a_closed_session_cannot_be_paid(stripe: StripeSessions) -> None:
    ref = start(stripe)
    assert close(stripe, ref) == FAILED
    assert stripe.sessions[ref]["status"] == "expired"
    assert close(stripe, ref) == FAILED


def test_closing_a_paid_session_reports_the_payment(stripe: StripeSessions) -> None:
    ref = start(stripe)
    stripe.pay(ref)
    assert close(stripe, ref) == PAID


@pytest.mark.parametrize("status", ["processing", "requires_action"])
def test_a_pending_debit_or_transfer_cannot_be_closed(stripe: StripeSessions, status: str) -> None:
    ref = start(stripe)
    stripe.start_delayed_payment(ref, status)
    assert close(stripe, ref) == OPEN


def test_an_open_checkout_is_never_reported_as_closed(stripe: StripeSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(session: object) -> None:
        raise stripe_checkout_server.StripeApiError(400, "Not today.")

    ref = start(stripe)
    monkeypatch.setattr(stripe, "_expire", refuse)
    with pytest.raises(ProviderRefusedError):
        close(stripe, ref)


def test_an_unknown_session_is_refused(stripe: StripeSessions) -> None:
    for work in (look_up, close, refund):
        with pytest.raises(ProviderRefusedError, match="resource_missing"):
            work(stripe, "cs_test_unknown")


def test_a_payment_is_refunded_once_even_under_two_keys(stripe: StripeSessions) -> None:
    ref = start(stripe)
    stripe.pay(ref)
    for key in ("refund-1", "refund-1", "refund-2"):
        refund(stripe, ref, key)
    (created,) = stripe.refunds
    assert (created["amount"], created["metadata"]) == (4200, {"payment": "py_1"})


def test_simultaneous_refunds_happen_once(stripe: StripeSessions) -> None:
    """All of them check before any of them refunds, so Stripe has to refuse the others."""

    async def refund_at_once(provider: Stripe) -> None:
        await asyncio.gather(*(provider.refund(ref, key) for key in ("a", "b", "a", "b")))

    ref = start(stripe)
    stripe.pay(ref)
    run_with_provider(stripe.url, refund_at_once)
    assert len(stripe.refunds) == 1


def test_a_refund_with_a_lost_answer_happens_once(stripe: StripeSessions) -> None:
    ref = start(stripe)
    stripe.pay(ref)
    stripe.answers_to_lose = 2
    refund(stripe, ref)
    assert len(stripe.refunds) == 1
    assert {call.idempotency_key for call in stripe.calls if call.path == "/v1/refunds"} == {"refund-1"}


@pytest.mark.parametrize("status", ["failed", "canceled"])
def test_a_failed_refund_is_not_reported_as_done(stripe: StripeSessions, status: str) -> None:
    ref = start(stripe)
    stripe.pay(ref)
    stripe.refund_status = status
    with pytest.raises(ProviderRefusedError, match="refund_failed"):
        refund(stripe, ref)


def test_an_unpaid_charge_cannot_be_refunded(stripe: StripeSessions) -> None:
    unpaid, pending = start(stripe), start(stripe, payment="py_2")
    stripe.start_delayed_payment(pending)
    for ref in (unpaid, pending):
        with pytest.raises(ProviderRefusedError):
            refund(stripe, ref)


def test_a_refund_waits_for_the_merchants_balance(stripe: StripeSessions) -> None:
    ref = start(stripe)
    stripe.pay(ref)
    stripe.balance_is_empty = True
    with pytest.raises(ProviderError, match="balance_insufficient"):
        refund(stripe, ref)
    stripe.balance_is_empty = False
    refund(stripe, ref)
    assert len(stripe.refunds) == 1


@pytest.mark.parametrize(
    "outage",
    [
        (500, b'{"error": {"type": "api_error", "message": "Sorry."}}'),
        (503, b'{"error": "unavailable"}'),
        (502, b"<html>Bad gateway</html>"),
        (200, b"<html>Sign in to this network</html>"),
        (200, b"{}"),
        (409, b'{"error": {"type": "idempotency_error", "code": "idempotency_key_in_use"}}'),
        (429, b'{"error": {"type": "invalid_request_error", "code": "lock_timeout"}}'),
        (401, b'{"error": {"type": "invalid_request_error", "message": "Invalid API Key provided."}}'),
        (403, b'{"error": {"type": "invalid_request_error", "message": "The key may not do this."}}'),
    ],
)
def test_a_temporary_failure_of_stripe_can_be_retried(stripe: StripeSessions, outage: tuple[int, bytes]) -> None:
    ref = start(stripe)
    stripe.outage = outage
    with pytest.raises(ProviderError):
        close(stripe, ref)
    stripe.outage = None
    assert close(stripe, ref) == FAILED


def test_every_call_reports_an_unreachable_stripe() -> None:
    async def all_calls(provider: Stripe) -> list[Any]:
        calls = (
            provider.start(checkout_request()),
            provider.look_up("cs_1"),
            provider.close("pi_1"),
            provider.refund("cs_1", "k"),
        )
        return list(await asyncio.gather(*calls, return_exceptions=True))

    outcomes = run_with_provider(f"http://127.0.0.1:{free_port()}", all_calls)
    assert [(type(outcome), str(outcome)) for outcome in outcomes] == [(ProviderError, "APIConnectionError")] * 4


@pytest.mark.parametrize("how", ["hanging", "dribbling"])
def test_a_call_to_stripe_times_out_and_blocks_nobody(stripe: StripeSessions, how: str) -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    async def wait(provider: Stripe) -> None:
        beating = asyncio.create_task(beat())
        with pytest.raises(ProviderError):
            await provider.look_up(ref)
        beating.cancel()

    ref = start(stripe)
    setattr(stripe, how, True)
    run_with_provider(stripe.url, wait, call_seconds=0.5)
    assert beats > 5


def test_errors_and_logs_never_contain_the_buyers_data(
    stripe: StripeSessions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ProviderRefusedError) as refused:
        start(stripe, email="ada.example.org")
    assert str(refused.value) == "email_invalid"
    assert refused.value.__suppress_context__
    assert "ada" not in caplog.text


def test_a_notice_signed_by_stripe_is_accepted(stripe: StripeSessions) -> None:
    ref = start(stripe)
    of_session, of_intent = (verify(notice) for notice in stripe.pay(ref))
    assert of_session.id != of_intent.id
    for notice, reference in ((of_session, ref), (of_intent, None)):
        assert notice == Notice(
            id=notice.id, result=PaymentResult.CAPTURED, ref=reference, payment="py_1", amount=4200, currency="EUR"
        )


PING = event_body("ping")


@pytest.mark.parametrize(
    "header",
    [
        lambda good: good.replace("v1=", "v1=0"),
        lambda good: good.replace("v1=", "v0="),
        lambda good: good.replace("v1=", "v1=é"),
        lambda good: good.replace("t=", "t=1"),
        lambda good: good.partition(",")[0],
        lambda good: good.partition(",")[2],
        lambda good: "t=,v1=",
        lambda good: "",
    ],
)
def test_a_signature_that_is_not_stripes_is_refused(header: Callable[[str], str]) -> None:
    good = sign(PING)
    assert verify(good).id == "evt_1"
    with pytest.raises(NoticeError):
        verify(SignedRequest({"stripe-signature": header(good.headers["stripe-signature"])}, good.body))


def test_a_notice_without_a_signature_or_signed_with_another_secret_is_refused() -> None:
    for forged in (SignedRequest({}, PING), sign(PING, "whsec_of_somebody_else")):
        with pytest.raises(NoticeError):
            verify(forged)


def test_an_altered_notice_is_refused() -> None:
    good = sign(PING)
    for altered in (PING.replace(b"evt_1", b"evt_2"), PING + b" ", PING[:-1], b""):
        with pytest.raises(NoticeError):
            verify(SignedRequest(good.headers, altered))


def test_a_notice_is_accepted_for_five_minutes() -> None:
    assert verify(sign(PING, at=time.time() - 240)) == Notice(id="evt_1", result=None)
    with pytest.raises(NoticeError):
        verify(sign(PING, at=time.time() - 301))


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        b"",
        b"not JSON",
        b"[]",
        b'{"id": "evt_1"}',
        event_body("checkout.session.completed"),
        event_body("payment_intent.succeeded", id="pi_1", status="succeeded", amount="4200", currency="eur"),
    ],
)
def test_an_unreadable_notice_is_refused_even_if_it_is_signed(body: bytes) -> None:
    with pytest.raises(NoticeError):
        verify(sign(body))


def test_a_notice_is_accepted_if_one_of_its_signatures_is_valid() -> None:
    """While a secret is being replaced, Stripe signs with both."""
    signature = sign(PING).headers["stripe-signature"]
    assert verify(SignedRequest({"stripe-signature": f"{signature},v1={'0' * 64}"}, PING)).id == "evt_1"


@pytest.mark.parametrize("secret", [None, ""])
def test_without_a_secret_every_notice_is_refused(secret: str | None) -> None:
    signed = sign(PING, secret or "")
    with pytest.raises(NoticeError, match="no webhook secret"):
        Stripe(KEY, secret, None).verify(signed.headers, signed.body)


def test_a_debit_reports_its_result_when_it_ends(stripe: StripeSessions) -> None:
    good, bad = start(stripe), start(stripe, payment="py_2")
    assert [verify(stripe.start_delayed_payment(ref)).result for ref in (good, bad)] == [None, None]
    paid, bounced = verify(stripe.settle_delayed_payment(good)), verify(stripe.fail_delayed_payment(bad))
    assert (paid.result, paid.ref, paid.amount) == (PaymentResult.CAPTURED, good, 4200)
    assert (bounced.result, bounced.ref, bounced.payment) == (PaymentResult.FAILED, bad, "py_2")


def test_an_expired_session_reports_a_failure(stripe: StripeSessions) -> None:
    ref = start(stripe)
    notice = verify(stripe.expire(ref))
    assert notice == Notice(id=notice.id, result=PaymentResult.FAILED, ref=ref, payment="py_1")


INTENT = {"id": "pi_1", "amount": 4200, "currency": "eur", "metadata": TAGS}
CHARGE = {"id": "ch_1", "amount": 4200, "currency": "eur", "payment_intent": "pi_1"}
REFUND = {"id": "re_1", "amount": 4200, "currency": "eur", "payment_intent": "pi_1"}
DISPUTE = {"id": "dp_1", "amount": 4200, "currency": "eur", "charge": "ch_1", "payment_intent": "pi_1"}
SESSION = {"id": "cs_1", "status": "complete", "payment_status": "paid", "amount_total": 4200, "currency": "eur"}


@pytest.mark.parametrize(
    "body",
    [
        # The buyer may try another card in the same session.
        event_body("payment_intent.payment_failed", **INTENT, status="requires_payment_method"),
        event_body("payment_intent.succeeded", **{**INTENT, "metadata": {}}, status="succeeded", amount_received=4200),
        event_body("checkout.session.completed", **SESSION, metadata={}),
        event_body("checkout.session.completed", **SESSION, metadata=None),
        event_body("charge.refunded", **CHARGE, metadata=TAGS, refunded=False, amount_refunded=100),
        event_body("charge.refunded", **CHARGE, metadata={}, refunded=True, amount_refunded=4200),
        event_body("refund.updated", **REFUND, metadata={}, status="succeeded"),
        event_body("refund.updated", **REFUND, metadata=TAGS, status="pending"),
        event_body("refund.failed", **{**REFUND, "payment_intent": None}, metadata={}, status="failed"),
        event_body("charge.dispute.created", **{**DISPUTE, "payment_intent": None}, status="needs_response"),
        event_body("charge.dispute.closed", **DISPUTE, status="some new status"),
        event_body("charge.dispute.updated", **DISPUTE, status="under_review"),
        event_body("customer.created", id="cus_1", email=BUYER),
        b'{"id": "evt_1", "object": "v2.core.event", "type": "v1.billing.meter.no_meter_found"}',
    ],
    ids=lambda body: json.loads(body)["type"],
)
def test_an_unrelated_webhook_event_carries_no_result(body: bytes) -> None:
    assert verify(sign(body)) == Notice(id="evt_1", result=None)


def test_a_full_refund_is_reported_if_it_names_our_payment() -> None:
    notice = Notice(id="evt_1", result=PaymentResult.REFUNDED, payment="py_1", amount=4200, currency="EUR")
    for body in (
        event_body("charge.refunded", **CHARGE, metadata=TAGS, refunded=True, amount_refunded=4200),
        event_body("refund.updated", **REFUND, metadata=TAGS, status="succeeded"),
    ):
        assert verify(sign(body)) == notice


@pytest.mark.parametrize("kind", ["refund.updated", "refund.failed", "charge.refund.updated"])
@pytest.mark.parametrize("status", ["failed", "canceled"])
def test_a_refund_that_fails_later_is_reported_once(kind: str, status: str) -> None:
    """The events have ids of their own, and the failure has one."""
    ours = verify(sign(event_body(kind, **REFUND, metadata=TAGS, status=status)))
    assert ours == Notice(id="re_1:failed", result=PaymentResult.REFUND_FAILED, payment="py_1")
    # The merchant made this one at Stripe, so it names only the intent.
    other = verify(sign(event_body(kind, **REFUND, metadata={}, status=status)))
    assert other == Notice(id="re_1:failed", result=PaymentResult.REFUND_FAILED, ref="pi_1")


@pytest.mark.parametrize(
    ("kind", "status", "result"),
    [
        ("created", "needs_response", PaymentResult.DISPUTED),
        ("created", "warning_needs_response", PaymentResult.DISPUTED),
        ("funds_withdrawn", "needs_response", PaymentResult.DISPUTED),
        ("closed", "won", PaymentResult.DISPUTE_WON),
        ("closed", "warning_closed", PaymentResult.DISPUTE_WON),
        ("closed", "lost", PaymentResult.DISPUTE_LOST),
    ],
)
def test_each_step_of_a_dispute_is_reported_once(kind: str, status: str, result: PaymentResult) -> None:
    notice = verify(sign(event_body(f"charge.dispute.{kind}", **DISPUTE, status=status)))
    assert notice == Notice(id=f"dp_1:{result}", result=result, ref="pi_1")


def test_the_payment_of_an_intent_is_found_at_stripe(stripe: StripeSessions) -> None:
    ref = start(stripe)
    stripe.pay(ref)
    intent = stripe.sessions[ref]["payment_intent"]
    assert run_with_provider(stripe.url, lambda provider: provider.find_payment(intent)) == "py_1"
    stripe.intents[intent]["metadata"] = {}
    assert run_with_provider(stripe.url, lambda provider: provider.find_payment(intent)) is None
    with pytest.raises(ProviderRefusedError):
        run_with_provider(stripe.url, lambda provider: provider.find_payment("pi_unknown"))


def test_a_payment_can_be_started_captured_and_refunded(stripe: StripeSessions) -> None:
    async def run(provider: Stripe) -> None:
        ref = (await provider.start(checkout_request())).ref
        assert await provider.look_up(ref) == OPEN
        notices = [provider.verify(*signed) for signed in stripe.pay(ref)]
        assert {(notice.result, notice.payment, notice.amount) for notice in notices} == {
            (PaymentResult.CAPTURED, "py_1", 4200)
        }
        assert await provider.close(ref) == PAID
        await provider.refund(ref, "refund-py_1")
        await provider.refund(ref, "refund-py_1")
        notice = provider.verify(*stripe.event("charge.refunded", stripe.latest_charge(ref)))
        assert (notice.result, notice.payment, notice.amount) == (PaymentResult.REFUNDED, "py_1", 4200)

    run_with_provider(stripe.url, run)
    assert len(stripe.refunds) == 1


# With localstripe, an independent implementation: intents, refunds and notices.


@pytest.fixture(scope="module")
def local() -> Iterator[LocalStripe]:
    with running_localstripe() as stripe:
        yield stripe


def test_an_intent_is_open_until_it_is_paid_or_cancelled(local: LocalStripe) -> None:
    async def run(provider: Stripe) -> None:
        paid, over = local.create_intent(), local.create_intent()
        assert await provider.look_up(paid) == await provider.look_up(over) == OPEN
        await asyncio.to_thread(local.post, f"/v1/payment_intents/{paid}/confirm")
        assert await provider.look_up(paid) == PAID
        assert await provider.close(paid) == PAID
        assert await provider.close(over) == FAILED
        assert await provider.look_up(over) == FAILED
        assert await provider.close(over) == FAILED

    run_with_provider(local.url, run, LOCAL_KEY)


def test_an_intent_is_refunded_once_even_under_two_keys(local: LocalStripe) -> None:
    async def run(provider: Stripe) -> None:
        for key in ("refund-1", "refund-1", "refund-2"):
            await provider.refund(paid, key)

    paid = local.create_intent(confirm=True)
    run_with_provider(local.url, run, LOCAL_KEY)
    (created,) = local.list_refunds(paid)
    assert (created["amount"], created["metadata"]) == (4200, TAGS)


def test_a_refusal_by_localstripe_is_reported_as_a_refusal(local: LocalStripe) -> None:
    with pytest.raises(ProviderRefusedError):
        run_with_provider(local.url, lambda provider: provider.refund("pi_unknown", "refund-1"), LOCAL_KEY)
    with pytest.raises(ProviderRefusedError):
        run_with_provider(local.url, lambda provider: provider.close("pi_unknown"), LOCAL_KEY)


@pytest.mark.parametrize("key", ["pk_test_12345", "sk_"])
def test_a_bad_api_key_is_a_temporary_failure(local: LocalStripe, key: str) -> None:
    paid = local.create_intent(confirm=True)
    with pytest.raises(ProviderError, match="AuthenticationError"):
        run_with_provider(local.url, lambda provider: provider.look_up(paid), key)
    with pytest.raises(ProviderError, match="AuthenticationError"):
        run_with_provider(local.url, lambda provider: provider.refund(paid, "refund-1"), key)
    assert local.list_refunds(paid) == []


@contextmanager
def running_webhook_inbox() -> Iterator[tuple[str, list[SignedRequest]]]:
    """The URL of a server that accepts any POST, and the requests it received."""
    received: list[SignedRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(SignedRequest({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep the test output clean."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_only_notices_signed_with_our_secret_are_accepted(local: LocalStripe) -> None:
    with running_webhook_inbox() as (url, received):
        local.post("/_config/webhooks/ours", url=url, secret=SECRET)
        paid, declined = local.create_intent(confirm=True), local.create_intent(card="4000000000000341")
        with pytest.raises(AssertionError, match="card_declined"):
            local.post(f"/v1/payment_intents/{declined}/confirm")
        wait_until(lambda: {paid, declined} <= _by_intent(received).keys(), 30)
        local.post("/_config/webhooks/ours", url=url, secret="whsec_of_somebody_else")
        forged = local.create_intent(confirm=True)
        wait_until(lambda: forged in _by_intent(received), 30)
    notice = verify(_by_intent(received)[paid])
    assert notice == Notice(id=notice.id, result=PaymentResult.CAPTURED, payment="py_1", amount=4200, currency="EUR")
    assert verify(_by_intent(received)[declined]).result is None
    with pytest.raises(NoticeError):
        verify(_by_intent(received)[forged])


def _by_intent(received: list[SignedRequest]) -> dict[str, SignedRequest]:
    return {json.loads(signed.body)["data"]["object"]["id"]: signed for signed in received}
