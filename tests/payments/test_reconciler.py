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


async def open_payment(stage: PaymentHarness, *seats: str, user: str = "u-1") -> tuple[Booking, Payment, str]:
    booking = await stage.hold(*seats, user=user)
    money = await stage.start_payment(booking)
    assert money.provider_ref is not None
    return booking, money, money.provider_ref


def errors(logs: Any) -> list[str]:
    return [entry["event"] for entry in logs if entry["log_level"] == "error"]


@async_test
async def test_an_open_payment_is_checked_every_minute_of_its_hold_and_closed_at_its_end(database: str) -> None:
    async with payment_harness(database, policy={"hold_seconds": 150}) as stage:
        _, money, ref = await open_payment(stage, "A-1")
        for seconds, calls in ((59, 0), (1, 1), (59, 1), (1, 2), (29, 2)):
            await stage.advance_clock(seconds)
            await stage.reconciler.run_once()
            assert stage.gateway.refs_of_calls("look_up") == [ref] * calls
        assert stage.gateway.refs_of_calls("close") == []
        await stage.advance_clock(1)
        await stage.reconciler.run_once()
        assert stage.gateway.refs_of_calls("close") == [ref]
        assert await stage.payment_state(money) == ("failed", None)
        await stage.advance_clock(DAY)
        assert await stage.reconciler.run_once() == 0


@async_test
async def test_the_reconciler_confirms_a_booking_without_a_notice(database: str) -> None:
    async with payment_harness(database, policy=LONG) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.capture(ref)
        await stage.advance_clock(61)
        assert await stage.reconciler.run_once() == 1
        assert await stage.payment_state(money) == ("succeeded", "fulfilled")
        assert await stage.status(booking) == "confirmed"
        assert await stage.journal_kinds(booking) == ["held", "payment.started", "payment.succeeded", "confirmed"]
        assert await stage.reconciler.run_once() == 0


@pytest.mark.parametrize(("late_seconds", "stands"), [(1, ("succeeded", "revived")), (3600, ("refund_due", None))])
@async_test
async def test_the_reconciler_finds_a_payment_without_a_notice_after_the_hold(
    database: str, late_seconds: int, stands: tuple[str, str | None]
) -> None:
    async with payment_harness(database) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.capture(ref)
        await stage.advance_clock(60 + late_seconds)
        assert await stage.reconciler.run_once() == 1
        assert stage.gateway.refs_of_calls("close") == [ref]
        assert await stage.payment_state(money) == stands
        assert await stage.status(booking) == ("confirmed" if stands[1] == "revived" else "expired")
        assert (await audit_all(db.Database(stage.connection)))[1] == []


@async_test
async def test_a_wrong_amount_found_by_the_reconciler_goes_to_review(database: str) -> None:
    async with payment_harness(database, policy=LONG) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.capture(ref, amount=1)
        await stage.advance_clock(61)
        await stage.reconciler.run_once()
        assert await stage.payment_state(money) == ("review", "review")
        assert await stage.status(booking) == "held"


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.CONFIRM])
@async_test
async def test_the_checkout_of_a_settled_booking_is_closed_at_once(database: str, verb: BookingAction) -> None:
    async with payment_harness(database, policy=LONG) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        assert await stage.reconciler.run_once() == 0
        await stage.apply(booking, verb)
        assert await stage.reconciler.run_once() == 1
        assert stage.gateway.calls == [("close", ref)]
        assert await stage.payment_state(money) == ("failed", None)


@async_test
async def test_a_hold_that_ends_has_its_checkout_closed_at_once(database: str) -> None:
    async with payment_harness(database, policy={"hold_seconds": 30}) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        await stage.advance_clock(30)
        await stage.engine.sweep(stage.event.id)
        assert await stage.status(booking) == "expired"
        assert await stage.reconciler.run_once() == 1
        assert stage.gateway.calls == [("close", ref)]
        assert await stage.payment_state(money) == ("failed", None)


@async_test
async def test_the_other_checkout_of_a_booking_that_is_paid_for_is_closed_at_once(database: str) -> None:
    async with payment_harness(database, policy=LONG) as stage:
        booking, first, _ = await open_payment(stage, "A-1")
        second = await stage.start_payment(booking)
        await stage.deliver_notice(first)
        assert await stage.reconciler.run_once() == 1
        assert stage.gateway.calls == [("close", second.provider_ref)]
        assert await stage.payment_state(second) == ("failed", None)


@async_test
async def test_a_checkout_that_was_paid_before_it_could_be_closed_is_paid_back(database: str) -> None:
    async with payment_harness(database, policy=LONG) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.capture(ref)
        await stage.apply(booking, Verb.CANCEL)
        await stage.reconciler.run_once()
        assert await stage.payment_state(money) == ("refund_due", None)
        await stage.refunds.run_once()
        assert await stage.payment_state(money) == ("refunded", "refunded")
        assert list(stage.gateway.refunds.values()) == [ref]


@async_test
async def test_a_payment_that_never_got_as_far_as_the_provider_fails_with_its_hold(database: str) -> None:
    async with payment_harness(database) as stage:
        booking = await stage.hold("A-1")
        money = await stage.start_payment(booking, at_provider=False)
        await stage.advance_clock(30)
        await stage.reconciler.run_once()
        assert await stage.payment_state(money) == ("started", None)
        await stage.advance_clock(30)
        assert await stage.reconciler.run_once() == 1
        assert await stage.payment_state(money) == ("failed", None)
        assert stage.gateway.calls == []


@pytest.mark.parametrize("trouble", [ProviderError, ProviderRefusedError])
@async_test
async def test_a_silent_provider_is_polled_less_and_less_and_after_a_day_a_person_reviews(
    database: str, trouble: type[Exception]
) -> None:
    async with payment_harness(database) as stage:
        booking, money, _ = await open_payment(stage, "A-1")
        stage.gateway.failures["close"] = [trouble("silent")] * 100
        await stage.advance_clock(60)
        logged: list[str] = []
        waits: list[float] = []
        start = await stage.now()
        while (await stage.payment_state(money))[0] == "started":
            assert len(waits) < 100
            with capture_logs() as logs:
                assert await stage.reconciler.run_once() == 1
            logged += errors(logs)
            due_seconds = (await stage.row(money))["due_seconds"]
            if due_seconds is not None:
                waits.append(due_seconds)
                await stage.advance_clock(due_seconds)
        assert logged == ["payment_needs_a_person"]
        assert waits == sorted(waits)
        assert waits[0] < 10
        assert waits[-1] == POLLS.waits_seconds[-1]
        silence = await stage.now() - start
        assert SILENCE_MAX < silence <= SILENCE_MAX + timedelta(seconds=POLLS.waits_seconds[-1])
        assert await stage.payment_state(money) == ("review", "review")
        assert (await stage.row(money))["reason"] == "provider_silent"
        assert (await stage.journal_kinds(booking))[-1] == "payment.review"
        assert (await audit_all(db.Database(stage.connection)))[1] == []
        await stage.advance_clock(DAY)
        assert await stage.reconciler.run_once() == 0


@async_test
async def test_polls_during_a_long_hold_do_not_lengthen_the_waits_after_it(database: str) -> None:
    async with payment_harness(database, policy=LONG) as stage:
        _, money, _ = await open_payment(stage, "A-1")
        stage.gateway.failures["close"] = [ProviderError("silent")] * 100
        for _ in range(LONG["hold_seconds"] // 60):
            assert (await stage.row(money))["due_seconds"] == 60
            await stage.advance_clock(60)
            assert await stage.reconciler.run_once() == 1
        waits: list[float] = []
        for _ in range(3):
            waits.append((await stage.row(money))["due_seconds"])
            await stage.advance_clock(waits[-1])
            assert await stage.reconciler.run_once() == 1
        assert len(stage.gateway.refs_of_calls("look_up")) == 9
        assert tuple(waits) == POLLS.waits_seconds[:3]


@async_test
async def test_a_provider_that_answers_again_counts(database: str) -> None:
    async with payment_harness(database) as stage:
        _, money, ref = await open_payment(stage, "A-1")
        stage.gateway.failures["close"] = [ProviderError("silent")] * 3
        stage.gateway.capture(ref)
        await stage.advance_clock(60)
        for _ in range(4):
            await stage.reconciler.run_once()
            await stage.advance_clock(20)
        assert await stage.payment_state(money) == ("succeeded", "revived")


@async_test
async def test_a_provider_that_is_not_set_up_any_more_is_silent(database: str) -> None:
    async with payment_harness(database) as stage:
        _, money, ref = await open_payment(stage, "A-1")
        stage.connect_providers({})
        await stage.advance_clock(60)
        await stage.reconciler.run_once()
        assert await stage.payment_state(money) == ("started", None)
        stage.connect_providers({"gateway": stage.gateway})
        await stage.advance_clock(60)
        await stage.reconciler.run_once()
        assert stage.gateway.calls == [("close", ref)]


@pytest.mark.parametrize("news", [PaymentResult.CAPTURED, PaymentResult.FAILED])
@async_test
async def test_the_providers_result_still_counts_during_a_review(database: str, news: PaymentResult) -> None:
    async with payment_harness(database) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.failures["close"] = [ProviderError("silent")] * 100
        await stage.advance_clock(60 + SILENCE_MAX.total_seconds() + 1)
        await stage.reconciler.run_once()
        assert await stage.payment_state(money) == ("review", "review")
        assert await stage.deliver_notice(money, news)
        if news is PaymentResult.CAPTURED:
            assert await stage.payment_state(money) == ("refund_due", None)
            await stage.refunds.run_once()
            assert await stage.payment_state(money) == ("refunded", "refunded")
            assert list(stage.gateway.refunds.values()) == [ref]
        else:
            assert (await stage.payment_state(money))[0] in ("failed", "review")
        assert await stage.status(booking) == "expired"
        assert (await audit_all(db.Database(stage.connection)))[1] == []


@async_test
async def test_a_notice_during_a_status_check_counts_once(database: str) -> None:
    async with payment_harness(database, policy=LONG) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.capture(ref)
        await stage.deliver_notice(money)
        facts = await stage.journal_kinds(booking)
        await stage.settle(money, booking)
        assert await stage.journal_kinds(booking) == facts
        await stage.advance_clock(61)
        assert await stage.reconciler.run_once() == 0


@async_test
async def test_a_payment_captured_and_refunded_unheard_comes_to_an_end(database: str) -> None:
    """Somebody has paid it back at the provider, and no notice ever came. The provider is not asked for ever."""
    async with payment_harness(database) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.results[ref] = PaymentResult.REFUNDED
        for _ in range(30):
            await stage.advance_clock(7200)
            await stage.reconciler.run_once()
        assert (await stage.payment_state(money))[0] in ("refunded", "review", "failed")
        assert await stage.status(booking) == "expired"
        assert (await audit_all(db.Database(stage.connection)))[1] == []


@async_test
async def test_a_payment_on_which_the_provider_breaks_holds_up_no_other(database: str) -> None:
    """The provider raises an unexpected error, and the worker survives it."""
    async with payment_harness(database) as stage:
        all_ = [await open_payment(stage, user=f"u-{number}") for number in range(3)]
        stage.gateway.break_on_next_call = True
        await stage.advance_clock(60)
        for _ in range(3):
            with suppress(RuntimeError):
                await stage.reconciler.run_once()
            await stage.advance_clock(LEASE_SECONDS + 1)
        others = [money for _, money, ref in all_ if ref != stage.gateway.broken_ref]
        assert [await stage.payment_state(money) for money in others] == [("failed", None)] * 2


@async_test
async def test_a_payment_that_a_busy_engine_refuses_is_checked_again(database: str) -> None:
    async with payment_harness(database) as stage:
        _, money, _ = await open_payment(stage, "A-1")
        await stage.advance_clock(60)
        await stage.engine.close()
        await stage.reconciler.run_once()
        await stage.restart_engine()
        assert await stage.payment_state(money) == ("started", None)
        await stage.advance_clock(LEASE_SECONDS + 1)
        await stage.reconciler.run_once()
        assert await stage.payment_state(money) == ("failed", None)


# The same with real processes, and the sandbox.


def charge(database: str, payment: dict[str, Any]) -> str:
    (row,) = query(database, "SELECT status FROM sandbox_charge WHERE ref = $1", payment["provider_ref"])
    status: str = row["status"]
    return status


def status_of(client: httpx.Client, payment: dict[str, Any]) -> str:
    status: str = expect_ok(client.get(f"/v1/payments/{payment['id']}"))["status"]
    return status


def test_a_buyer_who_cancels_can_no_longer_pay(product: Server) -> None:
    database = product.database_url
    with product.client(Org(database).headers()) as admin:
        payment, other = start_payment(admin), start_payment(admin)
        expect_ok(admin.post(f"/v1/bookings/{payment['booking']}/cancel"))
        wait_until(lambda: charge(database, payment) == "closed", SECONDS)
        wait_until(lambda: status_of(admin, payment) == "failed", SECONDS)
        assert (charge(database, other), status_of(admin, other)) == ("open", "started")
        assert create_confirmed_booking(admin)
        assert post_payment(admin, payment["booking"]).status_code == 409
