"""Nothing is sold twice, however many buyers order at once. Every race runs against two API processes over HTTP."""

import secrets

import httpx
import pytest

from holdfast.runtime import ids
from tests.support.concurrent_requests import count_codes, hold_request, send_all_at_once
from tests.support.harness import IS_LONG, Org, Server, example_event, publish_event, query

REPEATS = 20 if IS_LONG else 3


def one_pool_event(capacity: int) -> dict[str, object]:
    return example_event(pools=[{"code": "places", "capacity": capacity, "tariffs": [{"code": "full", "price": 100}]}])


@pytest.mark.parametrize("attempt", range(REPEATS))
def test_exactly_one_of_1000_buyers_gets_the_seat(server: Server, org: Org, admin: httpx.Client, attempt: int) -> None:
    event = publish_event(admin, example_event())
    requests = [
        hold_request(org.keys["sales"], event, f"k{n}", {"user": f"u{n}", "items": [{"seat": "A-7"}]})
        for n in range(1000)
    ]
    assert count_codes(send_all_at_once(server.port, requests)) == {"201": 1, "seat_taken": 999}


@pytest.mark.parametrize("attempt", range(REPEATS))
@pytest.mark.parametrize(("buyers", "capacity"), [(500, 50), (10, 3)])
def test_a_pool_sells_exactly_its_capacity(
    server: Server, org: Org, admin: httpx.Client, buyers: int, capacity: int, attempt: int
) -> None:
    event = publish_event(admin, one_pool_event(capacity))
    requests = [
        hold_request(org.keys["sales"], event, f"k{n}", {"user": f"u{n}", "items": [{"pool": "places"}]})
        for n in range(buyers)
    ]
    assert count_codes(send_all_at_once(server.port, requests)) == {"201": capacity, "sold_out": buyers - capacity}


@pytest.mark.parametrize("attempt", range(REPEATS))
def test_overlapping_orders_are_never_split(server: Server, org: Org, admin: httpx.Client, attempt: int) -> None:
    hall = [{"code": "hall", "seats": {"rows": list("ABCDEFGHIJ"), "numbers": 10}}]
    event = publish_event(admin, example_event(pools=hall))
    labels = [f"{row}-{number}" for row in "ABCDEFGHIJ" for number in range(1, 11)]
    rng = secrets.SystemRandom()
    requests = [
        hold_request(
            org.keys["sales"],
            event,
            f"k{n}",
            {"user": f"u{n}", "items": [{"seat": label} for label in rng.sample(labels, 4)]},
        )
        for n in range(2000)
    ]
    replies = send_all_at_once(server.port, requests, connections=250)
    assert set(count_codes(replies)) == {"201", "seat_taken"}
    sold = [item["seat"] for reply in replies if reply.status == 201 for item in reply.body["items"]]
    assert len(sold) == len(set(sold)) > 40
    assert all(len(reply.body["items"]) == 4 for reply in replies if reply.status == 201)
    (live,) = query(
        server.database_url, "SELECT count(*) FROM line WHERE live AND event_id = $1", ids.parse_event_id(event)
    )
    assert live["count"] == len(sold)


def test_50_requests_with_one_key_make_one_booking(server: Server, org: Org, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    body = {"user": "u1", "items": [{"seat": "A-1"}, {"pool": "standing", "tariff": "child", "quantity": 2}]}
    replies = send_all_at_once(server.port, [hold_request(org.keys["sales"], event, "same", body)] * 50)
    assert count_codes(replies) == {"201": 50}
    bookings = [{k: v for k, v in r.body.items() if k not in ("server_time", "expires_in_seconds")} for r in replies]
    assert all(answer == bookings[0] for answer in bookings)
    assert admin.get("/v1/bookings", params={"event": event}).json()["items"][0]["id"] == bookings[0]["id"]
    assert len(admin.get("/v1/bookings", params={"event": event}).json()["items"]) == 1
