"""All pages."""

from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from holdfast.web.api import ApiError
from holdfast.web.assets import asset_routes
from holdfast.web.bookings import booking_routes
from holdfast.web.events import event_routes
from holdfast.web.site import Ask, Site
from holdfast.web.stampede import stampede_routes
from holdfast.web.things import Problem
from holdfast.web.visits import visit_routes


def page_routes(site: Site) -> list[Route]:
    return [
        *event_routes(site),
        *booking_routes(site),
        *visit_routes(site),
        *stampede_routes(site),
        *asset_routes(),
        _Nowhere("/{path:path}", site.page(_be_lost), methods=["GET"]),
    ]


class _Nowhere(Route):
    """What a person is shown where there is nothing. Programs are told by the API."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_person = any(name == b"accept" and b"text/html" in value for name, value in scope.get("headers", ()))
        is_page = is_person and not scope["path"].startswith(("/v1/", "/docs", "/openapi.json", "/paid", "/sandbox/"))
        return super().matches(scope) if is_page else (Match.NONE, {})


async def _be_lost(ask: Ask) -> Response:
    raise ApiError(Problem(404, "not_found"))
