"""A payment that cannot be kept is refunded once: Holdfast retries under one key, and puts what it cannot refund under
review."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from holdfast.core.booking import Booking
from holdfast.core.commands import Remedy
from holdfast.core.payment import Payment, PaymentResult
from holdfast.core.states import Verb
from holdfast.engine.auditor import audit_all
from holdfast.payments.due_payments import CLAIM_MAX, LEASE_SECONDS
from holdfast.payments.provider import ProviderError, ProviderRefusedError
from holdfast.payments.refunds import RETRIES, Refunder
from holdfast.runtime import db
from tests.support.child_processes import children_with
from tests.support.engine_harness import async_test, lane_connection, new_event, poll_until, shift_clock
from tests.support.harness import Org, Server, query, running_server, wait_until
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.payment_harness import POOLS, PaymentHarness, payment_harness
from tests.support.resources import create_submitted_booking, payment_state, post_notice, post_payment, start_payment

SECONDS = 30
SILENT = 2 * 86_400
WAITS_SECONDS = RETRIES.waits_seconds


async def create_refund_due(harness: PaymentHarness, *seats: str, user: str = "u-1") -> tuple[Booking, Payment]:
    """Pay for a cancelled booking."""
    booking = await harness.hold(*seats, user=user)
    payment = await harness.start_payment(booking)
    assert payment.provider_ref is not None
    harness.gateway.capture(payment.provider_ref)
    await harness.apply(booking, Verb.CANCEL)
    await harness.settle(payment, booking)
    assert await harness.payment_state(payment) == ("refund_due", None)
    return booking, payment


def errors(logs: Any) -> list[str]:
    return [entry["event"] for entry in logs if entry["log_level"] == "error"]


@async_test
async def test_a_refund_happens_at_once_and_only_once(database: str) -> None:
    async with payment_harness(database) as harness:
        booking, payment = await create_refund_due(harness)
        assert await harness.refunds.run_once() == 1
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        assert harness.gateway.refunds == {f"refund:{harness.payment_text(payment)}": payment.provider_ref}
        await harness.advance_clock(86_400)
        assert await harness.refunds.run_once() == 0
        assert await harness.journal_kinds(booking) == [
            "held", "payment.started", "cancelled", "payment.refund_due", "payment.refunded"
        ]  # fmt: skip
        assert (await audit_all(db.Database(harness.connection)))[1] == []


@async_test
async def test_a_failed_refund_is_retried_with_growing_waits_under_the_same_key(database: str) -> None:
    async with payment_harness(database) as harness:
        _, payment = await create_refund_due(harness)
        harness.gateway.failures["refund"] = [ProviderError("not now")] * len(WAITS_SECONDS)
        for number, seconds in enumerate(WAITS_SECONDS, 1):
            with capture_logs() as logs:
                assert await harness.refunds.run_once() == 1
            assert errors(logs) == []
            row = await harness.row(payment)
            assert (row["status"], row["attempts"], row["due_seconds"]) == ("refund_due", number, seconds)
            await harness.advance_clock(seconds - 1)
            assert await harness.refunds.run_once() == 0
            await harness.advance_clock(1)
        assert await harness.refunds.run_once() == 1
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        assert harness.gateway.refunds == {f"refund:{harness.payment_text(payment)}": payment.provider_ref}
        assert list(WAITS_SECONDS) == sorted(WAITS_SECONDS)


@async_test
async def test_a_refund_that_fails_for_days_goes_to_review(database: str) -> None:
    async with payment_harness(database) as harness:
        _, payment = await create_refund_due(harness)
        harness.gateway.failures["refund"] = [ProviderError("not now")] * 100
        logged: list[str] = []
        for _ in range(len(WAITS_SECONDS) + 1):
            with capture_logs() as logs:
                assert await harness.refunds.run_once() == 1
            logged += errors(logs)
            await harness.advance_clock(WAITS_SECONDS[-1])
        assert logged == ["refund_needs_a_person"]
        assert await harness.payment_state(payment) == ("review", "review")
        assert (await harness.row(payment))["reason"] == "provider_unreachable"
        assert await harness.refunds.run_once() == 0
        assert sum(WAITS_SECONDS) > 86_400


@async_test
async def test_a_refused_refund_goes_to_review_at_once(database: str) -> None:
    async with payment_harness(database) as harness:
        booking, payment = await create_refund_due(harness)
        harness.gateway.failures["refund"] = [ProviderRefusedError("too old")]
        with capture_logs() as logs:
            assert await harness.refunds.run_once() == 1
        assert errors(logs) == ["refund_needs_a_person"]
        (entry,) = [entry for entry in logs if entry["log_level"] == "error"]
        assert (entry["payment"], entry["reason"], entry["detail"]) == (
            harness.payment_text(payment),
            "refund_refused",
            "too old",
        )
        assert await harness.payment_state(payment) == ("review", "review")
        assert (await harness.row(payment))["reason"] == "refund_refused"
        assert (await harness.journal_kinds(booking))[-1] == "payment.review"
        await harness.advance_clock(86_400)
        assert await harness.refunds.run_once() == 0
        assert len(harness.gateway.refs_of_calls("refund")) == 1
        assert (await audit_all(db.Database(harness.connection)))[1] == []


@async_test
async def test_a_retry_from_review_uses_the_same_key_and_a_fresh_backoff(database: str) -> None:
    async with payment_harness(database) as harness:
        booking, payment = await create_refund_due(harness)
        harness.gateway.failures["refund after"] = [ProviderRefusedError("who knows")]
        await harness.refunds.run_once()
        assert await harness.payment_state(payment) == ("review", "review")
        await harness.resolve(payment, booking, Remedy.REFUND)
        row = await harness.row(payment)
        assert (row["status"], row["outcome"], row["attempts"], row["due_seconds"]) == ("refund_due", None, 0, 0)
        assert await harness.refunds.run_once() == 1
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        assert len(harness.gateway.refunds) == 1
        assert len(harness.gateway.refs_of_calls("refund")) == 2


@async_test
async def test_a_payment_refunded_by_hand_is_not_refunded_again(database: str) -> None:
    async with payment_harness(database) as harness:
        booking, payment = await create_refund_due(harness)
        await harness.resolve(payment, booking, Remedy.REVIEW)
        await harness.resolve(payment, booking, Remedy.BY_HAND)
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        await harness.advance_clock(86_400)
        assert await harness.refunds.run_once() == 0
        assert harness.gateway.refs_of_calls("refund") == []


@async_test
async def test_stopping_between_the_refund_and_its_record_causes_no_second_refund(database: str) -> None:
    async with payment_harness(database) as harness:
        _, payment = await create_refund_due(harness)
        harness.gateway.failures["refund after"] = [asyncio.CancelledError()]
        assert await harness.refunds.run_once() == 0
        assert await harness.payment_state(payment) == ("refund_due", None)
        assert await harness.refunds.run_once() == 0
        await harness.advance_clock(LEASE_SECONDS + 1)
        assert await harness.refunds.run_once() == 1
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        assert harness.gateway.refunds == {f"refund:{harness.payment_text(payment)}": payment.provider_ref}
        assert len(harness.gateway.refs_of_calls("refund")) == 2


@async_test
async def test_a_refund_that_a_busy_engine_refuses_is_recorded_later(database: str) -> None:
    async with payment_harness(database) as harness:
        _, payment = await create_refund_due(harness)
        await harness.engine.close()
        assert await harness.refunds.run_once() == 1
        assert await harness.payment_state(payment) == ("refund_due", None)
        await harness.restart_engine()
        await harness.advance_clock(LEASE_SECONDS + 1)
        assert await harness.refunds.run_once() == 1
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        assert len(harness.gateway.refunds) == 1


@async_test
async def test_two_workers_do_not_process_the_same_refund(database: str) -> None:
    async with payment_harness(database) as harness:
        for number in range(8):
            await create_refund_due(harness, user=f"u-{number}")
        assert sum(await asyncio.gather(*(harness.new_refunds().run_once() for _ in range(4)))) == 8
        assert len(harness.gateway.refs_of_calls("refund")) == len(harness.gateway.refunds) == 8


@async_test
async def test_an_org_whose_refunds_hang_does_not_delay_another(database: str) -> None:
    async with payment_harness(database) as harness:
        hanging = [(await create_refund_due(harness, user=f"u-{number}"))[1] for number in range(CLAIM_MAX + 5)]
        harness.gateway.hanging_refs = {payment.provider_ref for payment in hanging}
        harness.event = await new_event(harness.connection, pools=POOLS)
        _, payment = await create_refund_due(harness)
        refunder = Refunder(db.Database(harness.pool), harness.engine, harness.providers)
        await refunder.queue.run_once()
        await poll_until(lambda: _is_refunded(harness, payment))
        assert set(harness.gateway.refs_of_calls("refund")) > {payment.provider_ref}
        assert len(harness.gateway.refs_of_calls("refund")) <= CLAIM_MAX + 1
        harness.gateway.release.set()
        await refunder.queue.wait()
        assert len(harness.gateway.refunds) == CLAIM_MAX + 6


async def _is_refunded(harness: PaymentHarness, payment: Payment) -> bool:
    return await harness.payment_state(payment) == ("refunded", "refunded")


@async_test
async def test_a_payment_whose_refund_fails_does_not_delay_others(database: str) -> None:
    """The provider raises an unexpected error, and the worker survives it."""
    async with payment_harness(database) as harness:
        all_ = [(await create_refund_due(harness, user=f"u-{number}"))[1] for number in range(3)]
        harness.gateway.break_on_next_call = True
        for _ in range(3):
            with suppress(RuntimeError):
                await harness.refunds.run_once()
            await harness.advance_clock(LEASE_SECONDS + 1)
        others = [payment for payment in all_ if payment.provider_ref != harness.gateway.broken_ref]
        assert [await harness.payment_state(payment) for payment in others] == [("refunded", "refunded")] * 2


@async_test
async def test_a_refund_notice_from_the_provider_completes_the_refund(database: str) -> None:
    async with payment_harness(database) as harness:
        _, payment = await create_refund_due(harness)
        assert await harness.deliver_notice(payment, PaymentResult.REFUNDED)
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        assert await harness.refunds.run_once() == 0
        assert harness.gateway.refs_of_calls("refund") == []


@async_test
async def test_a_refund_by_the_provider_ends_a_confirmed_booking(database: str) -> None:
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking)
        await harness.deliver_notice(payment)
        assert await harness.deliver_notice(payment, PaymentResult.REFUNDED)
        assert await harness.status(booking) == "refunded"
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        assert await harness.refunds.run_once() == 0
        assert await harness.connection.fetchval("SELECT count(*) FROM line WHERE live") == 0
        assert (await audit_all(db.Database(harness.connection)))[1] == []


@async_test
async def test_a_refund_waits_for_a_missing_provider_and_then_goes_to_review(database: str) -> None:
    async with payment_harness(database) as harness:
        booking, payment = await create_refund_due(harness)
        harness.connect_providers({})
        with capture_logs() as logs:
            for _ in range(len(WAITS_SECONDS)):
                await harness.refunds.run_once()
                assert (await harness.payment_state(payment))[0] == "refund_due"
                await harness.advance_clock(86_400)
            assert errors(logs) == []
            await harness.refunds.run_once()
        assert errors(logs) == ["refund_needs_a_person"]
        assert await harness.payment_state(payment) == ("review", "review")
        harness.connect_providers({"gateway": harness.gateway})
        await harness.resolve(payment, booking, Remedy.REFUND)
        await harness.refunds.run_once()
        assert await harness.payment_state(payment) == ("refunded", "refunded")


@async_test
async def test_a_refund_ordered_after_a_long_silence_is_recorded(database: str) -> None:
    """No notice of the capture ever arrived, and the provider refunds the payment."""
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking)
        assert payment.provider_ref is not None
        harness.gateway.capture(payment.provider_ref)
        harness.gateway.failures["close"] = [ProviderError("silent")] * 100
        await harness.advance_clock(SILENT)
        await harness.reconciler.run_once()
        assert await harness.payment_state(payment) == ("review", "review")
        await harness.resolve(payment, booking, Remedy.REFUND)
        for _ in range(3):
            await harness.refunds.run_once()
            await harness.advance_clock(LEASE_SECONDS + 1)
        assert len(harness.gateway.refunds) == 1
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        assert (await audit_all(db.Database(harness.connection)))[1] == []


# With real processes and the sandbox.


def refund(client: httpx.Client, payment: dict[str, Any], **body: Any) -> httpx.Response:
    return client.post(f"/v1/payments/{payment['id']}/refund", json=body)


def test_staff_can_refund_a_payment_in_review_or_record_a_manual_refund(server: Server, admin: httpx.Client) -> None:
    for by_hand, expected in ((False, ("refund_due", None)), (True, ("refunded", "refunded"))):
        payment = start_payment(admin)
        expect_ok(post_notice(admin, payment, amount=1))
        assert payment_state(admin, payment) == ("review", "review")
        answer = expect_ok(refund(admin, payment, by_hand=by_hand, reason="Too little."))
        assert (answer["status"], answer["outcome"], answer["reason"]) == (*expected, "Too little.")
        assert expect_ok(refund(admin, payment, by_hand=by_hand)) == answer


def test_a_payment_that_is_not_in_review_cannot_be_refunded(admin: httpx.Client) -> None:
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


def test_the_payment_of_a_receipt_can_only_be_refunded_by_hand(clerk: httpx.Client) -> None:
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


def test_a_worker_killed_between_a_refund_and_its_record_causes_no_second_refund(database: str) -> None:
    """The next worker takes the payment over and refunds it under the same key."""
    with running_server(database, workers=1, worker=True) as server:
        with server.client(Org(database).headers()) as admin:
            payment = start_payment(admin)
            expect_ok(admin.post(f"/v1/bookings/{payment['booking']}/cancel"))
            wait_until(lambda: payment_state(admin, payment) == ("failed", None), SECONDS)
            query(database, "UPDATE sandbox_charge SET status = 'paid'")
            asyncio.run(_kill_worker_during_refund(server, admin, payment))
            assert payment_state(admin, payment) == ("refund_due", None)
            asyncio.run(_advance_clock(database, LEASE_SECONDS + 5))
            wait_until(lambda: payment_state(admin, payment) == ("refunded", "refunded"), SECONDS)
            rows = query(database, "SELECT key, ref FROM sandbox_refund")
            assert [tuple(row) for row in rows] == [(f"refund:{payment['id']}", payment["provider_ref"])]


async def _kill_worker_during_refund(server: Server, admin: httpx.Client, payment: dict[str, Any]) -> None:
    """Block the sandbox's refund until the event is locked, so that the refund happens and cannot be recorded. Then
    kill the worker."""
    gateway, other, observer = [await db.connect(server.database_url) for _ in range(3)]
    async with other.transaction():
        async with gateway.transaction():
            await gateway.execute("LOCK TABLE sandbox_refund IN EXCLUSIVE MODE")
            await asyncio.to_thread(post_notice, admin, payment)
            await poll_until(lambda: _refund_is_waiting(observer))
            await other.execute("SELECT FROM event FOR UPDATE")
        await poll_until(lambda: _refund_is_stored(observer))
        for worker in children_with("worker", server.process.pid):
            worker.kill()
    for connection in (gateway, other, observer):
        await connection.close()


async def _refund_is_waiting(observer: db.Connection) -> bool:
    waiting: bool = await observer.fetchval(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND query LIKE '%INTO sandbox_refund%' AND datname = current_database()"
    )
    return waiting


async def _refund_is_stored(observer: db.Connection) -> bool:
    paid: bool = await observer.fetchval("SELECT count(*) = 1 FROM sandbox_refund")
    return paid


async def _advance_clock(database: str, seconds: int) -> None:
    async with lane_connection(database) as connection:
        await shift_clock(connection, seconds)
