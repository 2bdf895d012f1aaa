"""A payment of which its provider tells nothing is asked about until it is clear what became of it, and what is still
open when the hold has ended is closed."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from holdfast.core.model import Booking
from holdfast.core.payment import Payment, PaymentResult
from holdfast.core.states import Verb
from holdfast.engine.auditor import audit_all
from holdfast.payments.due import LEASE_SECONDS
from holdfast.payments.provider import ProviderError, ProviderRefusedError
from holdfast.payments.reconciler import LONGEST_WAIT_SECONDS, UNKNOWN
from tests.answers import accepted
from tests.house import Org, serving, sql, wait_until
from tests.inside import in_a_loop
from tests.money import Till, till
from tests.things import confirmed, pay, started

SECONDS = 30
LONG = {"hold_seconds": 600}
DAY = 86_400


async def open_payment(stage: Till, *seats: str, user: str = "u-1") -> tuple[Booking, Payment, str]:
    booking = await stage.hold(*seats, user=user)
    money = await stage.begin(booking)
    assert money.provider_ref is not None
    return booking, money, money.provider_ref


def errors(logs: Any) -> list[str]:
    return [entry["event"] for entry in logs if entry["log_level"] == "error"]


@in_a_loop
async def test_an_open_payment_is_looked_at_every_minute_of_its_hold_and_closed_at_its_end(database: str) -> None:
    async with till(database, policy={"hold_seconds": 150}) as stage:
        _, money, ref = await open_payment(stage, "A-1")
        for seconds, calls in ((59, 0), (1, 1), (59, 1), (1, 2), (29, 2)):
            await stage.wait(seconds)
            await stage.reconciler.run_once()
            assert stage.gateway.calls_of("look_up") == [ref] * calls
        assert stage.gateway.calls_of("close") == []
        await stage.wait(1)
        await stage.reconciler.run_once()
        assert stage.gateway.calls_of("close") == [ref]
        assert await stage.stands(money) == ("failed", None)
        await stage.wait(DAY)
        assert await stage.reconciler.run_once() == 0


@in_a_loop
async def test_money_of_which_no_notice_came_confirms_the_booking_in_time(database: str) -> None:
    async with till(database, policy=LONG) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.capture(ref)
        await stage.wait(61)
        assert await stage.reconciler.run_once() == 1
        assert await stage.stands(money) == ("succeeded", "fulfilled")
        assert await stage.status(booking) == "confirmed"
        assert await stage.entries(booking) == ["held", "payment.started", "payment.succeeded", "confirmed"]
        assert await stage.reconciler.run_once() == 0


@pytest.mark.parametrize(("late_seconds", "stands"), [(1, ("succeeded", "revived")), (3600, ("refund_due", None))])
@in_a_loop
async def test_money_of_which_no_notice_came_is_found_when_the_hold_has_ended(
    database: str, late_seconds: int, stands: tuple[str, str | None]
) -> None:
    async with till(database) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.capture(ref)
        await stage.wait(60 + late_seconds)
        assert await stage.reconciler.run_once() == 1
        assert stage.gateway.calls_of("close") == [ref]
        assert await stage.stands(money) == stands
        assert await stage.status(booking) == ("confirmed" if stands[1] == "revived" else "expired")
        assert (await audit_all(stage.connection))[1] == []


@in_a_loop
async def test_money_of_the_wrong_sum_that_is_found_is_for_a_person(database: str) -> None:
    async with till(database, policy=LONG) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.capture(ref, amount=1)
        await stage.wait(61)
        await stage.reconciler.run_once()
        assert await stage.stands(money) == ("review", "review")
        assert await stage.status(booking) == "held"


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.CONFIRM])
@in_a_loop
async def test_a_booking_that_needs_no_money_any_more_has_its_checkout_closed_at_once(
    database: str, verb: Verb
) -> None:
    async with till(database, policy=LONG) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        assert await stage.reconciler.run_once() == 0
        await stage.act(booking, verb)
        assert await stage.reconciler.run_once() == 1
        assert stage.gateway.calls == [("close", ref)]
        assert await stage.stands(money) == ("failed", None)


@in_a_loop
async def test_a_hold_that_ends_has_its_checkout_closed_at_once(database: str) -> None:
    async with till(database, policy={"hold_seconds": 30}) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        await stage.wait(30)
        await stage.engine.sweep(stage.event.id)
        assert await stage.status(booking) == "expired"
        assert await stage.reconciler.run_once() == 1
        assert stage.gateway.calls == [("close", ref)]
        assert await stage.stands(money) == ("failed", None)


@in_a_loop
async def test_the_other_checkout_of_a_booking_that_is_paid_for_is_closed_at_once(database: str) -> None:
    async with till(database, policy=LONG) as stage:
        booking, first, _ = await open_payment(stage, "A-1")
        second = await stage.begin(booking)
        await stage.tell(first)
        assert await stage.reconciler.run_once() == 1
        assert stage.gateway.calls == [("close", second.provider_ref)]
        assert await stage.stands(second) == ("failed", None)


@in_a_loop
async def test_a_checkout_that_was_paid_before_it_could_be_closed_is_paid_back(database: str) -> None:
    async with till(database, policy=LONG) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.capture(ref)
        await stage.act(booking, Verb.CANCEL)
        await stage.reconciler.run_once()
        assert await stage.stands(money) == ("refund_due", None)
        await stage.refunds.run_once()
        assert await stage.stands(money) == ("refunded", "refunded")
        assert list(stage.gateway.refunds.values()) == [ref]


@in_a_loop
async def test_a_payment_that_never_got_as_far_as_the_provider_fails_with_its_hold(database: str) -> None:
    async with till(database) as stage:
        booking = await stage.hold("A-1")
        money = await stage.begin(booking, ask=False)
        await stage.wait(30)
        await stage.reconciler.run_once()
        assert await stage.stands(money) == ("started", None)
        await stage.wait(30)
        assert await stage.reconciler.run_once() == 1
        assert await stage.stands(money) == ("failed", None)
        assert stage.gateway.calls == []


@pytest.mark.parametrize("trouble", [ProviderError, ProviderRefusedError])
@in_a_loop
async def test_a_provider_that_is_silent_is_asked_ever_more_seldom_and_after_a_day_a_person_is(
    database: str, trouble: type[Exception]
) -> None:
    async with till(database) as stage:
        booking, money, _ = await open_payment(stage, "A-1")
        stage.gateway.troubles["close"] = [trouble("silent")] * 100
        await stage.wait(60)
        logged: list[str] = []
        waits: list[float] = []
        start = await stage.now()
        while (await stage.stands(money))[0] == "started":
            assert len(waits) < 100
            with capture_logs() as logs:
                assert await stage.reconciler.run_once() == 1
            logged += errors(logs)
            due_seconds = (await stage.row(money))["due_seconds"]
            if due_seconds is not None:
                waits.append(due_seconds)
                await stage.wait(due_seconds)
        assert logged == ["payment_needs_a_person"]
        assert waits == sorted(waits)
        assert waits[0] < 10
        assert waits[-1] == LONGEST_WAIT_SECONDS
        silence = await stage.now() - start
        assert UNKNOWN < silence <= UNKNOWN + timedelta(seconds=LONGEST_WAIT_SECONDS)
        assert await stage.stands(money) == ("review", "review")
        assert (await stage.entries(booking))[-1] == "payment.review"
        assert (await audit_all(stage.connection))[1] == []
        await stage.wait(DAY)
        assert await stage.reconciler.run_once() == 0


@in_a_loop
async def test_a_provider_that_speaks_again_is_heard(database: str) -> None:
    async with till(database) as stage:
        _, money, ref = await open_payment(stage, "A-1")
        stage.gateway.troubles["close"] = [ProviderError("silent")] * 3
        stage.gateway.capture(ref)
        await stage.wait(60)
        for _ in range(4):
            await stage.reconciler.run_once()
            await stage.wait(20)
        assert await stage.stands(money) == ("succeeded", "revived")


@in_a_loop
async def test_a_provider_that_is_not_set_up_any_more_is_silent(database: str) -> None:
    async with till(database) as stage:
        _, money, ref = await open_payment(stage, "A-1")
        stage.set_up({})
        await stage.wait(60)
        await stage.reconciler.run_once()
        assert await stage.stands(money) == ("started", None)
        stage.set_up({"gateway": stage.gateway})
        await stage.wait(60)
        await stage.reconciler.run_once()
        assert stage.gateway.calls == [("close", ref)]


@pytest.mark.parametrize("news", [PaymentResult.CAPTURED, PaymentResult.FAILED])
@in_a_loop
async def test_what_the_provider_says_after_a_person_was_asked_still_counts(database: str, news: PaymentResult) -> None:
    async with till(database) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.troubles["close"] = [ProviderError("silent")] * 100
        await stage.wait(60 + UNKNOWN.total_seconds() + 1)
        await stage.reconciler.run_once()
        assert await stage.stands(money) == ("review", "review")
        assert await stage.tell(money, news)
        if news is PaymentResult.CAPTURED:
            assert await stage.stands(money) == ("refund_due", None)
            await stage.refunds.run_once()
            assert await stage.stands(money) == ("refunded", "refunded")
            assert list(stage.gateway.refunds.values()) == [ref]
        else:
            assert (await stage.stands(money))[0] in ("failed", "review")
        assert await stage.status(booking) == "expired"
        assert (await audit_all(stage.connection))[1] == []


@in_a_loop
async def test_a_notice_that_comes_while_the_provider_is_asked_counts_once(database: str) -> None:
    async with till(database, policy=LONG) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.capture(ref)
        await stage.tell(money)
        facts = await stage.entries(booking)
        await stage.settle(money, booking)
        assert await stage.entries(booking) == facts
        await stage.wait(61)
        assert await stage.reconciler.run_once() == 0


@in_a_loop
async def test_money_that_came_and_went_before_we_heard_of_it_comes_to_an_end(database: str) -> None:
    """Somebody has paid it back at the provider, and no notice ever came. The provider is not asked for ever."""
    async with till(database) as stage:
        booking, money, ref = await open_payment(stage, "A-1")
        stage.gateway.result[ref] = PaymentResult.REFUNDED
        for _ in range(30):
            await stage.wait(7200)
            await stage.reconciler.run_once()
        assert (await stage.stands(money))[0] in ("refunded", "review", "failed")
        assert await stage.status(booking) == "expired"
        assert (await audit_all(stage.connection))[1] == []


@in_a_loop
async def test_a_payment_on_which_the_provider_breaks_holds_up_no_other(database: str) -> None:
    """What it raises is nothing that anybody has thought of. The worker goes on when a job fails."""
    async with till(database) as stage:
        all_ = [await open_payment(stage, user=f"u-{number}") for number in range(3)]
        stage.gateway.curses = True
        await stage.wait(60)
        for _ in range(3):
            with suppress(RuntimeError):
                await stage.reconciler.run_once()
            await stage.wait(LEASE_SECONDS + 1)
        others = [money for _, money, ref in all_ if ref != stage.gateway.cursed]
        assert [await stage.stands(money) for money in others] == [("failed", None)] * 2


@in_a_loop
async def test_what_the_desk_has_no_room_for_is_asked_again(database: str) -> None:
    async with till(database) as stage:
        _, money, _ = await open_payment(stage, "A-1")
        await stage.wait(60)
        await stage.engine.close()
        await stage.reconciler.run_once()
        await stage.restart_engine()
        assert await stage.stands(money) == ("started", None)
        await stage.wait(LEASE_SECONDS + 1)
        await stage.reconciler.run_once()
        assert await stage.stands(money) == ("failed", None)


# The same with real processes, and the sandbox.


def charge(database: str, payment: dict[str, Any]) -> str:
    (row,) = sql(database, "SELECT status FROM sandbox_charge WHERE ref = $1", payment["provider_ref"])
    status: str = row["status"]
    return status


def status_of(client: httpx.Client, payment: dict[str, Any]) -> str:
    status: str = accepted(client.get(f"/v1/payments/{payment['id']}"))["status"]
    return status


def test_who_cancels_can_no_longer_pay(database: str) -> None:
    with serving(database, workers=1, worker=True) as server:
        with server.client(Org(database).headers()) as admin:
            payment, other = started(admin), started(admin)
            accepted(admin.post(f"/v1/bookings/{payment['booking']}/cancel"))
            wait_until(lambda: charge(database, payment) == "closed", SECONDS)
            wait_until(lambda: status_of(admin, payment) == "failed", SECONDS)
            assert (charge(database, other), status_of(admin, other)) == ("open", "started")
            assert confirmed(admin)
            assert pay(admin, payment["booking"]).status_code == 409
