"""The channel `webhook`. Messages are signed as the Standard Webhooks specification asks, so that receivers can verify
them with its libraries."""

from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct
from standardwebhooks import Webhook

from holdfast import sql
from holdfast.notifications.channel import Delivery, TargetGoneError, UndeliveredError
from holdfast.notifications.checked_http import CheckedHttp
from holdfast.runtime.db import Database

SEND_SECONDS: Final = 10.0
GONE: Final = 410


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
    def __init__(self, database: Database, *, allow_private: bool) -> None:
        self._database = database
        self._http = CheckedHttp(allow_private=allow_private, send_seconds=SEND_SECONDS)

    async def send(self, delivery: Delivery) -> None:
        endpoint = await self._load_endpoint(delivery)
        content = msgspec.json.encode(WebhookMessage(delivery.kind, delivery.created_at, msgspec.Raw(delivery.body)))
        signature = signature_headers(message_id(delivery), content, endpoint.secrets)
        response = await self._http.post(endpoint.url, {"Content-Type": "application/json", **signature}, content)
        if response.status == GONE:
            raise TargetGoneError("HTTP 410: the receiver no longer wants webhooks")
        if not 200 <= response.status < 300:
            raise UndeliveredError(f"HTTP {response.status}", retry_after_seconds=response.retry_after_seconds)

    async def close(self) -> None:
        await self._http.close()

    async def _load_endpoint(self, delivery: Delivery) -> WebhookEndpoint:
        endpoint = await self._database.org(delivery.org).row(
            WebhookEndpoint, sql.notifications.endpoint, delivery.target, delivery.org
        )
        if endpoint is None:
            raise TargetGoneError("the endpoint was deleted or disabled")
        return endpoint


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
