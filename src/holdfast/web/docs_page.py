"""Serves the docs of the API with the same protection as every other page."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.api.call import Operation
from holdfast.web.api_docs import docs_page
from holdfast.web.assets import asset_response, make_asset
from holdfast.web.security import NOBODY, content_security_policy, security_headers
from holdfast.web.site import Site


def docs_route(site: Site, operations: Sequence[Operation]) -> Route:
    asset = make_asset(docs_page(operations), "text/html; charset=utf-8")
    policy = content_security_policy(NOBODY, has_scripts=False)
    headers = security_headers(policy, is_https=site.is_https)

    async def show(request: Request) -> Response:
        response = asset_response(request, asset, headers["cache-control"])
        response.headers.update(headers)
        return response

    return Route("/docs", show, methods=["GET"])
