"""A browser that subscribed to a hold hears once of each deadline, two minutes before it, unless the hold is paid."""

import asyncio
import hashlib
from typing import Any

import pytest
from msgspec import json

from holdfast import sql
from holdfast.core.commands import Accepted, SettlePayment, StartPayment
from holdfast.core.notification_rules import HOLD_ENDING
from holdfast.core.payment import PaymentResult
from holdfast.core.states import Verb
from holdfast.notifications.hold_warnings import (
    SUBSCRIPTIONS_MAX,
    WAITING_SECONDS,
    WARNING_SECONDS,
    warn_of_ending_holds,
)
from holdfast.notifications.push_subscriptions import list_endpoint_hashes, subscribe
from holdfast.runtime import db, ids
from tests.support.buyer_messages import BuyerMessages, buyer_messages
from tests.support.engine_harness import EventHandle, async_test, remove_guard
from tests.support.harness import connection_to
from tests.support.push_service import SubscribedBrowser

MINUTE = 60
TEN_MINUTES: Any = {"policy": {"hold_seconds": 600, "extend_seconds": 300, "max_hold_seconds": 3600}}


async def subscribe_browser(
    messages: BuyerMessages, event: EventHandle, booking: bytes, endpoint: str = "https://push.example/1"
) -> bool:
    browser = SubscribedBrowser(endpoint, "")
    return await subscribe(messages.database, event.id, booking, browser.subscription(1))


async def count_warnings(messages: BuyerMessages) -> int:
    await warn_of_ending_holds(messages.database)
    count: int = await messages.connection.fetchval("SELECT count(*) FROM delivery WHERE kind = $1", HOLD_ENDING)
    return count


async def count_subscriptions(messages: BuyerMessages) -> int:
    count: int = await messages.connection.fetchval("SELECT count(*) FROM push_subscription")
    return count


async def new_hold(messages: BuyerMessages, **changes: Any) -> tuple[EventHandle, bytes]:
    """A hold of ten minutes with a subscription."""
    event = await messages.new_event(**{**TEN_MINUTES, **changes})
    booking = await messages.hold(event)
    assert await subscribe_browser(messages, event, booking)
    return event, booking


@async_test
async def test_the_warning_comes_two_minutes_before_the_end_and_once(database: str) -> None:
    async with buyer_messages(database) as messages:
        await new_hold(messages)
        await messages.pass_seconds(7 * MINUTE)
        assert await count_warnings(messages) == 0
        await messages.pass_seconds(MINUTE + 1)
        assert [await count_warnings(messages) for _ in range(3)] == [1, 1, 1]
        await messages.pass_seconds(MINUTE)
        assert await count_warnings(messages) == 1


@async_test
async def test_an_extended_hold_is_warned_of_its_new_deadline(database: str) -> None:
    async with buyer_messages(database) as messages:
        event, booking = await new_hold(messages)
        await messages.pass_seconds(6 * MINUTE)
        await messages.act(event, booking, Verb.EXTEND)
        await messages.pass_seconds(2 * MINUTE + 1)
        assert await count_warnings(messages) == 0, "the hold now ends after eleven minutes"
        await messages.pass_seconds(MINUTE)
        assert await count_warnings(messages) == 1
        await messages.act(event, booking, Verb.EXTEND)
        await messages.pass_seconds(2 * MINUTE)
        assert await count_warnings(messages) == 1, "after the extension there are three minutes left"
        await messages.pass_seconds(MINUTE + 1)
        assert [await count_warnings(messages) for _ in range(2)] == [2, 2]


async def _pay(messages: BuyerMessages, event: EventHandle, booking: bytes) -> None:
    payment = ids.new_id()
    of_booking: Any = {"event": event.id, "org": event.org, "booking": booking, "actor": "user:ada"}
    start = StartPayment(**of_booking, payment=payment, provider="sandbox", request_key=payment, fingerprint=payment)
    assert isinstance(await messages.engine.submit(start), Accepted)
    settle = SettlePayment(**of_booking, payment=payment, result=PaymentResult.CAPTURED, amount=119, currency="EUR")
    assert isinstance(await messages.engine.submit(settle), Accepted)


async def _cancel(messages: BuyerMessages, event: EventHandle, booking: bytes) -> None:
    await messages.act(event, booking, Verb.CANCEL)


@pytest.mark.parametrize("end", [_pay, _cancel])
@async_test
async def test_a_hold_that_is_paid_or_released_causes_no_warning_and_leaves_no_subscription(
    database: str, end: Any
) -> None:
    async with buyer_messages(database) as messages:
        event, booking = await new_hold(messages)
        await end(messages, event, booking)
        await messages.pass_seconds(8 * MINUTE + 1)
        assert await count_warnings(messages) == 0
        assert await count_subscriptions(messages) == 0


@async_test
async def test_a_payment_that_waits_for_a_person_counts_as_paid(database: str) -> None:
    async with buyer_messages(database) as messages:
        event, booking = await new_hold(messages)
        # As after a capture with another amount: the booking is still held, and staff review the payment.
        await messages.connection.execute(
            """INSERT INTO payment (event_id, id, org_id, booking_id, provider, status, amount, currency, request_key,
                                    fingerprint, created_at, captured_at)
            VALUES ($1, $2, $3, $4, 'x', 'review', 1, 'EUR', 'k', '', now(), now())""",
            event.id,
            ids.new_id(),
            event.org,
            booking,
        )
        await messages.pass_seconds(8 * MINUTE + 1)
        assert await count_warnings(messages) == 0


@async_test
async def test_a_worker_that_was_down_warns_late_or_not_at_all(database: str) -> None:
    async with buyer_messages(database) as messages:
        await new_hold(messages)
        await messages.pass_seconds(9 * MINUTE + 30)
        assert await count_warnings(messages) == 1
        await new_hold(messages)
        await messages.pass_seconds(11 * MINUTE)
        assert await count_warnings(messages) == 1


@async_test
async def test_many_workers_warn_once(database: str) -> None:
    async with buyer_messages(database) as messages:
        event = await messages.new_event(**TEN_MINUTES)
        for number in range(20):
            await subscribe_browser(messages, event, await messages.hold(event, f"u{number}"))
        await messages.pass_seconds(8 * MINUTE + 1)
        await asyncio.gather(*(warn_of_ending_holds(messages.database) for _ in range(6)))
        assert await count_warnings(messages) == 20


@async_test
async def test_without_locks_two_workers_warn_twice(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above. A lock on the subscription holds both workers after they have looked."""
    monkeypatch.setattr(sql.push, "warn", remove_guard("FOR UPDATE SKIP LOCKED", sql.push.warn))
    async with buyer_messages(database) as messages:
        await new_hold(messages)
        await messages.pass_seconds(8 * MINUTE + 1)
        blocker = await messages.pool.acquire()
        observer = await messages.pool.acquire()
        await blocker.execute("BEGIN")
        await blocker.execute("SELECT FROM push_subscription FOR UPDATE")
        workers = [asyncio.create_task(warn_of_ending_holds(messages.database)) for _ in range(2)]
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while await observer.fetchval(waiting) < 2:
            await asyncio.sleep(0.01)
        await blocker.execute("ROLLBACK")
        await asyncio.gather(*workers)
        await messages.pool.release(blocker)
        await messages.pool.release(observer)
        assert await messages.connection.fetchval("SELECT count(*) FROM delivery WHERE kind = $1", HOLD_ENDING) == 2


@async_test
async def test_a_subscription_in_the_last_two_minutes_causes_no_warning(database: str) -> None:
    async with buyer_messages(database) as messages:
        event = await messages.new_event(**TEN_MINUTES)
        booking = await messages.hold(event)
        await messages.pass_seconds(9 * MINUTE)
        assert await subscribe_browser(messages, event, booking)
        assert await count_warnings(messages) == 0


@async_test
async def test_only_a_booking_that_waits_for_something_takes_subscriptions(database: str) -> None:
    async with buyer_messages(database) as messages:
        event = await messages.new_event(**TEN_MINUTES)
        assert not await subscribe_browser(messages, event, await messages.book(event))
        assert not await subscribe_browser(messages, event, ids.new_id())
        expired = await messages.hold(event, "bob")
        await messages.pass_seconds(11 * MINUTE)
        assert not await subscribe_browser(messages, event, expired)


@async_test
async def test_a_booking_has_at_most_three_subscriptions(database: str) -> None:
    async with buyer_messages(database) as messages:
        event, booking = await new_hold(messages)
        for number in (2, 3, 2, 4, 5):
            await subscribe_browser(messages, event, booking, f"https://push.example/{number}")
        assert await count_subscriptions(messages) == 3
        hashes = await list_endpoint_hashes(messages.database, event.id, booking)
        newest = {hashlib.sha256(f"https://push.example/{number}".encode()).hexdigest() for number in (2, 4, 5)}
        assert set(hashes) == newest
        await asyncio.gather(
            *(subscribe_browser(messages, event, booking, f"https://push.example/{n}") for n in range(10, 30))
        )
        assert await count_subscriptions(messages) == 3


@async_test
async def test_a_subscription_stays_until_its_last_message_is_sent(database: str) -> None:
    async with buyer_messages(database) as messages:
        await new_hold(messages)
        await messages.pass_seconds(9 * MINUTE)
        assert await count_warnings(messages) == 1
        await messages.pass_seconds(2 * MINUTE)
        await warn_of_ending_holds(messages.database)
        assert await count_subscriptions(messages) == 1
        await messages.connection.execute("UPDATE delivery SET status = 'failed'")
        await messages.pass_seconds(WAITING_SECONDS + 1)
        await warn_of_ending_holds(messages.database)
        assert await count_subscriptions(messages) == 0


FILL = """
INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, expires_at,
                     max_expires_at, request_key, fingerprint, version)
    SELECT $1, gen_random_uuid(), $2, 'u' || n, 'held', 100, 0, 100, 'EUR', now(), now() + interval '1 h',
           now() + interval '1 h', decode(md5($3 || ':' || n), 'hex'), '', n + 2
    FROM generate_series(1, $3::integer) AS n
"""
SUBSCRIBE_ALL = """
INSERT INTO push_subscription (event_id, booking_id, slot, org_id, endpoint, p256dh, auth, key_number, language,
                               created_at, due_at)
    SELECT event_id, id, 0, org_id, '', '', '', 1, 'en', now(), now() + interval '1 h' FROM booking
    ON CONFLICT DO NOTHING
"""


VALUES = {
    "kind": f"'{HOLD_ENDING}'",
    "warning_seconds": WARNING_SECONDS,
    "waiting_seconds": WAITING_SECONDS,
    "subscriptions_max": SUBSCRIPTIONS_MAX,
}


async def count_pages(connection: db.Connection) -> int:
    """How many pages the statement reads, with the plan that this connection made first."""
    values = ", ".join(str(VALUES[name]) for name in sql.push.warn.parameters)
    await connection.execute("BEGIN")
    explained = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE warn ({values})")
    await connection.execute("ROLLBACK")
    plan = json.decode(explained)[0]["Plan"]
    pages: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return pages


@async_test
async def test_a_look_for_due_subscriptions_costs_the_same_however_many_there_are(database: str) -> None:
    """Without statistics, and with a plan that was made while the tables were empty."""
    async with buyer_messages(database) as messages, connection_to(database, db.connect) as reader:
        for table in ("booking", "push_subscription", "delivery", "payment"):
            await reader.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        await reader.execute("SET plan_cache_mode = force_generic_plan")
        await reader.execute(f"PREPARE warn AS {sql.push.warn.text}")
        event, _ = await new_hold(messages)
        await messages.pass_seconds(8 * MINUTE + 1)
        costs = []
        for count in (0, 200, 20_000):
            await messages.connection.execute(FILL, event.id, event.org, count)
            await messages.connection.execute(SUBSCRIBE_ALL)
            await messages.connection.execute(
                "UPDATE push_subscription SET due_at = now() WHERE endpoint LIKE 'https%'"
            )
            costs.append(await count_pages(reader))
        assert await reader.fetchval("SELECT count(*) FROM pg_stats WHERE schemaname = 'public'") == 0
        assert costs[2] < 3 * costs[1]
