"""The pictures in `docs/screenshots/`: `make screenshots` takes them anew of the demo, in a real browser."""

import io
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page
from tests.support.browser import chromium
from tests.support.browser_buyer import PHONE
from tests.support.harness import Server, fresh_database, make_template, post_hold, run_with_connection, running_server

from holdfast import sql
from holdfast.demo.data import ORG, fill_demo
from holdfast.runtime import embedded
from holdfast.runtime.credentials import Role, create_key
from holdfast.runtime.db import Connection, Database

FOLDER = Path(__file__).parent.parent / "docs" / "screenshots"
DESKTOP = {"viewport": {"width": 1280, "height": 860}}
DARK = {**DESKTOP, "color_scheme": "dark"}
TALL = {"viewport": {"width": 1280, "height": 1180}}
COLOURS = 256


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with demo() as (server, sales), chromium() as browser:
        events = {event["preset"]: event["id"] for event in sales.get("/v1/events").json()["items"]}
        crowd(sales, events["show"])
        take(browser, "start", DESKTOP, lambda page: page.goto(server.url))
        take(browser, "hall", DESKTOP, lambda page: choose(page, server, events["show"]))
        take(browser, "hall-dark", DARK, lambda page: choose(page, server, events["show"]))
        take(browser, "places", DESKTOP, lambda page: look(page, server, events["experience"]))
        take(browser, "hold", PHONE, lambda page: held(page, server, events["show"]))
        take(browser, "ticket", PHONE, lambda page: bought(page, server, events["show"]))
        take(browser, "stampede", TALL, lambda page: stampede(page, server, events["arena"]))


@contextmanager
def demo() -> Iterator[tuple[Server, httpx.Client]]:
    with tempfile.TemporaryDirectory() as folder:
        postgres = embedded.start(Path(folder))
        make_template(postgres)
        with fresh_database(postgres) as url, running_server(url, worker=True, HOLDFAST_DEMO="true") as server:
            run_with_connection(lambda connection: fill_demo(Database(connection)), url)
            with server.client({"Authorization": f"Bearer {run_with_connection(sales_key, url)}"}) as sales:
                yield server, sales


async def sales_key(connection: Connection) -> str:
    org = await connection.fetchval(sql.credentials.org_by_slug, ORG)
    return await create_key(Database(connection), org, Role.SALES)


def crowd(sales: httpx.Client, event: str) -> None:
    """Fill the hall as on the first day of sales, the same way in each run."""
    chance = random.Random(7)
    for number in range(140):
        best = {
            "pool": chance.choice(["stalls", "stalls", "circle", "gallery"]),
            "quantity": chance.choice([1, 2, 2, 3, 4]),
            "tariff": "full",
        }
        booking = post_hold(sales, event, user=f"visitor-{number}", best_available=best).json()
        if number % 3:
            sales.post(f"/v1/bookings/{booking['id']}/confirm")


def look(page: Page, server: Server, event: str) -> None:
    page.goto(f"{server.url}/e/{event}")
    page.locator("#live:not(.live--lost)").wait_for()


def choose(page: Page, server: Server, event: str) -> None:
    look(page, server, event)
    page.evaluate("['S13-25', 'S13-26'].forEach(seat => document.getElementById('map').map.select(seat, true))")


def held(page: Page, server: Server, event: str) -> None:
    look(page, server, event)
    page.get_by_label("Area").select_option("circle")
    page.get_by_role("button", name="Get the best seats").click()
    page.wait_for_url("**/b/*")


def bought(page: Page, server: Server, event: str) -> None:
    held(page, server, event)
    page.locator(".way").click()
    page.get_by_role("button", name="Pay", exact=False).first.click()
    page.locator(".ticket").first.wait_for()


def stampede(page: Page, server: Server, event: str) -> None:
    page.goto(f"{server.url}/e/{event}/stampede")
    page.get_by_role("button", name="Start the stampede").click()
    page.wait_for_function("() => document.querySelector('#run progress').value > .3", timeout=180_000)


def take(browser: Browser, name: str, options: dict[str, Any], lead_to: Callable[[Page], object]) -> None:
    context = browser.new_context(**{"locale": "en-GB", "device_scale_factor": 1.5, **options})
    page = context.new_page()
    lead_to(page)
    # Wait for pictures and the map.
    page.wait_for_timeout(1_000)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        FOLDER / f"{name}.png", optimize=True
    )
    context.close()


if __name__ == "__main__":
    main()
