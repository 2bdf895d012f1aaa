"""The pages of one API process, and how they fail."""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from msgspec import Struct, json
from starlette.requests import Request
from starlette.responses import Response

from holdfast import sql
from holdfast.api.in_process import InProcessApi
from holdfast.core.refusals import RefusedError
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS, Database
from holdfast.runtime.settings import Settings
from holdfast.web.event_listing import Org
from holdfast.web.page_problems import NOT_FOUND, PageError, PageProblem, problem_of
from holdfast.web.page_request import PageRequest

log = structlog.get_logger()

SECRET_NAME: Final = "sessions"  # noqa: S105

Respond = Callable[[PageRequest], Awaitable[Response]]


class Site:
    def __init__(self, settings: Settings, database: Database, api: InProcessApi, providers: tuple[str, ...]) -> None:
        self.settings = settings
        self.database = database
        self.api = api
        self.providers = providers
        public = urlsplit(settings.public_url)
        self.origin = f"{public.scheme}://{public.netloc}"
        self.is_https = public.scheme == "https"
        self._session_secret: bytes | None = None

    async def session_secret(self) -> bytes:
        """The key that signs sessions, the same in all processes."""
        if self._session_secret is None:
            scope = self.database.shared
            await scope.execute(sql.pages.create_secret, SECRET_NAME, secrets.token_bytes(32))
            self._session_secret = await scope.fetchval(sql.pages.secret, SECRET_NAME)
        assert self._session_secret
        return self._session_secret

    async def load_org(self, slug: str) -> Org:
        org = await self.database.shared.row(Org, sql.pages.org, slug) if is_plain_text(slug) else None
        if org is None:
            raise PageError(NOT_FOUND)
        return org

    def page(self, respond: Respond) -> Callable[[Request], Awaitable[Response]]:
        """The function as an endpoint. Errors become error pages."""

        async def endpoint(request: Request) -> Response:
            page = PageRequest(self, request)
            try:
                await page.load_session()
                response = await respond(page)
            except (RefusedError, PageError) as error:
                response = error_page(page, problem_of(error))
            except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
                log.error("page_without_database", error=type(error).__name__)
                response = error_page(page, PageProblem(503, "busy"))
            except Exception:
                log.exception("page_failed")
                response = error_page(page, PageProblem(500, "internal"))
            page.finish(response)
            return response

        return endpoint


def error_page(page: PageRequest, problem: PageProblem) -> Response:
    if page.wants_json:
        return json_response({"code": problem.code}, problem.status)
    return page.render("error.html", problem.status, problem=problem)


async def redirect_to_parent(page: PageRequest) -> Response:
    """A reload of a form's address leads to the page that the form is on."""
    return page.redirect(page.request.url.path.rpartition("/")[0])


def json_response(value: Struct | dict[str, Any] | None, status: int = 200) -> Response:
    return Response(json.encode(value), status, media_type="application/json")


def is_plain_text(part: str) -> bool:
    """Whether the database can hold this part of an address."""
    return part.isprintable() and part.isascii()
