"""Receipts in Telegram: in time, late, in several parts, seen before, approved and rejected."""

from tests.support.bot_harness import Agency, no_update_ends
from tests.support.harness import query
from tests.support.sample_files import image_file, pdf_file
from tests.support.telegram_server import User


def shift_with_hold(staffed: Agency) -> tuple[str, User]:
    event = staffed.add_shift(workers=1)
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    staffed.take_place(ivan, event)
    return event, ivan


def test_a_late_receipt_is_accepted_while_the_place_is_free(staffed: Agency) -> None:
    _, ivan = shift_with_hold(staffed)
    staffed.expire_holds()
    review = staffed.send_receipt(ivan)
    assert "Sent just now" in (review.caption or "")
    staffed.wait_for(staffed.chat_of(ivan), "is checking your receipt. We'll tell you")
    assert staffed.statuses() == ["payment_submitted"]


def test_a_late_receipt_is_refused_once_the_place_is_taken(staffed: Agency) -> None:
    event, ivan = shift_with_hold(staffed)
    staffed.expire_holds()
    staffed.take_place(staffed.add_worker(22, "Boris"), event)
    ivan.send_photo(staffed.account, image_file("JPEG"))
    answer = staffed.wait_for(staffed.chat_of(ivan), "someone else has taken the place")
    assert "contact" in (answer.text or "")
    assert staffed.statuses() == ["expired", "held"]


def test_a_receipt_after_the_grace_period_is_refused(staffed: Agency) -> None:
    _, ivan = shift_with_hold(staffed)
    staffed.expire_holds(600)
    ivan.send_photo(staffed.account, image_file("JPEG"))
    answer = staffed.wait_for(staffed.chat_of(ivan), "only for 2 min")
    assert answer.buttons == ["Try again"]


def test_an_album_is_one_receipt(staffed: Agency) -> None:
    _, ivan = shift_with_hold(staffed)
    for _ in range(3):
        ivan.send_photo(staffed.account, image_file("JPEG"), media_group_id="album")
    staffed.wait_for(staffed.staff, "Receipt for")
    staffed.wait(lambda: sum("One more file" in (m.caption or "") for m in staffed.staff.visible) == 2)
    staffed.settle()
    assert len(staffed.messages_to(ivan, "is checking your receipt. We'll tell")) == 1
    payments = "SELECT count(*) AS n FROM payment JOIN booking ON booking.id = booking_id WHERE booking.org_id = $1"
    assert query(staffed.database_url, payments, staffed.org.id)[0]["n"] == 1


def test_a_receipt_that_was_sent_before_is_marked(staffed: Agency) -> None:
    event = staffed.add_shift(workers=2)
    staffed.follow(event)
    file = image_file("PNG")
    reviews = []
    for id_ in (21, 22):
        worker = staffed.add_worker(id_)
        staffed.take_place(worker, event)
        reviews.append(staffed.send_receipt(worker, file))
    assert "already sent for other bookings: 1" in (reviews[1].caption or "")
    assert "already sent" not in (reviews[0].caption or "")


def test_a_pdf_is_a_receipt_and_other_files_are_not(staffed: Agency) -> None:
    _, ivan = shift_with_hold(staffed)
    ivan.send_document(staffed.account, b"just some text", "notes.txt")
    staffed.wait_for(staffed.chat_of(ivan), "can't read that file")
    ivan.send_document(staffed.account, pdf_file(), "receipt.pdf")
    review = staffed.wait_for(staffed.staff, "Receipt for")
    assert review.document is not None


def test_a_rejected_worker_reads_the_reason_and_can_try_again(staffed: Agency) -> None:
    _, ivan = shift_with_hold(staffed)
    review = staffed.send_receipt(ivan)
    staffed.admin.press(review, "Reject")
    why = staffed.wait_for(staffed.staff, "Why are you rejecting")
    staffed.admin.press(why, "The amount is wrong.")
    notice = staffed.wait_for(staffed.chat_of(ivan), "The amount is wrong.")
    assert notice.buttons == ["Try again"]
    ivan.press(notice, "Try again")
    staffed.wait(lambda: staffed.statuses() == ["rejected", "held"])
    staffed.wait(lambda: "Rejected" in (review.caption or ""))


def test_a_reason_in_own_words_reaches_the_worker(staffed: Agency) -> None:
    _, ivan = shift_with_hold(staffed)
    review = staffed.send_receipt(ivan)
    staffed.admin.press(review, "Reject")
    staffed.admin.press(staffed.wait_for(staffed.staff, "Why are you rejecting"), "Another reason…")
    staffed.wait_for(staffed.staff, "Type the reason")
    staffed.admin.say(staffed.staff, "Please pay to the <new> card")
    staffed.wait_for(staffed.chat_of(ivan), "Please pay to the <new> card")


def test_two_admins_who_decide_at_once_make_one_decision(staffed: Agency) -> None:
    _, ivan = shift_with_hold(staffed)
    review = staffed.send_receipt(ivan)
    other = staffed.add_colleague(12, "Pavel")
    staffed.admin.press(review, "Reject")
    why = staffed.wait_for(staffed.staff, "Why are you rejecting")
    other.press(review, "Approve")
    staffed.admin.press(why, "This receipt was already used.")
    staffed.wait(lambda: "Decided by" in (review.caption or ""))
    staffed.settle()
    decided = staffed.statuses()
    assert decided in (["confirmed"], ["rejected"])
    approvals = len(staffed.messages_to(ivan, "You're in!"))
    rejections = len(staffed.messages_to(ivan, "couldn't accept"))
    assert approvals + rejections == 1


def test_an_album_for_one_of_two_shifts_arrives_whole(staffed: Agency) -> None:
    ivan = staffed.add_worker(21)
    for number in ("77", "78"):
        event = staffed.add_shift(number=number)
        staffed.follow(event)
        staffed.take_place(ivan, event)
    for kind in ("JPEG", "PNG", "WEBP"):
        ivan.send_photo(staffed.account, image_file(kind), media_group_id="album")
    which = staffed.wait_for(staffed.chat_of(ivan), "Which shift is this receipt for?")
    staffed.settle()
    assert len(staffed.messages_to(ivan, "Which shift is this receipt for?")) == 1
    ivan.press(which, "Shift 77")
    staffed.wait_for(staffed.staff, "Receipt for")
    staffed.wait(lambda: sum("One more file" in (m.caption or "") for m in staffed.staff.visible) == 2)
    assert sorted(staffed.statuses()) == ["held", "payment_submitted"]


def test_a_reply_to_a_card_says_which_shift_the_receipt_is_for(staffed: Agency) -> None:
    ivan = staffed.add_worker(21)
    cards = []
    for number in ("77", "78"):
        event = staffed.add_shift(number=number)
        staffed.follow(event)
        cards.append(staffed.take_place(ivan, event))
    staffed.settle()
    ivan.send_photo(staffed.account, image_file("JPEG"), reply_to=cards[0])
    review = staffed.wait_for(staffed.staff, "Receipt for")
    assert "Shift 77" in (review.caption or "")
    assert staffed.statuses() == ["payment_submitted", "held"]


def test_the_same_file_once_more_is_no_news(staffed: Agency) -> None:
    _, ivan = shift_with_hold(staffed)
    file = image_file("JPEG")
    staffed.send_receipt(ivan, file)
    staffed.settle()
    ivan.send_photo(staffed.account, file)
    staffed.wait_for(staffed.chat_of(ivan), "We already have this file.")
    staffed.settle()
    assert not [m for m in staffed.staff.visible if "One more file" in (m.caption or "")]


def test_a_decision_made_elsewhere_reaches_the_chat(staffed: Agency) -> None:
    """Somebody approves with the API while a colleague has the receipt before them in Telegram."""
    _, ivan = shift_with_hold(staffed)
    review = staffed.send_receipt(ivan)
    staffed.approve_elsewhere()
    staffed.wait_for(staffed.chat_of(ivan), "You're in!")
    staffed.wait(lambda: "Decided by someone outside Telegram" in (review.caption or ""))
    assert staffed.answer_to(staffed.admin.press(review, "Approve", stale=True)) == "Approved"
    assert len(staffed.messages_to(ivan, "You're in!")) == 1


def test_a_receipt_that_is_handled_again_is_for_the_same_shift(staffed: Agency) -> None:
    """The worker holds one place and waits for a review of another. Whoever looks after the receipt has arrived finds
    two places under review."""
    ivan = staffed.add_worker(21)
    for number in ("77", "78"):
        event = staffed.add_shift(number=number)
        staffed.follow(event)
        staffed.take_place(ivan, event)
        if number == "77":
            staffed.send_receipt(ivan)
    staffed.settle()
    # The bot cannot end the update, as if it had died just before.
    with no_update_ends(staffed.database_url):
        ivan.send_photo(staffed.account, image_file("JPEG"))
        attempts = "SELECT 1 FROM telegram_update WHERE org_id = $1 AND due_at IS NOT NULL AND attempts > 1"
        staffed.wait(lambda: query(staffed.database_url, attempts, staffed.org.id))
        assert staffed.statuses() == ["payment_submitted", "payment_submitted"]
    staffed.settle()
    assert staffed.messages_to(ivan, "Which shift is this receipt for?") == []
    per_booking = """
        SELECT count(*) AS n FROM receipt JOIN booking ON booking.id = receipt.booking_id
        WHERE booking.org_id = $1 GROUP BY booking.id
    """
    assert [row["n"] for row in query(staffed.database_url, per_booking, staffed.org.id)] == [1, 1]
