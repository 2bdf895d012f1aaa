"""Holdfast speaks Twilio's API, retries what can succeed later, and keeps phone numbers out of errors."""

from collections.abc import Iterator
from typing import Any

import pytest

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
        (Answer(400, 29999), True, "the SMS provider refused the message (HTTP 400, error 29999)", 0),
    ],
    ids=["busy", "overloaded", "broken", "token", "invalid", "unsubscribed", "country", "unknown"],
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


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://AC1:t@api.twilio.com?from=+15005550006", "does not begin with twilio://"),
        ("twilio://AC1:t@?from=+15005550006", "names no host"),
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
