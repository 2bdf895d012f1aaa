"""Holds and bookings over HTTP: place, extend, confirm, cancel, and retry with the same answer."""

import secrets
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from tests.support.harness import Server, example_event, post_hold, publish_event, wait_until
from tests.support.http_assertions import expect_error, expect_ok

Body = dict[str, Any]

FIELDS: Final = {
    "id",
    "reference",
    "event",
    "user",
    "status",
    "items",
    "subtotal",
    "tax",
    "total",
    "currency",
    "created_at",
    "expires_at",
    "expires_in_seconds",
    "max_expires_at",
    "server_time",
    "version",
    "details",
    "email",
    "language",
    "payments",
    "reason",
}
# Fields that differ between two readings of the same booking.
CLOCKS: Final = ("server_time", "expires_in_seconds")


@pytest.fixture(scope="module")
def public(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def counted(capacity: int, price: int = 1000, **more: Any) -> Body:
    """An event with one pool that is a plain number."""
    return example_event(
        pools=[{"code": "hall", "capacity": capacity, "tariffs": [{"code": "full", "price": price}]}], **more
    )


def row_of(numbers: int, **more: Any) -> Body:
    """An event with one row of seats."""
    pool = {"code": "hall", "seats": {"rows": ["A"], "numbers": numbers}, "tariffs": [{"code": "full", "price": 1000}]}
    return example_event(pools=[pool], **more)


def seat(label: str) -> Body:
    return {"seat": label}


def units(quantity: int, pool: str = "hall", **more: Any) -> Body:
    return {"pool": pool, "quantity": quantity, **more}


def held(client: httpx.Client, event: str, *items: Body, **more: Any) -> Body:
    return expect_ok(post_hold(client, event, items=list(items), **more), 201)


def post(client: httpx.Client, booking: Body, action: str, body: Body | None = None) -> httpx.Response:
    return client.post(f"/v1/bookings/{booking['id']}/{action}", json=body)


def act(client: httpx.Client, booking: Body, *actions: str) -> Body:
    for action in actions:
        booking = expect_ok(post(client, booking, action))
    return booking


def reading(client: httpx.Client, booking: Body) -> Body:
    return expect_ok(client.get(f"/v1/bookings/{booking['id']}"))


def lasting(booking: Body) -> Body:
    return {name: value for name, value in booking.items() if name not in CLOCKS}


def listed(client: httpx.Client, **query: Any) -> list[str]:
    return [item["id"] for item in expect_ok(client.get("/v1/bookings", params=query))["items"]]


def time_of(text: str) -> datetime:
    assert text.endswith("Z"), text
    return datetime.fromisoformat(text)


def remaining(client: httpx.Client, event: str) -> dict[str, int]:
    pools = expect_ok(client.get(f"/v1/events/{event}/availability"))["pools"]
    return {pool["code"]: pool["remaining"] for pool in pools}


def seat_states(client: httpx.Client, event: str) -> dict[str, str]:
    found = expect_ok(client.get(f"/v1/events/{event}/seats"))["seats"]
    return {each["label"]: each["state"] for each in found if each["state"] != "free"}


def test_a_hold_is_answered_with_the_whole_booking(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    booking = held(admin, event, seat("A-5"), units(2, "standing", tariff="child"), user="u-7")
    assert set(booking) == FIELDS
    assert (booking["event"], booking["user"], booking["status"]) == (event, "u-7", "held")
    assert booking["items"] == [
        {"pool": "stalls", "tariff": "full", "seat": "A-5", "quantity": 1, "unit_price": 3000},
        {"pool": "standing", "tariff": "child", "seat": None, "quantity": 2, "unit_price": 700},
    ]
    assert (booking["subtotal"], booking["tax"], booking["total"], booking["currency"]) == (4400, 836, 5236, "EUR")
    assert (booking["payments"], booking["reason"]) == ([], None)
    created, expires = time_of(booking["created_at"]), time_of(booking["expires_at"])
    assert expires - created == timedelta(seconds=600)
    assert time_of(booking["max_expires_at"]) >= expires
    assert time_of(booking["server_time"]) == created
    assert booking["expires_in_seconds"] == 600
    assert booking["version"] == expect_ok(admin.get(f"/v1/events/{event}"))["version"]


def test_a_booking_reads_the_same_wherever_it_is_read(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    booking = held(admin, event, seat("A-5"), units(2, "standing", tariff="child"))
    again = reading(admin, booking)
    assert set(again) == FIELDS
    assert lasting(again) == lasting(booking)
    assert time_of(again["server_time"]) >= time_of(booking["server_time"])
    assert 0 < again["expires_in_seconds"] <= 600
    page = expect_ok(admin.get("/v1/bookings", params={"event": event}))
    assert set(page) == {"items", "next"}
    assert [lasting(item) for item in page["items"]] == [lasting(booking)]


@pytest.mark.parametrize(
    "details",
    [{}, {"name": "Ada"}, {"a": [1, 2.5, None, True, {"b": "\N{GRINNING FACE}"}]}, {"": 2**53}],
    ids=["empty", "text", "nested", "number"],
)
def test_details_survive_the_whole_life_of_a_booking(admin: httpx.Client, details: Body) -> None:
    event = publish_event(admin, example_event())
    booking = held(admin, event, seat("A-1"), details=details)
    assert booking["details"] == details
    assert reading(admin, booking)["details"] == details
    for action in ("extend", "confirm", "refund"):
        assert act(admin, booking, action)["details"] == details
    assert expect_ok(admin.get("/v1/bookings", params={"event": event}))["items"][0]["details"] == details


def test_an_expired_hold_with_details_blocks_nobody(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    held(admin, event, seat("A-1"), details={"name": "Ada"})
    wait_until(lambda: admin.get("/v1/bookings", params={"event": event, "status": "expired"}).text != EMPTY, 15)
    held(admin, event, seat("A-1"), user="u-2")
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))


EMPTY: Final = '{"items":[],"next":null}'


def test_a_hold_is_all_or_nothing_of_seats(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    held(admin, event, seat("A-2"), seat("A-4"))
    answer = post_hold(admin, event, user="u-2", items=[seat("A-1"), seat("A-2"), seat("A-3"), seat("A-4")])
    document = expect_error(answer, 409, "seat_taken")
    assert sorted(document["conflicts"]) == ["A-2", "A-4"]
    assert document["retryable"] is False
    assert seat_states(public, event) == {"A-2": "held", "A-4": "held"}
    assert listed(admin, event=event, user="u-2") == []


def test_a_hold_is_all_or_nothing_of_pools(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    held(admin, event, units(499, "standing", tariff="full"))
    answer = post_hold(admin, event, user="u-2", items=[seat("A-1"), units(2, "standing", tariff="child")])
    assert expect_error(answer, 409, "sold_out")["conflicts"] == ["standing"]
    assert remaining(public, event) == {"stalls": 40, "standing": 1}


def test_tariffs_share_the_capacity_of_their_pool(admin: httpx.Client, public: httpx.Client) -> None:
    tariffs = [{"code": "adult", "price": 4500}, {"code": "child", "price": 2000}]
    event = publish_event(admin, example_event(pools=[{"code": "slot", "capacity": 5, "tariffs": tariffs}]))
    both = [units(3, "slot", tariff="adult"), units(3, "slot", tariff="child")]
    assert expect_error(post_hold(admin, event, items=both), 409, "sold_out")["conflicts"] == ["slot"]
    held(admin, event, units(3, "slot", tariff="adult"), units(2, "slot", tariff="child"))
    assert remaining(public, event) == {"slot": 0}


def test_an_item_twice_is_counted_twice(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, counted(5))
    booking = held(admin, event, units(2), units(1))
    assert sum(item["quantity"] for item in booking["items"]) == 3
    assert booking["subtotal"] == 3000
    expect_error(post_hold(admin, event, items=[units(1), units(2)]), 409, "sold_out")
    assert remaining(public, event) == {"hall": 2}


def test_a_quantity_left_out_is_one(admin: httpx.Client) -> None:
    event = publish_event(admin, counted(5))
    assert held(admin, event, {"pool": "hall"})["items"][0]["quantity"] == 1


def test_the_last_unit_can_be_had_and_no_more(admin: httpx.Client) -> None:
    event = publish_event(admin, counted(3))
    held(admin, event, units(2))
    expect_error(post_hold(admin, event, items=[units(2)]), 409, "sold_out")
    held(admin, event, units(1))
    expect_error(post_hold(admin, event, items=[units(1)]), 409, "sold_out")


@pytest.fixture(scope="module")
def expired(admin: httpx.Client) -> Callable[[], Body]:
    """Expired bookings, created together so that one wait is enough."""
    event = publish_event(admin, counted(50, policy={"hold_seconds": 1}))
    made = [held(admin, event, units(1), user=f"u-{n}") for n in range(8)]
    wait_until(lambda: all(reading(admin, booking)["status"] == "expired" for booking in made), 15)
    return lambda: reading(admin, made.pop())


STATES: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "held": (1000, ()),
    "confirmed": (1000, ("confirm",)),
    "confirmed_for_free": (0, ("confirm",)),
    "cancelled": (1000, ("cancel",)),
    "refunded": (1000, ("confirm", "refund")),
}

ACTIONS: Final = ("extend", "confirm", "cancel", "refund")

# The status after an action, or the code of the refusal.
OUTCOMES: Final = {
    "held": ("held", "confirmed", "cancelled", "not_confirmed"),
    "confirmed": ("already_confirmed", "confirmed", "already_confirmed", "refunded"),
    "confirmed_for_free": ("already_confirmed", "confirmed", "cancelled", "refunded"),
    "cancelled": ("already_cancelled", "already_cancelled", "cancelled", "already_cancelled"),
    "refunded": ("already_refunded", "already_refunded", "already_refunded", "refunded"),
    "completed": ("already_completed",) * 4,
    "expired": ("hold_expired",) * 4,
}
STATUSES: Final = ("held", "confirmed", "cancelled", "refunded")


def in_state(admin: httpx.Client, expired: Callable[[], Body], state: str) -> Body:
    if state == "expired":
        return expired()
    if state == "completed":
        booking = in_state(admin, expired, "confirmed")
        expect_ok(admin.post(f"/v1/events/{booking['event']}/complete"))
        return reading(admin, booking)
    price, way = STATES[state]
    return act(admin, held(admin, publish_event(admin, counted(5, price)), units(1)), *way)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("state", OUTCOMES)
def test_an_action_leads_where_it_should_and_the_same_again_leads_nowhere(
    admin: httpx.Client, expired: Callable[[], Body], state: str, action: str
) -> None:
    booking = in_state(admin, expired, state)
    outcome = OUTCOMES[state][ACTIONS.index(action)]
    if outcome not in STATUSES:
        expect_error(post(admin, booking, action), 410 if outcome == "hold_expired" else 409, outcome)
        after = reading(admin, booking)
        # The first command on an event records its expired holds.
        unwritten = {"version": booking["version"]} if state == "expired" else {}
        assert lasting({**after, **unwritten}) == lasting(booking)
        return
    once = act(admin, booking, action)
    assert once["status"] == outcome
    if action != "extend":
        assert lasting(act(admin, booking, action)) == lasting(once)
    assert lasting(reading(admin, booking)) == lasting(once)
    assert (once["items"], once["total"]) == (booking["items"], booking["total"])


def test_an_action_takes_an_empty_body_or_an_empty_object(admin: httpx.Client) -> None:
    event = publish_event(admin, counted(5))
    bodies: list[Body | None] = [None, {}]
    for body in bodies:
        booking = held(admin, event, units(1))
        expect_ok(post(admin, booking, "confirm", body))
        expect_ok(post(admin, booking, "refund", body))


@pytest.mark.parametrize(("way", "action"), [((), "cancel"), (("confirm",), "refund")], ids=["cancel", "refund"])
def test_the_first_reason_is_stored(admin: httpx.Client, way: tuple[str, ...], action: str) -> None:
    booking = act(admin, held(admin, publish_event(admin, counted(5)), units(1)), *way)
    assert expect_ok(post(admin, booking, action, {"reason": "ill"}))["reason"] == "ill"
    assert expect_ok(post(admin, booking, action, {"reason": "other"}))["reason"] == "ill"
    assert reading(admin, booking)["reason"] == "ill"


@pytest.mark.parametrize("way", [("cancel",), ("confirm", "refund")], ids=["cancelled", "refunded"])
def test_cancelled_units_are_free_for_the_next_buyer(
    admin: httpx.Client, public: httpx.Client, way: tuple[str, ...]
) -> None:
    event = publish_event(admin, example_event())
    booking = held(admin, event, seat("A-1"), units(500, "standing", tariff="full"))
    expect_error(post_hold(admin, event, user="u-2", items=[seat("A-1")]), 409, "seat_taken")
    act(admin, booking, *way)
    assert seat_states(public, event) == {}
    assert remaining(public, event) == {"stalls": 40, "standing": 500}
    held(admin, event, seat("A-1"), units(500, "standing", tariff="child"), user="u-2")


def test_a_confirmed_booking_does_not_expire(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    booking = act(admin, held(admin, event, seat("A-1")), "confirm")
    assert (booking["status"], booking["expires_in_seconds"]) == ("confirmed", None)
    other = held(admin, event, seat("A-2"), user="u-2")
    wait_until(lambda: reading(admin, other)["status"] == "expired", 15)
    assert reading(admin, booking)["status"] == "confirmed"
    assert seat_states(public, event) == {"A-1": "sold"}


def test_an_extension_counts_from_now(admin: httpx.Client) -> None:
    policy = {"hold_seconds": 60, "extend_seconds": 300, "max_hold_seconds": 3600}
    booking = held(admin, publish_event(admin, counted(5, policy=policy)), units(1))
    longer = act(admin, booking, "extend")
    assert time_of(longer["expires_at"]) - time_of(longer["server_time"]) == timedelta(seconds=300)
    assert longer["expires_in_seconds"] == 300
    assert longer["max_expires_at"] == booking["max_expires_at"]


def test_an_extension_ends_at_the_longest_hold(admin: httpx.Client) -> None:
    policy = {"hold_seconds": 60, "extend_seconds": 300, "max_hold_seconds": 90}
    booking = held(admin, publish_event(admin, counted(5, policy=policy)), units(1))
    assert time_of(booking["max_expires_at"]) - time_of(booking["created_at"]) == timedelta(seconds=90)
    longest = act(admin, booking, "extend")
    assert longest["expires_at"] == booking["max_expires_at"]
    assert lasting(act(admin, booking, "extend", "extend")) == lasting(longest)


def test_an_extension_never_shortens_a_hold(admin: httpx.Client) -> None:
    policy = {"hold_seconds": 600, "extend_seconds": 5, "max_hold_seconds": 3600}
    booking = held(admin, publish_event(admin, counted(5, policy=policy)), units(1))
    assert act(admin, booking, "extend")["expires_at"] == booking["expires_at"]


def test_an_extended_hold_outlives_its_first_deadline(admin: httpx.Client) -> None:
    policy = {"hold_seconds": 1, "extend_seconds": 600, "max_hold_seconds": 3600}
    event = publish_event(admin, counted(5, policy=policy))
    booking, other = held(admin, event, units(1)), held(admin, event, units(1), user="u-2")
    act(admin, booking, "extend")
    wait_until(lambda: reading(admin, other)["status"] == "expired", 15)
    assert reading(admin, booking)["status"] == "held"


def test_a_hold_past_its_deadline_reads_as_expired_everywhere_and_the_next_buyer_gets_it(
    admin: httpx.Client, public: httpx.Client
) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    booking = held(admin, event, seat("A-1"), units(500, "standing", tariff="full"))
    version = expect_ok(public.get(f"/v1/events/{event}"))["version"]
    wait_until(lambda: reading(admin, booking)["status"] == "expired", 15)
    assert reading(admin, booking)["expires_in_seconds"] is None
    assert listed(admin, event=event, status="expired") == [booking["id"]]
    assert listed(admin, event=event, status="held") == []
    assert expect_ok(admin.get("/v1/bookings", params={"event": event}))["items"][0]["status"] == "expired"
    assert remaining(public, event) == {"stalls": 40, "standing": 500}
    assert seat_states(public, event) == {}
    assert expect_ok(public.get(f"/v1/events/{event}"))["version"] == version, "nobody has written it down yet"
    taken_over = held(admin, event, seat("A-1"), units(500, "standing", tariff="child"), user="u-2")
    assert lasting(reading(admin, taken_over)) == lasting(taken_over)
    assert reading(admin, booking)["status"] == "expired"


def test_the_next_buyer_gets_the_seat_without_anybody_reading_it_before(admin: httpx.Client) -> None:
    event = publish_event(admin, row_of(1, policy={"hold_seconds": 1}))
    gone = held(admin, event, seat("A-1"))
    expect_error(post_hold(admin, event, user="u-2", items=[seat("A-1")]), 409, "seat_taken")
    wait_until(lambda: post_hold(admin, event, user="u-2", items=[seat("A-1")]).status_code == 201, 15)
    expect_error(post(admin, gone, "confirm"), 410, "hold_expired")


def test_an_expired_hold_does_not_count_against_its_buyer(admin: httpx.Client) -> None:
    policy = {"hold_seconds": 1, "max_units_per_user": 2, "one_booking_per_user": True}
    event = publish_event(admin, counted(5, policy=policy))
    held(admin, event, units(2))
    expect_error(post_hold(admin, event, items=[units(2)]), 409, "already_booked")
    wait_until(lambda: post_hold(admin, event, items=[units(2)]).status_code == 201, 15)


@pytest.fixture(scope="module")
def ledger(admin: httpx.Client) -> tuple[str, dict[str, Body]]:
    """An event with bookings of two users in several states, in the order they were made."""
    event = publish_event(
        admin, counted(50, policy={"hold_seconds": 1, "extend_seconds": 600, "max_hold_seconds": 6000})
    )
    made: dict[str, Body] = {}
    for name, user, way in (
        ("expired", "ann", ()),
        ("confirmed", "ann", ("confirm",)),
        ("held", "ann", ("extend",)),
        ("cancelled", "bob", ("cancel",)),
        ("refunded", "bob", ("confirm", "refund")),
        ("also_held", "bob", ("extend",)),
    ):
        made[name] = act(admin, held(admin, event, units(1), user=user), *way)
    wait_until(lambda: reading(admin, made["expired"])["status"] == "expired", 15)
    return event, made


FILTERS: Final[dict[str, tuple[Body, list[str]]]] = {
    "nothing": ({}, ["also_held", "refunded", "cancelled", "held", "confirmed", "expired"]),
    "user": ({"user": "ann"}, ["held", "confirmed", "expired"]),
    "another_user": ({"user": "bob"}, ["also_held", "refunded", "cancelled"]),
    "nobody": ({"user": "ANN"}, []),
    "held": ({"status": "held"}, ["also_held", "held"]),
    "expired": ({"status": "expired"}, ["expired"]),
    "confirmed": ({"status": "confirmed"}, ["confirmed"]),
    "cancelled": ({"status": "cancelled"}, ["cancelled"]),
    "refunded": ({"status": "refunded"}, ["refunded"]),
    "completed": ({"status": "completed"}, []),
    "rejected": ({"status": "rejected"}, []),
    "payment_submitted": ({"status": "payment_submitted"}, []),
    "user_and_status": ({"user": "ann", "status": "held"}, ["held"]),
    "user_without_that_status": ({"user": "bob", "status": "expired"}, []),
}


@pytest.mark.parametrize(("query", "expected"), [pytest.param(*v, id=k) for k, v in FILTERS.items()])
def test_bookings_are_listed_by_event_user_and_status_newest_first(
    admin: httpx.Client, ledger: tuple[str, dict[str, Body]], query: Body, expected: list[str]
) -> None:
    event, made = ledger
    assert listed(admin, event=event, **query) == [made[name]["id"] for name in expected]


def test_bookings_are_listed_without_an_event_too(admin: httpx.Client, ledger: tuple[str, dict[str, Body]]) -> None:
    _, made = ledger
    assert listed(admin, user="ann") == [made[name]["id"] for name in ("held", "confirmed", "expired")]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7])
def test_a_list_of_bookings_in_pages_has_each_of_them_once(
    admin: httpx.Client, ledger: tuple[str, dict[str, Body]], limit: int
) -> None:
    event, made = ledger
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        query: Body = {"event": event, "limit": limit, **({"after": after} if after else {})}
        page = expect_ok(admin.get("/v1/bookings", params=query))
        assert 0 < len(page["items"]) <= limit
        found += [item["id"] for item in page["items"]]
        after = page["next"]
    assert found == [booking["id"] for booking in reversed(made.values())]


def test_a_hold_without_an_idempotency_key_is_refused_and_has_no_effect(
    admin: httpx.Client, public: httpx.Client
) -> None:
    event = publish_event(admin, counted(5))
    body = {"user": "u-1", "items": [units(1)]}
    expect_error(admin.post(f"/v1/events/{event}/holds", json=body), 400, "idempotency_key_missing")
    assert remaining(public, event) == {"hall": 5}


def test_the_same_request_again_gets_the_same_booking(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    items = [seat("A-1"), units(2, "standing", tariff="child")]
    first = post_hold(admin, event, key="k", items=items)
    booking = expect_ok(first, 201)
    assert "idempotency-replayed" not in first.headers
    for _ in range(3):
        again = post_hold(admin, event, key="k", items=items)
        assert lasting(expect_ok(again, 201)) == lasting(booking)
        assert again.headers["idempotency-replayed"] == "true"
    assert remaining(public, event) == {"stalls": 39, "standing": 498}
    assert listed(admin, event=event) == [booking["id"]]


def test_the_same_request_gets_the_same_booking_with_details_too(admin: httpx.Client) -> None:
    event = publish_event(admin, counted(5))
    first = expect_ok(post_hold(admin, event, key="k", items=[units(1)], details={"a": 1, "b": 2}), 201)
    again = post_hold(admin, event, key="k", items=[units(1)], details={"b": 2, "a": 1})
    assert expect_ok(again, 201)["id"] == first["id"]
    assert again.headers["idempotency-replayed"] == "true"
    expect_error(
        post_hold(admin, event, key="k", items=[units(1)], details={"a": 1, "b": 3}), 422, "idempotency_key_reused"
    )


def test_the_same_request_for_the_best_seats_gets_the_same_seats(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    best = {"pool": "stalls", "quantity": 3}
    first = expect_ok(post_hold(admin, event, key="k", best_available=best), 201)
    assert expect_ok(post_hold(admin, event, key="k", best_available=best), 201)["items"] == first["items"]


@pytest.mark.parametrize("way", [("confirm",), ("cancel",), ("confirm", "refund")], ids=lambda way: "_".join(way))
def test_the_same_request_gets_the_booking_as_it_has_become(admin: httpx.Client, way: tuple[str, ...]) -> None:
    event = publish_event(admin, counted(5))
    booking = act(admin, expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201), *way)
    again = post_hold(admin, event, key="k", items=[units(1)])
    assert lasting(expect_ok(again, 201)) == lasting(booking)
    assert again.headers["idempotency-replayed"] == "true"


def test_the_same_request_gets_its_booking_even_when_the_event_is_over(admin: httpx.Client) -> None:
    event = publish_event(admin, counted(5))
    booking = expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201)
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))
    again = expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201)
    assert (again["id"], again["status"]) == (booking["id"], "cancelled")


@pytest.mark.parametrize(
    "other",
    [
        {"items": [units(2)]},
        {"items": [units(1)], "user": "u-2"},
        {"items": [units(1), units(1)]},
        {"items": [units(1)], "details": {"a": 1}},
        {"items": [units(1)], "cart_token": "c"},
    ],
    ids=["quantity", "user", "items", "details", "cart_token"],
)
def test_a_key_used_for_something_else_is_refused(admin: httpx.Client, public: httpx.Client, other: Body) -> None:
    event = publish_event(admin, counted(5))
    first = expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201)
    expect_error(post_hold(admin, event, key="k", **other), 422, "idempotency_key_reused")
    assert remaining(public, event) == {"hall": 4}
    assert expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201)["id"] == first["id"]


def test_a_refusal_is_not_remembered_and_judged_anew(admin: httpx.Client) -> None:
    event = publish_event(admin, row_of(3))
    in_the_way = held(admin, event, seat("A-1"))
    for _ in range(2):
        expect_error(post_hold(admin, event, key="k", user="u-2", items=[seat("A-1")]), 409, "seat_taken")
    act(admin, in_the_way, "cancel")
    answer = post_hold(admin, event, key="k", user="u-2", items=[seat("A-1")])
    assert expect_ok(answer, 201)["items"][0]["seat"] == "A-1"
    assert "idempotency-replayed" not in answer.headers


def test_the_key_of_a_refused_request_is_free_for_another(admin: httpx.Client) -> None:
    event = publish_event(admin, row_of(3))
    held(admin, event, seat("A-1"))
    expect_error(post_hold(admin, event, key="k", user="u-2", items=[seat("A-1")]), 409, "seat_taken")
    expect_ok(post_hold(admin, event, key="k", user="u-2", items=[seat("A-3")]), 201)


def test_the_key_of_one_event_does_not_verify_another(admin: httpx.Client) -> None:
    first, second = publish_event(admin, counted(5)), publish_event(admin, counted(5))
    bookings = [expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201) for event in (first, second)]
    assert [booking["event"] for booking in bookings] == [first, second]


def numbers_of(booking: Body, row: str = "A") -> list[int]:
    labels = [item["seat"] for item in booking["items"]]
    assert {label.partition("-")[0] for label in labels} == {row}
    return sorted(int(label.partition("-")[2]) for label in labels)


def test_the_best_seats_are_next_to_each_other(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    taken: list[str] = []
    for user in range(6):
        booking = expect_ok(
            post_hold(admin, event, user=f"u-{user}", best_available={"pool": "stalls", "quantity": 3}), 201
        )
        labels = [item["seat"] for item in booking["items"]]
        numbers = numbers_of(booking, labels[0].partition("-")[0])
        assert numbers == list(range(numbers[0], numbers[0] + 3))
        assert all(item["quantity"] == 1 and item["unit_price"] == 3000 for item in booking["items"])
        taken += labels
    assert len(set(taken)) == 18
    assert seat_states(public, event) == dict.fromkeys(taken, "held")


def test_separate_seats_go_only_to_buyers_who_accept_them(admin: httpx.Client) -> None:
    event = publish_event(admin, row_of(5))
    held(admin, event, seat("A-2"), seat("A-4"))
    best = {"pool": "hall", "quantity": 3}
    assert expect_error(post_hold(admin, event, best_available=best), 409, "sold_out")["conflicts"] == ["hall"]
    expect_error(post_hold(admin, event, best_available={**best, "adjacent": True}), 409, "sold_out")
    apart = expect_ok(post_hold(admin, event, best_available={**best, "adjacent": False}), 201)
    assert numbers_of(apart) == [1, 3, 5]


def test_no_more_of_the_best_than_there_are(admin: httpx.Client) -> None:
    event = publish_event(admin, row_of(4))
    for adjacent in (True, False):
        best = {"pool": "hall", "quantity": 5, "adjacent": adjacent}
        expect_error(post_hold(admin, event, best_available=best), 409, "sold_out")
    assert numbers_of(expect_ok(post_hold(admin, event, best_available={"pool": "hall", "quantity": 4}), 201)) == [
        1,
        2,
        3,
        4,
    ]


def test_the_best_seats_of_a_tariff_cost_that_tariff(admin: httpx.Client) -> None:
    tariffs = [{"code": "full", "price": 3000}, {"code": "child", "price": 1500}]
    pool = {"code": "hall", "seats": {"rows": ["A"], "numbers": 4}, "tariffs": tariffs}
    event = publish_event(admin, example_event(pools=[pool]))
    best = {"pool": "hall", "quantity": 2, "tariff": "child"}
    assert expect_ok(post_hold(admin, event, best_available=best), 201)["subtotal"] == 3000


def test_a_user_may_have_so_many_units_and_no_more(admin: httpx.Client) -> None:
    event = publish_event(admin, counted(50, policy={"max_units_per_user": 4}))
    expect_error(post_hold(admin, event, items=[units(5)]), 409, "limit_reached")
    first = held(admin, event, units(3))
    expect_error(post_hold(admin, event, items=[units(2)]), 409, "limit_reached")
    act(admin, held(admin, event, units(1)), "confirm")
    expect_error(post_hold(admin, event, items=[units(1)]), 409, "limit_reached")
    held(admin, event, units(4), user="u-2")
    act(admin, first, "cancel")
    held(admin, event, units(3))
    expect_error(post_hold(admin, event, items=[units(1)]), 409, "limit_reached")


def test_the_best_seats_count_towards_the_limit(admin: httpx.Client) -> None:
    event = publish_event(admin, row_of(10, policy={"max_units_per_user": 2}))
    best = {"pool": "hall", "quantity": 3}
    expect_error(post_hold(admin, event, best_available=best), 409, "limit_reached")


@pytest.mark.parametrize("way", [("cancel",), ("confirm", "refund")], ids=["cancelled", "refunded"])
def test_the_policy_can_limit_a_user_to_one_live_booking(admin: httpx.Client, way: tuple[str, ...]) -> None:
    event = publish_event(admin, counted(5, policy={"one_booking_per_user": True}))
    booking = held(admin, event, units(1))
    expect_error(post_hold(admin, event, items=[units(1)]), 409, "already_booked")
    held(admin, event, units(1), user="u-2")
    for action in way:
        booking = act(admin, booking, action)
        if action == "confirm":
            expect_error(post_hold(admin, event, items=[units(1)]), 409, "already_booked")
    held(admin, event, units(1))


def test_a_registration_is_confirmed_at_once_and_can_be_cancelled(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(
        admin, example_event(preset="registration", tax_bps=0, pools=[{"code": "places", "capacity": 2}])
    )
    place = {"pool": "places"}
    booking = held(admin, event, place)
    assert (booking["status"], booking["total"], booking["reason"]) == ("confirmed", 0, None)
    assert (booking["expires_at"], booking["expires_in_seconds"]) == (None, None)
    expect_error(post_hold(admin, event, items=[place]), 409, "already_booked")
    held(admin, event, place, user="u-2")
    expect_error(post_hold(admin, event, user="u-3", items=[place]), 409, "sold_out")
    assert act(admin, booking, "cancel")["status"] == "cancelled"
    assert remaining(public, event) == {"places": 1}
    held(admin, event, place, user="u-3")


def test_a_shift_of_three_places_takes_three_people(admin: httpx.Client) -> None:
    event = publish_event(
        admin,
        example_event(
            preset="shift", pools=[{"code": "crew", "capacity": 3, "tariffs": [{"code": "fee", "price": 500}]}]
        ),
    )
    place = {"pool": "crew"}
    bookings = [held(admin, event, place, user=f"u-{n}") for n in range(3)]
    assert all(booking["status"] == "held" for booking in bookings)
    assert all(
        time_of(booking["expires_at"]) - time_of(booking["created_at"]) == timedelta(seconds=180)
        for booking in bookings
    )
    expect_error(post_hold(admin, event, user="u-0", items=[place]), 409, "already_booked")
    expect_error(post_hold(admin, event, user="u-3", items=[place]), 409, "sold_out")
    act(admin, bookings[0], "cancel")
    held(admin, event, place, user="u-3")


@pytest.mark.parametrize(
    ("tax_bps", "adults", "children", "subtotal", "tax"),
    [
        (1900, 2, 1, 11_000, 2090),
        (700, 1, 2, 8500, 595),
        (0, 3, 0, 13_500, 0),
        (10_000, 0, 1, 2000, 2000),
        (1234, 1, 1, 6500, 802),
        (1235, 1, 1, 6500, 803),
    ],
)
def test_an_experience_costs_its_tariffs_and_the_tax_on_top(
    admin: httpx.Client, tax_bps: int, adults: int, children: int, subtotal: int, tax: int
) -> None:
    tariffs = [{"code": "adult", "price": 4500}, {"code": "child", "price": 2000}]
    slot = {"code": "slot", "capacity": 10, "tariffs": tariffs}
    event = publish_event(admin, example_event(preset="experience", tax_bps=tax_bps, pools=[slot]))
    asked = {"adult": adults, "child": children}
    booking = held(admin, event, *(units(n, "slot", tariff=code) for code, n in asked.items() if n))
    assert (booking["subtotal"], booking["tax"], booking["total"]) == (subtotal, tax, subtotal + tax)
    assert act(admin, booking, "confirm")["total"] == subtotal + tax


def test_the_dearest_booking_that_can_be_is_added_up_right(admin: httpx.Client) -> None:
    pool = {"code": "hall", "capacity": 10_000_000, "tariffs": [{"code": "full", "price": 100_000_000_000}]}
    event = publish_event(admin, example_event(tax_bps=10_000, pools=[pool]))
    booking = held(admin, event, units(500), units(500))
    assert booking["subtotal"] == booking["tax"] == 1_000 * 100_000_000_000
    assert booking["total"] == 2 * booking["subtotal"]
    assert lasting(reading(admin, booking)) == lasting(booking)


def test_a_choice_that_leaves_a_single_seat_is_refused_where_the_policy_says_so(admin: httpx.Client) -> None:
    event = publish_event(admin, row_of(10, policy={"avoid_orphans": True}))
    assert expect_error(post_hold(admin, event, items=[seat("A-1"), seat("A-3")]), 409, "orphan_seat")["conflicts"] == [
        "A-2"
    ]
    held(admin, event, seat("A-1"), seat("A-2"))
    relaxed = publish_event(admin, row_of(10, policy={"avoid_orphans": False}))
    held(admin, relaxed, seat("A-1"), seat("A-3"))


Prepare = Callable[[httpx.Client], tuple[str, str, Body]]


def event_not_on_sale_before_a_reused_key(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, counted(5))
    expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201)
    expect_ok(admin.post(f"/v1/events/{event}/complete"))
    return event, "event_not_on_sale", {"key": "k", "items": [units(2)]}


def event_not_on_sale_before_an_unknown_seat(admin: httpx.Client) -> tuple[str, str, Body]:
    event = expect_ok(admin.post("/v1/events", json=row_of(5)), 201)["id"]
    return event, "event_not_on_sale", {"items": [seat("Z-1")]}


def a_reused_key_before_an_unknown_seat(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, row_of(5))
    expect_ok(post_hold(admin, event, key="k", items=[seat("A-1")]), 201)
    return event, "idempotency_key_reused", {"key": "k", "items": [seat("Z-1")]}


def an_unknown_seat_before_an_unknown_pool(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, example_event())
    return event, "unknown_seat", {"items": [units(1, "none"), units(1, "standing", tariff="none"), seat("Z-1")]}


def an_unknown_pool_before_an_unknown_tariff(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, example_event())
    return event, "unknown_pool", {"items": [units(1, "standing", tariff="none"), units(1, "none")]}


def an_unknown_tariff_before_a_second_booking(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, counted(5, policy={"one_booking_per_user": True}))
    held(admin, event, units(1))
    return event, "unknown_tariff", {"items": [units(1, tariff="none")]}


def a_second_booking_before_too_many_units(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, counted(5, policy={"one_booking_per_user": True, "max_units_per_user": 2}))
    held(admin, event, units(1))
    return event, "already_booked", {"items": [units(3)]}


def too_many_units_before_a_taken_seat(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, row_of(5, policy={"max_units_per_user": 1}))
    held(admin, event, seat("A-1"), user="u-2")
    return event, "limit_reached", {"items": [seat("A-1"), seat("A-2")]}


def too_many_units_before_sold_out(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, counted(2, policy={"max_units_per_user": 1}))
    return event, "limit_reached", {"items": [units(3)]}


def a_taken_seat_before_sold_out(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, example_event())
    held(admin, event, seat("A-1"), units(500, "standing", tariff="full"))
    return event, "seat_taken", {"items": [units(1, "standing", tariff="full"), seat("A-1")]}


def sold_out_before_an_orphan(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, example_event(policy={"avoid_orphans": True}))
    held(admin, event, units(500, "standing", tariff="full"))
    return event, "sold_out", {"items": [seat("A-1"), seat("A-3"), units(1, "standing", tariff="full")]}


@pytest.mark.parametrize(
    "prepare",
    [
        event_not_on_sale_before_a_reused_key,
        event_not_on_sale_before_an_unknown_seat,
        a_reused_key_before_an_unknown_seat,
        an_unknown_seat_before_an_unknown_pool,
        an_unknown_pool_before_an_unknown_tariff,
        an_unknown_tariff_before_a_second_booking,
        a_second_booking_before_too_many_units,
        too_many_units_before_a_taken_seat,
        too_many_units_before_sold_out,
        a_taken_seat_before_sold_out,
        sold_out_before_an_orphan,
    ],
    ids=lambda prepare: prepare.__name__,
)
def test_the_first_of_several_reasons_is_given(admin: httpx.Client, prepare: Prepare) -> None:
    event, code, body = prepare(admin)
    answer = post_hold(admin, event, **body)
    expect_error(answer, 422 if code.startswith(("unknown", "idempotency")) else 409, code)


def test_a_cart_token_is_never_shown(admin: httpx.Client) -> None:
    event = publish_event(admin, counted(5))
    token = secrets.token_hex(16)
    answer = post_hold(admin, event, items=[units(1)], cart_token=token)
    booking = expect_ok(answer, 201)
    assert token not in answer.text
    assert token not in admin.get(f"/v1/bookings/{booking['id']}").text
    assert token not in admin.get(f"/v1/events/{event}/journal").text


def test_a_booking_is_found_by_the_number_that_its_buyer_sees(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    made = [expect_ok(post_hold(admin, event, items=[{"seat": f"A-{n}"}]), 201) for n in (1, 2)]
    for text in (made[0]["reference"], made[0]["reference"].lower()):
        found = expect_ok(admin.get("/v1/bookings", params={"reference": text}))["items"]
        assert [booking["id"] for booking in found] == [made[0]["id"]]
    expect_error(admin.get("/v1/bookings", params={"reference": "not one"}), 422, "invalid_request")
