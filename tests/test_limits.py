"""Nobody can take the server for themselves: rates are limited for each key and address, and overload is said."""

import asyncio

import httpx

from holdfast.runtime import db
from tests.house import Org, hold, publish, run, serving, show


def test_an_address_that_asks_too_often_is_told_to_wait(database: str) -> None:
    with serving(database, workers=1, HOLDFAST_RATE_PER_ADDRESS="5") as server, server.client() as client:
        answers = [client.get("/v1/events") for _ in range(30)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert answers[0].status_code == 200
        assert refused
        assert refused[0].json()["code"] == "rate_limited"
        assert refused[0].json()["retryable"] is True
        assert int(refused[0].headers["retry-after"]) >= 1


def test_the_limit_of_one_key_is_not_that_of_another(database: str) -> None:
    org = Org(database)
    with serving(database, workers=1, HOLDFAST_RATE_PER_KEY="5", HOLDFAST_RATE_PER_ADDRESS="5") as server:
        with server.client(org.headers("sales")) as greedy, server.client(org.headers("admin")) as modest:
            codes = [greedy.get("/v1/bookings").status_code for _ in range(30)]
            assert codes[0] == 200
            assert 429 in codes
            assert modest.get("/v1/bookings").status_code == 200


def test_keys_that_nobody_has_count_against_the_address(database: str) -> None:
    with serving(database, workers=1, HOLDFAST_RATE_PER_ADDRESS="5") as server, server.client() as client:
        guesses = [{"Authorization": f"Bearer hf_sk_{number:043}"} for number in range(30)]
        codes = [client.get("/v1/bookings", headers=guess).status_code for guess in guesses]
        assert codes[0] == 401
        assert 429 in codes


def test_a_change_to_an_event_that_others_keep_locked_is_told_busy(database: str) -> None:
    org = Org(database)
    with serving(database, workers=1) as server, server.client(org.headers("admin")) as admin:
        event = publish(admin, show())

        async def change_while_locked(connection: db.Connection) -> httpx.Response:
            async with connection.transaction():
                await connection.execute("SELECT FROM event FOR UPDATE")
                return await asyncio.to_thread(admin.patch, f"/v1/events/{event}", json={"title": "Saturday"})

        answer = run(change_while_locked, database)
        assert answer.status_code == 503
        assert answer.json()["code"] == "busy"
        assert answer.headers["retry-after"]
        assert admin.get(f"/v1/events/{event}").json()["title"] == "Friday night"


def test_behind_proxies_the_address_is_the_one_that_they_saw(database: str) -> None:
    with serving(database, workers=1, HOLDFAST_RATE_PER_ADDRESS="3", HOLDFAST_PROXIES="1") as server:
        with server.client() as client:
            greedy = [
                client.get("/healthz", headers={"X-Forwarded-For": f"203.0.113.{n}, 198.51.100.7"}).status_code
                for n in range(20)
            ]
            assert 429 in greedy
            assert client.get("/healthz", headers={"X-Forwarded-For": "198.51.100.8"}).status_code == 200


def test_a_refused_request_has_no_effect(database: str) -> None:
    org = Org(database)
    with serving(database, workers=1, HOLDFAST_RATE_PER_KEY="10") as server:
        with server.client(org.headers("admin")) as admin, server.client(org.headers("sales")) as sales:
            event = publish(admin, show())
            answers = [hold(sales, event, items=[{"pool": "standing", "tariff": "full"}]) for _ in range(60)]
            held = sum(answer.status_code == 201 for answer in answers)
            assert {answer.status_code for answer in answers} == {201, 429}
            pools = admin.get(f"/v1/events/{event}/availability").json()["pools"]
            assert next(pool["held"] for pool in pools if pool["code"] == "standing") == held


def test_a_string_without_an_end_is_refused_without_reading_it_over_and_over(database: str) -> None:
    body = b"[" * 65 + b'"' + rb"\"" * 200_000
    with serving(database, workers=1) as server, server.client() as client:
        assert client.post("/v1/events", content=body).status_code == 422


def test_seats_are_counted_before_they_are_made(database: str) -> None:
    pools = [{"code": f"p{n}", "seats": {"rows": ["A"] * 1000, "numbers": 1000}} for n in range(100)]
    with serving(database, workers=1) as server, server.client() as client:
        answer = client.post("/v1/events", json=show(pools=pools))
        assert answer.status_code == 422
        assert "100000 seats at most" in answer.json()["detail"]
