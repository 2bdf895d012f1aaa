"""The form of a shift: what staff may type, which buttons still count, and what a change leaves alone."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from holdfast.bot.shift_form import FieldError, read_field
from holdfast.runtime import ids
from tests.support.bot_harness import Agency
from tests.support.harness import query
from tests.support.telegram_server import Message

TODAY = date(2026, 12, 20)


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("date", "24.12.", "2026-12-24"),
        ("date", "3/1", "2027-01-03"),
        ("date", "2026-12-24", "2026-12-24"),
        ("work_time", "22:00 - 06:30, with a break", "22:00 - 06:30, with a break"),
        ("service_fee", "7,5", "750"),
        ("service_fee", "1 500", "150000"),
        ("service_fee", "0", "0"),
        ("workers", "3", "3"),
        ("address", "Dock\u202e 4\n", "Dock 4"),
    ],
)
def test_the_form_reads_what_people_type(field: str, text: str, value: str) -> None:
    assert read_field(field, text, "EUR", TODAY) == value


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("date", "31.02."),
        ("date", "2026-12-19"),
        ("date", "tomorrow"),
        ("work_time", "08:00"),
        ("work_time", "25:00-26:00"),
        ("service_fee", "1.500"),
        ("service_fee", "1e9"),
        ("service_fee", "-1"),
        ("service_fee", "9" * 13),
        ("workers", "0"),
        ("workers", "٣"),
        ("order_number", "<b>"),
        ("food", "\u202e"),
        ("address", "x" * 501),
    ],
)
def test_the_form_refuses_what_makes_no_sense(field: str, text: str) -> None:
    with pytest.raises(FieldError):
        read_field(field, text, "EUR", TODAY)


def open_edit(staffed: Agency, number: str = "77") -> Message:
    asked = staffed.admin.say(staffed.staff, "/shifts")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Upcoming shifts", after=asked), f"Shift {number}")
    shift = staffed.wait_for(staffed.staff, "places taken", after=asked)
    staffed.admin.press(shift, "Edit")
    return staffed.wait_for(staffed.staff, "This is what workers will see", after=shift)


def change_field(staffed: Agency, preview: Message, label: str, value: str) -> Message:
    staffed.admin.press(preview, "Edit")
    staffed.admin.press(staffed.wait_for(staffed.staff, "What would you like to change?", after=preview), label)
    question = staffed.wait_for(staffed.staff, "Now:", after=preview)
    staffed.admin.say(staffed.staff, value)
    return staffed.wait_for(staffed.staff, "This is what workers will see", after=question)


def test_a_change_leaves_alone_what_nobody_typed(staffed: Agency) -> None:
    """The shift was made with the API: its pay is an amount, and its times are not in its text."""
    shift = {"order_number": 77, "service_fee": 750, "address": "Dock 4", "work_time": "early", "salary": 12000}
    event = staffed.add_shift(shift=shift, ends_at=(datetime.now(UTC) + timedelta(days=3)).isoformat())
    before = event_row(staffed, event)
    preview = open_edit(staffed)
    assert "€120.00" in (preview.text or "")
    staffed.change_shift(event, title="Renamed meanwhile")
    preview = change_field(staffed, preview, "Address", "Dock 5")
    staffed.admin.press(preview, "Save")
    staffed.wait_for(staffed.staff, "Saved: Renamed meanwhile")
    after = event_row(staffed, event)
    assert (after["starts_at"], after["ends_at"]) == (before["starts_at"], before["ends_at"])
    assert after["shift"] == before["shift"].replace("Dock 4", "Dock 5")
    assert after["title"] == "Renamed meanwhile"


def test_two_colleagues_do_not_undo_each_others_changes(staffed: Agency) -> None:
    event = staffed.add_shift()
    preview = open_edit(staffed)
    staffed.change_shift(event, pools=[{"code": "places", "capacity": 9}])
    preview = change_field(staffed, preview, "Address", "Dock 5")
    staffed.admin.press(preview, "Save")
    staffed.wait_for(staffed.staff, "Saved: Shift 77")
    capacity = "SELECT capacity FROM pool WHERE event_id = $1"
    assert query(staffed.database_url, capacity, ids.parse_event_id(event))[0]["capacity"] == 9


def test_a_fee_can_become_free_and_cost_something_again(staffed: Agency) -> None:
    event = staffed.add_shift()
    for fee, price in (("0", 0), ("12", 1200)):
        preview = change_field(staffed, open_edit(staffed), "Service fee", fee)
        staffed.admin.press(preview, "Save")
        staffed.wait_for(staffed.staff, "Saved: Shift 77", after=preview)
        tariffs = "SELECT price FROM tariff WHERE event_id = $1"
        assert query(staffed.database_url, tariffs, ids.parse_event_id(event))[0]["price"] == price


def test_buttons_of_an_earlier_step_change_nothing(staffed: Agency) -> None:
    staffed.admin.say(staffed.staff, "/new")
    number = staffed.wait_for(staffed.staff, "What's the order number")
    staffed.admin.say(staffed.staff, "1204")
    day = staffed.wait_for(staffed.staff, "Which day is the shift")
    staffed.admin.press(day, day.buttons[1])
    hours = staffed.wait_for(staffed.staff, "From when to when")
    for question in (day, number):
        pressed = staffed.admin.press(question, question.buttons[0])
        assert staffed.answer_to(pressed) == "This button belongs to an earlier step."
    staffed.admin.say(staffed.staff, "08:00-17:00")
    staffed.wait_for(staffed.staff, "Where is it", after=hours)


def test_a_reason_interrupts_a_form_and_the_form_goes_on(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    staffed.take_place(ivan, event)
    review = staffed.send_receipt(ivan)
    staffed.admin.say(staffed.staff, "/new")
    begin = staffed.wait_for(staffed.staff, "Copy an earlier shift")
    staffed.admin.press(begin, "Empty form")
    staffed.wait_for(staffed.staff, "What's the order number")
    staffed.admin.press(review, "Reject")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Why are you rejecting"), "Another reason…")
    staffed.wait_for(staffed.staff, "Type the reason")
    staffed.admin.say(staffed.staff, "Wrong card")
    staffed.wait_for(staffed.chat_of(ivan), "Wrong card")
    staffed.admin.say(staffed.staff, "1204")
    staffed.wait_for(staffed.staff, "Which day is the shift")


def event_row(staffed: Agency, event: str) -> dict[str, Any]:
    statement = "SELECT title, starts_at, ends_at, shift FROM event WHERE id = $1"
    return dict(query(staffed.database_url, statement, ids.parse_event_id(event))[0])
