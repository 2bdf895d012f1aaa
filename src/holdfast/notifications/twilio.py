"""Sends SMS through Twilio, or through another provider that speaks Twilio's API."""

import asyncio
import re
import time
from contextlib import suppress
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import httpx
import structlog
from msgspec import DecodeError, Struct, ValidationError, json

from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.retry_after import parse_retry_after

log = structlog.get_logger()

SEND_SECONDS: Final = 15.0
# Twilio limits concurrent requests of an account.
SENDS_MAX: Final = 8
RESPONSE_MAX: Final = 64 * 1024

WARNING_SECONDS: Final = 60.0

_REFUSED_ACCOUNT: Final = (401, 403, 404)
# What can be wrong with a recipient, so that no retry helps: https://www.twilio.com/docs/api/errors. Anything else is
# about the account, the sender or the provider, and the operator can put that right while messages wait.
_REASONS: Final = {
    21211: "the phone number is invalid",
    21265: "the phone number is a short code",
    21268: "the phone number is a premium number",
    21408: "the account may not send SMS to this country",
    21610: "the recipient has unsubscribed",
    21612: "the provider cannot reach this number",
    21614: "the number cannot receive SMS",
    21635: "the phone number is a landline",
}

_FORM: Final = (
    "Write it as twilio://account:token@api.twilio.com?from=+15005550006, and percent-encode special characters."
)
_SENDER: Final = re.compile(r"\+[1-9][0-9]{4,14}|[0-9]{3,8}|[A-Za-z0-9 ]{1,11}")
_SERVICE: Final = re.compile(r"MG[0-9a-fA-F]{32}")
_SCHEMES: Final = {"twilio": "https", "twilio+http": "http"}


class SmsUrlError(ValueError):
    """The URL of the SMS provider is unusable. The message never repeats it, because it contains a token."""

    def __init__(self, what: str) -> None:
        super().__init__(f"The SMS provider's URL {what}. {_FORM}")


class SmsRefusedError(UndeliveredError):
    """The provider refused a message for a reason that is not the recipient's."""

    def __init__(self, detail: str, status: int, code: int | None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


class ErrorBody(Struct, frozen=True):
    """The `message` of an error is left out: it may contain the phone number."""

    code: int | None = None


class Twilio:
    """One account. `from=` names the sender: a number, a short code or a name. A value that begins with MG is the id of
    a messaging service. `twilio+http://` is for a provider on this machine."""

    def __init__(self, url: str) -> None:
        parts, sender = _split(url)
        account, token = unquote(parts.username or ""), unquote(parts.password or "")
        self._sender = {"MessagingServiceSid" if _SERVICE.fullmatch(sender) else "From": sender}
        host = parts.netloc.rpartition("@")[2]
        self._account_url = f"{_SCHEMES[parts.scheme]}://{host}/2010-04-01/Accounts/{account}"
        self._client = httpx.AsyncClient(auth=(account, token), timeout=SEND_SECONDS)
        self._sends = asyncio.Semaphore(SENDS_MAX)
        self._quiet_until = 0.0

    async def send(self, phone: str, text: str) -> None:
        """Return once the provider has accepted the message, otherwise raise `UndeliveredError`."""
        form = {"To": phone, **self._sender, "Body": text}
        failure = await self._attempt(
            self._client.build_request("POST", f"{self._account_url}/Messages.json", data=form)
        )
        if isinstance(failure, SmsRefusedError):
            self._warn(failure)
        # Raised outside the except block, the error has no context, which might name the recipient.
        if failure is not None:
            raise failure

    async def check_account(self) -> None:
        """Raise `UndeliveredError` unless the provider accepts the account and its token."""
        failure = await self._attempt(self._client.build_request("GET", f"{self._account_url}.json"))
        if failure is not None:
            raise failure

    async def close(self) -> None:
        await self._client.aclose()

    def _warn(self, failure: SmsRefusedError) -> None:
        """Every waiting SMS fails in the same way, so one line a minute is enough."""
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + WARNING_SECONDS
            log.warning("sms_provider_refused", status=failure.status, code=failure.code)

    async def _attempt(self, request: httpx.Request) -> UndeliveredError | None:
        try:
            async with self._sends, asyncio.timeout(SEND_SECONDS):
                response = await self._client.send(request)
        except (TimeoutError, httpx.TimeoutException):
            return UndeliveredError("the SMS provider did not respond in time")
        except httpx.HTTPError as error:
            return UndeliveredError(f"the SMS provider is unreachable: {type(error).__name__}")
        return None if response.is_success else _describe(response)


def _describe(response: httpx.Response) -> UndeliveredError:
    """Providers add error codes all the time, so Holdfast retries those that it does not know."""
    status, code = response.status_code, _error_code(response)
    number = f"HTTP {status}" if code is None else f"HTTP {status}, error {code}"
    if status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR:
        seconds = parse_retry_after(response.headers.get("retry-after"))
        return UndeliveredError(f"the SMS provider is busy ({number})", retry_after_seconds=seconds)
    if code in _REASONS:
        return UndeliveredError(f"{_REASONS[code]} ({number})", is_permanent=True)
    what = "the account or its token" if status in _REFUSED_ACCOUNT else "the message"
    return SmsRefusedError(f"the SMS provider refused {what} ({number})", status, code)


def _error_code(response: httpx.Response) -> int | None:
    if len(response.content) > RESPONSE_MAX:
        return None
    try:
        return json.decode(response.content, type=ErrorBody).code
    except (DecodeError, ValidationError):
        return None


def _split(url: str) -> tuple[SplitResult, str]:
    """The URL and the sender. A plus sign in a query usually stands for a space, but here it begins a number."""
    problem: str | None = None
    with suppress(ValueError):
        parts = urlsplit(url)
        name, _, value = parts.query.partition("=")
        sender = unquote(value)
        problem = _first_problem(parts, name, sender)
        if problem is None:
            return parts, sender
    raise SmsUrlError(problem or "is malformed")


def _first_problem(parts: SplitResult, name: str, sender: str) -> str | None:
    account = unquote(parts.username or "")
    problems = (
        (parts.scheme not in _SCHEMES, "does not begin with twilio://"),
        (not parts.hostname, "names no host"),
        (
            parts.scheme == "twilio+http" and not _is_this_machine(parts.hostname or ""),
            "would send the token unencrypted to another machine",
        ),
        (parts.port == 0, "names port 0"),
        (parts.path not in ("", "/") or parts.fragment, "has a path or fragment"),
        (not re.fullmatch(r"[A-Za-z0-9]+", account) or not parts.password, "has no account or no token"),
        (name != "from" or "&" in parts.query, "has no option from=, or another option"),
        (not (_SENDER.fullmatch(sender) or _SERVICE.fullmatch(sender)), "has a sender that is not a number or a name"),
    )
    return next((problem for wrong, problem in problems if wrong), None)


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
