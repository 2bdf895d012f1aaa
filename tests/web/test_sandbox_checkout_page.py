"""The sandbox's checkout page in a real browser."""

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from holdfast.core.payment import PaymentResult
from holdfast.i18n.texts import section
from holdfast.payments.provider import ProviderError, ProviderStatus
from holdfast.payments.sandbox import Action, ChargeStatus, Sandbox
from holdfast.runtime import db
from holdfast.runtime.settings import Settings
from holdfast.web.assets import asset_routes
from holdfast.web.sandbox_pages import sandbox_routes
from holdfast.web.site import Site
from tests.support.browser import chromium
from tests.support.harness import fresh_database, wait_until
from tests.support.merchant_server import SECRET, MerchantServer, checkout_request

T = TypeVar("T")


class CheckoutSite:
    """The checkout page and the merchant on one server, in a thread of its own."""

    def __init__(self, database: str) -> None:
        self.merchant = MerchantServer()
        self.sandbox: Sandbox
        self._loop = asyncio.new_event_loop()
        self._up: Future[None] = Future()
        self._done = asyncio.Event()
        self._count = 0
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(database),))
        self._thread.start()
        self._up.result(30)

    async def _serve(self, database: str) -> None:
        pool, closed_pool = [await db.create_pool(database, 4) for _ in range(2)]
        await closed_pool.close()
        self.sandbox = Sandbox(db.Database(pool), SECRET, self.merchant.url)
        self.routes_without_database = sandbox_routes(
            _site(closed_pool), Sandbox(db.Database(closed_pool), SECRET, self.merchant.url)
        )
        site = _site(pool)
        pages = [*sandbox_routes(site, self.sandbox), *asset_routes(site)]
        routes = [*pages, Route("/return", _return), Route("/thanks", _thanks)]
        async with self.merchant.serve(routes):
            self._up.set_result(None)
            await self._done.wait()
        await pool.close()

    def run(self, work: Awaitable[T]) -> T:
        async def await_work() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(await_work(), self._loop).result(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()
        self._loop.close()

    def start(self, **changes: Any) -> tuple[str, str]:
        """Start a payment, and return its reference and the URL of its checkout page."""
        self._count += 1
        request = checkout_request(f"pay_{self._count:04}", **{"return_url": f"{self.merchant.url}/thanks", **changes})
        started = self.run(self.sandbox.start(request))
        assert started.checkout_url is not None
        return started.ref, started.checkout_url

    def status(self, ref: str) -> ChargeStatus:
        charge = self.run(self.sandbox.find(ref))
        assert charge is not None
        return charge.status

    def results(self, ref: str) -> list[PaymentResult | None]:
        return [notice.result for notice in self.merchant.notices if notice.ref == ref]


def _site(pool: db.Pool) -> Site:
    api: Any = UnlimitedApi()
    return Site(Settings(), db.Database(pool), api, ())


class UnlimitedApi:
    """The checkout page calls no operation. It only counts its requests."""

    def address(self, _: Scope) -> str:
        return ""

    def spend(self, address: str) -> None:
        pass


async def _return(request: Request) -> Response:
    """Redirect the buyer to another origin, as some merchants do."""
    return RedirectResponse(f"http://localhost:{request.url.port}/thanks?{request.url.query}")


async def _thanks(_: Request) -> Response:
    return HTMLResponse("<h1>Back in the shop</h1>")


@pytest.fixture(scope="module")
def site(postgres: str) -> Iterator[CheckoutSite]:
    with fresh_database(postgres) as url:
        site = CheckoutSite(url)
        yield site
        site.close()


@pytest.fixture(scope="module")
def browser(site: CheckoutSite) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=30, verify=False) as client:
        yield client


@pytest.fixture
def page(browser: Browser, site: CheckoutSite) -> Iterator[Page]:
    """A tab that fails the test on script errors, policy violations and requests to other sites."""
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Security Policy" in message.text else None)
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.set_default_timeout(10_000)
    yield page
    page.context.close()
    assert errors == []
    ours = (site.merchant.url, f"http://localhost:{site.merchant.port}/thanks")
    assert [url for url in urls if not url.startswith(ours)] == []


@pytest.mark.parametrize(
    ("button", "status", "results"),
    [
        ("Pay €30.00", ChargeStatus.PAID, [PaymentResult.CAPTURED]),
        ("Decline", ChargeStatus.FAILED, [PaymentResult.FAILED]),
        ("Pay and send twice", ChargeStatus.PAID, [PaymentResult.CAPTURED, PaymentResult.CAPTURED]),
    ],
)
def test_a_button_has_its_effect_and_returns_to_the_merchant(
    site: CheckoutSite, page: Page, button: str, status: ChargeStatus, results: list[PaymentResult]
) -> None:
    ref, url = site.start()
    page.goto(url)
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.get_by_role("heading", name="Back in the shop")).to_be_visible()
    assert page.url == f"{site.merchant.url}/thanks?payment={ref.replace('sbx', 'pay')}"
    assert site.status(ref) is status
    wait_until(lambda: len(site.results(ref)) == len(results), 10)
    assert site.results(ref) == results
    assert len({notice.id for notice in site.merchant.notices if notice.ref == ref}) == len(results)


def test_a_late_payment_arrives_after_the_chosen_delay(site: CheckoutSite, page: Page) -> None:
    ref, url = site.start(expires_at=datetime.now(UTC) + timedelta(seconds=1), return_url="")
    page.goto(url)
    page.get_by_label("Seconds after the hold ends").fill("1")
    page.get_by_role("button", name="Pay late").click()
    expect(page.get_by_role("heading", name="On its way")).to_be_visible()
    site.run(site.sandbox.close(ref))
    wait_until(lambda: site.status(ref) is ChargeStatus.PAID, 10)
    assert site.results(ref) == []
    assert site.run(site.sandbox.send_due()) == 1
    assert site.results(ref) == [PaymentResult.CAPTURED]
    page.reload()
    expect(page.get_by_role("heading", name="Paid")).to_be_visible()


def test_an_invalid_delay_is_not_sent(site: CheckoutSite, page: Page) -> None:
    ref, url = site.start()
    page.goto(url)
    for text in ("", "-1", "1.5", "99999"):
        page.get_by_label("Seconds after the hold ends").fill(text)
        page.get_by_role("button", name="Pay late").click()
        assert page.url == url
        assert page.get_by_label("Seconds after the hold ends").evaluate("field => field.matches(':invalid')")
    assert site.status(ref) is ChargeStatus.OPEN


def test_a_gateway_that_never_answers_sends_no_notice(site: CheckoutSite, page: Page) -> None:
    ref, url = site.start(return_url="")
    page.goto(url)
    page.get_by_role("button", name="Go silent").click()
    expect(page.get_by_role("heading", name="No answer")).to_be_visible()
    with pytest.raises(ProviderError):
        site.run(site.sandbox.look_up(ref))
    assert site.results(ref) == []


@pytest.mark.parametrize(
    ("action", "heading"),
    [
        (Action.PAY, "Paid"),
        (Action.FAIL, "Payment failed"),
        (Action.PAY_LATE, "On its way"),
        (Action.NEVER_ANSWER, "No answer"),
        (None, "Checkout expired"),
    ],
)
def test_a_finished_payment_shows_its_result_and_no_buttons(
    site: CheckoutSite, page: Page, action: Action | None, heading: str
) -> None:
    ref, url = site.start()
    if action:
        site.run(site.sandbox.act(ref, action, 60))
    else:
        site.run(site.sandbox.close(ref))
    page.goto(url)
    expect(page.get_by_role("heading", name=heading)).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
    page.get_by_role("link", name="Return to the shop").click()
    expect(page.get_by_role("heading", name="Back in the shop")).to_be_visible()


def test_a_late_buyer_sees_that_the_checkout_expired(site: CheckoutSite, page: Page) -> None:
    ref, url = site.start()
    page.goto(url)
    assert site.run(site.sandbox.close(ref)) == ProviderStatus(PaymentResult.FAILED, 3000, "EUR")
    page.get_by_role("button", name="Pay €30.00").click()
    expect(page.get_by_role("alert")).to_have_text("This checkout has expired.")
    expect(page.get_by_role("heading", name="Checkout expired")).to_be_visible()
    assert site.status(ref) is ChargeStatus.CLOSED


def test_a_late_spanish_buyer_reads_the_reason_in_spanish(site: CheckoutSite, page: Page) -> None:
    ref, url = site.start()
    page.goto(f"{url}?lang=es")
    site.run(site.sandbox.close(ref))
    page.get_by_role("button", name="Pagar 30,00").click()
    expect(page.get_by_role("alert")).to_have_text("Esta página de pago venció.")


def test_a_merchant_may_redirect_its_buyer_to_another_origin(site: CheckoutSite, page: Page) -> None:
    ref, url = site.start(return_url=f"http://localhost:{site.merchant.port}/thanks")
    page.goto(url)
    page.get_by_role("button", name="Pay €30.00").click()
    expect(page.get_by_role("heading", name="Back in the shop")).to_be_visible()
    ref, url = site.start(return_url=f"{site.merchant.url}/return?order=7#top")
    page.goto(url)
    page.get_by_role("button", name="Pay €30.00").click()
    page.wait_for_url(f"http://localhost:{site.merchant.port}/thanks?order=7&payment={ref.replace('sbx', 'pay')}#top")


def test_a_buyer_can_pay_with_the_keyboard_alone_and_sees_the_focus(site: CheckoutSite, page: Page) -> None:
    ref, url = site.start(return_url="")
    page.goto(url)
    page.keyboard.press("Tab")
    focused = page.locator(":focus")
    expect(focused).to_have_text("Pay €30.00")
    assert focused.evaluate("it => getComputedStyle(it).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Paid")).to_be_visible()
    assert site.status(ref) is ChargeStatus.PAID


def test_the_page_shows_the_purchase_and_that_it_is_a_sandbox(site: CheckoutSite, page: Page) -> None:
    _, url = site.start(description="<script>alert(1)</script> & two places", amount=1_234_500, currency="JPY")
    page.goto(url)
    expect(page.get_by_role("heading", level=1)).to_contain_text("<script>alert(1)</script> & two places")
    expect(page.get_by_role("button", name="Pay ¥1,234,500")).to_be_visible()
    expect(page.get_by_role("banner")).to_contain_text("Sandbox This is a test checkout. No money changes hands.")
    levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(one => one.tagName).join(' ')")
    assert levels == "H1 H2 H2 H3 H3 H3 H3"


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (...colours) => {
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = colour => colour
    .map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const layers = one => one ? [...layers(one.parentElement), getComputedStyle(one).backgroundColor] : [];
  const hasText = one => [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  return [...document.querySelectorAll("body *")].filter(one => hasText(one) || one.matches("input")).map(one => {
    const below = layers(one);
    const [back, front] = [rgb(...below), rgb(...below, getComputedStyle(one).color)].map(luminance);
    return [one.outerHTML.slice(0, 60), (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05)];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_legible_in_light_and_in_dark(site: CheckoutSite, page: Page, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    ref, url = site.start()
    page.goto(url)
    contrasts = page.evaluate(CONTRASTS)
    site.run(site.sandbox.act(ref, Action.PAY))
    page.goto(url)
    contrasts += page.evaluate(CONTRASTS)
    page.goto(f"{site.merchant.url}/sandbox/checkout/none")
    contrasts += page.evaluate(CONTRASTS)
    assert len(contrasts) > 30
    assert [text for text, contrast in contrasts if contrast < 4.5] == []


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_the_page_fits_every_screen_width(site: CheckoutSite, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    _, url = site.start(description="Friday-night-with-a-name-that-has-no-end-" * 5, amount=10**15)
    page.goto(url)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for button in page.get_by_role("button").all():
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 44


def test_an_unknown_checkout_gets_a_friendly_page(site: CheckoutSite, page: Page) -> None:
    for ref in ("sbx_none", "%00", "%ED%A0%80", "ä"):
        response = page.goto(f"{site.merchant.url}/sandbox/checkout/{ref}")
        assert response is not None
        assert response.status == 404
        expect(page.get_by_role("heading", name="No such checkout")).to_be_visible()


def test_the_page_runs_no_script_and_cannot_be_framed_sniffed_or_cached(
    site: CheckoutSite, client: httpx.Client
) -> None:
    _, url = site.start()
    _, without_return = site.start(return_url="")
    for address in (url, without_return, f"{site.merchant.url}/sandbox/checkout/none"):
        headers = client.get(address).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "script-src" not in policy
        assert "unsafe" not in policy
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    assert "form-action 'self';" in client.get(without_return).headers["content-security-policy"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"action=",
        b"action=steal",
        b"action=pay_late&delay_seconds=-1",
        b"action=pay_late&delay_seconds=3601",
        b"action=pay_late&delay_seconds=1.5",
        b"action=pay_late&delay_seconds=nan",
        b"action=pay_late&delay_seconds=" + b"9" * 4000,
        b"action=pay&" + b"x=1&" * 50,
        b"action=%ff",
        b"\xff\x00",
        b"action=pay&x=" + b"x" * 1_000_000,
        b'{"action": "pay"}',
    ],
)
def test_an_unknown_action_changes_nothing(site: CheckoutSite, client: httpx.Client, body: bytes) -> None:
    ref, url = site.start()
    answer = client.post(url, content=body, headers={"content-type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    assert site.status(ref) is ChargeStatus.OPEN


def test_a_second_click_and_an_unknown_checkout_are_refused(site: CheckoutSite, client: httpx.Client) -> None:
    ref, url = site.start()
    assert client.post(url, data={"action": "pay"}).status_code == 303
    second = client.post(url, data={"action": "fail"})
    assert second.status_code == 409
    assert "This checkout has already been paid." in second.text
    assert site.status(ref) is ChargeStatus.PAID
    assert client.post(f"{site.merchant.url}/sandbox/checkout/none", data={"action": "pay"}).status_code == 404


@pytest.mark.parametrize("return_url", ["javascript:alert(1)", "data:text/html,x", "//elsewhere.example", "thanks"])
def test_a_buyer_is_only_redirected_to_http_urls(site: CheckoutSite, client: httpx.Client, return_url: str) -> None:
    _, url = site.start(return_url=return_url)
    answer = client.post(url, data={"action": "pay"})
    assert answer.status_code == 303
    assert url.endswith(answer.headers["location"])
    assert "Return to the shop" not in client.get(url).text


def test_a_checkout_without_a_database_asks_the_buyer_to_wait(site: CheckoutSite) -> None:
    async def get_checkout() -> httpx.Response:
        app = httpx.ASGITransport(Starlette(routes=site.routes_without_database))
        async with httpx.AsyncClient(transport=app, base_url="http://shop") as client:
            return await client.get("/sandbox/checkout/sbx_1")

    answer = site.run(get_checkout())
    assert answer.status_code == 503
    assert section("en", "page")["sorry.busy"] in answer.text
