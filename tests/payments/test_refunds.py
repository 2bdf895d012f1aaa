"""A payment that cannot be kept is refunded once: Holdfast retries under one key, and hands what it cannot refund to a
person."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
from structlog.testing import capture_logs

from holdfast.core.booking import Booking
from holdfast.core.commands import Remedy
from holdfast.core.payment import Payment, PaymentResult
from holdfast.core.states import Verb
from holdfast.engine.auditor import audit_all
from holdfast.payments.due_payments import LEASE_SECONDS
from holdfast.payments.provider import ProviderError, ProviderRefusedError
from holdfast.payments.refunds import RETRIES
from holdfast.runtime import db
from tests.support.engine_harness import async_test, lane_connection, poll_until, shift_clock
from tests.support.harness import Org, Server, query, running_server, wait_until
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.payment_harness import PaymentHarness, payment_harness
from tests.support.resources import create_submitted_booking, payment_state, post_notice, post_payment, start_payment

SECONDS = 30
SILENT = 2 * 86_400
WAITS_SECONDS = RETRIES.waits_seconds


async def owed(stage: PaymentHarness, *seats: str, user: str = "u-1") -> tuple[Booking, Payment]:
    """A payment that arrived too late."""
    booking = await stage.hold(*seats, user=user)
    money = await stage.start_payment(booking)
    assert money.provider_ref is not None
    stage.gateway.capture(money.provider_ref)
    await stage.apply(booking, Verb.CANCEL)
    await stage.settle(money, booking)
    assert await stage.payment_state(money) == ("refund_due", None)
    return booking, money


def errors(logs: Any) -> list[str]:
    return [entry["event"] for entry in logs if entry["log_level"] == "error"]


@async_test
async def test_a_refund_happens_at_once_and_once(database: str) -> None:
    async with payment_harness(database) as stage:
        booking, money = await owed(stage)
        assert await stage.refunds.run_once() == 1
        assert await stage.payment_state(money) == ("refunded", "refunded")
        assert stage.gateway.refunds == {f"refund:{stage.payment_text(money)}": money.provider_ref}
        await stage.advance_clock(86_400)
        assert await stage.refunds.run_once() == 0
        assert await stage.journal_kinds(booking) == [
            "held", "payment.started", "cancelled", "payment.refund_due", "payment.refunded"
        ]  # fmt: skip
        assert (await audit_all(db.Database(stage.connection)))[1] == []


@async_test
async def test_a_failed_refund_is_retried_less_and_less_under_the_same_key(database: str) -> None:
    async with payment_harness(database) as stage:
        _, money = await owed(stage)
        stage.gateway.failures["refund"] = [ProviderError("not now")] * len(WAITS_SECONDS)
        for number, seconds in enumerate(WAITS_SECONDS, 1):
            with capture_logs() as logs:
                assert await stage.refunds.run_once() == 1
            assert errors(logs) == []
            row = await stage.row(money)
            assert (row["status"], row["attempts"], row["due_seconds"]) == ("refund_due", number, seconds)
            await stage.advance_clock(seconds - 1)
            assert await stage.refunds.run_once() == 0
            await stage.advance_clock(1)
        assert await stage.refunds.run_once() == 1
        assert await stage.payment_state(money) == ("refunded", "refunded")
        assert stage.gateway.refunds == {f"refund:{stage.payment_text(money)}": money.provider_ref}
        assert list(WAITS_SECONDS) == sorted(WAITS_SECONDS)


@async_test
async def test_the_provider_that_cannot_for_days_is_a_matter_for_a_person(database: str) -> None:
    async with payment_harness(database) as stage:
        _, money = await owed(stage)
        stage.gateway.failures["refund"] = [ProviderError("not now")] * 100
        logged: list[str] = []
        for _ in range(len(WAITS_SECONDS) + 1):
            with capture_logs() as logs:
                assert await stage.refunds.run_once() == 1
            logged += errors(logs)
            await stage.advance_clock(WAITS_SECONDS[-1])
        assert logged == ["refund_needs_a_person"]
        assert await stage.payment_state(money) == ("review", "review")
        assert (await stage.row(money))["reason"] == "provider_unreachable"
        assert await stage.refunds.run_once() == 0
        assert sum(WAITS_SECONDS) > 86_400


@async_test
async def test_the_provider_that_will_not_is_a_matter_for_a_person_at_once(database: str) -> None:
    async with payment_harness(database) as stage:
        booking, money = await owed(stage)
        stage.gateway.failures["refund"] = [ProviderRefusedError("too old")]
        with capture_logs() as logs:
            assert await stage.refunds.run_once() == 1
        assert errors(logs) == ["refund_needs_a_person"]
        (entry,) = [entry for entry in logs if entry["log_level"] == "error"]
        assert (entry["payment"], entry["reason"], entry["detail"]) == (
            stage.payment_text(money),
            "refund_refused",
            "too old",
        )
        assert await stage.payment_state(money) == ("review", "review")
        assert (await stage.row(money))["reason"] == "refund_refused"
        assert (await stage.journal_kinds(booking))[-1] == "payment.review"
        await stage.advance_clock(86_400)
        assert await stage.refunds.run_once() == 0
        assert len(stage.gateway.refs_of_calls("refund")) == 1
        assert (await audit_all(db.Database(stage.connection)))[1] == []


@async_test
async def test_a_person_has_it_tried_again_under_the_same_key_and_from_the_beginning(database: str) -> None:
    async with payment_harness(database) as stage:
        booking, money = await owed(stage)
        stage.gateway.failures["refund after"] = [ProviderRefusedError("who knows")]
        await stage.refunds.run_once()
        assert await stage.payment_state(money) == ("review", "review")
        await stage.resolve(money, booking, Remedy.REFUND)
        row = await stage.row(money)
        assert (row["status"], row["outcome"], row["attempts"], row["due_seconds"]) == ("refund_due", None, 0, 0)
        assert await stage.refunds.run_once() == 1
        assert await stage.payment_state(money) == ("refunded", "refunded")
        assert len(stage.gateway.refunds) == 1
        assert len(stage.gateway.refs_of_calls("refund")) == 2


@async_test
async def test_a_payment_refunded_by_hand_is_not_refunded_again(database: str) -> None:
    async with payment_harness(database) as stage:
        booking, money = await owed(stage)
        await stage.resolve(money, booking, Remedy.REVIEW)
        await stage.resolve(money, booking, Remedy.BY_HAND)
        assert await stage.payment_state(money) == ("refunded", "refunded")
        await stage.advance_clock(86_400)
        assert await stage.refunds.run_once() == 0
        assert stage.gateway.refs_of_calls("refund") == []


@async_test
async def test_stopping_between_the_refund_and_its_record_causes_no_second_refund(database: str) -> None:
    async with payment_harness(database) as stage:
        _, money = await owed(stage)
        stage.gateway.failures["refund after"] = [asyncio.CancelledError()]
        with pytest.raises(asyncio.CancelledError):
            await stage.refunds.run_once()
        assert await stage.payment_state(money) == ("refund_due", None)
        assert await stage.refunds.run_once() == 0
        await stage.advance_clock(LEASE_SECONDS + 1)
        assert await stage.refunds.run_once() == 1
        assert await stage.payment_state(money) == ("refunded", "refunded")
        assert stage.gateway.refunds == {f"refund:{stage.payment_text(money)}": money.provider_ref}
        assert len(stage.gateway.refs_of_calls("refund")) == 2


@async_test
async def test_a_refund_that_a_busy_engine_refuses_is_recorded_later(database: str) -> None:
    async with payment_harness(database) as stage:
        _, money = await owed(stage)
        await stage.engine.close()
        assert await stage.refunds.run_once() == 1
        assert await stage.payment_state(money) == ("refund_due", None)
        await stage.restart_engine()
        await stage.advance_clock(LEASE_SECONDS + 1)
        assert await stage.refunds.run_once() == 1
        assert await stage.payment_state(money) == ("refunded", "refunded")
        assert len(stage.gateway.refunds) == 1


@async_test
async def test_two_workers_do_not_turn_to_the_same_refund(database: str) -> None:
    async with payment_harness(database) as stage:
        for number in range(8):
            await owed(stage, user=f"u-{number}")
        assert sum(await asyncio.gather(*(stage.refunds.run_once() for _ in range(4)))) == 8
        assert len(stage.gateway.refs_of_calls("refund")) == len(stage.gateway.refunds) == 8


@async_test
async def test_a_payment_on_which_the_provider_breaks_holds_up_no_other(database: str) -> None:
    """The provider raises an unexpected error, and the worker survives it."""
    async with payment_harness(database) as stage:
        all_ = [(await owed(stage, user=f"u-{number}"))[1] for number in range(3)]
        stage.gateway.break_on_next_call = True
        for _ in range(3):
            with suppress(RuntimeError):
                await stage.refunds.run_once()
            await stage.advance_clock(LEASE_SECONDS + 1)
        others = [money for money in all_ if money.provider_ref != stage.gateway.broken_ref]
        assert [await stage.payment_state(money) for money in others] == [("refunded", "refunded")] * 2


@async_test
async def test_a_refund_notice_from_the_provider_is_enough(database: str) -> None:
    async with payment_harness(database) as stage:
        _, money = await owed(stage)
        assert await stage.deliver_notice(money, PaymentResult.REFUNDED)
        assert await stage.payment_state(money) == ("refunded", "refunded")
        assert await stage.refunds.run_once() == 0
        assert stage.gateway.refs_of_calls("refund") == []


@async_test
async def test_a_confirmed_booking_ends_when_the_provider_refunds_it_unasked(database: str) -> None:
    async with payment_harness(database) as stage:
        booking = await stage.hold("A-1")
        money = await stage.start_payment(booking)
        await stage.deliver_notice(money)
        assert await stage.deliver_notice(money, PaymentResult.REFUNDED)
        assert await stage.status(booking) == "refunded"
        assert await stage.payment_state(money) == ("refunded", "refunded")
        assert await stage.refunds.run_once() == 0
        assert await stage.connection.fetchval("SELECT count(*) FROM line WHERE live") == 0
        assert (await audit_all(db.Database(stage.connection)))[1] == []


@async_test
async def test_a_refund_waits_for_a_missing_provider_and_then_for_a_person(database: str) -> None:
    async with payment_harness(database) as stage:
        booking, money = await owed(stage)
        stage.connect_providers({})
        with capture_logs() as logs:
            for _ in range(len(WAITS_SECONDS)):
                await stage.refunds.run_once()
                assert (await stage.payment_state(money))[0] == "refund_due"
                await stage.advance_clock(86_400)
            assert errors(logs) == []
            await stage.refunds.run_once()
        assert errors(logs) == ["refund_needs_a_person"]
        assert await stage.payment_state(money) == ("review", "review")
        stage.connect_providers({"gateway": stage.gateway})
        await stage.resolve(money, booking, Remedy.REFUND)
        await stage.refunds.run_once()
        assert await stage.payment_state(money) == ("refunded", "refunded")


@async_test
async def test_a_refund_ordered_after_a_long_silence_comes_to_an_end(database: str) -> None:
    """No notice of the capture ever arrived, and the provider refunds the payment."""
    async with payment_harness(database) as stage:
        booking = await stage.hold("A-1")
        money = await stage.start_payment(booking)
        assert money.provider_ref is not None
        stage.gateway.capture(money.provider_ref)
        stage.gateway.failures["close"] = [ProviderError("silent")] * 100
        await stage.advance_clock(SILENT)
        await stage.reconciler.run_once()
        assert await stage.payment_state(money) == ("review", "review")
        await stage.resolve(money, booking, Remedy.REFUND)
        for _ in range(3):
            await stage.refunds.run_once()
            await stage.advance_clock(LEASE_SECONDS + 1)
        assert len(stage.gateway.refunds) == 1
        assert await stage.payment_state(money) == ("refunded", "refunded")
        assert (await audit_all(db.Database(stage.connection)))[1] == []


# The same with real processes, and the sandbox.


def refund(client: httpx.Client, payment: dict[str, Any], **body: Any) -> httpx.Response:
    return client.post(f"/v1/payments/{payment['id']}/refund", json=body)


def test_a_person_sends_back_what_is_in_review_or_has_done_so_by_hand(server: Server, admin: httpx.Client) -> None:
    for by_hand, becomes in ((False, ("refund_due", None)), (True, ("refunded", "refunded"))):
        payment = start_payment(admin)
        expect_ok(post_notice(admin, payment, amount=1))
        assert payment_state(admin, payment) == ("review", "review")
        answer = expect_ok(refund(admin, payment, by_hand=by_hand, reason="Too little."))
        assert (answer["status"], answer["outcome"], answer["reason"]) == (*becomes, "Too little.")
        assert expect_ok(refund(admin, payment, by_hand=by_hand)) == answer


def test_a_person_cannot_send_back_what_is_not_here(admin: httpx.Client) -> None:
    open_, kept = start_payment(admin), start_payment(admin)
    expect_ok(post_notice(admin, kept))
    for payment in (open_, kept):
        for by_hand in (False, True):
            expect_error(refund(admin, payment, by_hand=by_hand), 409, "not_refundable")


@pytest.fixture(scope="module")
def clerk(product: Server) -> Iterator[httpx.Client]:
    """The admin of an org whose refunds a worker carries out."""
    with product.client(Org(product.database_url).headers()) as client:
        yield client


def test_the_payment_behind_a_receipt_is_refunded_by_hand_only(clerk: httpx.Client) -> None:
    booking = create_submitted_booking(clerk)
    expect_ok(clerk.post(f"/v1/bookings/{booking}/approve"))
    expect_ok(clerk.post(f"/v1/bookings/{booking}/refund"))
    (payment,) = expect_ok(clerk.get(f"/v1/bookings/{booking}"))["payments"]
    wait_until(lambda: payment_state(clerk, payment) == ("review", "review"), SECONDS)
    assert expect_ok(clerk.get(f"/v1/payments/{payment['id']}"))["reason"] == "refund_by_hand"
    expect_error(refund(clerk, payment), 409, "not_refundable")
    expect_ok(refund(clerk, payment, by_hand=True))
    assert payment_state(clerk, payment) == ("refunded", "refunded")


def test_a_free_booking_is_refunded_without_a_provider(product: Server, clerk: httpx.Client) -> None:
    free = [{"code": "places", "capacity": 5, "tariffs": [{"code": "free", "price": 0}]}]
    event = expect_ok(clerk.post("/v1/events", json={**_event(), "pools": free}), 201)["id"]
    expect_ok(clerk.post(f"/v1/events/{event}/publish"))
    headers = {"Idempotency-Key": "k"}
    body = {"user": "u-1", "items": [{"pool": "places"}]}
    booking = expect_ok(clerk.post(f"/v1/events/{event}/holds", json=body, headers=headers), 201)["id"]
    payment = expect_ok(post_payment(clerk, booking), 201)
    assert (payment["status"], payment["outcome"], payment["amount"]) == ("succeeded", "fulfilled", 0)
    expect_ok(clerk.post(f"/v1/bookings/{booking}/refund"))
    wait_until(lambda: payment_state(clerk, payment) == ("refunded", "refunded"), SECONDS)
    assert query(product.database_url, "SELECT FROM sandbox_refund WHERE key = $1", f"refund:{payment['id']}") == []


def _event() -> dict[str, Any]:
    return {"title": "Free for all", "starts_at": "2027-03-05T19:00:00Z", "currency": "EUR"}


def test_a_worker_that_is_killed_between_the_refund_and_the_note_leads_to_no_second_refund(database: str) -> None:
    """The next worker takes the payment over and refunds it under the same key."""
    with running_server(database, workers=1, worker=True) as server:
        with server.client(Org(database).headers()) as admin:
            payment = start_payment(admin)
            expect_ok(admin.post(f"/v1/bookings/{payment['booking']}/cancel"))
            wait_until(lambda: payment_state(admin, payment) == ("failed", None), SECONDS)
            query(database, "UPDATE sandbox_charge SET status = 'paid'")
            asyncio.run(_kill_amid_refund(server, admin, payment))
            assert payment_state(admin, payment) == ("refund_due", None)
            asyncio.run(_later(database, LEASE_SECONDS + 5))
            wait_until(lambda: payment_state(admin, payment) == ("refunded", "refunded"), SECONDS)
            rows = query(database, "SELECT key, ref FROM sandbox_refund")
            assert [tuple(row) for row in rows] == [(f"refund:{payment['id']}", payment["provider_ref"])]


async def _kill_amid_refund(server: Server, admin: httpx.Client, payment: dict[str, Any]) -> None:
    """The sandbox is kept from paying back until the event is locked, so that it pays and that cannot be noted; then
    the worker is killed."""
    gateway, other, observer = [await db.connect(server.database_url) for _ in range(3)]
    async with other.transaction():
        async with gateway.transaction():
            await gateway.execute("LOCK TABLE sandbox_refund IN EXCLUSIVE MODE")
            await asyncio.to_thread(post_notice, admin, payment)
            await poll_until(lambda: _is_paying_back(observer))
            await other.execute("SELECT FROM event FOR UPDATE")
        await poll_until(lambda: _is_paid_back(observer))
        for child in psutil.Process(server.process.pid).children():
            if "worker" in child.cmdline():
                os.kill(child.pid, signal.SIGKILL)
    for connection in (gateway, other, observer):
        await connection.close()


async def _is_paying_back(observer: db.Connection) -> bool:
    waiting: bool = await observer.fetchval(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND query LIKE '%INTO sandbox_refund%' AND datname = current_database()"
    )
    return waiting


async def _is_paid_back(observer: db.Connection) -> bool:
    paid: bool = await observer.fetchval("SELECT count(*) = 1 FROM sandbox_refund")
    return paid


async def _later(database: str, seconds: int) -> None:
    async with lane_connection(database) as connection:
        await shift_clock(connection, seconds)
