"""A confirmed booking can be handed to another person: from then on it is theirs alone, with tickets of its own."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.answers import accepted, refused
from tests.crowd import request, rush
from tests.house import Org, Server, fresh_database, hold, publish, serving, sql
from tests.inside import audit
from tests.test_door import attached, check_in, letters_to, new_address, text_of, theatre, wait_for_letters
from tests.test_smtp import Mailbox, mail_server
from tests.test_ticket_print import codes_on
from tests.things import tickets


@pytest.fixture(scope="module")
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture(scope="module")
def server(postgres: str, mailbox: Mailbox) -> Iterator[Server]:
    with fresh_database(postgres) as url, mail_server(mailbox) as where:
        with serving(url, workers=2, worker=True, HOLDFAST_SMTP_URL=f"smtp://{where}") as server:
            yield server


def _confirmed(client: httpx.Client, event: str | None = None, user: str = "ana", **more: Any) -> str:
    body = {"items": [{"pool": "standing", "tariff": "full"}], **more}
    booking: str = accepted(hold(client, event or publish(client, theatre()), user=user, **body), 201)["id"]
    accepted(client.post(f"/v1/bookings/{booking}/confirm"))
    return booking


def _transfer(client: httpx.Client, booking: str, user: str = "ben", **more: str) -> httpx.Response:
    return client.post(f"/v1/bookings/{booking}/transfer", json={"user": user, **more})


def _customer(server: Server, admin: httpx.Client, user: str) -> httpx.Client:
    token = accepted(admin.post("/v1/customer-tokens", json={"user": user}), 201)["token"]
    return server.client({"Authorization": f"Bearer {token}"})


def test_the_booking_is_the_new_owners_and_no_longer_the_former_ones(server: Server, admin: httpx.Client) -> None:
    booking = _confirmed(admin, email=new_address(), language="es")
    address = new_address()
    with _customer(server, admin, "ana") as ana, _customer(server, admin, "ben") as ben:
        refused(ben.get(f"/v1/bookings/{booking}"), 404, "not_found")
        refused(_transfer(ben, booking), 404, "not_found")
        answer = accepted(_transfer(ana, booking, email=address))
        assert (answer["user"], answer["status"]) == ("ben", "confirmed")
        for path in ("", "/tickets"):
            refused(ana.get(f"/v1/bookings/{booking}{path}"), 404, "not_found")
        refused(_transfer(ana, booking, "carl"), 404, "not_found")
        refused(_transfer(ana, booking, "ben"), 404, "not_found")
        assert accepted(ana.get("/v1/bookings"))["items"] == []
        found = accepted(ben.get(f"/v1/bookings/{booking}"))
        assert (found["user"], found["email"], found["language"]) == ("ben", address, None)
        assert [each["id"] for each in accepted(ben.get("/v1/bookings"))["items"]] == [booking]
        (ticket,) = tickets(ben, booking)
        assert ticket["status"] == "valid"


def test_the_new_code_opens_the_door_and_the_old_one_does_not(admin: httpx.Client) -> None:
    booking = _confirmed(admin)
    (old,) = tickets(admin, booking)
    accepted(_transfer(admin, booking))
    (new,) = tickets(admin, booking)
    assert (new["id"], new["code"] != old["code"]) == (old["id"], True)
    refused(check_in(admin, old["code"]), 409, "ticket_void")
    assert accepted(check_in(admin, new["code"]))["result"] == "admitted"


def test_codes_of_every_earlier_owner_are_void_also_if_it_comes_back(admin: httpx.Client) -> None:
    booking = _confirmed(admin)
    codes = [tickets(admin, booking)[0]["code"]]
    for user in ("ben", "carl", "ana"):
        accepted(_transfer(admin, booking, user))
        codes.append(tickets(admin, booking)[0]["code"])
    assert len(set(codes)) == 4
    for code in codes[:-1]:
        refused(check_in(admin, code), 409, "ticket_void")
    accepted(check_in(admin, codes[-1]))


def test_a_seat_that_somebody_sits_in_lets_nobody_else_in(admin: httpx.Client) -> None:
    booking = _confirmed(admin)
    accepted(check_in(admin, tickets(admin, booking)[0]["code"]))
    _transfer(admin, booking)
    (ticket,) = tickets(admin, booking)
    assert ticket["status"] == "checked_in"
    assert check_in(admin, ticket["code"]).status_code == 409


def test_staff_can_hand_it_over_again_to_the_same_person_and_nothing_happens(
    server: Server, admin: httpx.Client, mailbox: Mailbox
) -> None:
    booking, address = _confirmed(admin), new_address()
    first = accepted(_transfer(admin, booking, email=address))
    (ticket,) = tickets(admin, booking)
    again = accepted(_transfer(admin, booking, email=address))
    assert again["version"] == first["version"]
    assert tickets(admin, booking) == [ticket]
    wait_for_letters(mailbox, address)
    rows = sql(
        server.database_url,
        "SELECT count(*) FROM journal WHERE booking_id = $1 AND kind = 'transferred'",
        bytes.fromhex(booking[-32:]),
    )
    assert rows[0]["count"] == 1
    assert len(letters_to(mailbox, address)) == 1


def test_of_two_new_owners_at_once_one_has_it(server: Server, org: Org, admin: httpx.Client) -> None:
    token = accepted(admin.post("/v1/customer-tokens", json={"user": "ana"}), 201)["token"]
    event = publish(admin, theatre())
    for _ in range(20):
        booking = _confirmed(admin, event)
        path = f"/v1/bookings/{booking}/transfer"
        replies = rush(server.port, [request("POST", path, token, {"user": user}) for user in ("ben", "carl")])
        assert sorted(reply.status for reply in replies) in ([200, 404], [200, 409])
        (owner,) = [reply.body["user"] for reply in replies if reply.status == 200]
        assert accepted(admin.get(f"/v1/bookings/{booking}"))["user"] == owner


@pytest.mark.parametrize(
    ("policy", "code"),
    [({"one_booking_per_user": True}, "already_booked"), ({"max_units_per_user": 3}, "limit_reached")],
)
def test_the_limits_of_the_new_owner_count(admin: httpx.Client, policy: dict[str, Any], code: str) -> None:
    event = publish(admin, theatre(policy=policy))
    two = [{"pool": "standing", "tariff": "full", "quantity": 2}]
    booking = _confirmed(admin, event, "ana", items=two)
    theirs = _confirmed(admin, event, "ben", items=two)
    refused(_transfer(admin, booking, "ben"), 409, code)
    assert accepted(admin.get(f"/v1/bookings/{booking}"))["user"] == "ana"
    accepted(_transfer(admin, booking, "carl"))
    accepted(_confirmed_again(admin, event, two))
    accepted(admin.post(f"/v1/bookings/{theirs}/refund"))
    accepted(_transfer(admin, booking, "ben"))


def _confirmed_again(client: httpx.Client, event: str, items: list[dict[str, Any]]) -> httpx.Response:
    """What ana has handed on no longer counts against her."""
    booking = accepted(hold(client, event, user="ana", items=items), 201)["id"]
    return client.post(f"/v1/bookings/{booking}/confirm")


def test_only_what_is_confirmed_can_be_handed_on(admin: httpx.Client) -> None:
    event = publish(admin, theatre(policy={"review": "manual", "max_units_per_user": None, "hold_seconds": 60}))
    item = {"pool": "standing", "tariff": "full"}

    def held() -> str:
        id_: str = accepted(hold(admin, event, items=[item]), 201)["id"]
        return id_

    def submitted() -> str:
        booking = held()
        accepted(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": "f"}))
        return booking

    def after(booking: str, verb: str) -> str:
        accepted(admin.post(f"/v1/bookings/{booking}/{verb}"))
        return booking

    no = {
        held(): "not_confirmed",
        submitted(): "not_confirmed",
        after(held(), "cancel"): "already_cancelled",
        after(submitted(), "reject"): "already_rejected",
        after(after(held(), "confirm"), "refund"): "already_refunded",
    }
    for booking, code in no.items():
        refused(_transfer(admin, booking), 409, code)
    over = _confirmed(admin, event)
    accepted(admin.post(f"/v1/events/{event}/complete"))
    refused(_transfer(admin, over), 409, "already_completed")
    short = publish(admin, theatre(policy={"hold_seconds": 1}))
    gone = accepted(hold(admin, short, items=[item]), 201)["id"]
    called_off = _confirmed(admin, short)
    accepted(admin.post(f"/v1/events/{short}/cancel"))
    refused(_transfer(admin, called_off), 409, "already_refunded")
    assert _transfer(admin, gone).status_code in (409, 410)


@pytest.mark.parametrize(
    "body", [{}, {"user": ""}, {"user": 1}, {"user": "ben", "email": "nobody"}, {"user": "b", "x": 1}]
)
def test_a_transfer_to_nobody_is_refused(admin: httpx.Client, body: dict[str, Any]) -> None:
    booking = _confirmed(admin)
    refused(admin.post(f"/v1/bookings/{booking}/transfer", json=body), 422, "invalid_request")


def test_another_org_cannot_take_it(server: Server, admin: httpx.Client) -> None:
    booking = _confirmed(admin)
    with server.client(Org(server.database_url, "elsewhere").headers()) as stranger:
        refused(_transfer(stranger, booking), 404, "not_found")


def test_the_new_holder_gets_a_letter_with_tickets_in_their_language_and_the_former_one_none(
    admin: httpx.Client, mailbox: Mailbox
) -> None:
    former, address = new_address(), new_address()
    booking = _confirmed(admin, email=former)
    wait_for_letters(mailbox, former)
    accepted(_transfer(admin, booking, email=address, language="es-MX"))
    (letter,) = wait_for_letters(mailbox, address)
    assert letter["Subject"] == "Una reserva para Friday night ahora es tuya"
    assert former not in text_of(letter)
    assert codes_on(attached(letter)["tickets.pdf"]) == [[ticket["code"]] for ticket in tickets(admin, booking)]
    assert len(letters_to(mailbox, former)) == 1
    accepted(admin.post(f"/v1/bookings/{booking}/refund"))
    assert wait_for_letters(mailbox, address, 2)[1]["Subject"].startswith("Estamos devolviendo")
    assert len(letters_to(mailbox, former)) == 1


def test_a_letter_that_comes_late_brings_the_former_holder_only_codes_that_are_void(
    admin: httpx.Client, mailbox: Mailbox
) -> None:
    """The letter of the confirmation had to wait, and the booking has gone to somebody else meanwhile."""
    former, address = new_address(), new_address()
    mailbox.answers["rcpt"] = ["451 Not now"]
    booking = _confirmed(admin, email=former)
    (old,) = tickets(admin, booking)
    accepted(_transfer(admin, booking, email=address))
    (letter,) = wait_for_letters(mailbox, former)
    assert codes_on(attached(letter)["tickets.pdf"]) == [[old["code"]]]
    refused(check_in(admin, old["code"]), 409, "ticket_void")


def test_the_books_are_right_after_all_that(server: Server, admin: httpx.Client) -> None:
    booking = _confirmed(admin)
    accepted(_transfer(admin, booking))
    accepted(admin.post(f"/v1/bookings/{booking}/refund"))
    assert audit(database_url=server.database_url)["ok"]
