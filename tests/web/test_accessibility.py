"""Everybody can use the pages: axe finds nothing serious, light or dark, wide or narrow."""

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
from tests.support.resources import TINY_PNG, reviewed_event

SERIOUS = {"serious", "critical"}
SEATS = {"light": "A-9", "dark on a phone": "B-9"}
# Pages that have between them everything that could look wrong in the dark or on a phone.
LIKELY = {"start", "event", "held", "tickets", "taken", "stampede"}
# Without motion, so that no colour is measured on its way to another.
STILL = {"reduced_motion": "reduce"}
LOOKS: dict[str, dict[str, Any]] = {"light": STILL, "dark on a phone": {**STILL, **PHONE, "color_scheme": "dark"}}


@pytest.fixture(scope="module")
def server(postgres: str) -> Iterator[Server]:
    with fresh_database(postgres) as url, running_server(url, workers=1, HOLDFAST_DEMO="true") as server:
        yield server


@pytest.fixture(scope="module")
def event(admin: httpx.Client) -> str:
    return publish_event(admin, reviewed_event())


@pytest.fixture(scope="module")
def org(server: Server) -> Org:
    """An org with a known slug, for the addresses of its pages."""
    return Org(server.database_url, "acme")


@pytest.fixture(scope="module")
def browser(event: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def faults(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{fault['id']}: {fault['nodes'][0]['html']}" for fault in found if fault["impact"] in SERIOUS]


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_serious_is_found_on_any_page(
    browser: Browser, server: Server, admin: httpx.Client, event: str, look: str
) -> None:
    context = browser.new_context(**LOOKS[look])
    someone = BrowserBuyer(context.new_page(), server.url)
    page = someone.page
    found: dict[str, list[str]] = {}

    def check(name: str, lead_to: Callable[[], object]) -> None:
        lead_to()
        if look == "light" or name in LIKELY:
            found[name] = faults(page)

    check("start", lambda: page.goto(server.url))
    check("event", lambda: someone.open_event(event))
    check("seats as a list", lambda: page.get_by_role("button", name="Show as list").click())
    check("sorry", lambda: page.goto(f"{server.url}/e/nothing"))
    check("no bookings", lambda: page.goto(f"{server.url}/o/acme/bookings"))
    check("stampede", lambda: page.goto(f"{server.url}/e/{event}/stampede"))
    check("docs", lambda: page.goto(f"{server.url}/docs"))
    check("chosen", lambda: choose(someone, event))
    check("held", someone.hold)
    check("submitted", lambda: hand_in(page))
    expect_ok(admin.post(f"/v1/bookings/{someone.booking}/approve"))
    check("tickets", lambda: someone.expect_text("You're in!"))
    check("bookings", lambda: page.goto(f"{server.url}/o/acme/bookings"))
    check("taken", lambda: refused(someone, admin, event, SEATS[look]))
    check("checkout", lambda: checkout(someone, event))
    context.close()
    assert {name: faults for name, faults in found.items() if faults} == {}


def choose(someone: BrowserBuyer, event: str) -> None:
    someone.open_event(event)
    someone.page.get_by_role("button", name="Add one: child").click()


def hand_in(page: Page) -> None:
    receipt = page.get_by_label("Pay by bank transfer")
    receipt.set_input_files({"name": "r.png", "mimeType": "image/png", "buffer": TINY_PNG})
    page.get_by_role("button", name="Send receipt", exact=True).click()
    page.get_by_text("We're checking your receipt").wait_for()


def refused(someone: BrowserBuyer, admin: httpx.Client, event: str, seat: str) -> None:
    someone.open_event(event)
    someone.page.evaluate("seat => document.getElementById('map').map.select(seat, true)", seat)
    expect_ok(post_hold(admin, event, items=[{"seat": seat}]), 201)
    someone.expect_text("These seats nearby are still free")


def checkout(someone: BrowserBuyer, event: str) -> None:
    choose(someone, event)
    someone.hold()
    someone.page.locator(".way").click()
    someone.page.wait_for_url("**/sandbox/checkout/**")


def test_a_page_with_faults_would_be_found(browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_content("<html><img src=x><input></html>")
    assert faults(page)
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
  const seen = read(Math.round(x * scale) - 8, Math.round(y * scale) - 8, 16);
  return {background, differing: seen.filter(colour => colour !== background).length};
}"""


def test_the_seats_are_visible_in_colours_that_the_system_forces(
    browser: Browser, server: Server, admin: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)
    context = browser.new_context(reduced_motion="reduce", forced_colors="active")
    someone = BrowserBuyer(context.new_page(), server.url)
    someone.open_event(event)
    someone.expect_seat("A-1", "held")
    for seat in ("A-1", "A-2"):
        colours = someone.page.evaluate(SEAT_COLOURS, seat)
        assert colours["background"] == "255,255,255"
        assert colours["differing"] > 30
    context.close()


def test_a_stampede_is_started_and_watched_on_its_page(browser: Browser, server: Server, admin: httpx.Client) -> None:
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
def test_a_stampede_that_is_out_of_range_is_refused_with_the_range(
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
