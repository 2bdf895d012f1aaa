"""A late payment revives its booking if the units are still free and the grace period lasts; otherwise it is refunded.
The buyer gets an email in both cases."""

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
WITHIN_GRACE_SECONDS = [0, 0.1, 1, 59, 119.999, GRACE_SECONDS]
AFTER_GRACE_SECONDS = [GRACE_SECONDS + 0.001, 5 * HOLD_SECONDS, 10 * HOLD_SECONDS]

Step = Callable[[PaymentHarness], Awaitable[Any]]


async def do_nothing(_: PaymentHarness) -> None:
    return


async def create_endpoint(harness: PaymentHarness) -> str:
    """Create an endpoint of the org that receives every kind of event."""
    id_ = ids.new_id()
    await harness.connection.execute(
        "INSERT INTO webhook_endpoint (id, org_id, url, kinds, secret) VALUES ($1, $2, 'http://127.0.0.1:9', '{}', $3)",
        id_, harness.event.org, secrets.token_hex(8),
    )  # fmt: skip
    return id_.hex()


async def notifications_about(harness: PaymentHarness, booking: Booking) -> dict[str, list[str]]:
    """The notifications about the booking, by channel."""
    rows = await harness.connection.fetch(
        "SELECT channel, target, kind, body->>'email' AS email FROM delivery WHERE stream = $1 ORDER BY number",
        booking.id,
    )
    assert {row["email"] for row in rows if row["channel"] == "email"} <= {booking.email}
    return {channel: [row["kind"] for row in rows if row["channel"] == channel] for channel in ("email", "webhook")}


async def pay_late(
    harness: PaymentHarness, seconds: float, *seats: str, meanwhile: Step = do_nothing, before: Step = do_nothing
) -> tuple[Booking, Payment]:
    """Pay for a hold this long after it expired. `before` runs while it is held."""
    await create_endpoint(harness)
    booking = await harness.hold(*seats)
    payment = await harness.start_payment(booking)
    assert booking.expires_at is not None
    await before(harness)
    await harness.freeze_clock(booking.expires_at + timedelta(seconds=seconds / 2))
    await meanwhile(harness)
    await harness.freeze_clock(booking.expires_at + timedelta(seconds=seconds))
    harness.gateway.capture(payment.provider_ref or "")
    assert await harness.deliver_notice(payment)
    return booking, payment


async def check_revived(harness: PaymentHarness, booking: Booking, payment: Payment) -> None:
    assert await harness.status(booking) == "confirmed"
    assert await harness.payment_state(payment) == ("succeeded", "revived")
    kinds = await harness.journal_kinds(booking)
    assert kinds == ["held", "payment.started", "expired", "payment.succeeded", "confirmed"]
    sent = await notifications_about(harness, booking)
    assert sent["email"] == ["booking.expired", "booking.confirmed"]
    assert sent["webhook"] == [kind if "." in kind else f"booking.{kind}" for kind in kinds]
    await harness.refunds.run_once()
    assert harness.gateway.refunds == {}
    assert (await audit_all(db.Database(harness.connection)))[1] == []


async def check_refunded(harness: PaymentHarness, booking: Booking, payment: Payment, status: str = "expired") -> None:
    assert await harness.status(booking) == status
    assert await harness.payment_state(payment) == ("refund_due", None)
    row = await harness.row(payment)
    assert row["reason"]
    assert await harness.refunds.run_once() == 1
    assert await harness.refunds.run_once() == 0
    assert await harness.payment_state(payment) == ("refunded", "refunded")
    assert list(harness.gateway.refunds.values()) == [payment.provider_ref]
    kinds = await harness.journal_kinds(booking)
    assert kinds == ["held", "payment.started", status, "payment.refund_due", "payment.refunded"]
    sent = await notifications_about(harness, booking)
    assert sent["email"] == [f"booking.{status}", "payment.refund_due"]
    assert sent["webhook"] == [kind if "." in kind else f"booking.{kind}" for kind in kinds]
    assert (await audit_all(db.Database(harness.connection)))[1] == []


def other_hold(harness: PaymentHarness, *seats: str, user: str = "u-2", quantity: int = 1) -> PlaceHold:
    command = engine_harness.new_hold_command(harness.event, *seats, user=user)
    return command if seats else structs.replace(command, items=(PoolItem("places", quantity),))


def take_units(*seats: str, user: str = "u-2", quantity: int = 1, verb: BookingAction | None = None) -> Step:
    """A step in which another buyer books these seats, or this many places."""

    async def take(harness: PaymentHarness) -> None:
        taken = (await harness.execute(other_hold(harness, *seats, user=user, quantity=quantity))).booking
        if verb is not None:
            await harness.apply(taken, verb)

    return take


def end_event(status: EventStatus) -> Step:
    async def end(harness: PaymentHarness) -> None:
        await set_status(db.Database(harness.connection), harness.event.org, harness.event.id, status, ACTOR)
        await harness.engine.sweep(harness.event.id)

    return end


@pytest.mark.parametrize("seconds", WITHIN_GRACE_SECONDS)
@async_test
async def test_a_late_payment_within_the_grace_period_revives_the_booking(database: str, seconds: float) -> None:
    async with payment_harness(database) as harness:
        await check_revived(harness, *await pay_late(harness, seconds, "A-1"))


@pytest.mark.parametrize("seconds", AFTER_GRACE_SECONDS)
@async_test
async def test_a_late_payment_after_the_grace_period_is_refunded(database: str, seconds: float) -> None:
    async with payment_harness(database) as harness:
        await check_refunded(harness, *await pay_late(harness, seconds, "A-1"))


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
    async with payment_harness(database) as harness:
        await check_refunded(harness, *await pay_late(harness, seconds, "A-1", meanwhile=take_units("A-1", verb=verb)))
        assert await harness.connection.fetchval("SELECT count(*) FROM line WHERE live") == 1


@async_test
async def test_a_late_payment_revives_the_booking_if_another_hold_of_the_seat_ended(database: str) -> None:
    async with payment_harness(database) as harness:
        # The other hold began half-way and ends at this moment.
        await check_revived(harness, *await pay_late(harness, 2 * HOLD_SECONDS, "A-1", meanwhile=take_units("A-1")))


@async_test
async def test_a_late_payment_is_refunded_if_one_of_two_seats_is_taken(database: str) -> None:
    async with payment_harness(database) as harness:
        await check_refunded(harness, *await pay_late(harness, 1, "A-1", "A-2", meanwhile=take_units("A-2")))


@pytest.mark.parametrize(("left", "revived"), [(1, True), (0, False)])
@async_test
async def test_a_late_payment_revives_only_if_the_pool_has_room(database: str, left: int, revived: bool) -> None:
    capacity = 5
    places = {"code": "places", "capacity": capacity, "tariffs": [{"code": "full", "price": 1500}]}
    async with payment_harness(database, pools=[POOLS[0], places]) as harness:
        paid = await pay_late(harness, 1, meanwhile=take_units(quantity=capacity - left))
        await (check_revived if revived else check_refunded)(harness, *paid)


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
async def test_a_late_payment_revives_only_within_the_limits_of_its_buyer(
    database: str, policy: dict[str, Any], revived: bool
) -> None:
    async with payment_harness(database, policy=policy) as harness:
        paid = await pay_late(harness, 1, "A-1", meanwhile=take_units("A-2", user="u-1"))
        await (check_revived if revived else check_refunded)(harness, *paid)


@pytest.mark.parametrize("status", [EventStatus.CANCELLED, EventStatus.COMPLETED])
@async_test
async def test_a_late_payment_after_the_event_ended_is_refunded(database: str, status: EventStatus) -> None:
    async def end(harness: PaymentHarness) -> None:
        await harness.engine.sweep(harness.event.id)
        await end_event(status)(harness)

    async with payment_harness(database) as harness:
        await check_refunded(harness, *await pay_late(harness, 1, "A-1", meanwhile=end))


@async_test
async def test_a_payment_for_an_event_cancelled_meanwhile_is_refunded(database: str) -> None:
    async with payment_harness(database) as harness:
        paid = await pay_late(harness, 1, "A-1", before=end_event(EventStatus.CANCELLED))
        await check_refunded(harness, *paid, status="cancelled")


@pytest.mark.parametrize("seconds", [-30, 1])
@async_test
async def test_a_payment_for_a_cancelled_booking_is_refunded_even_if_the_seat_is_free(
    database: str, seconds: float
) -> None:
    async with payment_harness(database) as harness:

        async def cancel(harness: PaymentHarness) -> None:
            booking = await harness.connection.fetchval("SELECT id FROM booking")
            await harness.execute(engine_harness.new_action_command(harness.event, booking, Verb.CANCEL))

        paid = await pay_late(harness, seconds, "A-1", before=cancel)
        await check_refunded(harness, *paid, status="cancelled")


@async_test
async def test_the_first_of_two_late_payments_for_a_seat_gets_it(database: str) -> None:
    async with payment_harness(database) as harness:
        first = await harness.hold("A-1", user="u-1")
        payment = await harness.start_payment(first)
        await harness.advance_clock(HOLD_SECONDS)
        second = await harness.hold("A-1", user="u-2")
        other = await harness.start_payment(second)
        await harness.advance_clock(HOLD_SECONDS)
        assert await harness.deliver_notice(other)
        assert await harness.deliver_notice(payment)
        assert await harness.payment_state(other) == ("succeeded", "revived")
        assert await harness.payment_state(payment) == ("refund_due", None)
        assert (await harness.status(first), await harness.status(second)) == ("expired", "confirmed")
        assert (await audit_all(db.Database(harness.connection)))[1] == []


@async_test
async def test_a_payment_is_late_even_if_no_reaper_has_run(database: str) -> None:
    """The booking is still stored as held."""
    async with payment_harness(database, policy={"late_grace_seconds": 0}) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking)
        await harness.advance_clock(HOLD_SECONDS + 1)
        assert await harness.status(booking) == "held"
        assert await harness.deliver_notice(payment)
        assert await harness.status(booking) == "expired"
        assert await harness.payment_state(payment) == ("refund_due", None)


@async_test
async def test_the_buyer_gets_an_email_about_a_payment_for_a_refunded_booking(database: str) -> None:
    """The email about the first refund does not cover this payment."""
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        first, second = await harness.start_payment(booking), await harness.start_payment(booking)
        await harness.deliver_notice(first)
        await harness.apply(booking, Verb.REFUND)
        assert (await notifications_about(harness, booking))["email"] == ["booking.confirmed", "booking.refunded"]
        await harness.deliver_notice(second)
        assert await harness.payment_state(second) == ("refund_due", None)
        assert (await notifications_about(harness, booking))["email"][2:] == ["payment.refund_due"]


@async_test
async def test_a_buyer_without_an_email_address_is_refunded_without_an_email(database: str) -> None:
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1", email=None)
        payment = await harness.start_payment(booking)
        await harness.advance_clock(10 * HOLD_SECONDS)
        await harness.deliver_notice(payment)
        await harness.refunds.run_once()
        assert await harness.payment_state(payment) == ("refunded", "refunded")
        assert await notifications_about(harness, booking) == {"email": [], "webhook": []}


@async_test
async def test_a_late_failure_notice_refunds_nothing(database: str) -> None:
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking)
        await harness.advance_clock(2 * HOLD_SECONDS)
        await harness.deliver_notice(payment, PaymentResult.FAILED)
        assert await harness.payment_state(payment) == ("failed", None)
        assert await harness.status(booking) == "expired"
        assert await harness.refunds.run_once() == 0
