"""A push message reaches only the browser that subscribed, says what is true, and goes only to a trusted service."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.commands import Accepted, Receipt, SubmitReceipt
from holdfast.core.states import Verb
from holdfast.i18n.languages import LANGUAGES
from holdfast.notifications import push_channel
from holdfast.notifications.channel import Channel, Delivery
from holdfast.notifications.hold_warnings import warn_of_ending_holds
from holdfast.notifications.push_channel import REVIEW_TTL_SECONDS, PushChannel, PushKind, write_message
from holdfast.notifications.push_services import PushServices, PushServicesError
from holdfast.notifications.push_subscriptions import parse_subscription, subscribe
from holdfast.notifications.relay import CLAIM_MAX
from holdfast.notifications.vapid import vapid_key
from holdfast.runtime import ids
from holdfast.runtime.settings import Settings
from holdfast.runtime.shared_secrets import SecretName, SecretValue, SharedSecret, rotate_secret
from tests.support.buyer_messages import BuyerMessages, buyer_messages
from tests.support.engine_harness import EventHandle, async_test
from tests.support.push_service import PushService, SubscribedBrowser, encode, push_service

MINUTE = 60
TEN_MINUTES: Any = {"policy": {"hold_seconds": 600, "review": "manual"}}
SENDER = "Acme <tickets@example.net>"


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PushService, Path]]:
    folder = tmp_path_factory.mktemp("push")
    with push_service(folder) as service:
        yield service, folder


@pytest.fixture
def service(shared_service: tuple[PushService, Path], monkeypatch: pytest.MonkeyPatch) -> PushService:
    service, folder = shared_service
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "fullchain.pem"))
    service.answers.clear()
    service.refusals.clear()
    return service


class Pushes(BuyerMessages):
    service: PushService
    channels: dict[str, Channel]
    secret: SharedSecret

    async def new_browser(self, event: EventHandle, booking: bytes, language: str = "en") -> SubscribedBrowser:
        signing = (await self.secret.keyring()).signing
        browser = self.service.new_browser(vapid_key(signing).public)
        subscription = browser.subscription(signing.number, language)
        assert await subscribe(self.database, event.id, booking, subscription)
        return browser

    async def send(self) -> None:
        await self.send_all(self.channels)

    async def warn(self) -> None:
        await self.pass_seconds(8 * MINUTE + 1)
        await warn_of_ending_holds(self.database)

    async def submit_receipt(self, event: EventHandle, booking: bytes) -> None:
        receipt = Receipt(id=ids.new_id(), hash=ids.new_id(), content_type="image/png", size=1)
        of_booking: Any = {"event": event.id, "org": event.org, "booking": booking}
        command = SubmitReceipt(**of_booking, payment=ids.new_id(), receipt=receipt, actor="user:ada")
        assert isinstance(await self.engine.submit(command), Accepted)

    async def count_subscriptions(self) -> int:
        count: int = await self.connection.fetchval("SELECT count(*) FROM push_subscription")
        return count


@asynccontextmanager
async def new_pushes(database: str, service: PushService, trusted: str | None = None) -> AsyncIterator[Pushes]:
    async with buyer_messages(database) as messages:
        messages.__class__ = Pushes
        assert isinstance(messages, Pushes)
        channel = PushChannel(messages.database, SENDER, PushServices(trusted or service.host))
        messages.service, messages.channels = service, {"push": channel}
        messages.secret = SharedSecret(messages.database, SecretName.WEB_PUSH)
        try:
            yield messages
        finally:
            await channel.close()


@async_test
async def test_the_browser_decrypts_a_warning_about_its_hold(database: str, service: PushService) -> None:
    async with new_pushes(database, service) as pushes:
        event = await pushes.new_event(title="Jazz", **TEN_MINUTES)
        booking = await pushes.hold(event)
        browser, other = [await pushes.new_browser(event, booking, language) for language in ("en", "es")]
        await pushes.warn()
        await pushes.send()
        assert service.refusals == []
        (message,) = browser.messages
        assert message.content == {
            "title": "Your hold ends in 2 minutes",
            "body": "Jazz: complete your booking before your spots go back on sale.",
            "tag": message.topic,
            "path": f"/b/{ids.format_booking_id(event.id, booking)}",
        }
        assert 0 < message.ttl_seconds <= 2 * MINUTE
        assert message.sender == "mailto:tickets@example.net"
        assert [each.content["title"] for each in other.messages] == ["Tu reserva vence en 2 minutos"]


@pytest.mark.parametrize(
    ("verb", "title"),
    [(Verb.APPROVE, "Your receipt was approved"), (Verb.REJECT, "Your receipt wasn't accepted")],
)
@async_test
async def test_the_browser_hears_of_the_decision_about_a_receipt_and_is_then_forgotten(
    database: str, service: PushService, verb: Any, title: str
) -> None:
    async with new_pushes(database, service) as pushes:
        event = await pushes.new_event(**TEN_MINUTES)
        booking = await pushes.hold(event)
        await pushes.submit_receipt(event, booking)
        browser = await pushes.new_browser(event, booking)
        await pushes.act(event, booking, verb)
        await pushes.send()
        assert [message.content["title"] for message in browser.messages] == [title]
        assert browser.messages[0].ttl_seconds == REVIEW_TTL_SECONDS
        assert await pushes.count_subscriptions() == 0


@async_test
async def test_a_booking_confirmed_without_a_review_causes_no_push_message(database: str, service: PushService) -> None:
    async with new_pushes(database, service) as pushes:
        event = await pushes.new_event(**TEN_MINUTES)
        booking = await pushes.hold(event)
        await pushes.new_browser(event, booking)
        await pushes.act(event, booking, Verb.CONFIRM)
        assert await pushes.deliveries("push") == []


async def _confirm(pushes: Pushes, event: EventHandle, booking: bytes) -> None:
    await pushes.act(event, booking, Verb.CONFIRM)


async def _extend(pushes: Pushes, event: EventHandle, booking: bytes) -> None:
    await pushes.act(event, booking, Verb.EXTEND)


async def _expire(pushes: Pushes, _: EventHandle, __: bytes) -> None:
    await pushes.pass_seconds(2 * MINUTE)


@pytest.mark.parametrize("change", [_confirm, _extend, _expire])
@async_test
async def test_a_warning_that_is_no_longer_true_is_not_sent(database: str, service: PushService, change: Any) -> None:
    async with new_pushes(database, service) as pushes:
        event = await pushes.new_event(**TEN_MINUTES)
        booking = await pushes.hold(event)
        browser = await pushes.new_browser(event, booking)
        await pushes.warn()
        await change(pushes, event, booking)
        await pushes.send()
        assert browser.messages == []
        assert await pushes.errors("push") == ["the hold was paid or extended, or it has ended"]


@pytest.mark.parametrize("status", [404, 410])
@async_test
async def test_a_browser_that_has_unsubscribed_is_forgotten(database: str, service: PushService, status: int) -> None:
    async with new_pushes(database, service) as pushes:
        event = await pushes.new_event(**TEN_MINUTES)
        booking = await pushes.hold(event)
        await pushes.new_browser(event, booking)
        await pushes.warn()
        service.answers.append((status, None))
        await pushes.send()
        assert await pushes.errors("push") == ["the browser has unsubscribed"]
        assert await pushes.count_subscriptions() == 0


@pytest.mark.parametrize(("status", "is_retried"), [(429, True), (503, True), (400, False), (413, False)])
@async_test
async def test_a_busy_push_service_is_retried_and_a_refusal_is_not(
    database: str, service: PushService, status: int, is_retried: bool
) -> None:
    async with new_pushes(database, service) as pushes:
        event = await pushes.new_event(**TEN_MINUTES)
        booking = await pushes.hold(event)
        await pushes.new_browser(event, booking)
        await pushes.warn()
        service.answers.append((status, "40"))
        await pushes.send()
        (row,) = await pushes.deliveries("push")
        assert row["last_error"] == f"the push service answered HTTP {status}"
        assert row["status"] == ("waiting" if is_retried else "failed")
        if is_retried:
            assert (row["due_at"] - row["created_at"]).total_seconds() >= 0.9 * 40


@async_test
async def test_a_browser_gets_messages_signed_with_the_key_that_it_subscribed_with(
    database: str, service: PushService
) -> None:
    async with new_pushes(database, service) as pushes:
        event = await pushes.new_event(**TEN_MINUTES)
        booking = await pushes.hold(event)
        browser = await pushes.new_browser(event, booking)
        await rotate_secret(pushes.database, SecretName.WEB_PUSH, overlap_seconds=3600)
        await pushes.warn()
        newest = (await SharedSecret(pushes.database, SecretName.WEB_PUSH).keyring()).signing
        assert vapid_key(newest).public != browser.server_key
        await pushes.send()
        assert len(browser.messages) == 1
        assert service.refusals == []


@async_test
async def test_a_subscription_at_a_service_that_is_no_longer_trusted_is_deleted_without_a_connection(
    database: str, service: PushService
) -> None:
    async with new_pushes(database, service, Settings().push_services) as pushes:
        event = await pushes.new_event(**TEN_MINUTES)
        booking = await pushes.hold(event)
        connections = service.connections
        await pushes.new_browser(event, booking)
        await pushes.warn()
        await pushes.send()
        assert await pushes.errors("push") == ["the push service is not in HOLDFAST_PUSH_SERVICES"]
        assert await pushes.count_subscriptions() == 0
        assert service.connections == connections


@async_test
async def test_addresses_that_never_answer_do_not_hold_up_a_warning(database: str, service: PushService) -> None:
    async with new_pushes(database, service) as pushes:
        event = await pushes.new_event(**TEN_MINUTES)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"https://localhost:{silent.getsockname()[1]}"
            signing = (await pushes.secret.keyring()).signing
            # Stored before the operator restricted the services.
            for number in range(3 * CLAIM_MAX):
                booking = await pushes.hold(event, f"stranger {number}")
                hanging = SubscribedBrowser(f"{address}/{number}", vapid_key(signing).public)
                assert await subscribe(pushes.database, event.id, booking, hanging.subscription(signing.number))
            browser = await pushes.new_browser(event, await pushes.hold(event, "honest"))
            await pushes.warn()
            await pushes.send()
            silent.settimeout(0)
            with pytest.raises(BlockingIOError):
                silent.accept()
        assert len(browser.messages) == 1


@pytest.mark.parametrize("is_warning", [True, False])
@async_test
async def test_only_a_warning_is_not_retried_after_a_timeout(
    database: str, service: PushService, monkeypatch: pytest.MonkeyPatch, is_warning: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"localhost:{silent.getsockname()[1]}"
        for name in ("WARNING_SEND_SECONDS", "SEND_SECONDS"):
            monkeypatch.setattr(push_channel, name, 0.1)
        async with new_pushes(database, service, host) as pushes:
            event = await pushes.new_event(**TEN_MINUTES)
            booking = await pushes.hold(event)
            if not is_warning:
                await pushes.submit_receipt(event, booking)
            signing = (await pushes.secret.keyring()).signing
            hanging = SubscribedBrowser(f"https://{host}/1", vapid_key(signing).public)
            assert await subscribe(pushes.database, event.id, booking, hanging.subscription(signing.number))
            if is_warning:
                await pushes.warn()
            else:
                await pushes.act(event, booking, Verb.APPROVE)
            await pushes.send()
            (row,) = await pushes.deliveries("push")
            assert row["last_error"].startswith("no response within")
            assert row["status"] == ("failed" if is_warning else "waiting")


@pytest.mark.parametrize(
    ("endpoint", "is_trusted"),
    [
        ("https://fcm.googleapis.com/fcm/send/a:b", True),
        ("https://updates.push.services.mozilla.com/wpush/v2/a", True),
        ("https://web.push.apple.com/a", True),
        ("https://wns2-par02p.notify.windows.com/w/?token=a", True),
        ("https://FCM.googleapis.com:443/a", True),
        ("http://fcm.googleapis.com/a", False),
        ("https://fcm.googleapis.com:8443/a", False),
        ("https://fcm.googleapis.com@evil.example/a", False),
        ("https://fcm.googleapis.com.evil.example/a", False),
        ("https://evilpush.apple.com/a", False),
        ("https://apple.com/a", False),
        ("https://storage.googleapis.com/a", False),
        ("https://127.0.0.1/a", False),
        ("https://[::1]/a", False),
        ("https://169.254.169.254/latest/meta-data", False),
        ("", False),
    ],
)
def test_only_the_services_of_browsers_are_trusted_by_default(endpoint: str, is_trusted: bool) -> None:
    assert PushServices(Settings().push_services).includes(endpoint) is is_trusted


def test_a_service_can_be_at_a_port_of_its_own() -> None:
    services = PushServices("push.example:8443, Other.example")
    assert services.includes("https://push.example:8443/a")
    assert services.includes("https://a.other.example/a")
    assert not services.includes("https://push.example/a")


@pytest.mark.parametrize("names", ["*", "a.example,", "https://a.example", "a.example/path", "a.example:x", ".example"])
def test_a_list_of_anything_but_hosts_is_refused(names: str) -> None:
    with pytest.raises(PushServicesError, match="is not the name of a host"):
        PushServices(names)


BROWSER = SubscribedBrowser("https://push.example/x", "")
FORM: Any = BROWSER.form()


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "http://push.example/x"},
        {"endpoint": "https://user:password@push.example/x"},
        {"endpoint": "ftp://push.example/x"},
        {"endpoint": "https://push.example/" + "x" * 2_000},
        {"endpoint": ""},
        {"endpoint": "//push.example"},
        {"p256dh": ""},
        {"p256dh": encode(b"\4" + bytes(64))},
        {"p256dh": encode(BROWSER.point[:-1])},
        {"p256dh": encode(BROWSER.point + b"\0")},
        {"p256dh": "ключ"},
        {"auth": ""},
        {"auth": encode(bytes(15))},
        {"auth": "!"},
    ],
)
def test_what_no_browser_sends_is_refused(change: dict[str, str]) -> None:
    more: Any = {"key_number": 1, "language": "en"}
    assert parse_subscription(**FORM, **more) == BROWSER.subscription(1)
    assert parse_subscription(**{**FORM, **change}, **more) is None


def test_every_value_of_the_secret_makes_a_valid_key() -> None:
    for value in (bytes(32), b"\xff" * 32, bytes(31) + b"\1"):
        key = vapid_key(SecretValue(1, value, signs=True))
        assert key.headers("https://push.example", SENDER)["Authorization"].endswith(f"k={key.public}")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_kind_of_message_fits_into_one_push_message(language: str) -> None:
    texts: Any = dict.fromkeys(("target", "channel", "kind", "body"), "")
    event, at = ids.new_id(), datetime.now(UTC)
    delivery = Delivery(event=event, number=1, org=event, stream=event, created_at=at, attempts=1, **texts)
    for kind in PushKind:
        message = write_message(delivery, kind, language, "Очень длинное название " * 100, 90)
        assert len(message.body.encode()) + len(message.title.encode()) < 1_000
        assert len(message.tag) == 32
