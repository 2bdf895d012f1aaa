"""One shift, from the linked chats through the post in the channel to the approved receipt."""

from tests.support.bot_harness import FORM, Agency
from tests.support.harness import query


def create_shift(staffed: Agency) -> None:
    staffed.admin.say(staffed.staff, "/new")
    prompt = None
    for question, answer in FORM.items():
        prompt = staffed.wait_for(staffed.staff, question, after=prompt)
        if answer:
            staffed.admin.say(staffed.staff, answer)
        else:
            staffed.admin.press(prompt, prompt.buttons[1])
    preview = staffed.wait_for(staffed.staff, "This is what workers will see")
    staffed.admin.press(preview, "Publish")
    staffed.wait_for(staffed.staff, "Published: Shift 1204")


def test_a_shift_from_the_form_to_the_approved_receipt(staffed: Agency) -> None:
    create_shift(staffed)
    post = staffed.wait_for(staffed.channel, "3 of 3 places left")
    ivan = staffed.new_worker(21)
    ivan.open(post, "Take a place")
    chat = staffed.chat_of(ivan)
    consent = staffed.wait_for(chat, "Do you agree?")
    ivan.press(consent, "I agree")
    staffed.wait_for(chat, "first and last name")
    ivan.say(staffed.account, "Ivan Sidorov")
    staffed.wait_for(chat, "share your phone number")
    ivan.share_contact(staffed.account, "+34600111222")
    offer = staffed.wait_for(chat, "places left")
    ivan.press(offer, "Take a place")
    card = staffed.wait_for(chat, "A place is yours for")
    assert "Card 4000 1234" in (card.text or "")
    staffed.wait(lambda: "2 of 3 places left" in (post.text or ""))
    review = staffed.send_receipt(ivan)
    assert "Ivan Sidorov" in (review.caption or "")
    assert "+34600111222" in (review.caption or "")
    staffed.wait_for(chat, "is checking your receipt. We'll tell you")
    staffed.admin.press(review, "Approve")
    staffed.wait_for(chat, "You're in!")
    staffed.wait(lambda: "Decided by Olga Petrova" in (review.caption or ""))
    assert review.buttons == []
    assert staffed.statuses() == ["confirmed"]
    contacts = "SELECT name, phone FROM booking WHERE org_id = $1"
    contact = query(staffed.database_url, contacts, staffed.org.id)[0]
    assert tuple(contact) == ("Ivan Sidorov", "+34600111222")
