"""The pages are accessible: axe finds no serious violation, light or dark, wide or narrow."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import chromium
from tests.support.browser_buyer import PHONE, BrowserBuyer
from tests.support.harness import Org, Server, example_event, fresh_database, post_hold, publish_event, running_server
from tests.support.html_client import get_page, new_visitor, parse_page, submit_form
from tests.support.http_assertions import expect_ok
from tests.support.resources import TINY_PNG, create_series, reviewed_event

SERIOUS = {"serious", "critical"}
SEATS = {"light": "A-9", "dark on a phone": "B-9"}
# Pages that together have everything that could look wrong in the dark or on a phone.
RISKY_PAGES = {"start", "series", "event", "held", "tickets", "taken", "stampede"}
# Without motion, so that no colour is measured during a transition.
NO_MOTION = {"reduced_motion": "reduce"}
LOOKS: dict[str, dict[str, Any]] = {
    "light": NO_MOTION,
    "dark on a phone": {**NO_MOTION, **PHONE, "color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def server(postgres: str) -> Iterator[Server]:
    with fresh_database(postgres) as url, running_server(url, workers=1, HOLDFAST_DEMO="true") as server:
        yield server


@pytest.fixture(scope="module")
def event(admin: httpx.Client) -> str:
    return publish_event(admin, reviewed_event())


@pytest.fixture(scope="module")
def series(admin: httpx.Client) -> str:
    """A series with a card on the start page, one of whose dates is sold out."""
    id_ = create_series(admin, description="In black and white.")
    publish_event(admin, example_event(series=id_, pools=[{"code": "a", "capacity": 0}]))
    return id_


@pytest.fixture(scope="module")
def org(server: Server) -> Org:
    """An org with a known slug, for the addresses of its pages."""
    return Org(server.database_url, "acme")


@pytest.fixture(scope="module")
def browser(event: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def find_violations(page: Page) -> list[str]:
    violations = Axe().run(page).response["violations"]
    return [f"{found['id']}: {found['nodes'][0]['html']}" for found in violations if found["impact"] in SERIOUS]


@pytest.mark.parametrize("look", LOOKS)
def test_no_page_has_a_serious_violation(
    browser: Browser, server: Server, admin: httpx.Client, event: str, series: str, look: str
) -> None:
    context = browser.new_context(**LOOKS[look])
    buyer = BrowserBuyer(context.new_page(), server.url)
    page = buyer.page
    found: dict[str, list[str]] = {}

    def check(name: str, open_page: Callable[[], object]) -> None:
        open_page()
        if look == "light" or name in RISKY_PAGES:
            found[name] = find_violations(page)

    check("start", lambda: page.goto(server.url))
    check("series", lambda: page.goto(f"{server.url}/s/{series}"))
    check("search", lambda: page.goto(f"{server.url}/o/acme?q=nothing"))
    check("event", lambda: buyer.open_event(event))
    check("seats as a list", lambda: page.get_by_role("button", name="Show as list").click())
    check("sorry", lambda: page.goto(f"{server.url}/e/nothing"))
    check("no bookings", lambda: page.goto(f"{server.url}/o/acme/bookings"))
    check("stampede", lambda: page.goto(f"{server.url}/e/{event}/stampede"))
    check("docs", lambda: page.goto(f"{server.url}/docs"))
    check("chosen", lambda: choose_place(buyer, event))
    check("held", buyer.hold)
    check("submitted", lambda: submit_receipt(page))
    expect_ok(admin.post(f"/v1/bookings/{buyer.booking}/approve"))
    check("tickets", lambda: buyer.expect_text("You're in!"))
    check("bookings", lambda: page.goto(f"{server.url}/o/acme/bookings"))
    check("sign in", lambda: page.goto(f"{server.url}/enter?token={create_token(admin)}"))
    check("taken", lambda: lose_seat(buyer, admin, event, SEATS[look]))
    check("checkout", lambda: open_checkout(buyer, event))
    context.close()
    assert {name: violations for name, violations in found.items() if violations} == {}


def create_token(admin: httpx.Client) -> str:
    token: str = expect_ok(admin.post("/v1/customer-tokens", json={"user": "ada"}), 201)["token"]
    return token


def choose_place(buyer: BrowserBuyer, event: str) -> None:
    buyer.open_event(event)
    buyer.page.get_by_role("button", name="Add one: child").click()


def submit_receipt(page: Page) -> None:
    receipt = page.get_by_label("Pay by bank transfer")
    receipt.set_input_files({"name": "r.png", "mimeType": "image/png", "buffer": TINY_PNG})
    page.get_by_role("button", name="Send receipt", exact=True).click()
    page.get_by_text("We're checking your receipt").wait_for()


def lose_seat(buyer: BrowserBuyer, admin: httpx.Client, event: str, seat: str) -> None:
    buyer.open_event(event)
    buyer.page.evaluate("seat => document.getElementById('map').map.select(seat, true)", seat)
    expect_ok(post_hold(admin, event, items=[{"seat": seat}]), 201)
    buyer.expect_text("These seats nearby are still free")


def open_checkout(buyer: BrowserBuyer, event: str) -> None:
    choose_place(buyer, event)
    buyer.hold()
    buyer.page.locator(".way").click()
    buyer.page.wait_for_url("**/sandbox/checkout/**")


def test_the_check_finds_violations(browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_content("<html><img src=x><input></html>")
    assert find_violations(page)
    context.close()


# The colour of the map's corner, and how many pixels of a seat differ from it.
SEAT_COLOURS = """seat => {
  const {x, y} = document.getElementById("map").map.position(seat);
  const canvas = document.querySelector(".seatmap-frame canvas");
  const scale = canvas.width / canvas.clientWidth;
  const read = (x, y, size) => {
    const {data} = canvas.getContext("2d").getImageData(x, y, size, size);
    return Array.from({length: size * size}, (_, at) => data.slice(4 * at, 4 * at + 3).join());
  };
  const [background] = read(2, 2, 1);
  const pixels = read(Math.round(x * scale) - 8, Math.round(y * scale) - 8, 16);
  return {background, differing: pixels.filter(colour => colour !== background).length};
}"""


def test_seats_are_visible_in_forced_colours(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)
    context = browser.new_context(reduced_motion="reduce", forced_colors="active")
    buyer = BrowserBuyer(context.new_page(), server.url)
    buyer.open_event(event)
    buyer.expect_seat("A-1", "held")
    for seat in ("A-1", "A-2"):
        colours = buyer.page.evaluate(SEAT_COLOURS, seat)
        assert colours["background"] == "255,255,255"
        assert colours["differing"] > 30
    context.close()


def test_a_stampede_can_be_started_and_watched_on_its_page(
    browser: Browser, server: Server, admin: httpx.Client
) -> None:
    hall = {
        "code": "hall",
        "tariffs": [{"code": "full", "price": 100}],
        "seats": {"rows": list("ABCDEF"), "numbers": 20},
    }
    event = publish_event(admin, example_event(pools=[hall]))
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.url}/e/{event}/stampede")
    page.get_by_label("Buyers").fill("300")
    page.get_by_label("Arrive within").fill("2")
    page.get_by_role("button", name="Start the stampede").click()
    expect(page.locator("#start .button")).to_be_disabled()
    expect(page.locator("#verdict h2")).to_have_text("120 of 120 spots taken, none of them twice", timeout=120_000)
    expect(page.locator("#live")).to_have_text("Live · 0 free", timeout=30_000)
    states = page.evaluate("['A-1', 'C-10', 'F-20'].map(seat => document.getElementById('map').map.state(seat))")
    assert states == ["held"] * 3
    context.close()
    assert expect_ok(admin.get(f"/v1/events/{event}/availability"))["pools"][0]["remaining"] == 0


@pytest.mark.parametrize(
    "fields", [{"buyers": ""}, {"buyers": "1.5"}, {"seconds": "soon"}, {"buyers": "20001"}], ids=str
)
def test_a_stampede_out_of_range_is_refused_with_the_allowed_range(
    server: Server, event: str, fields: dict[str, str]
) -> None:
    with new_visitor(server) as watcher:
        page = get_page(watcher, f"/e/{event}/stampede")
        limits = [attributes["max"] for tag, attributes in page.tags if tag == "input" and "max" in attributes]
        assert limits == ["20000", "60"]
        refused = parse_page(submit_form(watcher, page.form("/stampede"), **fields), 409)
        assert "Choose 1 to 20,000 buyers and 0 to 60 seconds." in refused.text
    with new_visitor(server, "es") as watcher:
        form = get_page(watcher, f"/e/{event}/stampede").form("/stampede")
        assert "Elige de 1 a 20.000 compradores" in parse_page(submit_form(watcher, form, **fields), 409).text
