"""Stored notices about one payment take effect in the order they arrived, and a failing one delays nobody else."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import pytest
from structlog.testing import capture_logs

from holdfast.core.commands import SettlePayment
from holdfast.core.decide import Outcome
from holdfast.core.payment import Payment, PaymentResult
from holdfast.core.refusals import Refusal, Refused
from holdfast.payments.inbox import STUCK_AFTER, STUCK_RETRIES
from tests.support.engine_harness import async_test
from tests.support.payment_harness import PaymentHarness, payment_harness


async def store_notice(
    harness: PaymentHarness, payment: Payment, result: str, *, seconds_ago: int, due_seconds_ago: int
) -> None:
    """Store a notice whose process died before it acted on it."""
    now = await harness.now()
    await harness.connection.execute(
        "INSERT INTO payment_notice (provider, id, body, result, provider_ref, amount, currency, received_at, due_at) "
        "VALUES ('gateway', $1, '', $2, $3, $4, $5, $6, $7)",
        f"{result} {payment.id.hex()}", result, payment.provider_ref, payment.amount, payment.currency,
        now - timedelta(seconds=seconds_ago), now - timedelta(seconds=due_seconds_ago),
    )  # fmt: skip


@async_test
async def test_a_capture_and_its_refund_take_effect_in_the_order_they_arrived(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the other order, the booking would stay held although its payment was refunded."""

    async def delay_capture(command: SettlePayment) -> None:
        await asyncio.sleep(0.2 if command.result is PaymentResult.CAPTURED else 0)

    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking)
        await store_notice(harness, payment, "captured", seconds_ago=20, due_seconds_ago=1)
        await store_notice(harness, payment, "refunded", seconds_ago=10, due_seconds_ago=5)
        intercept(harness, monkeypatch, delay_capture)
        assert await harness.notice_retries.run_once() == 2
        assert await harness.status(booking) == "refunded"
        assert await harness.payment_state(payment) == ("refunded", "refunded")


@async_test
async def test_a_failing_notice_does_not_delay_others(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[bytes] = []

    async def break_once(command: SettlePayment) -> None:
        if command.payment in broken:
            broken.clear()
            raise RuntimeError

    async with payment_harness(database) as harness:
        bookings = [await harness.hold(f"A-{number}", user=f"u-{number}") for number in (1, 2, 3)]
        payments = [await harness.start_payment(booking) for booking in bookings]
        for payment in payments:
            await store_notice(harness, payment, "captured", seconds_ago=10, due_seconds_ago=1)
        broken.append(payments[0].id)
        intercept(harness, monkeypatch, break_once)
        with capture_logs() as logs:
            assert await harness.notice_retries.run_once() == 3
        assert [(log["event"], log["queue"], log["error"]) for log in logs if log["log_level"] == "error"] == [
            ("queue_row_failed", "inbox", "RuntimeError")
        ]
        assert [await harness.status(booking) for booking in bookings] == ["held", "confirmed", "confirmed"]
        await harness.advance_clock(6)
        assert await harness.notice_retries.run_once() == 1
        assert await harness.status(bookings[0]) == "confirmed"


@async_test
async def test_a_notice_that_keeps_failing_is_retried_ever_more_slowly_and_then_raises_an_alarm(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event stays locked, or something is broken. The notice is about money, so it stays due forever."""
    is_locked = True

    async def refuse(command: SettlePayment) -> Outcome:
        attempts.append(await harness.now())
        if len(attempts) % 2:
            raise RuntimeError
        return Refused(Refusal.BUSY) if is_locked else await submit(command)

    attempts: list[datetime] = []
    async with payment_harness(database) as harness:
        payment = await harness.start_payment(await harness.hold("A-1"))
        submit = harness.engine.submit
        monkeypatch.setattr(harness.engine, "submit", refuse)
        alarms: list[timedelta] = []
        with capture_logs() as logs:
            assert await harness.deliver_notice(payment)
            while len(alarms) < 4:
                (stored,) = await harness.notices()
                await harness.freeze_clock(stored["due_at"])
                logs.clear()
                assert await harness.notice_retries.run_once() == 1
                alarms += [attempts[-1] - attempts[0] for log in logs if log["event"] == "notice_stuck"]
        waits = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(attempts)]
        assert waits == [STUCK_RETRIES.seconds_after(attempt) for attempt in range(1, len(waits) + 1)]
        assert waits[-1] == STUCK_RETRIES.waits_seconds[-1]
        assert all(age >= STUCK_AFTER for age in alarms)
        assert stored["org_id"] == harness.event.org
        is_locked = False
        for _ in range(2):
            await harness.advance_clock(waits[-1])
            await harness.notice_retries.run_once()
        assert await harness.payment_state(payment) == ("refund_due", None), "the hold has expired long ago"


def intercept(
    harness: PaymentHarness, monkeypatch: pytest.MonkeyPatch, act: Callable[[SettlePayment], Awaitable[None]]
) -> None:
    """Run `act` before the engine gets a command."""
    submit = harness.engine.submit

    async def act_and_submit(command: SettlePayment) -> Outcome:
        await act(command)
        return await submit(command)

    monkeypatch.setattr(harness.engine, "submit", act_and_submit)
