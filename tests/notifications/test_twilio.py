"""Holdfast speaks Twilio's API, retries what can succeed later, and keeps phone numbers out of errors."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.notifications import twilio as twilio_module
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.twilio import SmsUrlError, Twilio
from tests.support.engine_harness import async_test
from tests.support.harness import free_port
from tests.support.twilio_server import ACCOUNT, SENDER, TOKEN, Answer, SentSms, TwilioServer, twilio_server

PHONE = "+12125550123"
SERVICE = "MG" + "0" * 32


@pytest.fixture(scope="module")
def shared_server() -> Iterator[TwilioServer]:
    with twilio_server() as server:
        yield server


@pytest.fixture
def server(shared_server: TwilioServer) -> TwilioServer:
    shared_server.sent.clear()
    shared_server.answers.clear()
    shared_server.unsubscribed.clear()
    return shared_server


async def send(url: str, phone: str = PHONE, text: str = "¡Hola! & 1+1=2 €") -> None:
    twilio = Twilio(url)
    try:
        await twilio.send(phone, text)
    finally:
        await twilio.close()


async def failure(url: str, phone: str = PHONE) -> UndeliveredError:
    with pytest.raises(UndeliveredError) as raised:
        await send(url, phone)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert phone not in str(raised.value)
    return raised.value


@pytest.mark.parametrize("sender", [SENDER, "12345", "Acme Hall", SERVICE])
@async_test
async def test_the_provider_gets_number_sender_and_text(server: TwilioServer, sender: str) -> None:
    await send(server.url.replace(SENDER, sender.replace(" ", "%20")))
    assert server.sent == [SentSms(PHONE, sender, "¡Hola! & 1+1=2 €")]


@pytest.mark.parametrize(
    ("answer", "is_permanent", "detail", "seconds"),
    [
        (Answer(429, 20429, "Too Many Requests", "17"), False, "busy (HTTP 429, error 20429)", 17),
        (Answer(503, retry_after="5"), False, "busy (HTTP 503)", 5),
        (Answer(500, 20500), False, "busy (HTTP 500, error 20500)", 0),
        (Answer(401, 20003), False, "refused the account or its token (HTTP 401, error 20003)", 0),
        (Answer(400, 21211), True, "the phone number is invalid (HTTP 400, error 21211)", 0),
        (Answer(400, 21610), True, "the recipient has unsubscribed (HTTP 400, error 21610)", 0),
        (Answer(400, 21408), True, "may not send SMS to this country (HTTP 400, error 21408)", 0),
        (Answer(403, 21408), True, "may not send SMS to this country (HTTP 403, error 21408)", 0),
        (Answer(400, 21635), True, "the phone number is a landline (HTTP 400, error 21635)", 0),
        (Answer(400, 29999), False, "the SMS provider refused the message (HTTP 400, error 29999)", 0),
        (Answer(400, 21606), False, "the SMS provider refused the message (HTTP 400, error 21606)", 0),
        (Answer(400, 21212), False, "the SMS provider refused the message (HTTP 400, error 21212)", 0),
        (Answer(400, 30034), False, "the SMS provider refused the message (HTTP 400, error 30034)", 0),
        (Answer(402), False, "the SMS provider refused the message (HTTP 402)", 0),
        (Answer(408), False, "the SMS provider refused the message (HTTP 408)", 0),
        (Answer(301), False, "the SMS provider refused the message (HTTP 301)", 0),
        (Answer(308), False, "the SMS provider refused the message (HTTP 308)", 0),
    ],
    ids=lambda value: f"{value.status}-{value.code}" if isinstance(value, Answer) else "",
)
@async_test
async def test_a_failure_says_why_and_whether_to_retry(
    server: TwilioServer, answer: Answer, is_permanent: bool, detail: str, seconds: float
) -> None:
    server.answers.append(answer)
    error = await failure(server.url)
    assert (error.is_permanent, error.retry_after_seconds) == (is_permanent, seconds)
    assert detail in str(error)


@async_test
async def test_a_mistake_of_the_operator_is_logged_at_most_once_a_minute(
    server: TwilioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    twilio = Twilio(server.url)
    with capture_logs() as logs:
        for passed in (0.0, twilio_module.WARNING_SECONDS):
            now = time.monotonic() + passed
            monkeypatch.setattr(twilio_module, "time", SimpleNamespace(monotonic=lambda now=now: now))
            server.answers += [Answer(400, 21610), Answer(503), *[Answer(400, 21606, f"{SENDER} to {PHONE}")] * 3]
            for _ in range(5):
                with pytest.raises(UndeliveredError):
                    await twilio.send(PHONE, "Hello")
    await twilio.close()
    expected = {"event": "sms_provider_refused", "log_level": "warning", "status": 400, "code": 21606}
    assert logs == [expected] * 2


@async_test
async def test_the_number_in_an_error_of_the_provider_is_not_repeated(server: TwilioServer) -> None:
    server.unsubscribed.add(PHONE)
    assert (await failure(server.url)).is_permanent
    assert (await failure(server.url, "+0123")).is_permanent


@async_test
async def test_a_wrong_token_is_retried_until_the_operator_corrects_it(server: TwilioServer) -> None:
    assert not (await failure(server.url.replace(TOKEN, "wrong"))).is_permanent


@async_test
async def test_a_provider_that_cannot_be_reached_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    error = await failure(f"twilio+http://{ACCOUNT}:{TOKEN}@127.0.0.1:{free_port()}?from={SENDER}")
    assert (error.is_permanent, str(error)) == (False, "the SMS provider is unreachable: ConnectError")
    monkeypatch.setattr(twilio_module, "SEND_SECONDS", 0.0)
    error = await failure(f"twilio+http://{ACCOUNT}:{TOKEN}@127.0.0.1:{free_port()}?from={SENDER}")
    assert (error.is_permanent, str(error)) == (False, "the SMS provider did not respond in time")


def test_twilio_itself_is_reached_over_tls() -> None:
    twilio: Any = Twilio(f"twilio://{ACCOUNT}:{TOKEN}@api.twilio.com?from={SENDER}")
    assert twilio._account_url == f"https://api.twilio.com/2010-04-01/Accounts/{ACCOUNT}"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2:8080", "[::1]:8080"])
def test_a_provider_on_this_machine_needs_no_tls(host: str) -> None:
    Twilio(f"twilio+http://{ACCOUNT}:{TOKEN}@{host}?from={SENDER}")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://AC1:t@api.twilio.com?from=+15005550006", "does not begin with twilio://"),
        ("twilio://AC1:t@?from=+15005550006", "names no host"),
        ("twilio+http://AC1:t@api.example?from=+15005550006", "would send the token unencrypted to another machine"),
        ("twilio+http://AC1:t@10.0.0.7?from=+15005550006", "would send the token unencrypted to another machine"),
        ("twilio+http://AC1:t@localhost.example?from=123", "would send the token unencrypted to another machine"),
        ("twilio://AC1:t@host:0?from=+15005550006", "names port 0"),
        ("twilio://AC1:t@host:x?from=+15005550006", "is malformed"),
        ("twilio://AC1:t@host/path?from=+15005550006", "has a path or fragment"),
        ("twilio://AC1@host?from=+15005550006", "has no account or no token"),
        ("twilio://AC%2F1:t@host?from=+15005550006", "has no account or no token"),
        ("twilio://host?from=+15005550006", "has no account or no token"),
        ("twilio://AC1:t@host", "has no option from=, or another option"),
        ("twilio://AC1:t@host?from=1234567&to=2", "has no option from=, or another option"),
        ("twilio://AC1:t@host?from=a%0Ab", "has a sender that is not a number or a name"),
    ],
)
def test_an_unusable_url_is_refused_without_repeating_its_token(url: str, problem: str) -> None:
    with pytest.raises(SmsUrlError) as raised:
        Twilio(url)
    assert str(raised.value).startswith(f"The SMS provider's URL {problem}. Write it as twilio://")
    assert ":t@" not in str(raised.value)
