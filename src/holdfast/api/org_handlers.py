"""The caller's own org as buyers see it. The path never names one."""

from msgspec import UNSET, Struct

from holdfast import sql
from holdfast.api.branding import LOGO_BYTES_MAX, logo_path, logo_type
from holdfast.api.call import ApiResponse, Call
from holdfast.api.requests import OrgChange
from holdfast.api.responses import OrgView
from holdfast.core.event_schemas import invalid_field
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.runtime.db import Database


class BrandingRow(Struct, frozen=True):
    slug: str
    name: str
    colour: str | None
    logo_hash: str | None
    frame_origins: list[str]


async def get_org(call: Call) -> ApiResponse[OrgView]:
    return ApiResponse(await read_org(call.services.database, call.caller.org, call.services.settings.public_url))


async def change_org(call: Call, body: OrgChange) -> ApiResponse[OrgView]:
    await save_org(call.services.database, call.caller.org, body)
    return await get_org(call)


async def set_logo(call: Call, body: bytes) -> ApiResponse[OrgView]:
    await save_logo(call.services.database, call.caller.org, body)
    return await get_org(call)


async def delete_logo(call: Call) -> ApiResponse[OrgView]:
    await drop_logo(call.services.database, call.caller.org)
    return await get_org(call)


async def read_org(database: Database, org: bytes, public_url: str) -> OrgView:
    row = await database.org(org).row(BrandingRow, sql.credentials.branding, org)
    assert row is not None
    logo = logo_path(row.slug, row.logo_hash)
    return OrgView(
        slug=row.slug,
        name=row.name,
        colour=row.colour,
        logo_url=public_url.rstrip("/") + logo if logo else None,
        frame_origins=row.frame_origins,
    )


async def save_org(database: Database, org: bytes, change: OrgChange) -> None:
    await database.org(org).execute(
        *sql.credentials.change_org(
            org=org,
            name=None if change.name is UNSET else change.name,
            has_colour=change.colour is not UNSET,
            colour=None if change.colour is UNSET else change.colour,
            frame_origins=None if change.frame_origins is UNSET else change.frame_origins,
        )
    )


async def save_logo(database: Database, org: bytes, data: bytes) -> None:
    """The content decides the type, whatever the Content-Type header claims."""
    if len(data) > LOGO_BYTES_MAX:
        raise RefusedError(Refusal.PAYLOAD_TOO_LARGE, f"A logo may have at most {LOGO_BYTES_MAX // 1024} KiB.")
    media_type = logo_type(data)
    if media_type is None:
        raise invalid_field("logo", "must be a PNG, JPEG or WebP image")
    await database.org(org).execute(sql.credentials.set_logo, org, data, media_type)


async def drop_logo(database: Database, org: bytes) -> None:
    await database.org(org).execute(sql.credentials.set_logo, org, None, None)
