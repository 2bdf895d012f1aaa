"""How a browser comes to be somebody by name, and what an org looks like."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import sql
from holdfast.api.branding import palette, stylesheet
from holdfast.runtime.credentials import InvalidTokenError, read_customer_token
from holdfast.runtime.db import Database
from holdfast.web.api_client import ApiError
from holdfast.web.api_types import Problem
from holdfast.web.assets import FOREVER
from holdfast.web.site import PageRequest, Site, is_text


def entry_routes(site: Site) -> list[Route]:
    async def send_logo(request: Request) -> Response:
        slug = request.path_params["slug"]
        row = await site.pool.fetchrow(sql.credentials.logo, slug) if is_text(slug) else None
        if row is None:
            return Response(status_code=404)
        headers = {
            "cache-control": FOREVER if "v" in request.query_params else "no-cache",
            "content-security-policy": "default-src 'none'; sandbox",
            "x-content-type-options": "nosniff",
        }
        return Response(row["logo"], headers=headers, media_type=row["logo_type"])

    async def send_brand(request: Request) -> Response:
        """The colour is in the address, so that what is kept of it is never old."""
        colour = request.path_params["colour"]
        try:
            style = stylesheet(palette(f"#{colour}"))
        except ValueError:
            return Response(status_code=404)
        if not colour.isalnum():
            return Response(status_code=404)
        headers = {"cache-control": FOREVER, "x-content-type-options": "nosniff"}
        return Response(style, headers=headers, media_type="text/css; charset=utf-8")

    return [
        Route("/enter", site.page(enter), methods=["GET"]),
        Route("/logo/{slug}", send_logo, methods=["GET"]),
        Route("/brand/{colour}.css", send_brand, methods=["GET"]),
    ]


async def enter(page: PageRequest) -> Response:
    """A customer of the merchant's own site comes with a token, which does not stay in the address."""
    try:
        customer = await read_customer_token(Database(page.site.pool), page.request.query_params.get("token", ""))
    except InvalidTokenError:
        raise ApiError(Problem(401, "unauthorized")) from None
    page.session = page.session.handed_over(customer.org, customer.user)
    return page.go(_local(page.request.query_params.get("next", "/")))


def _local(path: str) -> str:
    """A path of this site; browsers read `//host` and `/\\host` as another one."""
    is_local = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable() and path.isascii()
    return path if is_local else "/"
