"""The sandbox's checkout page, where a buyer pays without money, or tries what can go wrong. It needs no script."""

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Final
from urllib.parse import parse_qsl, quote, urlsplit

import structlog
from babel.dates import format_datetime
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from msgspec import Meta, Struct, convert
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.i18n.formatting import money
from holdfast.payments.provider import ProviderRefusedError
from holdfast.payments.sandbox import Action, Sandbox, SandboxCharge
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS

log = structlog.get_logger()

PATH: Final = "/sandbox/checkout/{ref}"
LANGUAGE: Final = "en"
FORM_MAX: Final = 4096
FORM_SECONDS: Final = 10
DELAY_SECONDS: Final = 5
DELAY_SECONDS_MAX: Final = 3600

templates: Final = Environment(
    loader=PackageLoader("holdfast.web", "templates/sandbox"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)
CHECKOUT: Final = templates.get_template("sandbox.html")
MESSAGE: Final = templates.get_template("sandbox_message.html")

STYLE: Final = Markup(templates.get_template("sandbox.css").render())  # noqa: S704 - a file of our own
STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-robots-tag": "noindex",
}

Respond = Callable[[Request], Awaitable[Response]]


class Form(Struct, frozen=True):
    action: Action
    delay_seconds: Annotated[int, Meta(ge=0, le=DELAY_SECONDS_MAX)] = DELAY_SECONDS


class FormError(Exception):
    """What was sent is not what the page's own buttons send. The text is shown."""


def sandbox_routes(sandbox: Sandbox) -> list[Route]:
    async def show(request: Request) -> Response:
        charge = await _find(sandbox, request)
        return _checkout_page(charge) if charge else _message_page(404)

    async def act(request: Request) -> Response:
        charge = await _find(sandbox, request)
        if charge is None:
            return _message_page(404)
        try:
            form = await _read_form(request)
            charge = await sandbox.act(charge.ref, form.action, form.delay_seconds)
        except FormError as error:
            return _checkout_page(charge, 422, problem=str(error))
        except ProviderRefusedError as error:
            return _checkout_page(await sandbox.find(charge.ref) or charge, 409, problem=str(error))
        # The buyer does not wait for the shop to be told, as with any other gateway.
        told = BackgroundTask(sandbox.send_due)
        return RedirectResponse(_way_back(charge) or request.url.path, 303, HEADERS, background=told)

    return [Route(PATH, _guard(show), methods=["GET"]), Route(PATH, _guard(act), methods=["POST"])]


def _guard(respond: Respond) -> Respond:
    async def guarded(request: Request) -> Response:
        try:
            return await respond(request)
        except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
            log.error("sandbox_page_without_database", error=type(error).__name__)
            return _message_page(503)

    return guarded


async def _find(sandbox: Sandbox, request: Request) -> SandboxCharge | None:
    ref = request.path_params["ref"]
    return await sandbox.find(ref) if ref.isascii() and ref.isprintable() else None


async def _read_form(request: Request) -> Form:
    try:
        async with asyncio.timeout(FORM_SECONDS):
            pairs = parse_qsl((await _read_body(request)).decode("ascii"), max_num_fields=10)
        return convert(dict(pairs), Form, strict=False)
    except (TimeoutError, ClientDisconnect):
        raise FormError("Your choice did not arrive. Please try again.") from None
    except ValueError:
        raise FormError(f"Choose one of the buttons. A delay is 0 to {DELAY_SECONDS_MAX} whole seconds.") from None


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_MAX:
            raise FormError("That is more than this page asks for.")
    return bytes(body)


def _way_back(charge: SandboxCharge) -> str | None:
    """Where the shop wants its buyer back, told which payment it is about."""
    if charge.return_url is None:
        return None
    url = urlsplit(charge.return_url)
    if url.scheme not in ("http", "https"):
        return None
    told = f"payment={quote(charge.payment, safe='')}"
    return url._replace(query=f"{url.query}&{told}" if url.query else told).geturl()


def _checkout_page(charge: SandboxCharge, status: int = 200, problem: str | None = None) -> Response:
    way_back = _way_back(charge)
    page = CHECKOUT.render(
        style=STYLE,
        moment=_moment,
        charge=charge,
        state="late" if charge.status == "open" and charge.late_at else charge.status.value,
        amount=money(charge.amount, charge.currency, LANGUAGE),
        way_back=way_back,
        problem=problem,
        delay_seconds=DELAY_SECONDS,
        delay_seconds_max=DELAY_SECONDS_MAX,
    )
    # Browsers hold the redirect after a form, and every redirect after that, against `form-action`. Where a shop leads
    # its buyer in the end is not known here.
    targets = "'self' http: https:" if way_back else "'self'"
    return HTMLResponse(page, status, {**HEADERS, "content-security-policy": policy(targets)})


def _message_page(status: int) -> Response:
    page = MESSAGE.render(style=STYLE, status=status)
    return HTMLResponse(page, status, {**HEADERS, "content-security-policy": policy("'none'")})


def policy(form_targets: str) -> str:
    """Nothing is loaded from anywhere, no script runs, and of styles only the page's own."""
    return (
        f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; form-action {form_targets}; "
        "base-uri 'none'; frame-ancestors 'none'"
    )


def _moment(at: datetime) -> str:
    return format_datetime(at, "d MMMM y, HH:mm:ss 'UTC'", locale=LANGUAGE)
