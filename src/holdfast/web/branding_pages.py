"""An org's logo and colours, as browsers load them."""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import sql
from holdfast.runtime.file_types import SAFE_HEADERS
from holdfast.web.assets import FOREVER
from holdfast.web.brand_colours import palette, stylesheet
from holdfast.web.site import Site, is_plain_text


class LogoRow(Struct, frozen=True):
    logo: bytes
    logo_type: str


def branding_routes(site: Site) -> list[Route]:
    async def send_logo(request: Request) -> Response:
        slug = request.path_params["slug"]
        row = await site.database.shared.row(LogoRow, sql.credentials.logo, slug) if is_plain_text(slug) else None
        if row is None:
            return Response(status_code=404)
        headers = {"cache-control": FOREVER if "v" in request.query_params else "no-cache", **SAFE_HEADERS}
        return Response(row.logo, headers=headers, media_type=row.logo_type)

    return [
        Route("/logo/{slug}", send_logo, methods=["GET"]),
        Route("/brand/{colour}.css", send_colours, methods=["GET"]),
    ]


async def send_colours(request: Request) -> Response:
    """The address contains the colour, so caches can keep the stylesheet for ever."""
    colour = request.path_params["colour"]
    try:
        style = stylesheet(palette(f"#{colour}"))
    except ValueError:
        return Response(status_code=404)
    if not colour.isalnum():
        return Response(status_code=404)
    headers = {"cache-control": FOREVER, "x-content-type-options": "nosniff"}
    return Response(style, headers=headers, media_type="text/css; charset=utf-8")
