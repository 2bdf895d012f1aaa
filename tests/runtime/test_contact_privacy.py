"""The contact details and answers of a buyer stay with the booking: they reach no log, journal, feed or webhook, and no
later holder of the booking."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.support.harness import (
    Org,
    Server,
    fresh_database,
    post_hold,
    publish_event,
    query,
    running_server,
    wait_until,
)
from tests.support.http_assertions import expect_ok
from tests.support.log_capture import CapturedLog, redirect_output
from tests.support.mail_server import Mailbox, mail_server
from tests.support.resources import list_tickets, post_payment, reviewed_event
from tests.support.ticket_sales import SENDER, attachments, plain_text
from tests.support.twilio_server import TwilioServer, twilio_server
from tests.support.webhook_receiver import WebhookReceiver, running_webhook_receiver

WAIT_SECONDS = 30
CONTACT = {"name": "Adelaide Quillfeather", "email": "quill.feather@example.org", "phone": "+34911998877"}
ANSWERS = {"diet": "Marzipan makes me sneeze", "size": ["Gargantuan", "Lilliputian"]}
ENTERED = ("Quillfeather", "quill.feather", "911998877", "Marzipan", "Gargantuan", "Lilliputian")
QUESTIONS = [
    {"code": "diet", "label": "Any allergies?"},
    {"code": "size", "label": "Size", "per": "unit"},
]
LIFE = ["held", "confirmed", "transferred", "refunded"]
TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_name <> 'booking'"
# A delivery by email names its recipient, and nothing else that the buyer entered.
EMAIL_DELIVERIES = "SELECT replace(delivery::text, '{email}', '') AS row FROM delivery"


class BookingLife:
    """One booking from hold to refund, and everything that others got to see of it, by where they saw it."""

    def __init__(
        self, server: Server, log: CapturedLog, mailbox: Mailbox, receiver: WebhookReceiver, twilio: TwilioServer
    ) -> None:
        self.server = server
        self.log = log
        self.mailbox = mailbox
        self.receiver = receiver
        self.twilio = twilio
        self.seen: dict[str, str] = {}

    def run(self) -> None:
        with self.server.client(Org(self.server.database_url).headers()) as admin:
            expect_ok(admin.post("/v1/webhook-endpoints", json={"url": self.receiver.url}), 201)
            event = publish_event(admin, reviewed_event(questions=QUESTIONS))
            address = f"{self.server.url.replace('http', 'ws')}/v1/events/{event}/live"
            with connect(address, proxy=None, open_timeout=30) as feed:
                self._fail_to_book(admin, event)
                self._book_and_pay(admin, event)
                self.seen["live feed"] = "\n".join(_read_all(feed, admin, event))
            for path in ("journal", "changes", "availability", "seats", ""):
                self.seen[f"GET {path}"] = admin.get(f"/v1/events/{event}/{path}".rstrip("/")).text
        for (table,) in query(self.server.database_url, TABLES):
            self.seen[f"table {table}"] = self._read_table(table)
        self.seen["webhooks"] = "\n".join(webhook.body.decode() for webhook in self.receiver.received)
        self.seen["log"] = self.log.text

    def _read_table(self, table: str) -> str:
        if table == "delivery":
            statement = EMAIL_DELIVERIES.format(email=CONTACT["email"])
        elif table == "payment_notice":
            statement = "SELECT convert_from(body, 'UTF8') AS row FROM payment_notice"
        else:
            statement = f"SELECT found::text AS row FROM {table} AS found"
        return "\n".join(row["row"] for row in query(self.server.database_url, statement))

    def _fail_to_book(self, admin: httpx.Client, event: str) -> None:
        """Send what the API refuses, and what the database refuses with an error that contains the row."""
        items = [{"pool": "standing", "tariff": "full", "quantity": 2}]
        for wrong in ({"answers": {"size": ["Marzipan"]}}, {"contact": {**CONTACT, "phone": "911998877"}}):
            body: dict[str, Any] = {"items": items, "contact": CONTACT, "answers": ANSWERS, **wrong}
            assert post_hold(admin, event, **body).status_code == 422
        query(self.server.database_url, "ALTER TABLE booking ADD CHECK (user_id <> 'poison') NOT VALID")
        body = {"items": items, "contact": CONTACT, "answers": ANSWERS}
        assert post_hold(admin, event, user="poison", **body).status_code == 500
        wait_until(lambda: self.log.has_entry("command_failed"), WAIT_SECONDS)

    def _book_and_pay(self, admin: httpx.Client, event: str) -> None:
        items = [{"pool": "standing", "tariff": "full", "quantity": 2}]
        held = expect_ok(post_hold(admin, event, user="ada", items=items, contact=CONTACT, answers=ANSWERS), 201)
        # The owner's own view has everything, so the search below has something to find.
        assert not [text for text in ENTERED if text not in json.dumps(held)]
        booking = held["id"]
        payment = expect_ok(post_payment(admin, booking), 201)
        assert httpx.post(payment["checkout_url"], data={"action": "pay"}, timeout=30, verify=False).status_code == 303
        wait_until(lambda: expect_ok(admin.get(f"/v1/bookings/{booking}"))["status"] == "confirmed", WAIT_SECONDS)
        wait_until(lambda: bool(self.twilio.texts_to(CONTACT["phone"])), WAIT_SECONDS)
        new_contact = {"name": "Ben", "email": "ben@example.net"}
        expect_ok(admin.post(f"/v1/bookings/{booking}/transfer", json={"user": "ben", "contact": new_contact}))
        self.seen["tickets"] = json.dumps(list_tickets(admin, booking))
        token = expect_ok(admin.post("/v1/customer-tokens", json={"user": "ben"}), 201)["token"]
        with self.server.client({"Authorization": f"Bearer {token}"}) as ben:
            self.seen["the booking as its new holder sees it"] = ben.get(f"/v1/bookings/{booking}").text
        expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
        wait_until(lambda: {f"booking.{kind}" for kind in LIFE} <= set(self.receiver.kinds_of(booking)), WAIT_SECONDS)
        wait_until(lambda: len(self._emails_to_ben()) == 2, WAIT_SECONDS)
        self.seen["emails to the new holder"] = "\n".join(
            plain_text(email) + attachments(email).get("event.ics", b"").decode() for email in self._emails_to_ben()
        )

    def _emails_to_ben(self) -> list[Any]:
        return [message for message in self.mailbox.messages if message["To"] == "ben@example.net"]


def _read_all(feed: ClientConnection, admin: httpx.Client, event: str) -> list[str]:
    """The messages of the feed up to the event's present version."""
    version = admin.get(f"/v1/events/{event}/availability").json()["version"]
    messages: list[str] = []
    try:
        while not messages or json.loads(messages[-1]).get("seq", 0) < version:
            messages.append(str(feed.recv(timeout=WAIT_SECONDS)))
    except ConnectionClosed:
        pytest.fail("the feed ended early")
    return messages


@pytest.fixture(scope="module")
def life(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingLife]:
    path = tmp_path_factory.mktemp("private") / "log"
    with ExitStack() as stack:
        mailbox, receiver = Mailbox(), stack.enter_context(running_webhook_receiver())
        twilio = stack.enter_context(twilio_server())
        mail = stack.enter_context(mail_server(mailbox))
        database = stack.enter_context(fresh_database(postgres))
        environment = {
            "HOLDFAST_SMTP_URL": f"smtp://{mail}",
            "HOLDFAST_EMAIL_FROM": SENDER,
            "HOLDFAST_SMS_URL": twilio.url,
        }
        with redirect_output(path):
            server = stack.enter_context(running_server(database, workers=1, worker=True, **environment))
        life = BookingLife(server, CapturedLog(Path(path)), mailbox, receiver, twilio)
        life.run()
        yield life


def test_what_a_buyer_enters_reaches_nobody_else(life: BookingLife) -> None:
    leaks = {(where, text) for where, seen in life.seen.items() for text in ENTERED if text.lower() in seen.lower()}
    assert leaks == set()


def test_the_search_for_leaks_looked_at_the_whole_life_of_the_booking(life: BookingLife) -> None:
    """Without this, the test above would prove nothing."""
    for where in ("table journal", "table delivery", "GET journal", "GET changes", "live feed", "webhooks"):
        assert [kind for kind in LIFE if kind not in life.seen[where]] == [], where
    for where, expected in (
        ("table payment", "sandbox"),
        ("table payment_notice", "payment.succeeded"),
        ("tickets", '"code"'),
        ("the booking as its new holder sees it", "ben@example.net"),
        ("emails to the new holder", "BEGIN:VCALENDAR"),
        ("log", "command_failed"),
    ):
        assert expected in life.seen[where], where
