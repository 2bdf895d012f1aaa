"""Webhook endpoints: the URLs to which an org has its webhook events delivered."""

import base64
import secrets
from collections.abc import Collection
from datetime import datetime
from typing import Final

from msgspec import UNSET, Struct

from holdfast import sql
from holdfast.api.call import ApiResponse, Call
from holdfast.api.requests import DeliveriesQuery, Empty, EndpointChange, EndpointNew
from holdfast.api.responses import DeliveryList, DeliveryView, EndpointList, EndpointView
from holdfast.core.notification_rules import BOOKING_WEBHOOK_KINDS, EVENT_WEBHOOK_KINDS
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import invalid_field
from holdfast.notifications.webhook_addresses import check_url
from holdfast.runtime import ids

ENDPOINTS_MAX: Final = 20
# After a rotation the old secret signs for this long beside the new one.
OVERLAP_SECONDS: Final = 86_400

KINDS: Final = frozenset({*BOOKING_WEBHOOK_KINDS, *EVENT_WEBHOOK_KINDS})


class EndpointRow(Struct, frozen=True):
    id: bytes
    url: str
    kinds: list[str]
    enabled: bool
    disabled_reason: str | None
    created_at: datetime


class LoggedDeliveryRow(Struct, frozen=True):
    event_id: bytes
    number: int
    kind: str
    status: str
    attempts: int
    created_at: datetime
    due_at: datetime | None
    done_at: datetime | None
    last_error: str | None


async def create_endpoint(call: Call, body: EndpointNew) -> ApiResponse[EndpointView]:
    _check(call, body.url, body.kinds)
    org, secret = call.caller.org, new_secret()
    async with call.services.database.org(org).transaction() as scope:
        await scope.execute(sql.webhook_endpoints.lock_org, org)
        endpoint = await scope.fetchval(
            *sql.webhook_endpoints.insert(
                id=ids.new_id(),
                org=org,
                url=body.url,
                kinds=body.kinds,
                secret=secret,
                endpoints_max=ENDPOINTS_MAX,
            )
        )
    if endpoint is None:
        raise RefusedError(
            Refusal.LIMIT_REACHED, f"An org may have at most {ENDPOINTS_MAX} webhook endpoints. Delete one first."
        )
    return ApiResponse(_endpoint_view(await _require_endpoint(call, endpoint), secret), 201)


async def list_endpoints(call: Call) -> ApiResponse[EndpointList]:
    rows = await call.services.database.org(call.caller.org).rows(
        EndpointRow, sql.webhook_endpoints.list, call.caller.org
    )
    return ApiResponse(EndpointList(items=[_endpoint_view(row) for row in rows], next=None))


async def get_endpoint(call: Call) -> ApiResponse[EndpointView]:
    return ApiResponse(_endpoint_view(await _require_endpoint(call, call.path_id(ids.parse_endpoint_id))))


async def change_endpoint(call: Call, body: EndpointChange) -> ApiResponse[EndpointView]:
    """An endpoint that is enabled again receives only what happens from now on."""
    endpoint = call.path_id(ids.parse_endpoint_id)
    url = None if body.url is UNSET else body.url
    kinds = None if body.kinds is UNSET else body.kinds
    enabled = None if body.enabled is UNSET else body.enabled
    _check(call, url, kinds or ())
    await call.services.database.org(call.caller.org).execute(
        *sql.webhook_endpoints.change(id=endpoint, org=call.caller.org, url=url, kinds=kinds, enabled=enabled)
    )
    return ApiResponse(_endpoint_view(await _require_endpoint(call, endpoint)))


async def rotate_endpoint(call: Call, body: Empty) -> ApiResponse[EndpointView]:
    endpoint, secret = call.path_id(ids.parse_endpoint_id), new_secret()
    await call.services.database.org(call.caller.org).execute(
        sql.webhook_endpoints.rotate, endpoint, call.caller.org, secret, OVERLAP_SECONDS
    )
    return ApiResponse(_endpoint_view(await _require_endpoint(call, endpoint), secret))


async def delete_endpoint(call: Call) -> ApiResponse[EndpointView]:
    """Pending deliveries are dropped. The delivery log stays in the database, but the API no longer shows it."""
    row = await _require_endpoint(call, call.path_id(ids.parse_endpoint_id))
    await call.services.database.org(call.caller.org).execute(sql.webhook_endpoints.delete, row.id, call.caller.org)
    return ApiResponse(_endpoint_view(row))


async def list_deliveries(call: Call, query: DeliveriesQuery) -> ApiResponse[DeliveryList]:
    endpoint = await _require_endpoint(call, call.path_id(ids.parse_endpoint_id))
    after_event, after_number = _parse_cursor(query.after)
    rows = await call.services.reports.org(call.caller.org).rows(
        LoggedDeliveryRow,
        *sql.webhook_endpoints.deliveries(
            endpoint=endpoint.id.hex(),
            org=call.caller.org,
            status=query.status,
            after_event=after_event,
            after_number=after_number,
            limit=query.limit + 1,
        ),
    )
    items = [_delivery_view(row) for row in rows[: query.limit]]
    cursor = f"{items[-1].event}:{items[-1].seq}" if len(rows) > query.limit else None
    return ApiResponse(DeliveryList(items=items, next=cursor))


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _check(call: Call, url: str | None, kinds: Collection[str]) -> None:
    problem = check_url(url, allow_private=call.services.settings.webhooks_to_private_addresses) if url else None
    if problem:
        raise invalid_field("url", f"is not accepted: {problem.rstrip('.')}")
    unknown = sorted(set(kinds) - KINDS)
    if unknown:
        raise invalid_field(
            "kinds", f"contains `{unknown[0]}`, which is not a known kind; the kinds are {', '.join(sorted(KINDS))}"
        )


def _parse_cursor(after: str | None) -> tuple[bytes | None, int | None]:
    if after is None:
        return None, None
    event, _, number = after.partition(":")
    parsed = ids.parse_event_id(event)
    if parsed is None or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise invalid_field("after", "must be the `next` of the previous page")
    return parsed, int(number)


async def _require_endpoint(call: Call, endpoint: bytes) -> EndpointRow:
    row = await call.services.database.org(call.caller.org).row(
        EndpointRow, sql.webhook_endpoints.one, endpoint, call.caller.org
    )
    if row is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return row


def _endpoint_view(row: EndpointRow, secret: str | None = None) -> EndpointView:
    return EndpointView(
        id=ids.format_endpoint_id(row.id),
        url=row.url,
        kinds=row.kinds,
        enabled=row.enabled,
        disabled_reason=row.disabled_reason,
        created_at=row.created_at,
        secret=secret,
    )


def _delivery_view(row: LoggedDeliveryRow) -> DeliveryView:
    return DeliveryView(
        event=ids.format_event_id(row.event_id),
        seq=row.number,
        kind=row.kind,
        status=row.status,
        attempts=row.attempts,
        created_at=row.created_at,
        next_attempt_at=row.due_at if row.status == "waiting" else None,
        done_at=row.done_at,
        last_error=row.last_error,
    )
