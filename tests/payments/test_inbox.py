"""The inbox verifies a provider's notice, stores it once, answers, and acts on it: at once, or as soon as it can."""

import asyncio
import json
import os
import secrets
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest
from structlog.testing import capture_logs

from holdfast import sql
from holdfast.core.commands import Remedy
from holdfast.core.payment import PaymentResult
from holdfast.core.states import Verb
from holdfast.engine.auditor import audit_event
from holdfast.payments.inbox import LEASE_SECONDS, MATCH_TIMEOUT, QUESTION_TIMEOUT
from holdfast.payments.provider import NoticeError, ProviderError, ProviderRefusedError
from holdfast.runtime import db, ids
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


def booking_status_of(client: httpx.Client, payment: dict[str, Any]) -> str:
    status: str = expect_ok(client.get(f"/v1/bookings/{payment['booking']}"))["status"]
    return status


def list_notices(server: Server) -> list[Any]:
    found: list[Any] = query(server.database_url, "SELECT * FROM payment_notice")
    return found


# Over HTTP


def test_a_notice_takes_effect_before_it_is_answered(admin: httpx.Client) -> None:
    payment = start_payment(admin)
    assert expect_ok(post_notice(admin, payment)) == {"stored": True}
    assert payment_state(admin, payment) == ("succeeded", "fulfilled")
    assert booking_status_of(admin, payment) == "confirmed"


def test_a_repeated_notice_is_stored_once_and_always_accepted(server: Server, admin: httpx.Client) -> None:
    payment = start_payment(admin)
    id_ = secrets.token_hex(8)
    answers = [expect_ok(post_notice(admin, payment, id_=id_)) for _ in range(5)]
    assert answers == [{"stored": True}, *[{"stored": False}] * 4]
    assert [notice["id"] for notice in list_notices(server)].count(id_) == 1
    assert payment_state(admin, payment) == ("succeeded", "fulfilled")


def test_the_same_result_under_another_id_changes_nothing(server: Server, admin: httpx.Client) -> None:
    payment = start_payment(admin)
    expect_ok(post_notice(admin, payment))
    entries = query(server.database_url, "SELECT number FROM journal WHERE event_id = $1", event_id_of(payment))
    assert expect_ok(post_notice(admin, payment)) == {"stored": True}
    assert query(server.database_url, "SELECT number FROM journal WHERE event_id = $1", event_id_of(payment)) == entries
    assert payment_state(admin, payment) == ("succeeded", "fulfilled")


@pytest.mark.parametrize("kinds", [("failed", "succeeded"), ("succeeded", "failed"), ("failed", "succeeded", "failed")])
def test_the_order_of_a_failure_and_a_success_does_not_matter(admin: httpx.Client, kinds: tuple[str, ...]) -> None:
    payment = start_payment(admin)
    for kind in kinds:
        expect_ok(post_notice(admin, payment, f"payment.{kind}"))
    assert payment_state(admin, payment) == ("succeeded", "fulfilled")
    assert booking_status_of(admin, payment) == "confirmed"


def test_a_failed_payment_keeps_the_hold(admin: httpx.Client) -> None:
    payment = start_payment(admin)
    expect_ok(post_notice(admin, payment, "payment.failed"))
    assert payment_state(admin, payment) == ("failed", None)
    assert booking_status_of(admin, payment) == "held"
    second = expect_ok(post_payment(admin, payment["booking"]), 201)
    expect_ok(post_notice(admin, second))
    assert booking_status_of(admin, payment) == "confirmed"


@pytest.mark.parametrize("wrong", [{"amount": 1}, {"amount": 0}, {"amount": 10**12}, {"currency": "USD"}])
def test_a_wrong_amount_never_confirms_the_booking(admin: httpx.Client, wrong: dict[str, Any]) -> None:
    payment = start_payment(admin)
    expect_ok(post_notice(admin, payment, **wrong))
    assert payment_state(admin, payment) == ("review", "review")
    assert booking_status_of(admin, payment) == "held"
    expect_ok(post_notice(admin, payment))
    assert payment_state(admin, payment) == ("review", "review")
    assert booking_status_of(admin, payment) == "held"


def bad_notices(payment: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Notices that the provider did not send, or sent at another time."""
    body = json.dumps(
        {
            "type": "payment.succeeded",
            "data": {name: payment[name] for name in ("provider_ref", "amount", "currency")},
        }
    )
    now = datetime.now(UTC)
    return {
        "old": {"body": body, "at": now - timedelta(minutes=6)},
        "from the future": {"body": body, "at": now + timedelta(minutes=6)},
        "not JSON": {"body": "what?"},
        "not an object": {"body": "[]"},
        "empty": {"body": ""},
        "no amount": {"body": json.dumps({"type": "payment.succeeded", "data": {"provider_ref": "sbx_1"}})},
        "an amount that is no number": {"body": body.replace(str(payment["amount"]), '"all"')},
        "a negative amount": {"body": body.replace(str(payment["amount"]), "-1")},
        "a huge amount": {"body": body.replace(str(payment["amount"]), str(10**30))},
    }


@pytest.mark.parametrize("kind", list(bad_notices({"provider_ref": "x", "amount": 1, "currency": "EUR"})))
def test_an_invalid_notice_is_refused_and_not_stored(server: Server, admin: httpx.Client, kind: str) -> None:
    payment = start_payment(admin)
    before = len(list_notices(server))
    notice = bad_notices(payment)[kind]
    expect_error(post_raw_notice(admin, notice["body"], "msg_forged", notice.get("at")), 400, "invalid_signature")
    assert len(list_notices(server)) == before
    assert payment_state(admin, payment) == ("started", None)


def test_a_signature_is_valid_only_for_its_own_body_id_and_time(server: Server, admin: httpx.Client) -> None:
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
    before = len(list_notices(server))
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
    assert len(list_notices(server)) == before
    assert payment_state(admin, payment) == ("failed", None)


def test_an_unrelated_notice_is_stored_and_ignored(server: Server, admin: httpx.Client) -> None:
    expect_ok(post_raw_notice(admin, json.dumps({"type": "payout.paid", "data": {}}), "msg_else"))
    (stored,) = [notice for notice in list_notices(server) if notice["id"] == "msg_else"]
    assert (stored["result"], stored["due_at"]) == (None, None)


def test_a_provider_that_is_not_configured_has_no_webhook(admin: httpx.Client) -> None:
    for name in ("stripe", "receipt", "nobody", "SANDBOX"):
        expect_error(admin.post(f"/v1/webhooks/{name}", content=b"{}"), 404, "not_found")


def test_a_notice_larger_than_a_mebibyte_is_refused(server: Server, admin: httpx.Client) -> None:
    payment = start_payment(admin)
    before = len(list_notices(server))
    data = {name: payment[name] for name in ("provider_ref", "amount", "currency")}
    body = json.dumps({"type": "payment.succeeded", "data": data})
    expect_ok(post_raw_notice(admin, body.ljust(MEBIBYTE), "msg_as_large_as_may_be"))
    assert payment_state(admin, payment) == ("succeeded", "fulfilled")
    with server.client() as provider:
        expect_error(post_raw_notice(provider, body.ljust(MEBIBYTE + 1), "msg_larger"), 413, "payload_too_large")
    assert len(list_notices(server)) == before + 1


def test_a_locked_event_does_not_keep_the_provider_waiting(server: Server, admin: httpx.Client) -> None:
    """The provider gets its answer after two seconds, and the effect follows when the lock is released."""
    payment = start_payment(admin)

    async def post_while_locked() -> int:
        async with lane_connection(server.database_url) as other:
            async with other.transaction():
                await other.execute("SELECT FROM event WHERE id = $1 FOR UPDATE", event_id_of(payment))
                answer = await asyncio.to_thread(post_notice, admin, payment)
                assert (
                    await other.fetchval("SELECT status FROM payment WHERE id = $1", payment_id_of(payment))
                    == "started"
                )
                return answer.status_code

    assert asyncio.run(post_while_locked()) == 200
    wait_until(lambda: payment_state(admin, payment) == ("succeeded", "fulfilled"), SECONDS)


def event_id_of(payment: dict[str, Any]) -> bytes:
    parsed = ids.parse_payment_id(payment["id"])
    assert parsed is not None
    return parsed[0]


def payment_id_of(payment: dict[str, Any]) -> bytes:
    parsed = ids.parse_payment_id(payment["id"])
    assert parsed is not None
    return parsed[1]


def test_the_worker_acts_on_a_notice_whose_process_was_killed(database: str) -> None:
    """While the event is locked, the notice is stored but cannot take effect. Then every API process is killed."""
    with running_server(database, workers=1, worker=True) as server:
        org = Org(database)
        with server.client(org.headers()) as admin:
            payment = start_payment(admin)

            async def kill_while_locked() -> None:
                async with lane_connection(database) as other, lane_connection(database) as observer:
                    async with other.transaction():
                        await other.execute("SELECT FROM event WHERE id = $1 FOR UPDATE", event_id_of(payment))
                        posting = asyncio.create_task(asyncio.to_thread(post_notice, admin, payment))
                        await poll_until(lambda: _is_stored(observer))
                        for pid in server.api_pids():
                            os.kill(pid, signal.SIGKILL)
                        with pytest.raises(httpx.TransportError):
                            await posting
                    assert await observer.fetchval("SELECT status FROM payment") == "started"

            asyncio.run(kill_while_locked())
            wait_until(lambda: len(server.api_pids()) == 1, SECONDS)
        with server.client(org.headers()) as admin:
            wait_until(lambda: payment_state(admin, payment) == ("succeeded", "fulfilled"), SECONDS)


async def _is_stored(observer: Any) -> bool:
    return bool(await observer.fetchval("SELECT count(*) FROM payment_notice") == 1)


def test_the_worker_acts_on_an_unprocessed_notice(product: Server) -> None:
    with product.client(Org(product.database_url).headers()) as admin:
        payment, id_ = start_payment(admin), secrets.token_hex(8)
        query(
            product.database_url,
            "INSERT INTO payment_notice (provider, id, body, result, provider_ref, amount, currency, due_at) "
            "VALUES ('sandbox', $1, '', 'captured', $2, $3, $4, holdfast_now() - interval '1 second')",
            id_, payment["provider_ref"], payment["amount"], payment["currency"],
        )  # fmt: skip
        wait_until(lambda: payment_state(admin, payment) == ("succeeded", "fulfilled"), SECONDS)

        def stored_state() -> tuple[Any, ...]:
            (row,) = query(product.database_url, "SELECT due_at, handled_as FROM payment_notice WHERE id = $1", id_)
            return tuple(row)

        wait_until(lambda: stored_state() == (None, "succeeded"), SECONDS)


def test_two_simultaneous_copies_of_a_notice_count_once(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, reviewed_event())
    payments = [
        expect_ok(
            post_payment(admin, expect_ok(post_hold(admin, event, items=[{"seat": f"A-{number}"}]), 201)["id"]), 201
        )
        for number in range(1, 6)
    ]

    async def post_twice(payment: dict[str, Any]) -> list[httpx.Response]:
        id_ = secrets.token_hex(8)
        return list(await asyncio.gather(*(asyncio.to_thread(post_notice, admin, payment, id_=id_) for _ in range(2))))

    for payment in payments:
        answers = [expect_ok(answer)["stored"] for answer in asyncio.run(post_twice(payment))]
        assert sorted(answers) == [False, True]
        assert payment_state(admin, payment) == ("succeeded", "fulfilled")


# Without HTTP, with a provider that returns our own payment id.


@async_test
async def test_a_notice_that_arrives_before_its_reference_is_matched_by_our_id(database: str) -> None:
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking, at_provider=False)
        assert await harness.deliver_notice(payment, ref="gw_1", payment=harness.payment_text(payment))
        assert await harness.payment_state(payment) == ("succeeded", "fulfilled")
        assert await harness.status(booking) == "confirmed"


@async_test
async def test_a_notice_with_an_unknown_reference_waits_until_it_is_known(database: str) -> None:
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking, at_provider=False)
        assert await harness.deliver_notice(payment, ref="gw_1")
        assert await harness.payment_state(payment) == ("started", None)
        await harness.advance_clock(2)
        assert await harness.notice_retries.run_once() == 1
        assert await harness.payment_state(payment) == ("started", None)
        await harness.connection.execute("UPDATE payment SET provider_ref = 'gw_1'")
        await harness.advance_clock(3)
        assert await harness.notice_retries.run_once() == 1
        assert await harness.payment_state(payment) == ("succeeded", "fulfilled")
        await harness.advance_clock(3600)
        assert await harness.notice_retries.run_once() == 0


@async_test
async def test_a_payment_settled_before_its_reference_was_known_can_be_refunded(database: str) -> None:
    """The notice carries the provider's reference."""
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking, at_provider=False)
        await harness.advance_clock(3600)
        assert await harness.deliver_notice(payment, ref="gw_1", payment=harness.payment_text(payment))
        assert await harness.payment_state(payment) == ("refund_due", None)
        assert await harness.refunds.run_once() == 1
        assert list(harness.gateway.refunds.values()) == ["gw_1"]


@async_test
async def test_an_unknown_reference_raises_an_alarm_after_ten_minutes(database: str) -> None:
    async with payment_harness(database) as harness:
        payment = await harness.start_payment(await harness.hold("A-1"))
        with capture_logs() as logs:
            assert await harness.deliver_notice(payment, ref="gw_nobodys")
        (stored,) = await harness.notices()
        assert (stored["result"], stored["provider_ref"], stored["handled_as"]) == ("captured", "gw_nobodys", None)
        tries = 0
        for _ in range(int(MATCH_TIMEOUT.total_seconds()) // 30 - 1):
            await harness.advance_clock(30)
            tries += await harness.notice_retries.run_once()
        assert tries >= 5
        (stored,) = await harness.notices()
        assert stored["due_at"] is not None
        assert [entry for entry in logs if entry["log_level"] == "error"] == []
        await harness.advance_clock(91)
        with capture_logs() as logs:
            assert await harness.notice_retries.run_once() == 1
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [("notice_unmatched", "error")]
        (stored,) = await harness.notices()
        assert (stored["due_at"], stored["handled_as"]) == (None, "unmatched")
        await harness.advance_clock(3600)
        assert await harness.notice_retries.run_once() == 0
        assert await harness.payment_state(payment) == ("started", None)


@async_test
async def test_a_notice_that_names_two_payments_settles_neither(database: str) -> None:
    async with payment_harness(database) as harness:
        one, other = [await harness.start_payment(await harness.hold(seat, user=seat)) for seat in ("A-1", "A-2")]
        assert await harness.deliver_notice(one, payment=harness.payment_text(other))
        for payment in (one, other):
            assert await harness.payment_state(payment) == ("started", None)
        (stored,) = await harness.notices()
        assert stored["due_at"] is not None
        await harness.advance_clock(MATCH_TIMEOUT.total_seconds() + 1)
        with capture_logs() as logs:
            await harness.notice_retries.run_once()
        assert [entry["event"] for entry in logs] == ["notice_unmatched"]
        for payment in (one, other):
            assert await harness.payment_state(payment) == ("started", None)


@pytest.mark.parametrize("named", ["both", "id", "reference", "a reference and an invalid id"])
@async_test
async def test_a_notice_is_matched_by_our_id_or_by_the_reference(database: str, named: str) -> None:
    async with payment_harness(database) as harness:
        payment = await harness.start_payment(await harness.hold("A-1"))
        names: dict[str, Any] = {
            "both": {"payment": harness.payment_text(payment)},
            "id": {"payment": harness.payment_text(payment), "ref": None},
            "reference": {},
            "a reference and an invalid id": {"payment": "order 17"},
        }
        assert await harness.deliver_notice(payment, **names[named])
        assert await harness.payment_state(payment) == ("succeeded", "fulfilled")


@async_test
async def test_one_provider_cannot_settle_the_payment_of_another(database: str) -> None:
    async with payment_harness(database) as harness:
        payment = await harness.start_payment(await harness.hold("A-1"))
        harness.connect_providers({"gateway": harness.gateway, "other": harness.gateway})
        body = json.dumps(
            {
                "id": "1",
                "result": "captured",
                "ref": payment.provider_ref,
                "payment": harness.payment_text(payment),
                "amount": payment.amount,
                "currency": payment.currency,
            }
        ).encode()
        assert await harness.inbox.receive("other", {"signed": "by the gateway"}, body)
        assert await harness.payment_state(payment) == ("started", None)


@async_test
async def test_an_unsigned_notice_is_not_stored(database: str) -> None:
    async with payment_harness(database) as harness:
        with pytest.raises(NoticeError):
            await harness.inbox.receive("gateway", {}, b"{}")
        assert await harness.notices() == []


@async_test
async def test_a_notice_that_cannot_be_stored_is_not_acknowledged(database: str) -> None:
    async with payment_harness(database) as harness, lane_connection(database) as other:
        payment = await harness.start_payment(await harness.hold())
        async with other.transaction():
            await other.execute("LOCK TABLE payment_notice")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await harness.deliver_notice(payment)
        assert await harness.notices() == []
        assert await harness.deliver_notice(payment)
        assert await harness.payment_state(payment) == ("succeeded", "fulfilled")


@async_test
async def test_a_notice_that_a_busy_engine_refuses_is_processed_later(database: str) -> None:
    """A closing engine says "busy", as a full one does."""
    async with payment_harness(database) as harness:
        payment = await harness.start_payment(await harness.hold("A-1"))
        await harness.engine.close()
        assert await harness.deliver_notice(payment)
        assert await harness.payment_state(payment) == ("started", None)
        await harness.restart_engine()
        assert await harness.notice_retries.run_once() == 0
        await harness.advance_clock(LEASE_SECONDS + 1)
        assert await harness.notice_retries.run_once() == 1
        assert await harness.payment_state(payment) == ("succeeded", "fulfilled")
        assert await harness.notice_retries.run_once() == 0


@async_test
async def test_two_workers_do_not_process_the_same_notice(database: str) -> None:
    async with payment_harness(database) as harness:
        for number in range(10):
            await harness.deliver_notice(
                await harness.start_payment(await harness.hold(user=f"u-{number}")), ref=f"gw_{number}"
            )
        await harness.advance_clock(2)
        taken = await asyncio.gather(*(harness.new_notice_retries().run_once() for _ in range(4)))
        assert sum(taken) == 10


@async_test
async def test_a_worker_slower_than_its_lease_does_not_requeue_a_finished_notice(database: str) -> None:
    async with payment_harness(database) as harness:
        payment = await harness.start_payment(await harness.hold("A-1"))
        assert await harness.deliver_notice(payment)
        (stored,) = await harness.notices()
        assert stored["due_at"] is None
        await harness.connection.execute(sql.payments.postpone_notice, stored["provider"], stored["id"], 1.0, None)
        (stored,) = await harness.notices()
        assert stored["due_at"] is None


@async_test
async def test_a_result_counts_even_after_a_long_silence(database: str) -> None:
    """After a day of silence the payment is under review, and the booking has long ended."""
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking)
        await _move_to_review(harness, payment)
        assert await harness.deliver_notice(payment)
        assert await harness.payment_state(payment) == ("refund_due", None)
        (stored,) = await harness.notices()
        assert stored["handled_as"] == "refund_due"


def alarms(logs: Any) -> list[tuple[str, str | None]]:
    return [(entry["event"], entry.get("reason")) for entry in logs if entry["log_level"] == "error"]


@async_test
async def test_money_that_arrives_after_a_refund_by_hand_raises_an_alarm(database: str) -> None:
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking)
        await _move_to_review(harness, payment)
        await harness.resolve(payment, booking, Remedy.BY_HAND)
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        with capture_logs() as logs:
            assert await harness.deliver_notice(payment)
        assert alarms(logs) == [("payment_needs_a_person", "captured_after_all")]
        assert await harness.payment_state(payment) == ("review", "review")
        await harness.resolve(payment, booking, Remedy.BY_HAND)
        with capture_logs() as logs:
            assert await harness.deliver_notice(payment)
        assert alarms(logs) == []
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        assert await harness.refunds.run_once() == 0
        assert harness.gateway.refunds == {}
        kinds = await harness.journal_kinds(booking)
        assert kinds[-4:] == ["payment.review", "payment.refunded", "payment.review", "payment.refunded"]
        assert (await audit_event(db.Database(harness.pool), harness.event.id)).findings == []


@async_test
async def test_a_wrong_amount_raises_an_alarm(database: str) -> None:
    async with payment_harness(database) as harness:
        payment = await harness.start_payment(await harness.hold("A-1"))
        with capture_logs() as logs:
            assert await harness.deliver_notice(payment, amount=1)
        assert alarms(logs) == [("payment_needs_a_person", "wrong_amount")]


@async_test
async def test_a_refund_that_fails_before_its_worker_recorded_it_stays_in_review(database: str) -> None:
    """The provider accepts the refund, and reports its failure before the worker continues."""
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking)
        await harness.settle(payment, booking)
        await harness.apply(booking, Verb.REFUND)
        refund = harness.gateway.refund

        async def refund_and_report_failure(ref: str, key: str) -> None:
            await refund(ref, key)
            await harness.deliver_notice(payment, PaymentResult.REFUND_FAILED)

        harness.gateway.refund = refund_and_report_failure  # type: ignore[method-assign]
        with capture_logs() as logs:
            assert await harness.refunds.run_once() == 1
        assert alarms(logs) == [("payment_needs_a_person", "refund_failed")]
        assert await harness.payment_state(payment) == ("review", "review")
        assert await harness.refunds.run_once() == 0
        assert len(harness.gateway.refs_of_calls("refund")) == 1


@async_test
async def test_a_notice_about_a_charge_is_matched_by_asking_the_provider(database: str) -> None:
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking)
        await harness.settle(payment, booking)
        harness.gateway.payments_of_charges = {"ch_ours": harness.payment_text(payment), "ch_other": "order 17"}
        with capture_logs() as logs:
            for ref in ("ch_foreign", "ch_other"):
                assert await harness.deliver_notice(payment, PaymentResult.DISPUTED, ref=ref)
        assert alarms(logs) == []
        assert [notice["handled_as"] for notice in await harness.notices()] == ["unrelated"] * 2
        assert await harness.payment_state(payment) == ("succeeded", "fulfilled")
        with capture_logs() as logs:
            assert await harness.deliver_notice(payment, PaymentResult.DISPUTED, ref="ch_ours")
        assert alarms(logs) == [("payment_needs_a_person", "disputed")]
        assert await harness.payment_state(payment) == ("review", "review")
        assert (await harness.row(payment))["provider_ref"] == payment.provider_ref
        assert await harness.status(booking) == "confirmed"
        assert (await audit_event(db.Database(harness.pool), harness.event.id)).findings == []


@async_test
async def test_a_dispute_waits_for_a_provider_that_does_not_answer(database: str) -> None:
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking)
        await harness.settle(payment, booking)
        harness.gateway.payments_of_charges = {"ch_ours": harness.payment_text(payment)}
        harness.gateway.failures["find_payment"] = [ProviderError("down"), ProviderRefusedError("no such charge")]
        assert await harness.deliver_notice(payment, PaymentResult.DISPUTED, ref="ch_ours")
        for seconds in (2 * MATCH_TIMEOUT.total_seconds(), 60):
            assert await harness.payment_state(payment) == ("succeeded", "fulfilled")
            await harness.advance_clock(seconds)
            assert await harness.notice_retries.run_once() == 1
        assert await harness.payment_state(payment) == ("review", "review")


@async_test
async def test_a_dispute_that_nobody_can_match_raises_an_alarm_after_a_day(database: str) -> None:
    async with payment_harness(database) as harness:
        payment = await harness.start_payment(await harness.hold("A-1"))
        harness.gateway.failures["find_payment"] = [ProviderError("down")] * 3
        assert await harness.deliver_notice(payment, PaymentResult.DISPUTED, ref="ch_ours")
        await harness.advance_clock(QUESTION_TIMEOUT.total_seconds() + 1)
        with capture_logs() as logs:
            assert await harness.notice_retries.run_once() == 1
        assert alarms(logs) == [("notice_unmatched", None)]
        assert [notice["handled_as"] for notice in await harness.notices()] == ["unmatched"]


async def _move_to_review(harness: PaymentHarness, payment: Any) -> None:
    harness.gateway.results[payment.provider_ref] = None
    await harness.connection.execute("UPDATE payment SET provider = 'gone'")
    await harness.advance_clock(2 * 86_400)
    await harness.reconciler.run_once()
    await harness.connection.execute("UPDATE payment SET provider = 'gateway'")
    assert await harness.payment_state(payment) == ("review", "review")
