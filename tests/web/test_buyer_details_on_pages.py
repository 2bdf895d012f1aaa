"""A buyer sees on the page of a booking what they entered. Nobody else does, not even the next holder."""

from typing import Any

import httpx

from tests.support.harness import Server, publish_event
from tests.support.html_client import get_page, new_visitor
from tests.support.http_assertions import expect_ok
from tests.support.slots import book_pools, hold_pools, sign_in, tour_event

QUESTIONS: list[dict[str, Any]] = [
    {"code": "diet", "label": "Any <allergies>?", "kind": "text"},
    {"code": "bus", "label": "Do you need the bus?", "kind": "yes_no"},
    {"code": "silent", "label": "Never answered", "kind": "text"},
    {"code": "size", "label": "Shirt size", "kind": "choice", "choices": ["S", "XXL"], "per": "unit"},
    {"code": "guest", "label": "Guest's name", "kind": "text", "per": "unit"},
]
ANSWERS = {"diet": "Peanuts & <nuts>", "bus": False, "size": ["S", "XXL"], "guest": ["Zoltan", None]}
CONTACT = {"name": "Ada Quillfeather", "email": "ada.q@example.org", "phone": "+34911234567"}
ENTERED = ("Ada Quillfeather", "ada.q@example.org", "+34911234567", "Peanuts & <nuts>", "XXL", "Zoltan")


def test_the_buyer_sees_their_contact_details_and_answers(admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, tour_event(questions=QUESTIONS))
    sign_in(buyer, admin, "ada")
    booking = hold_pools(admin, event, "ten", "noon", user="ada", contact=CONTACT, answers=ANSWERS)
    held = get_page(buyer, f"/b/{booking}").text
    assert "Name Ada Quillfeather Email ada.q@example.org Phone +34911234567" in held
    assert "Any <allergies>? Peanuts & <nuts> Do you need the bus? No" in held
    assert "Ticket 1 Shirt size S Guest's name Zoltan Ticket 2 Shirt size XXL" in held
    assert "Never answered" not in held
    expect_ok(admin.post(f"/v1/bookings/{booking}/confirm"))
    first, second = get_page(buyer, f"/b/{booking}").text.partition("Noon tour")[::2]
    # Each ticket has the answers about its own unit.
    assert "Morning tour Adult Shirt size S Guest's name Zoltan" in first
    assert "Adult Shirt size XXL" in second
    assert "Ticket 1 Shirt" not in first + second


def test_answers_to_questions_that_have_changed_are_left_out(admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, tour_event(questions=QUESTIONS))
    sign_in(buyer, admin, "ada")
    booking = book_pools(admin, event, "ten", "noon", user="ada", answers=ANSWERS)
    changed = [{**QUESTIONS[0], "per": "unit"}, {**QUESTIONS[4], "per": "booking"}, QUESTIONS[3]]
    expect_ok(admin.patch(f"/v1/events/{event}", json={"questions": changed}))
    text = get_page(buyer, f"/b/{booking}").text
    assert "Shirt size XXL" in text
    assert not [hidden for hidden in ("Peanuts", "bus", "Zoltan") if hidden in text]


def test_the_next_holder_sees_nothing_that_the_former_owner_entered(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, tour_event(questions=QUESTIONS))
    booking = book_pools(admin, event, "ten", "noon", user="ada", contact=CONTACT, answers=ANSWERS)
    new_contact = {"name": "Ben Underhill"}
    expect_ok(admin.post(f"/v1/bookings/{booking}/transfer", json={"user": "ben", "contact": new_contact}))
    with new_visitor(server) as ben:
        sign_in(ben, admin, "ben")
        for path in (f"/b/{booking}", f"/b/{booking}/state", f"/b/{booking}/calendar.ics"):
            response = ben.get(path)
            assert response.status_code == 200
            assert not [text for text in ENTERED if text in response.text]
        assert "Name Ben Underhill" in get_page(ben, f"/b/{booking}").text


SHIFT = {
    "date": "2027-03-05",
    "order_number": 4711,
    "work_time": "20:00 to 04:00",
    "address": "Gate 4, Main Street",
    "buses": "N3 until 23:30",
    "food": "Dinner at midnight",
    "salary": 9550,
    "additional_info": "Bring black shoes.\nNo <b>jewellery</b>.",
}


def test_the_page_of_a_shift_says_what_the_worker_has_to_know(admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, tour_event(preset="shift", policy={}, shift=SHIFT))
    sign_in(buyer, admin, "ada")
    booking = hold_pools(admin, event, "exhibition", user="ada")
    expected = (
        "Date Friday, March 5, 2027", "Working hours 20:00 to 04:00", "Address Gate 4, Main Street",
        "Buses N3 until 23:30", "Food Dinner at midnight", "Pay €95.50",
        "Good to know Bring black shoes. No <b>jewellery</b>.",
    )  # fmt: skip
    for confirms in (False, True):
        if confirms:
            expect_ok(admin.post(f"/v1/bookings/{booking}/confirm"))
        text = get_page(buyer, f"/b/{booking}").text
        assert [fact for fact in expected if fact not in text] == []
        assert "4711" not in text
    calendar = buyer.get(f"/b/{booking}/calendar.ics").text
    assert r"LOCATION:Gate 4\, Main Street" in calendar
