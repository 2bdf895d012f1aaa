"""The standard library for webhooks accepts our signatures, and webhooks never reach a private address."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from holdfast.notifications import checked_http, webhook_channel
from holdfast.notifications.channel import Delivery, TargetGoneError, UndeliveredError
from holdfast.notifications.webhook_addresses import NOT_FOUND, NOT_PUBLIC, check_url, is_public
from holdfast.notifications.webhook_channel import WebhookChannel
from holdfast.runtime import db, ids
from tests.support.certificates import make_certificate
from tests.support.engine_harness import async_test, poll_until
from tests.support.harness import free_port
from tests.support.relay_harness import (
    Request,
    Responder,
    http_response,
    insert_endpoint,
    insert_org,
    new_secret,
    running_receiver,
)

CREATED_AT = datetime(2027, 3, 5, 19, 0, 0, 250_000, tzinfo=UTC)
PUBLIC = "93.184.216.34"


class WebhookHarness(msgspec.Struct, frozen=True):
    """The channel, and a database with one org."""

    channel: WebhookChannel
    pool: db.Pool
    org: bytes

    async def new_delivery(self, url: str, secret: str | None = None) -> Delivery:
        """Create an endpoint and a message for it."""
        target = await insert_endpoint(self.pool, self.org, url, secret)
        return Delivery(
            event=ids.new_id(),
            number=7,
            target=target,
            channel="webhook",
            org=self.org,
            stream=ids.new_id(),
            kind="confirmed",
            body='{"user": "ü"}',
            created_at=CREATED_AT,
            attempts=1,
        )

    async def send(self, url: str) -> None:
        await self.channel.send(await self.new_delivery(url))

    async def expect_refusal(self, url: str) -> str:
        """Send, and return the reason why it failed."""
        with pytest.raises(UndeliveredError) as refused:
            await self.send(url)
        assert not refused.value.is_permanent
        return str(refused.value)


@asynccontextmanager
async def webhook_harness(database: str, *, allow_private: bool = True) -> AsyncIterator[WebhookHarness]:
    pool = await db.create_pool(database, 2)
    channel = WebhookChannel(db.Database(pool), allow_private=allow_private)
    try:
        yield WebhookHarness(channel, pool, await insert_org(pool))
    finally:
        await channel.close()
        await pool.close()


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The addresses of host names, for the test to fill. Every lookup is recorded under `lookups`."""
    addresses_by_name: dict[str, list[str]] = {"lookups": []}
    resolve = socket.getaddrinfo

    def answer(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        addresses_by_name["lookups"].append(host)
        if host not in addresses_by_name:
            return resolve(host, port, *args, **kwargs)
        return [found for address in addresses_by_name[host] for found in resolve(address, port, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return addresses_by_name


def verify(request: Request, secret: str) -> Any:
    return Webhook(secret).verify(request.body, request.headers)


@async_test
async def test_a_message_follows_the_standard_and_its_library_accepts_it(database: str) -> None:
    secret = new_secret()
    async with webhook_harness(database) as harness, running_receiver() as receiver:
        delivery = await harness.new_delivery(receiver.url + "?a=%20b", secret)
        await harness.channel.send(delivery)
        (request,) = receiver.requests
        assert verify(request, secret) == {
            "type": "confirmed",
            "timestamp": "2027-03-05T19:00:00.250000Z",
            "data": {"user": "ü"},
        }
        assert request.path == "/hook?a=%20b"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["user-agent"] == "Holdfast"
        assert request.headers["webhook-id"] == f"msg_{delivery.event.hex()}_7"
        with pytest.raises(WebhookVerificationError):
            verify(request, new_secret())


@async_test
async def test_each_attempt_has_the_same_id_and_uses_the_same_connection(database: str) -> None:
    async with webhook_harness(database) as harness, running_receiver() as receiver:
        delivery = await harness.new_delivery(receiver.url)
        for attempt in range(3):
            await harness.channel.send(msgspec.structs.replace(delivery, attempts=attempt))
        assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
        assert receiver.connections == 1


@async_test
async def test_both_secrets_sign_during_a_rotation_and_only_the_new_one_afterwards(database: str) -> None:
    new, old = new_secret(), new_secret()
    async with webhook_harness(database) as harness, running_receiver() as receiver:
        delivery = await harness.new_delivery(receiver.url, new)
        for offset in ("+ interval '1 hour'", "- interval '1 second'"):
            await harness.pool.execute(
                f"UPDATE webhook_endpoint SET old_secret = $1, old_secret_until = holdfast_now() {offset}", old
            )
            await harness.channel.send(delivery)
        both, only_new = receiver.requests
        assert len(both.headers["webhook-signature"].split(" ")) == 2
        assert verify(both, new) == verify(both, old) == verify(only_new, new)
        assert len(only_new.headers["webhook-signature"].split(" ")) == 1
        with pytest.raises(WebhookVerificationError):
            verify(only_new, old)


def always_answer(answer: bytes) -> Responder:
    return lambda _: asyncio.sleep(0, answer)


@async_test
async def test_any_2xx_answer_counts_as_delivered(database: str) -> None:
    async with webhook_harness(database) as harness, running_receiver() as receiver:
        for code in (200, 201, 204, 299):
            receiver.answer = always_answer(http_response(code))
            await harness.send(receiver.url)
        assert len(receiver.requests) == 4


@async_test
async def test_any_other_answer_is_a_failure_and_redirects_are_not_followed(database: str) -> None:
    async with (
        webhook_harness(database) as harness,
        running_receiver() as receiver,
        running_receiver() as redirect_target,
    ):
        for code in (301, 302, 303, 307, 308, 400, 401, 404, 429, 500, 503):
            receiver.answer = always_answer(http_response(code, f"Location: {redirect_target.url}"))
            assert await harness.expect_refusal(receiver.url) == f"HTTP {code}"
        assert redirect_target.requests == []


@async_test
async def test_a_gone_receiver_and_a_missing_endpoint_are_reported_as_gone(
    database: str,
) -> None:
    async with webhook_harness(database) as harness, running_receiver(always_answer(http_response(410))) as receiver:
        delivery = await harness.new_delivery(receiver.url)
        with pytest.raises(TargetGoneError, match="HTTP 410"):
            await harness.channel.send(delivery)
        for change in ({"target": "email"}, {"target": ids.new_id().hex()}, {"org": ids.new_id()}):
            with pytest.raises(TargetGoneError, match="deleted or disabled"):
                await harness.channel.send(msgspec.structs.replace(delivery, **change))
        await harness.pool.execute("UPDATE webhook_endpoint SET enabled = false")
        with pytest.raises(TargetGoneError, match="deleted or disabled"):
            await harness.channel.send(delivery)
        assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + 20_000 * b"x",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
    ],
    ids=["endless", "unfinished", "broken"],
)
@async_test
async def test_the_status_of_an_answer_counts_whatever_its_body(
    database: str, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_http, "RESPONSE_SECONDS", 0.1)
    async with webhook_harness(database) as harness, running_receiver(always_answer(answer)) as receiver:
        for _ in range(2):
            await harness.send(receiver.url)
        assert receiver.connections == 2


@async_test
async def test_a_silent_receiver_times_out(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_channel, "SEND_SECONDS", 0.3)

    async def hang(_: Request) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with webhook_harness(database) as harness, running_receiver(hang) as receiver:
        assert await harness.expect_refusal(receiver.url) == "no response within 0 s"
        assert await harness.expect_refusal(f"http://127.0.0.1:{free_port()}/") == "ConnectError"


@async_test
async def test_a_proxy_in_the_environment_is_not_used(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    async with webhook_harness(database) as harness, running_receiver() as receiver:
        await harness.send(receiver.url)
        assert len(receiver.requests) == 1


@async_test
async def test_a_host_name_is_resolved_once_and_kept_in_the_host_header(
    database: str, resolver: dict[str, list[str]]
) -> None:
    resolver["hook.test"] = ["127.0.0.1"]
    async with webhook_harness(database) as harness, running_receiver() as receiver:
        await harness.send(f"http://hook.test:{receiver.port}/")
        assert resolver["lookups"].count("hook.test") == 1
        assert receiver.requests[0].headers["host"] == f"hook.test:{receiver.port}"


@async_test
async def test_the_next_address_of_a_name_is_tried_if_one_does_not_answer(
    database: str, resolver: dict[str, list[str]]
) -> None:
    resolver["hook.test"] = ["127.0.0.2", "127.0.0.1"]
    async with webhook_harness(database) as harness, running_receiver() as receiver:
        await harness.send(f"http://hook.test:{receiver.port}/")
        assert len(receiver.requests) == 1


@async_test
async def test_a_host_name_that_resolves_to_a_private_address_is_refused(
    database: str, resolver: dict[str, list[str]]
) -> None:
    private = ["127.0.0.1", "169.254.169.254", "10.1.2.3", "::1", "::ffff:127.0.0.1"]
    async with webhook_harness(database, allow_private=False) as harness, running_receiver() as receiver:
        for addresses in [*zip(private)] + [(PUBLIC, address) for address in private]:
            resolver["innocent.test"] = list(addresses)
            assert await harness.expect_refusal(f"http://innocent.test:{receiver.port}/") == NOT_PUBLIC
        assert receiver.connections == 0


@async_test
async def test_loopback_names_are_refused(database: str) -> None:
    async with webhook_harness(database, allow_private=False) as harness, running_receiver() as receiver:
        for host in ("localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"):
            assert await harness.expect_refusal(f"http://{host}:{receiver.port}/") == NOT_PUBLIC
        assert receiver.connections == 0


@async_test
async def test_a_name_that_changes_after_the_check_is_sent_to_the_checked_address(
    database: str, resolver: dict[str, list[str]]
) -> None:
    """Nobody listens at the first address. Every later lookup returns the receiver's."""
    async with webhook_harness(database) as harness, running_receiver() as receiver:
        resolver["changing.test"] = ChangingAddresses(["127.0.0.2"], ["127.0.0.1"])
        assert await harness.expect_refusal(f"http://changing.test:{receiver.port}/") == "ConnectError"
        assert receiver.connections == 0
        await harness.send(f"http://changing.test:{receiver.port}/")
        assert resolver["lookups"].count("changing.test") == 2


class ChangingAddresses(list[str]):
    """Addresses that change after the first lookup."""

    def __init__(self, first: list[str], later: list[str]) -> None:
        super().__init__(later)
        self._first: list[str] | None = first

    def __iter__(self) -> Iterator[str]:
        first, self._first = self._first, None
        return super().__iter__() if first is None else iter(first)


@async_test
async def test_an_unknown_host_name_is_reported(database: str, resolver: dict[str, list[str]]) -> None:
    resolver["missing.test"] = []
    async with webhook_harness(database, allow_private=False) as harness:
        assert await harness.expect_refusal("http://missing.test/") == NOT_FOUND
        resolver["missing.test"] = ["no address"]
        assert await harness.expect_refusal("http://missing.test/") == NOT_FOUND


@async_test
async def test_a_hanging_name_server_takes_one_thread_for_each_name(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, lookups, resolve = threading.Event(), list[str](), socket.getaddrinfo

    def answer(host: Any, *args: Any, **kwargs: Any) -> Any:
        lookups.append(host)
        if host == "hanging.test":
            released.wait(30)
        return resolve("127.0.0.1", *args, **kwargs)

    async with webhook_harness(database) as harness, running_receiver() as receiver:
        stuck = await harness.new_delivery(f"http://hanging.test:{receiver.port}/")
        free = await harness.new_delivery(f"http://well.test:{receiver.port}/")
        monkeypatch.setattr(socket, "getaddrinfo", answer)
        waiting = [asyncio.create_task(harness.channel.send(stuck)) for _ in range(200)]
        await poll_until(lambda: "hanging.test" in lookups)
        await harness.channel.send(free)
        assert lookups == ["hanging.test", "well.test"]
        waiting[0].cancel()
        released.set()
        await asyncio.gather(*waiting[1:])
        assert len(receiver.requests) == 200


@async_test
async def test_the_certificate_must_match_the_host_name(
    database: str, resolver: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver["hook.test"] = resolver["other.test"] = ["127.0.0.1"]
    server = make_certificate(tmp_path, "hook.test")
    async with running_receiver(tls=server) as receiver:
        async with webhook_harness(database) as untrusting:
            assert await untrusting.expect_refusal(f"https://hook.test:{receiver.port}/") == "ConnectError"
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "fullchain.pem"))
        async with webhook_harness(database) as harness:
            await harness.send(f"https://hook.test:{receiver.port}/")
            assert await harness.expect_refusal(f"https://other.test:{receiver.port}/") == "ConnectError"
            assert await harness.expect_refusal(f"https://127.0.0.1:{receiver.port}/") == "ConnectError"
        assert [request.headers["host"] for request in receiver.requests] == [f"hook.test:{receiver.port}"]


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:10.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::10.0.0.1",
        "100::1",
        "2001::1",
        "2001:0:7f00:1::",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:a00:1::",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_a_private_address_is_recognised(address: str) -> None:
    assert not is_public(address)
    assert check_url(f"https://[{address}]/" if ":" in address else f"https://{address}/") is not None


@pytest.mark.parametrize(
    "address",
    [
        PUBLIC,
        "1.1.1.1",
        "100.63.255.255",
        "100.128.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "192.0.1.1",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2001:4860:4860::8888",
        "::ffff:1.1.1.1",
        "64:ff9b::1.1.1.1",
    ],
)
def test_a_public_address_is_recognised(address: str) -> None:
    assert is_public(address)
    assert check_url(f"https://[{address}]/" if ":" in address else f"https://{address}/") is None


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org",
        "https://example.org/hooks?token=1",
        "http://example.org:8080/",
        "https://sub_domain.example.org./",
        "https://bücher.example/",
        "https://xn--bcher-kva.example/",
        "https://4chan.example/",
        "https://1.example/",
        "https://example.org:65535/",
    ],
)
def test_a_valid_webhook_url_is_accepted(url: str) -> None:
    assert check_url(url) is None


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "begin with"),
        ("example.org/hook", "begin with"),
        ("//example.org/hook", "begin with"),
        (" https://example.org/", "begin with"),
        ("ftp://example.org/", "begin with"),
        ("file:///etc/passwd", "begin with"),
        ("unix:///run/docker.sock", "begin with"),
        ("https://user:password@example.org/", "user name"),
        ("https://user@example.org/", "user name"),
        ("https://example.org\\@127.0.0.1/", "user name"),
        ("https://example.org/#part", "fragment"),
        ("https://example.org/#", "fragment"),
        ("https://example.org:0/", "port"),
        ("https://example.org:65536/", "port"),
        ("https://example.org:x/", "not a URL"),
        ("https://exa\nmple.org/", "not a URL"),
        ("https:///hook", "valid name"),
        ("https://exa mple.org/", "valid name"),
        ("https://a..b/", "valid name"),
        ("https://" + 64 * "a" + ".org/", "valid name"),
        ("https://%31%32%37.0.0.1/", "valid name"),
        ("https://127.1/", "valid name"),
        ("https://2130706433/", "valid name"),
        ("https://0x7f000001/", "valid name"),
        ("https://0x7f.0.0.0x1/", "valid name"),
        ("https://0177.0.0.1/", "not a URL"),
        ("https://127.0.0.1./", "valid name"),
        ("https://127.0.0.1/", "public"),
        ("https://[::1]/", "public"),
        ("https://example.org/" + 2000 * "x", "longer"),
    ],
)
def test_an_invalid_webhook_url_is_refused_with_a_reason(url: str, reason: str) -> None:
    assert reason in (check_url(url) or "")


def test_private_addresses_are_accepted_if_they_are_allowed() -> None:
    assert check_url("http://127.0.0.1:8000/", allow_private=True) is None
    assert check_url("http://[::1]:8000/", allow_private=True) is None
    assert check_url("http://localhost:8000/", allow_private=True) is None
    assert check_url("http://user@localhost:8000/", allow_private=True) is not None


def test_the_body_is_sent_unchanged() -> None:
    message = webhook_channel.WebhookMessage("held", CREATED_AT, msgspec.Raw(b'{"b": 1, "a": 2.50}'))
    assert b'"data":{"b": 1, "a": 2.50}' in msgspec.json.encode(message)
    assert json.loads(msgspec.json.encode(message))["timestamp"] == "2027-03-05T19:00:00.250000Z"
