"""Each of the five businesses that Holdfast is for, from the first draft to the last guest, as its people tell it."""

import csv
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser

from holdfast.runtime.credentials import Role
from tests.support.browser import chromium, in_thread
from tests.support.browser_buyer import PHONE, BrowserBuyer, browser_buyer
from tests.support.command_line import run_audit
from tests.support.concurrent_requests import count_codes, hold_request, send_all_at_once
from tests.support.harness import Org, Server, fresh_database, post_hold, publish_event, running_server
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.resources import TINY_PNG, list_tickets
from tests.support.ticket_reader import texts_in_pdf

Body = dict[str, Any]


@pytest.fixture(scope="module")
def server(postgres: str) -> Iterator[Server]:
    with fresh_database(postgres) as url, running_server(url, workers=2, worker=True) as server:
        yield server
        assert run_audit(database_url=url)["findings"] == []


@pytest.fixture(scope="module")
def org(server: Server) -> Org:
    return Org(server.database_url)


@pytest.fixture(scope="module")
def admin(server: Server, org: Org) -> Iterator[httpx.Client]:
    with server.client(org.headers()) as client:
        yield client


@pytest.fixture(scope="module")
def browser(admin: httpx.Client) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def in_hours(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


def staff(server: Server, org: Org, role: Role) -> httpx.Client:
    return server.client(org.headers(role))


def ignore_refusals(buyer: BrowserBuyer) -> None:
    """The console reports every answer that is not a success."""
    buyer.errors = [error for error in buyer.errors if "(Conflict)" not in error]


def test_the_agency_fills_a_shift(browser: Browser, server: Server, org: Org, admin: httpx.Client) -> None:
    """Two workers for Saturday. Ann pays the fee and sends a photo of the receipt. Bob's receipt is not readable."""
    shift = publish_event(
        admin,
        {
            "title": "Warehouse, Saturday",
            "preset": "shift",
            "starts_at": in_hours(48),
            "currency": "EUR",
            "pools": [{"code": "crew", "name": "Workers", "capacity": 2}],
            "contact": {"name": "required", "phone": "required", "email": "none"},
            "payment_instructions": "Bank transfer to ES91 2100 0418 4502 0005 1332",
            "shift": {
                "order_number": 1042,
                "salary": "14 € an hour",
                "work_time": "06:00 to 14:00",
                "address": "Dock 4",
                "service_fee": 500,
                "date": "2027-03-06",
            },
        },
    )
    with ExitStack() as people:
        ann, bob, dan = [people.enter_context(browser_buyer(browser, server, **PHONE)) for _ in range(3)]
        for worker, name, phone in ((ann, "Ann Smith", "+34 611 222 333"), (bob, "Bob Jones", "+34 (611) 222-444")):
            worker.open_event(shift)
            worker.expect_text("14 € an hour")
            worker.page.get_by_label("Name").fill(name)
            worker.page.get_by_label("Phone").fill(phone)
            worker.page.get_by_role("button", name="Take this place").click()
            worker.page.wait_for_url("**/b/*")
            worker.expect_text("ES91 2100 0418 4502 0005 1332")
        dan.page.goto(f"{server.url}/e/{shift}")
        dan.expect_text("Sold out")
        bookings = {worker: expect_ok(admin.get(f"/v1/bookings/{worker.booking}")) for worker in (ann, bob)}
        assert bookings[ann]["contact"] == {"name": "Ann Smith", "email": None, "phone": "+34611222333"}
        assert bookings[ann]["max_expires_at"] == bookings[ann]["expires_at"], "three minutes are three minutes"
        for worker, booking in bookings.items():
            worker.expect_text(f"Use {booking['reference']} as the payment reference.")
            worker.page.set_input_files(
                "input[type=file]", {"name": "r.png", "mimeType": "image/png", "buffer": TINY_PNG}
            )
            worker.page.get_by_role("button", name="Send receipt").click()
            worker.expect_text("We're checking your receipt")
        with staff(server, org, Role.REVIEW) as reviewer:
            expect_ok(reviewer.post(f"/v1/bookings/{ann.booking}/approve"))
            unreadable = {"reason": "The photo is black."}
            expect_ok(reviewer.post(f"/v1/bookings/{bob.booking}/reject", json=unreadable))
        ann.expect_text("You're in!")
        ann.expect_text("06:00 to 14:00")
        bob.expect_text("The photo is black.")
        again = post_hold(
            admin, shift, user=bookings[ann]["user"], items=[{"pool": "crew"}], contact=bookings[ann]["contact"]
        )
        assert expect_ok(again)["id"] == ann.booking, "a second tap is not a second place"
        (pool,) = expect_ok(admin.get(f"/v1/events/{shift}/availability"))["pools"]
        assert (pool["sold"], pool["held"], pool["remaining"]) == (1, 0, 1)


def test_the_cinema_sells_its_seats(browser: Browser, server: Server, org: Org, admin: httpx.Client) -> None:
    """Eve buys two seats and enters. Tom wants one of them, and later sees that the film has begun."""
    tariffs = [{"code": "full", "name": "Full price", "price": 1200}]
    film = publish_event(
        admin,
        {
            "title": "Metropolis",
            "preset": "show",
            "starts_at": in_hours(3),
            "currency": "EUR",
            "tax_bps": 1000,
            "pools": [
                {"code": "hall", "name": "Hall", "seats": {"rows": list("ABC"), "numbers": 8}, "tariffs": tariffs}
            ],
        },
    )
    with browser_buyer(browser, server) as eve, browser_buyer(browser, server) as tom:
        eve.open_event(film)
        tom.open_event(film)
        for seat in ("B-4", "B-5"):
            eve.click_seat(seat)
        eve.hold()
        tom.expect_seat("B-4", "held")
        held = expect_ok(admin.get(f"/v1/bookings/{eve.booking}"))
        taken = post_hold(admin, film, user="tom", items=[{"seat": "B-4"}, {"seat": "B-6"}])
        assert expect_error(taken, 409, "seat_taken")["conflicts"] == ["B-4"]
        own = post_hold(admin, film, user=held["user"], items=[{"seat": "B-5"}, {"seat": "B-6"}])
        assert expect_error(own, 409, "seat_taken")["booking"] == held["id"]
        eve.pay()
        eve.expect_text("You're in!")
        tom.expect_seat("B-5", "sold")
        tickets = list_tickets(admin, eve.booking)
        with staff(server, org, Role.DOOR) as door:
            scan = {"event": film, "gate": "A", "nonce": "1", "code": tickets[0]["code"]}
            assert expect_ok(door.post("/v1/checkins", json=scan))["result"] == "admitted"
            assert door.post("/v1/checkins", json={**scan, "nonce": "2"}).status_code == 409
        expect_ok(admin.patch(f"/v1/events/{film}", json={"starts_at": in_hours(-0.1)}))
        expect_error(post_hold(admin, film, user="tom", items=[{"seat": "C-1"}]), 409, "sales_closed")
        tom.page.goto(f"{server.url}/e/{film}")
        tom.expect_text("Sales have closed.")


def test_the_arena_opens_its_doors_to_a_crowd(browser: Browser, server: Server, org: Org, admin: httpx.Client) -> None:
    """Sales open in a moment. Zoe waits on the page. Then 150 people ask for the 40 seats at once."""
    rows, tariffs = [f"R{n}" for n in range(4)], [{"code": "full", "name": "Full price", "price": 5500}]
    final = publish_event(
        admin,
        {
            "title": "Arena Final",
            "preset": "arena",
            "starts_at": in_hours(24),
            "sales_open_at": in_hours(3 / 3600),
            "currency": "EUR",
            "policy": {"box_office": True},
            "pools": [{"code": "block", "name": "Block", "seats": {"rows": rows, "numbers": 10}, "tariffs": tariffs}],
        },
    )
    with browser_buyer(browser, server, **PHONE) as zoe:
        zoe.page.goto(f"{server.url}/e/{final}")
        zoe.page.wait_for_selector(".seatmap-frame", timeout=30_000)
        seats = [f"{row}-{number}" for row in rows for number in range(1, 11)]
        requests = [
            hold_request(
                org.keys["admin"], final, secrets.token_hex(8), {"user": f"fan-{n}", "items": [{"seat": seats[n % 40]}]}
            )
            for n in range(150)
        ]
        replies = in_thread(send_all_at_once, server.port, requests)
        assert count_codes(replies) == {"201": 40, "seat_taken": 110}
        zoe.expect_text("0 free")
    expect_ok(admin.patch(f"/v1/events/{final}", json={"sales_open_at": None, "sales_close_at": in_hours(-0.1)}))
    winner = next(reply.body for reply in replies if reply.status == 201)
    expect_ok(admin.post(f"/v1/bookings/{winner['id']}/cancel"))
    label = winner["items"][0]["seat"]
    with staff(server, org, Role.SALES) as box_office:
        expect_ok(post_hold(box_office, final, user="walk-in", items=[{"seat": label}]), 201)


def test_the_meet_up_registers_its_guests(browser: Browser, server: Server, admin: httpx.Client) -> None:
    """Two free places, one per person. The organiser wants to know what to cook."""
    diet = {"code": "diet", "label": "Diet", "kind": "choice", "choices": ["Everything", "Vegan"], "required": True}
    meet_up = publish_event(
        admin,
        {
            "title": "Meet-up",
            "preset": "registration",
            "starts_at": in_hours(72),
            "currency": "EUR",
            "pools": [{"code": "places", "name": "Places", "capacity": 2}],
            "contact": {"name": "required", "email": "required"},
            "questions": [diet],
        },
    )
    with browser_buyer(browser, server) as ida, browser_buyer(browser, server, **PHONE) as max_:
        for guest, name, food in ((ida, "Ida", "Vegan"), (max_, "Max", "Everything")):
            guest.open_event(meet_up)
            guest.page.get_by_label("Name").fill(name)
            guest.page.get_by_label("Email").fill(f"{name.lower()}@example.org")
            guest.page.get_by_label("Diet").select_option(food)
            guest.page.get_by_role("button", name="Register").click()
            guest.page.wait_for_url("**/b/*")
            guest.expect_text("You're in!")
        ida.page.goto(f"{server.url}/e/{meet_up}")
        ida.expect_text("You already have")
        expect_error(
            post_hold(
                admin,
                meet_up,
                user="late",
                items=[{"pool": "places"}],
                contact={"name": "Late", "email": "late@example.org"},
                answers={"diet": "Vegan"},
            ),
            409,
            "sold_out",
        )
        rows = csv.DictReader(admin.get(f"/v1/events/{meet_up}/bookings.csv").text.splitlines())
        assert [(row["name"], row["Diet"]) for row in rows] == [("Ida", "Vegan"), ("Max", "Everything")]


def test_the_tour_guide_knows_who_comes_when(browser: Browser, server: Server, org: Org, admin: httpx.Client) -> None:
    """A family books the afternoon tour of tomorrow. Their ticket says four o'clock, not nine."""
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    tariffs = [
        {"code": "adult", "name": "Adult", "price": 4500},
        {"code": "child", "name": "Child", "price": 2000, "needs_companion": True},
    ]
    tour = publish_event(
        admin,
        {
            "title": "Old town",
            "preset": "experience",
            "starts_at": (tomorrow + timedelta(hours=9)).isoformat(),
            "ends_at": (tomorrow + timedelta(days=3)).isoformat(),
            "currency": "EUR",
            "tax_bps": 1900,
            "pools": [
                {
                    "code": f"d{day}-{hour}",
                    "name": "Walk",
                    "capacity": 6,
                    "starts_at": (tomorrow + timedelta(days=day, hours=hour)).isoformat(),
                    "ends_at": (tomorrow + timedelta(days=day, hours=hour + 1)).isoformat(),
                    "tariffs": tariffs,
                }
                for day in range(3)
                for hour in (9, 16)
            ],
        },
    )
    alone = post_hold(admin, tour, items=[{"pool": "d0-16", "tariff": "child"}])
    expect_error(alone, 422, "companion_required")
    with browser_buyer(browser, server, **PHONE) as family:
        family.open_event(tour)
        family.page.get_by_role("button", name="4:00").click()
        family.page.get_by_role("button", name="Add one: Adult").click()
        family.page.get_by_role("button", name="Add one: Child").click()
        family.hold()
        family.pay()
        family.expect_text("You're in!")
        family.expect_text("4:00")
        booking = expect_ok(admin.get(f"/v1/bookings/{family.booking}"))
        assert (booking["subtotal"], booking["tax"], booking["total"]) == (6500, 1235, 7735)
        ticket, _ = list_tickets(admin, family.booking)
        assert ticket["starts_at"] == f"{tomorrow:%Y-%m-%d}T16:00:00Z"
        calendar = family.page.request.get(f"{server.url}/b/{family.booking}/calendar.ics").text()
        assert f"{tomorrow:%Y%m%d}T160000" in calendar
        assert "T090000" not in calendar
        (pdf,) = texts_in_pdf(admin.get(f"/v1/tickets/{ticket['id']}/ticket.pdf").content)
        assert "4:00" in pdf
        assert "9:00" not in pdf
    with staff(server, org, Role.DOOR) as guide:
        admitted = guide.post(
            "/v1/checkins", json={"event": tour, "gate": "guide", "nonce": "1", "code": ticket["code"]}
        )
        assert expect_ok(admitted)["starts_at"] == ticket["starts_at"]
