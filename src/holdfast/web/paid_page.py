"""Where a buyer returns after paying, if the shop has no page of its own for that."""

from starlette.responses import Response
from starlette.routing import Route

from holdfast.web.page_request import PageRequest
from holdfast.web.site import Site


def paid_route(site: Site) -> Route:
    return Route("/paid", site.page(show_paid), methods=["GET"])


async def show_paid(page: PageRequest) -> Response:
    return page.render("paid.html")
