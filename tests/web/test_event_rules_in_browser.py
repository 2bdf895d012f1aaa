"""The rules of an event in real browsers: the calendar, the countdown, questions, and one's own seats."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Request, expect

from tests.support.browser import chromium
from tests.support.browser_buyer import PHONE, WAIT_MS, BrowserBuyer, browser_buyer
from tests.support.harness import Server, example_event, post_hold, publish_event
from tests.support.http_assertions import expect_ok
from tests.web.test_accessibility import find_violations

# An hour fast, like the clock of a device that missed the end of summer time.
FAST_CLOCK = "const now = Date.now; Date.now = () => now() + 3_600_000;"
UNIT = {"code": "guest", "label": "Who is coming?", "per": "unit", "required": True}
GLASSES = {"code": "glasses", "label": "Glasses?", "kind": "yes_no", "per": "unit"}


@pytest.fixture(scope="module")
def server(product: Server) -> Server:
    return product


@pytest.fixture(scope="module")
def browser(admin: httpx.Client) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def seconds_from_now(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def hall_event(**changes: Any) -> dict[str, Any]:
    pool = {
        "code": "hall",
        "name": "Hall",
        "tariffs": [{"code": "full", "name": "Full", "price": 3000}],
        "seats": {"rows": list("AB"), "numbers": 10},
    }
    return example_event(**{"pools": [pool], **changes})


def tour_event(days: int = 20, **changes: Any) -> dict[str, Any]:
    """Two slots a day, at ten and at noon."""
    tariffs = [{"code": "adult", "name": "Adult", "price": 1000}, {"code": "child", "name": "Child", "price": 500}]
    start = datetime(2027, 3, 25, 10, tzinfo=UTC)
    pools = [
        {
            "code": f"d{day}-{hour}",
            "name": f"Tour of day {day}",
            "capacity": 4,
            "starts_at": (start + timedelta(days=day, hours=hour)).isoformat(),
            "tariffs": tariffs,
        }
        for day in range(days)
        for hour in (0, 2)
    ]
    return example_event(**{"pools": pools, "tax_bps": 0, **changes})


def ignore_refusals(buyer: BrowserBuyer) -> None:
    """The console reports every answer that is not a success."""
    buyer.errors = [error for error in buyer.errors if "(Conflict)" not in error and "(Unprocessable" not in error]


def test_a_buyer_finds_a_slot_in_the_calendar(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, tour_event())
    with browser_buyer(browser, server, **PHONE) as ann:
        ann.open_event(event)
        page = ann.page
        expect(page.locator("#calendar h3")).to_have_text("Thursday, March 25, 2027")
        page.get_by_role("button", name="Friday, March 26, 2027").click()
        page.get_by_role("button", name="10:00").click()
        page.get_by_role("button", name="Add one: Adult").click()
        page.get_by_role("button", name="Add one: Child").click()
        expect(page.locator("[data-total]")).to_have_text("€15.00")
        page.get_by_role("button", name="Next month").click()
        expect(page.locator("#calendar h3")).to_have_text("Thursday, April 1, 2027")
        page.get_by_role("button", name="12:00").click()
        expect(page.locator("[data-picks]")).to_contain_text("1 \u00d7 Adult")
        expect(page.locator("[data-total]")).to_have_text("€15.00")
        page.reload()
        expect(page.locator("#calendar h3")).to_have_text("Thursday, April 1, 2027")
        page.get_by_role("button", name="Add one: Adult").click()
        ann.hold()
        (item,) = expect_ok(admin.get(f"/v1/bookings/{ann.booking}"))["items"]
        assert (item["pool"], item["tariff"], item["quantity"]) == ("d7-2", "adult", 1)


def test_the_calendar_knows_months_that_the_browser_does_not(
    browser: Browser, server: Server, admin: httpx.Client
) -> None:
    """Chromium has no names of months in Uzbek, and would write numbers as in English."""
    event = publish_event(admin, tour_event())
    with browser_buyer(browser, server) as buyer:
        page = buyer.page
        page.goto(f"{server.url}/e/{event}?lang=uz")
        page.get_by_role("button", name="Keyingi oy").click()
        expect(page.locator("#calendar h3")).to_have_text("payshanba, 1-aprel, 2027")
        expect(page.locator("#calendar")).to_contain_text("Aprel, 2027")


def test_the_calendar_follows_the_live_feed(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, tour_event(days=3))
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        first = ann.page.locator('[data-slot="d0-0"]')
        first.click()
        expect_ok(post_hold(admin, event, items=[{"pool": "d0-0", "tariff": "adult", "quantity": 3}]), 201)
        expect(first).to_contain_text("1 left")
        expect(ann.page.locator('[data-pool="d0-0"]')).to_contain_text("1 left")
        items = [{"pool": f"d0-{hour}", "tariff": "adult", "quantity": left} for hour, left in ((0, 1), (2, 4))]
        expect_ok(post_hold(admin, event, items=items), 201)
        expect(first).to_be_disabled()
        expect(first).to_contain_text("Sold out")
        day = ann.page.get_by_role("button", name="Thursday, March 25, 2027")
        expect(day).to_have_class("day day--out")


def test_a_slot_closes_while_its_page_is_open(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event_ = tour_event(days=2)
    event_["pools"][0] |= {"sales_close_at": seconds_from_now(4)}
    event_["pools"][1] |= {"sales_open_at": seconds_from_now(4)}
    event = publish_event(admin, event_)
    with browser_buyer(browser, server) as ann:
        ann.page.add_init_script(FAST_CLOCK)
        ann.open_event(event)
        closing, opening = (ann.page.locator(f'[data-slot="d0-{hour}"]') for hour in (0, 2))
        expect(closing).to_be_enabled()
        expect(opening).to_be_disabled()
        ann.page.get_by_label("Email").fill("ada@example.org")
        expect(closing).to_contain_text("Sales closed", timeout=WAIT_MS)
        expect(closing).to_be_disabled()
        expect(opening).to_be_enabled()
        expect(ann.page.get_by_label("Email")).to_have_value("ada@example.org")


def test_a_waiting_page_opens_when_the_server_says_so(browser: Browser, server: Server, admin: httpx.Client) -> None:
    """Each browser waits for a random part of three seconds. This one draws a half."""
    opens_at = time.time() + 3
    event = publish_event(admin, hall_event(sales_open_at=datetime.fromtimestamp(opens_at, UTC).isoformat()))
    with browser_buyer(browser, server) as ann:
        ann.page.add_init_script(FAST_CLOCK + "Math.random = () => 0.5;")
        loads: list[float] = []

        def record_load(request: Request) -> None:
            if request.is_navigation_request():
                loads.append(time.time())

        ann.page.on("request", record_load)
        ann.page.goto(f"{server.url}/e/{event}")
        expect(ann.page.locator("[data-opens]")).to_contain_text("00:00:0")
        assert ann.page.locator("#order").count() == 0
        expect(ann.page.locator("#order")).to_be_visible(timeout=WAIT_MS)
        ann.expect_seat("A-5", "free")
        assert len(loads) == 2, "the page loads again once, and not before sales are open"
        assert loads[1] > opens_at + 1.4
        ann.click_seat("A-5")
        ann.hold()


def test_an_open_page_closes_when_sales_close(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event(sales_close_at=seconds_from_now(3)))
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        ann.expect_text("Sales have closed.")


def test_questions_about_tickets_follow_the_choice(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event(questions=[UNIT, GLASSES], contact={"phone": "required"}))
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        page = ann.page
        groups = page.locator("[data-unit]")
        expect(groups).to_have_count(0)
        for seat in ("A-5", "A-6", "A-7"):
            ann.click_seat(seat)
            group = page.get_by_role("group", name=f"· {seat}")
            group.get_by_label("Who is coming?").fill(f"Guest on {seat}")
            group.get_by_label("No" if seat == "A-6" else "Yes", exact=True).check()
        page.get_by_role("button", name="Remove A-5").click()
        expect(groups.locator("legend").first).to_have_text("Ticket 1 · A-6")
        ann.click_seat("B-1")
        page.locator("[data-submit]").click()
        ann.expect_text("Please fill in the marked fields.")
        phone = page.get_by_label("Phone")
        expect(phone).to_be_focused()
        expect(phone).to_have_attribute("aria-invalid", "true")
        last = page.get_by_role("group", name="Ticket 3 · B-1").get_by_label("Who is coming?")
        expect(last).to_have_attribute("aria-invalid", "true")
        assert find_violations(page) == []
        last.fill("Cy")
        expect(last).not_to_have_attribute("aria-invalid", "true")
        phone.fill("+34 (911) 234-567")
        ann.hold()
        ignore_refusals(ann)
        booking = expect_ok(admin.get(f"/v1/bookings/{ann.booking}"))
        assert [item["seat"] for item in booking["items"]] == ["A-6", "A-7", "B-1"]
        assert booking["answers"] == {"guest": ["Guest on A-6", "Guest on A-7", "Cy"], "glasses": [False, True, None]}
        assert booking["contact"]["phone"] == "+34911234567"


def test_the_best_seats_come_with_questions_and_a_check(browser: Browser, server: Server, admin: httpx.Client) -> None:
    policy = {"guest_check": "work", "guest_check_bits": 8}
    event = publish_event(admin, hall_event(questions=[UNIT], contact={"name": "required"}, policy=policy))
    with browser_buyer(browser, server, **PHONE) as ann:
        ann.open_event(event)
        page = ann.page
        page.get_by_label("Name").fill("Ada")
        page.get_by_role("button", name="Get the best seats").click()
        page.wait_for_url("**/hold")
        ann.expect_text("Almost there")
        expect(page.get_by_label("Name")).to_have_value("Ada")
        page.get_by_role("group", name="Ticket 1").get_by_label("Who is coming?").fill("Ada")
        page.locator("[data-submit]").click()
        ann.expect_text("Please answer the marked questions.")
        assert find_violations(page) == []
        page.get_by_role("group", name="Ticket 2").get_by_label("Who is coming?").fill("Ben")
        ann.hold()
        ignore_refusals(ann)
        booking = expect_ok(admin.get(f"/v1/bookings/{ann.booking}"))
        assert (booking["answers"], booking["contact"]["name"]) == ({"guest": ["Ada", "Ben"]}, "Ada")


def test_a_seat_that_the_same_buyer_took_in_another_tab_leads_to_their_booking(
    browser: Browser, server: Server, admin: httpx.Client
) -> None:
    event = publish_event(admin, hall_event())
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        tab = BrowserBuyer(ann.page.context.new_page(), server.url)
        tab.open_event(event)
        for each in (ann, tab):
            each.click_seat("A-5")
        tab.click_seat("A-6")
        ann.hold()
        tab.expect_text("You already hold A-5.")
        assert "someone" not in tab.page.locator("#problem").inner_text()
        assert tab.chosen_seats() == ["A-6"]
        tab.expect_seat("A-5", "mine")
        tab.page.get_by_role("link", name="Continue to payment").click()
        tab.page.wait_for_url(f"**/b/{ann.booking}")
        assert tab.errors == []


def test_a_seat_that_somebody_else_took_keeps_its_text(browser: Browser, server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event())
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        ann.click_seat("A-5")
        expect_ok(post_hold(admin, event, items=[{"seat": "A-5"}]), 201)
        ann.expect_text("Sorry, someone just took A-5.")


def test_steppers_keep_to_the_number_of_units_of_a_booking(
    browser: Browser, server: Server, admin: httpx.Client
) -> None:
    pool = {"code": "table", "capacity": 50, "tariffs": [{"code": "a", "price": 100}, {"code": "b", "price": 100}]}
    event = publish_event(admin, example_event(pools=[pool], policy={"min_units": 2, "max_units": 3}))
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        more = [ann.page.get_by_role("button", name=f"Add one: {code}") for code in "ab"]
        submit = ann.page.locator("[data-submit]")
        more[0].click()
        expect(submit).to_be_disabled()
        more[1].click()
        expect(submit).to_be_enabled()
        more[1].click()
        for button in more:
            expect(button).to_be_disabled()
        ann.hold()
        assert sum(item["quantity"] for item in expect_ok(admin.get(f"/v1/bookings/{ann.booking}"))["items"]) == 3


def test_seats_of_a_pool_that_opens_later_are_not_for_sale_until_then(
    browser: Browser, server: Server, admin: httpx.Client
) -> None:
    event_ = hall_event()
    event_["pools"].append(
        {"code": "box", "seats": {"rows": ["Z"], "numbers": 4}, "sales_open_at": seconds_from_now(4)}
    )
    event = publish_event(admin, event_)
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        assert ann.seat_state("Z-1") == "blocked"
        ann.click_seat("A-5")
        ann.expect_seat("Z-1", "free")
        assert ann.chosen_seats() == ["A-5"]


def test_a_form_that_was_sent_without_scripts_keeps_its_seats(
    browser: Browser, server: Server, admin: httpx.Client
) -> None:
    event = publish_event(admin, hall_event(contact={"name": "required"}))
    with browser_buyer(browser, server) as ann:
        ann.open_event(event)
        ann.click_seat("A-5")
        ann.page.evaluate("HTMLFormElement.prototype.submit.call(document.getElementById('order'))")
        ann.page.wait_for_url("**/hold")
        ann.expect_text("Please fill in the marked fields.")
        expect(ann.page.locator("[data-picks] strong")).to_have_text("A-5")
        ann.page.get_by_label("Name").fill("Ada")
        ann.hold()
        ignore_refusals(ann)


@pytest.mark.parametrize("look", [{}, {**PHONE, "color_scheme": "dark"}], ids=["light", "dark on a phone"])
def test_the_pages_of_rules_are_accessible(
    browser: Browser, server: Server, admin: httpx.Client, look: dict[str, Any]
) -> None:
    shift = {"work_time": "06:00", "salary": 100, "additional_info": "Bring gloves."}
    places = [{"code": code, "capacity": 3} for code in ("one", "two")]
    events = [
        tour_event(),
        tour_event(days=3),
        example_event(preset="shift", shift=shift, pools=places, contact={"phone": "required"}),
        hall_event(sales_open_at="2027-03-01T10:00:00Z"),
        hall_event(sales_close_at="2026-01-01T10:00:00Z"),
    ]
    with browser_buyer(browser, server, reduced_motion="reduce", **look) as ann:
        for event in events:
            ann.page.goto(f"{server.url}/e/{publish_event(admin, event)}")
            ann.page.locator(".live:not(.live--lost), [data-opens]:not([hidden]), .notice").first.wait_for()
            if ann.page.locator("button.slot").count():
                ann.page.locator("button.slot").first.click()
            assert find_violations(ann.page) == []
            assert ann.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
