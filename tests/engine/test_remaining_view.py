"""The view `remaining` shows operators the numbers that buyers get from the API."""

import re
from importlib import resources
from typing import Any

import httpx
import pytest

from holdfast import sql
from holdfast.runtime import ids
from tests.support.harness import Org, Server, example_event, post_hold, publish_event, query
from tests.support.http_assertions import expect_ok
from tests.support.resources import upload_receipt

STALLS = {"capacity": 40, "held": 0, "sold": 0, "remaining": 40}
STANDING = {"capacity": 500, "held": 0, "sold": 0, "remaining": 500}
POLICY = {"review": "manual", "avoid_orphans": False, "max_units_per_user": None}


@pytest.fixture
def event(admin: httpx.Client) -> str:
    return publish_event(admin, example_event(policy=POLICY))


def read_view(server: Server, event: str) -> dict[str, dict[str, int]]:
    """The rows of the event by pool, after a check that the API says the same."""
    rows = query(server.database_url, "SELECT * FROM remaining WHERE event_id = $1", ids.parse_event_id(event))
    numbers = {row["pool"]: {name: row[name] for name in STALLS} for row in rows}
    with server.client() as client:
        answer = expect_ok(client.get(f"/v1/events/{event}/availability"))
    assert {pool.pop("code"): pool for pool in answer["pools"]} == numbers
    return numbers


def hold(admin: httpx.Client, event: str, *items: dict[str, Any]) -> str:
    booking: str = expect_ok(post_hold(admin, event, items=list(items)), 201)["id"]
    return booking


def let_expire(server: Server, booking: str) -> None:
    """Move the deadline into the past. No worker runs here, so nobody records the expiry."""
    parsed = ids.parse_booking_id(booking)
    assert parsed is not None
    query(
        server.database_url,
        "UPDATE booking SET expires_at = holdfast_now() - interval '1 second' WHERE event_id = $1 AND id = $2",
        *parsed,
    )


def test_an_event_without_bookings_has_all_its_units_left(server: Server, org: Org, event: str) -> None:
    assert read_view(server, event) == {"stalls": STALLS, "standing": STANDING}
    rows = query(server.database_url, "SELECT * FROM remaining WHERE event_id = $1", ids.parse_event_id(event))
    assert [(row["org_id"], row["title"]) for row in rows] == [(org.id, "Friday night")] * 2


def test_the_view_follows_a_booking_through_every_state(server: Server, admin: httpx.Client, event: str) -> None:
    items = {"seat": "A-1"}, {"seat": "A-2"}, {"pool": "standing", "tariff": "full", "quantity": 7}
    booking = hold(admin, event, *items)
    assert read_view(server, event) == {
        "stalls": {**STALLS, "held": 2, "remaining": 38},
        "standing": {**STANDING, "held": 7, "remaining": 493},
    }
    expect_ok(admin.post(f"/v1/bookings/{booking}/confirm"))
    assert read_view(server, event) == {
        "stalls": {**STALLS, "sold": 2, "remaining": 38},
        "standing": {**STANDING, "sold": 7, "remaining": 493},
    }
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund"))
    assert read_view(server, event) == {"stalls": STALLS, "standing": STANDING}


def test_a_hold_past_its_deadline_is_free_before_anyone_expires_it(
    server: Server, admin: httpx.Client, event: str
) -> None:
    expired = hold(admin, event, {"seat": "A-1"}, {"pool": "standing", "tariff": "full", "quantity": 7})
    submitted = hold(admin, event, {"seat": "A-3"})
    expect_ok(upload_receipt(admin, submitted))
    hold(admin, event, {"seat": "A-2"}, {"pool": "standing", "tariff": "child", "quantity": 3})
    assert read_view(server, event)["stalls"] == {**STALLS, "held": 3, "remaining": 37}
    let_expire(server, expired)
    let_expire(server, submitted)
    assert read_view(server, event) == {
        "stalls": {**STALLS, "held": 1, "remaining": 39},
        "standing": {**STANDING, "held": 3, "remaining": 497},
    }
    statuses = query(
        server.database_url, "SELECT status FROM booking WHERE event_id = $1 ORDER BY id", ids.parse_event_id(event)
    )
    assert [row["status"] for row in statuses] == ["held", "payment_submitted", "held"]


def test_a_blocked_seat_is_neither_left_nor_part_of_the_capacity(
    server: Server, admin: httpx.Client, event: str
) -> None:
    hold(admin, event, {"seat": "A-1"})
    expect_ok(admin.patch(f"/v1/events/{event}", json={"block_seats": ["B-1", "B-2", "B-3"]}))
    assert read_view(server, event)["stalls"] == {"capacity": 37, "held": 1, "sold": 0, "remaining": 36}


def test_events_do_not_mix(server: Server, admin: httpx.Client, event: str) -> None:
    other = publish_event(admin, example_event(policy=POLICY))
    let_expire(server, hold(admin, other, {"seat": "A-1"}))
    hold(admin, event, {"seat": "A-1"})
    assert read_view(server, event)["stalls"] == {**STALLS, "held": 1, "remaining": 39}
    assert read_view(server, other)["stalls"] == STALLS


def test_the_statuses_in_the_view_are_those_that_have_a_deadline() -> None:
    """A migration cannot include a list, so it spells one out."""
    text = resources.files("holdfast.sql").joinpath("migrations/0017_remaining.sql").read_text()
    spelled = re.search(r"booking\.status IN \((.*?)\)", text)
    assert spelled is not None
    assert sql.parse_statements("-- name: it\nSELECT {{timed}}\n") == {"it": f"SELECT {spelled.group(1)}"}
