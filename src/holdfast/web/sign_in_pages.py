"""Signs in a customer whom the merchant's own site has identified.

A link can come from anybody. An attacker could send a buyer a link with the attacker's own token, so that the buyer
books and pays in that account. So Holdfast asks first if the browser is already known to the org, unless the link is on
a page of the merchant's own site.
"""

from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from holdfast import sql
from holdfast.api.requests import BookingsQuery
from holdfast.runtime.credentials import (
    Customer,
    InvalidTokenError,
    is_token_used,
    read_customer_token,
    use_customer_token,
)
from holdfast.web.event_listing import Org
from holdfast.web.page_problems import PageError, PageProblem
from holdfast.web.page_request import PageRequest
from holdfast.web.site import Site

PATH: Final = "/enter"
# What the header Sec-Fetch-Site says about a link on the merchant's own site. Browsers send it only over TLS and to
# localhost; without it, a link may come from anywhere. Our own pages do not count: they lead to `next`, which whoever
# made the link has chosen.
TRUSTED_LINK: Final = "same-site"
# The merchant chooses the ids of users. Buyers would not recognise a long one.
NAME_CHARS_MAX: Final = 40


def sign_in_routes(site: Site) -> list[Route]:
    return [
        Route(PATH, site.page(sign_in), methods=["GET"]),
        Route(PATH, site.page(confirm_sign_in), methods=["POST"]),
    ]


async def sign_in(page: PageRequest) -> Response:
    """The merchant's site sends its customer here with a token. The redirect takes the token out of the address."""
    token, next_ = page.request.query_params.get("token", ""), page.request.query_params.get("next", "/")
    customer = await _read_token(page, token)
    if await _needs_answer(page, customer):
        return await _question_page(page, customer, token, next_)
    return await _enter(page, customer, next_)


async def confirm_sign_in(page: PageRequest) -> Response:
    fields = await page.read_fields()
    customer = await _read_token(page, fields.get("token", ""))
    return await _enter(page, customer, fields.get("next", "/"))


async def _read_token(page: PageRequest, token: str) -> Customer:
    try:
        customer = await read_customer_token(page.site.database, token)
    except InvalidTokenError:
        raise PageError(PageProblem(401, "unauthorized")) from None
    page.org = await page.site.database.org(customer.org).row(Org, sql.pages.org_by_id, customer.org)
    return customer


async def _needs_answer(page: PageRequest, customer: Customer) -> bool:
    """Whether a link on another site would switch the browser's account. A HEAD request must change nothing."""
    if page.request.method == "HEAD":
        return True
    if page.request.headers.get("sec-fetch-site") == TRUSTED_LINK:
        return False
    current = page.session.customer(customer.org)
    if current is not None:
        return current != customer.user
    return page.has_session and bool(await page.customer.list_bookings(BookingsQuery(limit=1)))


async def _enter(page: PageRequest, customer: Customer, next_: str) -> Response:
    if await use_customer_token(page.site.database, customer):
        page.session = page.session.sign_in(customer.org, customer.user)
    elif page.session.customer(customer.org) != customer.user:
        return _used_page(page)
    return page.redirect(_own_path(next_))


async def _question_page(page: PageRequest, customer: Customer, token: str, next_: str) -> Response:
    """The question does not use the token up; the answer does."""
    if await is_token_used(page.site.database, customer):
        return _used_page(page)
    current = page.session.customer(customer.org)
    return page.render(
        "sign_in.html",
        user=_name(customer.user),
        is_guest=current is None,
        current=_name(current or ""),
        token=token,
        next=_own_path(next_),
    )


def _used_page(page: PageRequest) -> Response:
    return page.render("used_link.html", 410)


def _name(user: str) -> str | None:
    """The user's id, if it can be shown."""
    return user if 0 < len(user) <= NAME_CHARS_MAX and user.isprintable() else None


def _own_path(path: str) -> str:
    """A path of this site, or the start. Browsers read `//host` and `/\\host` as another site."""
    is_own = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable() and path.isascii()
    return path if is_own else "/"
