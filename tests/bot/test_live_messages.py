"""Posts, cards and reviews always end up showing the present state, and move when somebody wants to see them again."""

from typing import Any

import msgspec

from holdfast.runtime import ids
from tests.support.bot_harness import Agency
from tests.support.harness import query
from tests.support.sample_files import image_file
from tests.support.telegram_server import Message


def post_shift(staffed: Agency, number: str = "77") -> Message:
    staffed.admin.say(staffed.staff, "/shifts")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Upcoming shifts"), f"Shift {number}")
    shift = staffed.wait_for(staffed.staff, "places taken")
    staffed.admin.press(shift, "Post to the channel")
    return staffed.wait_for(staffed.channel, "places left")


def test_a_post_shows_what_happened_while_telegram_was_busy_with_it(staffed: Agency) -> None:
    event = staffed.add_shift(workers=2)
    staffed.follow(event)
    post = post_shift(staffed)
    with staffed.server.hold("editMessageText", after=True) as hold:
        staffed.take_place(staffed.add_worker(21), event)
        staffed.wait(lambda: hold.waiting > 0 and "1 of 2 places left" in (post.text or ""))
        staffed.take_place(staffed.add_worker(22), event)
        behind = "SELECT 1 FROM telegram_event JOIN event ON id = event_id WHERE event.version > telegram_event.version"
        staffed.wait(lambda: not query(staffed.database_url, behind))
    staffed.wait(lambda: "FULL" in (post.text or ""))


def test_a_shift_that_is_posted_again_replaces_its_old_post(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    old = post_shift(staffed)
    staffed.admin.press(staffed.wait_for(staffed.staff, "places taken"), "Post to the channel")
    staffed.wait(lambda: old.deleted)
    new = staffed.wait_for(staffed.channel, "3 of 3 places left", after=old)
    staffed.take_place(staffed.add_worker(21), event)
    staffed.wait(lambda: "2 of 3 places left" in (new.text or ""))


def test_receipts_that_wait_come_to_the_end_of_the_chat(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    staffed.admin.say(staffed.staff, "/receipts")
    staffed.wait_for(staffed.staff, "No receipts are waiting")
    staffed.take_place(ivan, event)
    old = staffed.send_receipt(ivan)
    staffed.admin.say(staffed.staff, "/receipts")
    new = staffed.wait_for(staffed.staff, "Receipt for", after=old)
    staffed.wait(lambda: old.deleted)
    staffed.admin.press(new, "Approve")
    staffed.wait_for(staffed.chat_of(ivan), "You're in!")


def test_the_longest_shift_fits_into_every_message(staffed: Agency) -> None:
    """Telegram counts an emoji twice, and markup not at all."""
    long: dict[str, Any] = {
        "order_number": "9" * 12,
        "service_fee": 750,
        "work_time": "08:00-17:00 " + "<🦺>" * 60,
        "address": "&🏗" * 250,
        "salary": "🦺" * 255,
        "food": "<" * 255,
        "buses": "🚌" * 255,
        "additional_info": "🧤&<" * 660,
    }
    event = staffed.add_shift(title="🏗" * 200, shift=long, payment_instructions="💶&" * 1_000)
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    ivan.start(staffed.account, event)
    offer = staffed.wait_for(staffed.chat_of(ivan), "places left")
    ivan.press(offer, "Take a place")
    card = staffed.wait_for(staffed.chat_of(ivan), "A place is yours for")
    assert "💶&" * 400 in (card.text or "")
    review = staffed.send_receipt(ivan)
    staffed.admin.press(review, "Reject")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Why are you rejecting"), "Another reason…")
    staffed.wait_for(staffed.staff, "Type the reason")
    staffed.admin.say(staffed.staff, "🙅" * 2_000)
    staffed.wait_for(staffed.chat_of(ivan), "🙅" * 100)
    staffed.wait(lambda: "Decided by Olga Petrova" in (review.caption or ""))
    staffed.settle()
    refused = "SELECT key, error FROM telegram_message WHERE org_id = $1 AND error IS NOT NULL"
    assert query(staffed.database_url, refused, staffed.org.id) == []


def test_a_receipt_whose_file_is_lost_stops_no_other_message(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan, boris = staffed.add_worker(21), staffed.add_worker(22, "Boris")
    staffed.take_place(ivan, event)
    with staffed.server.hold("sendPhoto"):
        ivan.send_photo(staffed.account, image_file("JPEG"))
        staffed.wait(lambda: bool(staffed.calls_of("sendPhoto")))
    staffed.settle()
    lose_files(staffed, event)
    staffed.admin.say(staffed.staff, "/receipts")
    staffed.admin.say(staffed.staff, "/help")
    staffed.wait_for(staffed.staff, "works from this chat")
    staffed.take_place(boris, event)
    staffed.admin.press(staffed.send_receipt(boris, image_file("PNG")), "Approve")
    staffed.wait_for(staffed.chat_of(boris), "You're in!")


def lose_files(staffed: Agency, event: str) -> None:
    """Somebody has deleted them from the storage."""
    query(staffed.database_url, "UPDATE receipt SET hash = sha256(hash) WHERE event_id = $1", ids.parse_event_id(event))


def test_a_long_change_is_announced_too(staffed: Agency) -> None:
    event = staffed.add_shift(payment_instructions="x" * 2_000)
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    staffed.take_place(ivan, event)
    changed = {"order_number": "77", "service_fee": 750, "address": "Dock 5", "additional_info": "y" * 2_000}
    staffed.change_shift(event, shift=changed)
    notice = staffed.wait_for(staffed.chat_of(ivan), "Your shift has changed")
    assert "Dock 5" in (notice.text or "")
    last = "SELECT data FROM journal WHERE event_id = $1 ORDER BY number DESC LIMIT 1"
    entry = query(staffed.database_url, last, ids.parse_event_id(event))[0]["data"]
    assert "fields" in msgspec.json.decode(entry)["change"]
