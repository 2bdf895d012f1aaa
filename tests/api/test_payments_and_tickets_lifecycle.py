"""Payments and tickets over HTTP at the start and end of their lifecycle."""

import httpx
import pytest

from holdfast.api.call import Resource
from tests.support import resources
from tests.support.harness import Server, example_event, post_hold, publish_event
from tests.support.http_assertions import expect_error, expect_ok


@pytest.fixture
def booking(admin: httpx.Client) -> str:
    return resources.create_held_booking(admin)


def test_an_unknown_booking_is_reported_before_an_unknown_provider(admin: httpx.Client, booking: str) -> None:
    absent = resources.UNKNOWN_IDS[Resource.BOOKING]
    expect_error(resources.post_payment(admin, absent, provider="nobody"), 404, "not_found")
    expect_error(resources.post_payment(admin, booking, provider="nobody"), 422, "unknown_provider")


def test_a_receipt_payment_starts_only_if_the_event_offers_a_review(admin: httpx.Client, booking: str) -> None:
    assert expect_ok(resources.post_payment(admin, booking, provider="receipt"), 201)["checkout_url"] is None
    unreviewed = expect_ok(post_hold(admin, publish_event(admin, example_event()), items=[{"seat": "A-1"}]), 201)["id"]
    expect_error(resources.post_payment(admin, unreviewed, provider="receipt"), 409, "review_not_offered")


def test_a_payment_reads_the_same_alone_and_with_its_booking(admin: httpx.Client, booking: str) -> None:
    payment = expect_ok(resources.post_payment(admin, booking), 201)
    assert expect_ok(admin.get(f"/v1/payments/{payment['id']}")) == payment
    assert expect_ok(admin.get(f"/v1/bookings/{booking}"))["payments"] == [payment]


def test_the_public_feed_hides_payments_and_has_no_gaps(server: Server, admin: httpx.Client) -> None:
    payment = resources.start_payment(admin)
    expect_ok(resources.post_notice(admin, payment))
    event = expect_ok(admin.get(f"/v1/bookings/{payment['booking']}"))["event"]
    with server.client() as public:
        changes = expect_ok(public.get(f"/v1/events/{event}/changes"))["changes"]
    assert [change["seq"] for change in changes] == list(range(1, len(changes) + 1))
    assert [change["kind"] for change in changes if "payment." in change["kind"]] == []
    kinds = [entry["kind"] for entry in expect_ok(admin.get(f"/v1/events/{event}/journal"))["items"]]
    assert [kind for kind in kinds if kind.startswith("payment.")] == ["payment.started", "payment.succeeded"]


@pytest.mark.parametrize("file", ["qr.svg", "qr.png", "ticket.pdf"])
def test_a_void_ticket_cannot_be_downloaded(admin: httpx.Client, file: str) -> None:
    booking = resources.create_confirmed_booking(admin)
    (ticket,) = resources.list_tickets(admin, booking)
    assert admin.get(f"/v1/tickets/{ticket['id']}/{file}").status_code == 200
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    expect_error(admin.get(f"/v1/tickets/{ticket['id']}/{file}"), 409, "ticket_void")


def test_a_checked_in_booking_cannot_be_transferred(admin: httpx.Client) -> None:
    booking = resources.create_confirmed_booking(admin)
    (ticket,) = resources.list_tickets(admin, booking)
    expect_ok(admin.post("/v1/checkins", json={"code": ticket["code"]}))
    expect_error(admin.post(f"/v1/bookings/{booking}/transfer", json={"user": "u-2"}), 409, "already_checked_in")


def test_a_booking_has_at_most_a_thousand_units(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[{"code": "floor", "capacity": 5000}]))
    expect_ok(post_hold(admin, event, items=[{"pool": "floor", "quantity": 500}] * 2), 201)
    expect_error(post_hold(admin, event, items=[{"pool": "floor", "quantity": 501}] * 2), 422, "invalid_request")
