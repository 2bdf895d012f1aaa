"""The sandbox's checkout page, where a buyer pays without money or tries what can go wrong. It needs no scripts."""

from datetime import datetime
from typing import Annotated, Final
from urllib.parse import quote, urlsplit

from babel.dates import format_date, format_time
from msgspec import Meta, Struct, ValidationError, convert
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.routing import Route

from holdfast.i18n.texts import translate
from holdfast.payments.provider import ProviderRefusedError
from holdfast.payments.sandbox import Action, Sandbox, SandboxCharge
from holdfast.web.forms import read_fields
from holdfast.web.page_problems import PageError
from holdfast.web.page_request import PageRequest
from holdfast.web.rendering import page_money
from holdfast.web.security import CSP_NONE, content_security_policy
from holdfast.web.site import Site, is_plain_text

PATH: Final = "/sandbox/checkout/{ref}"
FORM_BYTES_MAX: Final = 4096
FIELDS_MAX: Final = 10
DELAY_SECONDS: Final = 5
DELAY_SECONDS_MAX: Final = 3600


class ChargeForm(Struct, frozen=True):
    action: Action
    delay_seconds: Annotated[int, Meta(ge=0, le=DELAY_SECONDS_MAX)] = DELAY_SECONDS


def sandbox_routes(site: Site, sandbox: Sandbox) -> list[Route]:
    async def show(page: PageRequest) -> Response:
        charge = await _find_charge(sandbox, page)
        return _checkout_page(page, charge) if charge else _missing_page(page)

    async def act(page: PageRequest) -> Response:
        charge = await _find_charge(sandbox, page)
        if charge is None:
            return _missing_page(page)
        try:
            form = await _read_form(page)
            charge = await sandbox.act(charge.ref, form.action, form.delay_seconds)
        except (PageError, ValidationError):
            text = translate(page.language, "sandbox.invalid_choice", max=DELAY_SECONDS_MAX)
            return _checkout_page(page, charge, 422, text)
        except ProviderRefusedError:
            charge = await sandbox.find(charge.ref) or charge
            return _checkout_page(page, charge, 409, translate(page.language, f"sandbox.refused.{charge.status}"))
        response = page.redirect(_return_url(charge) or page.request.url.path)
        # Like any other gateway, the sandbox lets the buyer go before it sends its webhook events.
        response.background = BackgroundTask(sandbox.send_due)
        return response

    return [Route(PATH, site.page(show), methods=["GET"]), Route(PATH, site.page(act), methods=["POST"])]


async def _find_charge(sandbox: Sandbox, page: PageRequest) -> SandboxCharge | None:
    ref = page.request.path_params["ref"]
    return await sandbox.find(ref) if is_plain_text(ref) else None


async def _read_form(page: PageRequest) -> ChargeForm:
    """Anyone with the address of a checkout may pay it, so its form carries no token."""
    return convert(await read_fields(page.request, FORM_BYTES_MAX, FIELDS_MAX), ChargeForm, strict=False)


def _return_url(charge: SandboxCharge) -> str | None:
    """The shop's page for returning buyers, with the payment's id added to its query."""
    if charge.return_url is None:
        return None
    url = urlsplit(charge.return_url)
    if url.scheme not in ("http", "https"):
        return None
    payment = f"payment={quote(charge.payment, safe='')}"
    return url._replace(query=f"{url.query}&{payment}" if url.query else payment).geturl()


def _checkout_page(page: PageRequest, charge: SandboxCharge, status: int = 200, problem: str | None = None) -> Response:
    return_url = _return_url(charge)
    response = page.render(
        "sandbox/checkout.html",
        status,
        charge=charge,
        state="late" if charge.status == "open" and charge.late_at else charge.status.value,
        amount=page_money(charge.amount, charge.currency, page.language),
        utc=lambda at: _utc(at, page.language),
        return_url=return_url,
        problem=problem,
        delay_seconds=DELAY_SECONDS,
        delay_seconds_max=DELAY_SECONDS_MAX,
    )
    # Browsers check every redirect after a form against `form-action`, and only the shop knows where its own lead.
    return _protect(response, "'self' http: https:" if return_url else "'self'")


def _missing_page(page: PageRequest) -> Response:
    return _protect(page.render("sandbox/missing.html", 404), CSP_NONE)


def _protect(response: Response, form_targets: str) -> Response:
    """Stricter than other pages: no scripts, and no address of a checkout in a Referer header."""
    response.headers["content-security-policy"] = content_security_policy(form_targets, has_scripts=False)
    response.headers["referrer-policy"] = "no-referrer"
    return response


def _utc(at: datetime, language: str) -> str:
    return f"{format_date(at, 'long', language)}, {format_time(at, 'HH:mm:ss', locale=language)} UTC"
