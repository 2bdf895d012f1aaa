"""Webhook endpoints: where an org is told of what happens to its events and bookings."""

import base64
import secrets
from typing import Any, Final

from msgspec import UNSET

from holdfast import sql
from holdfast.api.call import ApiResponse, Call
from holdfast.api.responses import DeliveryList, DeliveryView, EndpointList, EndpointView
from holdfast.core.event_schemas import invalid_field
from holdfast.core.journal import EXTENDED, PAYMENT_PREFIX, TRANSFERRED
from holdfast.core.notifications import public_kind
from holdfast.core.payment import PaymentStatus
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import Status
from holdfast.notifications.webhook_addresses import check_url
from holdfast.runtime import ids

ENDPOINTS_MAX: Final = 20
# So long both secrets sign after a rotation.
OVERLAP_SECONDS: Final = 86_400

KINDS: Final = frozenset(
    {public_kind(kind) for kind in (*Status, EXTENDED, TRANSFERRED)}
    | {PAYMENT_PREFIX + status for status in PaymentStatus}
    | {"event.published", "event.changed", "event.completed", "event.cancelled"}
)


async def create_endpoint(call: Call) -> ApiResponse:
    body = call.body
    _check(call, body.url, body.kinds)
    secret = new_secret()
    async with call.services.pool.acquire() as connection, connection.transaction():
        await connection.execute(sql.webhook_endpoints.lock_org, call.caller.org)
        made = await connection.fetchval(
            sql.webhook_endpoints.insert, ids.new_id(), call.caller.org, body.url, body.kinds, secret, ENDPOINTS_MAX
        )
    if made is None:
        raise RefusedError(Refusal.LIMIT_REACHED, f"An org may have {ENDPOINTS_MAX} endpoints.")
    return ApiResponse(await _view(call, made, secret), 201)


async def list_endpoints(call: Call) -> ApiResponse:
    rows = await call.services.pool.fetch(sql.webhook_endpoints.list, call.caller.org)
    return ApiResponse(EndpointList(items=[_endpoint_view(row) for row in rows], next=None))


async def get_endpoint(call: Call) -> ApiResponse:
    return ApiResponse(await _view(call, _named(call)))


async def change_endpoint(call: Call) -> ApiResponse:
    """One that was switched off because it was gone is told of what happens from now on."""
    endpoint, body = _named(call), call.body
    url, kinds, enabled = (None if value is UNSET else value for value in (body.url, body.kinds, body.enabled))
    _check(call, url, kinds or ())
    await call.services.pool.execute(sql.webhook_endpoints.change, endpoint, call.caller.org, url, kinds, enabled)
    return ApiResponse(await _view(call, endpoint))


async def rotate_endpoint(call: Call) -> ApiResponse:
    endpoint, secret = _named(call), new_secret()
    await call.services.pool.execute(sql.webhook_endpoints.rotate, endpoint, call.caller.org, secret, OVERLAP_SECONDS)
    return ApiResponse(await _view(call, endpoint, secret))


async def delete_endpoint(call: Call) -> ApiResponse:
    """What was waiting for it is dropped. The log of it stays, but nobody can ask for it any more."""
    view = await _view(call, _named(call))
    await call.services.pool.execute(sql.webhook_endpoints.delete, _named(call), call.caller.org)
    return ApiResponse(view)


async def list_deliveries(call: Call) -> ApiResponse:
    endpoint = _named(call)
    await _view(call, endpoint)
    query = call.query
    rows = await call.services.pool.fetch(
        sql.webhook_endpoints.notifications,
        endpoint.hex(),
        call.caller.org,
        query.status,
        *_cursor(query.after),
        query.limit + 1,
    )
    items = [_delivery_view(row) for row in rows[: query.limit]]
    following = f"{items[-1].event}:{items[-1].seq}" if len(rows) > query.limit else None
    return ApiResponse(DeliveryList(items=items, next=following))


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _check(call: Call, url: str | None, kinds: Any) -> None:
    said = check_url(url, allow_private=call.services.settings.webhooks_to_private_addresses) if url else None
    if said:
        raise invalid_field("url", said.rstrip("."))
    unknown = sorted(set(kinds) - KINDS)
    if unknown:
        raise invalid_field("kinds", f"there is no {unknown[0]}; there are: {', '.join(sorted(KINDS))}")


def _cursor(after: str | None) -> tuple[bytes | None, int | None]:
    if after is None:
        return None, None
    event, _, number = after.partition(":")
    parsed = ids.parse_event_id(event)
    if parsed is None or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise invalid_field("after", "take it from `next` of the page before")
    return parsed, int(number)


def _named(call: Call) -> bytes:
    endpoint = ids.parse_endpoint_id(call.path["id"])
    if endpoint is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return endpoint


async def _view(call: Call, endpoint: bytes, secret: str | None = None) -> EndpointView:
    row = await call.services.pool.fetchrow(sql.webhook_endpoints.one, endpoint, call.caller.org)
    if row is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return _endpoint_view(row, secret)


def _endpoint_view(row: Any, secret: str | None = None) -> EndpointView:
    return EndpointView(
        id=ids.format_endpoint_id(row["id"]),
        secret=secret,
        **{name: row[name] for name in ("url", "kinds", "enabled", "disabled_reason", "created_at")},
    )


def _delivery_view(row: Any) -> DeliveryView:
    return DeliveryView(
        event=ids.format_event_id(row["event_id"]),
        seq=row["number"],
        next_attempt_at=row["due_at"] if row["status"] == "waiting" else None,
        **{name: row[name] for name in ("kind", "status", "attempts", "created_at", "done_at", "last_error")},
    )
