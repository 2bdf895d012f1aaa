"""The channel `webhook`. Messages are signed as the Standard Webhooks specification asks, so that receivers can verify
them with its libraries."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Final, cast

import httpcore
import httpx
import msgspec
from msgspec import Struct
from standardwebhooks import Webhook

from holdfast import sql
from holdfast.notifications.channel import Delivery, TargetGoneError, UndeliveredError
from holdfast.notifications.webhook_addresses import AddressError, CheckedNetwork, check_url
from holdfast.runtime.db import Database

SEND_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 4.0
# A response that is read to its end leaves the connection usable. A long or slow one is not worth the wait.
RESPONSE_MAX: Final = 4_096
RESPONSE_SECONDS: Final = 1.0
IDLE_MAX: Final = 100
IDLE_SECONDS: Final = 5.0

GONE: Final = 410

_NETWORK_ERRORS: Final = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


class WebhookMessage(Struct, frozen=True):
    """The body of the request."""

    type: str
    timestamp: datetime
    data: msgspec.Raw


class WebhookEndpoint(Struct, frozen=True):
    """`old_secret` is there during a rotation."""

    url: str
    secret: str
    old_secret: str | None

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.secret, self.old_secret) if self.old_secret else (self.secret,)


class WebhookChannel:
    """Follows no redirects and uses no proxy, whatever the environment says."""

    def __init__(self, database: Database, *, allow_private: bool) -> None:
        self._database = database
        self._allow_private = allow_private
        self._network = CheckedNetwork(allow_private=allow_private)
        # The relay limits open connections. A limit here would let one slow target use them all up.
        self._connections = httpcore.AsyncConnectionPool(
            network_backend=self._network,
            max_connections=None,
            max_keepalive_connections=IDLE_MAX,
            keepalive_expiry=IDLE_SECONDS,
        )

    async def send(self, delivery: Delivery) -> None:
        endpoint = await self._load_endpoint(delivery)
        problem = check_url(endpoint.url, allow_private=self._allow_private)
        if problem is not None:
            raise UndeliveredError(problem)
        status = await self._post_with_timeout(endpoint, delivery)
        if status == GONE:
            raise TargetGoneError("HTTP 410: the receiver no longer wants webhooks")
        if not 200 <= status < 300:
            raise UndeliveredError(f"HTTP {status}")

    async def close(self) -> None:
        await self._connections.aclose()
        self._network.close()

    async def _load_endpoint(self, delivery: Delivery) -> WebhookEndpoint:
        endpoint = await self._database.org(delivery.org).row(
            WebhookEndpoint, sql.notifications.endpoint, delivery.target, delivery.org
        )
        if endpoint is None:
            raise TargetGoneError("the endpoint was deleted or disabled")
        return endpoint

    async def _post_with_timeout(self, endpoint: WebhookEndpoint, delivery: Delivery) -> int:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                return await self._post(endpoint, delivery)
        except TimeoutError:
            raise UndeliveredError(f"no response within {SEND_SECONDS:.0f} s") from None
        except AddressError as error:
            raise UndeliveredError(str(error)) from None
        except _NETWORK_ERRORS as error:
            raise UndeliveredError(type(error).__name__) from None

    async def _post(self, endpoint: WebhookEndpoint, delivery: Delivery) -> int:
        """The status of the response. It counts even if reading the rest of the response fails."""
        url = httpx.URL(endpoint.url)
        request_url = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        content = msgspec.json.encode(WebhookMessage(delivery.kind, delivery.created_at, msgspec.Raw(delivery.body)))
        headers = {
            "Host": url.netloc.decode(),
            "User-Agent": "Holdfast",
            "Accept": "*/*",
            "Content-Type": "application/json",
            **signature_headers(message_id(delivery), content, endpoint.secrets),
        }
        limits = {"timeout": {"connect": CONNECT_SECONDS}}
        async with self._connections.stream(
            "POST", request_url, headers=list(headers.items()), content=content, extensions=limits
        ) as response:
            with suppress(TimeoutError, *_NETWORK_ERRORS):
                await _read_rest(response)
            return response.status


async def _read_rest(response: httpcore.Response) -> None:
    size = 0
    stream = cast(AsyncGenerator[bytes, None], response.aiter_stream())
    async with asyncio.timeout(RESPONSE_SECONDS), aclosing(stream) as parts:
        async for part in parts:
            size += len(part)
            if size > RESPONSE_MAX:
                return


def message_id(delivery: Delivery) -> str:
    """The same for every attempt, so that receivers can drop duplicates."""
    return f"msg_{delivery.event.hex()}_{delivery.number}"


def signature_headers(message: str, content: bytes, secrets: tuple[str, ...]) -> dict[str, str]:
    """Headers that prove who sent the message and when. During a rotation, both secrets sign."""
    now = datetime.now(UTC)
    text = content.decode()
    return {
        "Webhook-Id": message,
        "Webhook-Timestamp": str(int(now.timestamp())),
        "Webhook-Signature": " ".join(Webhook(secret).sign(message, now, text) for secret in secrets),
    }
