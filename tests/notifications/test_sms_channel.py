"""A buyer with a phone number gets an SMS about a confirmed booking, and nobody can make Holdfast send many."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.core.commands import Accepted, Client, TransferBooking
from holdfast.core.event_schemas import EventChange
from holdfast.core.notification_rules import SmsLimit, phone_hash
from holdfast.core.states import Verb
from holdfast.engine.event_editor import change_event
from holdfast.notifications import sms_limits
from holdfast.notifications.channel import Channel
from holdfast.notifications.delivery_cleanup import DeliveryCleanup
from holdfast.notifications.reminders import Reminders
from holdfast.notifications.sms_channel import SmsChannel
from holdfast.notifications.sms_countries import SmsCountries, SmsCountriesError
from holdfast.notifications.sms_limits import (
    FREE_PER_DAY,
    FREE_PER_HOUR,
    TOO_MANY,
    TOO_MANY_OF_BUYER,
    TOO_MANY_OF_CLIENT,
    TOO_MANY_OF_ORG,
)
from holdfast.notifications.twilio import Twilio
from holdfast.runtime import ids
from tests.support.buyer_messages import STAFF, BuyerMessages, buyer_messages
from tests.support.engine_harness import EventHandle, async_test
from tests.support.twilio_server import Answer, TwilioServer, twilio_server

PHONE = "+12125550123"
GUEST = "guest-" + "0" * 32
PUBLIC_URL = "https://tickets.example.com/"
HOUR, DAY = 3600, 86_400
AT_ONCE: Any = {"policy": {"confirm_at_once": True}}
FREE_AND_PAID: Any = {
    "pools": [
        {"code": code, "capacity": 100, "tariffs": [{"code": "full", "price": price}]}
        for code, price in (("free", 0), ("paid", 100))
    ]
}


class Texts(BuyerMessages):
    """Buyers with phones."""

    channels: dict[str, Channel]
    twilio: TwilioServer

    async def send(self) -> None:
        await self.send_all(self.channels)

    async def register(self, event: EventHandle, number: int, phone: str = PHONE, **buyer: Any) -> bytes:
        """A free booking, which is confirmed at once."""
        return await self.hold(event, f"guest-{number:032x}", phone=phone, **buyer)

    async def remind(self) -> None:
        await self.pass_seconds(25 * HOUR)
        reminders = Reminders(self.database, 24, frozenset({"sms"}))
        while await reminders.run_once():
            continue


@pytest.fixture(scope="module")
def twilio() -> Iterator[TwilioServer]:
    with twilio_server() as server:
        yield server


@asynccontextmanager
async def new_texts(
    database: str, twilio: TwilioServer, per_org: int = 1_000, countries: str | None = None
) -> AsyncIterator[Texts]:
    twilio.sent.clear()
    twilio.answers.clear()
    client = Twilio(twilio.url)
    async with buyer_messages(database) as messages:
        messages.__class__ = Texts
        assert isinstance(messages, Texts)
        channel = SmsChannel(
            messages.database,
            messages.engine,
            client,
            PUBLIC_URL,
            per_org=per_org,
            countries=SmsCountries(countries),
        )
        messages.channels, messages.twilio = {"sms": channel}, twilio
        try:
            yield messages
        finally:
            await client.close()


@async_test
async def test_a_confirmed_booking_with_a_phone_number_causes_one_sms(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio) as texts:
        event = await texts.new_event()
        await texts.book(event, "bob")
        booking = await texts.book(event, GUEST, phone=PHONE)
        await texts.book(event, "carol", phone="+12125550124", language="es-CO")
        await texts.send()
        reference, link = ids.booking_reference(booking), ids.format_booking_id(event.id, booking)
        (text,) = twilio.texts_to(PHONE)
        assert f"booking {reference} is confirmed. Tickets: https://tickets.example.com/b/{link}" in text
        (other,) = twilio.texts_to("+12125550124")
        assert "confirmada" in other
        assert "http" not in other, "a customer of the merchant's own site has no page here"
        assert len(twilio.sent) == 2


@async_test
async def test_a_hold_that_ends_unpaid_causes_no_sms(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio) as texts:
        event = await texts.new_event()
        for verb in (Verb.CANCEL, Verb.EXTEND):
            await texts.act(event, await texts.hold(event, phone=PHONE), verb)
        await texts.pass_seconds(HOUR)
        await texts.engine.sweep(event.id)
        assert await texts.deliveries("sms") == []


@async_test
async def test_the_delivery_does_not_contain_the_number(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio) as texts:
        await texts.book(await texts.new_event(), phone=PHONE)
        (row,) = await texts.deliveries("sms")
        assert PHONE[1:] not in str(dict(row))


@async_test
async def test_a_booking_that_has_changed_since_causes_no_sms(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio) as texts:
        event = await texts.new_event()
        refunded = await texts.book(event, phone=PHONE)
        await texts.act(event, refunded, Verb.REFUND)
        given_away = await texts.book(event, phone=PHONE)
        command = TransferBooking(
            event=event.id,
            org=event.org,
            booking=given_away,
            generation=0,
            user="ben",
            phone="+12125550125",
            actor=STAFF,
        )
        assert isinstance(await texts.engine.submit(command), Accepted)
        await texts.send()
        assert twilio.sent == []
        assert await texts.errors("sms") == ["the booking has changed since"] * 2


@async_test
async def test_a_busy_provider_is_retried_as_late_as_it_asks(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio) as texts:
        twilio.answers.append(Answer(429, 20429, f"{PHONE} is too much", retry_after="1800"))
        await texts.book(await texts.new_event(), phone=PHONE)
        await texts.send()
        (row,) = await texts.deliveries("sms")
        assert (row["status"], row["attempts"]) == ("waiting", 1)
        assert row["last_error"] == "the SMS provider is busy (HTTP 429, error 20429)"
        # The relay spreads retries by ten percent.
        assert (row["due_at"] - row["created_at"]).total_seconds() >= 0.9 * 1800
        await texts.pass_seconds(HOUR)
        await texts.connection.execute("UPDATE delivery SET last_error = NULL")
        await texts.send()
        assert len(twilio.texts_to(PHONE)) == 1


@async_test
async def test_a_number_that_cannot_get_sms_is_given_up_with_the_reason(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio) as texts:
        twilio.answers.append(Answer(400, 21610, f"Attempt to send to unsubscribed recipient {PHONE}"))
        await texts.book(await texts.new_event(), phone=PHONE)
        await texts.send()
        (row,) = await texts.deliveries("sms")
        assert (row["status"], row["last_error"]) == (
            "failed",
            "the recipient has unsubscribed (HTTP 400, error 21610)",
        )


@async_test
async def test_free_bookings_cause_few_sms_to_one_number_from_all_orgs_together(
    database: str, twilio: TwilioServer
) -> None:
    async with new_texts(database, twilio) as texts:
        events = [await texts.new_event(0, **AT_ONCE) for _ in range(2)]
        for number in range(FREE_PER_HOUR + 2):
            await texts.register(events[number % 2], number)
        await texts.register(events[0], 99, "+12125550199")
        await texts.send()
        assert len(twilio.texts_to(PHONE)) == FREE_PER_HOUR
        assert len(twilio.texts_to("+12125550199")) == 1
        assert await texts.errors("sms") == [TOO_MANY] * 2
        for hour in range(FREE_PER_DAY):
            await texts.pass_seconds(HOUR + 60)
            await texts.register(events[0], 100 + hour)
        await texts.send()
        assert len(twilio.texts_to(PHONE)) <= FREE_PER_DAY


@async_test
async def test_one_buyer_cannot_text_many_numbers(
    database: str, twilio: TwilioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sms_limits, "BUYER_PER_HOUR", 2)
    async with new_texts(database, twilio) as texts:
        event = await texts.new_event(0, **AT_ONCE)
        for number in range(4):
            await texts.hold(event, GUEST, phone=f"+1212555010{number}")
            await texts.hold(event, "box office", phone=f"+1212555020{number}", actor=STAFF)
        await texts.send()
        assert [len([s for s in twilio.sent if s.to.startswith(p)]) for p in ("+1212555010", "+1212555020")] == [2, 4]
        assert await texts.errors("sms") == [TOO_MANY_OF_BUYER] * 2


@async_test
async def test_guests_behind_one_address_cannot_text_many_numbers_however_many_cookies_they_have(
    database: str, twilio: TwilioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sms_limits, "CLIENT_PER_HOUR", 2)
    monkeypatch.setattr(sms_limits, "CLIENT_PER_DAY", 3)
    async with new_texts(database, twilio) as texts:
        event = await texts.new_event(0, **AT_ONCE)
        paid = await texts.new_event()
        addresses = [Client(address=bytes([n]) * 12, is_guest=True) for n in range(2)]
        for number in range(4):
            await texts.register(event, number, f"+1212555010{number}", client=addresses[0])
        await texts.register(event, 9, "+12125550200", client=addresses[1])
        await texts.book(paid, f"guest-{8:032x}", phone="+12125550300", client=addresses[0])
        await texts.send()
        assert [sms.to[-4:] for sms in sorted(twilio.sent, key=lambda sms: sms.to)] == ["0100", "0101", "0200", "0300"]
        assert await texts.errors("sms") == [TOO_MANY_OF_CLIENT] * 2
        await texts.pass_seconds(HOUR + 60)
        await texts.register(event, 10, "+12125550400", client=addresses[0])
        await texts.send()
        assert twilio.texts_to("+12125550400") == [], "the limit per day counts the whole day"


@async_test
async def test_everyone_behind_one_address_gets_a_reminder(
    database: str, twilio: TwilioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reminders are written within minutes of each other, and many guests can share the network of a campus."""
    async with new_texts(database, twilio) as texts:
        event = await texts.new_event(0, hours=48, **AT_ONCE)
        client = Client(address=bytes(12), is_guest=True)
        for number in range(3):
            await texts.register(event, number, f"+1212555010{number}", client=client)
        await texts.send()
        monkeypatch.setattr(sms_limits, "CLIENT_PER_HOUR", 1)
        monkeypatch.setattr(sms_limits, "CLIENT_PER_DAY", 1)
        await texts.remind()
        await texts.send()
        assert await texts.errors("sms") == []
        assert len(twilio.sent) == 2 * 3


@async_test
async def test_one_address_cannot_use_up_the_reminders_of_an_org(
    database: str, twilio: TwilioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sms_limits, "CLIENT_REMINDERS_PER_DAY", 2)
    async with new_texts(database, twilio) as texts:
        event = await texts.new_event(0, hours=48, **AT_ONCE)
        addresses = [Client(address=bytes([n]) * 12, is_guest=True) for n in range(2)]
        for number in range(4):
            await texts.register(event, number, f"+1212555010{number}", client=addresses[0])
        await texts.register(event, 9, "+12125550200", client=addresses[1])
        await texts.send()
        twilio.sent.clear()
        await texts.remind()
        await texts.send()
        assert Counter(sms.to[:-1] for sms in twilio.sent) == {"+1212555010": 2, "+1212555020": 1}
        assert await texts.errors("sms") == [TOO_MANY_OF_CLIENT] * 2


@async_test
async def test_limits_on_free_bookings_do_not_hold_back_an_sms_about_a_paid_one(
    database: str, twilio: TwilioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FREE_PER_HOUR", "FREE_PER_DAY"):
        monkeypatch.setattr(sms_limits, name, 0)
    monkeypatch.setattr(sms_limits, "PAID_PER_DAY", 3)
    async with new_texts(database, twilio) as texts:
        event, other = await texts.new_event(), await texts.new_event()
        for number in range(5):
            await texts.book(event, f"u{number}", phone=PHONE)
        await texts.book(other, phone=PHONE)
        await texts.send()
        assert len(twilio.texts_to(PHONE)) == 3 + 1, "per org"
        assert await texts.errors("sms") == [TOO_MANY] * 2


@async_test
async def test_an_org_sends_a_limited_number_of_sms_a_day(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio, per_org=2) as texts:
        event, other = await texts.new_event(), await texts.new_event()
        for number in range(4):
            await texts.book(event, f"u{number}", phone=f"+1212555010{number}")
        await texts.book(other, phone=PHONE)
        await texts.send()
        assert len(twilio.sent) == 2 + 1
        assert await texts.errors("sms") == [TOO_MANY_OF_ORG] * 2
        await texts.pass_seconds(DAY)
        await texts.book(event, "u9", phone="+12125550109")
        await texts.send()
        assert len(twilio.texts_to("+12125550109")) == 1


@async_test
async def test_free_bookings_cannot_use_up_the_sms_of_buyers_who_pay(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio, per_org=10) as texts:
        event = await texts.new_event(**FREE_AND_PAID)
        for pool, count in (("free", 5), ("paid", 9)):
            for number in range(count):
                await texts.book(event, f"{pool} {number}", pool=pool, phone=f"+1212555{len(pool)}{count}{number:02}")
            await texts.send()
            assert await texts.errors("sms") == [TOO_MANY_OF_ORG] * (3 if pool == "free" else 4)
        assert len(twilio.sent) == 10


@async_test
async def test_a_worker_that_dies_before_it_counts_an_sms_does_not_raise_the_limit(
    database: str, twilio: TwilioServer
) -> None:
    async with new_texts(database, twilio, per_org=1) as texts:
        event = await texts.new_event()
        for number in range(3):
            await texts.book(event, f"u{number}", phone=f"+1212555010{number}")
        # A worker had claimed them when it was killed.
        await texts.connection.execute("UPDATE delivery SET attempts = 1")
        await texts.send()
        assert len(twilio.sent) == 1
        assert await texts.errors("sms") == [TOO_MANY_OF_ORG] * 2


@async_test
async def test_sms_go_only_to_the_countries_of_the_settings(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio, per_org=1, countries="+49, +1212") as texts:
        event = await texts.new_event()
        await texts.book(event, "satellite", phone="+88216555010")
        await texts.book(event, "caribbean", phone="+18765550123")
        await texts.send()
        assert twilio.sent == []
        await texts.book(event, phone=PHONE)
        await texts.send()
        assert [sms.to for sms in twilio.sent] == [PHONE], "refused SMS do not count"
        assert await texts.errors("sms") == ["the country of the number is not in HOLDFAST_SMS_COUNTRIES"] * 2


@pytest.mark.parametrize("codes", ["49", "+0", "+49;+43", "+49,", "+12345678", "DE"])
def test_a_list_of_anything_but_calling_codes_is_refused(codes: str) -> None:
    with pytest.raises(SmsCountriesError, match="is not a calling code"):
        SmsCountries(codes)


@async_test
async def test_a_retry_does_not_use_up_the_limit_of_its_org(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio, per_org=1) as texts:
        twilio.answers.append(Answer(503))
        await texts.book(await texts.new_event(), phone=PHONE)
        await texts.send()
        assert twilio.sent == []
        await texts.connection.execute("UPDATE delivery SET last_error = NULL, due_at = created_at")
        await texts.send()
        assert len(twilio.sent) == 1


@async_test
async def test_one_buyer_cannot_text_many_numbers_with_reminders(
    database: str, twilio: TwilioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sms_limits, "BUYER_PER_HOUR", 2)
    async with new_texts(database, twilio) as texts:
        event = await texts.new_event(0, hours=48, **AT_ONCE)
        for number in range(4):
            await texts.hold(event, "ada", phone=f"+1212555010{number}")
            await texts.hold(event, "box office", phone=f"+1212555030{number}", actor=STAFF)
        await texts.send()
        twilio.sent.clear()
        await texts.remind()
        await texts.send()
        assert Counter(sms.to[:-1] for sms in twilio.sent) == {"+1212555010": 2, "+1212555030": 4}
        reasons = [row["last_error"] for row in await texts.deliveries("sms") if row["kind"] == "booking.reminder"]
        assert list(filter(None, reasons)) == [TOO_MANY_OF_BUYER] * 2


@async_test
async def test_a_reminder_of_an_event_that_has_moved_causes_no_sms(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio) as texts:
        event = await texts.new_event(hours=48)
        await texts.book(event, phone=PHONE)
        await texts.send()
        twilio.sent.clear()
        await texts.remind()
        later = EventChange(starts_at=datetime.now(UTC) + timedelta(hours=500))
        await change_event(texts.database, event.org, event.id, later, STAFF)
        await texts.send()
        assert twilio.sent == []
        assert await texts.errors("sms") == ["the booking has changed or started since"]


@async_test
async def test_hashes_of_numbers_are_deleted_after_a_day(database: str, twilio: TwilioServer) -> None:
    async with new_texts(database, twilio) as texts:
        event = await texts.new_event(0, **AT_ONCE)
        await texts.register(event, 1, client=Client(address=bytes(12), is_guest=True))
        await texts.send()

        async def hashes() -> list[Any]:
            (row,) = await texts.deliveries("sms")
            return [row[name] for name in ("recipient_hash", "buyer_hash", "client_hash")]

        cleanup = DeliveryCleanup(texts.database, texts.channels)
        await cleanup.run_once()
        assert None not in await hashes()
        await texts.pass_seconds(2 * DAY)
        assert await cleanup.run_once() == 1
        assert await hashes() == [None] * 3
        assert await texts.connection.fetchval("SELECT count(*) FROM sms_count") == 0


def test_the_phone_number_counts_the_same_for_all_orgs_only_if_the_booking_is_free() -> None:
    one, other = ids.new_id(), ids.new_id()
    assert phone_hash(SmsLimit.FREE, one, PHONE) == phone_hash(SmsLimit.FREE, other, PHONE)
    assert phone_hash(SmsLimit.PAID, one, PHONE) != phone_hash(SmsLimit.PAID, other, PHONE)
    assert phone_hash(SmsLimit.FREE, one, PHONE) != phone_hash(SmsLimit.FREE, one, PHONE + "4")
