"""Buying in real browsers: a live map, a countdown, faster buyers, and a ticket at the end."""

import io
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import zxingcpp
from PIL import Image
from playwright.sync_api import Browser, FilePayload, WebSocketRoute, expect

from holdfast.api.receipt_upload import FILE_BYTES_MAX
from tests.support.browser import chromium
from tests.support.browser_buyer import PHONE, WAIT_MS, browser_buyer, foreign_site
from tests.support.harness import (
    Org,
    Server,
    example_event,
    post_hold,
    publish_event,
    running_server,
    running_server_on,
)
from tests.support.http_assertions import expect_ok
from tests.support.resources import TINY_PNG


@pytest.fixture(scope="module")
def server(product: Server) -> Server:
    return product


@pytest.fixture(scope="module")
def browser(admin: httpx.Client) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def hall_event(**changes: Any) -> dict[str, Any]:
    """Four rows of ten seats."""
    pool = {
        "code": "hall",
        "name": "Hall",
        "tariffs": [{"code": "full", "name": "Full", "price": 3000}, {"code": "half", "name": "Half", "price": 1500}],
        "seats": {"rows": list("ABCD"), "numbers": 10},
    }
    return example_event(pools=[pool], **changes)


def test_seats_bought_in_one_browser_change_state_in_another(
    browser: Browser, server: Server, admin: httpx.Client
) -> None:
    event = publish_event(admin, hall_event())
    with browser_buyer(browser, server) as ann, browser_buyer(browser, server) as ben:
        ben.open_event(event)
        ann.open_event(event)
        ann.click_seat("A-5")
        ann.click_seat("A-6")
        assert ann.chosen_seats() == ["A-5", "A-6"]
        ann.page.get_by_label("Ticket type for A-6").select_option("half")
        expect(ann.page.locator("[data-total]")).to_have_text("€53.55")
        ann.hold()
        ann.expect_text("We're holding 2 spots for you")
        ben.expect_seat("A-5", "held")
        ben.expect_seat("A-6", "held")
        ann.pay()
        ann.expect_text("You're in!")
        ben.expect_seat("A-5", "sold")
        ann.page.go_back()
        ann.open_event(event)
        assert [ann.seat_state(seat) for seat in ("A-5", "A-6", "A-7")] == ["mine", "mine", "free"]


def test_the_qr_code_of_a_ticket_is_its_code(browser: Browser, server: Server, admin: httpx.Client, org: Org) -> None:
    event = publish_event(admin, hall_event())
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        ann.click_seat("B-2")
        ann.hold()
        ann.pay()
        ann.expect_text("You're in!")
        picture = ann.page.locator(".ticket__qr img").screenshot()
        (read,) = zxingcpp.read_barcodes(Image.open(io.BytesIO(picture)))
        tickets: Any = expect_ok(admin.get(f"/v1/bookings/{ann.booking}/tickets"))
        assert [ticket["code"] for ticket in tickets] == [read.text]
        link = ann.page.get_by_role("link", name="PDF").get_attribute("href")
        pdf = ann.page.request.get(f"{server.url}{link}")
        assert pdf.headers["content-type"] == "application/pdf"
        assert pdf.body().startswith(b"%PDF")
    door = httpx.post(
        f"{server.url}/v1/checkins", json={"code": read.text}, headers=org.headers("door"), timeout=30, verify=False
    )
    assert expect_ok(door)["seat"] == "B-2"


def test_an_expired_hold_is_free_again_in_both_browsers(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event(policy={"hold_seconds": 4}))
    with browser_buyer(browser, server) as ann, browser_buyer(browser, server) as ben:
        ben.open_event(event)
        ann.open_event(event)
        ann.click_seat("C-1")
        ann.hold()
        ben.expect_seat("C-1", "held")
        ann.expect_text("Your time ran out")
        ben.expect_seat("C-1", "free")
        ann.page.get_by_role("link", name="Book again").click()
        ann.expect_seat("C-1", "free")


def test_a_buyer_gets_the_best_seats(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event())
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        ann.page.get_by_label("How many").select_option("3")
        ann.page.get_by_role("button", name="Get the best seats").click()
        ann.page.wait_for_url("**/b/*")
        ann.expect_text("We're holding 3 spots for you")
        seats = [item["seat"] for item in expect_ok(admin.get(f"/v1/bookings/{ann.booking}"))["items"]]
        assert {seat.partition("-")[0] for seat in seats} == {"A"}


def test_the_slower_of_two_buyers_is_offered_other_seats(browser: Browser, server: Server, admin: httpx.Client) -> None:
    """The live feed is cut off in the slower browser."""
    event = publish_event(admin, hall_event())
    with browser_buyer(browser, server) as ann, browser_buyer(browser, server) as ben:
        is_cut: list[bool] = []

        def relay(socket: WebSocketRoute) -> None:
            feed = socket.connect_to_server()
            feed.on_message(lambda message: None if is_cut else socket.send(message))

        ben.page.route_web_socket("**/live", relay)
        ben.open_event(event)
        ann.open_event(event)
        is_cut.append(True)
        ben.click_seat("D-4")
        ann.click_seat("D-4")
        ann.hold()
        ben.page.locator("[data-submit]").click()
        ben.expect_text("Sorry, someone just took D-4.")
        offered = ben.page.locator("[data-nearby] button")
        assert set(offered.all_inner_texts()) <= {f"{row}-{number}" for row in "CD" for number in range(2, 7)}
        first = offered.first.inner_text()
        offered.first.click()
        assert ben.chosen_seats() == [first]
        ben.hold()
        ben.errors = [text for text in ben.errors if "409" not in text]


def test_a_buyer_who_loses_a_chosen_seat_keeps_the_others(
    browser: Browser, server: Server, admin: httpx.Client
) -> None:
    event = publish_event(admin, hall_event())
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        ann.click_seat("A-1")
        ann.click_seat("A-2")
        expect_ok(post_hold(admin, event, items=[{"seat": "A-1", "tariff": "full"}]), 201)
        ann.expect_text("Sorry, someone just took A-1.")
        assert ann.chosen_seats() == ["A-2"]


def test_a_receipt_has_a_preview_and_its_approval_updates_the_page(
    browser: Browser, server: Server, admin: httpx.Client
) -> None:
    places = {"code": "workers", "name": "Workers", "capacity": 3, "tariffs": [{"code": "fee", "price": 500}]}
    event = publish_event(admin, example_event(preset="shift", pools=[places]))
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        ann.hold()
        receipt: FilePayload = {"name": "receipt.png", "mimeType": "image/png", "buffer": TINY_PNG}
        choice = ann.page.get_by_label("Pay by bank transfer")
        send = ann.page.get_by_role("button", name="Send receipt", exact=True)
        choice.set_input_files({**receipt, "buffer": bytes(FILE_BYTES_MAX + 1)})
        ann.expect_text("That file is too large")
        expect(send).to_be_disabled()
        choice.set_input_files(receipt)
        expect(ann.page.get_by_alt_text("Receipt preview")).to_be_visible()
        ann.expect_text("receipt.png")
        send.click()
        ann.expect_text("We're checking your receipt")
        expect_ok(admin.post(f"/v1/bookings/{ann.booking}/approve"))
        ann.expect_text("You're in!")


def test_a_page_misses_no_change_across_a_server_restart(browser: Browser, server: Server, admin: httpx.Client) -> None:
    """Another server on the same database makes the changes."""
    event = publish_event(admin, hall_event())
    with running_server(server.database_url, workers=1) as one, browser_buyer(browser, one) as ann:
        ann.open_event(event)
        one.stop()
        ann.expect_text("Reconnecting")
        for seat in ("A-1", "A-2"):
            expect_ok(post_hold(admin, event, items=[{"seat": seat, "tariff": "full"}]), 201)
        with running_server_on(one.port, server.database_url, workers=1):
            ann.expect_text("38 free")
            assert [ann.seat_state(seat) for seat in ("A-1", "A-2", "A-3")] == ["held", "held", "free"]
            expect_ok(post_hold(admin, event, items=[{"seat": "A-3", "tariff": "full"}]), 201)
            ann.expect_text("37 free")
            ann.page.close()
        ann.errors = [text for text in ann.errors if "WebSocket" not in text]


def test_a_ticket_can_be_bought_with_the_keyboard_alone(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event())
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        press = ann.page.keyboard.press
        ann.page.locator("body").press("Tab")
        wait_for_focus(ann, ".seatmap-frame")
        press("ArrowRight")
        press("Enter")
        (seat,) = ann.chosen_seats()
        assert ann.seat_state(seat) == "free"
        wait_for_focus(ann, "[data-submit]")
        press("Enter")
        ann.page.wait_for_url("**/b/*")
        wait_for_focus(ann, ".way")
        press("Enter")
        ann.page.wait_for_url("**/sandbox/checkout/**")
        wait_for_focus(ann, "button")
        press("Enter")
        ann.expect_text("You're in!")


def wait_for_focus(ann: Any, selector: str) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(60):
        if ann.page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        ann.page.keyboard.press("Tab")
    raise AssertionError(f"the keyboard does not reach {selector}")


def test_a_ticket_can_be_bought_on_a_phone_in_spanish(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event(timezone="Europe/Madrid"))
    with browser_buyer(browser, server, **{**PHONE, "locale": "es-ES"}) as ann:
        ann.open_event(event)
        ann.expect_text("viernes, 5 de marzo de 2027, 20:00")
        ann.expect_text("En vivo · 40 libres")
        assert ann.page.evaluate("document.documentElement.scrollWidth") == 390
        position = ann.page.evaluate("document.getElementById('map').map.position('B-5')")
        ann.page.locator(".seatmap-frame").tap(position=position)
        if not ann.chosen_seats():
            position = ann.page.evaluate("document.getElementById('map').map.position('B-5')")
            ann.page.locator(".seatmap-frame").tap(position=position)
        assert ann.chosen_seats() == ["B-5"]
        ann.expect_text("35,70 €")
        ann.hold()
        ann.expect_text("Te guardamos 1 lugar")
        ann.pay()
        ann.expect_text("¡Listo! Ya tienes tu lugar")
        assert ann.page.evaluate("document.documentElement.scrollWidth") == 390
        ann.page.get_by_role("link", name="Mis reservas").click()
        ann.expect_text("Confirmada")


def test_a_second_tab_and_the_back_button_show_the_current_state(
    browser: Browser, server: Server, admin: httpx.Client
) -> None:
    event = publish_event(admin, hall_event())
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        ann.click_seat("A-1")
        ann.hold()
        tab = ann.page.context.new_page()
        tab.goto(ann.page.url)
        ann.page.go_back()
        ann.expect_text("1 spot held for you")
        assert ann.seat_state("A-1") == "mine"
        ann.page.get_by_role("link", name="Continue").click()
        tab.get_by_text("Release my spots").click()
        tab.get_by_role("button", name="Yes, release them").click()
        expect(tab.locator("h1")).to_have_text("Booking cancelled")
        ann.expect_text("This booking is no longer valid.")
        ann.open_event(event)
        assert ann.seat_state("A-1") == "free"


def test_a_buyer_can_extend_the_hold_near_its_end(browser: Browser, server: Server, admin: httpx.Client) -> None:
    policy = {"hold_seconds": 50, "extend_seconds": 300, "max_hold_seconds": 600}
    event = publish_event(admin, hall_event(policy=policy))
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        ann.click_seat("A-1")
        ann.hold()
        expect(ann.page.locator("#hold")).to_have_class("card hold hold--soon")
        ann.page.get_by_role("button", name="I need more time").click()
        expect(ann.page.locator("[data-countdown]")).to_contain_text("4:")


def test_pages_work_in_a_frame_of_an_allowed_site(browser: Browser, server: Server, admin: httpx.Client) -> None:
    """To the browser, the merchant's page and the embedded pages are different sites."""
    event = publish_event(admin, hall_event())
    token = expect_ok(admin.post("/v1/customer-tokens", json={"user": "ada"}), 201)["token"]
    with foreign_site() as (origin, pages), browser_buyer(browser, server) as ann:
        expect_ok(admin.patch("/v1/org", json={"frame_origins": [origin]}))
        pages.append(iframe_page(f"{server.url}/enter?token={token}&next=/e/{event}"))
        ann.page.goto(origin)
        frame = ann.page.frame_locator("iframe")
        expect(frame.locator("#live")).to_contain_text("40 free")
        frame.get_by_role("button", name="Get the best seats").click()
        expect(frame.locator("h1")).to_have_text("We're holding 2 spots for you")
        frame.locator(".way").click()
        with ann.page.context.expect_page() as opened:
            frame.get_by_role("link", name="Go to checkout").click()
        opened.value.get_by_role("button", name="Pay", exact=False).first.click()
        expect(frame.locator("h1")).to_have_text("You're in!", timeout=WAIT_MS)
    bookings = expect_ok(admin.get("/v1/bookings", params={"event": event}))["items"]
    assert [booking["user"] for booking in bookings] == ["ada"]


def test_a_frame_of_any_other_site_stays_empty(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event())
    with foreign_site() as (origin, pages), browser_buyer(browser, server) as ann:
        pages.append(iframe_page(f"{server.url}/e/{event}"))
        ann.page.goto(origin)
        expect(ann.page.frame_locator("iframe").locator("body")).to_be_attached()
        assert ann.page.frame_locator("iframe").locator("#live").count() == 0
        assert [text for text in ann.errors if "frame-ancestors" in text]
        ann.errors.clear()


def iframe_page(address: str) -> str:
    frame = f'<iframe src="{address}" width=1000 height=900>'
    return f'<!doctype html><title>Merchant</title><link rel=icon href="data:,">{frame}'
