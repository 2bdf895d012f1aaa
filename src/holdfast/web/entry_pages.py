"""Signing a customer of the merchant's own site in, and an org's logo and colour."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import sql
from holdfast.api.branding import palette, stylesheet
from holdfast.runtime.credentials import InvalidTokenError, read_customer_token
from holdfast.web.assets import FOREVER
from holdfast.web.page_problems import PageError, PageProblem
from holdfast.web.page_request import PageRequest
from holdfast.web.site import Site, is_plain_text


def entry_routes(site: Site) -> list[Route]:
    async def send_logo(request: Request) -> Response:
        slug = request.path_params["slug"]
        row = await site.database.shared.fetchrow(sql.credentials.logo, slug) if is_plain_text(slug) else None
        if row is None:
            return Response(status_code=404)
        headers = {
            "cache-control": FOREVER if "v" in request.query_params else "no-cache",
            "content-security-policy": "default-src 'none'; sandbox",
            "x-content-type-options": "nosniff",
        }
        return Response(row["logo"], headers=headers, media_type=row["logo_type"])

    async def send_brand(request: Request) -> Response:
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

    return [
        Route("/enter", site.page(enter), methods=["GET"]),
        Route("/logo/{slug}", send_logo, methods=["GET"]),
        Route("/brand/{colour}.css", send_brand, methods=["GET"]),
    ]


async def enter(page: PageRequest) -> Response:
    """The merchant's site sends its customer here with a token. The redirect takes the token out of the address."""
    try:
        customer = await read_customer_token(page.site.database, page.request.query_params.get("token", ""))
    except InvalidTokenError:
        raise PageError(PageProblem(401, "unauthorized")) from None
    page.session = page.session.sign_in(customer.org, customer.user)
    return page.redirect(_own_path(page.request.query_params.get("next", "/")))


def _own_path(path: str) -> str:
    """A path of this site, or the start. Browsers read `//host` and `/\\host` as another site."""
    is_own = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable() and path.isascii()
    return path if is_own else "/"
