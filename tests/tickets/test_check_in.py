"""From purchase to door: the email brings the tickets, and each paid ticket admits one person once."""

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest
from icalendar import Calendar

from holdfast.runtime import db
from tests.support.concurrent_requests import Reply, request, send_all_at_once
from tests.support.engine_harness import poll_until
from tests.support.harness import (
    IS_LONG,
    Org,
    Server,
    example_event,
    post_hold,
    publish_event,
    query,
    run_with_connection,
    wait_until,
)
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.mail_server import Mailbox
from tests.support.resources import list_tickets
from tests.support.ticket_reader import qr_codes_in_pdf, texts_in_pdf
from tests.support.ticket_sales import (
    ARRIVES_SECONDS,
    SENDER,
    attachments,
    buy_booking,
    check_in,
    emails_to,
    new_address,
    plain_text,
    theatre_event,
    wait_for_emails,
)

BITS = 105 * 8


@pytest.fixture
def door(server: Server, org: Org) -> Iterator[httpx.Client]:
    with server.client(org.headers("door")) as client:
        yield client


def already(answer: httpx.Response) -> dict[str, Any]:
    document: dict[str, Any] = answer.json()
    assert (answer.status_code, document["code"]) == (409, "already_checked_in"), document
    assert answer.headers["content-type"] == "application/problem+json"
    return document


def _shown(code: str, key: str, gate: str, nonce: str | None = None) -> bytes:
    return request("POST", "/v1/checkins", key, {"code": code, "gate": gate, "nonce": nonce})


def _confirmed(client: httpx.Client, event: str, quantity: int = 1) -> str:
    item = {"pool": "standing", "tariff": "full", "quantity": quantity}
    booking: str = expect_ok(post_hold(client, event, items=[item]), 201)["id"]
    expect_ok(client.post(f"/v1/bookings/{booking}/confirm"))
    return booking


def test_a_buyer_gets_an_email_whose_printed_code_admits_once(
    admin: httpx.Client, door: httpx.Client, mailbox: Mailbox
) -> None:
    address = new_address()
    event = publish_event(admin, theatre_event())
    booking = buy_booking(admin, event, {"seat": "A-5"}, {"pool": "standing", "tariff": "child"}, email=address)
    (letter,) = wait_for_emails(mailbox, address)
    assert letter["Subject"] == "Your tickets for Friday night"
    assert SENDER in letter["From"]
    assert "8:00" in plain_text(letter), "the time in Madrid"
    files = attachments(letter)
    assert set(files) == {"tickets.pdf", "event.ics"}
    (entry,) = Calendar.from_ical(files["event.ics"]).walk("VEVENT")
    assert (entry["SUMMARY"], entry["LOCATION"]) == ("Friday night", "Calle Mayor 1")
    assert entry.decoded("DTSTART") == datetime.fromisoformat("2027-03-05T19:00:00Z")
    assert entry.decoded("DTEND") == datetime.fromisoformat("2027-03-05T22:00:00Z")

    printed = qr_codes_in_pdf(files["tickets.pdf"])
    assert printed == [[ticket["code"]] for ticket in list_tickets(admin, booking)]
    assert ["A-5" in text for text in texts_in_pdf(files["tickets.pdf"])] == [True, False]
    ((seat,), (place,)) = printed
    admitted = expect_ok(check_in(door, seat, "north"))
    assert admitted == {
        "result": "admitted",
        "ticket": list_tickets(admin, booking)[0]["id"],
        "event": event,
        "booking": booking,
        "pool": "stalls",
        "tariff": "full",
        "seat": "A-5",
        "at": admitted["at"],
        "gate": "north",
    }
    again = already(check_in(door, seat, "south"))
    assert (again["checked_in_at"], again["gate"]) == (admitted["at"], "north")
    assert "north" in again["detail"]
    assert expect_ok(check_in(door, place, "south"))["seat"] is None
    assert [ticket["status"] for ticket in list_tickets(admin, booking)] == ["checked_in", "checked_in"]


def test_the_same_nonce_gets_the_same_answer_and_another_does_not(admin: httpx.Client, door: httpx.Client) -> None:
    booking = _confirmed(admin, publish_event(admin, example_event()), 2)
    first, second = (ticket["code"] for ticket in list_tickets(admin, booking))
    answer = expect_ok(check_in(door, first, "north", "n-1"))
    assert expect_ok(check_in(door, first, "north", "n-1")) == answer
    assert expect_ok(check_in(door, first, "south", "n-1")) == answer
    already(check_in(door, first, "north", "n-2"))
    already(check_in(door, first, "north"))
    assert expect_ok(check_in(door, second, "north", "n-1"))["ticket"] != answer["ticket"]
    nonceless = list_tickets(admin, _confirmed(admin, publish_event(admin, example_event())))[0]["code"]
    expect_ok(check_in(door, nonceless, None))
    assert "gate" not in already(check_in(door, nonceless, None))


def test_the_same_request_many_times_at_once_gets_one_answer(server: Server, org: Org, admin: httpx.Client) -> None:
    """A device that is in doubt asks again, maybe before its first question has arrived."""
    booking = _confirmed(admin, publish_event(admin, example_event()), 20)
    for ticket in list_tickets(admin, booking):
        replies = send_all_at_once(server.port, [_shown(ticket["code"], org.keys["door"], "north", "n")] * 4)
        assert [reply.status for reply in replies] == [200] * 4, replies
        assert all(reply.body == replies[0].body for reply in replies)


def test_a_code_with_any_bit_changed_is_refused(server: Server, org: Org, admin: httpx.Client) -> None:
    (ticket,) = list_tickets(admin, _confirmed(admin, publish_event(admin, example_event())))
    number = int.from_bytes(base64.urlsafe_b64decode(ticket["code"]), "big")
    forged = [base64.urlsafe_b64encode((number ^ 1 << bit).to_bytes(105, "big")).decode() for bit in range(BITS)]
    replies = send_all_at_once(server.port, [_shown(code, org.keys["door"], "north") for code in forged], connections=8)
    assert Counter((reply.status, reply.code) for reply in replies) == {(422, "invalid_ticket"): BITS}
    assert [each["status"] for each in list_tickets(admin, ticket["id"].replace("tk_", "bk_")[:-8])] == ["valid"]


@pytest.mark.parametrize("change", [" {}", "{} ", "{}=", "{}\n", "https://x.example/{}", "x"])
def test_a_code_in_any_other_spelling_is_refused(admin: httpx.Client, door: httpx.Client, change: str) -> None:
    (ticket,) = list_tickets(admin, _confirmed(admin, publish_event(admin, example_event())))
    expect_error(check_in(door, change.format(ticket["code"])), 422, "invalid_ticket")


def test_after_a_refund_the_door_stays_shut(admin: httpx.Client, door: httpx.Client) -> None:
    booking = _confirmed(admin, publish_event(admin, example_event()), 2)
    inside, outside = (ticket["code"] for ticket in list_tickets(admin, booking))
    expect_ok(check_in(door, inside))
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    expect_error(check_in(door, outside), 409, "ticket_void")
    expect_error(check_in(door, inside), 409, "ticket_void")


def test_a_door_of_another_org_knows_nothing_of_the_ticket(server: Server, admin: httpx.Client) -> None:
    (ticket,) = list_tickets(admin, _confirmed(admin, publish_event(admin, example_event())))
    with server.client(Org(server.database_url).headers("door")) as stranger:
        expect_error(check_in(stranger, ticket["code"]), 422, "invalid_ticket")
    assert list_tickets(admin, ticket["id"].replace("tk_", "bk_")[:-8])[0]["status"] == "valid"


@pytest.mark.parametrize("role", ["sales", "review"])
def test_only_door_staff_can_check_in(server: Server, org: Org, admin: httpx.Client, role: str) -> None:
    (ticket,) = list_tickets(admin, _confirmed(admin, publish_event(admin, example_event())))
    with server.client(org.headers(role)) as client:
        expect_error(check_in(client, ticket["code"]), 403, "forbidden")


def test_exactly_one_of_several_gates_admits_a_ticket(server: Server, org: Org, admin: httpx.Client) -> None:
    booking = _confirmed(admin, publish_event(admin, example_event()), 60)
    for ticket in list_tickets(admin, booking):
        gates = [f"gate {number}" for number in range(4)]
        replies = send_all_at_once(
            server.port, [_shown(ticket["code"], org.keys["door"], gate, gate) for gate in gates]
        )
        (winner,) = [gate for gate, reply in zip(gates, replies, strict=True) if reply.status == 200]
        others = [reply for reply in replies if reply.status != 200]
        assert [(reply.code, reply.body["gate"]) for reply in others] == [("already_checked_in", winner)] * 3
    rows = query(server.database_url, "SELECT count(*) FROM checkin WHERE booking_id = $1", _id(booking))
    assert rows[0]["count"] == 60


def test_nobody_is_admitted_after_the_refund_is_acknowledged(server: Server, org: Org, admin: httpx.Client) -> None:
    """Two gates let people in, one after the other, while the booking is refunded."""
    event = publish_event(admin, example_event(policy={"max_units_per_user": None}))
    answers: Counter[str] = Counter()
    for _ in range(8):
        booking = _confirmed(admin, event, 30)
        codes = [ticket["code"] for ticket in list_tickets(admin, booking)]
        refunded_at, shown = asyncio.run(_race(server, org, booking, codes))
        for sent_at, reply in shown:
            answers[reply.code] += 1
            assert (reply.status, reply.code) in {(200, "200"), (409, "ticket_void")}
            assert reply.status == 409 or sent_at < refunded_at
        rows = query(server.database_url, "SELECT count(*) FROM checkin WHERE booking_id = $1", _id(booking))
        assert rows[0]["count"] == sum(reply.status == 200 for _, reply in shown)
    assert set(answers) == {"200", "ticket_void"}, "the refund was always first or always last, so there was no race"


def test_a_refund_that_is_being_written_holds_up_the_door_until_it_is_known(
    server: Server, org: Org, admin: httpx.Client
) -> None:
    booking = _confirmed(admin, publish_event(admin, example_event()))
    code = list_tickets(admin, booking)[0]["code"]

    async def meet(connection: db.Connection) -> Reply:
        async with httpx.AsyncClient(base_url=server.url, headers=org.headers("door"), timeout=30) as client:
            async with connection.transaction():
                await connection.execute("UPDATE booking SET status = 'refunded' WHERE id = $1", _id(booking))
                shown = asyncio.create_task(client.post("/v1/checkins", json={"code": code}))
                await poll_until(lambda: _waits_or_is_done(server, shown))
            answer = await shown
            return Reply(answer.status_code, answer.json())

    reply = run_with_connection(meet, server.database_url)
    assert (reply.status, reply.code) == (409, "ticket_void")
    rows = query(server.database_url, "SELECT count(*) FROM checkin WHERE booking_id = $1", _id(booking))
    assert rows[0]["count"] == 0


async def _waits_or_is_done(server: Server, shown: "asyncio.Task[httpx.Response]") -> bool:
    connection = await db.connect(server.database_url)
    try:
        waiting: int = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
    finally:
        await connection.close()
    return waiting > 0 or shown.done()


async def _race(server: Server, org: Org, booking: str, codes: list[str]) -> tuple[float, list[tuple[float, Reply]]]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        waiting = list(codes)

        async def gate(name: str) -> list[tuple[float, Reply]]:
            shown = []
            while waiting:
                body, at = {"code": waiting.pop(), "gate": name}, time.monotonic()
                answer = await client.post("/v1/checkins", json=body, headers=org.headers("door"))
                shown.append((at, Reply(answer.status_code, answer.json())))
            return shown

        async def refund() -> float:
            while len(waiting) > 20:
                await asyncio.sleep(0)
            answer = await client.post(f"/v1/bookings/{booking}/refund", headers=org.headers("sales"))
            assert answer.status_code == 200, answer.text
            return time.monotonic()

        at, *shown = await asyncio.gather(refund(), gate("north"), gate("south"))
    return at, [each for of_gate in shown for each in of_gate]


def _id(booking: str) -> bytes:
    return bytes.fromhex(booking[-32:])


def test_an_email_is_in_the_buyers_language(admin: httpx.Client, mailbox: Mailbox) -> None:
    address = new_address()
    buy_booking(admin, publish_event(admin, theatre_event()), email=address, language="es")
    (letter,) = wait_for_emails(mailbox, address)
    assert letter["Subject"] == "Tus entradas para Friday night"
    assert letter["Content-Language"] == "es"
    assert "Adjuntamos tus entradas" in plain_text(letter)
    assert "Entrada" in texts_in_pdf(attachments(letter)["tickets.pdf"])[0]


def test_the_emailed_ticket_reads_like_the_downloaded_one(admin: httpx.Client, mailbox: Mailbox) -> None:
    address = new_address()
    booking = buy_booking(admin, publish_event(admin, theatre_event()), email=address, language="en-GB")
    (letter,) = wait_for_emails(mailbox, address)
    (ticket,) = list_tickets(admin, booking)
    downloaded = texts_in_pdf(admin.get(f"/v1/tickets/{ticket['id']}/ticket.pdf").content)
    assert "5 March 2027 20:00" in downloaded[0]
    assert texts_in_pdf(attachments(letter)["tickets.pdf"]) == downloaded


def test_a_buyer_whose_hold_expires_gets_an_email(admin: httpx.Client, mailbox: Mailbox) -> None:
    address = new_address()
    expect_ok(
        post_hold(
            admin,
            publish_event(admin, theatre_event(policy={"hold_seconds": 1})),
            items=[{"seat": "A-1"}],
            email=address,
        ),
        201,
    )
    (letter,) = wait_for_emails(mailbox, address)
    assert letter["Subject"] == "Your hold for Friday night expired"
    assert not attachments(letter)


def test_a_rejected_buyer_gets_the_reason_by_email(admin: httpx.Client, mailbox: Mailbox) -> None:
    address = new_address()
    booking = expect_ok(
        post_hold(admin, publish_event(admin, theatre_event()), items=[{"seat": "A-1"}], email=address), 201
    )["id"]
    expect_ok(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": "f"}))
    expect_ok(admin.post(f"/v1/bookings/{booking}/reject", json={"reason": "It is of the wrong <month>."}))
    (letter,) = wait_for_emails(mailbox, address)
    assert letter["Subject"] == "Your receipt for Friday night wasn't accepted"
    assert "It is of the wrong <month>." in plain_text(letter)
    html = letter.get_body(("html",))
    assert html is not None
    assert "It is of the wrong &lt;month&gt;." in html.get_content()


def test_a_reason_code_is_written_in_the_buyers_language(admin: httpx.Client, mailbox: Mailbox) -> None:
    address = new_address()
    booking = buy_booking(admin, publish_event(admin, theatre_event()), email=address, language="es")
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund", json={"reason": "event_cancelled"}))
    _, letter = wait_for_emails(mailbox, address, 2)
    assert "Se canceló el evento." in plain_text(letter)
    assert "event_cancelled" not in plain_text(letter)


def test_who_is_refunded_is_written_to_and_gets_the_money(
    server: Server, admin: httpx.Client, mailbox: Mailbox
) -> None:
    address = new_address()
    booking = buy_booking(admin, publish_event(admin, theatre_event()), email=address)
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund", json={"reason": "The singer is ill."}))
    _, letter = wait_for_emails(mailbox, address, 2)
    assert letter["Subject"] == "Your refund for Friday night"
    assert "The singer is ill." in plain_text(letter)
    assert not attachments(letter)
    (payment,) = expect_ok(admin.get(f"/v1/bookings/{booking}"))["payments"]
    wait_until(lambda: admin.get(f"/v1/payments/{payment['id']}").json()["status"] == "refunded", ARRIVES_SECONDS)
    refunds = query(server.database_url, "SELECT count(*) FROM sandbox_refund WHERE ref = $1", payment["provider_ref"])
    assert refunds[0]["count"] == 1
    time.sleep(1)
    assert len(emails_to(mailbox, address)) == 2, "of a refund the buyer hears once"


def test_emails_about_a_booking_arrive_in_order_even_if_the_first_is_retried(
    admin: httpx.Client, mailbox: Mailbox
) -> None:
    address = new_address()
    event = publish_event(admin, theatre_event(title="A play"))
    mailbox.answers["rcpt"] = ["451 Not now"]
    item = {"pool": "standing", "tariff": "full"}
    booking = expect_ok(post_hold(admin, event, items=[item], email=address), 201)["id"]
    expect_ok(admin.post(f"/v1/bookings/{booking}/confirm"))
    wait_until(lambda: not mailbox.answers["rcpt"], ARRIVES_SECONDS)
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    other = new_address()
    buy_booking(admin, event, email=other)
    wait_for_emails(mailbox, other)
    assert emails_to(mailbox, address) == [], "the letter of the refund has overtaken that of the confirmation"
    letters = wait_for_emails(mailbox, address, 2)
    assert [letter["Subject"] for letter in letters] == [
        "Your tickets for A play",
        "Your refund for A play",
    ]
    assert len({letter["Message-ID"] for letter in letters}) == 2


@pytest.mark.parametrize("address", ["ana\x07@example.org", "ana\x7f@example.org", "ana@example.org\x1b"])
def test_an_undeliverable_address_is_refused_while_the_buyer_can_correct_it(admin: httpx.Client, address: str) -> None:
    answer = post_hold(admin, publish_event(admin, example_event()), items=[{"seat": "A-1"}], email=address)
    expect_error(answer, 422, "invalid_request")


def test_a_large_group_gets_its_email(server: Server, admin: httpx.Client, mailbox: Mailbox) -> None:
    """However long it takes to print the tickets: it must not take longer than a letter is given."""
    address, group = new_address(), 600 if IS_LONG else 80
    pools = [{"code": "standing", "capacity": 1000, "tariffs": [{"code": "full", "price": 100}]}]
    event = publish_event(admin, example_event(pools=pools))
    item = {"pool": "standing", "quantity": group}
    booking = expect_ok(post_hold(admin, event, items=[item], email=address), 201)["id"]
    expect_ok(admin.post(f"/v1/bookings/{booking}/confirm"))

    def errors() -> list[str]:
        statement = "SELECT last_error FROM delivery WHERE stream = $1 AND last_error IS NOT NULL"
        return [row["last_error"] for row in query(server.database_url, statement, _id(booking))]

    wait_until(lambda: bool(emails_to(mailbox, address) or errors()), 120)
    assert errors() == []
    assert "tickets.pdf" in attachments(emails_to(mailbox, address)[0])
