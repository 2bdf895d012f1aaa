"""A confirmed booking can be transferred: from then on it belongs to the new holder alone, with new tickets."""

from typing import Any

import httpx
import pytest

from tests.support.command_line import run_audit
from tests.support.concurrent_requests import request, send_all_at_once
from tests.support.harness import Org, Server, post_hold, publish_event, query
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.mail_server import Mailbox
from tests.support.resources import list_tickets
from tests.support.ticket_reader import qr_codes_in_pdf
from tests.support.ticket_sales import (
    attachments,
    check_in,
    emails_to,
    new_address,
    plain_text,
    theatre_event,
    wait_for_emails,
)


def _buy(client: httpx.Client, event: str | None = None, user: str = "ana", **more: Any) -> str:
    body = {"items": [{"pool": "standing", "tariff": "full"}], **more}
    booking: str = expect_ok(
        post_hold(client, event or publish_event(client, theatre_event()), user=user, **body), 201
    )["id"]
    expect_ok(client.post(f"/v1/bookings/{booking}/confirm"))
    return booking


def _transfer(client: httpx.Client, booking: str, user: str = "ben", **more: str) -> httpx.Response:
    return client.post(f"/v1/bookings/{booking}/transfer", json={"user": user, **more})


def _customer(server: Server, admin: httpx.Client, user: str) -> httpx.Client:
    token = expect_ok(admin.post("/v1/customer-tokens", json={"user": user}), 201)["token"]
    return server.client({"Authorization": f"Bearer {token}"})


def test_a_transferred_booking_belongs_only_to_the_new_owner(server: Server, admin: httpx.Client) -> None:
    booking = _buy(admin, email=new_address(), language="es")
    address = new_address()
    with _customer(server, admin, "ana") as ana, _customer(server, admin, "ben") as ben:
        expect_error(ben.get(f"/v1/bookings/{booking}"), 404, "not_found")
        expect_error(_transfer(ben, booking), 404, "not_found")
        answer = expect_ok(_transfer(ana, booking, email=address))
        assert (answer["user"], answer["status"]) == ("ben", "confirmed")
        for path in ("", "/tickets"):
            expect_error(ana.get(f"/v1/bookings/{booking}{path}"), 404, "not_found")
        expect_error(_transfer(ana, booking, "carl"), 404, "not_found")
        expect_error(_transfer(ana, booking, "ben"), 404, "not_found")
        assert expect_ok(ana.get("/v1/bookings"))["items"] == []
        found = expect_ok(ben.get(f"/v1/bookings/{booking}"))
        assert (found["user"], found["email"], found["language"]) == ("ben", address, None)
        assert [each["id"] for each in expect_ok(ben.get("/v1/bookings"))["items"]] == [booking]
        (ticket,) = list_tickets(ben, booking)
        assert ticket["status"] == "valid"


def test_a_transfer_replaces_the_code_of_a_ticket(admin: httpx.Client) -> None:
    booking = _buy(admin)
    (old,) = list_tickets(admin, booking)
    expect_ok(_transfer(admin, booking))
    (new,) = list_tickets(admin, booking)
    assert (new["id"], new["code"] != old["code"]) == (old["id"], True)
    expect_error(check_in(admin, old["code"]), 409, "ticket_void")
    assert expect_ok(check_in(admin, new["code"]))["result"] == "admitted"


def test_codes_of_earlier_holders_stay_void_even_if_the_booking_returns(admin: httpx.Client) -> None:
    booking = _buy(admin)
    codes = [list_tickets(admin, booking)[0]["code"]]
    for user in ("ben", "carl", "ana"):
        expect_ok(_transfer(admin, booking, user))
        codes.append(list_tickets(admin, booking)[0]["code"])
    assert len(set(codes)) == 4
    for code in codes[:-1]:
        expect_error(check_in(admin, code), 409, "ticket_void")
    expect_ok(check_in(admin, codes[-1]))


def test_a_checked_in_seat_admits_nobody_else(admin: httpx.Client) -> None:
    booking = _buy(admin)
    expect_ok(check_in(admin, list_tickets(admin, booking)[0]["code"]))
    _transfer(admin, booking)
    (ticket,) = list_tickets(admin, booking)
    assert ticket["status"] == "checked_in"
    assert check_in(admin, ticket["code"]).status_code == 409


def test_a_repeated_transfer_to_the_same_person_changes_nothing(
    server: Server, admin: httpx.Client, mailbox: Mailbox
) -> None:
    booking, address = _buy(admin), new_address()
    first = expect_ok(_transfer(admin, booking, email=address))
    (ticket,) = list_tickets(admin, booking)
    repeated = expect_ok(_transfer(admin, booking, email=address))
    assert repeated["version"] == first["version"]
    assert list_tickets(admin, booking) == [ticket]
    wait_for_emails(mailbox, address)
    rows = query(
        server.database_url,
        "SELECT count(*) FROM journal WHERE booking_id = $1 AND kind = 'transferred'",
        bytes.fromhex(booking[-32:]),
    )
    assert rows[0]["count"] == 1
    assert len(emails_to(mailbox, address)) == 1


def test_one_of_two_simultaneous_transfers_wins(server: Server, org: Org, admin: httpx.Client) -> None:
    token = expect_ok(admin.post("/v1/customer-tokens", json={"user": "ana"}), 201)["token"]
    event = publish_event(admin, theatre_event())
    for _ in range(20):
        booking = _buy(admin, event)
        path = f"/v1/bookings/{booking}/transfer"
        replies = send_all_at_once(
            server.port, [request("POST", path, token, {"user": user}) for user in ("ben", "carl")]
        )
        assert sorted(reply.status for reply in replies) in ([200, 404], [200, 409])
        (owner,) = [reply.body["user"] for reply in replies if reply.status == 200]
        assert expect_ok(admin.get(f"/v1/bookings/{booking}"))["user"] == owner


@pytest.mark.parametrize(
    ("policy", "code"),
    [({"one_booking_per_user": True}, "already_booked"), ({"max_units_per_user": 3}, "limit_reached")],
)
def test_a_transfer_respects_the_limits_of_the_new_owner(
    admin: httpx.Client, policy: dict[str, Any], code: str
) -> None:
    event = publish_event(admin, theatre_event(policy=policy))
    two = [{"pool": "standing", "tariff": "full", "quantity": 2}]
    booking = _buy(admin, event, "ana", items=two)
    theirs = _buy(admin, event, "ben", items=two)
    expect_error(_transfer(admin, booking, "ben"), 409, code)
    assert expect_ok(admin.get(f"/v1/bookings/{booking}"))["user"] == "ana"
    expect_ok(_transfer(admin, booking, "carl"))
    expect_ok(_buy_again(admin, event, two))
    expect_ok(admin.post(f"/v1/bookings/{theirs}/refund"))
    expect_ok(_transfer(admin, booking, "ben"))


def _buy_again(client: httpx.Client, event: str, items: list[dict[str, Any]]) -> httpx.Response:
    """Buy for ana, whose transferred booking no longer counts against her."""
    booking = expect_ok(post_hold(client, event, user="ana", items=items), 201)["id"]
    return client.post(f"/v1/bookings/{booking}/confirm")


def test_only_a_confirmed_booking_can_be_transferred(admin: httpx.Client) -> None:
    event = publish_event(
        admin, theatre_event(policy={"review": "manual", "max_units_per_user": None, "hold_seconds": 60})
    )
    item = {"pool": "standing", "tariff": "full"}

    def hold() -> str:
        id_: str = expect_ok(post_hold(admin, event, items=[item]), 201)["id"]
        return id_

    def submit() -> str:
        booking = hold()
        expect_ok(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": "f"}))
        return booking

    def act(booking: str, verb: str) -> str:
        expect_ok(admin.post(f"/v1/bookings/{booking}/{verb}"))
        return booking

    refusals = {
        hold(): "not_confirmed",
        submit(): "not_confirmed",
        act(hold(), "cancel"): "already_cancelled",
        act(submit(), "reject"): "already_rejected",
        act(act(hold(), "confirm"), "refund"): "already_refunded",
    }
    for booking, code in refusals.items():
        expect_error(_transfer(admin, booking), 409, code)
    completed = _buy(admin, event)
    expect_ok(admin.post(f"/v1/events/{event}/complete"))
    expect_error(_transfer(admin, completed), 409, "already_completed")
    short = publish_event(admin, theatre_event(policy={"hold_seconds": 1}))
    ended_hold = expect_ok(post_hold(admin, short, items=[item]), 201)["id"]
    cancelled = _buy(admin, short)
    expect_ok(admin.post(f"/v1/events/{short}/cancel"))
    expect_error(_transfer(admin, cancelled), 409, "already_refunded")
    assert _transfer(admin, ended_hold).status_code in (409, 410)


@pytest.mark.parametrize(
    "body", [{}, {"user": ""}, {"user": 1}, {"user": "ben", "email": "nobody"}, {"user": "b", "x": 1}]
)
def test_an_invalid_transfer_is_refused(admin: httpx.Client, body: dict[str, Any]) -> None:
    booking = _buy(admin)
    expect_error(admin.post(f"/v1/bookings/{booking}/transfer", json=body), 422, "invalid_request")


def test_another_org_cannot_transfer_a_booking(server: Server, admin: httpx.Client) -> None:
    booking = _buy(admin)
    with server.client(Org(server.database_url).headers()) as stranger:
        expect_error(_transfer(stranger, booking), 404, "not_found")


def test_only_the_new_holder_gets_an_email_with_tickets_in_their_language(
    admin: httpx.Client, mailbox: Mailbox
) -> None:
    former, address = new_address(), new_address()
    booking = _buy(admin, email=former)
    wait_for_emails(mailbox, former)
    expect_ok(_transfer(admin, booking, email=address, language="es-MX"))
    (email,) = wait_for_emails(mailbox, address)
    assert email["Subject"] == "Tienes entradas para Friday night"
    assert former not in plain_text(email)
    assert qr_codes_in_pdf(attachments(email)["tickets.pdf"]) == [
        [ticket["code"]] for ticket in list_tickets(admin, booking)
    ]
    assert len(emails_to(mailbox, former)) == 1
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    assert wait_for_emails(mailbox, address, 2)[1]["Subject"].startswith("Tu reembolso")
    assert len(emails_to(mailbox, former)) == 1


def test_a_late_email_brings_the_former_holder_only_void_codes(admin: httpx.Client, mailbox: Mailbox) -> None:
    """The confirmation email is retried, and meanwhile the booking is transferred."""
    former, address = new_address(), new_address()
    mailbox.answers["rcpt"] = ["451 Not now"]
    booking = _buy(admin, email=former)
    (old,) = list_tickets(admin, booking)
    expect_ok(_transfer(admin, booking, email=address))
    (email,) = wait_for_emails(mailbox, former)
    assert qr_codes_in_pdf(attachments(email)["tickets.pdf"]) == [[old["code"]]]
    expect_error(check_in(admin, old["code"]), 409, "ticket_void")


def test_a_transfer_and_a_refund_pass_the_audit(server: Server, admin: httpx.Client) -> None:
    booking = _buy(admin)
    expect_ok(_transfer(admin, booking))
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    assert run_audit(database_url=server.database_url)["ok"]
