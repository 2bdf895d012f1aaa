"""The sandbox is a faithful gateway: its books are always right, and it signs its notices and repeats them until they
arrive."""

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


class Stage:
    """The sandbox, its books, and the shop it tells."""

    def __init__(self, pool: db.Pool, shop: MerchantServer) -> None:
        self.pool = pool
        self.shop = shop
        self.sandbox = Sandbox(db.Database(pool), SECRET, shop.url)

    async def move_clock(self, seconds: int) -> None:
        async with self.pool.acquire() as connection:
            await shift_clock(connection, seconds)

    async def now(self) -> datetime:
        at: datetime = await self.pool.fetchval("SELECT holdfast_now()")
        return at

    async def refunds(self) -> int:
        count: int = await self.pool.fetchval("SELECT count(*) FROM sandbox_refund")
        return count


@asynccontextmanager
async def stage(database: str, routes: Sequence[BaseRoute] = ()) -> AsyncIterator[Stage]:
    pool = await db.create_pool(database, 8)
    shop = MerchantServer()
    try:
        async with shop.serve(routes):
            yield Stage(pool, shop)
    finally:
        await pool.close()


def sign(body: bytes, *, id_: str = "msg_1", seconds: str | None = None, key: bytes = KEY) -> dict[str, str]:
    """As the standard says, and without the library that the product uses."""
    seconds = seconds or str(int(time.time()))
    digest = hmac.digest(key, f"{id_}.{seconds}.".encode() + body, hashlib.sha256)
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": id_, "webhook-timestamp": seconds, "webhook-signature": signature}


def notice_body(kind: str = "payment.succeeded", **changes: Any) -> bytes:
    data = {"provider_ref": REF, "amount": 3000, "currency": "EUR", **changes}
    return json.dumps({"type": kind, "data": data}).encode()


def verify(headers: dict[str, str], body: bytes) -> Notice:
    return Sandbox(NO_DATABASE, SECRET, "http://127.0.0.1").verify(headers, body)


def test_the_sandbox_is_a_provider() -> None:
    provider: Provider = Sandbox(NO_DATABASE, SECRET, "http://127.0.0.1")
    assert provider is not None


@async_test
async def test_a_repeated_payment_request_returns_the_same_payment(database: str) -> None:
    async with stage(database) as at:
        started = await asyncio.gather(*(at.sandbox.start(checkout_request()) for _ in range(8)))
        assert set(started) == {StartedCheckout(REF, f"{at.shop.url}/sandbox/checkout/{REF}")}
        await at.sandbox.act(REF, Action.PAY)
        assert await at.sandbox.start(checkout_request()) == started[0]
        assert await at.sandbox.look_up(REF) == PAID
        assert await at.pool.fetchval("SELECT count(*) FROM sandbox_charge") == 1


@pytest.mark.parametrize(
    ("action", "standing", "news"),
    [
        (Action.PAY, PAID, [PaymentResult.CAPTURED]),
        (Action.FAIL, ENDED, [PaymentResult.FAILED]),
        (Action.PAY_TWICE, PAID, [PaymentResult.CAPTURED, PaymentResult.CAPTURED]),
    ],
)
@async_test
async def test_the_buyers_action_is_recorded_at_once_and_sends_a_notice(
    database: str, action: Action, standing: ProviderStatus, news: list[PaymentResult]
) -> None:
    async with stage(database) as at:
        await at.sandbox.start(checkout_request())
        assert await at.sandbox.look_up(REF) == OPEN
        await at.sandbox.act(REF, action)
        assert await at.sandbox.look_up(REF) == standing
        assert await at.sandbox.send_due() == len(news)
        assert [notice.result for notice in at.shop.notices] == news
        assert len({notice.id for notice in at.shop.notices}) == len(news)
        for notice in at.shop.notices:
            assert (notice.ref, notice.payment, notice.amount, notice.currency) == (REF, PAYMENT, 3000, "EUR")
        assert await at.sandbox.send_due() == 0


@async_test
async def test_the_two_notices_of_one_payment_are_due_at_the_same_moment(database: str) -> None:
    async with stage(database) as at:
        await at.sandbox.start(checkout_request())
        await at.sandbox.act(REF, Action.PAY_TWICE)
        moments = await at.pool.fetch("SELECT due_at FROM sandbox_notice")
        assert len(moments) == 2
        assert len({row["due_at"] for row in moments}) == 1


@async_test
async def test_a_closed_checkout_cannot_be_paid_and_a_paid_one_cannot_be_closed(database: str) -> None:
    async with stage(database) as at:
        await at.sandbox.start(checkout_request())
        assert await at.sandbox.close(REF) == ENDED
        assert await at.sandbox.look_up(REF) == ENDED
        with pytest.raises(ProviderRefusedError, match="The charge is closed"):
            await at.sandbox.act(REF, Action.PAY)
        assert await at.sandbox.look_up(REF) == ENDED
        other = await at.sandbox.start(checkout_request("pay_other"))
        await at.sandbox.act(other.ref, Action.PAY)
        assert await at.sandbox.close(other.ref) == PAID
        assert await at.sandbox.send_due() == 1


@async_test
async def test_paying_and_closing_at_once_has_one_winner_that_both_learn(database: str) -> None:
    async with stage(database) as at:
        for number in range(40):
            ref = (await at.sandbox.start(checkout_request(f"pay_{number}"))).ref
            race = [at.sandbox.act(ref, Action.PAY), at.sandbox.close(ref)]
            paid, closed = await asyncio.gather(*race, return_exceptions=True)
            refused = isinstance(paid, ProviderRefusedError)
            assert closed == (ENDED if refused else PAID)
            assert await at.sandbox.look_up(ref) == closed


@async_test
async def test_a_buyer_who_presses_pay_many_times_at_once_pays_once(database: str) -> None:
    async with stage(database) as at:
        await at.sandbox.start(checkout_request())
        pressed = [at.sandbox.act(REF, action) for action in (Action.PAY, Action.PAY_LATE, Action.PAY_TWICE) * 3]
        outcomes = await asyncio.gather(*pressed, return_exceptions=True)
        assert sum(isinstance(outcome, ProviderRefusedError) for outcome in outcomes) == len(outcomes) - 1


@async_test
async def test_a_late_payment_is_captured_after_the_holds_end_although_it_was_closed(database: str) -> None:
    async with stage(database) as at:
        await at.sandbox.start(checkout_request())
        await at.sandbox.act(REF, Action.PAY_LATE, 600)
        assert await at.sandbox.look_up(REF) == OPEN
        await at.move_clock(HOUR + 300)
        assert await at.sandbox.close(REF) == ENDED
        assert await at.sandbox.send_due() == 0
        await at.move_clock(HOUR + 601)
        assert await at.sandbox.look_up(REF) == PAID
        assert await at.sandbox.close(REF) == PAID
        assert await at.sandbox.send_due() == 1
        assert [notice.result for notice in at.shop.notices] == [PaymentResult.CAPTURED]
        assert await at.sandbox.look_up(REF) == PAID


@async_test
async def test_a_late_payment_stays_captured_while_the_shop_is_unreachable(database: str) -> None:
    async with stage(database) as at:
        await at.sandbox.start(checkout_request())
        await at.sandbox.act(REF, Action.PAY_LATE, 600)
        await at.move_clock(HOUR + 601)
        at.shop.answers = [500]
        assert await at.sandbox.send_due() == 0
        assert await at.sandbox.look_up(REF) == PAID
        await at.sandbox.refund(REF, "key")
        assert await at.refunds() == 1


@pytest.mark.parametrize("expires_in_seconds", [None, -HOUR])
@async_test
async def test_a_late_payment_without_a_hold_arrives_after_now(database: str, expires_in_seconds: int | None) -> None:
    end = None if expires_in_seconds is None else datetime.now(UTC) + timedelta(seconds=expires_in_seconds)
    async with stage(database) as at:
        await at.sandbox.start(checkout_request(expires_at=end))
        await at.sandbox.act(REF, Action.PAY_LATE, 10)
        await at.move_clock(11)
        assert await at.sandbox.send_due() == 1


@async_test
async def test_a_second_payment_is_refused_while_a_late_one_is_pending(database: str) -> None:
    async with stage(database) as at:
        await at.sandbox.start(checkout_request())
        await at.sandbox.act(REF, Action.PAY_LATE, 10)
        with pytest.raises(ProviderRefusedError, match="The charge is open"):
            await at.sandbox.act(REF, Action.PAY)


@async_test
async def test_a_silent_gateway_answers_nothing_and_sends_nothing(database: str) -> None:
    async with stage(database) as at:
        started = await at.sandbox.start(checkout_request())
        await at.sandbox.act(REF, Action.NEVER_ANSWER)
        for question in (at.sandbox.look_up(REF), at.sandbox.close(REF), at.sandbox.refund(REF, "key")):
            with pytest.raises(ProviderError):
                await question
        await at.move_clock(HOUR * 2)
        assert await at.sandbox.send_due() == 0
        assert await at.sandbox.start(checkout_request()) == started


@async_test
async def test_a_payment_that_the_gateway_never_saw_is_refused(database: str) -> None:
    async with stage(database) as at:
        calls = (at.sandbox.look_up, at.sandbox.close)
        for question in (*(call("sbx_none") for call in calls), at.sandbox.refund("sbx_none", "key")):
            with pytest.raises(ProviderRefusedError):
                await question
        with pytest.raises(ProviderRefusedError):
            await at.sandbox.act("sbx_none", Action.PAY)


@async_test
async def test_a_refund_is_made_once_for_each_key(database: str) -> None:
    async with stage(database) as at:
        await at.sandbox.start(checkout_request())
        await at.sandbox.act(REF, Action.PAY)
        await asyncio.gather(*(at.sandbox.refund(REF, "first") for _ in range(6)))
        assert await at.refunds() == 1
        await at.sandbox.refund(REF, "second")
        assert await at.refunds() == 2


@async_test
async def test_a_key_is_good_for_one_payment(database: str) -> None:
    async with stage(database) as at:
        refs = [(await at.sandbox.start(checkout_request(payment))).ref for payment in ("pay_a", "pay_b")]
        for ref in refs:
            await at.sandbox.act(ref, Action.PAY)
        await at.sandbox.refund(refs[0], "key")
        with pytest.raises(ProviderRefusedError, match="another payment"):
            await at.sandbox.refund(refs[1], "key")
        assert await at.refunds() == 1


@pytest.mark.parametrize("action", [None, Action.FAIL, Action.PAY_LATE])
@async_test
async def test_a_payment_settled_in_the_providers_name_can_be_refunded(database: str, action: Action | None) -> None:
    async with stage(database) as at:
        await at.sandbox.start(checkout_request())
        if action:
            await at.sandbox.act(REF, action, 10)
        await at.sandbox.refund(REF, "key")
        assert await at.refunds() == 1


@async_test
async def test_a_notice_that_is_not_taken_is_sent_again_later_and_later_until_it_is(database: str) -> None:
    async with stage(database) as at:
        await at.sandbox.start(checkout_request())
        await at.sandbox.act(REF, Action.PAY)
        at.shop.answers = [500, 404, 302]
        later = 0
        for seconds in map(int, RETRIES.waits_seconds[:3]):
            before = await at.now()
            assert await at.sandbox.send_due() == 0
            due_at = await at.pool.fetchval("SELECT due_at FROM sandbox_notice")
            assert before <= due_at - timedelta(seconds=seconds) <= await at.now()
            later += seconds
            await at.move_clock(later)
        assert at.shop.answers == []
        assert await at.sandbox.send_due() == 1
        await at.move_clock(HOUR * 24)
        assert await at.sandbox.send_due() == 0
        assert len(at.shop.notices) == 1


@async_test
async def test_an_unreachable_shop_gets_its_notice_later(database: str) -> None:
    async with stage(database) as at:
        nowhere = Sandbox(db.Database(at.pool), SECRET, f"http://127.0.0.1:{free_port()}")
        await nowhere.start(checkout_request())
        await nowhere.act(REF, Action.PAY)
        assert await nowhere.send_due() == 0
        await at.move_clock(int(RETRIES.waits_seconds[0]))
        assert await at.sandbox.send_due() == 1


@async_test
async def test_senders_that_work_at_once_send_every_notice_once(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "CLAIM_MAX", 10)
    async with stage(database) as at:
        for number in range(30):
            await at.sandbox.start(checkout_request(f"pay_{number}"))
            await at.sandbox.act(f"sbx_{number}", Action.PAY)
        sent = await asyncio.gather(*(at.sandbox.send_due() for _ in range(6)))
        while at_last := await at.sandbox.send_due():
            sent.append(at_last)
        assert sum(sent) == 30
        assert sorted(notice.id for notice in at.shop.notices) == sorted(f"msg_paid_sbx_{n}" for n in range(30))


@async_test
async def test_the_next_sender_sends_what_a_dead_one_had_leased(database: str) -> None:
    async with stage(database) as at:
        await at.sandbox.start(checkout_request())
        await at.sandbox.act(REF, Action.PAY)
        assert len(await at.pool.fetch(*sql.sandbox.claim_notices(claim_max=20, lease_seconds=LEASE_SECONDS))) == 1
        await at.move_clock(int(LEASE_SECONDS) - 10)
        assert await at.sandbox.send_due() == 0
        await at.move_clock(int(LEASE_SECONDS) + 10)
        assert await at.sandbox.send_due() == 1
        assert [notice.result for notice in at.shop.notices] == [PaymentResult.CAPTURED]


def test_a_signed_notice_is_understood() -> None:
    body = notice_body("payment.succeeded", payment=PAYMENT, card="one more field")
    known = Notice(id="msg_1", result=PaymentResult.CAPTURED, ref=REF, payment=PAYMENT, amount=3000, currency="EUR")
    assert verify(sign(body), body) == known
    failed = notice_body("payment.failed")
    assert verify(sign(failed), failed).result is PaymentResult.FAILED


def test_one_valid_signature_of_several_is_enough() -> None:
    """As after a change of the secret."""
    body = notice_body()
    headers = sign(body)
    other = sign(body, key=b"another")["webhook-signature"]
    assert verify({**headers, "webhook-signature": f"{other} {headers['webhook-signature']}"}, body).id == "msg_1"


@pytest.mark.parametrize("body", [b'{"type": "payout.made"}', b'{"type": "refund.made", "data": {"amount": "much"}}'])
def test_an_unrelated_notice_carries_no_result(body: bytes) -> None:
    assert verify(sign(body), body) == Notice(id="msg_1", result=None)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
@pytest.mark.parametrize(
    "text", [None, "", " ", "msg_2", "v1", "v1,", ",", "v1,%%%", "v1,ä", "v1a,AAAA", "\ud800", "1"]
)
def test_a_header_that_was_left_out_or_changed_is_refused(name: str, text: str | None) -> None:
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
def test_another_body_than_the_signed_one_is_refused(body: bytes) -> None:
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
def test_a_time_is_taken_in_one_form_only_whatever_was_signed(form: str) -> None:
    """The library reads it as a number and would sign the whole seconds, so that several texts had one signature."""
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
def test_a_signed_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(NoticeError):
        verify(sign(body), body)


def test_a_notice_sent_again_under_a_second_id_header_keeps_the_id_that_was_signed() -> None:
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
def test_anything_sent_without_the_key_is_refused(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(NoticeError):
        verify(headers, body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(kind=st.sampled_from(["payment.succeeded", "payment.failed"]), data=JSON)
def test_anything_signed_is_understood_or_refused(kind: str, data: Any) -> None:
    body = json.dumps({"type": kind, "data": data}).encode()
    with pytest.raises(NoticeError):
        verify(sign(body), body)
