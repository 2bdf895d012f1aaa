"""A person who got a booking from someone else sees its tickets, and nothing that the other person entered or paid."""

import re
from typing import Any

import httpx

from tests.support.harness import Org, Server, example_event, publish_event
from tests.support.html_client import get_page, hold_on_page, new_visitor, redirect_target, submit_form
from tests.support.http_assertions import expect_ok

FREE: list[dict[str, Any]] = [{"code": "places", "capacity": 3, "tariffs": [{"code": "full", "price": 0}]}]
MONEY = re.compile(r"[€$]|Total|Subtotal|Tax|Free")


def _give(buyer: httpx.Client, admin: httpx.Client, event: str, **choice: str) -> str:
    """Buy on the page and give the booking to ben. Returns the path of its page."""
    booking = hold_on_page(buyer, event, **choice)
    if "status is-good" not in get_page(buyer, booking).response.text:
        expect_ok(admin.post(f"/v1/bookings/{booking.removeprefix('/b/')}/confirm"))
    expect_ok(admin.post(f"/v1/bookings/{booking.removeprefix('/b/')}/transfer", json={"user": "ben"}))
    return booking


def _sign_in(client: httpx.Client, admin: httpx.Client, user: str) -> None:
    token = expect_ok(admin.post("/v1/customer-tokens", json={"user": user}), 201)["token"]
    redirect_target(client.get("/enter", params={"token": token}))


def test_the_pages_of_a_received_booking_show_tickets_without_prices(
    server: Server, org: Org, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    booking = _give(buyer, admin, event, quantity__1__0="2")
    get_page(buyer, booking, 404)
    with new_visitor(server) as ben:
        _sign_in(ben, admin, "ben")
        page = get_page(ben, booking)
        assert "Here are your 2 tickets" in page.text
        assert "standing · full × 2" in page.text  # noqa: RUF001
        assert len(page.links("ticket.pdf")) == 2
        state = ben.get(f"{booking}/state").json()
        assert (state["status"], state["payment"]) == ("confirmed", None)
        bookings = get_page(ben, f"/o/{org.slug}/bookings")
        assert "Friday night" in bookings.text
        assert get_page(ben, f"/e/{event}").data["mine"] == []
        expect_ok(admin.post(f"/v1/bookings/{booking.removeprefix('/b/')}/refund"))
        refunded = get_page(ben, booking)
        assert "The refund goes to the person who paid." in refunded.text
        for shown in (page, bookings, refunded):
            assert not MONEY.search(shown.text), shown.text
            assert not shown.has_form("/cancel")


def test_the_new_holder_of_a_free_booking_can_cancel_it(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event(preset="registration", pools=FREE))
    booking = _give(buyer, admin, event, quantity__0__0="1")
    with new_visitor(server) as ben:
        _sign_in(ben, admin, "ben")
        redirect_target(submit_form(ben, get_page(ben, booking).form("/cancel")))
        assert "Booking cancelled" in get_page(ben, booking).text


def test_a_form_that_is_sent_again_after_a_transfer_leads_nowhere(admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    form = get_page(buyer, f"/e/{event}").form("/hold")
    booking = redirect_target(submit_form(buyer, form, quantity__1__0="1"))
    expect_ok(admin.post(f"/v1/bookings/{booking.removeprefix('/b/')}/confirm"))
    expect_ok(admin.post(f"/v1/bookings/{booking.removeprefix('/b/')}/transfer", json={"user": "ben"}))
    again = submit_form(buyer, form, quantity__1__0="1")
    assert again.status_code == 409
    assert "You transferred this booking to someone else." in again.text
    assert booking not in again.text
