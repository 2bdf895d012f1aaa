"""A buyer reads in their own language why a booking ended."""

import httpx

from holdfast.i18n.texts import section
from holdfast.runtime import ids
from tests.support.harness import Server, example_event, publish_event, query
from tests.support.html_client import get_page, hold_on_page, new_visitor
from tests.support.http_assertions import expect_ok

STANDING = {"quantity__1__0": "2"}


def _set_reason(server: Server, booking: str, reason: str) -> None:
    """Set a reason as if staff had typed it."""
    parsed = ids.parse_booking_id(booking.removeprefix("/b/"))
    assert parsed is not None
    query(server.database_url, "UPDATE booking SET reason = $3 WHERE event_id = $1 AND id = $2", *parsed, reason)


def test_buyers_read_in_their_language_that_the_event_was_cancelled(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    with new_visitor(server, "es") as spanish_buyer, new_visitor(server, "en") as buyer:
        bookings = {
            "es": (spanish_buyer, hold_on_page(spanish_buyer, event, **STANDING)),
            "en": (buyer, hold_on_page(buyer, event, **STANDING)),
        }
        for _, booking in bookings.values():
            expect_ok(admin.post(f"/v1/bookings/{booking.removeprefix('/b/')}/confirm"))
        expect_ok(admin.post(f"/v1/events/{event}/cancel"))
        for language, (client, booking) in bookings.items():
            text = get_page(client, booking).text
            assert section(language, "reason")["event_cancelled"] in text
            assert "event_cancelled" not in text
            _set_reason(server, booking, "The singer is ill <b>")
            assert "The singer is ill <b>" in get_page(client, booking).text
