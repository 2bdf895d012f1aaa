"""Events over HTTP: create and change them, read their availability, and read their journal."""

import random
import secrets
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

import httpx
import jwt
import pytest

from tests.support.harness import Org, Server, example_event, post_hold, publish_event, wait_until
from tests.support.http_assertions import expect_error, expect_ok

Body = dict[str, Any]

POLICY_FIELDS: Final = {
    "hold_seconds",
    "extend_seconds",
    "max_hold_seconds",
    "late_grace_seconds",
    "review",
    "review_seconds",
    "max_units_per_user",
    "one_booking_per_user",
    "confirm_at_once",
    "avoid_orphans",
    "min_units",
    "max_units",
    "box_office",
    "max_unpaid_units_per_user",
    "max_unpaid_units_per_address",
    "cooldown_after_expired",
    "cooldown_seconds",
    "limit_customers",
    "guest_check",
    "guest_check_bits",
}


@pytest.fixture(scope="module")
def public(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def sales(server: Server, org: Org) -> Iterator[httpx.Client]:
    with server.client(org.headers("sales")) as client:
        yield client


def create_event(client: httpx.Client, event: Body) -> Body:
    return expect_ok(client.post("/v1/events", json=event), 201)


def change_event(client: httpx.Client, event: str, **changes: Any) -> Body:
    return expect_ok(client.patch(f"/v1/events/{event}", json=changes))


def one_pool(**fields: Any) -> list[Body]:
    return [{"code": "hall", **fields}]


def get_availability(client: httpx.Client, event: str) -> dict[str, Body]:
    pools = expect_ok(client.get(f"/v1/events/{event}/availability"))["pools"]
    return {pool["code"]: {name: value for name, value in pool.items() if name != "code"} for pool in pools}


def list_seats(client: httpx.Client, event: str) -> list[Body]:
    found: list[Body] = expect_ok(client.get(f"/v1/events/{event}/seats"))["seats"]
    return found


def taken_seats(client: httpx.Client, event: str) -> dict[str, str]:
    return {seat["label"]: seat["state"] for seat in list_seats(client, event) if seat["state"] != "free"}


def booking_status(client: httpx.Client, booking: Body) -> str:
    status: str = expect_ok(client.get(f"/v1/bookings/{booking['id']}"))["status"]
    return status


def place_hold(client: httpx.Client, event: str, *items: Body, **more: Any) -> Body:
    return expect_ok(post_hold(client, event, items=list(items), **more), 201)


def act(client: httpx.Client, booking: Body, action: str) -> Body:
    return expect_ok(client.post(f"/v1/bookings/{booking['id']}/{action}"))


def test_a_new_event_is_a_draft_with_all_its_fields(admin: httpx.Client) -> None:
    answer = admin.post("/v1/events", json=example_event(details={"address": "Main Street 1", "doors": [19, 20]}))
    event = expect_ok(answer, 201)
    assert answer.headers["location"] == f"/v1/events/{event['id']}"
    assert event["status"] == "draft"
    assert (event["title"], event["currency"], event["tax_bps"]) == ("Friday night", "EUR", 1900)
    assert event["starts_at"] == "2027-03-05T19:00:00Z"
    assert event["details"] == {"address": "Main Street 1", "doors": [19, 20]}
    assert [pool["code"] for pool in event["pools"]] == ["stalls", "standing"]
    assert expect_ok(admin.get(f"/v1/events/{event['id']}")) == event


def test_an_event_needs_only_a_title_a_time_a_currency_and_a_pool(admin: httpx.Client) -> None:
    event = create_event(
        admin,
        {"title": "T", "starts_at": "2027-03-05T19:00:00Z", "currency": "JPY", "pools": one_pool(capacity=3)},
    )
    assert (event["preset"], event["tax_bps"], event["details"]) == (None, 0, {})
    assert set(event["policy"]) == POLICY_FIELDS


def test_times_are_returned_in_utc(admin: httpx.Client) -> None:
    event = create_event(admin, example_event(starts_at="2027-03-05T19:00:00+05:30"))
    assert event["starts_at"] == "2027-03-05T13:30:00Z"


def test_a_grid_has_a_seat_for_each_row_and_number(admin: httpx.Client) -> None:
    event = create_event(admin, example_event(pools=one_pool(seats={"rows": ["A", "B"], "numbers": 3})))
    assert event["pools"][0]["capacity"] == 6
    assert list_seats(admin, event["id"]) == [
        {"label": f"{row}-{n}", "pool": "hall", "row": row, "number": n, "x": None, "y": None, "state": "free"}
        for row in ("A", "B")
        for n in (1, 2, 3)
    ]


def test_seats_can_be_created_one_by_one_with_coordinates(admin: httpx.Client) -> None:
    listed: list[Body] = [
        {"label": "Box 1", "row": "Box", "number": 1, "x": -1.5, "y": 2},
        {"label": "Box 2", "row": "Box", "number": 2, "x": 0.0, "y": 2.25},
        {"label": "Stool"},
    ]
    event = create_event(admin, example_event(pools=one_pool(seats=listed)))
    bare = {"row": "", "number": None, "x": None, "y": None}
    assert list_seats(admin, event["id"]) == [{**bare, **seat, "pool": "hall", "state": "free"} for seat in listed]
    assert get_availability(admin, event["id"]) == {"hall": {"capacity": 3, "held": 0, "sold": 0, "remaining": 3}}


def test_a_pool_without_tariffs_is_free(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=one_pool(capacity=3)))
    assert place_hold(admin, event, {"pool": "hall", "quantity": 2})["total"] == 0


# The policies that each kind of business depends on. The preset chooses the others freely.
PRESETS: Final[dict[str, Body]] = {
    "shift": {
        "hold_seconds": 180,
        "extend_seconds": 0,
        "review": "manual",
        "max_units_per_user": 1,
        "one_booking_per_user": True,
    },
    "show": {"hold_seconds": 600, "max_hold_seconds": 900, "review": "none", "one_booking_per_user": False},
    "arena": {"hold_seconds": 900, "extend_seconds": 300, "max_hold_seconds": 1200, "review": "none"},
    "registration": {"confirm_at_once": True, "max_units_per_user": 1, "one_booking_per_user": True},
    "experience": {"hold_seconds": 900, "max_hold_seconds": 1200, "review": "none", "one_booking_per_user": False},
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_the_policy_of_its_business(admin: httpx.Client, preset: str) -> None:
    event = create_event(admin, example_event(preset=preset, pools=one_pool(capacity=3)))
    assert event["preset"] == preset
    assert set(event["policy"]) == POLICY_FIELDS
    assert {name: event["policy"][name] for name in PRESETS[preset]} == PRESETS[preset]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_policy_overrides_its_preset_field_by_field(admin: httpx.Client, preset: str) -> None:
    default = create_event(admin, example_event(preset=preset, pools=one_pool(capacity=3)))["policy"]
    own = {
        "hold_seconds": 7,
        "max_units_per_user": 3,
        "avoid_orphans": not default["avoid_orphans"],
        "confirm_at_once": not default["confirm_at_once"],
    }
    event = create_event(admin, example_event(preset=preset, policy=own, pools=one_pool(capacity=3)))
    assert event["policy"] == {**default, **own}


def test_a_limit_of_a_preset_can_be_removed(admin: httpx.Client) -> None:
    event = create_event(admin, example_event(preset="show", policy={"max_units_per_user": None}))
    assert event["policy"]["max_units_per_user"] is None


def read_pages(client: httpx.Client, path: str, **params: Any) -> Iterator[Body]:
    """Read all pages of a list, one after the other."""
    after = None
    while True:
        page = expect_ok(client.get(path, params={**params, **({"after": after} if after else {})}))
        assert set(page) == {"items", "next"}
        yield page
        after = page["next"]
        if after is None:
            return


@pytest.fixture(scope="module")
def catalogue(server: Server) -> Iterator[tuple[httpx.Client, list[str]]]:
    """The admin of an org with seven events, and their ids, soonest first: a draft, then published ones."""
    org = Org(server.database_url, f"catalogue-{secrets.token_hex(3)}")
    with server.client(org.headers()) as client:
        # Two of them start at the same time.
        days = [9, 4, 7, 6, 7, 8]
        published = {publish_event(client, example_event(starts_at=f"2027-03-0{day}T19:00:00Z")): day for day in days}
        draft = create_event(client, example_event(title="Draft", starts_at="2027-03-01T19:00:00Z"))["id"]
        yield client, [draft, *sorted(published, key=lambda id_: (published[id_], id_))]


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 8, 200])
def test_the_pages_of_a_list_contain_every_event_once_soonest_first(
    catalogue: tuple[httpx.Client, list[str]], limit: int
) -> None:
    client, expected = catalogue
    found = list(read_pages(client, "/v1/events", limit=limit))
    assert [event["id"] for page in found for event in page["items"]] == expected
    assert all(len(page["items"]) == limit for page in found[:-1])
    assert 0 < len(found[-1]["items"]) <= limit


def test_new_items_do_not_shift_the_pages_of_a_list(server: Server) -> None:
    org = Org(server.database_url, f"busy-{secrets.token_hex(3)}")
    with server.client(org.headers()) as client:
        ids = [create_event(client, example_event())["id"] for _ in range(4)]
        found = []
        for page in islice(read_pages(client, "/v1/events", limit=1), 6):
            found += [event["id"] for event in page["items"]]
            create_event(client, example_event(starts_at="2027-03-04T19:00:00Z"))
            create_event(client, example_event(starts_at="2027-03-06T19:00:00Z"))
        assert found[: len(ids)] == ids
        assert len(set(found)) == len(found)


def test_events_can_be_listed_by_status(catalogue: tuple[httpx.Client, list[str]]) -> None:
    client, (draft, *published) = catalogue
    for status, expected in {"draft": [draft], "active": published, "completed": [], "cancelled": []}.items():
        items = expect_ok(client.get("/v1/events", params={"status": status}))["items"]
        assert [event["id"] for event in items] == expected


def test_the_public_sees_only_published_events(public: httpx.Client, catalogue: tuple[httpx.Client, list[str]]) -> None:
    _, (draft, *published) = catalogue
    listed = [event["id"] for page in read_pages(public, "/v1/events", limit=200) for event in page["items"]]
    assert set(published) <= set(listed)
    assert draft not in listed
    expect_ok(public.get(f"/v1/events/{published[0]}"))


def test_a_change_affects_only_the_fields_it_names(admin: httpx.Client) -> None:
    before = create_event(admin, example_event(preset="show", details={"a": 1}))
    after = change_event(admin, before["id"], title="Saturday night", policy={"hold_seconds": 60})
    assert after["title"] == "Saturday night"
    assert after["policy"] == {**before["policy"], "hold_seconds": 60}
    changed = ("title", "policy", "version")
    assert {k: v for k, v in after.items() if k not in changed} == {k: v for k, v in before.items() if k not in changed}
    assert after["version"] > before["version"]


def test_a_change_can_set_the_start_the_details_and_the_tax(admin: httpx.Client) -> None:
    event = create_event(admin, example_event(details={"a": 1}))["id"]
    after = change_event(admin, event, starts_at="2028-01-01T00:00:00+01:00", details={"b": 2}, tax_bps=700)
    assert (after["starts_at"], after["details"], after["tax_bps"]) == ("2027-12-31T23:00:00Z", {"b": 2}, 700)


def test_a_changed_policy_applies_to_new_bookings(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    before = place_hold(admin, event, {"seat": "A-1"})
    change_event(admin, event, policy={"hold_seconds": 60})
    after = place_hold(admin, event, {"seat": "A-2"})
    assert hold_duration(before) == timedelta(seconds=600)
    assert hold_duration(after) == timedelta(seconds=60)


def hold_duration(booking: Body) -> timedelta:
    return datetime.fromisoformat(booking["expires_at"]) - datetime.fromisoformat(booking["created_at"])


def pool_event(capacity: int, **more: Any) -> Body:
    return example_event(pools=one_pool(capacity=capacity, tariffs=[{"code": "full", "price": 1000}]), **more)


def test_a_capacity_can_be_raised(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(2))
    place_hold(admin, event, {"pool": "hall", "quantity": 2})
    expect_error(post_hold(admin, event, items=[{"pool": "hall"}]), 409, "sold_out")
    assert change_event(admin, event, pools=one_pool(capacity=3))["pools"][0]["capacity"] == 3
    place_hold(admin, event, {"pool": "hall"})
    assert get_availability(admin, event)["hall"] == {"capacity": 3, "held": 3, "sold": 0, "remaining": 0}


def test_a_capacity_cannot_be_lowered_below_the_taken_units(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(10))
    act(admin, place_hold(admin, event, {"pool": "hall", "quantity": 3}), "confirm")
    place_hold(admin, event, {"pool": "hall", "quantity": 2})
    answer = admin.patch(f"/v1/events/{event}", json={"title": "New", "pools": one_pool(capacity=4)})
    assert expect_error(answer, 409, "capacity_in_use")["conflicts"] == ["hall"]
    assert expect_ok(admin.get(f"/v1/events/{event}"))["title"] == "Friday night"
    change_event(admin, event, pools=one_pool(capacity=5))
    assert get_availability(admin, event)["hall"] == {"capacity": 5, "held": 2, "sold": 3, "remaining": 0}
    expect_error(post_hold(admin, event, items=[{"pool": "hall"}]), 409, "sold_out")


def test_a_capacity_can_be_lowered_below_an_expired_hold(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(5, policy={"hold_seconds": 1}))
    place_hold(admin, event, {"pool": "hall", "quantity": 5})
    wait_until(lambda: admin.patch(f"/v1/events/{event}", json={"pools": one_pool(capacity=1)}).status_code == 200, 15)
    assert get_availability(admin, event)["hall"] == {"capacity": 1, "held": 0, "sold": 0, "remaining": 1}


def test_a_changed_price_applies_only_to_new_bookings(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(5, tax_bps=1000))
    before = place_hold(admin, event, {"pool": "hall"})
    change_event(admin, event, pools=one_pool(tariffs=[{"code": "full", "price": 5000}]), tax_bps=2000)
    after = place_hold(admin, event, {"pool": "hall"})
    assert (before["subtotal"], before["tax"], before["total"]) == (1000, 100, 1100)
    assert (after["subtotal"], after["tax"], after["total"]) == (5000, 1000, 6000)
    confirmed = act(admin, before, "confirm")
    assert (confirmed["items"], confirmed["total"]) == (before["items"], 1100)


def test_a_tariff_can_be_added(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(5))
    pools = change_event(admin, event, pools=one_pool(tariffs=[{"code": "child", "price": 400, "name": "Child"}]))[
        "pools"
    ]
    assert {tariff["code"]: tariff["price"] for tariff in pools[0]["tariffs"]} == {"full": 1000, "child": 400}
    assert place_hold(admin, event, {"pool": "hall", "tariff": "child"})["subtotal"] == 400
    expect_error(post_hold(admin, event, items=[{"pool": "hall"}]), 422, "unknown_tariff")


def test_pools_can_be_added_and_sold_at_once(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(1))
    added = [
        {"code": "balcony", "name": "Balcony", "seats": {"rows": ["Z"], "numbers": 2}},
        {"code": "bar", "capacity": 4},
    ]
    assert [pool["code"] for pool in change_event(admin, event, pools=added)["pools"]] == ["hall", "balcony", "bar"]
    place_hold(admin, event, {"seat": "Z-2"}, {"pool": "bar", "quantity": 4}, {"pool": "hall"})
    assert {code: pool["remaining"] for code, pool in get_availability(admin, event).items()} == {
        "hall": 0,
        "balcony": 1,
        "bar": 0,
    }
    assert taken_seats(admin, event) == {"Z-2": "held"}


def test_a_blocked_seat_is_shown_as_blocked_and_cannot_be_held(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    change_event(admin, event, block_seats=["A-1", "A-2"])
    assert taken_seats(public, event) == {"A-1": "blocked", "A-2": "blocked"}
    assert get_availability(public, event)["stalls"]["remaining"] == 38
    assert expect_error(post_hold(admin, event, items=[{"seat": "A-1"}]), 409, "seat_taken")["conflicts"] == ["A-1"]
    mixed = post_hold(admin, event, items=[{"seat": "A-3"}, {"seat": "A-2"}])
    assert expect_error(mixed, 409, "seat_taken")["conflicts"] == ["A-2"]
    assert taken_seats(public, event) == {"A-1": "blocked", "A-2": "blocked"}


def test_best_available_never_picks_blocked_seats(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=one_pool(seats={"rows": ["A"], "numbers": 4})))
    change_event(admin, event, block_seats=["A-2", "A-3"])
    best = {"pool": "hall", "quantity": 2}
    expect_error(post_hold(admin, event, best_available=best), 409, "sold_out")
    scattered = expect_ok(post_hold(admin, event, best_available={**best, "adjacent": False}), 201)
    assert sorted(item["seat"] for item in scattered["items"]) == ["A-1", "A-4"]


def test_an_unblocked_seat_is_on_sale_again(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    change_event(admin, event, block_seats=["A-1"])
    change_event(admin, event, block_seats=["A-1", "A-2"])
    change_event(admin, event, unblock_seats=["A-1", "B-1"])
    assert taken_seats(admin, event) == {"A-2": "blocked"}
    assert get_availability(admin, event)["stalls"]["remaining"] == 39
    place_hold(admin, event, {"seat": "A-1"})


@pytest.mark.parametrize("state", ["held", "sold"])
def test_a_taken_seat_cannot_be_blocked(admin: httpx.Client, state: str) -> None:
    event = publish_event(admin, example_event())
    booking = place_hold(admin, event, {"seat": "A-1"})
    if state == "sold":
        act(admin, booking, "confirm")
    answer = admin.patch(f"/v1/events/{event}", json={"block_seats": ["A-2", "A-1"]})
    assert expect_error(answer, 409, "seat_taken")["conflicts"] == ["A-1"]
    assert taken_seats(admin, event) == {"A-1": state}


def test_a_seat_with_an_expired_hold_can_be_blocked(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    place_hold(admin, event, {"seat": "A-1"})
    wait_until(lambda: admin.patch(f"/v1/events/{event}", json={"block_seats": ["A-1"]}).status_code == 200, 15)
    assert taken_seats(admin, event) == {"A-1": "blocked"}


VERBS: Final = {"publish": "active", "complete": "completed", "cancel": "cancelled"}
# The transitions of an event. Any other pair is refused.
STEPS: Final = {
    ("draft", "publish"): "active",
    ("draft", "cancel"): "cancelled",
    ("active", "publish"): "active",
    ("active", "complete"): "completed",
    ("active", "cancel"): "cancelled",
    ("completed", "complete"): "completed",
    ("cancelled", "cancel"): "cancelled",
}


def create_event_in_status(admin: httpx.Client, status: str) -> str:
    event: str = create_event(admin, example_event())["id"]
    way = {"draft": [], "active": ["publish"], "completed": ["publish", "complete"], "cancelled": ["cancel"]}[status]
    for verb in way:
        expect_ok(admin.post(f"/v1/events/{event}/{verb}"))
    return event


# Every pair: together they are the state table of events.
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("status", ["draft", "active", "completed", "cancelled"])
def test_an_event_changes_status_once_or_refuses_the_action(admin: httpx.Client, status: str, verb: str) -> None:
    event = create_event_in_status(admin, status)
    before = expect_ok(admin.get(f"/v1/events/{event}"))
    answer = admin.post(f"/v1/events/{event}/{verb}")
    if (status, verb) not in STEPS:
        assert answer.status_code == 409
        expect_error(answer, 409, answer.json()["code"])
        assert expect_ok(admin.get(f"/v1/events/{event}")) == before
        return
    after = expect_ok(answer)
    assert after["status"] == STEPS[status, verb]
    if status == after["status"]:
        assert after == before
    assert expect_ok(admin.post(f"/v1/events/{event}/{verb}")) == after


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_an_ended_event_cannot_be_changed(admin: httpx.Client, status: str) -> None:
    event = create_event_in_status(admin, status)
    expect_error(admin.patch(f"/v1/events/{event}", json={"title": "Again"}), 409, "event_ended")


@pytest.mark.parametrize("status", ["draft", "completed", "cancelled"])
def test_an_event_that_is_not_on_sale_refuses_holds(admin: httpx.Client, status: str) -> None:
    event = create_event_in_status(admin, status)
    expect_error(post_hold(admin, event, items=[{"seat": "A-1"}]), 409, "event_not_on_sale")


def test_a_cancelled_event_ends_all_its_bookings(admin: httpx.Client) -> None:
    free_and_paid = [
        {"code": "hall", "seats": {"rows": ["A"], "numbers": 9}, "tariffs": [{"code": "full", "price": 1000}]},
        {"code": "free", "capacity": 5},
    ]
    event = publish_event(admin, example_event(pools=free_and_paid))
    was_held = place_hold(admin, event, {"seat": "A-1"})
    was_paid = act(admin, place_hold(admin, event, {"seat": "A-2"}), "confirm")
    was_free = act(admin, place_hold(admin, event, {"pool": "free", "quantity": 2}), "confirm")
    was_cancelled = act(admin, place_hold(admin, event, {"seat": "A-3"}), "cancel")
    was_refunded = act(admin, act(admin, place_hold(admin, event, {"seat": "A-4"}), "confirm"), "refund")
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))
    assert booking_status(admin, was_held) == "cancelled"
    assert booking_status(admin, was_paid) == "refunded"
    assert booking_status(admin, was_free) == "cancelled"
    assert expect_ok(admin.get(f"/v1/bookings/{was_cancelled['id']}"))["version"] == was_cancelled["version"]
    assert expect_ok(admin.get(f"/v1/bookings/{was_refunded['id']}"))["version"] == was_refunded["version"]
    assert all((pool["held"], pool["sold"]) == (0, 0) for pool in get_availability(admin, event).values())
    assert taken_seats(admin, event) == {}
    expect_error(admin.post(f"/v1/bookings/{was_held['id']}/confirm"), 409, "already_cancelled")


def test_a_completed_event_completes_its_confirmed_bookings(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    confirmed = act(admin, place_hold(admin, event, {"seat": "A-1"}), "confirm")
    cancelled = act(admin, place_hold(admin, event, {"seat": "A-2"}), "cancel")
    expect_ok(admin.post(f"/v1/events/{event}/complete"))
    assert booking_status(admin, confirmed) == "completed"
    assert booking_status(admin, cancelled) == "cancelled"
    assert taken_seats(admin, event) == {"A-1": "sold"}
    expect_error(admin.post(f"/v1/bookings/{confirmed['id']}/refund"), 409, "already_completed")


def test_a_large_event_is_cancelled_with_all_its_bookings(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(60))
    bookings = [place_hold(admin, event, {"pool": "hall"}, user=f"u-{n}") for n in range(60)]
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))
    listed = expect_ok(admin.get("/v1/bookings", params={"event": event, "status": "cancelled", "limit": 200}))
    assert {item["id"] for item in listed["items"]} == {booking["id"] for booking in bookings}


def test_availability_counts_held_and_sold_units(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    place_hold(admin, event, {"seat": "A-1"}, {"pool": "standing", "tariff": "child", "quantity": 2})
    act(
        admin,
        place_hold(admin, event, {"seat": "A-2"}, {"pool": "standing", "tariff": "full", "quantity": 3}),
        "confirm",
    )
    answer = expect_ok(public.get(f"/v1/events/{event}/availability"))
    assert answer == {
        "event": event,
        "version": expect_ok(public.get(f"/v1/events/{event}"))["version"],
        "pools": [
            {"code": "stalls", "capacity": 40, "held": 1, "sold": 1, "remaining": 38},
            {"code": "standing", "capacity": 500, "held": 2, "sold": 3, "remaining": 495},
        ],
    }


def test_the_seat_map_shows_the_state_of_every_seat(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    place_hold(admin, event, {"seat": "A-1"})
    act(admin, place_hold(admin, event, {"seat": "B-20"}), "confirm")
    change_event(admin, event, block_seats=["B-2"])
    answer = expect_ok(public.get(f"/v1/events/{event}/seats"))
    assert set(answer) == {"event", "version", "seats"}
    assert answer["event"] == event
    states = {seat["label"]: seat["state"] for seat in answer["seats"]}
    assert len(states) == len(answer["seats"]) == 40
    assert {label: state for label, state in states.items() if state != "free"} == {
        "A-1": "held",
        "B-20": "sold",
        "B-2": "blocked",
    }
    fields = {"label", "pool", "row", "number", "x", "y", "state"}
    assert all(set(seat) == fields for seat in answer["seats"])


VIEWS: Final = ("availability", "seats")


def get_etag(client: httpx.Client, path: str) -> str:
    answer = client.get(path)
    expect_ok(answer)
    tag: str = answer.headers["etag"]
    return tag


@pytest.mark.parametrize("view", VIEWS)
def test_a_client_with_the_current_version_gets_304(admin: httpx.Client, public: httpx.Client, view: str) -> None:
    event = publish_event(admin, example_event())
    path = f"/v1/events/{event}/{view}"
    tags = {get_etag(public, path) for _ in range(10)}
    assert len(tags) == 1
    tag = tags.pop()
    unchanged = public.get(path, headers={"If-None-Match": tag})
    assert (unchanged.status_code, unchanged.content, unchanged.headers["etag"]) == (304, b"", tag)


@pytest.mark.parametrize(
    ("view", "header"),
    [
        *(("seats", header) for header in ("{tag}", '"old", {tag}', '{tag},"old"', "W/{tag}", "*")),
        ("availability", "W/{tag}"),
    ],
)
def test_every_form_of_if_none_match_is_understood(
    admin: httpx.Client, public: httpx.Client, view: str, header: str
) -> None:
    path = f"/v1/events/{publish_event(admin, example_event())}/{view}"
    answer = public.get(path, headers={"If-None-Match": header.format(tag=get_etag(public, path))})
    assert answer.status_code == 304


@pytest.mark.parametrize(
    ("view", "header"),
    [*(("seats", header) for header in ('"old"', "old", "", '"1', "W/")), ("availability", '"old"')],
)
def test_an_unknown_version_gets_the_current_one(
    admin: httpx.Client, public: httpx.Client, view: str, header: str
) -> None:
    path = f"/v1/events/{publish_event(admin, example_event())}/{view}"
    expect_ok(public.get(path, headers={"If-None-Match": header}))


@pytest.mark.parametrize("view", VIEWS)
def test_every_change_of_stock_has_its_own_version(admin: httpx.Client, public: httpx.Client, view: str) -> None:
    event = publish_event(admin, example_event())
    path = f"/v1/events/{event}/{view}"
    tags = [get_etag(public, path)]
    first = place_hold(admin, event, {"seat": "A-1"})
    tags.append(get_etag(public, path))
    for action in ("confirm", "refund"):
        act(admin, first, action)
        tags.append(get_etag(public, path))
    act(admin, place_hold(admin, event, {"seat": "A-1"}), "cancel")
    tags.append(get_etag(public, path))
    change_event(admin, event, block_seats=["A-1"])
    tags.append(get_etag(public, path))
    change_event(admin, event, unblock_seats=["A-1"])
    tags.append(get_etag(public, path))
    assert len(set(tags)) == len(tags)
    for tag in tags[:-1]:
        assert public.get(path, headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize("view", VIEWS)
def test_an_expired_hold_changes_the_version(admin: httpx.Client, public: httpx.Client, view: str) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    path = f"/v1/events/{event}/{view}"
    place_hold(admin, event, {"seat": "A-1"})
    before = get_etag(public, path)
    wait_until(lambda: public.get(path, headers={"If-None-Match": before}).status_code == 200, 15)
    if view == "seats":
        assert taken_seats(public, event) == {}
    else:
        assert get_availability(public, event)["stalls"]["held"] == 0
    after = get_etag(public, path)
    assert after != before
    place_hold(admin, event, {"seat": "A-1"}, user="u-2")
    assert get_etag(public, path) not in (before, after)


def read_changes(client: httpx.Client, event: str, limit: int = 200) -> list[Body]:
    """Read all changes of the feed, page by page."""
    found: list[Body] = []
    after = 0
    while True:
        page = expect_ok(client.get(f"/v1/events/{event}/changes", params={"after": after, "limit": limit}))
        assert set(page) == {"changes", "next"}
        if not page["changes"]:
            assert page["next"] == after
            return found
        found += page["changes"]
        after = page["next"]
        assert after == found[-1]["seq"]


def act_at_random(admin: httpx.Client, event: str, steps: int) -> None:
    """Let buyers and staff act at random. Some actions are refused."""
    rng = random.Random(7)
    bookings: list[str] = []
    for step in range(steps):
        seat = {"seat": f"{rng.choice('AB')}-{rng.randint(1, 20)}"}
        standing = {"pool": "standing", "tariff": rng.choice(["full", "child"]), "quantity": rng.randint(1, 5)}
        if rng.random() < 0.5 or not bookings:
            answer = post_hold(
                admin, event, user=f"buyer-{step}", items=rng.choice([[seat], [standing], [seat, standing]])
            )
            bookings += [answer.json()["id"]] if answer.status_code == 201 else []
        elif rng.random() < 0.8:
            action = rng.choice(["confirm", "cancel", "refund", "extend"])
            admin.post(f"/v1/bookings/{rng.choice(bookings)}/{action}")
        else:
            label = seat["seat"]
            admin.patch(
                f"/v1/events/{event}",
                json=rng.choice(
                    [
                        {"block_seats": [label]},
                        {"unblock_seats": [label]},
                        {"pools": [{"code": "standing", "capacity": rng.randint(100, 900)}]},
                        {"pools": [{"code": f"extra-{step}", "capacity": 5}]},
                        {"title": f"Title {step}"},
                    ]
                ),
            )


@pytest.mark.parametrize("limit", [7, 200])
def test_replaying_the_changes_leads_to_the_current_state(
    admin: httpx.Client, public: httpx.Client, limit: int
) -> None:
    event = create_event(admin, example_event())["id"]
    pools = get_availability(admin, event)
    taken: dict[str, str] = {}
    expect_ok(admin.post(f"/v1/events/{event}/publish"))
    act_at_random(admin, event, 150)
    changes = read_changes(public, event, limit)
    assert [found["seq"] for found in changes] == list(range(1, len(changes) + 1))
    assert changes[-1]["seq"] == expect_ok(public.get(f"/v1/events/{event}/availability"))["version"]
    for found in changes:
        taken.update(found["seats"])
        pools.update(found["pools"])
    assert pools == get_availability(public, event)
    assert {label: state for label, state in taken.items() if state != "free"} == taken_seats(public, event)
    assert {"held", "confirmed", "cancelled", "refunded"} <= {found["kind"] for found in changes}
    assert {"held", "sold", "blocked"} <= set(taken_seats(public, event).values())


def test_each_change_carries_the_state_right_after_it(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    start = expect_ok(public.get(f"/v1/events/{event}"))["version"]
    booking = place_hold(admin, event, {"seat": "A-1"}, {"pool": "standing", "tariff": "full", "quantity": 2})
    act(admin, booking, "confirm")
    act(admin, booking, "refund")
    page = expect_ok(public.get(f"/v1/events/{event}/changes", params={"after": start}))
    entries = [(found["kind"], found["seats"]["A-1"], found["pools"]["standing"]) for found in page["changes"]]
    assert entries == [
        ("held", "held", {"capacity": 500, "held": 2, "sold": 0, "remaining": 498}),
        ("confirmed", "sold", {"capacity": 500, "held": 0, "sold": 2, "remaining": 498}),
        ("refunded", "free", {"capacity": 500, "held": 0, "sold": 0, "remaining": 500}),
    ]
    assert page["next"] == start + 3


def test_changes_reveal_nothing_about_users(
    org: Org, admin: httpx.Client, sales: httpx.Client, public: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    user, details, reason = (secrets.token_hex(8) for _ in range(3))
    booking = place_hold(sales, event, {"seat": "A-1"}, user=user, details={"name": details})
    expect_ok(sales.post(f"/v1/bookings/{booking['id']}/cancel", json={"reason": reason}))
    text = public.get(f"/v1/events/{event}/changes").text
    for private in (user, details, reason, booking["id"], booking["id"][-20:], org.keys["sales"][:12]):
        assert private not in text
    assert all(set(found) <= {"type", "seq", "kind", "at", "seats", "pools"} for found in read_changes(public, event))


def test_changes_after_a_future_number_are_empty(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    page = expect_ok(public.get(f"/v1/events/{event}/changes", params={"after": 10**9}))
    assert page == {"changes": [], "next": 10**9}


def test_the_journal_records_the_actor_of_each_change(
    server: Server, org: Org, admin: httpx.Client, sales: httpx.Client
) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 600}))
    token = expect_ok(sales.post("/v1/customer-tokens", json={"user": "u-9"}), 201)["token"]
    with server.client({"Authorization": f"Bearer {token}"}) as customer:
        own = place_hold(customer, event, {"seat": "A-1"}, user="u-9")
        expect_ok(customer.post(f"/v1/bookings/{own['id']}/cancel", json={"reason": "changed my mind"}))
    sold = place_hold(sales, event, {"seat": "A-2"}, user="u-8")
    act(admin, sold, "confirm")
    journal = expect_ok(admin.get(f"/v1/events/{event}/journal"))
    entries = [(entry["seq"], entry["kind"], entry["booking"], entry["reason"]) for entry in journal["items"]]
    assert entries == [
        (1, "event_created", None, None),
        (2, "event_published", None, None),
        (3, "held", own["id"], None),
        (4, "cancelled", own["id"], "changed my mind"),
        (5, "held", sold["id"], None),
        (6, "confirmed", sold["id"], None),
    ]
    by_admin, by_sales = f"key:{org.keys['admin'][:12]}", f"key:{org.keys['sales'][:12]}"
    actors = [entry["actor"] for entry in journal["items"]]
    assert actors == [by_admin, by_admin, "user:u-9", "user:u-9", by_sales, by_admin]
    assert not any(key in str(journal) for key in org.keys.values())


def test_the_journal_records_an_expiry_by_the_system(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    expired_booking = place_hold(admin, event, {"seat": "A-1"})
    wait_until(lambda: post_hold(admin, event, user="u-2", items=[{"seat": "A-1"}]).status_code == 201, 15)
    journal = expect_ok(admin.get(f"/v1/events/{event}/journal"))["items"]
    expired = [entry for entry in journal if entry["kind"] == "expired"]
    assert [(entry["booking"], entry["actor"]) for entry in expired[:1]] == [(expired_booking["id"], "system")]


def test_the_journal_can_be_read_in_pages(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    for number in range(1, 6):
        place_hold(admin, event, {"seat": f"A-{number}"})
    found = [
        entry["seq"] for page in read_pages(admin, f"/v1/events/{event}/journal", limit=2) for entry in page["items"]
    ]
    assert found == [1, 2, 3, 4, 5, 6, 7]


def test_a_customer_token_acts_for_one_user(server: Server, admin: httpx.Client, sales: httpx.Client) -> None:
    answer = expect_ok(sales.post("/v1/customer-tokens", json={"user": "u-5", "ttl_seconds": 120}), 201)
    assert set(answer) == {"token", "user", "expires_at"}
    assert answer["user"] == "u-5"
    claims = jwt.decode(answer["token"], options={"verify_signature": False})
    assert datetime.fromisoformat(answer["expires_at"]).timestamp() == claims["exp"]
    event = publish_event(admin, example_event())
    with server.client({"Authorization": f"Bearer {answer['token']}"}) as customer:
        body = {"items": [{"seat": "A-1"}]}
        hold = customer.post(f"/v1/events/{event}/holds", json=body, headers={"Idempotency-Key": "k"})
        assert expect_ok(hold, 201)["user"] == "u-5"
        assert expect_ok(customer.get(f"/v1/bookings/{hold.json()['id']}"))["user"] == "u-5"


@pytest.mark.parametrize(
    "user", ["u 1", "žluťoučký kůň", "\N{GRINNING FACE}", "a\nb", "u" * 200, "../u", "' OR 1=1 --"]
)
def test_a_user_id_may_contain_any_text(server: Server, admin: httpx.Client, sales: httpx.Client, user: str) -> None:
    token = expect_ok(sales.post("/v1/customer-tokens", json={"user": user}), 201)["token"]
    event = publish_event(admin, example_event())
    with server.client({"Authorization": f"Bearer {token}"}) as customer:
        booking = place_hold(customer, event, {"seat": "A-1"}, user=user)
        assert booking["user"] == user
        listed = expect_ok(customer.get("/v1/bookings", params={"user": user, "event": event}))["items"]
        assert [item["id"] for item in listed] == [booking["id"]]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_checks_are_public(public: httpx.Client, path: str) -> None:
    assert isinstance(expect_ok(public.get(path))["status"], str)


def test_the_journal_records_changes_to_the_event(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    change = {"title": "Saturday", "policy": {"hold_seconds": 60}, "pools": [{"code": "standing", "capacity": 400}]}
    assert admin.patch(f"/v1/events/{event}", json=change).status_code == 200
    entry = admin.get(f"/v1/events/{event}/journal").json()["items"][-1]
    assert entry["kind"] == "event_changed"
    assert entry["change"] == {**entry["change"], **change}
    assert "change" not in admin.get(f"/v1/events/{event}/changes").json()["changes"][-1]


def test_a_cancelled_draft_stays_hidden_from_the_public(server: Server, admin: httpx.Client) -> None:
    event = admin.post("/v1/events", json=example_event()).json()["id"]
    assert admin.post(f"/v1/events/{event}/cancel").status_code == 200
    with server.client() as public:
        assert public.get(f"/v1/events/{event}").status_code == 404
        listed = public.get("/v1/events", params={"limit": 200}).json()["items"]
    assert event not in [item["id"] for item in listed]
    assert admin.get(f"/v1/events/{event}").json()["status"] == "cancelled"
