"""Webhooks, signed as the Standard Webhooks specification says, so that receivers can check them with its libraries."""

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
from holdfast.runtime.db import Pool

SEND_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 4.0
# An answer that was read to its end leaves the connection usable; one that is long or slow is not worth that.
ANSWER_MAX: Final = 4_096
ANSWER_SECONDS: Final = 1.0
IDLE_MAX: Final = 100
IDLE_SECONDS: Final = 5.0

GONE: Final = 410

_NETWORK_ERRORS: Final = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


class WebhookMessage(Struct, frozen=True):
    """What a receiver gets."""

    type: str
    timestamp: datetime
    data: msgspec.Raw


class WebhookTarget(Struct, frozen=True):
    url: str
    secrets: tuple[str, ...]


class WebhookChannel:
    """The channel `webhook`. Redirects are not followed, and no proxy is used, whatever the environment says."""

    def __init__(self, pool: Pool, *, allow_private: bool) -> None:
        self._pool = pool
        self._allow_private = allow_private
        self._network = CheckedNetwork(allow_private=allow_private)
        # How many are open at once is bounded by the relay; a bound here would let a slow target use it up.
        self._connections = httpcore.AsyncConnectionPool(
            network_backend=self._network,
            max_connections=None,
            max_keepalive_connections=IDLE_MAX,
            keepalive_expiry=IDLE_SECONDS,
        )

    async def send(self, delivery: Delivery) -> None:
        endpoint = await self._endpoint(delivery)
        reason = check_url(endpoint.url, allow_private=self._allow_private)
        if reason is not None:
            raise UndeliveredError(reason)
        status = await self._post_in_time(endpoint, delivery)
        if status == GONE:
            raise TargetGoneError("HTTP 410: the receiver wants no more")
        if not 200 <= status < 300:
            raise UndeliveredError(f"HTTP {status}")

    async def close(self) -> None:
        await self._connections.aclose()
        self._network.close()

    async def _endpoint(self, delivery: Delivery) -> WebhookTarget:
        row = await self._pool.fetchrow(sql.notifications.endpoint, delivery.target, delivery.org)
        if row is None:
            raise TargetGoneError("the endpoint was deleted or disabled")
        return WebhookTarget(row["url"], tuple(secret for secret in (row["secret"], row["old_secret"]) if secret))

    async def _post_in_time(self, endpoint: WebhookTarget, delivery: Delivery) -> int:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                return await self._post(endpoint, delivery)
        except TimeoutError:
            raise UndeliveredError(f"no answer within {SEND_SECONDS:.0f} s") from None
        except AddressError as error:
            raise UndeliveredError(str(error)) from None
        except _NETWORK_ERRORS as error:
            raise UndeliveredError(type(error).__name__) from None

    async def _post(self, endpoint: WebhookTarget, delivery: Delivery) -> int:
        """The status that the receiver answered with. It counts, whatever becomes of the rest of the answer."""
        url = httpx.URL(endpoint.url)
        where = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        content = msgspec.json.encode(WebhookMessage(delivery.kind, delivery.created_at, msgspec.Raw(delivery.body)))
        headers = {
            "Host": url.netloc.decode(),
            "User-Agent": "Holdfast",
            "Accept": "*/*",
            "Content-Type": "application/json",
            **signed(message_id(delivery), content, endpoint.secrets),
        }
        limits = {"timeout": {"connect": CONNECT_SECONDS}}
        async with self._connections.stream(
            "POST", where, headers=list(headers.items()), content=content, extensions=limits
        ) as answer:
            with suppress(TimeoutError, *_NETWORK_ERRORS):
                await _skim(answer)
            return answer.status


async def _skim(answer: httpcore.Response) -> None:
    size = 0
    stream = cast(AsyncGenerator[bytes, None], answer.aiter_stream())
    async with asyncio.timeout(ANSWER_SECONDS), aclosing(stream) as parts:
        async for part in parts:
            size += len(part)
            if size > ANSWER_MAX:
                return


def message_id(delivery: Delivery) -> str:
    """The same for every attempt, so that a receiver can tell what it has seen."""
    return f"msg_{delivery.event.hex()}_{delivery.number}"


def signed(message: str, content: bytes, secrets: tuple[str, ...]) -> dict[str, str]:
    """The headers that prove who sent this and when. During a rotation each secret signs."""
    now = datetime.now(UTC)
    text = content.decode()
    return {
        "Webhook-Id": message,
        "Webhook-Timestamp": str(int(now.timestamp())),
        "Webhook-Signature": " ".join(Webhook(secret).sign(message, now, text) for secret in secrets),
    }
