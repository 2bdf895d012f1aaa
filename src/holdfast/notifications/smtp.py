"""Hands messages to a mail server."""

import asyncio
import ssl
from contextlib import suppress
from email.message import EmailMessage
from enum import StrEnum
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from aiosmtplib import (
    SMTP,
    SMTPAuthenticationError,
    SMTPDataError,
    SMTPException,
    SMTPNotSupported,
    SMTPRecipientsRefused,
    SMTPResponseException,
)

from holdfast.notifications.channel import UndeliveredError

SEND_SECONDS: Final = 20.0
GOODBYE_SECONDS: Final = 2.0
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
# The server wants a login before it serves anybody: that is not about the recipient.
LOGIN_WANTED: Final = 530

_FORM: Final = "Write it as smtp://user:password@host:port or smtps://…, with special characters in percent encoding."


class SmtpUrlError(ValueError):
    """The address of the mail server cannot be used. The message does not repeat it: there may be a password in it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"The mail server's URL {what}. {_FORM}")


class Starttls(StrEnum):
    REQUIRED = "required"
    OPTIONAL = "optional"
    NEVER = "never"


_QUERIES: Final = ("", *(f"starttls={choice}" for choice in Starttls))


class Smtp:
    """One mail server. Certificates are always verified, against the authorities that this machine trusts.

    `smtps://` is encrypted from the start. With `smtp://` encryption is used where the server offers it, and
    `?starttls=required` makes sure of it. A password makes sure of it too, unless the server is this machine:
    otherwise whoever sits in between could ask for it in the clear. `optional` and `never` say that this is meant.
    """

    def __init__(self, url: str) -> None:
        parts = _split(url)
        self._host = parts.hostname or ""
        self._port = parts.port
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")
        self._tls = parts.scheme == "smtps"
        self._starttls = Starttls.NEVER if self._tls else self._starttls_of(parts.query)

    async def send(self, message: EmailMessage) -> None:
        """Returns once the server has taken the message; else raises `UndeliveredError`."""
        failure = await self._attempt(message)
        # Raised out here, the error does not carry along the one that it was made of, which may name the recipient.
        if failure is not None:
            raise failure

    async def _attempt(self, message: EmailMessage) -> UndeliveredError | None:
        client = self._client()
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await client.connect()
                await client.send_message(message)
            await _say_goodbye(client)
        except (SMTPException, OSError, ValueError) as error:
            return _failure(error)
        finally:
            client.close()
        return None

    def _client(self) -> SMTP:
        return SMTP(
            hostname=self._host,
            port=self._port,
            username=self._user or None,
            password=self._password if self._user else None,
            timeout=SEND_SECONDS,
            use_tls=self._tls,
            start_tls={Starttls.REQUIRED: True, Starttls.OPTIONAL: None, Starttls.NEVER: False}[self._starttls],
        )

    def _starttls_of(self, query: str) -> Starttls:
        if query:
            return Starttls(query.removeprefix("starttls="))
        return Starttls.REQUIRED if self._password and self._host not in LOOPBACK else Starttls.OPTIONAL


async def _say_goodbye(client: SMTP) -> None:
    """The message was taken: whatever goes wrong now must not make us send it again."""
    with suppress(SMTPException, OSError):
        await client.quit(timeout=GOODBYE_SECONDS)


def _failure(error: Exception) -> UndeliveredError:
    """Of what the server said only the code is told on; its words may repeat the address."""
    match error:
        case SMTPRecipientsRefused(recipients=[refused, *_]):
            for_good = refused.code >= 500 and refused.code != LOGIN_WANTED
            return UndeliveredError(f"The mail server refused the recipient ({refused.code}).", for_good=for_good)
        case SMTPDataError():
            return UndeliveredError(f"The mail server refused the message ({error.code}).", for_good=error.code >= 500)
        case SMTPAuthenticationError():
            return UndeliveredError(f"The mail server refused the user or the password ({error.code}).")
        case SMTPResponseException():
            return UndeliveredError(f"The mail server answered {error.code}.")
        case SMTPNotSupported():
            return UndeliveredError("The mail server cannot send to an address with such letters.", for_good=True)
        case TimeoutError():
            return UndeliveredError("The mail server did not answer in time.")
        case _ if isinstance(error, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
            return UndeliveredError("No secure connection to the mail server: its certificate cannot be trusted.")
        case OSError():
            return UndeliveredError("The mail server could not be reached, or hung up.")
        case SMTPException():
            return UndeliveredError("The mail server offers no encryption, or no way to log in.")
    return UndeliveredError("The message is not of a form that can be sent.")


def _split(url: str) -> SplitResult:
    problem: str | None = None
    with suppress(ValueError):
        parts = urlsplit(url)
        problem = _problem(parts)
        if problem is None:
            return parts
    raise SmtpUrlError(problem or "cannot be read")


def _problem(parts: SplitResult) -> str | None:
    """The first thing that is wrong with the URL."""
    problems = (
        (parts.scheme not in ("smtp", "smtps"), "begins with neither smtp:// nor smtps://"),
        (not parts.hostname, "names no host"),
        (parts.port == 0, "names a port that does not exist"),
        (parts.path not in ("", "/") or parts.fragment, "has something behind the host that is not understood"),
        (parts.query not in _QUERIES, "has an option that is not starttls=required, =optional or =never"),
        (parts.query and parts.scheme == "smtps", "has an option for STARTTLS, which smtps:// does not use"),
        (bool(parts.username) != bool(parts.password), "has a user without a password, or a password without a user"),
    )
    return next((problem for wrong, problem in problems if wrong), None)
