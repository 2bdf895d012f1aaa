"""What staff do with shifts and workers, and what everyone concerned hears of it."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.runtime import ids
from tests.support.bot_harness import Agency
from tests.support.harness import query
from tests.support.telegram_server import Message


def open_shift(staffed: Agency, taken: str = "0 of 3") -> Message:
    staffed.admin.say(staffed.staff, "/shifts")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Upcoming shifts"), "Shift 77")
    return staffed.wait_for(staffed.staff, f"{taken} places taken")


def test_a_change_reaches_everyone_who_has_a_place(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan, boris = staffed.add_worker(21), staffed.add_worker(22, "Boris")
    staffed.take_place(ivan, event)
    boris.start(staffed.account, event)
    staffed.wait_for(staffed.chat_of(boris), "places left")
    staffed.admin.press(open_shift(staffed, "1 of 3"), "Edit")
    staffed.admin.press(staffed.wait_for(staffed.staff, "This is what workers will see"), "Edit")
    staffed.admin.press(staffed.wait_for(staffed.staff, "What would you like to change?"), "Date")
    day = datetime.now(UTC).date() + timedelta(days=5)
    staffed.wait_for(staffed.staff, "Which day is the shift")
    staffed.admin.say(staffed.staff, day.isoformat())
    staffed.admin.press(staffed.wait_for(staffed.staff, f"{day:%B} {day.day}"), "Save")
    staffed.wait_for(staffed.staff, "Saved: Shift 77")
    staffed.wait_for(staffed.chat_of(ivan), "Your shift has changed")
    staffed.settle()
    assert staffed.messages_to(boris, "Your shift has changed") == []


def test_cancelling_a_shift_ends_its_bookings_and_its_post(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    with staffed.running_worker():
        staffed.admin.press(open_shift(staffed), "Post to the channel")
        post = staffed.wait_for(staffed.channel, "3 of 3 places left")
        ivan = staffed.add_worker(21)
        staffed.take_place(ivan, event)
        staffed.admin.press(open_shift(staffed, "1 of 3"), "Cancel shift")
        staffed.admin.press(staffed.wait_for(staffed.staff, "Cancel “Shift 77”?"), "Yes, cancel it")
        staffed.wait_for(staffed.chat_of(ivan), "cancelled your booking")
        staffed.wait(lambda: "This shift was cancelled." in (post.text or ""))
        assert post.buttons == []


def test_todays_shifts_come_with_everyone_who_is_coming(staffed: Agency) -> None:
    today = datetime.now(UTC).replace(hour=23, minute=59)
    for number in ("77", "78"):
        event = staffed.add_shift(number=number, starts_at=today.isoformat())
        staffed.follow(event)
        worker = staffed.add_worker(int(number))
        staffed.take_place(worker, event)
    staffed.admin.say(staffed.staff, "/today")
    summary = staffed.wait_for(staffed.staff, "Ivan 78, +34600000078, Waiting for payment")
    assert "Ivan 77, +34600000077, Waiting for payment" in (summary.text or "")
    assert summary.buttons == ["Shift 77", "Shift 78"]
    exported = staffed.wait_for(staffed.staff, "Everyone who's coming today")
    assert exported.document is not None
    lines = exported.document.decode("utf-8-sig").splitlines()
    assert [line.split(",")[:4] for line in lines] == [
        ["Shift", "Working hours", "Name", "Phone"],
        ["Shift 77", "08:00-17:00", "Ivan 77", "'+34600000077"],
        ["Shift 78", "08:00-17:00", "Ivan 78", "'+34600000078"],
    ]


def test_a_completed_shift_says_so_in_the_channel(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.wait_until_followed(event)
    staffed.admin.press(open_shift(staffed), "Post to the channel")
    post = staffed.wait_for(staffed.channel, "3 of 3 places left")
    ivan = staffed.add_worker(21)
    staffed.take_place(ivan, event)
    review = staffed.send_receipt(ivan)
    staffed.admin.press(review, "Approve")
    staffed.wait_for(staffed.chat_of(ivan), "You're in!")
    staffed.end_shift(event)
    staffed.run_command("reap", "--event", event)
    staffed.wait(lambda: "This shift is over." in (post.text or ""))
    staffed.wait(lambda: "the shift is over" in (review.caption or ""))
    assert "Decided by Olga Petrova" in (review.caption or "")
    staffed.wait_for(staffed.chat_of(ivan), "This shift is over. Thank you!")


def test_staff_mark_no_shows_and_block_workers(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    staffed.take_place(ivan, event)
    staffed.admin.press(staffed.send_receipt(ivan), "Approve")
    staffed.wait_for(staffed.chat_of(ivan), "You're in!")
    shift = open_shift(staffed, "1 of 3")
    staffed.admin.press(shift, "Who's coming")
    people = staffed.wait_for(staffed.staff, "1. Ivan 21, +34600000021, Confirmed")
    staffed.admin.press(people, "1")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Ivan 21", buttons=2), "Didn't show up")
    staffed.wait_for(staffed.staff, "marked as a no-show")
    staffed.admin.press(people, "1")
    worker = staffed.wait_for(staffed.staff, "Didn't show up before: 1")
    staffed.admin.press(worker, "Block this worker")
    staffed.wait_for(staffed.staff, "can't take places any more")
    other = staffed.add_shift(number="78")
    ivan.start(staffed.account, other)
    staffed.wait_for(staffed.chat_of(ivan), "Order number: 78")
    ivan.press(staffed.wait_for(staffed.chat_of(ivan), "Order number: 78"), "Take a place")
    staffed.wait_for(staffed.chat_of(ivan), "you can't take shifts here")
    staffed.admin.press(shift, "Export list")
    staffed.wait(lambda: any(m.document for m in staffed.staff.visible))
    exported = next(m.document for m in staffed.staff.visible if m.document)
    assert "Ivan 21,'+34600000021,Confirmed" in exported.decode("utf-8-sig")
    assert exported.decode().strip().endswith(",x")


def test_a_shift_can_be_copied_to_another_day(staffed: Agency) -> None:
    staffed.follow(staffed.add_shift())
    staffed.admin.press(open_shift(staffed), "Copy")
    prompt = staffed.wait_for(staffed.staff, "Which day is the shift")
    staffed.admin.press(prompt, prompt.buttons[1])
    staffed.wait_for(staffed.staff, "What do workers earn")
    staffed.admin.say(staffed.staff, "15 an hour")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Order number: 78"), "Publish")
    staffed.wait_for(staffed.channel, "3 of 3 places left")
    numbers = query(
        staffed.database_url, "SELECT order_number FROM event WHERE org_id = $1 ORDER BY id", staffed.org.id
    )
    assert [row["order_number"] for row in numbers] == ["77", "78"]


def test_an_order_number_is_used_once(staffed: Agency) -> None:
    staffed.follow(staffed.add_shift())
    staffed.admin.press(open_shift(staffed), "Copy")
    prompt = staffed.wait_for(staffed.staff, "Which day is the shift")
    staffed.admin.press(prompt, prompt.buttons[1])
    staffed.wait_for(staffed.staff, "What do workers earn")
    staffed.admin.say(staffed.staff, "15 an hour")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Order number: 78"), "Edit")
    staffed.admin.press(staffed.wait_for(staffed.staff, "What would you like to change?"), "Order number")
    staffed.wait_for(staffed.staff, "What's the order number?")
    staffed.admin.say(staffed.staff, "77")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Order number: 77", buttons=3), "Publish")
    staffed.wait_for(staffed.staff, "already has this order number")


def test_workers_are_reminded_before_their_shift(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan, boris = staffed.add_worker(21), staffed.add_worker(22, "Boris")
    staffed.take_place(ivan, event)
    staffed.admin.press(staffed.send_receipt(ivan), "Approve")
    staffed.take_place(boris, event)
    staffed.wait_for(staffed.chat_of(ivan), "You're in!")
    soon = "UPDATE event SET starts_at = now() + interval '11 hours' WHERE org_id = $1"
    query(staffed.database_url, soon, staffed.org.id)
    staffed.wait_for(staffed.chat_of(ivan), "Don't forget your shift")
    staffed.settle()
    assert len(staffed.messages_to(ivan, "Don't forget")) == 1
    assert staffed.messages_to(boris, "Don't forget") == []
    query(staffed.database_url, soon.replace("11", "10"), staffed.org.id)
    staffed.wait(lambda: len(staffed.messages_to(ivan, "Don't forget")) == 2)


@pytest.mark.parametrize(("minutes", "words"), [(11, "has been waiting for 10 minutes"), (31, "ALERT")])
def test_staff_hear_of_a_receipt_that_waits(staffed: Agency, minutes: int, words: str) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    staffed.take_place(ivan, event)
    staffed.send_receipt(ivan)
    earlier = "UPDATE journal SET at = at - make_interval(mins => $2) WHERE event_id = $1"
    query(staffed.database_url, earlier, ids.parse_event_id(event), minutes)
    staffed.wait_for(staffed.staff, words)


def test_a_second_tap_shows_the_running_hold(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    card = staffed.take_place(ivan, event)
    offer = staffed.messages_to(ivan, "places left")[0]
    ivan.press(offer, "Take a place")
    staffed.wait_for(staffed.chat_of(ivan), "A place is yours for", after=card)
    assert card.deleted
    assert staffed.statuses() == ["held"]


def test_a_worker_gives_a_place_up(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    card = staffed.take_place(ivan, event)
    ivan.press(card, "Give up my place")
    staffed.wait_for(staffed.chat_of(ivan), "you owe nothing")
    staffed.wait(lambda: card.buttons == [])
    assert staffed.statuses() == ["cancelled"]


def test_each_worker_reads_their_own_language(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    dilnoza = staffed.new_worker(23, "Dilnoza", language_code="uz")
    dilnoza.start(staffed.account, event)
    staffed.wait(lambda: any(m.buttons for m in staffed.chat_of(dilnoza).visible))
    dilnoza.say(staffed.account, "/language")
    ask = staffed.wait(lambda: next((m for m in staffed.chat_of(dilnoza).visible if len(m.buttons) == 4), None))
    assert ask is not None
    assert sorted(ask.buttons) == ["English", "Español", "Oʻzbekcha", "Русский"]  # noqa: RUF001
    dilnoza.press(ask, "Русский")
    dilnoza.say(staffed.account, "/help")
    staffed.wait_for(staffed.chat_of(dilnoza), "чек")


def test_a_shift_that_would_have_started_is_not_published(staffed: Agency) -> None:
    staffed.follow(staffed.add_shift())
    staffed.admin.press(open_shift(staffed), "Copy")
    prompt = staffed.wait_for(staffed.staff, "Which day is the shift")
    staffed.admin.press(prompt, prompt.buttons[0])
    staffed.wait_for(staffed.staff, "What do workers earn")
    staffed.admin.say(staffed.staff, "15 an hour")
    preview = staffed.wait_for(staffed.staff, "Order number: 78")
    staffed.admin.press(preview, "Edit")
    staffed.admin.press(staffed.wait_for(staffed.staff, "What would you like to change?"), "Working hours")
    staffed.wait_for(staffed.staff, "From when to when?")
    staffed.admin.say(staffed.staff, "00:00-23:59")
    staffed.admin.press(staffed.wait_for(staffed.staff, "00:00-23:59", buttons=3), "Publish")
    staffed.wait_for(staffed.staff, "would already have started")
