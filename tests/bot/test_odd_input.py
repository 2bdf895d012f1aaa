"""Blocked bots, deleted posts, unusual names, long texts and an unwilling Telegram."""

import itertools
from pathlib import Path

from tests.support.bot_harness import Agency
from tests.support.harness import query
from tests.support.sample_files import image_file
from tests.support.telegram_server import Contact, User


def register(staffed: Agency, id_: int, first_name: str, name: str, event: str) -> User:
    worker = staffed.new_worker(id_, first_name)
    worker.start(staffed.account, event)
    chat = staffed.chat_of(worker)
    worker.press(staffed.wait_for(chat, "Do you agree?"), "I agree")
    staffed.wait_for(chat, "first and last name")
    worker.say(staffed.account, name)
    staffed.wait_for(chat, "share your phone number")
    worker.share_contact(staffed.account, "34600111222")
    worker.press(staffed.wait_for(chat, "places left"), "Take a place")
    staffed.wait_for(chat, "A place is yours for")
    return worker


def test_names_with_emoji_markup_and_direction_marks_stay_harmless(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    name = "Zoë 🦺 <b>Bold</b> & \u202eevil\u202c"
    worker = register(staffed, 21, "Zoë\u202e", name, event)
    review = staffed.send_receipt(worker)
    assert "Zoë 🦺 <b>Bold</b> & evil" in (review.caption or "")


def test_a_text_of_4096_characters_is_refused_where_it_does_not_fit(staffed: Agency) -> None:
    staffed.admin.say(staffed.staff, "/new")
    staffed.wait_for(staffed.staff, "What's the order number")
    staffed.admin.say(staffed.staff, "x" * 4096)
    staffed.wait_for(staffed.staff, "too long")
    worker = staffed.new_worker(21)
    worker.start(staffed.account)
    worker.press(staffed.wait_for(staffed.chat_of(worker), "Do you agree?"), "I agree")
    staffed.wait_for(staffed.chat_of(worker), "first and last name")
    worker.say(staffed.account, "x" * 4096)
    staffed.wait_for(staffed.chat_of(worker), "2 to 100 characters")


def test_somebody_elses_phone_number_is_refused(staffed: Agency) -> None:
    worker = staffed.new_worker(21)
    worker.start(staffed.account)
    chat = staffed.chat_of(worker)
    worker.press(staffed.wait_for(chat, "Do you agree?"), "I agree")
    staffed.wait_for(chat, "first and last name")
    worker.say(staffed.account, "Ivan Sidorov")
    staffed.wait_for(chat, "share your phone number")
    worker.send_contact(staffed.account, Contact(phone_number="+34600999888", first_name="Other", user_id=99))
    staffed.wait_for(chat, "your own number")


def test_a_worker_who_blocks_the_bot_delays_nobody(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan, boris = staffed.add_worker(21), staffed.add_worker(22, "Boris")
    staffed.take_place(ivan, event)
    ivan.block(staffed.account)
    staffed.expire_holds()
    staffed.take_place(boris, event)
    person = "SELECT unreachable_at FROM telegram_person WHERE person_id = $1"
    staffed.wait(lambda: query(staffed.database_url, person, ivan.id)[0]["unreachable_at"] is not None)
    waiting = "SELECT count(*) AS n FROM telegram_message WHERE chat_id = $1 AND due_at IS NOT NULL"
    staffed.wait(lambda: query(staffed.database_url, waiting, ivan.id)[0]["n"] == 0)


def test_a_deleted_post_is_reported_and_can_be_posted_again(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    staffed.admin.say(staffed.staff, "/shifts")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Upcoming shifts"), "Shift 77")
    staffed.admin.press(staffed.wait_for(staffed.staff, "0 of 3 places taken"), "Post to the channel")
    post = staffed.wait_for(staffed.channel, "3 of 3 places left")
    staffed.server.delete_message(staffed.channel, post.id)
    staffed.take_place(staffed.add_worker(21), event)
    report = staffed.wait_for(staffed.staff, "deleted the channel post")
    staffed.admin.press(report, "Post to the channel")
    staffed.wait_for(staffed.channel, "2 of 3 places left")


def test_the_bot_waits_as_long_as_telegram_asks(staffed: Agency) -> None:
    staffed.server.fail_next("sendMessage", 429, "Too Many Requests: retry after 2", retry_after=2, chat=staffed.staff)
    staffed.admin.say(staffed.staff, "/help")
    staffed.wait_for(staffed.staff, "works from this chat")
    staffed.settle()
    calls = staffed.calls_of("sendMessage")
    assert [call.status for call in calls] == [429, 200]
    assert calls[1].time - calls[0].time >= 2


def test_an_unavailable_telegram_is_tried_again(staffed: Agency) -> None:
    staffed.server.fail_next("sendMessage", 502, "Bad Gateway", times=2, chat=staffed.staff)
    staffed.admin.say(staffed.staff, "/help")
    staffed.wait_for(staffed.staff, "works from this chat")


def test_many_holds_make_few_edits_of_the_post(staffed: Agency) -> None:
    event = staffed.add_shift(workers=30)
    staffed.follow(event)
    staffed.admin.say(staffed.staff, "/shifts")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Upcoming shifts"), "Shift 77")
    staffed.admin.press(staffed.wait_for(staffed.staff, "0 of 30 places taken"), "Post to the channel")
    post = staffed.wait_for(staffed.channel, "30 of 30 places left")
    workers = [staffed.add_worker(id_) for id_ in range(100, 130)]
    for worker in workers:
        worker.start(staffed.account, event)
    for worker in workers:
        worker.press(staffed.wait_for(staffed.chat_of(worker), "places left"), "Take a place")
        if worker is workers[9]:
            staffed.wait(lambda: post.edits)
    staffed.wait(lambda: "FULL" in (post.text or ""))
    assert post.buttons == []
    assert len(post.edits) <= 10
    distances = [later.time - edit.time for edit, later in itertools.pairwise(post.edits)]
    assert distances
    # Four seconds by the clock of the database.
    assert min(distances) > 3.5


def test_a_stranger_cannot_act_as_staff(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    staffed.take_place(ivan, event)
    review = staffed.send_receipt(ivan)
    forged = review.find_button("Approve").callback_data
    assert forged is not None
    chat = staffed.chat_of(ivan)
    offer = staffed.wait_for(chat, "is checking")
    staffed.server.press(ivan, offer, forged)
    ivan.send_photo(staffed.account, image_file("JPEG"))
    staffed.wait_for(chat, "Added to your receipt")
    assert staffed.statuses() == ["payment_submitted"]


def test_staff_hear_of_a_channel_that_refuses_the_post(staffed: Agency) -> None:
    staffed.follow(staffed.add_shift())
    staffed.channel.remove_bot(staffed.account)
    staffed.admin.say(staffed.staff, "/shifts")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Upcoming shifts"), "Shift 77")
    staffed.admin.press(staffed.wait_for(staffed.staff, "0 of 3 places taken"), "Post to the channel")
    report = staffed.wait_for(staffed.staff, "I couldn't post “Shift 77”")
    page = Path(__file__).parents[2] / "docs" / "telegram.md"
    statement = page.read_text().partition("```sql\n")[2].partition("```")[0]
    rows = query(staffed.database_url, statement.rstrip().rstrip(";"))
    assert [row["refused"] for row in rows if row["slug"] == staffed.org.slug] == [1]
    staffed.channel.add_bot(staffed.account)
    staffed.admin.press(report, "Post to the channel")
    staffed.wait_for(staffed.channel, "3 of 3 places left")


def test_a_free_shift_needs_no_receipt(staffed: Agency) -> None:
    event = staffed.add_shift(fee=0, policy={"confirm_at_once": True})
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    ivan.start(staffed.account, event)
    ivan.press(staffed.wait_for(staffed.chat_of(ivan), "places left"), "Take a place")
    staffed.wait_for(staffed.chat_of(ivan), "You're in! The place is yours.")
    staffed.settle()
    assert staffed.statuses() == ["confirmed"]
    assert staffed.messages_to(ivan, "receipt") == []
