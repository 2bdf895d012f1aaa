"""Sends messages through a mail server."""

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
from msgspec import Struct

from holdfast.notifications.channel import UndeliveredError

SEND_SECONDS: Final = 20.0
QUIT_SECONDS: Final = 2.0
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
# The server asks us to log in first. That says nothing about the recipient.
LOGIN_REQUIRED: Final = 530

_FORM: Final = "Write it as smtp://user:password@host:port or smtps://…, and percent-encode special characters."


class SmtpUrlError(ValueError):
    """The URL of the mail server is unusable. The message never repeats it, because it may contain a password."""

    def __init__(self, what: str) -> None:
        super().__init__(f"The mail server's URL {what}. {_FORM}")


class Starttls(StrEnum):
    REQUIRED = "required"
    OPTIONAL = "optional"
    NEVER = "never"


_QUERIES: Final = ("", *(f"starttls={choice}" for choice in Starttls))


class Login(Struct, frozen=True):
    """How the mail server accepted us. `user` is None if it asks for no login."""

    user: str | None
    is_encrypted: bool
    is_local: bool


class Smtp:
    """One mail server. Certificates are always verified against the authorities that this machine trusts.

    `smtps://` encrypts from the start. `smtp://` encrypts if the server offers it, and `?starttls=required` insists. A
    password insists too unless the server is this machine, because an attacker in between could otherwise ask for it in
    plain text. `?starttls=optional` and `?starttls=never` override that.
    """

    def __init__(self, url: str) -> None:
        parts = _split(url)
        self._host = parts.hostname or ""
        self._port = parts.port
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")
        self._tls = parts.scheme == "smtps"
        self._starttls = Starttls.NEVER if self._tls else self._starttls_of(parts.query)

    async def send(self, message: EmailMessage) -> None:
        """Return once the server has accepted the message, otherwise raise `UndeliveredError`."""
        failure = await self._attempt(message)
        # Raised outside the except block, the error has no context, which might name the recipient.
        if failure is not None:
            raise failure

    async def log_in(self, seconds: float) -> Login:
        """Connect and log in as `send` does, and send nothing. Raises `UndeliveredError`."""
        client = self._client()
        failure: UndeliveredError | None = None
        try:
            async with asyncio.timeout(seconds):
                await client.connect()
                is_encrypted = client.get_transport_info("sslcontext") is not None
            await _quit(client)
        except (SMTPException, OSError, ValueError) as error:
            failure = _failure(error)
        finally:
            client.close()
        if failure is not None:
            raise failure
        return Login(self._user or None, is_encrypted, self._host in LOOPBACK)

    async def _attempt(self, message: EmailMessage) -> UndeliveredError | None:
        client = self._client()
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await client.connect()
                await client.send_message(message)
            await _quit(client)
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


async def _quit(client: SMTP) -> None:
    """The server has accepted the message, so an error here must not make us send it again."""
    with suppress(SMTPException, OSError):
        await client.quit(timeout=QUIT_SECONDS)


def _failure(error: Exception) -> UndeliveredError:
    """Passes on only the server's status code, because its text may repeat the recipient's address."""
    match error:
        case SMTPRecipientsRefused(recipients=[refused, *_]):
            is_permanent = refused.code >= 500 and refused.code != LOGIN_REQUIRED
            return UndeliveredError(
                f"The mail server refused the recipient ({refused.code}).", is_permanent=is_permanent
            )
        case SMTPDataError():
            return UndeliveredError(
                f"The mail server refused the message ({error.code}).", is_permanent=error.code >= 500
            )
        case SMTPAuthenticationError():
            return UndeliveredError(f"The mail server refused the user or the password ({error.code}).")
        case SMTPResponseException():
            return UndeliveredError(f"The mail server answered {error.code}.")
        case SMTPNotSupported():
            return UndeliveredError("The mail server does not support non-ASCII addresses.", is_permanent=True)
        case TimeoutError():
            return UndeliveredError("The mail server did not respond in time.")
        case _ if isinstance(error, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
            return UndeliveredError("No secure connection to the mail server: its certificate is not trusted.")
        case OSError():
            return UndeliveredError("The mail server is unreachable, or closed the connection.")
        case SMTPException():
            return UndeliveredError("The mail server offers no encryption, or no supported login.")
    return UndeliveredError("The message is malformed.")


def _split(url: str) -> SplitResult:
    problem: str | None = None
    with suppress(ValueError):
        parts = urlsplit(url)
        problem = _first_problem(parts)
        if problem is None:
            return parts
    raise SmtpUrlError(problem or "is malformed")


def _first_problem(parts: SplitResult) -> str | None:
    problems = (
        (parts.scheme not in ("smtp", "smtps"), "begins with neither smtp:// nor smtps://"),
        (not parts.hostname, "names no host"),
        (parts.port == 0, "names port 0"),
        (parts.path not in ("", "/") or parts.fragment, "has a path or fragment"),
        (parts.query not in _QUERIES, "has an option that is not starttls=required, =optional or =never"),
        (parts.query and parts.scheme == "smtps", "has an option for STARTTLS, which smtps:// does not use"),
        (bool(parts.username) != bool(parts.password), "has a user without a password, or a password without a user"),
    )
    return next((problem for wrong, problem in problems if wrong), None)
