"""A buyer with a browser of their own, who reads pages and clicks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.support.harness import Server

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
# Generous: the test fails instead of hanging, and nothing measures speed.
WAIT_MS = 30_000


class BrowserBuyer:
    """Script errors and violations of the page's policy collect in `errors`."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._collect_error)

    def _collect_error(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def open_event(self, event: str) -> None:
        self.page.goto(f"{self.url}/e/{event}")
        expect(self.page.locator("#live")).to_contain_text("·")

    def expect_text(self, text: str) -> None:
        expect(self.page.locator("body")).to_contain_text(text, timeout=WAIT_MS)

    def seat_state(self, seat: str) -> str:
        self.page.wait_for_function("() => document.getElementById('map')?.map", timeout=WAIT_MS)
        state: str = self.page.evaluate("seat => document.getElementById('map').map.state(seat)", seat)
        return state

    def expect_seat(self, seat: str, state: str) -> None:
        has_state = "([seat, state]) => document.getElementById('map').map?.state(seat) === state"
        self.page.wait_for_function(has_state, arg=[seat, state], timeout=WAIT_MS)

    def click_seat(self, seat: str) -> None:
        position = self.page.evaluate("seat => document.getElementById('map').map.position(seat)", seat)
        self.page.locator(".seatmap-frame").click(position=position)

    def chosen_seats(self) -> list[str]:
        return self.page.locator("[data-picks] strong").all_inner_texts()

    def hold(self) -> None:
        """Hold the chosen seats and wait for the booking page."""
        self.page.locator("[data-submit]").click()
        self.page.wait_for_url("**/b/*")

    @property
    def booking(self) -> str:
        return self.page.url.rpartition("/")[2].partition("?")[0]

    def pay(self) -> None:
        """Pay in the sandbox and return to the shop."""
        self.page.locator(".way").click()
        self.page.wait_for_url("**/sandbox/checkout/**")
        self.page.locator("button.main").click()
        self.page.wait_for_url("**/b/**")


@contextmanager
def browser_buyer(browser: Browser, server: Server, **options: Any) -> Iterator[BrowserBuyer]:
    """A buyer with a fresh browser session, which must end without errors."""
    context = browser.new_context(**{"locale": "en-GB", **options})
    buyer = BrowserBuyer(context.new_page(), server.url)
    try:
        yield buyer
    finally:
        context.close()
    assert buyer.errors == [], buyer.errors


@contextmanager
def foreign_site() -> Iterator[tuple[str, list[str]]]:
    """The URL of another site, and its pages. It serves the last one."""
    pages: list[str] = []

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(pages[-1].encode())

        def log_message(self, *_: object) -> None:
            """Keep the test output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        # To a browser, localhost and 127.0.0.1 are different sites.
        yield f"http://localhost:{site.server_port}", pages
        site.shutdown()
