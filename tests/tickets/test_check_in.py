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
from holdfast.runtime.credentials import Role, create_key
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


def expect_already_checked_in(answer: httpx.Response) -> dict[str, Any]:
    document: dict[str, Any] = answer.json()
    assert (answer.status_code, document["code"]) == (409, "already_checked_in"), document
    assert answer.headers["content-type"] == "application/problem+json"
    return document


def _check_in_request(code: str, key: str, gate: str, nonce: str | None = None) -> bytes:
    return request("POST", "/v1/checkins", key, {"code": code, "gate": gate, "nonce": nonce})


def _buy(client: httpx.Client, event: str, quantity: int = 1) -> str:
    item = {"pool": "standing", "tariff": "full", "quantity": quantity}
    booking: str = expect_ok(post_hold(client, event, items=[item]), 201)["id"]
    expect_ok(client.post(f"/v1/bookings/{booking}/confirm"))
    return booking


def test_a_buyer_gets_an_email_whose_ticket_admits_once(
    admin: httpx.Client, door: httpx.Client, mailbox: Mailbox
) -> None:
    address = new_address()
    event = publish_event(admin, theatre_event())
    booking = buy_booking(admin, event, {"seat": "A-5"}, {"pool": "standing", "tariff": "child"}, email=address)
    (email,) = wait_for_emails(mailbox, address)
    assert email["Subject"] == "Your tickets for Friday night"
    assert SENDER in email["From"]
    assert "8:00" in plain_text(email), "the time in Madrid"
    files = attachments(email)
    assert set(files) == {"tickets.pdf", "event.ics"}
    (entry,) = Calendar.from_ical(files["event.ics"]).walk("VEVENT")
    assert (entry["SUMMARY"], entry["LOCATION"]) == ("Friday night", "Calle Mayor 1")
    assert entry.decoded("DTSTART") == datetime.fromisoformat("2027-03-05T19:00:00Z")
    assert entry.decoded("DTEND") == datetime.fromisoformat("2027-03-05T22:00:00Z")

    printed = qr_codes_in_pdf(files["tickets.pdf"])
    assert printed == [[ticket["code"]] for ticket in list_tickets(admin, booking)]
    assert ["A-5" in text for text in texts_in_pdf(files["tickets.pdf"])] == [True, False]
    ((seat,), (standing,)) = printed
    admitted = expect_ok(check_in(door, seat, "north"))
    assert admitted == {
        "result": "admitted",
        "ticket": list_tickets(admin, booking)[0]["id"],
        "event": event,
        "booking": booking,
        "pool": "stalls",
        "pool_name": "Stalls",
        "starts_at": "2027-03-05T19:00:00Z",
        "ends_at": "2027-03-05T22:00:00Z",
        "tariff": "full",
        "seat": "A-5",
        "at": admitted["at"],
        "gate": "north",
    }
    repeated = expect_already_checked_in(check_in(door, seat, "south"))
    assert (repeated["checked_in_at"], repeated["gate"]) == (admitted["at"], "north")
    assert "north" in repeated["detail"]
    assert expect_ok(check_in(door, standing, "south"))["seat"] is None
    assert [ticket["status"] for ticket in list_tickets(admin, booking)] == ["checked_in", "checked_in"]


def test_a_repeated_nonce_gets_the_same_answer_and_another_does_not(admin: httpx.Client, door: httpx.Client) -> None:
    booking = _buy(admin, publish_event(admin, example_event()), 2)
    first, second = (ticket["code"] for ticket in list_tickets(admin, booking))
    answer = expect_ok(check_in(door, first, "north", "n-1"))
    assert expect_ok(check_in(door, first, "north", "n-1")) == answer
    expect_already_checked_in(check_in(door, first, "north", "n-2"))
    expect_already_checked_in(check_in(door, first, "north"))
    assert expect_ok(check_in(door, second, "north", "n-1"))["ticket"] != answer["ticket"]
    without_nonce = list_tickets(admin, _buy(admin, publish_event(admin, example_event())))[0]["code"]
    expect_ok(check_in(door, without_nonce, None))
    assert "gate" not in expect_already_checked_in(check_in(door, without_nonce, None))


def test_a_nonce_is_good_only_at_its_own_gate_and_with_its_own_key(
    server: Server, org: Org, admin: httpx.Client, door: httpx.Client
) -> None:
    """A second person with a copy of the ticket must not enter on the first person's nonce."""
    (ticket,) = list_tickets(admin, _buy(admin, publish_event(admin, example_event())))
    answer = expect_ok(check_in(door, ticket["code"], "north", "n-1"))
    for other_gate in ("south", None):
        expect_already_checked_in(check_in(door, ticket["code"], other_gate, "n-1"))
    with server.client(door_key(server, org)) as other_device:
        expect_already_checked_in(check_in(other_device, ticket["code"], "north", "n-1"))
    assert expect_ok(check_in(door, ticket["code"], "north", "n-1")) == answer


def door_key(server: Server, org: Org, *events: str) -> dict[str, str]:
    """The headers of a new door key, bound to these events if there are any."""
    ids_ = [bytes.fromhex(event.removeprefix("ev_")) for event in events]

    async def create(connection: db.Connection) -> str:
        return await create_key(db.Database(connection), org.id, Role.DOOR, ids_ or None)

    return {"Authorization": f"Bearer {run_with_connection(create, server.database_url)}"}


def _tickets_of_two_events(admin: httpx.Client) -> tuple[tuple[str, str], tuple[str, str]]:
    """Tonight's event with a ticket's code, and tomorrow's."""
    tonight = publish_event(admin, theatre_event(title="Tonight"))
    tomorrow = publish_event(admin, theatre_event(title="Tomorrow", starts_at="2027-03-06T19:00:00Z", ends_at=None))
    codes = [list_tickets(admin, _buy(admin, event))[0]["code"] for event in (tonight, tomorrow)]
    return (tonight, codes[0]), (tomorrow, codes[1])


def _count_check_ins(server: Server, event: str) -> int:
    found = query(
        server.database_url,
        "SELECT count(*) FROM checkin WHERE event_id = $1",
        bytes.fromhex(event.removeprefix("ev_")),
    )
    return int(found[0]["count"])


def test_a_ticket_of_another_event_is_sent_on_and_stays_good(
    server: Server, admin: httpx.Client, door: httpx.Client
) -> None:
    (tonight, code), (tomorrow, other) = _tickets_of_two_events(admin)
    refused = door.post("/v1/checkins", json={"code": other, "event": tonight, "gate": "north", "nonce": "n"})
    expect_error(refused, 409, "wrong_event")
    detail = refused.json()["detail"]
    assert "Tomorrow" in detail
    assert "March 6, 2027" in detail
    assert "8:00" in detail, "the time in Madrid"
    assert _count_check_ins(server, tomorrow) == 0
    expect_ok(door.post("/v1/checkins", json={"code": code, "event": tonight}))
    expect_ok(door.post("/v1/checkins", json={"code": other, "event": tomorrow}))
    expect_ok(check_in(door, list_tickets(admin, _buy(admin, tomorrow))[0]["code"]))


def test_a_void_ticket_of_another_event_is_still_of_another_event(admin: httpx.Client, door: httpx.Client) -> None:
    (tonight, _), _ = _tickets_of_two_events(admin)
    booking = _buy(admin, publish_event(admin, example_event()))
    (ticket,) = list_tickets(admin, booking)
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    expect_error(door.post("/v1/checkins", json={"code": ticket["code"], "event": tonight}), 409, "wrong_event")
    forged = ("B" if ticket["code"][50] == "A" else "A").join((ticket["code"][:50], ticket["code"][51:]))
    expect_error(door.post("/v1/checkins", json={"code": forged, "event": tonight}), 422, "invalid_ticket")


@pytest.mark.parametrize("event", ["", "tonight", "ev_1", "bk_" + "0" * 32])
def test_a_check_in_at_something_that_is_no_event_is_refused(
    admin: httpx.Client, door: httpx.Client, event: str
) -> None:
    (ticket,) = list_tickets(admin, _buy(admin, publish_event(admin, example_event())))
    expect_error(door.post("/v1/checkins", json={"code": ticket["code"], "event": event}), 422, "invalid_request")
    expect_error(
        door.post("/v1/checkins", json={"code": ticket["code"], "event": "ev_" + "0" * 32}), 409, "wrong_event"
    )
    expect_ok(check_in(door, ticket["code"]))


def test_a_key_bound_to_events_admits_only_their_tickets(server: Server, org: Org, admin: httpx.Client) -> None:
    (tonight, code), (tomorrow, other) = _tickets_of_two_events(admin)
    with server.client(door_key(server, org, tonight)) as bound:
        expect_error(check_in(bound, other), 409, "wrong_event")
        for event in (tonight, tomorrow):
            expect_error(bound.post("/v1/checkins", json={"code": other, "event": event}), 409, "wrong_event")
        expect_error(bound.post("/v1/checkins", json={"code": code, "event": tomorrow}), 409, "wrong_event")
        assert _count_check_ins(server, tonight) == _count_check_ins(server, tomorrow) == 0
        assert expect_ok(check_in(bound, code))["event"] == tonight
    with server.client(door_key(server, org, tonight, tomorrow)) as bound_to_both:
        assert expect_ok(check_in(bound_to_both, other))["event"] == tomorrow


def test_a_key_bound_to_events_reads_only_their_tickets(server: Server, org: Org, admin: httpx.Client) -> None:
    mine, other = (_buy(admin, publish_event(admin, example_event())) for _ in range(2))
    with server.client(door_key(server, org, "ev_" + mine[3:35])) as bound:
        (ticket,), (other_ticket,) = list_tickets(bound, mine), list_tickets(admin, other)
        expect_error(bound.get(f"/v1/bookings/{other}/tickets"), 404, "not_found")
        for file in ("qr.svg", "qr.png", "ticket.pdf"):
            assert bound.get(f"/v1/tickets/{ticket['id']}/{file}").status_code == 200
            expect_error(bound.get(f"/v1/tickets/{other_ticket['id']}/{file}"), 404, "not_found")


def test_simultaneous_copies_of_a_check_in_get_the_same_answer(server: Server, org: Org, admin: httpx.Client) -> None:
    """A scanner without an answer retries, maybe before its first request arrived."""
    booking = _buy(admin, publish_event(admin, example_event()), 20)
    for ticket in list_tickets(admin, booking):
        replies = send_all_at_once(server.port, [_check_in_request(ticket["code"], org.keys["door"], "north", "n")] * 4)
        assert [reply.status for reply in replies] == [200] * 4, replies
        assert all(reply.body == replies[0].body for reply in replies)


def test_a_code_with_any_bit_changed_is_refused(server: Server, org: Org, admin: httpx.Client) -> None:
    (ticket,) = list_tickets(admin, _buy(admin, publish_event(admin, example_event())))
    number = int.from_bytes(base64.urlsafe_b64decode(ticket["code"]), "big")
    forged = [base64.urlsafe_b64encode((number ^ 1 << bit).to_bytes(105, "big")).decode() for bit in range(BITS)]
    replies = send_all_at_once(
        server.port, [_check_in_request(code, org.keys["door"], "north") for code in forged], connections=8
    )
    assert Counter((reply.status, reply.code) for reply in replies) == {(422, "invalid_ticket"): BITS}
    assert [each["status"] for each in list_tickets(admin, ticket["id"].replace("tk_", "bk_")[:-8])] == ["valid"]


@pytest.mark.parametrize("change", [" {}", "{} ", "{}=", "{}\n", "https://x.example/{}", "x"])
def test_a_code_in_another_spelling_is_refused(admin: httpx.Client, door: httpx.Client, change: str) -> None:
    (ticket,) = list_tickets(admin, _buy(admin, publish_event(admin, example_event())))
    expect_error(check_in(door, change.format(ticket["code"])), 422, "invalid_ticket")


def test_tickets_of_a_refunded_booking_are_refused_at_the_door(admin: httpx.Client, door: httpx.Client) -> None:
    booking = _buy(admin, publish_event(admin, example_event()), 2)
    admitted_code, other_code = (ticket["code"] for ticket in list_tickets(admin, booking))
    expect_ok(check_in(door, admitted_code))
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    expect_error(check_in(door, other_code), 409, "ticket_void")
    expect_error(check_in(door, admitted_code), 409, "ticket_void")


def test_a_ticket_of_another_org_is_invalid(server: Server, admin: httpx.Client) -> None:
    (ticket,) = list_tickets(admin, _buy(admin, publish_event(admin, example_event())))
    with server.client(Org(server.database_url).headers("door")) as stranger:
        expect_error(check_in(stranger, ticket["code"]), 422, "invalid_ticket")
    assert list_tickets(admin, ticket["id"].replace("tk_", "bk_")[:-8])[0]["status"] == "valid"


@pytest.mark.parametrize("role", ["sales", "review"])
def test_only_door_staff_can_check_in(server: Server, org: Org, admin: httpx.Client, role: str) -> None:
    (ticket,) = list_tickets(admin, _buy(admin, publish_event(admin, example_event())))
    with server.client(org.headers(role)) as client:
        expect_error(check_in(client, ticket["code"]), 403, "forbidden")


def test_exactly_one_of_several_gates_admits_a_ticket(server: Server, org: Org, admin: httpx.Client) -> None:
    booking = _buy(admin, publish_event(admin, example_event()), 60)
    for ticket in list_tickets(admin, booking):
        gates = [f"gate {number}" for number in range(4)]
        replies = send_all_at_once(
            server.port, [_check_in_request(ticket["code"], org.keys["door"], gate, gate) for gate in gates]
        )
        (winner,) = [gate for gate, reply in zip(gates, replies, strict=True) if reply.status == 200]
        others = [reply for reply in replies if reply.status != 200]
        assert [(reply.code, reply.body["gate"]) for reply in others] == [("already_checked_in", winner)] * 3
    rows = query(server.database_url, "SELECT count(*) FROM checkin WHERE booking_id = $1", _id(booking))
    assert rows[0]["count"] == 60


def test_nobody_is_admitted_after_the_refund_is_acknowledged(server: Server, org: Org, admin: httpx.Client) -> None:
    """Two gates check people in, one after the other, while the booking is refunded."""
    event = publish_event(admin, example_event(policy={"max_units_per_user": None}))
    answers: Counter[str] = Counter()
    for _ in range(8):
        booking = _buy(admin, event, 30)
        codes = [ticket["code"] for ticket in list_tickets(admin, booking)]
        refunded_at, check_ins = asyncio.run(_check_in_and_refund(server, org, booking, codes))
        for sent_at, reply in check_ins:
            answers[reply.code] += 1
            assert (reply.status, reply.code) in {(200, "200"), (409, "ticket_void")}
            assert reply.status == 409 or sent_at < refunded_at
        rows = query(server.database_url, "SELECT count(*) FROM checkin WHERE booking_id = $1", _id(booking))
        assert rows[0]["count"] == sum(reply.status == 200 for _, reply in check_ins)
    assert set(answers) == {"200", "ticket_void"}, "the refund was always first or always last, so there was no race"


def test_a_check_in_waits_for_a_refund_in_progress(server: Server, org: Org, admin: httpx.Client) -> None:
    booking = _buy(admin, publish_event(admin, example_event()))
    code = list_tickets(admin, booking)[0]["code"]

    async def check_in_during_refund(connection: db.Connection) -> Reply:
        async with httpx.AsyncClient(base_url=server.url, headers=org.headers("door"), timeout=30) as client:
            async with connection.transaction():
                await connection.execute("UPDATE booking SET status = 'refunded' WHERE id = $1", _id(booking))
                pending = asyncio.create_task(client.post("/v1/checkins", json={"code": code}))
                await poll_until(lambda: _is_waiting_or_done(server, pending))
            answer = await pending
            return Reply(answer.status_code, answer.json())

    reply = run_with_connection(check_in_during_refund, server.database_url)
    assert (reply.status, reply.code) == (409, "ticket_void")
    rows = query(server.database_url, "SELECT count(*) FROM checkin WHERE booking_id = $1", _id(booking))
    assert rows[0]["count"] == 0
    # Undo the change that the engine did not make, so that other tests can audit this database.
    query(server.database_url, "UPDATE booking SET status = 'confirmed' WHERE id = $1", _id(booking))


async def _is_waiting_or_done(server: Server, pending: "asyncio.Task[httpx.Response]") -> bool:
    connection = await db.connect(server.database_url)
    try:
        waiting: int = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
    finally:
        await connection.close()
    return waiting > 0 or pending.done()


async def _check_in_and_refund(
    server: Server, org: Org, booking: str, codes: list[str]
) -> tuple[float, list[tuple[float, Reply]]]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        waiting = list(codes)

        async def gate(name: str) -> list[tuple[float, Reply]]:
            check_ins = []
            while waiting:
                body, at = {"code": waiting.pop(), "gate": name}, time.monotonic()
                answer = await client.post("/v1/checkins", json=body, headers=org.headers("door"))
                check_ins.append((at, Reply(answer.status_code, answer.json())))
            return check_ins

        async def refund() -> float:
            while len(waiting) > 20:
                await asyncio.sleep(0)
            answer = await client.post(f"/v1/bookings/{booking}/refund", headers=org.headers("sales"))
            assert answer.status_code == 200, answer.text
            return time.monotonic()

        at, *check_ins = await asyncio.gather(refund(), gate("north"), gate("south"))
    return at, [each for by_gate in check_ins for each in by_gate]


def _id(booking: str) -> bytes:
    return bytes.fromhex(booking[-32:])


def test_an_email_is_in_the_buyers_language(admin: httpx.Client, mailbox: Mailbox) -> None:
    address = new_address()
    buy_booking(admin, publish_event(admin, theatre_event()), email=address, language="es")
    (email,) = wait_for_emails(mailbox, address)
    assert email["Subject"] == "Tus entradas para Friday night"
    assert email["Content-Language"] == "es"
    assert "Adjuntamos tus entradas" in plain_text(email)
    assert "Entrada" in texts_in_pdf(attachments(email)["tickets.pdf"])[0]


def test_the_emailed_ticket_equals_the_downloaded_one(admin: httpx.Client, mailbox: Mailbox) -> None:
    address = new_address()
    booking = buy_booking(admin, publish_event(admin, theatre_event()), email=address, language="en-GB")
    (email,) = wait_for_emails(mailbox, address)
    (ticket,) = list_tickets(admin, booking)
    downloaded = texts_in_pdf(admin.get(f"/v1/tickets/{ticket['id']}/ticket.pdf").content)
    assert "5 March 2027 20:00" in downloaded[0]
    assert texts_in_pdf(attachments(email)["tickets.pdf"]) == downloaded


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
    (email,) = wait_for_emails(mailbox, address)
    assert email["Subject"] == "Your hold for Friday night expired"
    assert not attachments(email)


def test_a_rejected_buyer_gets_the_reason_by_email(admin: httpx.Client, mailbox: Mailbox) -> None:
    address = new_address()
    booking = expect_ok(
        post_hold(admin, publish_event(admin, theatre_event()), items=[{"seat": "A-1"}], email=address), 201
    )["id"]
    expect_ok(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": "f"}))
    expect_ok(admin.post(f"/v1/bookings/{booking}/reject", json={"reason": "It is of the wrong <month>."}))
    (email,) = wait_for_emails(mailbox, address)
    assert email["Subject"] == "Your receipt for Friday night wasn't accepted"
    assert "It is of the wrong <month>." in plain_text(email)
    html = email.get_body(("html",))
    assert html is not None
    assert "It is of the wrong &lt;month&gt;." in html.get_content()


def test_a_reason_code_is_written_in_the_buyers_language(admin: httpx.Client, mailbox: Mailbox) -> None:
    address = new_address()
    booking = buy_booking(admin, publish_event(admin, theatre_event()), email=address, language="es")
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund", json={"reason": "event_cancelled"}))
    _, email = wait_for_emails(mailbox, address, 2)
    assert "Se canceló el evento." in plain_text(email)
    assert "event_cancelled" not in plain_text(email)


def test_a_refunded_buyer_gets_the_money_and_an_email(server: Server, admin: httpx.Client, mailbox: Mailbox) -> None:
    address = new_address()
    booking = buy_booking(admin, publish_event(admin, theatre_event()), email=address)
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund", json={"reason": "The singer is ill."}))
    _, email = wait_for_emails(mailbox, address, 2)
    assert email["Subject"] == "Your refund for Friday night"
    assert "The singer is ill." in plain_text(email)
    assert not attachments(email)
    (payment,) = expect_ok(admin.get(f"/v1/bookings/{booking}"))["payments"]
    wait_until(lambda: admin.get(f"/v1/payments/{payment['id']}").json()["status"] == "refunded", ARRIVES_SECONDS)
    refunds = query(server.database_url, "SELECT count(*) FROM sandbox_refund WHERE ref = $1", payment["provider_ref"])
    assert refunds[0]["count"] == 1
    time.sleep(1)
    assert len(emails_to(mailbox, address)) == 2, "the buyer gets one email about a refund"


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
    assert emails_to(mailbox, address) == [], "the email about the refund overtook the confirmation"
    emails = wait_for_emails(mailbox, address, 2)
    assert [email["Subject"] for email in emails] == [
        "Your tickets for A play",
        "Your refund for A play",
    ]
    assert len({email["Message-ID"] for email in emails}) == 2


@pytest.mark.parametrize("address", ["ana\x07@example.org", "ana\x7f@example.org", "ana@example.org\x1b"])
def test_an_undeliverable_address_is_refused_while_the_buyer_can_correct_it(admin: httpx.Client, address: str) -> None:
    answer = post_hold(admin, publish_event(admin, example_event()), items=[{"seat": "A-1"}], email=address)
    expect_error(answer, 422, "invalid_request")


def test_a_large_group_gets_its_tickets_by_email(server: Server, admin: httpx.Client, mailbox: Mailbox) -> None:
    """Rendering all its tickets must not exceed the time limit of a delivery."""
    address, group = new_address(), 600 if IS_LONG else 40
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
