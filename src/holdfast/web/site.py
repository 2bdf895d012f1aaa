"""What all pages share: who asks, what they are shown in, and what protects them."""

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import structlog
from msgspec import Struct, json, structs
from python_multipart.exceptions import FormParserError
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from holdfast import sql
from holdfast.i18n.formatting import LANGUAGES, language_of
from holdfast.runtime import ids
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS, Pool
from holdfast.runtime.settings import Settings
from holdfast.web.api_client import ApiClient, ApiError
from holdfast.web.api_types import Org, Problem
from holdfast.web.rendering import render
from holdfast.web.session import COOKIE, COOKIE_SECONDS, Session, form_token, new_session, read_cookie, write_cookie

log = structlog.get_logger()

FORM_MAX: Final = 64 * 1024
FORM_SECONDS: Final = 60
NOBODY: Final = "'none'"
FORM_TYPE: Final = "application/x-www-form-urlencoded"
FIELDS_MAX: Final = 500
SIGNS: Final = "visits"


class Site:
    """The pages of one API process."""

    def __init__(self, settings: Settings, pool: Pool, api: Any, providers: tuple[str, ...]) -> None:
        self.settings = settings
        self.pool = pool
        self.api = api
        self.providers = providers
        public = urlsplit(settings.public_url)
        self.origin = f"{public.scheme}://{public.netloc}"
        self._secret: bytes | None = None

    async def secret(self) -> bytes:
        """What visits are signed with, the same in all processes."""
        if self._secret is None:
            await self.pool.execute(sql.secrets.make_secret, SIGNS, secrets.token_bytes(32))
            self._secret = await self.pool.fetchval(sql.secrets.secret, SIGNS)
        assert self._secret is not None
        return self._secret

    async def org(self, slug: str) -> Org:
        return _org(await self.pool.fetchrow(sql.credentials.branding_by_slug, slug) if is_text(slug) else None)

    async def org_of_event(self, event: str) -> tuple[Org, int]:
        """Whose event it is, and the revision of its layout."""
        named = ids.parse_event_id(event)
        row: Any = await self.pool.fetchrow(sql.secrets.org_of_event, named) if named is not None else None
        return _org(row), row["revision"]

    def page(self, respond: "Respond") -> Callable[[Request], Awaitable[Response]]:
        """The function as an endpoint that nothing escapes from."""

        async def guarded(request: Request) -> Response:
            page = None
            try:
                page = await PageRequest.of(self, request)
                response = await respond(page)
            except ApiError as error:
                response = _sorry(page, request, error.problem)
            except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
                log.error("page_without_database", error=type(error).__name__)
                response = _sorry(page, request, Problem(503, "busy"))
            except Exception:
                log.exception("page_failed")
                response = _sorry(page, request, Problem(500, "internal"))
            if page is not None:
                page.finish(response)
            return response

        return guarded


class PageRequest:
    """One request of a browser. `org` is whose page it is about to see, once that is known."""

    def __init__(self, site: Site, request: Request, session: Session, secret: bytes, is_known: bool) -> None:
        self.site = site
        self.request = request
        self.secret = secret
        self.session = session
        self.org: Org | None = None
        self._was: Session | None = session if is_known else None

    @classmethod
    async def of(cls, site: Site, request: Request) -> "PageRequest":
        secret = await site.secret()
        known = read_cookie(request.cookies.get(COOKIE, ""), secret)
        page = cls(site, request, known or new_session(), secret, known is not None)
        wanted = request.query_params.get("lang")
        if wanted in LANGUAGES:
            page.session = structs.replace(page.session, language=wanted)
        return page

    @property
    def is_known(self) -> bool:
        """Whether the browser was here before."""
        return self._was is not None

    @cached_property
    def language(self) -> str:
        return self.session.language or _preferred(self.request.headers.get("accept-language", ""))

    @property
    def form_token(self) -> str:
        return form_token(self.session, self.secret)

    @property
    def is_embedded(self) -> bool:
        """Whether the page is shown in a frame of another site."""
        return self.request.headers.get("sec-fetch-dest") == "iframe"

    @property
    def wants_json(self) -> bool:
        return "application/json" in self.request.headers.get("accept", "")

    @property
    def address(self) -> str:
        """Where the browser sees us, so that it comes back with its cookie."""
        origin = self.request.headers.get("origin", "")
        return origin if self._is_ours(origin) else self.site.settings.public_url.rstrip("/")

    @cached_property
    def api(self) -> ApiClient:
        client = self.request.client
        forwarded = self.request.headers.get("x-forwarded-for")
        headers = {"x-forwarded-for": forwarded} if forwarded else {}
        address = (client.host, client.port) if client else ("", 0)
        return ApiClient(httpx.ASGITransport(self.site.api, client=address), headers)

    async def customer(self) -> ApiClient:
        """The API as this browser's owner, in the org whose page it is."""
        assert self.org is not None
        return await self.api.speaking_for(self.site.pool, self.org.id, self.session.user(self.org.id))

    async def form(self) -> dict[str, str]:
        """What was sent, if it was sent by a page of ours."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != FORM_TYPE:
            raise ApiError(Problem(422, "invalid_request"))
        sent = await self.read_form(FORM_MAX)
        fields = {name: value for name, value in sent.multi_items() if isinstance(value, str)}
        self.check_token(fields.pop("form_token", ""))
        return fields

    async def read_form(self, size_max: int, files_max: int = 0) -> FormData:
        """What was sent, if it can be a page of ours that has sent it. Its token is still to be checked."""
        self.check_origin()
        if not self.is_known:
            raise ApiError(Problem(403, "stale_form"))
        length = self.request.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > size_max:
            raise ApiError(Problem(413, "payload_too_large"))
        try:
            async with asyncio.timeout(FORM_SECONDS):
                return await self.request.form(max_files=files_max, max_fields=FIELDS_MAX, max_part_size=FORM_MAX)
        except (MultiPartException, HTTPException, FormParserError, ClientDisconnect, TimeoutError):
            raise ApiError(Problem(422, "invalid_request")) from None

    def check_origin(self) -> None:
        """A browser says where a form comes from; another site's is not taken."""
        origin = self.request.headers.get("origin")
        foreign = origin is not None and not self._is_ours(origin)
        if foreign or self.request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise ApiError(Problem(403, "foreign_form"))

    def check_token(self, token: str) -> None:
        sent = token.encode(errors="replace")
        if not self.is_known or not hmac.compare_digest(sent, self.form_token.encode()):
            raise ApiError(Problem(403, "stale_form"))

    def _is_ours(self, origin: str) -> bool:
        """The origin that the request came to, or the one we are known by: a proxy may have changed the former."""
        return origin.partition("://")[2] == self.request.headers.get("host") or origin == self.site.origin

    def show(self, template: str, status: int = 200, **context: object) -> Response:
        return HTMLResponse(render(template, self, **context), status)

    def go(self, path: str) -> Response:
        return RedirectResponse(path, 303)

    def finish(self, response: Response) -> None:
        """What a cache may give to others says so itself, and must not carry anybody's cookie."""
        for name, value in self._headers().items():
            response.headers.setdefault(name, value)
        if self.session != self._was and response.headers["cache-control"] == "no-store":
            self._set_cookie(response)

    def _headers(self) -> dict[str, str]:
        headers = {
            "content-security-policy": self._policy(),
            "referrer-policy": "same-origin",
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
        }
        if self.site.settings.public_url.startswith("https:"):
            headers["strict-transport-security"] = "max-age=31536000"
        return headers

    def _policy(self) -> str:
        """Nothing comes from elsewhere. A form may lead to a payment provider, wherever that has its checkout."""
        frames = " ".join(self.org.frame_origins) if self.org else ""
        return (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
            f"manifest-src 'self'; form-action 'self' https: {self.site.origin}; base-uri 'none'; "
            f"frame-ancestors {frames or NOBODY}"
        )

    def _set_cookie(self, response: Response) -> None:
        """In a frame of another site only a cookie of its own part is kept, and only over TLS."""
        is_framed = self.is_embedded
        response.set_cookie(
            COOKIE,
            write_cookie(self.session, self.secret),
            max_age=COOKIE_SECONDS,
            path="/",
            secure=is_framed or self.site.settings.public_url.startswith("https:"),
            httponly=True,
            samesite="none" if is_framed else "lax",
        )
        if is_framed:
            response.headers["set-cookie"] += "; Partitioned"


Respond = Callable[[PageRequest], Awaitable[Response]]


async def go_up(page: PageRequest) -> Response:
    """A form's address that was loaded anew: the page that it was on."""
    return page.go(page.request.url.path.rpartition("/")[0])


def is_text(part: str) -> bool:
    """Whether a part of an address is something that the database could know at all."""
    return part.isprintable() and part.isascii()


def _org(row: Any) -> Org:
    if not row:
        raise ApiError(Problem(404, "not_found"))
    names = Org.__struct_fields__
    return Org(**{name: row[name] for name in names})


def _preferred(accepted: str) -> str:
    """The first language of the browser's list that is spoken here."""
    asked = [each.partition(";")[0].strip() for each in accepted.split(",")]
    spoken = [tag.partition("-")[0].lower() for tag in asked]
    return language_of(next((each for each in spoken if each in LANGUAGES), None))


def answer_json(value: Struct | dict[str, Any] | None, status: int = 200) -> Response:
    return Response(json.encode(value), status, media_type="application/json")


def _sorry(page: PageRequest | None, request: Request, problem: Problem) -> Response:
    if page is None:
        return Response("Something went wrong. Please try again.", problem.status, media_type="text/plain")
    if page.wants_json:
        return answer_json({"code": problem.code}, problem.status)
    return page.show("sorry.html", problem.status, problem=problem)
