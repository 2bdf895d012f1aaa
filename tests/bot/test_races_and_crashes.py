"""Workers race for places through several processes, and processes die in the middle. Nobody loses or doubles
anything."""

import subprocess
from collections.abc import Callable
from contextlib import ExitStack

import httpx

from tests.support.bot_harness import Agency, agency, kill, no_update_ends, stop
from tests.support.harness import free_port, query
from tests.support.sample_files import image_file
from tests.support.telegram_server import User

WORKERS, PLACES = 100, 3


def take_all_at_once(found: Agency, event: str) -> None:
    workers = [found.add_worker(id_) for id_ in range(1000, 1000 + WORKERS)]
    for worker in workers:
        worker.start(found.account, event)
    offers = [found.wait_for(found.chat_of(worker), "places left") for worker in workers]
    for worker, offer in zip(workers, offers, strict=True):
        worker.press(offer, "Take a place")
    found.wait(lambda: all(len(answers(found, worker)) >= 1 for worker in workers))
    found.wait(lambda: not query(found.database_url, PENDING))
    got = [answers(found, worker) for worker in workers]
    assert [len(texts) for texts in got] == [1] * WORKERS
    assert sum("A place is yours for" in texts[0] for texts in got) == PLACES
    assert sum("all places are taken" in texts[0] for texts in got) == WORKERS - PLACES


PENDING = "SELECT 1 FROM telegram_update WHERE due_at IS NOT NULL LIMIT 1"


def answers(found: Agency, worker: User) -> list[str]:
    """What the bot said after the offer."""
    chat = found.chat_of(worker)
    return [message.text or "" for message in chat.visible if message.sender is found.account][1:]


def test_a_hundred_workers_get_three_places_through_two_instances(database: str) -> None:
    """Telegram delivers each update to both of them."""
    with agency(database) as found, ExitStack() as stack:
        event = found.add_shift(workers=PLACES)
        ports = [free_port(), free_port()]
        found.server.webhook_targets = [f"http://127.0.0.1:{port}/telegram/{found.bot_id}" for port in ports]
        found.server.duplicate = True
        for port in ports:
            stack.enter_context(found.running_bot(webhook="http://127.0.0.1:1", port=port))
        found.follow(event)
        take_all_at_once(found, event)
        assert found.statuses() == ["held"] * PLACES


# The connections of processes that lead the bot, or try to.
CANDIDATES = """
    SELECT count(*) AS n FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND (query = 'SELECT 1' OR query LIKE 'SELECT pg_try_advisory_lock%')
"""


def kill_after(found: Agency, process: "subprocess.Popen[bytes]", act: Callable[[], object], status: str) -> None:
    """Kill the bot after it has done what somebody asked for, and before it knows that it has."""
    with no_update_ends(found.database_url):
        act()
        found.wait(lambda: found.statuses() == [status])
        kill(process)


def test_killing_the_bot_at_every_step_loses_and_doubles_nothing(database: str) -> None:
    """After the tap, while it downloads the photo, and after the approval. Another process, which has waited for its
    turn to poll, goes on each time."""
    with agency(database) as found, ExitStack() as stack:
        event = found.add_shift()
        found.follow(event)
        ivan = found.add_worker(21)
        first = stack.enter_context(found.running_bot())
        found.wait_until_polled()
        second = stack.enter_context(found.running_bot())
        found.wait(lambda: query(database, CANDIDATES)[0]["n"] == 2)
        ivan.start(found.account, event)
        offer = found.wait_for(found.chat_of(ivan), "places left")
        found.settle()
        # Telegram's answer to a second poller.
        assert not [call for call in found.calls_of("getUpdates") if call.status == 409]
        kill_after(found, first, lambda: ivan.press(offer, "Take a place"), "held")
        third = stack.enter_context(found.running_bot())
        found.wait_for(found.chat_of(ivan), "A place is yours for")
        found.settle()
        with found.server.hold("getFile") as hold:
            ivan.send_photo(found.account, image_file("JPEG"))
            found.wait(lambda: hold.waiting > 0)
            kill(second)
        fourth = stack.enter_context(found.running_bot())
        review = found.wait_for(found.staff, "Receipt for")
        found.settle()
        kill_after(found, third, lambda: found.admin.press(review, "Approve"), "confirmed")
        found.wait_for(found.chat_of(ivan), "You're in!")
        found.wait(lambda: "Decided by" in (review.caption or ""))
        found.settle()
        assert fourth.poll() is None
        assert_told_once(found, ivan)


def assert_told_once(found: Agency, ivan: User) -> None:
    """One hold, one receipt, one decision, and one message about each."""
    assert found.statuses() == ["confirmed"]
    for text in ("You have this shift", "is checking your receipt. We'll tell", "You're in!"):
        assert len(found.messages_to(ivan, text)) == 1, text
    assert found.messages_to(ivan, "A place is yours") == []
    assert len([m for m in found.staff.visible if "Receipt for" in (m.caption or "")]) == 1
    assert not [m for m in found.staff.visible if "One more file" in (m.caption or "")]
    receipts = "SELECT count(*) AS n FROM receipt"
    assert query(found.database_url, receipts)[0]["n"] == 1


def test_an_instance_behind_the_webhook_goes_on_for_a_killed_one(database: str) -> None:
    with agency(database) as found, ExitStack() as stack:
        event = found.add_shift()
        found.follow(event)
        ivan = found.add_worker(21)
        ports = [free_port(), free_port()]
        first, _ = [stack.enter_context(found.running_bot(webhook="http://127.0.0.1:1", port=port)) for port in ports]
        addresses = [f"http://127.0.0.1:{port}/telegram/{found.bot_id}" for port in ports]
        found.server.webhook_targets = addresses[:1]
        ivan.start(found.account, event)
        offer = found.wait_for(found.chat_of(ivan), "places left")
        found.settle()
        assert_needs_secret(found, addresses[0])
        kill_after(found, first, lambda: ivan.press(offer, "Take a place"), "held")
        found.wait_for(found.chat_of(ivan), "A place is yours for")
        found.server.webhook_targets = addresses[1:]
        ivan.say(found.account, "/shifts")
        found.wait_for(found.chat_of(ivan), "Waiting for payment")
        assert found.statuses() == ["held"]


def assert_needs_secret(found: Agency, address: str) -> None:
    update = {"update_id": 1, "message": {"chat": {"id": 11}}}
    for headers in ({}, {"X-Telegram-Bot-Api-Secret-Token": "guess"}):
        assert httpx.post(address, json=update, headers=headers, timeout=30, verify=False).status_code == 401
    right = {"X-Telegram-Bot-Api-Secret-Token": "secret"}
    assert httpx.post(f"{address}9", json=update, headers=right, timeout=30, verify=False).status_code == 401
    assert httpx.post(address, content=b"nonsense", headers=right, timeout=30, verify=False).status_code == 400
    assert query(found.database_url, "SELECT 1 FROM telegram_update WHERE number = 1") == []


def test_the_countdown_goes_on_after_a_restart(database: str) -> None:
    with agency(database) as found, found.running_worker():
        event = found.add_shift(policy={"hold_seconds": 9, "max_hold_seconds": 9, "late_grace_seconds": 0})
        with found.running_bot() as process:
            found.follow(event)
            ivan = found.add_worker(21)
            card = found.take_place(ivan, event)
            stop(process)
        with found.running_bot():
            found.wait(lambda: "Your time ran out." in (card.text or ""))
            found.wait_for(found.chat_of(ivan), "your place is free again")
