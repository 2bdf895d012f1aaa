"""The routes of all pages."""

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from holdfast.api.call import Operation
from holdfast.payments.sandbox import Sandbox
from holdfast.web.api_docs import api_docs_route
from holdfast.web.assets import asset_routes
from holdfast.web.booking_pages import booking_routes
from holdfast.web.branding_pages import branding_routes
from holdfast.web.event_list_pages import event_list_routes
from holdfast.web.event_pages import event_routes
from holdfast.web.hold_pages import hold_routes
from holdfast.web.page_problems import NOT_FOUND, PageError
from holdfast.web.page_request import PageRequest
from holdfast.web.paid_page import paid_route
from holdfast.web.push_pages import push_routes
from holdfast.web.recovery_pages import recovery_routes
from holdfast.web.sandbox_pages import sandbox_routes
from holdfast.web.sign_in_pages import sign_in_routes
from holdfast.web.site import Site
from holdfast.web.stampede_pages import stampede_routes

API_PATHS: Final = ("/v1/", "/docs", "/openapi.json", "/asyncapi.json")


def page_routes(site: Site, operations: Sequence[Operation], sandbox: Sandbox | None) -> list[Route]:
    return [
        *event_list_routes(site),
        *event_routes(site),
        *hold_routes(site),
        *booking_routes(site),
        *push_routes(site),
        *recovery_routes(site),
        *sign_in_routes(site),
        *branding_routes(site),
        *stampede_routes(site),
        *asset_routes(site),
        api_docs_route(site, operations),
        paid_route(site),
        *(sandbox_routes(site, sandbox) if sandbox is not None else ()),
        NotFoundRoute("/{path:path}", site.page(show_not_found), methods=["GET"]),
    ]


class NotFoundRoute(Route):
    """Answers browsers with a page where no other route matches. The API answers programs."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_browser = any(name == b"accept" and b"text/html" in value for name, value in scope.get("headers", ()))
        is_page = is_browser and not scope["path"].startswith(API_PATHS)
        return super().matches(scope) if is_page else (Match.NONE, {})


async def show_not_found(page: PageRequest) -> Response:
    raise PageError(NOT_FOUND)
