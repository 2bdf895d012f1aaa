"""Orgs, as they show themselves to buyers. The path names none: it is always the caller's own."""

from typing import Final

from msgspec import UNSET

from holdfast import sql
from holdfast.api.branding import LOGO_MAX, LOGO_TYPES, logo_path, logo_type
from holdfast.api.call import Access, ApiResponse, Call, Operation, Resource
from holdfast.api.requests import OrgChange
from holdfast.api.responses import OrgView
from holdfast.core.event_schemas import invalid_field
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.runtime.db import Connection, Pool


async def get_org(call: Call) -> ApiResponse:
    return ApiResponse(await read_org(call.services.pool, call.caller.org, call.services.settings.public_url))


async def change_org(call: Call) -> ApiResponse:
    await save_org(call.services.pool, call.caller.org, call.body)
    return await get_org(call)


async def set_logo(call: Call) -> ApiResponse:
    await save_logo(call.services.pool, call.caller.org, call.body)
    return await get_org(call)


async def delete_logo(call: Call) -> ApiResponse:
    await drop_logo(call.services.pool, call.caller.org)
    return await get_org(call)


async def read_org(pool: Pool | Connection, org: bytes, public_url: str) -> OrgView:
    row = await pool.fetchrow(sql.credentials.org_shown, org)
    logo = logo_path(row["slug"], row["logo_hash"])
    return OrgView(
        logo_url=public_url.rstrip("/") + logo if logo else None,
        **{name: row[name] for name in ("slug", "name", "colour", "frame_origins")},
    )


async def save_org(pool: Pool | Connection, org: bytes, change: OrgChange) -> None:
    name, colour, origins = (None if v is UNSET else v for v in (change.name, change.colour, change.frame_origins))
    await pool.execute(sql.credentials.change_org, org, name, change.colour is not UNSET, colour, origins)


async def save_logo(pool: Pool | Connection, org: bytes, data: bytes) -> None:
    """What it is follows from its content, whatever the request claims."""
    if len(data) > LOGO_MAX:
        raise RefusedError(Refusal.PAYLOAD_TOO_LARGE, f"A logo has at most {LOGO_MAX // 1024} KiB.")
    kind = logo_type(data)
    if kind is None:
        raise invalid_field("logo", "is none of PNG, JPEG and WebP")
    await pool.execute(sql.credentials.set_logo, org, data, kind)


async def drop_logo(pool: Pool | Connection, org: bytes) -> None:
    await pool.execute(sql.credentials.set_logo, org, None, None)


OPERATIONS_OF_ORGS: Final = (
    Operation(
        name="get_org",
        method="GET",
        path="/v1/org",
        summary="How your org shows itself to buyers.",
        who=Access.ADMIN,
        about=Resource.ORG,
        function=get_org,
        gives=OrgView,
    ),
    Operation(
        name="change_org",
        method="PATCH",
        path="/v1/org",
        summary="Change the org's name and colour, and say which sites may show its pages in a frame.",
        who=Access.ADMIN,
        about=Resource.ORG,
        function=change_org,
        takes=OrgChange,
        gives=OrgView,
    ),
    Operation(
        name="set_logo",
        method="PUT",
        path="/v1/org/logo",
        summary="Give the org a logo: the body is the file.",
        who=Access.ADMIN,
        about=Resource.ORG,
        function=set_logo,
        media=LOGO_TYPES,
        body_max=LOGO_MAX,
        gives=OrgView,
    ),
    Operation(
        name="delete_logo",
        method="DELETE",
        path="/v1/org/logo",
        summary="Take the logo away.",
        who=Access.ADMIN,
        about=Resource.ORG,
        function=delete_logo,
        gives=OrgView,
    ),
)
