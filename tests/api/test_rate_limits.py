"""Rate limits apply to each key and each address, and an overloaded or locked server says so."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from holdfast.api import rate_limit
from holdfast.api.rate_limit import RateLimit
from holdfast.core.refusals import RefusedError
from holdfast.runtime import db, ids
from tests.support.concurrent_requests import count_codes, request, send_all_at_once
from tests.support.harness import (
    Org,
    Server,
    example_event,
    fresh_database,
    post_hold,
    publish_event,
    run_with_connection,
    running_server,
)
from tests.support.resources import post_notice, start_payment

RATE = 5


@pytest.fixture(scope="module")
def limited_server(postgres: str) -> Iterator[Server]:
    """A server with low limits behind a proxy, so that each test can use an address of its own."""
    limits = {"HOLDFAST_RATE_PER_ADDRESS": str(RATE), "HOLDFAST_RATE_PER_KEY": str(2 * RATE), "HOLDFAST_PROXIES": "1"}
    with fresh_database(postgres) as url, running_server(url, workers=1, worker=False, **limits) as server:
        yield server


def forwarded_for(*addresses: str) -> dict[str, str]:
    return {"X-Forwarded-For": ", ".join(addresses)}


def test_an_address_that_sends_too_many_requests_is_limited(database: str) -> None:
    """Without a proxy the address is that of the connection, whatever a header says."""
    with running_server(database, workers=1, HOLDFAST_RATE_PER_ADDRESS=str(RATE)) as server, server.client() as client:
        answers = [client.get("/v1/events", headers=forwarded_for(f"203.0.113.{n}")) for n in range(30)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert answers[0].status_code == 200
        assert refused
        assert refused[0].json()["code"] == "rate_limited"
        assert refused[0].json()["retryable"] is True
        assert int(refused[0].headers["retry-after"]) >= 1


def test_the_limit_behind_a_proxy_counts_the_address_that_the_proxy_saw(limited_server: Server) -> None:
    with limited_server.client() as client:
        greedy = [
            client.get("/healthz", headers=forwarded_for(f"203.0.113.{n}", "198.51.100.1")).status_code
            for n in range(30)
        ]
        assert 429 in greedy
        assert client.get("/healthz", headers=forwarded_for("198.51.100.2")).status_code == 200


def test_the_openapi_document_counts_against_the_address(limited_server: Server) -> None:
    with limited_server.client(forwarded_for("198.51.100.7")) as client:
        answers = [client.get("/openapi.json") for _ in range(30)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert answers[0].status_code == 200
    assert refused
    assert refused[0].headers["retry-after"] == "1"


@pytest.mark.parametrize(("accept", "address"), [("*/*", "198.51.100.21"), ("text/html", "198.51.100.22")])
def test_requests_with_too_many_cookies_count_against_the_address(
    limited_server: Server, accept: str, address: str
) -> None:
    headers = {**forwarded_for(address), "accept": accept, "cookie": "x" * 9_000}
    with limited_server.client(headers) as client:
        answers = [client.get("/") for _ in range(30)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert answers[0].status_code == 422
    assert refused
    assert refused[0].headers["retry-after"] == "1"


def test_unknown_keys_count_against_the_address(limited_server: Server) -> None:
    with limited_server.client(forwarded_for("198.51.100.3")) as client:
        guesses = [{"Authorization": f"Bearer hf_sk_{number:043}"} for number in range(30)]
        codes = [client.get("/v1/bookings", headers=guess).status_code for guess in guesses]
        assert codes[0] == 401
        assert 429 in codes


def test_one_key_does_not_use_up_the_limit_of_another(limited_server: Server) -> None:
    org, address = Org(limited_server.database_url), forwarded_for("198.51.100.4")
    with (
        limited_server.client({**org.headers("sales"), **address}) as greedy,
        limited_server.client({**org.headers("admin"), **address}) as modest,
    ):
        codes = [greedy.get("/v1/bookings").status_code for _ in range(60)]
        assert codes[0] == 200
        assert 429 in codes
        assert modest.get("/v1/bookings").status_code == 200


def test_a_refused_request_has_no_effect(limited_server: Server) -> None:
    org, address = Org(limited_server.database_url), forwarded_for("198.51.100.5")
    with (
        limited_server.client({**org.headers("admin"), **address}) as admin,
        limited_server.client({**org.headers("sales"), **address}) as sales,
    ):
        event = publish_event(admin, example_event())
        answers = [post_hold(sales, event, items=[{"pool": "standing", "tariff": "full"}]) for _ in range(60)]
        held = sum(answer.status_code == 201 for answer in answers)
        assert {answer.status_code for answer in answers} == {201, 429}
        pools = admin.get(f"/v1/events/{event}/availability").json()["pools"]
        assert next(pool["held"] for pool in pools if pool["code"] == "standing") == held


def test_rate_limits_do_not_apply_to_notices_of_a_provider(limited_server: Server) -> None:
    address = forwarded_for("198.51.100.6")
    with limited_server.client({**Org(limited_server.database_url).headers(), **address}) as admin:
        payment = start_payment(admin)
    with limited_server.client(address) as provider:
        answers = [post_notice(provider, payment).status_code for _ in range(100)]
        strangers = [provider.get("/v1/events").status_code for _ in range(30)]
    assert answers == [200] * 100
    assert 429 in strangers


def test_a_change_to_a_locked_event_is_answered_with_busy(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())

    async def change_while_locked(connection: db.Connection) -> httpx.Response:
        async with connection.transaction():
            await connection.execute("SELECT FROM event WHERE id = $1 FOR UPDATE", ids.parse_event_id(event))
            return await asyncio.to_thread(admin.patch, f"/v1/events/{event}", json={"title": "Saturday"})

    answer = run_with_connection(change_while_locked, server.database_url)
    assert answer.status_code == 503
    assert answer.json()["code"] == "busy"
    assert answer.headers["retry-after"]
    assert admin.get(f"/v1/events/{event}").json()["title"] == "Friday night"


def test_seats_are_counted_before_they_are_created(admin: httpx.Client) -> None:
    pools = [{"code": f"p{n}", "seats": {"rows": ["A"] * 1000, "numbers": 1000}} for n in range(100)]
    answer = admin.post("/v1/events", json=example_event(pools=pools))
    assert answer.status_code == 422
    assert "at most 100000 seats" in answer.json()["detail"]


def test_forged_notices_are_limited_and_genuine_ones_from_elsewhere_are_not(limited_server: Server) -> None:
    forger, provider = forwarded_for("198.51.100.7"), forwarded_for("198.51.100.8")
    with limited_server.client({**Org(limited_server.database_url).headers(), **provider}) as admin:
        payment = start_payment(admin)
    # Faster than 50 a second, even on a busy machine.
    forged = [request("POST", "/v1/webhooks/sandbox", body={}, **forger)] * 400
    assert set(count_codes(send_all_at_once(limited_server.port, forged))) == {"invalid_signature", "rate_limited"}
    with limited_server.client(provider) as client:
        assert post_notice(client, payment).status_code == 200


def test_a_header_line_of_the_client_does_not_hide_what_the_proxy_adds(limited_server: Server) -> None:
    with limited_server.client() as client:
        for before in (True, False):
            lines = [("X-Forwarded-For", "198.51.100.9"), ("X-Other", "1")]
            codes = []
            for number in range(30):
                own = ("X-Forwarded-For", f"203.0.113.{number}")
                codes.append(client.get("/healthz", headers=[own, *lines] if before else lines).status_code)
            assert 429 in codes


def test_a_flood_of_addresses_does_not_reset_the_limit_of_a_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "BUCKETS_MAX", 100)
    limit = RateLimit("address", rate=0.001)
    limit.spend("greedy")
    for number in range(1_000):
        if number % 50 == 0:
            with pytest.raises(RefusedError):
                limit.spend("greedy")
        limit.spend(f"stranger {number}")


@pytest.mark.parametrize(("method", "path"), [("GET", "/nowhere"), ("DELETE", "/v1/events"), ("POST", "/healthz")])
def test_requests_that_nothing_serves_count_too(limited_server: Server, method: str, path: str) -> None:
    address = forwarded_for(f"198.51.100.{100 + len(method + path)}")
    with limited_server.client(address) as client:
        codes = [client.request(method, path).status_code for _ in range(30)]
    assert codes[0] in (404, 405)
    assert 429 in codes


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?" + "%F&" * 3_000, {}), ("", {"Accept-Language": "a," * 5_000}), ("", {"Cookie": 'a="x";' * 2_000})],
    ids=["query", "languages", "cookies"],
)
def test_a_page_refuses_a_long_list_before_it_parses_it(server: Server, query: str, headers: dict[str, str]) -> None:
    with server.client(headers) as client:
        answer = client.get(f"/b/x{query}")
    assert answer.status_code == 422
    assert "at most 8,192 bytes" in answer.json()["detail"]
