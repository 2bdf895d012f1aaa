"""How buyers see an org: its name, colour and logo, how to pay it, and the sites that may embed its pages."""

from typing import Final

from msgspec import UNSET, Struct

from holdfast import sql
from holdfast.api.requests import OrgChange
from holdfast.api.responses import OrgView
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import invalid_field
from holdfast.runtime.db import DatabaseScope
from holdfast.runtime.file_types import content_type

LOGO_BYTES_MAX: Final = 256 * 1024
LOGO_TYPES: Final = ("image/png", "image/jpeg", "image/webp")
# This many digits of a logo's hash tell it from the previous one.
LOGO_HASH_DIGITS: Final = 12


class BrandingRow(Struct, frozen=True):
    slug: str
    name: str
    colour: str | None
    logo_hash: str | None
    frame_origins: list[str]
    max_unpaid_units_per_address: int | None
    payment_instructions: str | None


async def get_org(scope: DatabaseScope, org: bytes, public_url: str) -> OrgView:
    row = await scope.row(BrandingRow, sql.credentials.branding, org)
    assert row is not None
    logo = logo_path(row.slug, row.logo_hash)
    return OrgView(
        slug=row.slug,
        name=row.name,
        colour=row.colour,
        logo_url=public_url.rstrip("/") + logo if logo else None,
        frame_origins=row.frame_origins,
        max_unpaid_units_per_address=row.max_unpaid_units_per_address,
        payment_instructions=row.payment_instructions,
    )


async def change_org(scope: DatabaseScope, org: bytes, change: OrgChange) -> None:
    await scope.execute(
        *sql.credentials.change_org(
            org=org,
            name=None if change.name is UNSET else change.name,
            has_colour=change.colour is not UNSET,
            colour=None if change.colour is UNSET else change.colour,
            frame_origins=None if change.frame_origins is UNSET else change.frame_origins,
            has_max_unpaid=change.max_unpaid_units_per_address is not UNSET,
            max_unpaid=(None if change.max_unpaid_units_per_address is UNSET else change.max_unpaid_units_per_address),
            has_payment_instructions=change.payment_instructions is not UNSET,
            payment_instructions=None if change.payment_instructions is UNSET else change.payment_instructions,
        )
    )


async def set_logo(scope: DatabaseScope, org: bytes, data: bytes) -> None:
    """The content decides the type, whatever the Content-Type header claims. SVG is refused: it can contain scripts."""
    if len(data) > LOGO_BYTES_MAX:
        raise RefusedError(Refusal.PAYLOAD_TOO_LARGE, f"A logo may have at most {LOGO_BYTES_MAX // 1024} KiB.")
    media_type = content_type(data)
    if media_type not in LOGO_TYPES:
        raise invalid_field("logo", "must be a PNG, JPEG or WebP image")
    await scope.execute(sql.credentials.set_logo, org, data, media_type)


async def delete_logo(scope: DatabaseScope, org: bytes) -> None:
    await scope.execute(sql.credentials.delete_logo, org)


def logo_path(slug: str, logo_hash: str | None) -> str | None:
    """The logo's path on the pages. Every logo has its own, so that browsers may cache it forever."""
    return None if logo_hash is None else f"/logo/{slug}?v={logo_version(logo_hash)}"


def logo_version(logo_hash: str) -> str:
    return logo_hash[:LOGO_HASH_DIGITS]
