"""Recovers a guest's bookings in another browser, with a link that Holdfast emails them.

Nobody may learn from these pages who has bookings. So the form only stores a request, whatever the address, and a
worker does the rest. Mail scanners open links, so a link only leads to a button, and the button uses it up.
"""

from datetime import datetime
from typing import Final

from msgspec import Struct, ValidationError, convert
from starlette.responses import Response
from starlette.routing import Route

from holdfast import sql
from holdfast.api.client_hash import ClientHasher
from holdfast.api.requests import EmailAddress
from holdfast.runtime import ids
from holdfast.runtime.credentials import hash_key
from holdfast.web.page_problems import PageProblem, refusal_text
from holdfast.web.page_request import PageRequest
from holdfast.web.site import Site, redirect_to_parent

# Each hour, in one org. People who share an address share its limit.
REQUESTS_PER_ADDRESS: Final = 20
REQUESTS_PER_ORG: Final = 5_000
HOUR_SECONDS: Final = 3600
EMAIL_CHARS_MAX: Final = 254


class RecoveryLink(Struct, frozen=True):
    email: str
    now: datetime


def recovery_routes(site: Site) -> list[Route]:
    """Without a mail server, nobody can get a link, so guests can only forget earlier recoveries."""
    forgetting = [
        Route("/o/{slug}/bookings/forget", site.page(forget), methods=["POST"]),
        Route("/o/{slug}/bookings/forget", site.page(redirect_to_parent), methods=["GET"]),
    ]
    if site.settings.smtp_url is None:
        return forgetting
    hasher = ClientHasher(site.database)

    async def request_link(page: PageRequest) -> Response:
        return await _request_link(page, hasher)

    return [
        Route("/o/{slug}/recover", site.page(show_form), methods=["GET"]),
        Route("/o/{slug}/recover/request", site.page(request_link), methods=["POST"]),
        Route("/o/{slug}/recover/request", site.page(redirect_to_parent), methods=["GET"]),
        Route("/o/{slug}/recover/sent", site.page(show_sent), methods=["GET"]),
        Route("/o/{slug}/recover/link", site.page(show_link), methods=["GET"]),
        Route("/o/{slug}/recover/link", site.page(use_link), methods=["POST"]),
        *forgetting,
    ]


async def show_form(page: PageRequest) -> Response:
    await _load_org(page)
    return page.render("recover.html", email="", problem=None)


async def _request_link(page: PageRequest, hasher: ClientHasher) -> Response:
    org = await _load_org(page)
    fields = await page.read_fields()
    email = fields.get("email", "").strip()
    if not _is_address(email):
        return _refused_page(page, email, PageProblem(422, "invalid_email"))
    stored = await page.site.database.org(org).fetchval(
        *sql.recovery.insert_request(
            id=ids.new_id(),
            org=org,
            email=email,
            language=page.language,
            client=await hasher.hash(org, page.address),
            org_key=org,
            per_address=REQUESTS_PER_ADDRESS,
            per_org=REQUESTS_PER_ORG,
        )
    )
    if stored is None:
        return _refused_page(page, email, PageProblem(429, "too_many_recoveries"))
    return page.redirect(f"/o/{page.request.path_params['slug']}/recover/sent")


async def show_sent(page: PageRequest) -> Response:
    await _load_org(page)
    return page.render("recover_sent.html")


async def show_link(page: PageRequest) -> Response:
    """This changes nothing, however often a mail scanner opens it."""
    org = await _load_org(page)
    token = page.request.query_params.get("token", "")
    link = await page.site.database.org(org).row(RecoveryLink, sql.recovery.link, hash_key(token), org)
    return page.render("recover_link.html", token=token, email=link.email) if link else _dead_link_page(page)


async def use_link(page: PageRequest) -> Response:
    org = await _load_org(page)
    token = (await page.read_fields()).get("token", "")
    link = await page.site.database.org(org).row(RecoveryLink, sql.recovery.use_link, hash_key(token), org)
    if link is None:
        return _dead_link_page(page)
    page.session = page.session.recover(org, link.email, link.now)
    return page.redirect(_bookings_path(page))


async def forget(page: PageRequest) -> Response:
    org = await _load_org(page)
    await page.read_fields()
    page.session = page.session.forget_recoveries(org)
    return page.redirect(_bookings_path(page))


async def _load_org(page: PageRequest) -> bytes:
    page.org = await page.site.load_org(page.request.path_params["slug"])
    return page.org.id


def _bookings_path(page: PageRequest) -> str:
    return f"/o/{page.request.path_params['slug']}/bookings"


def _dead_link_page(page: PageRequest) -> Response:
    """The same page for links that were used, have expired or never existed."""
    return page.render("recover_dead.html", 410)


def _is_address(text: str) -> bool:
    try:
        convert(text, EmailAddress)
    except ValidationError:
        return False
    return True


def _refused_page(page: PageRequest, email: str, problem: PageProblem) -> Response:
    """The form with what the guest typed, and why it had no effect."""
    text = refusal_text(page.language, problem)
    response = page.render("recover.html", problem.status, email=email[:EMAIL_CHARS_MAX], problem=text)
    if problem.status == 429:
        response.headers["retry-after"] = str(HOUR_SECONDS)
    return response
