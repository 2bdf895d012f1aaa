"""Signs in a customer whom the merchant's own site has identified."""

from starlette.responses import Response
from starlette.routing import Route

from holdfast.runtime.credentials import InvalidTokenError, read_customer_token
from holdfast.web.page_problems import PageError, PageProblem
from holdfast.web.page_request import PageRequest
from holdfast.web.site import Site


def sign_in_routes(site: Site) -> list[Route]:
    return [Route("/enter", site.page(sign_in), methods=["GET"])]


async def sign_in(page: PageRequest) -> Response:
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
