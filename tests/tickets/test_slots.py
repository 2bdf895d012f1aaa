"""A ticket for a pool that has its own time shows that time, and never the event's."""

import httpx
from icalendar import Calendar

from tests.support.harness import publish_event
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.mail_server import Mailbox
from tests.support.resources import list_tickets
from tests.support.slots import EVENT, MORNING, NOON, book_pools, tour_event
from tests.support.ticket_reader import texts_in_pdf
from tests.support.ticket_sales import attachments, check_in, new_address, plain_text, wait_for_emails

MORNING_TIMES = ("2027-03-06T09:00:00Z", "2027-03-06T10:30:00Z")
NOON_TIMES = ("2027-03-07T11:00:00Z", None)
EVENT_TIMES = ("2027-03-05T19:00:00Z", "2027-03-08T19:00:00Z")


def test_each_ticket_has_the_time_of_its_pool_or_else_of_the_event(admin: httpx.Client) -> None:
    booking = book_pools(admin, publish_event(admin, tour_event()), "ten", "noon", "exhibition")
    tickets = list_tickets(admin, booking)
    assert [(ticket["starts_at"], ticket["ends_at"]) for ticket in tickets] == [MORNING_TIMES, NOON_TIMES, EVENT_TIMES]
    printed = [texts_in_pdf(admin.get(f"/v1/tickets/{ticket['id']}/ticket.pdf").content)[0] for ticket in tickets]
    assert "Saturday, March 6, 2027 10:00 AM – 11:30 AM · Central" in printed[0]  # noqa: RUF001
    assert "Sunday, March 7, 2027 12:00 PM · Central" in printed[1]
    assert "Friday, March 5, 2027 8:00 PM · Central" in printed[2]
    assert not any("March 5" in text for text in printed[:2])


def test_the_email_and_its_attachments_show_the_times_of_the_slots(admin: httpx.Client, mailbox: Mailbox) -> None:
    address, event = new_address(), publish_event(admin, tour_event())
    booking = book_pools(admin, event, "ten", "noon", email=address)
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    confirmed, refunded = wait_for_emails(mailbox, address, 2)
    for text in map(plain_text, (confirmed, refunded)):
        assert MORNING in text.replace("\xa0", " ")
        assert NOON in text.replace("\xa0", " ")
        assert EVENT.partition(", 8")[0] not in text
    files = attachments(confirmed)
    entries = Calendar.from_ical(files["event.ics"]).events
    assert [(str(entry["uid"]), entry.start.isoformat()) for entry in entries] == [
        (f"{booking}@holdfast", "2027-03-06T09:00:00+00:00"),
        (f"{booking}.noon@holdfast", "2027-03-07T11:00:00+00:00"),
    ]
    first, second = texts_in_pdf(files["tickets.pdf"])
    assert "Saturday, March 6" in first
    assert "Sunday, March 7" in second


def test_the_door_sees_which_slot_a_ticket_is_for(admin: httpx.Client) -> None:
    event, other = publish_event(admin, tour_event()), publish_event(admin, tour_event())
    morning, exhibition = list_tickets(admin, book_pools(admin, event, "ten", "exhibition"))
    refused = admin.post("/v1/checkins", json={"code": morning["code"], "event": other})
    assert MORNING in expect_error(refused, 409, "wrong_event")["detail"].replace("\xa0", " ")
    for ticket, pool, times in (
        (morning, ("ten", "Morning tour"), MORNING_TIMES),
        (exhibition, ("exhibition", "Exhibition only"), EVENT_TIMES),
    ):
        seen = expect_ok(check_in(admin, ticket["code"]))
        assert (seen["pool"], seen["pool_name"]) == pool
        assert (seen["starts_at"], seen["ends_at"]) == times


def test_a_slot_that_moves_moves_its_tickets(admin: httpx.Client) -> None:
    event = publish_event(admin, tour_event())
    booking = book_pools(admin, event, "noon")
    later = {"code": "noon", "starts_at": "2027-03-07T13:00:00Z", "ends_at": "2027-03-07T14:00:00Z"}
    expect_ok(admin.patch(f"/v1/events/{event}", json={"pools": [later]}))
    (ticket,) = list_tickets(admin, booking)
    assert (ticket["starts_at"], ticket["ends_at"]) == (later["starts_at"], later["ends_at"])
