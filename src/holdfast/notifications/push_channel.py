"""The channel `push`: encrypts each message for one browser, and hands it to that browser's push service (RFC 8030)."""

import hashlib
import math
from base64 import urlsafe_b64encode
from enum import StrEnum
from typing import Final

import httpx
from msgspec import Struct, json

from holdfast import sql
from holdfast.core.notification_rules import HOLD_ENDING, PushBody, webhook_kind
from holdfast.core.states import Status
from holdfast.i18n.formatting import shorten
from holdfast.i18n.texts import translate
from holdfast.notifications.channel import Delivery, UndeliveredError
from holdfast.notifications.checked_http import CheckedHttp, CheckedResponse, NoResponseError
from holdfast.notifications.hold_warnings import WARNING_SECONDS
from holdfast.notifications.push_services import PushServices
from holdfast.notifications.push_subscriptions import PushSubscription
from holdfast.notifications.vapid import vapid_key
from holdfast.runtime import ids
from holdfast.runtime.db import Database
from holdfast.runtime.extras import optional_import
from holdfast.runtime.shared_secrets import SecretName, SharedSecret

with optional_import("pywebpush", extra="push"):
    from pywebpush import WebPusher

# A slow push service delays other messages of the org.
SEND_SECONDS: Final = 5.0
# A warning is worth little later, and there may be many of them, so it waits less and is not retried after a timeout.
WARNING_SEND_SECONDS: Final = 2.0
# If the browser is off for longer than this, the push service drops the message.
REVIEW_TTL_SECONDS: Final = 86_400
# A hold that lasts longer than this was extended after its warning was written.
STALE_SECONDS: Final = WARNING_SECONDS + 30
TITLE_MAX: Final = 80
# Push services take 4,096 bytes after encryption.
ENCODING: Final = "aes128gcm"

GONE: Final = (404, 410)
RETRIED: Final = (408, 425, 429)


class PushKind(StrEnum):
    """What a push message is about. Each kind has its texts in the section `push` of every language."""

    HOLD_ENDING = "hold_ending"
    APPROVED = "approved"
    REJECTED = "rejected"


KINDS: Final = {
    HOLD_ENDING: PushKind.HOLD_ENDING,
    webhook_kind(Status.CONFIRMED): PushKind.APPROVED,
    webhook_kind(Status.REJECTED): PushKind.REJECTED,
}


class PushMessage(Struct, frozen=True):
    """What `push_worker.js` shows. A message with the tag of an earlier one replaces it."""

    title: str
    body: str
    tag: str
    path: str


class PushChannel:
    def __init__(self, database: Database, sender: str, services: PushServices) -> None:
        self._database = database
        self._sender = sender
        self._services = services
        self._secret = SharedSecret(database, SecretName.WEB_PUSH)
        # The operator trusts these services wherever they are.
        self._http = CheckedHttp(allow_private=True, send_seconds=SEND_SECONDS)

    async def send(self, delivery: Delivery) -> None:
        slot = json.decode(delivery.body, type=PushBody).slot
        subscription = await self._database.event(delivery.event).row(
            PushSubscription, sql.push.subscription, delivery.event, delivery.stream, slot
        )
        if subscription is None:
            raise UndeliveredError("the browser has no subscription any more", is_permanent=True)
        if not self._services.includes(subscription.endpoint):
            await self._delete_subscription(delivery, slot, subscription)
            raise UndeliveredError("the push service is not in HOLDFAST_PUSH_SERVICES", is_permanent=True)
        kind = KINDS[delivery.kind]
        ttl_seconds = await self._seconds_to_live(delivery, kind)
        title = await self._database.event(delivery.event).fetchval(sql.push.event_title, delivery.event)
        message = write_message(delivery, kind, subscription.language, title, ttl_seconds)
        response = await self._post(subscription, kind, message, ttl_seconds)
        await self._handle(delivery, slot, kind, subscription, response)

    async def close(self) -> None:
        await self._http.close()

    async def _seconds_to_live(self, delivery: Delivery, kind: PushKind) -> int:
        if kind is not PushKind.HOLD_ENDING:
            return REVIEW_TTL_SECONDS
        left = await self._database.event(delivery.event).fetchval(
            sql.push.seconds_left, delivery.event, delivery.stream
        )
        if left is None or left > STALE_SECONDS:
            raise UndeliveredError("the hold was paid or extended, or it has ended", is_permanent=True)
        seconds: int = math.ceil(left)
        return seconds

    async def _post(
        self, subscription: PushSubscription, kind: PushKind, message: PushMessage, ttl_seconds: int
    ) -> CheckedResponse:
        secret = (await self._secret.keyring()).find(subscription.key_number)
        if secret is None:
            # The browser accepts no other key, so nothing can reach it.
            return CheckedResponse(GONE[0], 0)
        url = httpx.URL(subscription.endpoint)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Encoding": ENCODING,
            "TTL": str(ttl_seconds),
            "Urgency": "high",
            "Topic": message.tag,
            **vapid_key(secret).headers(f"{url.scheme}://{url.netloc.decode()}", self._sender),
        }
        content = encrypt(subscription, json.encode(message))
        if kind is not PushKind.HOLD_ENDING:
            return await self._http.post(subscription.endpoint, headers, content)
        try:
            return await self._http.post(subscription.endpoint, headers, content, send_seconds=WARNING_SEND_SECONDS)
        except NoResponseError as error:
            raise UndeliveredError(str(error), is_permanent=True) from None

    async def _handle(
        self, delivery: Delivery, slot: int, kind: PushKind, subscription: PushSubscription, response: CheckedResponse
    ) -> None:
        status = response.status
        is_sent = 200 <= status < 300
        if status in GONE or (is_sent and kind is not PushKind.HOLD_ENDING):
            # After a review there is nothing left to report.
            await self._delete_subscription(delivery, slot, subscription)
        if status in GONE:
            raise UndeliveredError("the browser has unsubscribed", is_permanent=True)
        if not is_sent:
            raise UndeliveredError(
                f"the push service answered HTTP {status}",
                is_permanent=status < 500 and status not in RETRIED,
                retry_after_seconds=response.retry_after_seconds,
            )

    async def _delete_subscription(self, delivery: Delivery, slot: int, subscription: PushSubscription) -> None:
        await self._database.event(delivery.event).execute(
            sql.push.delete_subscription, delivery.event, delivery.stream, slot, subscription.endpoint
        )


def encrypt(subscription: PushSubscription, content: bytes) -> bytes:
    """Only this browser can read the result (RFC 8291)."""
    keys = {"p256dh": _encode(subscription.p256dh), "auth": _encode(subscription.auth)}
    encrypted = WebPusher({"endpoint": subscription.endpoint, "keys": keys}).encode(content, ENCODING)
    body: bytes = encrypted["body"]
    return body


def write_message(delivery: Delivery, kind: PushKind, language: str, title: str, seconds_left: int) -> PushMessage:
    event = shorten(title, TITLE_MAX)
    return PushMessage(
        title=translate(language, f"push.{kind}.title", n=math.ceil(seconds_left / 60)),
        body=translate(language, f"push.{kind}.body", event=event),
        tag=_encode(hashlib.sha256(delivery.stream).digest()[:24]),
        path=f"/b/{ids.format_booking_id(delivery.event, delivery.stream)}",
    )


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
