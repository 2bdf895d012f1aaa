"""The inbox verifies a provider's notice, stores it once, answers, and acts on it: at once, or as soon as the obstacle
is gone."""

import asyncio
import json
import os
import secrets
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from holdfast import sql
from holdfast.payments.inbox import LEASE_SECONDS, MATCH_TIMEOUT
from holdfast.payments.provider import NoticeError
from holdfast.runtime import ids
from tests.support.engine_harness import async_test, lane_connection, poll_until
from tests.support.harness import Org, Server, post_hold, publish_event, query, running_server, wait_until
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.payment_harness import PaymentHarness, payment_harness
from tests.support.resources import (
    payment_state,
    post_notice,
    post_payment,
    post_raw_notice,
    reviewed_event,
    start_payment,
)

SECONDS = 20
MEBIBYTE = 1024 * 1024


def booking_of(client: httpx.Client, payment: dict[str, Any]) -> str:
    status: str = expect_ok(client.get(f"/v1/bookings/{payment['booking']}"))["status"]
    return status


def notices(server: Server) -> list[Any]:
    found: list[Any] = query(server.database_url, "SELECT * FROM payment_notice")
    return found


# Over HTTP


def test_a_notice_has_its_effect_before_it_is_answered(admin: httpx.Client) -> None:
    payment = start_payment(admin)
    assert expect_ok(post_notice(admin, payment)) == {"stored": True}
    assert payment_state(admin, payment) == ("succeeded", "fulfilled")
    assert booking_of(admin, payment) == "confirmed"


def test_a_repeated_notice_is_stored_once_and_always_accepted(server: Server, admin: httpx.Client) -> None:
    payment = start_payment(admin)
    id_ = secrets.token_hex(8)
    answers = [expect_ok(post_notice(admin, payment, id_=id_)) for _ in range(5)]
    assert answers == [{"stored": True}, *[{"stored": False}] * 4]
    assert [notice["id"] for notice in notices(server)].count(id_) == 1
    assert payment_state(admin, payment) == ("succeeded", "fulfilled")


def test_the_same_result_under_another_id_changes_nothing(server: Server, admin: httpx.Client) -> None:
    payment = start_payment(admin)
    expect_ok(post_notice(admin, payment))
    facts = query(server.database_url, "SELECT number FROM journal WHERE event_id = $1", event_of(payment))
    assert expect_ok(post_notice(admin, payment)) == {"stored": True}
    assert query(server.database_url, "SELECT number FROM journal WHERE event_id = $1", event_of(payment)) == facts
    assert payment_state(admin, payment) == ("succeeded", "fulfilled")


@pytest.mark.parametrize("kinds", [("failed", "succeeded"), ("succeeded", "failed"), ("failed", "succeeded", "failed")])
def test_the_order_of_a_failure_and_a_success_does_not_matter(admin: httpx.Client, kinds: tuple[str, ...]) -> None:
    payment = start_payment(admin)
    for kind in kinds:
        expect_ok(post_notice(admin, payment, f"payment.{kind}"))
    assert payment_state(admin, payment) == ("succeeded", "fulfilled")
    assert booking_of(admin, payment) == "confirmed"


def test_a_failure_is_no_reason_to_give_up_the_hold(admin: httpx.Client) -> None:
    payment = start_payment(admin)
    expect_ok(post_notice(admin, payment, "payment.failed"))
    assert payment_state(admin, payment) == ("failed", None)
    assert booking_of(admin, payment) == "held"
    again = expect_ok(post_payment(admin, payment["booking"]), 201)
    expect_ok(post_notice(admin, again))
    assert booking_of(admin, payment) == "confirmed"


@pytest.mark.parametrize("wrong", [{"amount": 1}, {"amount": 0}, {"amount": 10**12}, {"currency": "USD"}])
def test_a_wrong_sum_is_never_confirmed(admin: httpx.Client, wrong: dict[str, Any]) -> None:
    payment = start_payment(admin)
    expect_ok(post_notice(admin, payment, **wrong))
    assert payment_state(admin, payment) == ("review", "review")
    assert booking_of(admin, payment) == "held"
    expect_ok(post_notice(admin, payment))
    assert payment_state(admin, payment) == ("review", "review")
    assert booking_of(admin, payment) == "held"


def forged(payment: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Ways to send what a provider has not sent, or not now."""
    body = json.dumps(
        {
            "type": "payment.succeeded",
            "data": {name: payment[name] for name in ("provider_ref", "amount", "currency")},
        }
    )
    now = datetime.now(UTC)
    return {
        "old": {"body": body, "at": now - timedelta(minutes=6)},
        "of the future": {"body": body, "at": now + timedelta(minutes=6)},
        "no JSON": {"body": "what?"},
        "no object": {"body": "[]"},
        "nothing": {"body": ""},
        "no sum": {"body": json.dumps({"type": "payment.succeeded", "data": {"provider_ref": "sbx_1"}})},
        "a sum that is none": {"body": body.replace(str(payment["amount"]), '"all"')},
        "a sum below nothing": {"body": body.replace(str(payment["amount"]), "-1")},
        "a sum beyond everything": {"body": body.replace(str(payment["amount"]), str(10**30))},
    }


@pytest.mark.parametrize("kind", list(forged({"provider_ref": "x", "amount": 1, "currency": "EUR"})))
def test_a_notice_that_is_not_the_providers_is_refused_and_not_stored(
    server: Server, admin: httpx.Client, kind: str
) -> None:
    payment = start_payment(admin)
    before = len(notices(server))
    given = forged(payment)[kind]
    expect_error(post_raw_notice(admin, given["body"], "msg_forged", given.get("at")), 400, "invalid_signature")
    assert len(notices(server)) == before
    assert payment_state(admin, payment) == ("started", None)


def test_a_signature_is_good_for_its_own_body_id_and_time_only(server: Server, admin: httpx.Client) -> None:
    payment = start_payment(admin)
    sent: list[httpx.Request] = []
    admin.event_hooks["request"].append(sent.append)
    try:
        expect_ok(post_notice(admin, payment, "payment.failed"))
    finally:
        admin.event_hooks["request"].clear()
    (genuine,) = sent
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    headers = {name: genuine.headers[name] for name in names}
    body = genuine.content
    before = len(notices(server))
    later = str(int(headers["webhook-timestamp"]) + 1)
    for changed_body, changed in [
        (body.replace(b"failed", b"succeeded"), {}),
        (body, {"webhook-id": "msg_other"}),
        (body, {"webhook-timestamp": later}),
        (body, {"webhook-signature": "v1,AAAA"}),
        (body, {"webhook-signature": ""}),
        (body, {"webhook-id": ""}),
        (body, {"webhook-timestamp": "soon"}),
    ]:
        answer = admin.post("/v1/webhooks/sandbox", content=changed_body, headers={**headers, **changed})
        expect_error(answer, 400, "invalid_signature")
    expect_error(admin.post("/v1/webhooks/sandbox", content=body), 400, "invalid_signature")
    assert len(notices(server)) == before
    assert payment_state(admin, payment) == ("failed", None)


def test_an_unrelated_notice_is_stored_and_ignored(server: Server, admin: httpx.Client) -> None:
    expect_ok(post_raw_notice(admin, json.dumps({"type": "payout.paid", "data": {}}), "msg_else"))
    (kept,) = [notice for notice in notices(server) if notice["id"] == "msg_else"]
    assert (kept["result"], kept["due_at"]) == (None, None)


def test_a_provider_that_is_not_set_up_has_no_address(admin: httpx.Client) -> None:
    for name in ("stripe", "receipt", "nobody", "SANDBOX"):
        expect_error(admin.post(f"/v1/webhooks/{name}", content=b"{}"), 404, "not_found")


def test_a_notice_is_no_larger_than_a_mebibyte(server: Server, admin: httpx.Client) -> None:
    payment = start_payment(admin)
    before = len(notices(server))
    data = {name: payment[name] for name in ("provider_ref", "amount", "currency")}
    body = json.dumps({"type": "payment.succeeded", "data": data})
    expect_ok(post_raw_notice(admin, body.ljust(MEBIBYTE), "msg_as_large_as_may_be"))
    assert payment_state(admin, payment) == ("succeeded", "fulfilled")
    with server.client() as provider:
        expect_error(post_raw_notice(provider, body.ljust(MEBIBYTE + 1), "msg_larger"), 413, "payload_too_large")
    assert len(notices(server)) == before + 1


def test_an_event_that_others_keep_locked_does_not_keep_a_provider_waiting(server: Server, admin: httpx.Client) -> None:
    """The provider gets its answer after two seconds, and the effect follows when the lock is released."""
    payment = start_payment(admin)

    async def tell_while_locked() -> int:
        async with lane_connection(server.database_url) as other:
            async with other.transaction():
                await other.execute("SELECT FROM event WHERE id = $1 FOR UPDATE", event_of(payment))
                answer = await asyncio.to_thread(post_notice, admin, payment)
                assert await other.fetchval("SELECT status FROM payment WHERE id = $1", id_of(payment)) == "started"
                return answer.status_code

    assert asyncio.run(tell_while_locked()) == 200
    wait_until(lambda: payment_state(admin, payment) == ("succeeded", "fulfilled"), SECONDS)


def event_of(payment: dict[str, Any]) -> bytes:
    named = ids.parse_payment_id(payment["id"])
    assert named is not None
    return named[0]


def id_of(payment: dict[str, Any]) -> bytes:
    named = ids.parse_payment_id(payment["id"])
    assert named is not None
    return named[1]


def test_a_process_that_is_killed_between_keeping_and_acting_leaves_it_to_the_worker(database: str) -> None:
    """The event is locked while the notice comes, so that it is kept and cannot be acted on; then everything that
    could act on it is killed."""
    with running_server(database, workers=1, worker=True) as server:
        org = Org(database)
        with server.client(org.headers()) as admin:
            payment = start_payment(admin)

            async def kill_while_locked() -> None:
                async with lane_connection(database) as other, lane_connection(database) as observer:
                    async with other.transaction():
                        await other.execute("SELECT FROM event WHERE id = $1 FOR UPDATE", event_of(payment))
                        telling = asyncio.create_task(asyncio.to_thread(post_notice, admin, payment))
                        await poll_until(lambda: _is_kept(observer))
                        for pid in server.api_pids():
                            os.kill(pid, signal.SIGKILL)
                        with pytest.raises(httpx.TransportError):
                            await telling
                    assert await observer.fetchval("SELECT status FROM payment") == "started"

            asyncio.run(kill_while_locked())
            wait_until(lambda: len(server.api_pids()) == 1, SECONDS)
        with server.client(org.headers()) as admin:
            wait_until(lambda: payment_state(admin, payment) == ("succeeded", "fulfilled"), SECONDS)


async def _is_kept(observer: Any) -> bool:
    return bool(await observer.fetchval("SELECT count(*) FROM payment_notice") == 1)


def test_the_worker_acts_on_a_stored_notice_that_nobody_acted_on(product: Server) -> None:
    with product.client(Org(product.database_url).headers()) as admin:
        payment, id_ = start_payment(admin), secrets.token_hex(8)
        query(
            product.database_url,
            "INSERT INTO payment_notice (provider, id, body, result, provider_ref, amount, currency, due_at) "
            "VALUES ('sandbox', $1, '', 'captured', $2, $3, $4, holdfast_now() - interval '1 second')",
            id_, payment["provider_ref"], payment["amount"], payment["currency"],
        )  # fmt: skip
        wait_until(lambda: payment_state(admin, payment) == ("succeeded", "fulfilled"), SECONDS)

        def stored() -> tuple[Any, ...]:
            (row,) = query(product.database_url, "SELECT due_at, handled_as FROM payment_notice WHERE id = $1", id_)
            return tuple(row)

        wait_until(lambda: stored() == (None, "succeeded"), SECONDS)


def test_two_simultaneous_copies_of_a_notice_count_once(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, reviewed_event())
    payments = [
        expect_ok(
            post_payment(admin, expect_ok(post_hold(admin, event, items=[{"seat": f"A-{number}"}]), 201)["id"]), 201
        )
        for number in range(1, 6)
    ]

    async def both(payment: dict[str, Any]) -> list[httpx.Response]:
        id_ = secrets.token_hex(8)
        return list(await asyncio.gather(*(asyncio.to_thread(post_notice, admin, payment, id_=id_) for _ in range(2))))

    for payment in payments:
        answers = [expect_ok(answer)["stored"] for answer in asyncio.run(both(payment))]
        assert sorted(answers) == [False, True]
        assert payment_state(admin, payment) == ("succeeded", "fulfilled")


# Without HTTP, with a provider that carries our own id.


@async_test
async def test_a_notice_before_its_reference_is_known_is_matched_by_our_id(database: str) -> None:
    async with payment_harness(database) as stage:
        booking = await stage.hold("A-1")
        money = await stage.start_payment(booking, at_provider=False)
        assert await stage.deliver_notice(money, ref="gw_1", payment=stage.payment_text(money))
        assert await stage.payment_state(money) == ("succeeded", "fulfilled")
        assert await stage.status(booking) == "confirmed"


@async_test
async def test_a_notice_that_names_only_a_reference_waits_until_that_is_known(database: str) -> None:
    async with payment_harness(database) as stage:
        booking = await stage.hold("A-1")
        money = await stage.start_payment(booking, at_provider=False)
        assert await stage.deliver_notice(money, ref="gw_1")
        assert await stage.payment_state(money) == ("started", None)
        await stage.advance_clock(2)
        assert await stage.inbox.run_once() == 1
        assert await stage.payment_state(money) == ("started", None)
        await stage.connection.execute("UPDATE payment SET provider_ref = 'gw_1'")
        await stage.advance_clock(3)
        assert await stage.inbox.run_once() == 1
        assert await stage.payment_state(money) == ("succeeded", "fulfilled")
        await stage.advance_clock(3600)
        assert await stage.inbox.run_once() == 0


@async_test
async def test_a_payment_settled_before_its_reference_was_known_can_be_refunded(database: str) -> None:
    """The notice itself says how the provider calls the payment."""
    async with payment_harness(database) as stage:
        booking = await stage.hold("A-1")
        money = await stage.start_payment(booking, at_provider=False)
        await stage.advance_clock(3600)
        assert await stage.deliver_notice(money, ref="gw_1", payment=stage.payment_text(money))
        assert await stage.payment_state(money) == ("refund_due", None)
        assert await stage.refunds.run_once() == 1
        assert list(stage.gateway.refunds.values()) == ["gw_1"]


@async_test
async def test_an_unknown_reference_raises_an_alarm_after_ten_minutes(database: str) -> None:
    async with payment_harness(database) as stage:
        money = await stage.start_payment(await stage.hold("A-1"))
        with capture_logs() as logs:
            assert await stage.deliver_notice(money, ref="gw_nobodys")
        (kept,) = await stage.notices()
        assert (kept["result"], kept["provider_ref"], kept["handled_as"]) == ("captured", "gw_nobodys", None)
        tries = 0
        for _ in range(int(MATCH_TIMEOUT.total_seconds()) // 30 - 1):
            await stage.advance_clock(30)
            tries += await stage.inbox.run_once()
        assert tries >= 5
        (kept,) = await stage.notices()
        assert kept["due_at"] is not None
        assert [entry for entry in logs if entry["log_level"] == "error"] == []
        await stage.advance_clock(91)
        with capture_logs() as logs:
            assert await stage.inbox.run_once() == 1
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [("notice_unmatched", "error")]
        (kept,) = await stage.notices()
        assert (kept["due_at"], kept["handled_as"]) == (None, "unmatched")
        await stage.advance_clock(3600)
        assert await stage.inbox.run_once() == 0
        assert await stage.payment_state(money) == ("started", None)


@async_test
async def test_a_notice_that_names_two_payments_is_about_neither(database: str) -> None:
    async with payment_harness(database) as stage:
        one, other = [await stage.start_payment(await stage.hold(seat, user=seat)) for seat in ("A-1", "A-2")]
        assert await stage.deliver_notice(one, payment=stage.payment_text(other))
        for money in (one, other):
            assert await stage.payment_state(money) == ("started", None)
        (kept,) = await stage.notices()
        assert kept["due_at"] is not None
        await stage.advance_clock(MATCH_TIMEOUT.total_seconds() + 1)
        with capture_logs() as logs:
            await stage.inbox.run_once()
        assert [entry["event"] for entry in logs] == ["notice_unmatched"]
        for money in (one, other):
            assert await stage.payment_state(money) == ("started", None)


@pytest.mark.parametrize("named", ["both", "id", "reference", "a reference and an id that is none"])
@async_test
async def test_a_notice_is_known_by_either_name(database: str, named: str) -> None:
    async with payment_harness(database) as stage:
        money = await stage.start_payment(await stage.hold("A-1"))
        names: dict[str, Any] = {
            "both": {"payment": stage.payment_text(money)},
            "id": {"payment": stage.payment_text(money), "ref": None},
            "reference": {},
            "a reference and an id that is none": {"payment": "order 17"},
        }
        assert await stage.deliver_notice(money, **names[named])
        assert await stage.payment_state(money) == ("succeeded", "fulfilled")


@async_test
async def test_one_provider_cannot_settle_the_payment_of_another(database: str) -> None:
    async with payment_harness(database) as stage:
        money = await stage.start_payment(await stage.hold("A-1"))
        stage.connect_providers({"gateway": stage.gateway, "other": stage.gateway})
        body = json.dumps(
            {
                "id": "1",
                "result": "captured",
                "ref": money.provider_ref,
                "payment": stage.payment_text(money),
                "amount": money.amount,
                "currency": money.currency,
            }
        ).encode()
        assert await stage.inbox.receive("other", {"signed": "by the gateway"}, body)
        assert await stage.payment_state(money) == ("started", None)


@async_test
async def test_an_unsigned_notice_is_not_stored(database: str) -> None:
    async with payment_harness(database) as stage:
        with pytest.raises(NoticeError):
            await stage.inbox.receive("gateway", {}, b"{}")
        assert await stage.notices() == []


@async_test
async def test_a_notice_that_a_busy_engine_refuses_is_processed_later(database: str) -> None:
    """A closing engine says "busy", as a full one does."""
    async with payment_harness(database) as stage:
        money = await stage.start_payment(await stage.hold("A-1"))
        await stage.engine.close()
        assert await stage.deliver_notice(money)
        assert await stage.payment_state(money) == ("started", None)
        await stage.restart_engine()
        assert await stage.inbox.run_once() == 0
        await stage.advance_clock(LEASE_SECONDS + 1)
        assert await stage.inbox.run_once() == 1
        assert await stage.payment_state(money) == ("succeeded", "fulfilled")
        assert await stage.inbox.run_once() == 0


@async_test
async def test_two_workers_do_not_take_up_the_same_notice(database: str) -> None:
    async with payment_harness(database) as stage:
        for number in range(10):
            await stage.deliver_notice(
                await stage.start_payment(await stage.hold(user=f"u-{number}")), ref=f"gw_{number}"
            )
        await stage.advance_clock(2)
        taken = await asyncio.gather(*(stage.inbox.run_once() for _ in range(4)))
        assert sum(taken) == 10


@async_test
async def test_a_worker_that_was_slower_than_its_lease_does_not_revive_a_finished_notice(database: str) -> None:
    async with payment_harness(database) as stage:
        money = await stage.start_payment(await stage.hold("A-1"))
        assert await stage.deliver_notice(money)
        (kept,) = await stage.notices()
        assert kept["due_at"] is None
        await stage.connection.execute(sql.payments.postpone_notice, kept["provider"], kept["id"], 1.0)
        (kept,) = await stage.notices()
        assert kept["due_at"] is None


@async_test
async def test_a_provider_result_counts_even_after_a_long_silence(database: str) -> None:
    """After a day of silence the payment is under review, and the booking has long ended."""
    async with payment_harness(database) as stage:
        booking = await stage.hold("A-1")
        money = await stage.start_payment(booking)
        await _into_review(stage, money)
        assert await stage.deliver_notice(money)
        assert await stage.payment_state(money) == ("refund_due", None)
        (kept,) = await stage.notices()
        assert kept["handled_as"] == "refund_due"


async def _into_review(stage: PaymentHarness, money: Any) -> None:
    stage.gateway.results[money.provider_ref] = None
    await stage.connection.execute("UPDATE payment SET provider = 'gone'")
    await stage.advance_clock(2 * 86_400)
    await stage.reconciler.run_once()
    await stage.connection.execute("UPDATE payment SET provider = 'gateway'")
    assert await stage.payment_state(money) == ("review", "review")
