"""A confirmed booking has one ticket per seat and unit, and a door can verify each code offline."""

import base64
import io
import struct
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from PIL import Image

from holdfast.core.states import EventStatus
from holdfast.engine.event_editor import set_status
from holdfast.runtime import db, ids
from tests.support.harness import (
    Org,
    Server,
    example_event,
    post_hold,
    publish_event,
    query,
    run_with_connection,
)
from tests.support.http_assertions import expect_error, expect_ok, expect_problem
from tests.support.resources import create_confirmed_booking, list_tickets
from tests.support.ticket_reader import qr_codes_in_pdf, read_qr_codes, render_svg, texts_in_pdf

CODE_CHARS_MAX = 150


@pytest.fixture
def door(server: Server, org: Org) -> Iterator[httpx.Client]:
    with server.client(org.headers("door")) as client:
        yield client


def _buy(client: httpx.Client, event: str, *items: dict[str, Any], user: str = "u-1") -> str:
    """Place and confirm a booking."""
    booking: str = expect_ok(post_hold(client, event, user=user, items=list(items) or [{"seat": "A-1"}]), 201)["id"]
    expect_ok(client.post(f"/v1/bookings/{booking}/confirm"))
    return booking


def _first_code(client: httpx.Client, booking: str) -> str:
    code: str = list_tickets(client, booking)[0]["code"]
    return code


def _check_in(client: httpx.Client, code: str) -> httpx.Response:
    return client.post("/v1/checkins", json={"code": code})


class OfflineScanner:
    """A door scanner written from the documentation of the codes. It fetches the event's keys once and then works
    offline."""

    def __init__(self, keys: dict[str, Any]) -> None:
        assert keys["algorithm"] == "Ed25519"
        self.event = keys["event"].removeprefix("ev_")
        self.keys = {
            key["number"]: Ed25519PublicKey.from_public_bytes(base64.b64decode(key["public_key"]))
            for key in keys["keys"]
            if key["revoked_at"] is None
        }

    def verify(self, code: str) -> tuple[str, int, int, int] | None:
        """Booking, line, unit and generation of a genuine ticket of this event."""
        raw = base64.b64decode(code, altchars=b"-_", validate=True)
        if len(code) != 140 or len(raw) != 105:
            return None
        version, event, booking, line, unit, generation, key = struct.unpack(">B16s16sHHHH", raw[:41])
        if version != 1 or event.hex() != self.event or key not in self.keys:
            return None
        try:
            self.keys[key].verify(raw[41:], b"holdfast-ticket:" + raw[:41])
        except InvalidSignature:
            return None
        return f"bk_{event.hex()}{booking.hex()}", line, unit, generation


def _fetch_scanner(server: Server, event: str) -> OfflineScanner:
    """Fetch the public keys, which needs no token."""
    with server.client() as public:
        return OfflineScanner(expect_ok(public.get(f"/v1/events/{event}/ticket-key")))


def test_a_booking_has_one_ticket_for_each_seat_and_unit(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    items: list[dict[str, Any]] = [
        {"seat": "A-1"},
        {"seat": "B-7"},
        {"pool": "standing", "tariff": "child", "quantity": 3},
    ]
    found = list_tickets(admin, _buy(admin, event, *items))
    assert [(ticket["pool"], ticket["tariff"], ticket["seat"], ticket["status"]) for ticket in found] == [
        ("stalls", "full", "A-1", "valid"),
        ("stalls", "full", "B-7", "valid"),
        *[("standing", "child", None, "valid")] * 3,
    ]
    assert len({ticket["id"] for ticket in found}) == len({ticket["code"] for ticket in found}) == 5


def test_a_booking_has_no_tickets_before_it_is_confirmed(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"review": "manual"}))
    booking = expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)["id"]
    assert list_tickets(admin, booking) == []
    expect_ok(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": "f"}))
    assert list_tickets(admin, booking) == []
    expect_ok(admin.post(f"/v1/bookings/{booking}/approve"))
    (ticket,) = list_tickets(admin, booking)
    assert ticket["status"] == "valid"


@pytest.mark.parametrize("ending", ["cancel", "reject"])
def test_a_booking_that_was_never_confirmed_has_no_tickets(admin: httpx.Client, ending: str) -> None:
    confirmed = create_confirmed_booking(admin)
    event = publish_event(admin, example_event(policy={"review": "manual"}))
    booking = expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)["id"]
    if ending == "reject":
        expect_ok(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": "f"}))
    expect_ok(admin.post(f"/v1/bookings/{booking}/{ending}"))
    assert list_tickets(admin, booking) == []
    # A ticket id follows from the booking id, so anybody can guess it.
    guessed_id = f"tk_{booking.removeprefix('bk_')}{list_tickets(admin, confirmed)[0]['id'][-8:]}"
    for file in ("qr.svg", "qr.png", "ticket.pdf"):
        expect_error(admin.get(f"/v1/tickets/{guessed_id}/{file}"), 404, "not_found")


def test_an_unknown_ticket_of_a_booking_is_not_found(admin: httpx.Client) -> None:
    id_: str = list_tickets(admin, create_confirmed_booking(admin))[0]["id"]
    for line, unit in ((0, 1), (1, 0), (65535, 65535)):
        expect_error(admin.get(f"/v1/tickets/{id_[:-8]}{line:04x}{unit:04x}/qr.svg"), 404, "not_found")


def test_every_file_of_a_ticket_contains_its_code(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(details={"address": "Calle Mayor 1"}))
    for ticket in list_tickets(admin, _buy(admin, event, {"seat": "A-1"}, {"pool": "standing", "tariff": "full"})):
        svg, png, pdf = (admin.get(f"/v1/tickets/{ticket['id']}/{file}") for file in ("qr.svg", "qr.png", "ticket.pdf"))
        assert [each.headers["content-type"] for each in (svg, png, pdf)] == [
            "image/svg+xml",
            "image/png",
            "application/pdf",
        ]
        assert read_qr_codes(render_svg(ElementTree.fromstring(svg.content))) == [ticket["code"]]
        assert read_qr_codes(Image.open(io.BytesIO(png.content))) == [ticket["code"]]
        assert qr_codes_in_pdf(pdf.content) == [[ticket["code"]]]
        (text,) = texts_in_pdf(pdf.content)
        assert "Friday night" in text
        assert "Calle Mayor 1" in text
        assert ticket["seat"] is None or ticket["seat"] in text
        for each in (svg, png, pdf):
            assert "no-store" in each.headers["cache-control"]
            assert each.headers["x-content-type-options"] == "nosniff"


def test_a_code_can_be_verified_offline_with_the_public_key(server: Server, admin: httpx.Client) -> None:
    event, other = publish_event(admin, example_event()), publish_event(admin, example_event())
    booking = _buy(admin, event, {"seat": "A-1"}, {"pool": "standing", "tariff": "full", "quantity": 2})
    codes = [ticket["code"] for ticket in list_tickets(admin, booking)]
    assert max(map(len, codes)) <= CODE_CHARS_MAX
    scanner = _fetch_scanner(server, event)
    assert [scanner.verify(code) for code in codes] == [
        (booking, 0, 0, 0),
        (booking, 1, 0, 0),
        (booking, 1, 1, 0),
    ]
    assert _fetch_scanner(server, other).verify(codes[0]) is None
    raw = bytearray(base64.urlsafe_b64decode(codes[0]))
    for at in range(len(raw)):
        forged = bytes([*raw[:at], raw[at] ^ 1, *raw[at + 1 :]])
        assert scanner.verify(base64.urlsafe_b64encode(forged).decode()) is None


def test_the_public_key_endpoint_returns_no_private_key(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    with server.client() as public:
        document = expect_ok(public.get(f"/v1/events/{event}/ticket-key"))
    assert set(document) == {"event", "algorithm", "number", "public_key", "keys"}
    assert {name for key in document["keys"] for name in key} == {"number", "public_key", "created_at", "revoked_at"}
    draft = expect_ok(admin.post("/v1/events", json=example_event()), 201)["id"]
    with server.client() as public:
        expect_error(public.get(f"/v1/events/{draft}/ticket-key"), 404, "not_found")


def test_codes_stay_the_same_while_nothing_changes(admin: httpx.Client) -> None:
    booking = create_confirmed_booking(admin)
    assert list_tickets(admin, booking) == list_tickets(admin, booking)


def test_after_a_rotation_a_new_key_signs_and_old_codes_stay_valid(
    server: Server, admin: httpx.Client, door: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    booking = _buy(admin, event)
    old = _first_code(admin, booking)
    before = expect_ok(admin.get(f"/v1/events/{event}/ticket-key"))
    after = expect_ok(admin.post(f"/v1/events/{event}/ticket-key/rotate"))
    assert after["number"] == before["number"] + 1
    assert after["public_key"] != before["public_key"]
    assert [key["public_key"] for key in after["keys"]] == [before["public_key"], after["public_key"]]
    new = _first_code(admin, booking)
    assert new != old
    assert [_fetch_scanner(server, event).verify(code) for code in (old, new)] == [(booking, 0, 0, 0)] * 2
    expect_ok(_check_in(door, old))
    assert _check_in(door, new).json()["code"] == "already_checked_in"


def test_after_a_revocation_only_codes_of_the_new_key_are_valid(
    server: Server, admin: httpx.Client, door: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    booking = _buy(admin, event)
    oldest = _first_code(admin, booking)
    expect_ok(admin.post(f"/v1/events/{event}/ticket-key/rotate"))
    old = _first_code(admin, booking)
    after = expect_ok(admin.post(f"/v1/events/{event}/ticket-key/rotate", json={"revoke": True}))
    assert [key["revoked_at"] is None for key in after["keys"]] == [False, False, True]
    new, scanner = _first_code(admin, booking), _fetch_scanner(server, event)
    assert [scanner.verify(code) for code in (oldest, old, new)] == [None, None, (booking, 0, 0, 0)]
    for code in (oldest, old):
        expect_error(_check_in(door, code), 422, "invalid_ticket")
    assert expect_ok(_check_in(door, new))["result"] == "admitted"


def test_tickets_of_a_refunded_booking_are_void(admin: httpx.Client, door: httpx.Client) -> None:
    booking = create_confirmed_booking(admin)
    (before,) = list_tickets(admin, booking)
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    assert [(ticket["id"], ticket["status"]) for ticket in list_tickets(admin, booking)] == [(before["id"], "void")]
    expect_error(_check_in(door, before["code"]), 409, "ticket_void")


@pytest.mark.parametrize("price", [0, 3000])
def test_tickets_of_a_cancelled_event_are_void(admin: httpx.Client, door: httpx.Client, price: int) -> None:
    pools = [{"code": "places", "capacity": 5, "tariffs": [{"code": "full", "price": price}]}]
    event = publish_event(admin, example_event(pools=pools))
    booking = _buy(admin, event, {"pool": "places"})
    code = _first_code(admin, booking)
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))
    assert "valid" not in [ticket["status"] for ticket in list_tickets(admin, booking)]
    expect_error(_check_in(door, code), 409, "ticket_void")


def test_tickets_of_a_cancelled_event_are_void_before_its_bookings_have_ended(
    server: Server, org: Org, admin: httpx.Client, door: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    booking = _buy(admin, event)
    (ticket,) = list_tickets(admin, booking)

    async def cancel(connection: db.Connection) -> None:
        event_id = ids.parse_event_id(event)
        assert event_id is not None
        await set_status(db.Database(connection), org.id, event_id, EventStatus.CANCELLED, "test")

    run_with_connection(cancel, server.database_url)
    assert expect_ok(admin.get(f"/v1/bookings/{booking}"))["status"] == "confirmed"
    assert [ticket["status"] for ticket in list_tickets(admin, booking)] == ["void"]
    expect_error(admin.get(f"/v1/tickets/{ticket['id']}/qr.svg"), 409, "ticket_void")
    expect_error(_check_in(door, ticket["code"]), 409, "ticket_void")
    entered = "SELECT FROM checkin WHERE event_id = $1"
    assert query(server.database_url, entered, ids.parse_event_id(event)) == []


def test_tickets_of_a_completed_booking_stay_valid(server: Server, admin: httpx.Client, door: httpx.Client) -> None:
    """A guest may arrive after the official end."""
    event = publish_event(admin, example_event())
    booking = _buy(admin, event)
    code = _first_code(admin, booking)
    expect_ok(admin.post(f"/v1/events/{event}/complete"))
    assert expect_ok(admin.get(f"/v1/bookings/{booking}"))["status"] == "completed"
    assert [(ticket["code"], ticket["status"]) for ticket in list_tickets(admin, booking)] == [(code, "valid")]
    assert expect_ok(_check_in(door, code))["result"] == "admitted"
    assert [ticket["status"] for ticket in list_tickets(admin, booking)] == ["checked_in"]


def test_a_resold_seat_gets_another_code(admin: httpx.Client, door: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    first = _buy(admin, event)
    old = _first_code(admin, first)
    expect_ok(admin.post(f"/v1/bookings/{first}/refund"))
    second = _buy(admin, event, user="u-2")
    expect_ok(_check_in(door, _first_code(admin, second)))
    expect_error(_check_in(door, old), 409, "ticket_void")


def test_only_the_holder_and_staff_can_read_tickets(server: Server, org: Org, admin: httpx.Client) -> None:
    booking = create_confirmed_booking(admin, "u-1")
    (ticket,) = list_tickets(admin, booking)
    other = Org(server.database_url)
    tokens = [expect_ok(admin.post("/v1/customer-tokens", json={"user": u}), 201)["token"] for u in ("u-1", "u-2")]
    callers = [
        (org.headers("sales"), 200),
        (org.headers("door"), 200),
        (org.headers("review"), 403),
        ({"Authorization": f"Bearer {tokens[0]}"}, 200),
        ({"Authorization": f"Bearer {tokens[1]}"}, 404),
        (other.headers(), 404),
        ({}, 401),
    ]
    paths = [f"/v1/bookings/{booking}/tickets"]
    paths += [f"/v1/tickets/{ticket['id']}/{file}" for file in ("qr.svg", "qr.png", "ticket.pdf")]
    for headers, expected in callers:
        with server.client(headers) as client:
            assert [client.get(path).status_code for path in paths] == [expected] * 4


def test_a_booking_never_has_more_units_than_ticket_numbers(admin: httpx.Client) -> None:
    """A code has room for 65,536 units of a line. A larger line must be refused before it is sold."""
    pools = [{"code": "field", "capacity": 100_000, "tariffs": [{"code": "full", "price": 100}]}]
    event = publish_event(admin, example_event(pools=pools))
    answer = post_hold(admin, event, items=[{"pool": "field", "quantity": 1000}] * 66)
    if answer.status_code == 201:
        booking = answer.json()["id"]
        expect_ok(admin.post(f"/v1/bookings/{booking}/confirm"))
        assert len({ticket["code"] for ticket in list_tickets(admin, booking)}) == 66_000
    else:
        assert expect_problem(answer)["status"] in (409, 422)
