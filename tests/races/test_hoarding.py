"""Guests from one address cannot take a hall with fresh cookies, and many honest buyers behind one address still buy.
Every race runs against two API processes behind a proxy, which names the client's address."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from itertools import cycle, islice
from typing import Any

import httpx
import pytest

from holdfast.runtime import ids
from tests.support.harness import (
    IS_LONG,
    Org,
    Server,
    example_event,
    fresh_database,
    publish_event,
    query,
    running_server,
)

# Buyers, the addresses that they share, and how much each address may hold; None is the default.
HONEST = (1000, 10, None) if IS_LONG else (60, 3, 8)
SEATS = 100
DEFAULT_LIMIT = 40
CONNECTIONS = 32
HALL = [{"code": "hall", "capacity": SEATS, "tariffs": [{"code": "full", "price": 1000}]}]
FORM_TOKEN = re.compile(r'name="form_token" value="(\w+)"')


@pytest.fixture(scope="module")
def server(postgres: str) -> Iterator[Server]:
    with fresh_database(postgres) as url, running_server(url, workers=2, HOLDFAST_PROXIES="1") as server:
        yield server


class Guest:
    """A browser with a fresh cookie behind an address."""

    def __init__(self, server: Server, event: str, address: str, connections: asyncio.Semaphore) -> None:
        self._url = f"{server.url}/e/{event}"
        self._headers = {"X-Forwarded-For": address, "Accept": "application/json"}
        self._connections = connections
        self._cookie = self._token = ""

    async def open_page(self, client: httpx.AsyncClient) -> None:
        async with self._connections:
            page = await client.get(self._url, headers=self._headers)
        (self._token,) = set(FORM_TOKEN.findall(page.text)[:1])
        self._cookie = page.headers["set-cookie"].partition(";")[0]

    async def hold(self, client: httpx.AsyncClient, units: int = 1) -> str:
        """The path of the booking, or the code of the refusal."""
        fields = {"form_token": self._token, "key": "1", "quantity.0.0": str(units)}
        async with self._connections:
            answer = await client.post(
                f"{self._url}/hold", data=fields, headers={**self._headers, "Cookie": self._cookie}
            )
        result: dict[str, Any] = answer.json()
        return str(result.get("booking") or result["code"])


async def open_pages(
    client: httpx.AsyncClient, server: Server, event: str, addresses: Sequence[str], count: int
) -> list[Guest]:
    connections = asyncio.Semaphore(CONNECTIONS)
    guests = [Guest(server, event, address, connections) for address in islice(cycle(addresses), count)]
    await asyncio.gather(*(guest.open_page(client) for guest in guests))
    return guests


async def hold_all(client: httpx.AsyncClient, guests: Sequence[Guest]) -> list[str]:
    return list(await asyncio.gather(*(guest.hold(client) for guest in guests)))


def count(answers: Sequence[str]) -> Counter[str]:
    return Counter("held" if answer.startswith("/b/") else answer for answer in answers)


def new_client() -> httpx.AsyncClient:
    """Many guests share it, so it keeps no cookies."""
    limits = httpx.Limits(max_connections=CONNECTIONS)
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(timeout=60, verify=False, limits=limits, cookies=no_cookies)


def held_units(server: Server, event: str) -> int:
    (row,) = query(
        server.database_url, "SELECT sum(held) AS held FROM pool WHERE event_id = $1", ids.parse_event_id(event)
    )
    held: int = row["held"]
    return held


@pytest.mark.parametrize(
    "addresses",
    [["192.0.2.1"], [f"2001:db8:1:2::{n:x}" for n in range(1, SEATS + 1)]],
    ids=["one IPv4 address", "the addresses of one IPv6 network"],
)
def test_one_subscriber_with_fresh_cookies_holds_no_more_than_the_limit(
    server: Server, admin: httpx.Client, addresses: list[str]
) -> None:
    event = publish_event(admin, example_event(pools=HALL))

    async def attack() -> None:
        async with new_client() as client:
            guests = await open_pages(client, server, event, addresses, SEATS)
            answers = await hold_all(client, guests)
            assert count(answers) == {"held": DEFAULT_LIMIT, "address_limit_reached": SEATS - DEFAULT_LIMIT}
            (stranger,) = await open_pages(client, server, event, ["198.51.100.7"], 1)
            assert (await stranger.hold(client)).startswith("/b/")

    asyncio.run(attack())
    assert held_units(server, event) == DEFAULT_LIMIT + 1


def test_without_limits_one_address_holds_every_seat(server: Server, admin: httpx.Client) -> None:
    """The control: this is the attack that the limits prevent."""
    event = publish_event(admin, example_event(pools=HALL, policy={"max_unpaid_units_per_address": None}))

    async def attack() -> None:
        async with new_client() as client:
            guests = await open_pages(client, server, event, ["192.0.2.2"], SEATS)
            assert count(await hold_all(client, guests)) == {"held": SEATS}

    asyncio.run(attack())
    assert held_units(server, event) == SEATS


def test_honest_buyers_behind_shared_addresses_all_get_what_they_pay_for(
    server: Server, org: Org, admin: httpx.Client
) -> None:
    buyers, shared, limit = HONEST
    policy = {} if limit is None else {"max_unpaid_units_per_address": limit}
    pools = [{**HALL[0], "capacity": buyers}]
    event = publish_event(admin, example_event(pools=pools, policy=policy))
    addresses = [f"198.51.100.{n}" for n in range(1, shared + 1)]

    async def buy() -> None:
        async with new_client() as client:
            waiting = await open_pages(client, server, event, addresses, buyers)
            while waiting:
                answers = await hold_all(client, waiting)
                assert set(count(answers)) <= {"held", "address_limit_reached"}
                bookings = [answer for answer in answers if answer.startswith("/b/")]
                assert len(bookings) == min(len(waiting), shared * (limit or DEFAULT_LIMIT))
                waiting = [guest for guest, answer in zip(waiting, answers, strict=True) if answer not in bookings]
                for booking in bookings:
                    path = f"{server.url}/v1/bookings/{booking.removeprefix('/b/')}/confirm"
                    assert (await client.post(path, headers=org.headers())).status_code == 200

    asyncio.run(buy())
    (row,) = query(server.database_url, "SELECT held, sold FROM pool WHERE event_id = $1", ids.parse_event_id(event))
    assert tuple(row) == (0, buyers)


def test_an_address_that_hoards_many_events_reaches_the_limit_of_the_org(
    server: Server, org: Org, admin: httpx.Client
) -> None:
    assert admin.patch("/v1/org", json={"max_unpaid_units_per_address": 12}).status_code == 200
    events = [publish_event(admin, example_event(pools=HALL)) for _ in range(3)]

    async def attack() -> None:
        async with new_client() as client:
            for event, expected in zip(events, ("held", "held", "address_limit_reached"), strict=True):
                (guest,) = await open_pages(client, server, event, ["203.0.113.5"], 1)
                answer = await guest.hold(client, units=6)
                assert count([answer]) == {expected: 1}
            (guest,) = await open_pages(client, server, events[2], ["203.0.113.6"], 1)
            assert (await guest.hold(client, units=6)).startswith("/b/")

    try:
        asyncio.run(attack())
    finally:
        admin.patch("/v1/org", json={"max_unpaid_units_per_address": 120})


def test_secret_keys_are_not_counted_by_address(server: Server, org: Org, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=HALL, policy={"max_unpaid_units_per_address": 1}))
    headers = {"X-Forwarded-For": "203.0.113.9"}
    for n in range(5):
        body = {"user": f"u-{n}", "items": [{"pool": "hall"}]}
        answer = admin.post(f"/v1/events/{event}/holds", json=body, headers={**headers, "Idempotency-Key": f"k-{n}"})
        assert answer.status_code == 201


def test_customers_are_counted_by_address_if_the_policy_says_so(server: Server, org: Org, admin: httpx.Client) -> None:
    policy = {"max_unpaid_units_per_address": 2, "limit_customers": True}
    event = publish_event(admin, example_event(pools=HALL, policy=policy))
    codes = []
    for n in range(4):
        token = admin.post("/v1/customer-tokens", json={"user": f"c-{n}"}).json()["token"]
        address = "203.0.113.10" if n < 3 else "203.0.113.11"
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"c-{n}", "X-Forwarded-For": address}
        answer = admin.post(f"/v1/events/{event}/holds", json={"items": [{"pool": "hall"}]}, headers=headers)
        codes.append(answer.json().get("code", answer.status_code))
    assert codes == [201, 201, "address_limit_reached", 201]
    stored = query(server.database_url, "SELECT client FROM booking WHERE event_id = $1", ids.parse_event_id(event))
    assert all(b"203.0.113" not in row["client"] for row in stored)


def test_a_cool_down_says_how_long_to_wait(server: Server, org: Org, admin: httpx.Client) -> None:
    policy = {"cooldown_after_expired": 1, "cooldown_seconds": 3600}
    event = publish_event(admin, example_event(pools=HALL, policy=policy))

    async def run() -> None:
        async with new_client() as client:
            guest, neighbour = await open_pages(client, server, event, ["203.0.113.12"], 2)
            assert (await guest.hold(client)).startswith("/b/")
            await asyncio.to_thread(
                query,
                server.database_url,
                "UPDATE booking SET expires_at = holdfast_now() WHERE event_id = $1",
                ids.parse_event_id(event),
            )
            assert await guest.hold(client, units=2) == "too_many_expired_holds"
            assert (await neighbour.hold(client)).startswith("/b/")

    asyncio.run(run())
