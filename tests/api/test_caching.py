"""Caches keep nothing that only its caller may see. Public reads stay cacheable for callers without a token."""

import re

import httpx

from holdfast.api.access import Access
from holdfast.api.operations import OPERATIONS
from tests.support.harness import Server, example_event, publish_event
from tests.support.resources import (
    UNKNOWN_IDS,
    create_confirmed_booking,
    create_endpoint,
    create_receipt,
    create_ticket,
    start_payment,
)

NO_STORE = ["private, no-store"]


def _rules(response: httpx.Response) -> list[str]:
    """Every Cache-Control header of the response: two of them could contradict each other."""
    return response.headers.get_list("cache-control")


def test_every_operation_keeps_its_answers_to_a_token_out_of_shared_caches(admin: httpx.Client) -> None:
    for operation in OPERATIONS:
        path = re.sub(r"{\w+}", UNKNOWN_IDS.get(operation.resource, "none"), operation.path)
        answer = admin.request(operation.method, path, content=b"{" if operation.body_type else None)
        expected = ["private, no-cache"] if operation.access is Access.PUBLIC else NO_STORE
        assert _rules(answer) == expected, (operation.name, answer.status_code)


def test_no_cache_stores_a_private_document(server: Server, admin: httpx.Client) -> None:
    booking, event = create_confirmed_booking(admin), publish_event(admin, example_event())
    paths = [
        f"/v1/bookings/{booking}",
        "/v1/bookings",
        f"/v1/bookings/{booking}/tickets",
        f"/v1/tickets/{create_ticket(admin)}/qr.svg",
        f"/v1/receipts/{create_receipt(admin)}",
        f"/v1/payments/{start_payment(admin)['id']}",
        f"/v1/events/{event}/journal",
        f"/v1/webhook-endpoints/{create_endpoint(admin)}",
        "/v1/org",
    ]
    for path in paths:
        answer = admin.get(path)
        assert (answer.status_code, _rules(answer)) == (200, NO_STORE), path
    token = admin.post("/v1/customer-tokens", json={"user": "u-1"})
    assert (token.status_code, _rules(token)) == (201, NO_STORE)
    with server.client() as anonymous:
        assert _rules(anonymous.get("/v1/bookings")) == NO_STORE
    for missing in (admin.get("/v1/nothing"), admin.put("/v1/bookings")):
        assert _rules(missing) == NO_STORE


def test_a_public_read_without_a_token_can_be_revalidated(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    with server.client() as anonymous:
        for path in (f"/v1/events/{event}/seats", f"/v1/events/{event}/availability"):
            first = anonymous.get(path)
            again = anonymous.get(path, headers={"If-None-Match": first.headers["etag"]})
            assert (first.status_code, again.status_code) == (200, 304)
            assert _rules(first) == _rules(again) == []
