"""Buyers are reminded once of each start, whatever happens to workers, and never of something that is not true."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast import sql
from holdfast.core.commands import Accepted, Client, TransferBooking
from holdfast.core.event_schemas import EventChange
from holdfast.core.states import EventStatus, Verb
from holdfast.engine.auditor import audit_event
from holdfast.engine.event_editor import change_event, set_status
from holdfast.notifications import reminders as reminders_module
from holdfast.notifications.channel import Delivery, UndeliveredError
from holdfast.notifications.email_channel import EmailChannel
from holdfast.notifications.reminder_check import check_reminder
from holdfast.notifications.reminders import Reminders
from holdfast.notifications.smtp import Smtp
from holdfast.runtime import db
from tests.support.buyer_messages import STAFF, BuyerMessages, buyer_messages
from tests.support.engine_harness import EventHandle, async_test, remove_guard
from tests.support.harness import connection_to
from tests.support.mail_server import Mailbox, mail_server

PHONE = "+12125550123"
EMAIL = "ada@example.org"
HOUR = 3600
BOTH = frozenset({"email", "sms"})


@asynccontextmanager
async def new_reminders(
    database: str, channels: frozenset[str] = BOTH
) -> AsyncIterator[tuple[BuyerMessages, Reminders]]:
    async with buyer_messages(database) as messages:
        yield messages, Reminders(messages.database, 24, channels)


async def run_to_end(reminders: Reminders) -> None:
    while await reminders.run_once():
        continue


async def count_reminders(messages: BuyerMessages) -> "Counter[tuple[bytes, str]]":
    rows = await messages.connection.fetch("SELECT stream, channel FROM delivery WHERE kind = 'booking.reminder'")
    return Counter((row["stream"], row["channel"]) for row in rows)


async def move(messages: BuyerMessages, event: EventHandle, **change: Any) -> None:
    await change_event(messages.database, event.org, event.id, msgspec.convert(change, EventChange), STAFF)


def hours_from_now(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


@async_test
async def test_a_buyer_is_reminded_a_day_before_the_start_by_email_and_sms(database: str) -> None:
    async with new_reminders(database) as (messages, reminders):
        event = await messages.new_event(hours=48)
        both = await messages.book(event, "ada", email=EMAIL, phone=PHONE)
        by_mail = await messages.book(event, "bob", email="bob@example.org")
        await messages.book(event, "carol")
        await messages.hold(event, "dave", email="dave@example.org")
        await run_to_end(reminders)
        assert await count_reminders(messages) == {}, "too early"
        await messages.pass_seconds(25 * HOUR)
        for _ in range(3):
            await run_to_end(reminders)
        assert await count_reminders(messages) == {(both, "email"): 1, (both, "sms"): 1, (by_mail, "email"): 1}
        findings = (await audit_event(messages.database, event.id)).findings
        assert "delivery_without_entry" not in [finding.what for finding in findings]


@async_test
async def test_a_channel_that_is_not_set_up_gets_no_reminders(database: str) -> None:
    async with new_reminders(database, frozenset({"webhook", "sms"})) as (messages, reminders):
        event = await messages.new_event(hours=48)
        booking = await messages.book(event, email=EMAIL, phone=PHONE)
        await messages.pass_seconds(25 * HOUR)
        await run_to_end(reminders)
        assert await count_reminders(messages) == {(booking, "sms"): 1}


@async_test
async def test_a_booking_placed_within_the_last_day_needs_no_reminder(database: str) -> None:
    async with new_reminders(database) as (messages, reminders):
        event = await messages.new_event(hours=23)
        await messages.book(event, email=EMAIL)
        await run_to_end(reminders)
        assert await count_reminders(messages) == {}


async def remind_at_once(messages: BuyerMessages, workers: int) -> None:
    await asyncio.gather(*(run_to_end(Reminders(messages.database, 24, BOTH)) for _ in range(workers)))


async def book_many(messages: BuyerMessages, count: int) -> list[bytes]:
    event = await messages.new_event(hours=48)
    bookings = [await messages.book(event, f"u{number}", email=f"u{number}@example.org") for number in range(count)]
    await messages.pass_seconds(25 * HOUR)
    return bookings


@async_test
async def test_many_workers_remind_each_booking_once(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reminders_module, "PAGE_BOOKINGS", 3)
    async with buyer_messages(database) as messages:
        bookings = await book_many(messages, 10)
        await remind_at_once(messages, 4)
        await remind_at_once(messages, 1)
        assert await count_reminders(messages) == {(booking, "email"): 1 for booking in bookings}


@async_test
async def test_without_the_lock_on_the_run_workers_remind_twice(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above. Both workers read how far the run has come before either of them goes on."""
    together = asyncio.Barrier(2)

    monkeypatch.setattr(sql.reminders, "lock_run", sql.reminders.lock_run.replace("FOR UPDATE SKIP LOCKED", ""))
    fetchval = db.DatabaseScope.fetchval

    async def fetch_together(scope: db.DatabaseScope, statement: str, *values: object) -> Any:
        found = await fetchval(scope, statement, *values)
        if statement == sql.reminders.lock_run:
            await together.wait()
        return found

    async with buyer_messages(database) as messages:
        (booking,) = await book_many(messages, 1)
        await messages.connection.execute(
            "INSERT INTO reminder_run (event_id, starts_at) SELECT id, starts_at FROM event"
        )
        monkeypatch.setattr(db.DatabaseScope, "fetchval", fetch_together)
        await asyncio.gather(*(Reminders(messages.database, 24, BOTH).run_once() for _ in range(2)))
        assert await count_reminders(messages) == {(booking, "email"): 2}


@async_test
async def test_a_worker_that_dies_between_two_pages_loses_and_repeats_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reminders_module, "PAGE_BOOKINGS", 2)
    async with buyer_messages(database) as messages:
        bookings = await book_many(messages, 5)
        assert await Reminders(messages.database, 24, BOTH).run_once() == 2
        # The next page fails after its notifications were written, and before they were committed.
        broken = remove_guard("UPDATE reminder_run", sql.reminders.advance_run, "UPDATE no_such_table")
        with monkeypatch.context() as patch:
            patch.setattr(sql.reminders, "advance_run", broken)
            assert await Reminders(messages.database, 24, BOTH).run_once() == 0
        assert (await count_reminders(messages)).total() == 2
        await run_to_end(Reminders(messages.database, 24, BOTH))
        assert await count_reminders(messages) == {(booking, "email"): 1 for booking in bookings}


@async_test
async def test_a_moved_event_gets_a_new_reminder(database: str) -> None:
    async with new_reminders(database) as (messages, reminders):
        event = await messages.new_event(hours=48)
        booking = await messages.book(event, email=EMAIL)
        await messages.pass_seconds(25 * HOUR)
        await run_to_end(reminders)
        first_start = await messages.connection.fetchval("SELECT starts_at FROM event WHERE id = $1", event.id)
        await move(messages, event, starts_at=hours_from_now(72))
        await run_to_end(reminders)
        assert await count_reminders(messages) == {(booking, "email"): 1}, "the new start is far away"
        await messages.pass_seconds(25 * HOUR)
        await run_to_end(reminders)
        assert await count_reminders(messages) == {(booking, "email"): 2}
        await messages.pass_seconds(-25 * HOUR)
        await move(messages, event, starts_at=first_start.isoformat())
        await run_to_end(reminders)
        assert await count_reminders(messages) == {(booking, "email"): 2}, "this start has had its reminder"


@async_test
async def test_cancelled_events_and_bookings_get_no_reminder(database: str) -> None:
    async with new_reminders(database) as (messages, reminders):
        cancelled, other = await messages.new_event(hours=48), await messages.new_event(hours=48)
        await messages.book(cancelled, email=EMAIL)
        refunded = await messages.book(other, email=EMAIL)
        await messages.act(other, refunded, Verb.REFUND)
        await set_status(messages.database, cancelled.org, cancelled.id, EventStatus.CANCELLED, STAFF)
        await messages.pass_seconds(25 * HOUR)
        await run_to_end(reminders)
        assert await count_reminders(messages) == {}


@async_test
async def test_each_slot_has_its_own_reminder(database: str) -> None:
    async with new_reminders(database) as (messages, reminders):
        tariffs = [{"code": "full", "price": 100}]
        slots = {"early": 48, "late": 72}
        pools = [
            {"code": code, "capacity": 5, "tariffs": tariffs, "starts_at": hours_from_now(hours)}
            for code, hours in slots.items()
        ]
        event = await messages.new_event(hours=47, pools=pools)
        bookings = {code: await messages.book(event, code, pool=code, email=EMAIL) for code in slots}
        for code, passed in (("early", 25), ("late", 24)):
            await messages.pass_seconds(passed * HOUR)
            await run_to_end(reminders)
            assert (bookings[code], "email") in await count_reminders(messages)
            assert (await count_reminders(messages)).total() == list(slots).index(code) + 1


@async_test
async def test_reminders_of_free_bookings_count_for_the_buyer_who_made_them(database: str) -> None:
    async with new_reminders(database) as (messages, reminders):
        event = await messages.new_event(0, hours=48, policy={"confirm_at_once": True})
        client = Client(address=bytes(12), is_guest=True)
        await messages.hold(event, "guest", email=EMAIL, phone=PHONE, client=client)
        await messages.hold(event, "box office", email="bob@example.org", phone="+12125550124", actor=STAFF)
        await messages.pass_seconds(25 * HOUR)
        await run_to_end(reminders)
        hashes = {"confirmed": set[Any](), "reminder": set[Any]()}
        for row in await messages.connection.fetch("SELECT * FROM delivery"):
            key = (row["channel"], row["stream"], row["buyer_hash"])
            hashes[row["kind"].removeprefix("booking.")].add(key)
        assert hashes["reminder"] == hashes["confirmed"]
        assert len([key for key in hashes["reminder"] if key[2] is not None]) == 2, "of the guest, by email and SMS"


@async_test
async def test_one_broken_event_does_not_stop_the_others(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with new_reminders(database) as (messages, reminders):
        events = [await messages.new_event(hours=48) for _ in range(2)]
        bookings = [await messages.book(event, email=EMAIL) for event in events]
        await messages.pass_seconds(25 * HOUR)
        remind_page = Reminders._remind_page

        async def fail_for_first(self: Reminders, scope: db.DatabaseScope, start: Any) -> int:
            if start.event_id == events[0].id:
                raise ValueError
            return await remind_page(self, scope, start)

        monkeypatch.setattr(Reminders, "_remind_page", fail_for_first)
        await run_to_end(reminders)
        assert await count_reminders(messages) == {(bookings[1], "email"): 1}


async def first_reminder(messages: BuyerMessages) -> tuple[Delivery, datetime]:
    row = await messages.connection.fetchrow("SELECT * FROM delivery WHERE kind = 'booking.reminder'")
    assert row is not None
    delivery = Delivery(
        event=row["event_id"],
        number=row["number"],
        target=row["target"],
        channel=row["channel"],
        org=row["org_id"],
        stream=row["stream"],
        kind=row["kind"],
        body=row["body"],
        created_at=row["created_at"],
        attempts=1,
    )
    return delivery, msgspec.json.decode(row["body"], type=dict[str, Any])["starts_at"]


async def _refund(messages: BuyerMessages, event: EventHandle, booking: bytes) -> None:
    await messages.act(event, booking, Verb.REFUND)


async def _transfer(messages: BuyerMessages, event: EventHandle, booking: bytes) -> None:
    command = TransferBooking(event=event.id, org=event.org, booking=booking, generation=0, user="ben", actor=STAFF)
    assert isinstance(await messages.engine.submit(command), Accepted)


async def _move(messages: BuyerMessages, event: EventHandle, _: bytes) -> None:
    await move(messages, event, starts_at=hours_from_now(500))


async def _cancel_event(messages: BuyerMessages, event: EventHandle, _: bytes) -> None:
    await set_status(messages.database, event.org, event.id, EventStatus.CANCELLED, STAFF)


async def _start(messages: BuyerMessages, _: EventHandle, __: bytes) -> None:
    await messages.pass_seconds(24 * HOUR)


@pytest.mark.parametrize("change", [_refund, _transfer, _move, _cancel_event, _start])
@async_test
async def test_a_reminder_that_is_no_longer_true_is_not_sent(database: str, change: Any) -> None:
    async with new_reminders(database) as (messages, reminders):
        event = await messages.new_event(hours=48)
        booking = await messages.book(event, email=EMAIL)
        await messages.pass_seconds(25 * HOUR)
        await run_to_end(reminders)
        delivery, start = await first_reminder(messages)
        starts_at = datetime.fromisoformat(str(start))
        await check_reminder(messages.database, delivery, 0, starts_at)
        await change(messages, event, booking)
        with pytest.raises(UndeliveredError, match="changed or started since") as raised:
            await check_reminder(messages.database, delivery, 0, starts_at)
        assert raised.value.is_permanent


@async_test
async def test_a_reminder_arrives_as_an_email_in_the_language_of_the_buyer(database: str) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox) as host:
        async with new_reminders(database) as (messages, reminders):
            channel = EmailChannel(messages.database, messages.engine, Smtp(f"smtp://{host}"), "tickets@example.net")
            event = await messages.new_event(hours=48, title="Noche de jazz")
            await messages.book(event, email=EMAIL, language="es")
            await messages.pass_seconds(25 * HOUR)
            await run_to_end(reminders)
            await messages.send_all({"email": channel})
    assert [message["Subject"] for message in mailbox.messages] == [
        "Tus entradas para Noche de jazz",
        "Recordatorio: Noche de jazz",
    ]


FILL = """
INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, request_key,
                     fingerprint, version)
    SELECT $1, gen_random_uuid(), $2, 'u' || n, 'confirmed', 100, 0, 100, 'EUR', now(),
           decode(md5($3 || ':' || n), 'hex'), '', n + 2
    FROM generate_series(1, $3::integer) AS n
"""
FILL_JOURNAL = """
INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data, previous)
    SELECT event_id, version, created_at, 'confirmed', id, 'user:1', '{}', sha256('') FROM booking
    ON CONFLICT DO NOTHING
"""


@async_test
async def test_a_page_of_bookings_costs_the_same_however_many_there_are(database: str) -> None:
    """Without statistics, and with a plan that was made while the table was empty."""
    async with buyer_messages(database) as messages, connection_to(database, db.connect) as reader:
        for table in ("booking", "line", "journal"):
            await reader.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        await reader.execute("SET plan_cache_mode = force_generic_plan")
        await reader.execute(f"PREPARE bookings AS {sql.reminders.bookings.text}")
        event = await messages.new_event()
        values = {
            "event": f"'{event.id.hex()}'",
            "after": f"'{bytes(16).hex()}'",
            "starts_at": "now()",
            "seconds": "86400",
            "scanned_max": "20",
        }
        execute = f"EXECUTE bookings ({', '.join(values[name] for name in sql.reminders.bookings.parameters)})"
        costs = []
        for count in (0, 200, 20_000):
            await messages.connection.execute(FILL, event.id, event.org, count)
            await messages.connection.execute(FILL_JOURNAL)
            explained = await reader.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {execute}")
            plan = msgspec.json.decode(explained)[0]["Plan"]
            costs.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
        assert costs[2] < 3 * costs[1]
