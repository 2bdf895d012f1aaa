"""Where a buyer comes back to after paying, if the shop has no page of its own for that."""

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from holdfast.web.sandbox_pages import HEADERS, STYLE, policy, templates


def paid_route() -> Route:
    page = templates.get_template("paid.html").render(style=STYLE)
    headers = {**HEADERS, "content-security-policy": policy("'none'")}

    async def show(_: Request) -> Response:
        return HTMLResponse(page, headers=headers)

    return Route("/paid", show, methods=["GET"])
