"""A payment from start to end through the running product, with the sandbox's page in a real browser."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support import resources
from tests.support.browser import chromium, in_thread
from tests.support.harness import Org, Server, post_hold, query, wait_until
from tests.support.http_assertions import expect_ok
from tests.support.resources import booking_status, payment_state, start_checkout

LATE = {"hold_seconds": 2, "max_hold_seconds": 2, "late_grace_seconds": 60}


@pytest.fixture(scope="module")
def server(product: Server) -> Server:
    return product


@pytest.fixture(scope="module")
def clerk(server: Server) -> Iterator[httpx.Client]:
    with server.client(Org(server.database_url).headers("admin")) as client:
        yield client


@pytest.fixture(scope="module")
def browser(clerk: httpx.Client) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.set_default_timeout(15_000)
    yield page
    page.context.close()


def count_refunds(server: Server, payment: dict[str, Any]) -> int:
    count: int = in_thread(
        query, server.database_url, "SELECT count(*) FROM sandbox_refund WHERE ref = $1", payment["provider_ref"]
    )[0][0]
    return count


def test_a_buyer_who_pays_gets_a_confirmed_booking(clerk: httpx.Client, page: Page) -> None:
    booking, payment = start_checkout(clerk)
    page.goto(payment["checkout_url"])
    page.get_by_role("button", name="Pay €35.70").click()
    expect(page.get_by_role("heading", name="Thank you")).to_be_visible()
    wait_until(lambda: booking_status(clerk, booking) == "confirmed", 15)
    assert payment_state(clerk, payment) == ("succeeded", "fulfilled")
    assert len(resources.list_tickets(clerk, booking)) == 1


def test_a_payment_reported_twice_counts_once(server: Server, clerk: httpx.Client, page: Page) -> None:
    booking, payment = start_checkout(clerk)
    page.goto(payment["checkout_url"])
    page.get_by_role("button", name="Pay and send twice").click()
    wait_until(lambda: booking_status(clerk, booking) == "confirmed", 15)
    sent_notices = "SELECT count(*) FROM sandbox_notice WHERE ref = $1 AND sent_at IS NOT NULL"
    wait_until(lambda: in_thread(query, server.database_url, sent_notices, payment["provider_ref"])[0][0] == 2, 15)
    assert payment_state(clerk, payment) == ("succeeded", "fulfilled")
    assert count_refunds(server, payment) == 0


def test_a_buyer_whose_card_is_declined_can_try_again(clerk: httpx.Client, page: Page) -> None:
    booking, payment = start_checkout(clerk)
    page.goto(payment["checkout_url"])
    page.get_by_role("button", name="Decline").click()
    wait_until(lambda: payment_state(clerk, payment) == ("failed", None), 15)
    assert booking_status(clerk, booking) == "held"
    second = expect_ok(resources.post_payment(clerk, booking), 201)
    page.goto(second["checkout_url"])
    page.get_by_role("button", name="Pay €35.70").click()
    wait_until(lambda: booking_status(clerk, booking) == "confirmed", 15)


def test_a_late_payment_revives_the_hold_if_the_seat_is_free(clerk: httpx.Client, page: Page) -> None:
    booking, payment = start_checkout(clerk, LATE)
    pay_late(page, payment)
    wait_until(lambda: booking_status(clerk, booking) == "expired", 15)
    wait_until(lambda: booking_status(clerk, booking) == "confirmed", 15)
    assert payment_state(clerk, payment) == ("succeeded", "revived")


def test_a_late_payment_is_refunded_if_the_seat_is_taken(server: Server, clerk: httpx.Client, page: Page) -> None:
    booking, payment = start_checkout(clerk, LATE)
    pay_late(page, payment)
    event = expect_ok(clerk.get(f"/v1/bookings/{booking}"))["event"]
    wait_until(lambda: post_hold(clerk, event, user="u-2", items=[{"seat": "A-1"}]).status_code == 201, 15)
    wait_until(lambda: payment_state(clerk, payment) == ("refunded", "refunded"), 30)
    assert booking_status(clerk, booking) == "expired"
    assert count_refunds(server, payment) == 1


def test_a_hold_expires_if_its_provider_never_answers(clerk: httpx.Client, page: Page) -> None:
    booking, payment = start_checkout(clerk, LATE)
    page.goto(payment["checkout_url"])
    page.get_by_role("button", name="Go silent").click()
    wait_until(lambda: booking_status(clerk, booking) == "expired", 15)
    assert payment_state(clerk, payment) == ("started", None)


def pay_late(page: Page, payment: dict[str, Any]) -> None:
    page.goto(payment["checkout_url"])
    page.get_by_label("Seconds").fill("1")
    page.get_by_role("button", name="Pay late").click()
