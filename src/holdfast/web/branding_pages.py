"""An org's logo and colours, as browsers load them."""

from functools import lru_cache
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import sql
from holdfast.api.branding import logo_version
from holdfast.runtime.file_types import SAFE_HEADERS
from holdfast.web.assets import FOREVER
from holdfast.web.brand_colours import palette, stylesheet
from holdfast.web.site import Site, is_plain_text

STYLESHEETS_MAX: Final = 1_000


class LogoRow(Struct, frozen=True):
    logo: bytes
    logo_type: str
    logo_hash: str


def branding_routes(site: Site) -> list[Route]:
    async def send_logo(request: Request) -> Response:
        slug = request.path_params["slug"]
        row = await site.database.shared.row(LogoRow, sql.credentials.logo, slug) if is_plain_text(slug) else None
        if row is None:
            return Response(status_code=404)
        # A cache must not keep this logo forever under another version: that address may belong to the next logo.
        is_current = request.query_params.get("v") == logo_version(row.logo_hash)
        headers = {"cache-control": FOREVER if is_current else "no-cache", **SAFE_HEADERS}
        return Response(row.logo, headers=headers, media_type=row.logo_type)

    return [
        Route("/logo/{slug}", site.file(send_logo), methods=["GET"]),
        Route("/brand/{colour}.css", site.file(send_colours), methods=["GET"]),
    ]


async def send_colours(request: Request) -> Response:
    """The address contains the colour, so caches can keep the stylesheet forever."""
    try:
        style = _stylesheet(request.path_params["colour"])
    except ValueError:
        return Response(status_code=404)
    headers = {"cache-control": FOREVER, "x-content-type-options": "nosniff"}
    return Response(style, headers=headers, media_type="text/css; charset=utf-8")


@lru_cache(STYLESHEETS_MAX)
def _stylesheet(colour: str) -> str:
    if not colour.isalnum():
        raise ValueError(colour)
    return stylesheet(palette(f"#{colour}"))
