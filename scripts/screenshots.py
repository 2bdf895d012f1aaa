"""Take the pictures in `docs/screenshots/` of the demo in a real browser. `make screenshots` runs this."""

import io
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page
from tests.support.browser import chromium
from tests.support.browser_buyer import PHONE
from tests.support.harness import Server, fresh_database, post_hold, run_with_connection, running_server, start_postgres

from holdfast import sql
from holdfast.demo.data import ORG, fill_demo
from holdfast.runtime.credentials import Role, create_key
from holdfast.runtime.db import Connection, Database

FOLDER = Path(__file__).parent.parent / "docs" / "screenshots"
DESKTOP = {"viewport": {"width": 1280, "height": 860}}
DARK = {**DESKTOP, "color_scheme": "dark"}
TALL = {"viewport": {"width": 1280, "height": 1180}}
COLOURS = 256


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with running_demo() as (server, admin), chromium() as browser:
        listed = admin.get("/v1/events").json()["items"]
        events = {event["preset"]: event["id"] for event in listed if event["series"] is None}
        series = next(event["series"] for event in listed if event["series"] is not None)
        fill_hall(admin, events["show"])
        take_screenshot(browser, "start", DESKTOP, lambda page: page.goto(server.url))
        take_screenshot(browser, "hall", DESKTOP, lambda page: choose_seats(page, server, events["show"]))
        take_screenshot(browser, "hall-dark", DARK, lambda page: choose_seats(page, server, events["show"]))
        take_screenshot(browser, "series", DESKTOP, lambda page: page.goto(f"{server.url}/s/{series}"))
        take_screenshot(browser, "shift", PHONE, lambda page: open_event(page, server, events["shift"]))
        take_screenshot(browser, "receipt", PHONE, lambda page: take_place(page, server, events["shift"]))
        take_screenshot(browser, "registration", DESKTOP, lambda page: open_event(page, server, events["registration"]))
        take_screenshot(browser, "tour", DESKTOP, lambda page: choose_tour(page, server, events["experience"]))
        take_screenshot(browser, "tour-phone", PHONE, lambda page: choose_tour(page, server, events["experience"]))
        take_screenshot(browser, "opening", DESKTOP, lambda page: await_opening(page, server, admin, events["arena"]))
        take_screenshot(browser, "hold", PHONE, lambda page: hold_best_seats(page, server, events["show"]))
        take_screenshot(browser, "ticket", PHONE, lambda page: buy_ticket(page, server, events["show"]))
        take_screenshot(browser, "stampede", TALL, lambda page: start_stampede(page, server, events["arena"]))


@contextmanager
def running_demo() -> Iterator[tuple[Server, httpx.Client]]:
    with fresh_database(start_postgres()) as url, running_server(url, worker=True, HOLDFAST_DEMO="true") as server:
        run_with_connection(lambda connection: fill_demo(Database(connection)), url)
        with server.client({"Authorization": f"Bearer {run_with_connection(create_admin_key, url)}"}) as admin:
            yield server, admin


async def create_admin_key(connection: Connection) -> str:
    org = await connection.fetchval(sql.credentials.org_by_slug, ORG)
    return await create_key(Database(connection), org, Role.ADMIN)


def fill_hall(admin: httpx.Client, event: str) -> None:
    """Sell as many seats as on the first day of sales, the same ones in each run."""
    rng = random.Random(7)
    for number in range(140):
        best = {
            "pool": rng.choice(["stalls", "stalls", "circle", "gallery"]),
            "quantity": rng.choice([1, 2, 2, 3, 4]),
            "tariff": "full",
        }
        booking = post_hold(admin, event, user=f"visitor-{number}", best_available=best).json()
        if number % 3:
            admin.post(f"/v1/bookings/{booking['id']}/confirm")


def open_event(page: Page, server: Server, event: str) -> None:
    page.goto(f"{server.url}/e/{event}")
    page.locator("#live:not(.live--lost)").wait_for()


def choose_seats(page: Page, server: Server, event: str) -> None:
    open_event(page, server, event)
    page.evaluate("['S13-25', 'S13-26'].forEach(seat => document.getElementById('map').map.select(seat, true))")


def take_place(page: Page, server: Server, event: str) -> None:
    open_event(page, server, event)
    page.get_by_label("Name").fill("Ada Lovelace")
    page.get_by_label("Phone").fill("+34 611 222 333")
    page.get_by_role("button", name="Take this place").click()
    page.wait_for_url("**/b/*")


def choose_tour(page: Page, server: Server, event: str) -> None:
    open_event(page, server, event)
    page.locator("[data-slot$='-1600']").click()
    page.get_by_role("button", name="Add one: Adult").click()
    page.get_by_role("button", name="Add one: Child").click()
    page.evaluate("scrollTo(0, 0)")


def await_opening(page: Page, server: Server, admin: httpx.Client, event: str) -> None:
    opens_at = datetime.now(UTC) + timedelta(days=2, hours=3, minutes=12)
    admin.patch(f"/v1/events/{event}", json={"sales_open_at": opens_at.isoformat()}).raise_for_status()
    page.goto(f"{server.url}/e/{event}")
    page.locator("[data-opens]").wait_for()
    admin.patch(f"/v1/events/{event}", json={"sales_open_at": None}).raise_for_status()


def hold_best_seats(page: Page, server: Server, event: str) -> None:
    open_event(page, server, event)
    page.get_by_label("Area").select_option("circle")
    page.get_by_role("button", name="Get the best seats").click()
    page.wait_for_url("**/b/*")


def buy_ticket(page: Page, server: Server, event: str) -> None:
    hold_best_seats(page, server, event)
    page.locator(".way").click()
    page.get_by_role("button", name="Pay", exact=False).first.click()
    page.locator(".ticket").first.wait_for()


def start_stampede(page: Page, server: Server, event: str) -> None:
    page.goto(f"{server.url}/e/{event}/stampede")
    page.get_by_role("button", name="Start the stampede").click()
    page.wait_for_function("() => document.querySelector('#run progress').value > .3", timeout=180_000)


def take_screenshot(browser: Browser, name: str, options: dict[str, Any], open_page: Callable[[Page], object]) -> None:
    context = browser.new_context(**{"locale": "en-GB", "device_scale_factor": 1.5, **options})
    page = context.new_page()
    open_page(page)
    # Wait for pictures and the map.
    page.wait_for_timeout(1_000)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        FOLDER / f"{name}.png", optimize=True
    )
    context.close()


if __name__ == "__main__":
    main()
