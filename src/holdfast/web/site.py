"""The pages of one API process, and how they fail."""

import asyncio
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
from holdfast.notifications.push_services import PushServices
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS, Database
from holdfast.runtime.settings import Settings
from holdfast.runtime.shared_secrets import SecretName, SharedSecret
from holdfast.web.event_listing import Org
from holdfast.web.page_problems import NOT_FOUND, PageError, PageProblem, problem_of
from holdfast.web.page_request import PageRequest
from holdfast.web.rendering import compile_templates
from holdfast.web.session import cookie_name

log = structlog.get_logger()

RETRY_SECONDS: Final = {429: "1", 503: "1"}

Respond = Callable[[PageRequest], Awaitable[Response]]
SendFile = Callable[[Request], Awaitable[Response]]


class Site:
    def __init__(self, settings: Settings, database: Database, api: InProcessApi, providers: tuple[str, ...]) -> None:
        self.settings = settings
        self.database = database
        self.api = api
        self.providers = providers
        public = urlsplit(settings.public_url)
        self.origin = f"{public.scheme}://{public.netloc}"
        self.is_https = public.scheme == "https"
        self.cookie_name = cookie_name(is_https=self.is_https)
        self.session_secret = SharedSecret(database, SecretName.SESSIONS)
        self.push_secret = SharedSecret(database, SecretName.WEB_PUSH)
        self.push_services = PushServices(settings.push_services)
        self._templates: asyncio.Task[None] | None = None

    async def load_org(self, slug: str) -> Org:
        org = await self.database.shared.row(Org, sql.pages.org, slug) if is_plain_text(slug) else None
        if org is None:
            raise PageError(NOT_FOUND)
        return org

    def spend(self, request: Request) -> None:
        """Count a request against the client's address, and refuse it if there were too many. Every route of the pages
        calls this first."""
        self.api.spend(self.api.address(request.scope))

    def file(self, send: SendFile) -> SendFile:
        """A function that needs no session, as an endpoint."""

        async def endpoint(request: Request) -> Response:
            try:
                self.spend(request)
            except RefusedError as error:
                status = problem_of(error).status
                return Response(status_code=status, headers={"retry-after": RETRY_SECONDS[status]})
            return await send(request)

        return endpoint

    async def _load_templates(self) -> None:
        """A thread does this once, for the first page, so that no page blocks the event loop."""
        if self._templates is None:
            self._templates = asyncio.create_task(asyncio.to_thread(compile_templates))
        await asyncio.shield(self._templates)

    def page(self, respond: Respond) -> SendFile:
        """The function as an endpoint. Errors become error pages."""

        async def endpoint(request: Request) -> Response:
            page = PageRequest(self, request)
            try:
                self.spend(request)
                await self._load_templates()
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
        response = json_response({"code": problem.code}, problem.status)
    else:
        response = page.render("error.html", problem.status, problem=problem)
    if problem.status in RETRY_SECONDS:
        response.headers["retry-after"] = RETRY_SECONDS[problem.status]
    return response


async def redirect_to_parent(page: PageRequest) -> Response:
    """A reload of a form's address leads to the page that the form is on."""
    return page.redirect(page.request.url.path.rpartition("/")[0])


def json_response(value: Struct | dict[str, Any] | None, status: int = 200) -> Response:
    return Response(json.encode(value), status, media_type="application/json")


def is_plain_text(part: str) -> bool:
    """Whether the database can hold this part of an address."""
    return part.isprintable() and part.isascii()
