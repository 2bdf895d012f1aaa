"""The sandbox behaves like a real gateway: its records are always right, and it signs its notices and resends them
until they arrive."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.routing import BaseRoute

from holdfast import sql
from holdfast.core.payment import PaymentResult
from holdfast.payments import sandbox
from holdfast.payments.provider import (
    Notice,
    NoticeError,
    Provider,
    ProviderError,
    ProviderRefusedError,
    ProviderStatus,
    StartedCheckout,
)
from holdfast.payments.sandbox import LEASE_SECONDS, RETRIES, Action, Sandbox
from holdfast.runtime import db
from tests.support.engine_harness import async_test, shift_clock
from tests.support.harness import free_port
from tests.support.merchant_server import HOUR, KEY, NO_DATABASE, PAYMENT, SECRET, MerchantServer, checkout_request

REF = "sbx_0190c7a1"
PAID = ProviderStatus(PaymentResult.CAPTURED, 3000, "EUR")
ENDED = ProviderStatus(PaymentResult.FAILED, 3000, "EUR")
OPEN = ProviderStatus(None)


class SandboxHarness:
    """The sandbox, its database, and the merchant that receives its notices."""

    def __init__(self, pool: db.Pool, merchant: MerchantServer) -> None:
        self.pool = pool
        self.merchant = merchant
        self.sandbox = Sandbox(db.Database(pool), SECRET, merchant.url)

    async def move_clock(self, seconds: int) -> None:
        async with self.pool.acquire() as connection:
            await shift_clock(connection, seconds)

    async def now(self) -> datetime:
        moment: datetime = await self.pool.fetchval("SELECT holdfast_now()")
        return moment

    async def count_refunds(self) -> int:
        count: int = await self.pool.fetchval("SELECT count(*) FROM sandbox_refund")
        return count


@asynccontextmanager
async def sandbox_harness(database: str, routes: Sequence[BaseRoute] = ()) -> AsyncIterator[SandboxHarness]:
    pool = await db.create_pool(database, 8)
    merchant = MerchantServer()
    try:
        async with merchant.serve(routes):
            yield SandboxHarness(pool, merchant)
    finally:
        await pool.close()


def sign(body: bytes, *, id_: str = "msg_1", seconds: str | None = None, key: bytes = KEY) -> dict[str, str]:
    """Sign as the standard says, without the library that the product uses."""
    seconds = seconds or str(int(time.time()))
    digest = hmac.digest(key, f"{id_}.{seconds}.".encode() + body, hashlib.sha256)
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": id_, "webhook-timestamp": seconds, "webhook-signature": signature}


def notice_body(kind: str = "payment.succeeded", **changes: Any) -> bytes:
    data = {"provider_ref": REF, "amount": 3000, "currency": "EUR", **changes}
    return json.dumps({"type": kind, "data": data}).encode()


def verify(headers: dict[str, str], body: bytes) -> Notice:
    return Sandbox(NO_DATABASE, SECRET, "http://127.0.0.1").verify(headers, body)


def test_the_sandbox_implements_the_provider_protocol() -> None:
    provider: Provider = Sandbox(NO_DATABASE, SECRET, "http://127.0.0.1")
    assert provider is not None


@async_test
async def test_a_repeated_checkout_request_returns_the_same_charge(database: str) -> None:
    async with sandbox_harness(database) as harness:
        started = await asyncio.gather(*(harness.sandbox.start(checkout_request()) for _ in range(8)))
        assert set(started) == {StartedCheckout(REF, f"{harness.merchant.url}/sandbox/checkout/{REF}")}
        await harness.sandbox.act(REF, Action.PAY)
        assert await harness.sandbox.start(checkout_request()) == started[0]
        assert await harness.sandbox.look_up(REF) == PAID
        assert await harness.pool.fetchval("SELECT count(*) FROM sandbox_charge") == 1


@pytest.mark.parametrize(
    ("action", "status", "results"),
    [
        (Action.PAY, PAID, [PaymentResult.CAPTURED]),
        (Action.FAIL, ENDED, [PaymentResult.FAILED]),
        (Action.PAY_TWICE, PAID, [PaymentResult.CAPTURED, PaymentResult.CAPTURED]),
    ],
)
@async_test
async def test_the_buyers_action_is_recorded_at_once_and_sends_a_notice(
    database: str, action: Action, status: ProviderStatus, results: list[PaymentResult]
) -> None:
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request())
        assert await harness.sandbox.look_up(REF) == OPEN
        await harness.sandbox.act(REF, action)
        assert await harness.sandbox.look_up(REF) == status
        assert await harness.sandbox.send_due() == len(results)
        assert [notice.result for notice in harness.merchant.notices] == results
        assert len({notice.id for notice in harness.merchant.notices}) == len(results)
        for notice in harness.merchant.notices:
            assert (notice.ref, notice.payment, notice.amount, notice.currency) == (REF, PAYMENT, 3000, "EUR")
        assert await harness.sandbox.send_due() == 0


@async_test
async def test_the_two_notices_of_one_payment_are_due_at_the_same_moment(database: str) -> None:
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request())
        await harness.sandbox.act(REF, Action.PAY_TWICE)
        moments = await harness.pool.fetch("SELECT due_at FROM sandbox_notice")
        assert len(moments) == 2
        assert len({row["due_at"] for row in moments}) == 1


@async_test
async def test_a_closed_checkout_cannot_be_paid_and_a_paid_one_cannot_be_closed(database: str) -> None:
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request())
        assert await harness.sandbox.close(REF) == ENDED
        assert await harness.sandbox.look_up(REF) == ENDED
        with pytest.raises(ProviderRefusedError, match="The charge is closed"):
            await harness.sandbox.act(REF, Action.PAY)
        assert await harness.sandbox.look_up(REF) == ENDED
        other = await harness.sandbox.start(checkout_request("pay_other"))
        await harness.sandbox.act(other.ref, Action.PAY)
        assert await harness.sandbox.close(other.ref) == PAID
        assert await harness.sandbox.send_due() == 1


@async_test
async def test_a_simultaneous_payment_and_closing_agree_on_the_result(database: str) -> None:
    async with sandbox_harness(database) as harness:
        for number in range(40):
            ref = (await harness.sandbox.start(checkout_request(f"pay_{number}"))).ref
            race = [harness.sandbox.act(ref, Action.PAY), harness.sandbox.close(ref)]
            paid, closed = await asyncio.gather(*race, return_exceptions=True)
            refused = isinstance(paid, ProviderRefusedError)
            assert closed == (ENDED if refused else PAID)
            assert await harness.sandbox.look_up(ref) == closed


@async_test
async def test_a_buyer_who_pays_many_times_at_once_pays_once(database: str) -> None:
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request())
        attempts = [harness.sandbox.act(REF, action) for action in (Action.PAY, Action.PAY_LATE, Action.PAY_TWICE) * 3]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(outcome, ProviderRefusedError) for outcome in outcomes) == len(outcomes) - 1


@async_test
async def test_a_late_payment_is_captured_even_if_the_checkout_was_closed(database: str) -> None:
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request())
        await harness.sandbox.act(REF, Action.PAY_LATE, 600)
        assert await harness.sandbox.look_up(REF) == OPEN
        await harness.move_clock(HOUR + 300)
        assert await harness.sandbox.close(REF) == ENDED
        assert await harness.sandbox.send_due() == 0
        await harness.move_clock(HOUR + 601)
        assert await harness.sandbox.look_up(REF) == PAID
        assert await harness.sandbox.close(REF) == PAID
        assert await harness.sandbox.send_due() == 1
        assert [notice.result for notice in harness.merchant.notices] == [PaymentResult.CAPTURED]
        assert await harness.sandbox.look_up(REF) == PAID


@async_test
async def test_a_late_payment_stays_captured_while_the_merchant_is_unreachable(database: str) -> None:
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request())
        await harness.sandbox.act(REF, Action.PAY_LATE, 600)
        await harness.move_clock(HOUR + 601)
        harness.merchant.answers = [500]
        assert await harness.sandbox.send_due() == 0
        assert await harness.sandbox.look_up(REF) == PAID
        await harness.sandbox.refund(REF, "key")
        assert await harness.count_refunds() == 1


@pytest.mark.parametrize("expires_in_seconds", [None, -HOUR])
@async_test
async def test_a_late_payment_without_a_future_deadline_is_counted_from_now(
    database: str, expires_in_seconds: int | None
) -> None:
    end = None if expires_in_seconds is None else datetime.now(UTC) + timedelta(seconds=expires_in_seconds)
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request(expires_at=end))
        await harness.sandbox.act(REF, Action.PAY_LATE, 10)
        await harness.move_clock(11)
        assert await harness.sandbox.send_due() == 1


@async_test
async def test_a_second_payment_is_refused_while_a_late_one_is_pending(database: str) -> None:
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request())
        await harness.sandbox.act(REF, Action.PAY_LATE, 10)
        with pytest.raises(ProviderRefusedError, match="The charge is open"):
            await harness.sandbox.act(REF, Action.PAY)


@async_test
async def test_a_silent_gateway_answers_no_call_and_sends_no_notice(database: str) -> None:
    async with sandbox_harness(database) as harness:
        started = await harness.sandbox.start(checkout_request())
        await harness.sandbox.act(REF, Action.NEVER_ANSWER)
        for call in (harness.sandbox.look_up(REF), harness.sandbox.close(REF), harness.sandbox.refund(REF, "key")):
            with pytest.raises(ProviderError):
                await call
        await harness.move_clock(HOUR * 2)
        assert await harness.sandbox.send_due() == 0
        assert await harness.sandbox.start(checkout_request()) == started


@async_test
async def test_an_unknown_charge_is_refused(database: str) -> None:
    async with sandbox_harness(database) as harness:
        methods = (harness.sandbox.look_up, harness.sandbox.close)
        for call in (*(method("sbx_none") for method in methods), harness.sandbox.refund("sbx_none", "key")):
            with pytest.raises(ProviderRefusedError):
                await call
        with pytest.raises(ProviderRefusedError):
            await harness.sandbox.act("sbx_none", Action.PAY)


@async_test
async def test_a_refund_is_made_once_for_each_key(database: str) -> None:
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request())
        await harness.sandbox.act(REF, Action.PAY)
        await asyncio.gather(*(harness.sandbox.refund(REF, "first") for _ in range(6)))
        assert await harness.count_refunds() == 1
        await harness.sandbox.refund(REF, "second")
        assert await harness.count_refunds() == 2


@async_test
async def test_a_refund_key_is_valid_for_one_payment(database: str) -> None:
    async with sandbox_harness(database) as harness:
        refs = [(await harness.sandbox.start(checkout_request(payment))).ref for payment in ("pay_a", "pay_b")]
        for ref in refs:
            await harness.sandbox.act(ref, Action.PAY)
        await harness.sandbox.refund(refs[0], "key")
        with pytest.raises(ProviderRefusedError, match="another payment"):
            await harness.sandbox.refund(refs[1], "key")
        assert await harness.count_refunds() == 1


@pytest.mark.parametrize("action", [None, Action.FAIL, Action.PAY_LATE])
@async_test
async def test_an_unpaid_charge_can_be_refunded(database: str, action: Action | None) -> None:
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request())
        if action:
            await harness.sandbox.act(REF, action, 10)
        await harness.sandbox.refund(REF, "key")
        assert await harness.count_refunds() == 1


@async_test
async def test_a_refused_notice_is_sent_again_with_growing_waits(database: str) -> None:
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request())
        await harness.sandbox.act(REF, Action.PAY)
        harness.merchant.answers = [500, 404, 302]
        later = 0
        for seconds in map(int, RETRIES.waits_seconds[:3]):
            before = await harness.now()
            assert await harness.sandbox.send_due() == 0
            due_at = await harness.pool.fetchval("SELECT due_at FROM sandbox_notice")
            assert before <= due_at - timedelta(seconds=seconds) <= await harness.now()
            later += seconds
            await harness.move_clock(later)
        assert harness.merchant.answers == []
        assert await harness.sandbox.send_due() == 1
        await harness.move_clock(HOUR * 24)
        assert await harness.sandbox.send_due() == 0
        assert len(harness.merchant.notices) == 1


@async_test
async def test_an_unreachable_merchant_gets_its_notice_later(database: str) -> None:
    async with sandbox_harness(database) as harness:
        nowhere = Sandbox(db.Database(harness.pool), SECRET, f"http://127.0.0.1:{free_port()}")
        await nowhere.start(checkout_request())
        await nowhere.act(REF, Action.PAY)
        assert await nowhere.send_due() == 0
        await harness.move_clock(int(RETRIES.waits_seconds[0]))
        assert await harness.sandbox.send_due() == 1


@async_test
async def test_simultaneous_senders_send_every_notice_once(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "CLAIM_MAX", 10)
    async with sandbox_harness(database) as harness:
        for number in range(30):
            await harness.sandbox.start(checkout_request(f"pay_{number}"))
            await harness.sandbox.act(f"sbx_{number}", Action.PAY)
        sent = await asyncio.gather(*(harness.sandbox.send_due() for _ in range(6)))
        while more := await harness.sandbox.send_due():
            sent.append(more)
        assert sum(sent) == 30
        assert sorted(notice.id for notice in harness.merchant.notices) == sorted(
            f"msg_paid_sbx_{n}" for n in range(30)
        )


@async_test
async def test_the_next_sender_sends_a_notice_whose_lease_has_ended(database: str) -> None:
    async with sandbox_harness(database) as harness:
        await harness.sandbox.start(checkout_request())
        await harness.sandbox.act(REF, Action.PAY)
        assert len(await harness.pool.fetch(*sql.sandbox.claim_notices(claim_max=20, lease_seconds=LEASE_SECONDS))) == 1
        await harness.move_clock(int(LEASE_SECONDS) - 10)
        assert await harness.sandbox.send_due() == 0
        await harness.move_clock(int(LEASE_SECONDS) + 10)
        assert await harness.sandbox.send_due() == 1
        assert [notice.result for notice in harness.merchant.notices] == [PaymentResult.CAPTURED]


def test_a_signed_notice_is_decoded() -> None:
    body = notice_body("payment.succeeded", payment=PAYMENT, card="one more field")
    expected = Notice(id="msg_1", result=PaymentResult.CAPTURED, ref=REF, payment=PAYMENT, amount=3000, currency="EUR")
    assert verify(sign(body), body) == expected
    failed = notice_body("payment.failed")
    assert verify(sign(failed), failed).result is PaymentResult.FAILED


def test_one_valid_signature_of_several_is_enough() -> None:
    """This happens after a change of the secret."""
    body = notice_body()
    headers = sign(body)
    other = sign(body, key=b"another")["webhook-signature"]
    assert verify({**headers, "webhook-signature": f"{other} {headers['webhook-signature']}"}, body).id == "msg_1"


@pytest.mark.parametrize("body", [b'{"type": "payout.made"}', b'{"type": "refund.made", "data": {"amount": "much"}}'])
def test_an_unrelated_notice_carries_no_result(body: bytes) -> None:
    assert verify(sign(body), body) == Notice(id="msg_1", result=None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            (name, text)
            for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
            for text in (None, "", "1")
        ),
        ("webhook-id", "msg_2"),
        *(("webhook-signature", text) for text in (" ", "v1", "v1,", ",", "v1,%%%", "v1,ä", "v1a,AAAA", "\ud800")),
    ],
)
def test_a_missing_or_changed_header_is_refused(name: str, text: str | None) -> None:
    headers = {**sign(notice_body()), name: text}
    with pytest.raises(NoticeError):
        verify({name: value for name, value in headers.items() if value is not None}, notice_body())


@pytest.mark.parametrize(
    "body",
    [
        notice_body(amount=1),
        notice_body("payment.failed"),
        notice_body() + b" ",
        b"",
        b"\xff\xfe",
        b"null",
        notice_body().replace(b"EUR", b"EU\0"),
    ],
)
def test_a_changed_body_is_refused(body: bytes) -> None:
    with pytest.raises(NoticeError):
        verify(sign(notice_body()), body)


def test_a_notice_signed_with_another_key_is_refused() -> None:
    with pytest.raises(NoticeError):
        verify(sign(notice_body(), key=b"another"), notice_body())


@pytest.mark.parametrize("seconds", [-301, 301, -HOUR, HOUR, 10**10])
def test_a_notice_from_long_ago_or_from_the_future_is_refused(seconds: int) -> None:
    with pytest.raises(NoticeError):
        verify(sign(notice_body(), seconds=str(int(time.time()) + seconds)), notice_body())


@pytest.mark.parametrize("form", ["{}.0", "{}.9", "0{}", "+{}", " {}", "{}\n", "{}e0", "1_{}"])
def test_a_timestamp_is_accepted_in_one_form_only(form: str) -> None:
    """The library parses it as a number and signs whole seconds, so several texts would share one signature."""
    now = str(int(time.time()))
    text = form.format(now)
    with pytest.raises(NoticeError):
        verify(sign(notice_body(), seconds=text), notice_body())
    with pytest.raises(NoticeError):
        verify({**sign(notice_body(), seconds=now), "webhook-timestamp": text}, notice_body())


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "9" * 400, "-1", "٣", "now"])
def test_an_invalid_timestamp_is_refused(text: str) -> None:
    with pytest.raises(NoticeError):
        verify(sign(notice_body(), seconds=text), notice_body())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b'{"type": 7}',
        b'{"type": "payment.succeeded"}',
        b'{"type": "payment.succeeded", "data": null}',
        notice_body(amount="3000"),
        notice_body(amount=30.5),
        notice_body(amount=-1),
        notice_body(amount=2**63),
        notice_body(amount=10**4000),
        notice_body(amount=True),
        notice_body(amount=None),
        notice_body(currency="eur"),
        notice_body(currency="EUR\n"),
        notice_body(currency=978),
        notice_body(provider_ref=7),
        notice_body(provider_ref=""),
        notice_body(provider_ref="sbx_\0"),
        notice_body(provider_ref="\ud800"),
        notice_body(provider_ref="x" * 1000),
        b"\xff\xfe{}",
        notice_body().decode().encode("utf-16"),
        b"[" * 100_000,
        b'{"type": "payment.succeeded", "data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"type": "payment.succeeded", "amount": ' + b"9" * 5000 + b"}",
    ],
)
def test_an_unreadable_body_is_refused_even_if_it_is_signed(body: bytes) -> None:
    with pytest.raises(NoticeError):
        verify(sign(body), body)


def test_a_notice_with_a_second_id_header_keeps_the_signed_id() -> None:
    """Otherwise an eavesdropper could replay a notice any number of times."""
    raw = [(name.encode(), value.encode()) for name, value in sign(notice_body()).items()]
    forged = (b"webhook-id", b"msg_forged")
    assert _id_or_none(Headers(raw=[*raw, forged])) in ("msg_1", None)
    assert _id_or_none(Headers(raw=[forged, *raw])) in ("msg_1", None)


def _id_or_none(headers: Headers) -> str | None:
    try:
        return Sandbox(NO_DATABASE, SECRET, "http://127.0.0.1").verify(headers, notice_body()).id
    except NoticeError:
        return None


@settings(deadline=None)
@given(
    headers=st.dictionaries(st.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature"]), st.text()),
    body=st.binary(),
)
def test_any_unsigned_notice_is_refused(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(NoticeError):
        verify(headers, body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(kind=st.sampled_from(["payment.succeeded", "payment.failed"]), data=JSON)
def test_any_signed_body_with_wrong_data_is_refused(kind: str, data: Any) -> None:
    body = json.dumps({"type": kind, "data": data}).encode()
    with pytest.raises(NoticeError):
        verify(sign(body), body)
