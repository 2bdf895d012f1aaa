"""An org can have only so much at a time, and learns clearly when it has reached a limit."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from holdfast.core.quotas import KEYS_MAX
from holdfast.core.refusals import RefusedError
from holdfast.core.stock_schemas import POOLS_MAX, TARIFFS_MAX
from holdfast.runtime import db, ids
from holdfast.runtime.credentials import Role, create_key
from holdfast.tickets import keys as ticket_keys
from tests.support.command_line import call_holdfast
from tests.support.harness import Org, Server, connection_to, example_event, query, running_server

EVENTS_MAX = 3
SEATS_MAX = 50


@pytest.fixture(scope="module")
def server(shared_server: Server) -> Iterator[Server]:
    """A server with small quotas, on the shared database."""
    with running_server(
        shared_server.database_url,
        workers=1,
        HOLDFAST_EVENTS_PER_ORG=str(EVENTS_MAX),
        HOLDFAST_SEATS_PER_ORG=str(SEATS_MAX),
    ) as server:
        yield server


@pytest.fixture
def admin(server: Server) -> Iterator[httpx.Client]:
    with server.client(Org(server.database_url).headers()) as client:
        yield client


def event_with_seats(count: int) -> dict[str, Any]:
    return example_event(pools=[seated_pool("stalls", count)])


def seated_pool(code: str, count: int) -> dict[str, Any]:
    return {"code": code, "seats": {"rows": [code], "numbers": count}}


def event_without_seats(**changes: Any) -> dict[str, Any]:
    return example_event(pools=[{"code": "floor", "capacity": 10}], **changes)


def expect_limit(response: httpx.Response, *words: str) -> None:
    assert (response.status_code, response.json()["code"]) == (409, "limit_reached"), response.text
    assert all(word in response.json()["detail"] for word in words)


def test_an_org_can_have_only_so_many_events_that_have_not_ended(admin: httpx.Client) -> None:
    created = [admin.post("/v1/events", json=event_without_seats()) for _ in range(EVENTS_MAX)]
    assert [response.status_code for response in created] == [201] * EVENTS_MAX
    expect_limit(admin.post("/v1/events", json=event_without_seats()), f"at most {EVENTS_MAX} events")
    ended = admin.post(f"/v1/events/{created[0].json()['id']}/cancel", json={})
    assert ended.status_code == 200
    assert admin.post("/v1/events", json=event_without_seats()).status_code == 201


def test_the_events_of_an_org_can_have_only_so_many_seats_together(admin: httpx.Client) -> None:
    first = admin.post("/v1/events", json=event_with_seats(30))
    assert first.status_code == 201
    expect_limit(admin.post("/v1/events", json=event_with_seats(21)), f"at most {SEATS_MAX} seats", "yours has 30")
    added = {"pools": [seated_pool("balcony", 15)]}
    assert admin.patch(f"/v1/events/{first.json()['id']}", json=added).status_code == 200
    expect_limit(admin.patch(f"/v1/events/{first.json()['id']}", json={"pools": [seated_pool("box", 6)]}), "has 45")
    assert admin.post("/v1/events", json=event_with_seats(5)).status_code == 201
    assert admin.post("/v1/events", json=event_without_seats()).status_code == 201


def test_the_quotas_of_one_org_do_not_concern_another(server: Server, admin: httpx.Client) -> None:
    assert admin.post("/v1/events", json=event_with_seats(SEATS_MAX)).status_code == 201
    with server.client(Org(server.database_url).headers()) as other:
        assert other.post("/v1/events", json=event_with_seats(SEATS_MAX)).status_code == 201


def test_an_event_can_have_only_so_many_pools_and_tariffs(admin: httpx.Client) -> None:
    tariffs = [{"code": f"t{n}", "price": n} for n in range(100)]
    pools = [{"code": f"p{n}", "capacity": 1, "tariffs": tariffs} for n in range(TARIFFS_MAX // 100)]
    too_many = admin.post("/v1/events", json=event_without_seats() | {"pools": [*pools, {"code": "x", "capacity": 1}]})
    assert too_many.status_code == 422
    assert too_many.json()["errors"] == [
        {"field": "pools", "message": f"can have at most {TARIFFS_MAX} tariffs in total"}
    ]
    event = admin.post("/v1/events", json=event_without_seats() | {"pools": pools}).json()["id"]
    for change in ({"code": "x", "capacity": 1}, {"code": "p0", "tariffs": [{"code": "one-more", "price": 1}]}):
        refused = admin.patch(f"/v1/events/{event}", json={"pools": [change]})
        assert (refused.status_code, "tariffs" in refused.json()["detail"]) == (422, True)
    changed = admin.patch(f"/v1/events/{event}", json={"pools": [{"code": "p0", "tariffs": tariffs}]})
    assert changed.status_code == 200


def test_later_changes_cannot_add_more_pools_than_an_event_may_have(admin: httpx.Client) -> None:
    pools = [{"code": f"p{n}", "capacity": 1} for n in range(POOLS_MAX)]
    event = admin.post("/v1/events", json=event_without_seats() | {"pools": pools}).json()["id"]
    refused = admin.patch(f"/v1/events/{event}", json={"pools": [{"code": "one-more", "capacity": 1}]})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "pools")


def test_an_org_can_have_only_so_many_valid_keys(server: Server) -> None:
    org = Org(server.database_url)

    async def create_keys() -> None:
        async with connection_to(server.database_url) as connection:
            database = db.Database(connection)
            for _ in range(KEYS_MAX - len(org.keys)):
                await create_key(database, org.id, Role.DOOR)
            with pytest.raises(RefusedError, match=f"at most {KEYS_MAX} valid keys"):
                await create_key(database, org.id, Role.DOOR)

    asyncio.run(create_keys())
    failed = call_holdfast(server.database_url, "keys", "create", "--org", org.slug, "--role", "door")
    assert (failed.returncode, "Revoke one first" in failed.stderr) == (2, True)
    query(server.database_url, "UPDATE api_key SET revoked_at = now() WHERE org_id = $1 AND role = 'door'", org.id)
    assert call_holdfast(server.database_url, "keys", "create", "--org", org.slug, "--role", "door").returncode == 0


def test_an_event_can_have_only_so_many_ticket_keys(admin: httpx.Client, server: Server) -> None:
    event = admin.post("/v1/events", json=event_without_seats()).json()["id"]
    assert admin.post(f"/v1/events/{event}/ticket-key/rotate", json={}).status_code == 200
    query(
        server.database_url,
        "UPDATE ticket_key SET number = $1 WHERE event_id = $2 AND number = 2",
        ticket_keys.KEYS_MAX,
        ids.parse_event_id(event),
    )
    expect_limit(admin.post(f"/v1/events/{event}/ticket-key/rotate", json={}), "ticket keys")
