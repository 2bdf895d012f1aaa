"""Take the pictures in `docs/screenshots/` of the demo in a real browser. `make screenshots` runs this."""

import io
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    with running_demo() as (server, sales), chromium() as browser:
        events = {event["preset"]: event["id"] for event in sales.get("/v1/events").json()["items"]}
        fill_hall(sales, events["show"])
        take_screenshot(browser, "start", DESKTOP, lambda page: page.goto(server.url))
        take_screenshot(browser, "hall", DESKTOP, lambda page: choose_seats(page, server, events["show"]))
        take_screenshot(browser, "hall-dark", DARK, lambda page: choose_seats(page, server, events["show"]))
        take_screenshot(browser, "places", DESKTOP, lambda page: open_event(page, server, events["experience"]))
        take_screenshot(browser, "hold", PHONE, lambda page: hold_best_seats(page, server, events["show"]))
        take_screenshot(browser, "ticket", PHONE, lambda page: buy_ticket(page, server, events["show"]))
        take_screenshot(browser, "stampede", TALL, lambda page: start_stampede(page, server, events["arena"]))


@contextmanager
def running_demo() -> Iterator[tuple[Server, httpx.Client]]:
    with fresh_database(start_postgres()) as url, running_server(url, worker=True, HOLDFAST_DEMO="true") as server:
        run_with_connection(lambda connection: fill_demo(Database(connection)), url)
        with server.client({"Authorization": f"Bearer {run_with_connection(create_sales_key, url)}"}) as sales:
            yield server, sales


async def create_sales_key(connection: Connection) -> str:
    org = await connection.fetchval(sql.credentials.org_by_slug, ORG)
    return await create_key(Database(connection), org, Role.SALES)


def fill_hall(sales: httpx.Client, event: str) -> None:
    """Sell as many seats as on the first day of sales, the same ones in each run."""
    rng = random.Random(7)
    for number in range(140):
        best = {
            "pool": rng.choice(["stalls", "stalls", "circle", "gallery"]),
            "quantity": rng.choice([1, 2, 2, 3, 4]),
            "tariff": "full",
        }
        booking = post_hold(sales, event, user=f"visitor-{number}", best_available=best).json()
        if number % 3:
            sales.post(f"/v1/bookings/{booking['id']}/confirm")


def open_event(page: Page, server: Server, event: str) -> None:
    page.goto(f"{server.url}/e/{event}")
    page.locator("#live:not(.live--lost)").wait_for()


def choose_seats(page: Page, server: Server, event: str) -> None:
    open_event(page, server, event)
    page.evaluate("['S13-25', 'S13-26'].forEach(seat => document.getElementById('map').map.select(seat, true))")


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
