"""One request of a browser for a page: its session, its form, and the response it gets."""

import asyncio
import gzip
from functools import cached_property
from typing import TYPE_CHECKING, Final

from msgspec import structs
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from holdfast import sql
from holdfast.api.responses import EventView
from holdfast.i18n.languages import LANGUAGES, language_of
from holdfast.runtime.shared_secrets import Keyring, SecretValue
from holdfast.web.assets import accepts_gzip
from holdfast.web.customer_api import CustomerApi
from holdfast.web.event_listing import EventListing, Org, load_listings
from holdfast.web.forms import FIELDS_MAX, has_unread_form, read_fields, read_form
from holdfast.web.page_problems import NOT_FOUND, PageError, PageProblem
from holdfast.web.rendering import render
from holdfast.web.security import content_security_policy, form_token, is_form_token, security_headers
from holdfast.web.session import Session, new_session, read_cookie, seconds_left, write_cookie

if TYPE_CHECKING:
    from holdfast.web.site import Site

# Higher levels save a few percent more and take twice as long.
GZIP_LEVEL: Final = 4
ACCEPT_LANGUAGE_MAX: Final = 200
ROWS_AT_ONCE_MAX: Final = 100
FORM_SENDERS: Final = ("same-origin", "none")


class PageRequest:
    """`org` is the org whose page this is, once that is known. `owner` is the guest whose recovered booking the page is
    about, if that is another guest than the browser's own."""

    def __init__(self, site: "Site", request: Request) -> None:
        self.site = site
        self.request = request
        self.session = new_session()
        self.org: Org | None = None
        self.owner: str | None = None
        self._loaded_session: Session | None = None
        self._is_stale = False
        self._keyring: Keyring | None = None

    async def load_session(self) -> None:
        self._keyring = await self.site.session_secret.keyring()
        known = read_cookie(self.request.cookies.get(self.site.cookie_name, ""), self._keyring)
        if known is not None:
            self._loaded_session = self.session = known.session
            self._is_stale = known.is_stale
        language = self.request.query_params.get("lang")
        if language in LANGUAGES:
            self.session = structs.replace(self.session, language=language)

    @property
    def keyring(self) -> Keyring:
        """The secrets that sign sessions and forms."""
        assert self._keyring is not None
        return self._keyring

    @property
    def has_session(self) -> bool:
        """Whether the browser has a session of ours."""
        return self._loaded_session is not None

    @cached_property
    def language(self) -> str:
        return self.session.language or _preferred_language(self.request.headers.get("accept-language", ""))

    @cached_property
    def form_token(self) -> str:
        return form_token(self.session, self._keyring.signing) if self._keyring else ""

    @property
    def is_embedded(self) -> bool:
        """Whether another site shows the page in a frame."""
        return self.request.headers.get("sec-fetch-dest") == "iframe"

    @property
    def wants_json(self) -> bool:
        return "application/json" in self.request.headers.get("accept", "")

    @property
    def base_url(self) -> str:
        """The origin that the browser uses for us, so that it comes back with its cookie."""
        origin = self.request.headers.get("origin", "")
        return origin if self._is_own_origin(origin) else self.site.settings.public_url.rstrip("/")

    @property
    def customer(self) -> CustomerApi:
        """The API, called as the user of this browser or as the owner of a recovered booking, in the org whose page it
        is."""
        assert self.org is not None
        user = self.owner or self.session.user(self.org.id)
        is_guest = self.owner is not None or self.is_guest
        return CustomerApi(self.site.api, self.address, self.org.id, user, is_guest=is_guest)

    @property
    def address(self) -> str:
        """The client address that limits count."""
        return self.site.api.address(self.request.scope)

    @property
    def is_guest(self) -> bool:
        """Whether this browser is not signed in as a customer of the org."""
        assert self.org is not None
        return self.session.customer(self.org.id) is None

    async def load_event(self, event: bytes | None) -> EventListing:
        """A published event. The page then has the branding of its org."""
        listing = (await load_listings(self.site.database.event(event), [event])).get(event) if event else None
        if listing is None:
            raise PageError(NOT_FOUND)
        self.org = listing.org
        return listing

    async def load_org_of(self, event: bytes | None) -> None:
        """Set the org of a published event, for responses that show nothing else of it."""
        self.org = await self.site.database.event(event).row(Org, sql.pages.org_of_event, event) if event else None
        if self.org is None:
            raise PageError(NOT_FOUND)

    def keep_session_for(self, event: EventView) -> None:
        """Let the session of someone with a booking last until the event and its last slot are over."""
        slots = [pool.ends_at or pool.starts_at for pool in event.pools]
        ends = [event.ends_at or event.starts_at, *(at for at in slots if at is not None)]
        self.session = self.session.keep_until(max(ends))

    async def read_fields(self, fields_max: int = FIELDS_MAX) -> dict[str, str]:
        """The fields of a form, if a page of this browser has sent it."""
        self.check_sender()
        fields = await read_fields(self.request, fields_max=fields_max)
        self.check_token(fields.pop("form_token", ""))
        return fields

    async def read_upload(self, bytes_max: int) -> FormData:
        """A form with a file. The caller still has to check its token."""
        self.check_sender()
        return await read_form(self.request, bytes_max, files_max=1)

    def check_token(self, token: str) -> None:
        if not self.has_session or not self._keyring or not is_form_token(token, self.session, self._keyring):
            raise PageError(PageProblem(403, "stale_form"))

    def check_sender(self) -> None:
        """Browsers name the origin of a form. We refuse the forms of other sites before we read them."""
        origin = self.request.headers.get("origin")
        is_foreign = origin is not None and not self._is_own_origin(origin)
        if is_foreign or self.request.headers.get("sec-fetch-site", "same-origin") not in FORM_SENDERS:
            raise PageError(PageProblem(403, "foreign_form"))
        if not self.has_session:
            raise PageError(PageProblem(403, "stale_form"))

    def _is_own_origin(self, origin: str) -> bool:
        """The origin of the request or the public one: a proxy may have changed the Host header."""
        return origin.partition("://")[2] == self.request.headers.get("host") or origin == self.site.origin

    def render(self, template: str, status: int = 200, **context: object) -> Response:
        """The page, compressed if the browser accepts that. `security.form_token` says why that is safe."""
        html = render(template, self, **context).encode()
        headers = {"vary": "accept-encoding"}
        if accepts_gzip(self.request):
            headers["content-encoding"] = "gzip"
            html = gzip.compress(html, GZIP_LEVEL, mtime=0)
        return HTMLResponse(html, status, headers)

    async def render_rows(self, template: str, rows: int, status: int = 200, **context: object) -> Response:
        """Render a page with this many rows. A thread renders long pages, because they take a while."""
        if rows <= ROWS_AT_ONCE_MAX:
            return self.render(template, status, **context)
        return await asyncio.to_thread(self.render, template, status, **context)

    def redirect(self, path: str) -> Response:
        return RedirectResponse(path, 303)

    def finish(self, response: Response) -> None:
        """Add security headers and the cookie. A response that caches may share carries no cookie. The server drops a
        connection with an unread form, so the browser must not reuse it."""
        if has_unread_form(self.request):
            response.headers["connection"] = "close"
        for name, value in self._headers().items():
            response.headers.setdefault(name, value)
        is_private = response.headers["cache-control"] == "no-store"
        if is_private and self._keyring and (self._is_stale or self.session != self._loaded_session):
            self._set_cookie(response, self._keyring.signing)

    def _headers(self) -> dict[str, str]:
        frames = self.org.frame_origins if self.org else ()
        policy = content_security_policy(f"'self' https: {self.site.origin}", frames)
        return security_headers(policy, is_https=self.site.is_https)

    def _set_cookie(self, response: Response, secret: SecretValue) -> None:
        """In a frame of another site, browsers keep only partitioned cookies, and only over TLS."""
        response.set_cookie(
            self.site.cookie_name,
            write_cookie(self.session, secret),
            max_age=seconds_left(self.session),
            path="/",
            secure=self.is_embedded or self.site.is_https,
            httponly=True,
            samesite="none" if self.is_embedded else "lax",
        )
        if self.is_embedded:
            response.headers["set-cookie"] += "; Partitioned"


def _preferred_language(accept_language: str) -> str:
    """The first language of the browser's list that we have texts in."""
    tags = [entry.partition(";")[0].strip() for entry in accept_language[:ACCEPT_LANGUAGE_MAX].split(",")]
    languages = [tag.partition("-")[0].lower() for tag in tags]
    return language_of(next((language for language in languages if language in LANGUAGES), None))
