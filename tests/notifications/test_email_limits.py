"""Nobody can use Holdfast to flood a mailbox, and no limit ever holds back an email about money."""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from typing import Any, cast

import pytest

from holdfast.core.commands import Accepted, ActOnBooking, PlaceHold, PoolItem
from holdfast.core.journal import NO_CHANGE, JournalEntry
from holdfast.core.notification_rules import EmailLimit, email_limit, email_target, recipient_hash
from holdfast.core.states import Status, Verb
from holdfast.engine.engine import Engine
from holdfast.notifications import email_limits
from holdfast.notifications.channel import Delivery
from holdfast.notifications.email_channel import EmailChannel
from holdfast.notifications.email_limits import EXPIRED_PER_HOUR, HOLD_PER_DAY, HOLD_PER_HOUR, TOO_MANY
from holdfast.notifications.relay import Relay
from holdfast.notifications.smtp import Smtp
from holdfast.runtime import db, ids
from tests.support.builders import make_booking, standing_line
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    lane_connection,
    new_event,
    one_pool,
    poll_until,
    shift_clock,
)
from tests.support.harness import query
from tests.support.old_schema import database_at_step, run_steps
from tests.support.relay_harness import running_relay

VICTIM = "victim@example.org"
HOUR = 3600
# The step of the schema that gives every org its own queue of emails.
FAIRNESS_STEP = 10
AT_ONCE = {"confirm_at_once": True}


class FakeSmtp:
    """A mail server that keeps what it gets."""

    def __init__(self) -> None:
        self.recipients = Counter[str]()

    async def send(self, message: EmailMessage) -> None:
        self.recipients[str(message["To"])] += 1


class Mails:
    """An engine whose bookings cause emails, and a relay that sends them when the test says so."""

    def __init__(self, url: str, connection: db.Connection, pool: db.Pool) -> None:
        self.url = url
        self.connection = connection
        self.pool = pool
        self.engine = Engine(url, 1)
        self.engine.start()
        self.smtp = FakeSmtp()
        self.channel = EmailChannel(db.Database(pool), self.engine, cast(Smtp, self.smtp), "tickets@example.net")
        self._hours = 0

    async def new_event(self, price: int = 0, **policy: Any) -> EventHandle:
        return await new_event(self.connection, pools=one_pool(1000, price), policy={"hold_seconds": 60, **policy})

    async def hold(self, event: EventHandle, user: str, email: str = VICTIM, actor: str | None = None) -> bytes:
        booking = ids.new_id()
        command = PlaceHold(
            event=event.id,
            org=event.org,
            booking=booking,
            user=user,
            email=email,
            actor=actor or f"user:{user}",
            request_key=hashlib.blake2b(booking, digest_size=16).digest(),
            fingerprint=booking,
            items=(PoolItem("places", 1),),
        )
        assert isinstance(await self.engine.submit(command), Accepted)
        return booking

    async def act(self, event: EventHandle, booking: bytes, verb: Any, actor: str) -> None:
        command = ActOnBooking(event=event.id, org=event.org, booking=booking, verb=verb, actor=actor)
        assert isinstance(await self.engine.submit(command), Accepted)

    async def pass_hours(self, hours: int) -> None:
        self._hours += hours
        await shift_clock(self.connection, self._hours * HOUR)

    async def expire_holds(self, *events: EventHandle) -> None:
        for event in events:
            await self.engine.sweep(event.id)

    async def send_all(self) -> Counter[str]:
        """Send what waits, and return how many emails each address got since the last call."""
        self.smtp.recipients.clear()
        async with running_relay(self.url, {"email": self.channel}):
            await poll_until(self._is_all_done, 30)
        return Counter(self.smtp.recipients)

    async def count_errors(self) -> Counter[str | None]:
        rows = await self.connection.fetch("SELECT status, last_error FROM delivery")
        return Counter(row["last_error"] for row in rows if row["status"] == "failed")

    async def _is_all_done(self) -> bool:
        return not await self.connection.fetchval("SELECT EXISTS (SELECT FROM delivery WHERE status = 'waiting')")


@asynccontextmanager
async def new_mails(database: str) -> AsyncIterator[Mails]:
    pool = await db.create_pool(database, 4)
    async with lane_connection(database) as connection:
        mails = Mails(database, connection, pool)
        try:
            yield mails
        finally:
            await mails.engine.close()
            await pool.close()


@async_test
async def test_a_hold_that_its_buyer_gives_up_causes_no_email(database: str) -> None:
    async with new_mails(database) as mails:
        event = await mails.new_event(price=100)
        for number in range(30):
            booking = await mails.hold(event, f"guest-{number}")
            await mails.act(event, booking, Verb.CANCEL, f"user:guest-{number}")
        assert await mails.connection.fetchval("SELECT count(*) FROM delivery") == 0
        by_staff = await mails.hold(event, "ada", "ada@example.org")
        await mails.act(event, by_staff, Verb.CANCEL, "key:hf_sk_1")
        assert await mails.send_all() == {"ada@example.org": 1}


@async_test
async def test_a_free_booking_that_its_buyer_cancels_causes_an_email(database: str) -> None:
    async with new_mails(database) as mails:
        event = await mails.new_event(**AT_ONCE)
        booking = await mails.hold(event, "ada")
        await mails.act(event, booking, Verb.CANCEL, "user:ada")
        assert await mails.send_all() == {VICTIM: 2}


@async_test
async def test_expired_holds_cause_few_emails_to_one_recipient_however_it_is_spelled(database: str) -> None:
    spellings = [
        VICTIM,
        "Victim@example.org",
        "vic.tim@EXAMPLE.org",
        "victim+shop@example.org",
        "v.i.c.t.i.m+1@example.org",
    ]
    async with new_mails(database) as mails:
        events = [await mails.new_event(price=100) for _ in range(HOLD_PER_HOUR + 2)]
        for event in events:
            for number in range(6):
                await mails.hold(event, f"guest-{number}", spellings[number % len(spellings)])
        await mails.hold(events[0], "ada", "ada@example.org")
        await mails.pass_hours(1)
        await mails.expire_holds(events[0])
        sent = await mails.send_all()
        assert sent.pop("ada@example.org") == 1
        assert sent.total() == EXPIRED_PER_HOUR, "one event"
        await mails.expire_holds(*events[1:])
        assert (await mails.send_all()).total() <= HOLD_PER_HOUR - EXPIRED_PER_HOUR, "other events"
        assert set(await mails.count_errors()) == {TOO_MANY}


@async_test
async def test_after_a_quiet_hour_a_recipient_gets_emails_again_up_to_the_limit_of_a_day(database: str) -> None:
    async with new_mails(database) as mails:
        received = []
        for hour in range(HOLD_PER_DAY + 2):
            event = await mails.new_event(price=100)
            await mails.hold(event, f"guest-{hour}")
            await mails.pass_hours(2)
            await mails.expire_holds(event)
            received.append((await mails.send_all()).total())
        assert received == [1] * HOLD_PER_DAY + [0] * 2


@async_test
async def test_free_bookings_cause_a_limited_number_of_emails_to_one_recipient_of_an_org(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(email_limits, "FREE_PER_HOUR", 3)
    async with new_mails(database) as mails:
        event, other = await mails.new_event(**AT_ONCE), await mails.new_event(**AT_ONCE)
        for number in range(6):
            await mails.hold(event, f"guest-{number}")
        await mails.hold(event, "ada", "ada@example.org")
        await mails.hold(other, "guest-1")
        assert await mails.send_all() == {VICTIM: 3 + 1, "ada@example.org": 1}
        await mails.pass_hours(2)
        await mails.hold(event, "guest-1")
        assert await mails.send_all() == {VICTIM: 1}


@async_test
async def test_one_buyer_cannot_write_to_many_recipients(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(email_limits, "BUYER_PER_HOUR", 3)
    async with new_mails(database) as mails:
        event = await mails.new_event(**AT_ONCE)
        for number in range(5):
            await mails.hold(event, "guest", f"victim-{number}@example.org")
            await mails.hold(event, "box office", f"visitor-{number}@example.org", actor="key:hf_sk_1")
        sent = await mails.send_all()
        assert Counter(name.partition("-")[0] for name in sent) == {"victim": 3, "visitor": 5}


@async_test
async def test_emails_about_paid_bookings_have_no_limit(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLD_PER_HOUR", "HOLD_PER_DAY", "FREE_PER_HOUR", "BUYER_PER_HOUR"):
        monkeypatch.setattr(email_limits, name, 0)
    async with new_mails(database) as mails:
        event = await mails.new_event(price=100)
        bookings = [await mails.hold(event, "ada") for _ in range(4)]
        for booking in bookings:
            await mails.act(event, booking, Verb.CONFIRM, "key:hf_sk_1")
        await mails.act(event, bookings[0], Verb.REFUND, "key:hf_sk_1")
        assert await mails.send_all() == {VICTIM: 5}


@async_test
async def test_many_or_slow_emails_of_one_org_do_not_delay_those_of_another(database: str) -> None:
    class SlowChannel:
        """A channel in which the emails of one org hang."""

        def __init__(self) -> None:
            self.under_way = 0
            self.sent = 0

        async def send(self, delivery: Delivery) -> None:
            if delivery.org == busy.org:
                self.under_way += 1
                await poll_until(lambda: False, 3600)
            self.sent += 1

    channel = SlowChannel()
    async with new_mails(database) as mails:
        busy, other = await mails.new_event(**AT_ONCE), await mails.new_event(**AT_ONCE)
        for number in range(40):
            await mails.hold(busy, f"guest-{number}", f"guest-{number}@example.org")
        async with running_relay(database, {"email": channel}) as relay:
            await poll_until(lambda: channel.under_way > 0)
            await mails.hold(other, "ada")
            await poll_until(lambda: channel.sent == 1)
            _cancel(relay)


def _cancel(relay: Relay) -> None:
    for task in relay._round_robin.tasks.values():
        task.cancel()


@pytest.mark.parametrize(
    ("kind", "was", "price", "limit"),
    [
        ("expired", Status.HELD, 3000, EmailLimit.HOLD),
        ("rejected", Status.PAYMENT_SUBMITTED, 3000, EmailLimit.HOLD),
        ("cancelled", Status.HELD, 0, EmailLimit.HOLD),
        ("cancelled", Status.CONFIRMED, 0, EmailLimit.FREE),
        ("confirmed", Status.HELD, 0, EmailLimit.FREE),
        ("transferred", Status.CONFIRMED, 0, EmailLimit.FREE),
        ("confirmed", Status.HELD, 3000, None),
        ("cancelled", Status.CONFIRMED, 3000, None),
        ("transferred", Status.CONFIRMED, 3000, EmailLimit.FREE),
        ("refunded", Status.CONFIRMED, 3000, None),
        ("payment.refund_due", Status.EXPIRED, 3000, None),
        ("payment.refund_due", Status.CONFIRMED, 3000, None),
    ],
)
def test_only_emails_that_no_money_moves_for_have_a_limit(
    kind: str, was: Status, price: int, limit: EmailLimit | None
) -> None:
    booking = make_booking("it", was, standing_line(1, price))
    assert email_limit(JournalEntry(1, kind, booking, "system", NO_CHANGE, was=was)) is limit


def test_recipients_count_together_for_holds_and_by_org_for_free_bookings() -> None:
    a, b = ids.new_id(), ids.new_id()
    hold, free = EmailLimit.HOLD, EmailLimit.FREE
    assert recipient_hash(hold, a, VICTIM) == recipient_hash(hold, b, VICTIM)
    assert len({recipient_hash(hold, a, VICTIM), recipient_hash(free, a, VICTIM), recipient_hash(free, b, VICTIM)}) == 3
    assert recipient_hash(hold, a, "a@x.org") != recipient_hash(hold, a, "b@x.org")
    assert recipient_hash(hold, a, "a@x.org") != recipient_hash(hold, a, "a@x.net")


def test_emails_that_wait_during_the_upgrade_move_to_the_queue_of_their_org(postgres: str) -> None:
    org = ids.new_id()
    with database_at_step(postgres, FAIRNESS_STEP - 1) as url:
        for number, status in enumerate(("waiting", "delivered")):
            query(
                url,
                "INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, status, "
                "created_at, due_at) VALUES ($1, $2, 'email', 'email', $1, $1, '', '{}', $3, now(), now())",
                org,
                number,
                status,
            )
        run_steps(url, FAIRNESS_STEP, FAIRNESS_STEP)
        targets = [row["target"] for row in query(url, "SELECT target FROM delivery ORDER BY number")]
        assert targets == [email_target(org), "email"]
