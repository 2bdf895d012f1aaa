"""Publishes to NATS JetStream. A message counts as published once the stream has stored it."""

import asyncio
import random
import ssl
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import structlog
from msgspec import Struct

from holdfast.notifications.bus import check_prefix, stream_name
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.cloud_events import CONTENT_TYPE, BusMessage, Topic
from holdfast.runtime.extras import optional_import

with optional_import("nats", extra="nats"):
    from nats import errors
    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.api import StorageType, StreamConfig
    from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

log = structlog.get_logger()

CONNECT_SECONDS: Final = 3.0
PUBLISH_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 5.0
PING_SECONDS: Final = 20
# The stream drops a message whose id it has seen in this time. A relay that dies leaves its messages to another one
# after a minute, so most retries are dropped.
DUPLICATE_SECONDS: Final = 600
# How long a stream that Holdfast creates keeps messages. Change the stream if you need another limit.
KEEP_SECONDS: Final = 7 * 24 * 3600
# JetStream's code for a message larger than the stream accepts.
TOO_LARGE: Final = 10054

_FORM: Final = (
    "Write it as nats://user:password@host:4222,other:4222 or tls://…, and percent-encode special characters."
)
_QUERY: Final = ("ca", "cert", "key")


class NatsUrl(Struct, frozen=True):
    """`nats://user:password@host:4222,other:4222`, or `nats://token@host`. With `tls`, the connection is encrypted, and
    `?ca=`, `?cert=` and `?key=` name files with a certificate authority and a client certificate."""

    servers: tuple[str, ...]
    is_encrypted: bool = False
    files: dict[str, str] = {}

    @classmethod
    def parse(cls, text: str) -> "NatsUrl":
        url = urlsplit(text)
        if url.scheme not in ("nats", "tls"):
            raise ValueError(f"It must start with nats:// or tls://. {_FORM}")
        files = dict(parse_qsl(url.query, keep_blank_values=True))
        if url.path.strip("/") or url.fragment or not set(files) <= set(_QUERY):
            raise ValueError(f"Only the options {', '.join(_QUERY)} may follow the hosts. {_FORM}")
        if files and url.scheme != "tls":
            raise ValueError("The options ca, cert and key need tls://.")
        if ("key" in files) and "cert" not in files:
            raise ValueError("The option key needs the option cert.")
        login, at, hosts = url.netloc.rpartition("@")
        return cls(
            tuple(f"{url.scheme}://{login}{at}{_check_host(host)}" for host in hosts.split(",")),
            url.scheme == "tls",
            files,
        )

    def tls_context(self) -> ssl.SSLContext | None:
        if not self.is_encrypted:
            return None
        try:
            context = ssl.create_default_context(cafile=self.files.get("ca"))
            if "cert" in self.files:
                context.load_cert_chain(self.files["cert"], self.files.get("key"))
        except OSError as error:
            raise ValueError(f"Cannot read its certificates: {error.strerror or type(error).__name__}.") from None
        return context


def _check_host(host: str) -> str:
    parsed = urlsplit(f"//{host}")
    with suppress(ValueError):
        if parsed.hostname and (parsed.port is None or parsed.port > 0):
            return host
    raise ValueError(f"A host is missing, or its port is not a number. {_FORM}")


def check_nats(url: str) -> NatsUrl:
    """Raise `ValueError` if the URL is unusable. Does not connect."""
    parsed = NatsUrl.parse(url)
    parsed.tls_context()
    return parsed


class MissingSubjects(Struct, frozen=True):
    """Groups of subjects that no stream takes. If none of them has a stream, Holdfast creates one."""

    subjects: list[str]

    @property
    def are_all(self) -> bool:
        return len(self.subjects) == len(Topic)

    @property
    def are_some(self) -> bool:
        return 0 < len(self.subjects) < len(Topic)


class NatsBus:
    """One connection at a time. It never reconnects on its own: the client would keep messages that the relay has given
    up on, and send them after later ones. The next message opens a new connection instead."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url = NatsUrl.parse(url)
        self._tls = self._url.tls_context()
        self._prefix = check_prefix(prefix)
        self._client: Client | None = None
        self._opening: asyncio.Task[Client] | None = None

    async def publish(self, message: BusMessage) -> None:
        try:
            client = await self._connect()
            await self._publish(client.jetstream(timeout=PUBLISH_SECONDS), message)
        except (errors.Error, OSError, TimeoutError) as error:
            raise UndeliveredError(f"NATS: {_reason(error)}", is_permanent=_is_too_large(error)) from None

    async def find_missing_subjects(self) -> "MissingSubjects":
        """Connects, and creates nothing."""
        client: Client | None = None
        try:
            client = await self._open(creates_stream=False)
            return await self._find_missing(client.jetstream(timeout=PUBLISH_SECONDS))
        except (errors.Error, OSError, TimeoutError) as error:
            raise UndeliveredError(f"NATS: {_reason(error)}") from None
        finally:
            if client is not None:
                await _close(client)

    async def close(self) -> None:
        if self._client is not None:
            await _close(self._client)

    async def _publish(self, stream: JetStreamContext, message: BusMessage) -> None:
        subject = f"{self._prefix}.{message.org}.{message.topic}.{message.kind.partition('.')[2]}"
        headers = {"Nats-Msg-Id": message.id, "Content-Type": CONTENT_TYPE}
        try:
            await stream.publish(subject, message.content, timeout=PUBLISH_SECONDS, headers=headers)
        except NoStreamResponseError:
            # Somebody has deleted the stream.
            await self._ensure_stream(stream)
            try:
                await stream.publish(subject, message.content, timeout=PUBLISH_SECONDS, headers=headers)
            except NoStreamResponseError:
                raise UndeliveredError(f"NATS: no stream takes the subject {subject}") from None

    async def _connect(self) -> Client:
        """The open connection. Messages that arrive while one is being opened wait for it, and fail with it."""
        if self._client is not None and self._client.is_connected:
            return self._client
        if self._opening is None:
            self._opening = asyncio.create_task(self._replace_client())
        return await asyncio.shield(self._opening)

    async def _replace_client(self) -> Client:
        try:
            if self._client is not None:
                await _close(self._client)
            self._client = await self._open()
            return self._client
        finally:
            self._opening = None

    async def _open(self, *, creates_stream: bool = True) -> Client:
        servers = random.sample(self._url.servers, len(self._url.servers))
        for server in servers[:-1]:
            with suppress(errors.Error, OSError, TimeoutError):
                return await self._open_to(server, creates_stream=creates_stream)
        return await self._open_to(servers[-1], creates_stream=creates_stream)

    async def _open_to(self, server: str, *, creates_stream: bool) -> Client:
        client = _TlsClient() if self._url.is_encrypted else Client()
        options: dict[str, Any] = {} if self._tls is None else {"tls": self._tls}
        try:
            # The client tries a server that refuses connections again and again.
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.connect(
                    server,
                    name="holdfast",
                    allow_reconnect=False,
                    ping_interval=PING_SECONDS,
                    pending_size=0,
                    error_cb=_log_error,
                    **options,
                )
            if creates_stream:
                await self._check_stream(client.jetstream(timeout=PUBLISH_SECONDS))
        except BaseException:
            await _close(client)
            raise
        return client

    async def _check_stream(self, stream: JetStreamContext) -> None:
        """A user who may not manage streams can still publish to one that exists, so this may fail."""
        try:
            await self._ensure_stream(stream)
        except (errors.Error, TimeoutError) as error:
            log.warning("nats_stream_not_checked", error=_reason(error))

    async def _ensure_stream(self, stream: JetStreamContext) -> None:
        """Create the stream unless others already take our subjects, or some of them. Never change one that exists."""
        missing = await self._find_missing(stream)
        if missing.are_all:
            config = StreamConfig(
                name=stream_name(self._prefix),
                description="Everything that happens to bookings, payments and events in Holdfast.",
                subjects=[f"{self._prefix}.>"],
                storage=StorageType.FILE,
                max_age=KEEP_SECONDS,
                duplicate_window=DUPLICATE_SECONDS,
            )
            await stream.add_stream(config)
            log.info("nats_stream_created", stream=config.name)
        elif missing.are_some:
            log.error("nats_stream_missing", subjects=missing.subjects)

    async def _find_missing(self, stream: JetStreamContext) -> "MissingSubjects":
        groups = [f"{self._prefix}.*.{topic}.*" for topic in Topic]
        return MissingSubjects([subjects for subjects in groups if not await _has_stream(stream, subjects)])


async def _has_stream(stream: JetStreamContext, subjects: str) -> bool:
    try:
        await stream.find_stream_name_by_subject(subjects)
    except NotFoundError:
        return False
    return True


class _TlsClient(Client):
    """Sends nothing to a server that does not encrypt. The plain client would log in without TLS if the server, or
    somebody in between, did not ask for it."""

    def _connect_command(self) -> bytes:
        if not self._server_info.get("tls_required"):
            raise errors.SecureConnRequiredError
        return super()._connect_command()


async def _close(client: Client) -> None:
    with suppress(errors.Error, OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()


async def _log_error(error: Exception) -> None:
    log.warning("nats_failed", error=_reason(error))


def _reason(error: Exception) -> str:
    """The kind of the error. Its text could quote the URL."""
    if isinstance(error, APIError) and error.description:
        return error.description
    return type(error).__name__


def _is_too_large(error: Exception) -> bool:
    return isinstance(error, errors.MaxPayloadError) or (isinstance(error, APIError) and error.err_code == TOO_LARGE)
