"""Pages show the time of a slot that has one, in the booking, on its tickets and in the list of bookings."""

import re
from datetime import UTC, datetime, timedelta

import httpx
from icalendar import Calendar

from tests.support.harness import Org, Server, publish_event
from tests.support.html_client import Page, get_page, new_visitor
from tests.support.slots import EVENT, MORNING, NOON, book_pools, hold_pools, sign_in, tour_event


def _text(page: Page) -> str:
    return page.text.replace("\xa0", " ")


def test_a_booking_with_slots_shows_their_times_and_not_the_events(admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, tour_event())
    sign_in(buyer, admin, "ada")
    one, two = book_pools(admin, event, "ten", user="ada"), book_pools(admin, event, "ten", "noon", user="ada")
    held = hold_pools(admin, event, "exhibition", user="ada")
    # Once in the summary and once on the ticket.
    assert _text(get_page(buyer, f"/b/{one}")).count(MORNING) == 2
    several = _text(get_page(buyer, f"/b/{two}"))
    assert (several.count(MORNING), several.count(NOON), several.count(EVENT)) == (2, 2, 0)
    assert _text(get_page(buyer, f"/b/{held}")).count(EVENT) == 1
    calendar = Calendar.from_ical(buyer.get(f"/b/{two}/calendar.ics").content)
    assert [(str(entry["uid"]), entry.start.day) for entry in calendar.events] == [
        (f"{two}@holdfast", 6),
        (f"{two}.noon@holdfast", 7),
    ]


def test_my_bookings_are_in_the_order_of_their_slots(server: Server) -> None:
    org = Org(server.database_url)
    with server.client(org.headers()) as admin, new_visitor(server) as buyer:
        event = publish_event(admin, tour_event())
        sign_in(buyer, admin, "ada")
        for pools in (("ten",), ("noon",), ("exhibition",)):
            book_pools(admin, event, *pools, user="ada")
        text = _text(get_page(buyer, f"/o/{org.slug}/bookings"))
        assert 0 < text.index(EVENT) < text.index(MORNING) < text.index(NOON)


def test_a_session_lasts_until_the_last_slot_is_over(admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, tour_event(ends_at=None))
    sign_in(buyer, admin, "ada")
    cookie = buyer.get(f"/b/{book_pools(admin, event, 'exhibition', user='ada')}").headers["set-cookie"]
    max_age = re.search(r"Max-Age=(\d+)", cookie)
    assert max_age is not None
    until_slot = datetime.fromisoformat("2027-03-07T11:00:00Z") - datetime.now(UTC)
    assert abs(timedelta(seconds=int(max_age[1])) - (until_slot + timedelta(days=30))) < timedelta(hours=1)
