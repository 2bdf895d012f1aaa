"""Updates that repeat, come in another order, make no sense, or cannot be handled."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.bot.outbox import WAITING_MAX
from tests.support.bot_harness import Agency
from tests.support.harness import query
from tests.support.sample_files import image_file
from tests.support.telegram_server import User


@pytest.fixture
def unreliable(staffed: Agency) -> Iterator[Agency]:
    """Telegram delivers every update twice, and in any order."""
    staffed.server.duplicate = staffed.server.shuffle = True
    yield staffed
    staffed.server.duplicate = staffed.server.shuffle = False


def test_updates_that_repeat_and_change_places_are_handled_once(unreliable: Agency) -> None:
    found = unreliable
    event = found.add_shift(workers=2)
    found.follow(event)
    workers = [found.add_worker(id_) for id_ in (21, 22, 23)]
    for worker in workers:
        worker.start(found.account, event)
    offers = [found.wait_for(found.chat_of(worker), "places left") for worker in workers]
    for worker, offer in zip(workers, offers, strict=True):
        worker.press(offer, "Take a place")
    found.wait(lambda: found.statuses() == ["held", "held"])
    found.settle()
    assert [len(found.messages_to(worker, "Order number")) for worker in workers] == [1, 1, 1]
    cards = [len(found.messages_to(worker, "A place is yours for")) for worker in workers]
    refusals = [len(found.messages_to(worker, "all places are taken")) for worker in workers]
    assert sorted(cards) == [0, 1, 1]
    assert [card + refusal for card, refusal in zip(cards, refusals, strict=True)] == [1, 1, 1]


def test_the_bot_works_again_after_the_database_was_away(staffed: Agency) -> None:
    others = """
        SELECT count(pg_terminate_backend(pid)) AS n FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
    """
    assert query(staffed.database_url, others)[0]["n"] > 5
    staffed.admin.say(staffed.staff, "/help")
    answer = staffed.wait_for(staffed.staff, "works from this chat")
    staffed.settle()
    assert staffed.staff.texts.count(answer.text or "") == 1


def test_an_update_that_nobody_understands_stops_no_other(staffed: Agency) -> None:
    for nonsense in ({"chat": {"id": "x"}}, {"message_id": "x", "date": 1, "chat": {"id": 5, "type": "private"}}):
        staffed.account.queue.add("message", nonsense, 5)
    staffed.admin.say(staffed.staff, "/help")
    staffed.wait_for(staffed.staff, "works from this chat")
    staffed.settle()


def test_an_update_that_always_fails_is_answered_in_the_end(staffed: Agency) -> None:
    """As if a process had died again and again while it handled the update."""
    ivan = staffed.add_worker(21)
    body = """{"update_id": 1, "message": {"message_id": 1, "date": 1, "text": "/help",
        "chat": {"id": 1, "type": "private"}, "from": {"id": 1, "is_bot": false, "first_name": "Ivan"}}}"""
    insert = "INSERT INTO telegram_update (org_id, number, chat_id, body, attempts) VALUES ($1, 1, $2, $3, 8)"
    query(staffed.database_url, insert, staffed.org.id, ivan.id, body)
    staffed.wait_for(staffed.chat_of(ivan), "something went wrong on our side")
    staffed.settle()
    assert staffed.messages_to(ivan, "Open a shift from the channel") == []


def test_a_receipt_waits_until_telegram_hands_it_out(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    staffed.take_place(ivan, event)
    staffed.server.fail_next("getFile", 500, "Internal Server Error", times=2)
    ivan.send_photo(staffed.account, image_file("JPEG"))
    staffed.wait_for(staffed.staff, "Receipt for")


def test_a_flood_of_one_chat_costs_only_its_own_answers(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    flooder, ivan = staffed.add_worker(21), staffed.add_worker(22)
    staffed.take_place(flooder, event)
    staffed.settle()
    with staffed.server.hold("sendMessage"):
        for _ in range(150):
            flooder.say(staffed.account, "hello")
        staffed.wait(lambda: len(waiting_messages(staffed, flooder, "update:")) == WAITING_MAX)
        staffed.expire_holds()
        staffed.run_command("reap", "--event", event)
        staffed.wait(lambda: waiting_messages(staffed, flooder, "entry:"))
        assert len(waiting_messages(staffed, flooder, "update:")) == WAITING_MAX
    ivan.say(staffed.account, "/help")
    staffed.wait_for(staffed.chat_of(ivan), "Open a shift from the channel")
    assert waiting_messages(staffed, flooder, "update:")


def waiting_messages(staffed: Agency, worker: User, prefix: str) -> list[Any]:
    statement = "SELECT 1 FROM telegram_message WHERE chat_id = $1 AND message_id IS NULL AND starts_with(key, $2)"
    rows: list[Any] = query(staffed.database_url, statement, worker.id, prefix)
    return rows
