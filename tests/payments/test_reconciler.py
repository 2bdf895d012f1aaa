"""The reconciler asks the provider about every silent payment until it knows the result, and closes open checkouts when
the hold ends."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from holdfast.core.booking import Booking
from holdfast.core.commands import BookingAction
from holdfast.core.payment import Payment, PaymentResult
from holdfast.core.states import Verb
from holdfast.engine.auditor import audit_all
from holdfast.payments.due_payments import LEASE_SECONDS
from holdfast.payments.provider import ProviderError, ProviderRefusedError
from holdfast.payments.reconciler import POLLS, SILENCE_MAX
from holdfast.runtime import db
from tests.support.engine_harness import async_test
from tests.support.harness import Org, Server, query, wait_until
from tests.support.http_assertions import expect_ok
from tests.support.payment_harness import PaymentHarness, payment_harness
from tests.support.resources import create_confirmed_booking, post_payment, start_payment

SECONDS = 30
LONG = {"hold_seconds": 600}
DAY = 86_400


async def open_payment(harness: PaymentHarness, *seats: str, user: str = "u-1") -> tuple[Booking, Payment, str]:
    booking = await harness.hold(*seats, user=user)
    payment = await harness.start_payment(booking)
    assert payment.provider_ref is not None
    return booking, payment, payment.provider_ref


def errors(logs: Any) -> list[str]:
    return [entry["event"] for entry in logs if entry["log_level"] == "error"]


@async_test
async def test_an_open_payment_is_checked_every_minute_and_closed_with_its_hold(database: str) -> None:
    async with payment_harness(database, policy={"hold_seconds": 150}) as harness:
        _, payment, ref = await open_payment(harness, "A-1")
        for seconds, calls in ((59, 0), (1, 1), (59, 1), (1, 2), (29, 2)):
            await harness.advance_clock(seconds)
            await harness.reconciler.run_once()
            assert harness.gateway.refs_of_calls("look_up") == [ref] * calls
        assert harness.gateway.refs_of_calls("close") == []
        await harness.advance_clock(1)
        await harness.reconciler.run_once()
        assert harness.gateway.refs_of_calls("close") == [ref]
        assert await harness.payment_state(payment) == ("failed", None)
        await harness.advance_clock(DAY)
        assert await harness.reconciler.run_once() == 0


@async_test
async def test_the_reconciler_confirms_a_booking_without_a_notice(database: str) -> None:
    async with payment_harness(database, policy=LONG) as harness:
        booking, payment, ref = await open_payment(harness, "A-1")
        harness.gateway.capture(ref)
        await harness.advance_clock(61)
        assert await harness.reconciler.run_once() == 1
        assert await harness.payment_state(payment) == ("succeeded", "fulfilled")
        assert await harness.status(booking) == "confirmed"
        assert await harness.journal_kinds(booking) == ["held", "payment.started", "payment.succeeded", "confirmed"]
        assert await harness.reconciler.run_once() == 0


@pytest.mark.parametrize(("late_seconds", "state"), [(1, ("succeeded", "revived")), (3600, ("refund_due", None))])
@async_test
async def test_the_reconciler_finds_a_payment_without_a_notice_after_the_hold(
    database: str, late_seconds: int, state: tuple[str, str | None]
) -> None:
    async with payment_harness(database) as harness:
        booking, payment, ref = await open_payment(harness, "A-1")
        harness.gateway.capture(ref)
        await harness.advance_clock(60 + late_seconds)
        assert await harness.reconciler.run_once() == 1
        assert harness.gateway.refs_of_calls("close") == [ref]
        assert await harness.payment_state(payment) == state
        assert await harness.status(booking) == ("confirmed" if state[1] == "revived" else "expired")
        assert (await audit_all(db.Database(harness.connection)))[1] == []


@async_test
async def test_a_wrong_amount_found_by_the_reconciler_goes_to_review(database: str) -> None:
    async with payment_harness(database, policy=LONG) as harness:
        booking, payment, ref = await open_payment(harness, "A-1")
        harness.gateway.capture(ref, amount=1)
        await harness.advance_clock(61)
        await harness.reconciler.run_once()
        assert await harness.payment_state(payment) == ("review", "review")
        assert await harness.status(booking) == "held"


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.CONFIRM])
@async_test
async def test_the_checkout_of_a_cancelled_or_confirmed_booking_is_closed_at_once(
    database: str, verb: BookingAction
) -> None:
    async with payment_harness(database, policy=LONG) as harness:
        booking, payment, ref = await open_payment(harness, "A-1")
        assert await harness.reconciler.run_once() == 0
        await harness.apply(booking, verb)
        assert await harness.reconciler.run_once() == 1
        assert harness.gateway.calls == [("close", ref)]
        assert await harness.payment_state(payment) == ("failed", None)


@async_test
async def test_the_checkout_of_an_expired_hold_is_closed_at_once(database: str) -> None:
    async with payment_harness(database, policy={"hold_seconds": 30}) as harness:
        booking, payment, ref = await open_payment(harness, "A-1")
        await harness.advance_clock(30)
        await harness.engine.sweep(harness.event.id)
        assert await harness.status(booking) == "expired"
        assert await harness.reconciler.run_once() == 1
        assert harness.gateway.calls == [("close", ref)]
        assert await harness.payment_state(payment) == ("failed", None)


@async_test
async def test_the_second_checkout_of_a_paid_booking_is_closed_at_once(database: str) -> None:
    async with payment_harness(database, policy=LONG) as harness:
        booking, first, _ = await open_payment(harness, "A-1")
        second = await harness.start_payment(booking)
        await harness.deliver_notice(first)
        assert await harness.reconciler.run_once() == 1
        assert harness.gateway.calls == [("close", second.provider_ref)]
        assert await harness.payment_state(second) == ("failed", None)


@async_test
async def test_a_checkout_paid_before_it_could_be_closed_is_refunded(database: str) -> None:
    async with payment_harness(database, policy=LONG) as harness:
        booking, payment, ref = await open_payment(harness, "A-1")
        harness.gateway.capture(ref)
        await harness.apply(booking, Verb.CANCEL)
        await harness.reconciler.run_once()
        assert await harness.payment_state(payment) == ("refund_due", None)
        await harness.refunds.run_once()
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        assert list(harness.gateway.refunds.values()) == [ref]


@async_test
async def test_a_payment_that_never_reached_the_provider_fails_with_its_hold(database: str) -> None:
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking, at_provider=False)
        await harness.advance_clock(30)
        await harness.reconciler.run_once()
        assert await harness.payment_state(payment) == ("started", None)
        await harness.advance_clock(30)
        assert await harness.reconciler.run_once() == 1
        assert await harness.payment_state(payment) == ("failed", None)
        assert harness.gateway.calls == []


@pytest.mark.parametrize("error", [ProviderError, ProviderRefusedError])
@async_test
async def test_a_silent_provider_is_polled_less_and_less_and_goes_to_review_after_a_day(
    database: str, error: type[Exception]
) -> None:
    async with payment_harness(database) as harness:
        booking, payment, _ = await open_payment(harness, "A-1")
        harness.gateway.failures["close"] = [error("silent")] * 100
        await harness.advance_clock(60)
        logged: list[str] = []
        waits: list[float] = []
        start = await harness.now()
        while (await harness.payment_state(payment))[0] == "started":
            assert len(waits) < 100
            with capture_logs() as logs:
                assert await harness.reconciler.run_once() == 1
            logged += errors(logs)
            due_seconds = (await harness.row(payment))["due_seconds"]
            if due_seconds is not None:
                waits.append(due_seconds)
                await harness.advance_clock(due_seconds)
        assert logged == ["payment_needs_a_person"]
        assert waits == sorted(waits)
        assert waits[0] < 10
        assert waits[-1] == POLLS.waits_seconds[-1]
        silence = await harness.now() - start
        assert SILENCE_MAX < silence <= SILENCE_MAX + timedelta(seconds=POLLS.waits_seconds[-1])
        assert await harness.payment_state(payment) == ("review", "review")
        assert (await harness.row(payment))["reason"] == "provider_silent"
        assert (await harness.journal_kinds(booking))[-1] == "payment.review"
        assert (await audit_all(db.Database(harness.connection)))[1] == []
        await harness.advance_clock(DAY)
        assert await harness.reconciler.run_once() == 0


@async_test
async def test_polls_during_a_long_hold_do_not_lengthen_the_waits_after_it(database: str) -> None:
    async with payment_harness(database, policy=LONG) as harness:
        _, payment, _ = await open_payment(harness, "A-1")
        harness.gateway.failures["close"] = [ProviderError("silent")] * 100
        for _ in range(LONG["hold_seconds"] // 60):
            assert (await harness.row(payment))["due_seconds"] == 60
            await harness.advance_clock(60)
            assert await harness.reconciler.run_once() == 1
        waits: list[float] = []
        for _ in range(3):
            waits.append((await harness.row(payment))["due_seconds"])
            await harness.advance_clock(waits[-1])
            assert await harness.reconciler.run_once() == 1
        assert len(harness.gateway.refs_of_calls("look_up")) == 9
        assert tuple(waits) == POLLS.waits_seconds[:3]


@async_test
async def test_a_provider_that_answers_again_settles_the_payment(database: str) -> None:
    async with payment_harness(database) as harness:
        _, payment, ref = await open_payment(harness, "A-1")
        harness.gateway.failures["close"] = [ProviderError("silent")] * 3
        harness.gateway.capture(ref)
        await harness.advance_clock(60)
        for _ in range(4):
            await harness.reconciler.run_once()
            await harness.advance_clock(20)
        assert await harness.payment_state(payment) == ("succeeded", "revived")


@async_test
async def test_a_provider_that_is_no_longer_configured_counts_as_silent(database: str) -> None:
    async with payment_harness(database) as harness:
        _, payment, ref = await open_payment(harness, "A-1")
        harness.connect_providers({})
        await harness.advance_clock(60)
        await harness.reconciler.run_once()
        assert await harness.payment_state(payment) == ("started", None)
        harness.connect_providers({"gateway": harness.gateway})
        await harness.advance_clock(60)
        await harness.reconciler.run_once()
        assert harness.gateway.calls == [("close", ref)]


@pytest.mark.parametrize("result", [PaymentResult.CAPTURED, PaymentResult.FAILED])
@async_test
async def test_the_providers_result_still_counts_during_a_review(database: str, result: PaymentResult) -> None:
    async with payment_harness(database) as harness:
        booking, payment, ref = await open_payment(harness, "A-1")
        harness.gateway.failures["close"] = [ProviderError("silent")] * 100
        await harness.advance_clock(60 + SILENCE_MAX.total_seconds() + 1)
        await harness.reconciler.run_once()
        assert await harness.payment_state(payment) == ("review", "review")
        assert await harness.deliver_notice(payment, result)
        if result is PaymentResult.CAPTURED:
            assert await harness.payment_state(payment) == ("refund_due", None)
            await harness.refunds.run_once()
            assert await harness.payment_state(payment) == ("refunded", "refunded")
            assert list(harness.gateway.refunds.values()) == [ref]
        else:
            assert (await harness.payment_state(payment))[0] in ("failed", "review")
        assert await harness.status(booking) == "expired"
        assert (await audit_all(db.Database(harness.connection)))[1] == []


@async_test
async def test_a_notice_during_a_status_check_counts_once(database: str) -> None:
    async with payment_harness(database, policy=LONG) as harness:
        booking, payment, ref = await open_payment(harness, "A-1")
        harness.gateway.capture(ref)
        await harness.deliver_notice(payment)
        kinds = await harness.journal_kinds(booking)
        await harness.settle(payment, booking)
        assert await harness.journal_kinds(booking) == kinds
        await harness.advance_clock(61)
        assert await harness.reconciler.run_once() == 0


@async_test
async def test_a_payment_refunded_without_a_notice_comes_to_an_end(database: str) -> None:
    """Somebody refunded it at the provider, and no notice ever arrived. The reconciler must not ask forever."""
    async with payment_harness(database) as harness:
        booking, payment, ref = await open_payment(harness, "A-1")
        harness.gateway.results[ref] = PaymentResult.REFUNDED
        for _ in range(30):
            await harness.advance_clock(7200)
            await harness.reconciler.run_once()
        assert (await harness.payment_state(payment))[0] in ("refunded", "review", "failed")
        assert await harness.status(booking) == "expired"
        assert (await audit_all(db.Database(harness.connection)))[1] == []


@async_test
async def test_a_payment_whose_lookup_fails_does_not_delay_others(database: str) -> None:
    """The provider raises an unexpected error, and the worker survives it."""
    async with payment_harness(database) as harness:
        all_ = [await open_payment(harness, user=f"u-{number}") for number in range(3)]
        harness.gateway.break_on_next_call = True
        await harness.advance_clock(60)
        for _ in range(3):
            with suppress(RuntimeError):
                await harness.reconciler.run_once()
            await harness.advance_clock(LEASE_SECONDS + 1)
        others = [payment for _, payment, ref in all_ if ref != harness.gateway.broken_ref]
        assert [await harness.payment_state(payment) for payment in others] == [("failed", None)] * 2


@async_test
async def test_a_payment_that_a_busy_engine_refuses_is_checked_again(database: str) -> None:
    async with payment_harness(database) as harness:
        _, payment, _ = await open_payment(harness, "A-1")
        await harness.advance_clock(60)
        await harness.engine.close()
        await harness.reconciler.run_once()
        await harness.restart_engine()
        assert await harness.payment_state(payment) == ("started", None)
        await harness.advance_clock(LEASE_SECONDS + 1)
        await harness.reconciler.run_once()
        assert await harness.payment_state(payment) == ("failed", None)


# With real processes and the sandbox.


def charge_status(database: str, payment: dict[str, Any]) -> str:
    (row,) = query(database, "SELECT status FROM sandbox_charge WHERE ref = $1", payment["provider_ref"])
    status: str = row["status"]
    return status


def payment_status_of(client: httpx.Client, payment: dict[str, Any]) -> str:
    status: str = expect_ok(client.get(f"/v1/payments/{payment['id']}"))["status"]
    return status


def test_a_buyer_who_cancels_can_no_longer_pay(product: Server) -> None:
    database = product.database_url
    with product.client(Org(database).headers()) as admin:
        payment, other = start_payment(admin), start_payment(admin)
        expect_ok(admin.post(f"/v1/bookings/{payment['booking']}/cancel"))
        wait_until(lambda: charge_status(database, payment) == "closed", SECONDS)
        wait_until(lambda: payment_status_of(admin, payment) == "failed", SECONDS)
        assert (charge_status(database, other), payment_status_of(admin, other)) == ("open", "started")
        assert create_confirmed_booking(admin)
        assert post_payment(admin, payment["booking"]).status_code == 409
