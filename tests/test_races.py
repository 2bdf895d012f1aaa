"""Nothing is ever sold twice, however many ask at once. Every race runs against two API processes over real HTTP."""

import secrets

import httpx
import pytest

from tests.crowd import hold_request, rush, tally
from tests.house import Org, Server, publish, show, sql

REPEATS = 20


def one_pool(capacity: int) -> dict[str, object]:
    return show(pools=[{"code": "places", "capacity": capacity, "tariffs": [{"code": "full", "price": 100}]}])


@pytest.mark.parametrize("attempt", range(REPEATS))
def test_of_1000_buyers_of_one_seat_one_gets_it(server: Server, org: Org, admin: httpx.Client, attempt: int) -> None:
    event = publish(admin, show())
    requests = [
        hold_request(org.keys["sales"], event, f"k{n}", {"user": f"u{n}", "items": [{"seat": "A-7"}]})
        for n in range(1000)
    ]
    assert tally(rush(server.port, requests)) == {"201": 1, "seat_taken": 999}


@pytest.mark.parametrize("attempt", range(REPEATS))
@pytest.mark.parametrize(("buyers", "capacity"), [(500, 50), (10, 3)])
def test_a_pool_gives_exactly_what_it_has(
    server: Server, org: Org, admin: httpx.Client, buyers: int, capacity: int, attempt: int
) -> None:
    event = publish(admin, one_pool(capacity))
    requests = [
        hold_request(org.keys["sales"], event, f"k{n}", {"user": f"u{n}", "items": [{"pool": "places"}]})
        for n in range(buyers)
    ]
    assert tally(rush(server.port, requests)) == {"201": capacity, "sold_out": buyers - capacity}


@pytest.mark.parametrize("attempt", range(REPEATS))
def test_baskets_that_overlap_are_never_split(server: Server, org: Org, admin: httpx.Client, attempt: int) -> None:
    hall = [{"code": "hall", "seats": {"rows": list("ABCDEFGHIJ"), "numbers": 10}}]
    event = publish(admin, show(pools=hall))
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
    replies = rush(server.port, requests, connections=250)
    assert set(tally(replies)) == {"201", "seat_taken"}
    sold = [item["seat"] for reply in replies if reply.status == 201 for item in reply.body["items"]]
    assert len(sold) == len(set(sold)) > 40
    assert all(len(reply.body["items"]) == 4 for reply in replies if reply.status == 201)
    live = sql(
        server.database_url,
        "SELECT count(*) FROM line WHERE live AND event_id = (SELECT max(id::text)::uuid FROM event)",
    )
    assert live[0][0] == len(sold)


def test_50_requests_with_one_key_make_one_booking(server: Server, org: Org, admin: httpx.Client) -> None:
    event = publish(admin, show())
    body = {"user": "u1", "items": [{"seat": "A-1"}, {"pool": "standing", "tariff": "child", "quantity": 2}]}
    replies = rush(server.port, [hold_request(org.keys["sales"], event, "same", body)] * 50)
    assert tally(replies) == {"201": 50}
    told = [{k: v for k, v in r.body.items() if k not in ("server_time", "expires_in_seconds")} for r in replies]
    assert all(answer == told[0] for answer in told)
    assert admin.get("/v1/bookings", params={"event": event}).json()["items"][0]["id"] == told[0]["id"]
    assert len(admin.get("/v1/bookings", params={"event": event}).json()["items"]) == 1
