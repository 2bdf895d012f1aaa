"""Stores which browsers want push messages about a booking."""

import binascii
import hashlib
from base64 import urlsafe_b64decode
from typing import Final

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Struct

from holdfast import sql
from holdfast.notifications.hold_warnings import WARNING_SECONDS
from holdfast.notifications.webhook_addresses import check_url
from holdfast.runtime.db import Database

AUTH_BYTES: Final = 16


class PushSubscription(Struct, frozen=True, kw_only=True):
    """As the browser's `PushSubscription`, with its keys decoded. `key_number` names the value of the secret that the
    browser subscribed with."""

    endpoint: str
    p256dh: bytes
    auth: bytes
    key_number: int
    language: str


def parse_subscription(
    *, endpoint: str, p256dh: str, auth: str, key_number: int, language: str
) -> PushSubscription | None:
    """None if no browser would send this. Whether its push service is a trusted one is another question."""
    if check_url(endpoint, allow_private=True) is not None or httpx.URL(endpoint).scheme != "https":
        return None
    point, secret = _decode(p256dh), _decode(auth)
    if not _is_point(point) or len(secret) != AUTH_BYTES:
        return None
    return PushSubscription(endpoint=endpoint, p256dh=point, auth=secret, key_number=key_number, language=language)


async def subscribe(database: Database, event: bytes, booking: bytes, subscription: PushSubscription) -> bool:
    """Whether the booking still waits for something that the browser could hear of."""
    slot = await database.event(event).fetchval(
        *sql.push.subscribe(
            event=event,
            booking=booking,
            endpoint=subscription.endpoint,
            p256dh=subscription.p256dh,
            auth=subscription.auth,
            key_number=subscription.key_number,
            language=subscription.language,
            warning_seconds=WARNING_SECONDS,
        )
    )
    return slot is not None


async def list_endpoint_hashes(database: Database, event: bytes, booking: bytes) -> list[str]:
    """Lets a browser recognise its own subscription, and tells it nothing about others."""
    rows = await database.event(event).fetch(sql.push.endpoints, event, booking)
    return [hashlib.sha256(row["endpoint"].encode()).hexdigest() for row in rows]


def _decode(text: str) -> bytes:
    """Base64 with or without padding. Empty if it is neither."""
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4)) if text.isascii() else b""
    except (binascii.Error, ValueError):
        return b""


def _is_point(data: bytes) -> bool:
    if len(data) != 65 or data[0] != 4:
        return False
    try:
        ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), data)
    except ValueError:
        return False
    return True
