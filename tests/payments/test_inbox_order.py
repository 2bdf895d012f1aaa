"""Stored notices about one payment take effect in the order they arrived, and a failing one delays nobody else."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from holdfast.core.commands import SettlePayment
from holdfast.core.decide import Outcome
from holdfast.core.payment import Payment, PaymentResult
from tests.support.engine_harness import async_test
from tests.support.payment_harness import PaymentHarness, payment_harness


async def store(stage: PaymentHarness, payment: Payment, news: str, *, seconds_ago: int, due_seconds_ago: int) -> None:
    """A notice whose process died before it acted on it."""
    now = await stage.now()
    await stage.connection.execute(
        "INSERT INTO payment_notice (provider, id, body, result, provider_ref, amount, currency, received_at, due_at) "
        "VALUES ('gateway', $1, '', $2, $3, $4, $5, $6, $7)",
        f"{news} {payment.id.hex()}", news, payment.provider_ref, payment.amount, payment.currency,
        now - timedelta(seconds=seconds_ago), now - timedelta(seconds=due_seconds_ago),
    )  # fmt: skip


@async_test
async def test_a_capture_and_its_refund_are_acted_on_in_the_order_of_their_arrival(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round, the booking would stay held although its money is back."""

    async def delay_capture(command: SettlePayment) -> None:
        await asyncio.sleep(0.2 if command.result is PaymentResult.CAPTURED else 0)

    async with payment_harness(database) as stage:
        booking = await stage.hold("A-1")
        payment = await stage.start_payment(booking)
        await store(stage, payment, "captured", seconds_ago=20, due_seconds_ago=1)
        await store(stage, payment, "refunded", seconds_ago=10, due_seconds_ago=5)
        intercept(stage, monkeypatch, delay_capture)
        assert await stage.inbox.run_once() == 2
        assert await stage.status(booking) == "refunded"
        assert await stage.payment_state(payment) == ("refunded", "refunded")


@async_test
async def test_a_notice_that_fails_does_not_keep_others_from_their_effect(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[bytes] = []

    async def break_once(command: SettlePayment) -> None:
        if command.payment in broken:
            broken.clear()
            raise RuntimeError

    async with payment_harness(database) as stage:
        bookings = [await stage.hold(f"A-{number}", user=f"u-{number}") for number in (1, 2, 3)]
        payments = [await stage.start_payment(booking) for booking in bookings]
        for payment in payments:
            await store(stage, payment, "captured", seconds_ago=10, due_seconds_ago=1)
        broken.append(payments[0].id)
        intercept(stage, monkeypatch, break_once)
        with capture_logs() as logs:
            assert await stage.inbox.run_once() == 3
        assert [(log["event"], log["queue"], log["error"]) for log in logs if log["log_level"] == "error"] == [
            ("queue_row_failed", "inbox", "RuntimeError")
        ]
        assert [await stage.status(booking) for booking in bookings] == ["held", "confirmed", "confirmed"]
        await stage.advance_clock(6)
        assert await stage.inbox.run_once() == 1
        assert await stage.status(bookings[0]) == "confirmed"


def intercept(
    stage: PaymentHarness, monkeypatch: pytest.MonkeyPatch, act: Callable[[SettlePayment], Awaitable[None]]
) -> None:
    """Do this before the engine gets a command."""
    submit = stage.engine.submit

    async def act_and_submit(command: SettlePayment) -> Outcome:
        await act(command)
        return await submit(command)

    monkeypatch.setattr(stage.engine, "submit", act_and_submit)
