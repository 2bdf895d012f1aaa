"""A confirmed booking can be transferred: from then on it belongs to the new holder alone, with new tickets."""

from typing import Any

import httpx
import pytest

from tests.support.command_line import audit_findings
from tests.support.concurrent_requests import request, send_all_at_once
from tests.support.harness import Org, Server, post_hold, publish_event, query, wait_until
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.mail_server import Mailbox
from tests.support.resources import booking_status, list_tickets, payment_state, post_notice, post_payment
from tests.support.ticket_reader import qr_codes_in_pdf
from tests.support.ticket_sales import (
    ARRIVES_SECONDS,
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


DETAILS = {"phone": "+34 600 000 000"}


def _buy_and_transfer(server: Server, admin: httpx.Client, **more: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Ana holds places, pays in the sandbox, and gives the booking to ben. Returns event, booking and payment."""
    event = publish_event(admin, theatre_event())
    with _customer(server, admin, "ana") as ana:
        booking = expect_ok(_hold(ana, event), 201)
        payment = expect_ok(post_payment(ana, booking["id"], "pay"), 201)
        expect_ok(post_notice(admin, payment))
        wait_until(lambda: booking_status(admin, booking["id"]) == "confirmed", ARRIVES_SECONDS)
        expect_ok(_transfer(ana, booking["id"], **more))
    return event, booking, payment


def _hold(ana: httpx.Client, event: str) -> httpx.Response:
    items = [{"pool": "standing", "tariff": "full", "quantity": 2}]
    return post_hold(ana, event, "hold", user="ana", items=items, details=DETAILS, email="ana@buyers.example")


def test_nobody_sees_the_new_holders_booking_by_repeating_an_earlier_request(
    server: Server, admin: httpx.Client
) -> None:
    event, booking, payment = _buy_and_transfer(server, admin, email=new_address())
    path = f"/v1/bookings/{booking['id']}"
    with _customer(server, admin, "ana") as ana:
        replayed = _hold(ana, event)
        expect_error(replayed, 409, "already_transferred")
        assert "idempotency-replayed" not in replayed.headers
        assert not any(secret in replayed.text for secret in ("ben", "example.org", booking["id"]))
        expect_error(post_payment(ana, booking["id"], "pay"), 404, "not_found")
        expect_error(_transfer(ana, booking["id"]), 404, "not_found")
        expect_error(ana.post(f"{path}/receipt", json={"file_ref": "f"}), 404, "not_found")
        expect_error(ana.get(f"/v1/payments/{payment['id']}"), 404, "not_found")
        for verb in ("extend", "cancel"):
            expect_error(ana.post(f"{path}/{verb}"), 404, "not_found")
    found = expect_ok(admin.get("/v1/bookings", params={"event": event}))["items"]
    assert [(each["id"], each["user"]) for each in found] == [(booking["id"], "ben")]


def test_the_new_holder_sees_nothing_that_the_former_owner_entered_or_paid(server: Server, admin: httpx.Client) -> None:
    event, booking, payment = _buy_and_transfer(server, admin)
    path = f"/v1/bookings/{booking['id']}"
    with _customer(server, admin, "ben") as ben:
        expect_error(post_payment(ben, booking["id"], "pay"), 409, "already_confirmed")
        expect_error(ben.get(f"/v1/payments/{payment['id']}"), 404, "not_found")
        expect_error(ben.post(f"{path}/receipt", json={"file_ref": "f"}), 409, "already_confirmed")
        (listed,) = expect_ok(ben.get("/v1/bookings", params={"event": event}))["items"]
        views = [expect_ok(ben.get(path)), listed, expect_ok(_transfer(ben, booking["id"], "carl"))]
        for view in views:
            hidden = {name: view[name] for name in ("subtotal", "tax", "total", "details", "payments")}
            assert hidden == {"subtotal": None, "tax": None, "total": None, "details": None, "payments": []}
            (item,) = view["items"]
            assert item == {"pool": "standing", "tariff": "full", "seat": None, "quantity": 2, "unit_price": None}
            assert not any(secret in str(view) for secret in (DETAILS["phone"], payment["id"], booking["email"]))


def test_staff_still_see_what_the_former_owner_entered_and_paid(server: Server, admin: httpx.Client) -> None:
    _, booking, payment = _buy_and_transfer(server, admin)
    found = expect_ok(admin.get(f"/v1/bookings/{booking['id']}"))
    assert {name: found[name] for name in ("items", "subtotal", "tax", "total", "details")} == {
        name: booking[name] for name in ("items", "subtotal", "tax", "total", "details")
    }
    assert [each["id"] for each in found["payments"]] == [payment["id"]]
    assert expect_ok(admin.get(f"/v1/payments/{payment['id']}"))["status"] == "succeeded"


def test_a_refund_tells_the_new_holder_neither_the_price_nor_that_money_is_coming(
    server: Server, admin: httpx.Client, mailbox: Mailbox
) -> None:
    address = new_address()
    _, booking, _ = _buy_and_transfer(server, admin, email=address)
    expect_ok(admin.post(f"/v1/bookings/{booking['id']}/refund"))
    transferred, refunded = wait_for_emails(mailbox, address, 2)
    assert refunded["Subject"] == "Your tickets for Friday night are no longer valid"
    for email in (transferred, refunded):
        html = email.get_body(("html",))
        assert html is not None
        assert "€" not in plain_text(email) + html.get_content()
    assert "The refund goes to the person who paid." in plain_text(refunded)


def test_the_new_holder_gets_no_email_about_a_second_payment_of_the_former_owner(
    server: Server, admin: httpx.Client, mailbox: Mailbox
) -> None:
    address = new_address()
    event = publish_event(admin, theatre_event())
    booking = expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)["id"]
    payments = [expect_ok(post_payment(admin, booking), 201) for _ in range(2)]
    expect_ok(post_notice(admin, payments[0]))
    wait_until(lambda: booking_status(admin, booking) == "confirmed", ARRIVES_SECONDS)
    expect_ok(_transfer(admin, booking, email=address))
    expect_ok(post_notice(admin, payments[1]))
    wait_until(lambda: payment_state(admin, payments[1])[0] == "refunded", ARRIVES_SECONDS)
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    subjects = [email["Subject"] for email in wait_for_emails(mailbox, address, 2)]
    assert subjects == ["You have tickets for Friday night", "Your tickets for Friday night are no longer valid"]


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
    expect_error(_transfer(admin, booking), 409, "already_checked_in")
    expect_ok(_transfer(admin, booking, "ana"))
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
    assert wait_for_emails(mailbox, address, 2)[1]["Subject"] == "Tus entradas para Friday night ya no son válidas"
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
    event = expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))["event"]
    assert audit_findings(server.database_url, event) == []
