"""A late payment revives its booking if the units are still free and the grace period lasts; otherwise it is refunded.
The buyer hears about both."""

import secrets
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from holdfast.core.booking import Booking
from holdfast.core.commands import BookingAction, PlaceHold, PoolItem
from holdfast.core.payment import Payment, PaymentResult
from holdfast.core.states import EventStatus, Verb
from holdfast.engine.auditor import audit_all
from holdfast.engine.event_editor import set_status
from holdfast.runtime import db, ids
from tests.support import engine_harness
from tests.support.engine_harness import ACTOR, async_test
from tests.support.payment_harness import POOLS, PaymentHarness, payment_harness

HOLD_SECONDS = 60
GRACE_SECONDS = 120
IN_THE_GRACE = [0, 0.1, 1, 59, 119.999, GRACE_SECONDS]
AFTER_THE_GRACE = [GRACE_SECONDS + 0.001, 5 * HOLD_SECONDS, 10 * HOLD_SECONDS]

Meanwhile = Callable[[PaymentHarness], Awaitable[Any]]


async def nothing(_: PaymentHarness) -> None:
    return


async def watch(stage: PaymentHarness) -> str:
    """An endpoint of the org that receives every kind of event."""
    id_ = ids.new_id()
    await stage.connection.execute(
        "INSERT INTO webhook_endpoint (id, org_id, url, kinds, secret) VALUES ($1, $2, 'http://127.0.0.1:9', '{}', $3)",
        id_, stage.event.org, secrets.token_hex(8),
    )  # fmt: skip
    return id_.hex()


async def notifications_about(stage: PaymentHarness, booking: Booking) -> dict[str, list[str]]:
    """The notifications about the booking, by channel."""
    rows = await stage.connection.fetch(
        "SELECT channel, target, kind, body->>'email' AS email FROM delivery WHERE stream = $1 ORDER BY number",
        booking.id,
    )
    assert {row["email"] for row in rows if row["channel"] == "mail"} <= {booking.email}
    return {channel: [row["kind"] for row in rows if row["channel"] == channel] for channel in ("mail", "webhook")}


async def pay_late(
    stage: PaymentHarness, seconds: float, *seats: str, meanwhile: Meanwhile = nothing, before: Meanwhile = nothing
) -> tuple[Booking, Payment]:
    """Pay for a hold this long after it expired. `before` runs while it is held."""
    await watch(stage)
    booking = await stage.hold(*seats)
    money = await stage.start_payment(booking)
    assert booking.expires_at is not None
    await before(stage)
    await stage.freeze_clock(booking.expires_at + timedelta(seconds=seconds / 2))
    await meanwhile(stage)
    await stage.freeze_clock(booking.expires_at + timedelta(seconds=seconds))
    stage.gateway.capture(money.provider_ref or "")
    assert await stage.deliver_notice(money)
    return booking, money


async def check_revived(stage: PaymentHarness, booking: Booking, money: Payment) -> None:
    assert await stage.status(booking) == "confirmed"
    assert await stage.payment_state(money) == ("succeeded", "revived")
    facts = await stage.journal_kinds(booking)
    assert facts == ["held", "payment.started", "expired", "payment.succeeded", "confirmed"]
    heard = await notifications_about(stage, booking)
    assert heard["mail"] == ["booking.expired", "booking.confirmed"]
    assert heard["webhook"] == [kind if "." in kind else f"booking.{kind}" for kind in facts]
    await stage.refunds.run_once()
    assert stage.gateway.refunds == {}
    assert (await audit_all(db.Database(stage.connection)))[1] == []


async def check_refunded(stage: PaymentHarness, booking: Booking, money: Payment, status: str = "expired") -> None:
    assert await stage.status(booking) == status
    assert await stage.payment_state(money) == ("refund_due", None)
    row = await stage.row(money)
    assert row["reason"]
    assert await stage.refunds.run_once() == 1
    assert await stage.refunds.run_once() == 0
    assert await stage.payment_state(money) == ("refunded", "refunded")
    assert list(stage.gateway.refunds.values()) == [money.provider_ref]
    facts = await stage.journal_kinds(booking)
    assert facts == ["held", "payment.started", status, "payment.refund_due", "payment.refunded"]
    heard = await notifications_about(stage, booking)
    assert heard["mail"] == [f"booking.{status}", "payment.refund_due"]
    assert heard["webhook"] == [kind if "." in kind else f"booking.{kind}" for kind in facts]
    assert (await audit_all(db.Database(stage.connection)))[1] == []


def someone(stage: PaymentHarness, *seats: str, user: str = "u-2", quantity: int = 1) -> PlaceHold:
    command = engine_harness.new_hold_command(stage.event, *seats, user=user)
    return command if seats else structs.replace(command, items=(PoolItem("places", quantity),))


def takes(*seats: str, user: str = "u-2", quantity: int = 1, verb: BookingAction | None = None) -> Meanwhile:
    """Somebody takes these seats, or places."""

    async def take(stage: PaymentHarness) -> None:
        taken = (await stage.execute(someone(stage, *seats, user=user, quantity=quantity))).booking
        if verb is not None:
            await stage.apply(taken, verb)

    return take


def is_over(status: EventStatus) -> Meanwhile:
    async def end(stage: PaymentHarness) -> None:
        await set_status(db.Database(stage.connection), stage.event.org, stage.event.id, status, ACTOR)
        await stage.engine.sweep(stage.event.id)

    return end


@pytest.mark.parametrize("seconds", IN_THE_GRACE)
@async_test
async def test_the_seat_is_free_and_it_is_not_too_late(database: str, seconds: float) -> None:
    async with payment_harness(database) as stage:
        await check_revived(stage, *await pay_late(stage, seconds, "A-1"))


@pytest.mark.parametrize("seconds", AFTER_THE_GRACE)
@async_test
async def test_the_seat_is_free_but_it_is_too_late(database: str, seconds: float) -> None:
    async with payment_harness(database) as stage:
        await check_refunded(stage, *await pay_late(stage, seconds, "A-1"))


@pytest.mark.parametrize(
    ("seconds", "verb"),
    [
        (0.1, None),
        (60, None),
        (119, None),
        (0.1, Verb.CONFIRM),
        (GRACE_SECONDS, Verb.CONFIRM),
        (10 * HOLD_SECONDS, Verb.CONFIRM),
    ],
)
@async_test
async def test_a_late_payment_is_refunded_if_somebody_took_the_seat(
    database: str, seconds: float, verb: BookingAction | None
) -> None:
    async with payment_harness(database) as stage:
        await check_refunded(stage, *await pay_late(stage, seconds, "A-1", meanwhile=takes("A-1", verb=verb)))
        assert await stage.connection.fetchval("SELECT count(*) FROM line WHERE live") == 1


@async_test
async def test_a_late_payment_revives_the_booking_if_the_seat_is_free_again(database: str) -> None:
    async with payment_harness(database) as stage:
        # Their hold began half-way, and ends at this very moment.
        await check_revived(stage, *await pay_late(stage, 2 * HOLD_SECONDS, "A-1", meanwhile=takes("A-1")))


@async_test
async def test_a_late_payment_is_refunded_if_one_of_two_seats_is_taken(database: str) -> None:
    async with payment_harness(database) as stage:
        await check_refunded(stage, *await pay_late(stage, 1, "A-1", "A-2", meanwhile=takes("A-2")))


@pytest.mark.parametrize(("left", "revived"), [(1, True), (0, False)])
@async_test
async def test_the_pool_has_room_or_not(database: str, left: int, revived: bool) -> None:
    capacity = 5
    places = {"code": "places", "capacity": capacity, "tariffs": [{"code": "full", "price": 1500}]}
    async with payment_harness(database, pools=[POOLS[0], places]) as stage:
        paid = await pay_late(stage, 1, meanwhile=takes(quantity=capacity - left))
        await (check_revived if revived else check_refunded)(stage, *paid)


@pytest.mark.parametrize(
    ("policy", "revived"),
    [
        ({"one_booking_per_user": True}, False),
        ({"max_units_per_user": 1}, False),
        ({"max_units_per_user": 2}, True),
        ({}, True),
    ],
)
@async_test
async def test_the_buyer_has_booked_something_else_meanwhile(
    database: str, policy: dict[str, Any], revived: bool
) -> None:
    async with payment_harness(database, policy=policy) as stage:
        paid = await pay_late(stage, 1, "A-1", meanwhile=takes("A-2", user="u-1"))
        await (check_revived if revived else check_refunded)(stage, *paid)


@pytest.mark.parametrize("status", [EventStatus.CANCELLED, EventStatus.COMPLETED])
@async_test
async def test_the_hold_had_ended_before_its_event_did(database: str, status: EventStatus) -> None:
    async def end(stage: PaymentHarness) -> None:
        await stage.engine.sweep(stage.event.id)
        await is_over(status)(stage)

    async with payment_harness(database) as stage:
        await check_refunded(stage, *await pay_late(stage, 1, "A-1", meanwhile=end))


@async_test
async def test_the_event_was_cancelled_while_the_buyer_paid(database: str) -> None:
    async with payment_harness(database) as stage:
        paid = await pay_late(stage, 1, "A-1", before=is_over(EventStatus.CANCELLED))
        await check_refunded(stage, *paid, status="cancelled")


@pytest.mark.parametrize("seconds", [-30, 1])
@async_test
async def test_the_buyer_has_cancelled_although_the_seat_is_still_free(database: str, seconds: float) -> None:
    async with payment_harness(database) as stage:

        async def cancel(stage: PaymentHarness) -> None:
            booking = await stage.connection.fetchval("SELECT id FROM booking")
            await stage.execute(engine_harness.new_action_command(stage.event, booking, Verb.CANCEL))

        paid = await pay_late(stage, seconds, "A-1", before=cancel)
        await check_refunded(stage, *paid, status="cancelled")


@async_test
async def test_two_have_paid_late_for_the_same_seat(database: str) -> None:
    async with payment_harness(database) as stage:
        first = await stage.hold("A-1", user="u-1")
        money = await stage.start_payment(first)
        await stage.advance_clock(HOLD_SECONDS)
        second = await stage.hold("A-1", user="u-2")
        other = await stage.start_payment(second)
        await stage.advance_clock(HOLD_SECONDS)
        assert await stage.deliver_notice(other)
        assert await stage.deliver_notice(money)
        assert await stage.payment_state(other) == ("succeeded", "revived")
        assert await stage.payment_state(money) == ("refund_due", None)
        assert (await stage.status(first), await stage.status(second)) == ("expired", "confirmed")
        assert (await audit_all(db.Database(stage.connection)))[1] == []


@async_test
async def test_a_payment_is_late_even_if_nobody_noticed_the_expiry(database: str) -> None:
    """No reaper has run, so the booking is still stored as held."""
    async with payment_harness(database, policy={"late_grace_seconds": 0}) as stage:
        booking = await stage.hold("A-1")
        money = await stage.start_payment(booking)
        await stage.advance_clock(HOLD_SECONDS + 1)
        assert await stage.status(booking) == "held"
        assert await stage.deliver_notice(money)
        assert await stage.status(booking) == "expired"
        assert await stage.payment_state(money) == ("refund_due", None)


@async_test
async def test_the_buyer_hears_of_a_payment_for_a_refunded_booking(database: str) -> None:
    """The buyer knows of the first refund and not of this payment."""
    async with payment_harness(database) as stage:
        booking = await stage.hold("A-1")
        first, second = await stage.start_payment(booking), await stage.start_payment(booking)
        await stage.deliver_notice(first)
        await stage.apply(booking, Verb.REFUND)
        assert (await notifications_about(stage, booking))["mail"] == ["booking.confirmed", "booking.refunded"]
        await stage.deliver_notice(second)
        assert await stage.payment_state(second) == ("refund_due", None)
        assert (await notifications_about(stage, booking))["mail"][2:] == ["payment.refund_due"]


@async_test
async def test_a_buyer_without_an_address_is_refunded_without_an_email(database: str) -> None:
    async with payment_harness(database) as stage:
        booking = await stage.hold("A-1", email=None)
        money = await stage.start_payment(booking)
        await stage.advance_clock(10 * HOLD_SECONDS)
        await stage.deliver_notice(money)
        await stage.refunds.run_once()
        assert await stage.payment_state(money) == ("refunded", "refunded")
        assert await notifications_about(stage, booking) == {"mail": [], "webhook": []}


@async_test
async def test_a_late_failure_notice_costs_nobody_anything(database: str) -> None:
    async with payment_harness(database) as stage:
        booking = await stage.hold("A-1")
        money = await stage.start_payment(booking)
        await stage.advance_clock(2 * HOLD_SECONDS)
        await stage.deliver_notice(money, PaymentResult.FAILED)
        assert await stage.payment_state(money) == ("failed", None)
        assert await stage.status(booking) == "expired"
        assert await stage.refunds.run_once() == 0
