"""Holds and bookings over HTTP: place, extend, confirm, cancel, and retry with the same answer."""

import json
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from holdfast.runtime import ids
from tests.support.harness import Server, example_event, post_hold, publish_event, query, wait_until
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
    "contact",
    "answers",
    "email",
    "language",
    "payments",
    "reason",
}
# Fields that change with every read of the same booking.
CLOCKS: Final = ("server_time", "expires_in_seconds")


@pytest.fixture(scope="module")
def public(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def pool_event(capacity: int, price: int = 1000, **more: Any) -> Body:
    """An event with one pool without seats."""
    return example_event(
        pools=[{"code": "hall", "capacity": capacity, "tariffs": [{"code": "full", "price": price}]}], **more
    )


def row_event(numbers: int, **more: Any) -> Body:
    """An event with one row of seats."""
    pool = {"code": "hall", "seats": {"rows": ["A"], "numbers": numbers}, "tariffs": [{"code": "full", "price": 1000}]}
    return example_event(pools=[pool], **more)


def seat(label: str) -> Body:
    return {"seat": label}


def units(quantity: int, pool: str = "hall", **more: Any) -> Body:
    return {"pool": pool, "quantity": quantity, **more}


def place_hold(client: httpx.Client, event: str, *items: Body, **more: Any) -> Body:
    return expect_ok(post_hold(client, event, items=list(items), **more), 201)


def post_action(client: httpx.Client, booking: Body, action: str, body: Body | None = None) -> httpx.Response:
    return client.post(f"/v1/bookings/{booking['id']}/{action}", json=body)


def act(client: httpx.Client, booking: Body, *actions: str) -> Body:
    for action in actions:
        booking = expect_ok(post_action(client, booking, action))
    return booking


def get_booking(client: httpx.Client, booking: Body) -> Body:
    return expect_ok(client.get(f"/v1/bookings/{booking['id']}"))


def without_clocks(booking: Body) -> Body:
    return {name: value for name, value in booking.items() if name not in CLOCKS}


def list_booking_ids(client: httpx.Client, **query: Any) -> list[str]:
    return [item["id"] for item in expect_ok(client.get("/v1/bookings", params=query))["items"]]


def parse_time(text: str) -> datetime:
    assert text.endswith("Z"), text
    return datetime.fromisoformat(text)


def remaining(client: httpx.Client, event: str) -> dict[str, int]:
    pools = expect_ok(client.get(f"/v1/events/{event}/availability"))["pools"]
    return {pool["code"]: pool["remaining"] for pool in pools}


def seat_states(client: httpx.Client, event: str) -> dict[str, str]:
    found = expect_ok(client.get(f"/v1/events/{event}/seats"))["seats"]
    return {each["label"]: each["state"] for each in found if each["state"] != "free"}


def test_a_hold_returns_the_whole_booking(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    booking = place_hold(admin, event, seat("A-5"), units(2, "standing", tariff="child"), user="u-7")
    assert set(booking) == FIELDS
    assert (booking["event"], booking["user"], booking["status"]) == (event, "u-7", "held")
    assert booking["items"] == [
        {"pool": "stalls", "tariff": "full", "seat": "A-5", "quantity": 1, "unit_price": 3000},
        {"pool": "standing", "tariff": "child", "seat": None, "quantity": 2, "unit_price": 700},
    ]
    assert (booking["subtotal"], booking["tax"], booking["total"], booking["currency"]) == (4400, 836, 5236, "EUR")
    assert (booking["payments"], booking["reason"]) == ([], None)
    created, expires = parse_time(booking["created_at"]), parse_time(booking["expires_at"])
    assert expires - created == timedelta(seconds=600)
    assert parse_time(booking["max_expires_at"]) >= expires
    assert parse_time(booking["server_time"]) == created
    assert booking["expires_in_seconds"] == 600
    assert booking["version"] == expect_ok(admin.get(f"/v1/events/{event}"))["version"]


def test_a_booking_reads_the_same_alone_and_in_a_list(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    booking = place_hold(admin, event, seat("A-5"), units(2, "standing", tariff="child"))
    found = get_booking(admin, booking)
    assert set(found) == FIELDS
    assert without_clocks(found) == without_clocks(booking)
    assert parse_time(found["server_time"]) >= parse_time(booking["server_time"])
    assert 0 < found["expires_in_seconds"] <= 600
    page = expect_ok(admin.get("/v1/bookings", params={"event": event}))
    assert set(page) == {"items", "next"}
    assert [without_clocks(item) for item in page["items"]] == [without_clocks(booking)]


@pytest.mark.parametrize(
    "details",
    [{}, {"name": "Ada"}, {"a": [1, 2.5, None, True, {"b": "\N{GRINNING FACE}"}]}, {"": 2**53}],
    ids=["empty", "text", "nested", "number"],
)
def test_details_survive_every_action_on_a_booking(admin: httpx.Client, details: Body) -> None:
    event = publish_event(admin, example_event())
    booking = place_hold(admin, event, seat("A-1"), details=details)
    assert booking["details"] == details
    assert get_booking(admin, booking)["details"] == details
    for action in ("extend", "confirm", "refund"):
        assert act(admin, booking, action)["details"] == details
    assert expect_ok(admin.get("/v1/bookings", params={"event": event}))["items"][0]["details"] == details


def test_a_repeated_hold_and_a_transfer_show_the_details(admin: httpx.Client) -> None:
    event, details = publish_event(admin, example_event()), {"name": "Ada"}
    first = post_hold(admin, event, key="again", items=[seat("A-1")], details=details)
    again = post_hold(admin, event, key="again", items=[seat("A-1")], details=details)
    assert (again.headers["idempotency-replayed"], again.json()["details"]) == ("true", details)
    act(admin, first.json(), "confirm")
    answer = admin.post(f"/v1/bookings/{first.json()['id']}/transfer", json={"user": "u-2"})
    assert expect_ok(answer)["details"] == details


def test_details_that_were_stored_before_they_had_a_limit_still_show(server: Server, admin: httpx.Client) -> None:
    event, large = publish_event(admin, example_event()), {"a": "x" * 1_000_000}
    booking = place_hold(admin, event, seat("A-1"), details={"a": "x"})
    query(
        server.database_url,
        "UPDATE booking SET details = $2 WHERE event_id = $1",
        ids.parse_event_id(event),
        json.dumps(large),
    )
    assert act(admin, booking, "extend")["details"] == large
    assert get_booking(admin, booking)["details"] == large
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))
    assert get_booking(admin, booking)["status"] == "cancelled"


def test_an_expired_hold_with_details_releases_its_seat(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    place_hold(admin, event, seat("A-1"), details={"name": "Ada"})
    wait_until(lambda: admin.get("/v1/bookings", params={"event": event, "status": "expired"}).text != EMPTY, 15)
    place_hold(admin, event, seat("A-1"), user="u-2")
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))


EMPTY: Final = '{"items":[],"next":null}'


def test_a_hold_of_a_taken_seat_is_refused_as_a_whole(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    place_hold(admin, event, seat("A-2"), seat("A-4"))
    answer = post_hold(admin, event, user="u-2", items=[seat("A-1"), seat("A-2"), seat("A-3"), seat("A-4")])
    document = expect_error(answer, 409, "seat_taken")
    assert sorted(document["conflicts"]) == ["A-2", "A-4"]
    assert document["retryable"] is False
    assert seat_states(public, event) == {"A-2": "held", "A-4": "held"}
    assert list_booking_ids(admin, event=event, user="u-2") == []


def test_a_hold_from_a_full_pool_is_refused_as_a_whole(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    place_hold(admin, event, units(499, "standing", tariff="full"))
    answer = post_hold(admin, event, user="u-2", items=[seat("A-1"), units(2, "standing", tariff="child")])
    assert expect_error(answer, 409, "sold_out")["conflicts"] == ["standing"]
    assert remaining(public, event) == {"stalls": 40, "standing": 1}


def test_tariffs_share_the_capacity_of_their_pool(admin: httpx.Client, public: httpx.Client) -> None:
    tariffs = [{"code": "adult", "price": 4500}, {"code": "child", "price": 2000}]
    event = publish_event(admin, example_event(pools=[{"code": "slot", "capacity": 5, "tariffs": tariffs}]))
    both = [units(3, "slot", tariff="adult"), units(3, "slot", tariff="child")]
    assert expect_error(post_hold(admin, event, items=both), 409, "sold_out")["conflicts"] == ["slot"]
    place_hold(admin, event, units(3, "slot", tariff="adult"), units(2, "slot", tariff="child"))
    assert remaining(public, event) == {"slot": 0}


def test_a_repeated_item_is_counted_twice(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, pool_event(5))
    booking = place_hold(admin, event, units(2), units(1))
    assert sum(item["quantity"] for item in booking["items"]) == 3
    assert booking["subtotal"] == 3000
    expect_error(post_hold(admin, event, items=[units(1), units(2)]), 409, "sold_out")
    assert remaining(public, event) == {"hall": 2}


def test_a_missing_quantity_means_one(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(5))
    assert place_hold(admin, event, {"pool": "hall"})["items"][0]["quantity"] == 1


def test_a_pool_sells_its_last_unit_and_no_more(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(3))
    place_hold(admin, event, units(2))
    expect_error(post_hold(admin, event, items=[units(2)]), 409, "sold_out")
    place_hold(admin, event, units(1))
    expect_error(post_hold(admin, event, items=[units(1)]), 409, "sold_out")


@pytest.fixture(scope="module")
def take_expired(admin: httpx.Client) -> Callable[[], Body]:
    """Takes one of several expired bookings, which are created together so that one wait is enough."""
    event = publish_event(admin, pool_event(50, policy={"hold_seconds": 1}))
    bookings = [place_hold(admin, event, units(1), user=f"u-{n}") for n in range(8)]
    wait_until(lambda: all(get_booking(admin, booking)["status"] == "expired" for booking in bookings), 15)
    return lambda: get_booking(admin, bookings.pop())


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
    "expired": ("hold_expired", "confirmed", "hold_expired", "hold_expired"),
}
STATUSES: Final = ("held", "confirmed", "cancelled", "refunded")


def create_in_state(admin: httpx.Client, take_expired: Callable[[], Body], state: str) -> Body:
    if state == "expired":
        return take_expired()
    if state == "completed":
        booking = create_in_state(admin, take_expired, "confirmed")
        expect_ok(admin.post(f"/v1/events/{booking['event']}/complete"))
        return get_booking(admin, booking)
    price, actions = STATES[state]
    return act(admin, place_hold(admin, publish_event(admin, pool_event(5, price)), units(1)), *actions)


# Every pair: together they are the state table as clients see it.
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("state", OUTCOMES)
def test_an_action_has_its_effect_once_or_is_refused(
    admin: httpx.Client, take_expired: Callable[[], Body], state: str, action: str
) -> None:
    booking = create_in_state(admin, take_expired, state)
    outcome = OUTCOMES[state][ACTIONS.index(action)]
    if outcome not in STATUSES:
        expect_error(post_action(admin, booking, action), 410 if outcome == "hold_expired" else 409, outcome)
        after = get_booking(admin, booking)
        # The first command on an event records its expired holds.
        unwritten = {"version": booking["version"]} if state == "expired" else {}
        assert without_clocks({**after, **unwritten}) == without_clocks(booking)
        return
    first = act(admin, booking, action)
    assert first["status"] == outcome
    if action != "extend":
        assert without_clocks(act(admin, booking, action)) == without_clocks(first)
    assert without_clocks(get_booking(admin, booking)) == without_clocks(first)
    assert (first["items"], first["total"]) == (booking["items"], booking["total"])


def test_an_action_accepts_an_empty_body_or_an_empty_object(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(5))
    bodies: list[Body | None] = [None, {}]
    for body in bodies:
        booking = place_hold(admin, event, units(1))
        expect_ok(post_action(admin, booking, "confirm", body))
        expect_ok(post_action(admin, booking, "refund", body))


@pytest.mark.parametrize(("actions", "action"), [((), "cancel"), (("confirm",), "refund")], ids=["cancel", "refund"])
def test_the_first_reason_is_stored(admin: httpx.Client, actions: tuple[str, ...], action: str) -> None:
    booking = act(admin, place_hold(admin, publish_event(admin, pool_event(5)), units(1)), *actions)
    assert expect_ok(post_action(admin, booking, action, {"reason": "ill"}))["reason"] == "ill"
    assert expect_ok(post_action(admin, booking, action, {"reason": "other"}))["reason"] == "ill"
    assert get_booking(admin, booking)["reason"] == "ill"


@pytest.mark.parametrize("actions", [("cancel",), ("confirm", "refund")], ids=["cancelled", "refunded"])
def test_units_of_an_ended_booking_are_free_for_the_next_buyer(
    admin: httpx.Client, public: httpx.Client, actions: tuple[str, ...]
) -> None:
    event = publish_event(admin, example_event())
    booking = place_hold(admin, event, seat("A-1"), units(500, "standing", tariff="full"))
    expect_error(post_hold(admin, event, user="u-2", items=[seat("A-1")]), 409, "seat_taken")
    act(admin, booking, *actions)
    assert seat_states(public, event) == {}
    assert remaining(public, event) == {"stalls": 40, "standing": 500}
    place_hold(admin, event, seat("A-1"), units(500, "standing", tariff="child"), user="u-2")


def test_a_confirmed_booking_does_not_expire(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    booking = act(admin, place_hold(admin, event, seat("A-1")), "confirm")
    assert (booking["status"], booking["expires_in_seconds"]) == ("confirmed", None)
    other = place_hold(admin, event, seat("A-2"), user="u-2")
    wait_until(lambda: get_booking(admin, other)["status"] == "expired", 15)
    assert get_booking(admin, booking)["status"] == "confirmed"
    assert seat_states(public, event) == {"A-1": "sold"}


def test_an_extension_counts_from_now(admin: httpx.Client) -> None:
    policy = {"hold_seconds": 60, "extend_seconds": 300, "max_hold_seconds": 3600}
    booking = place_hold(admin, publish_event(admin, pool_event(5, policy=policy)), units(1))
    longer = act(admin, booking, "extend")
    assert parse_time(longer["expires_at"]) - parse_time(longer["server_time"]) == timedelta(seconds=300)
    assert longer["expires_in_seconds"] == 300
    assert longer["max_expires_at"] == booking["max_expires_at"]


def test_an_extension_ends_at_the_maximum_hold(admin: httpx.Client) -> None:
    policy = {"hold_seconds": 60, "extend_seconds": 300, "max_hold_seconds": 90}
    booking = place_hold(admin, publish_event(admin, pool_event(5, policy=policy)), units(1))
    assert parse_time(booking["max_expires_at"]) - parse_time(booking["created_at"]) == timedelta(seconds=90)
    longest = act(admin, booking, "extend")
    assert longest["expires_at"] == booking["max_expires_at"]
    assert without_clocks(act(admin, booking, "extend", "extend")) == without_clocks(longest)


def test_an_extension_never_shortens_a_hold(admin: httpx.Client) -> None:
    policy = {"hold_seconds": 600, "extend_seconds": 5, "max_hold_seconds": 3600}
    booking = place_hold(admin, publish_event(admin, pool_event(5, policy=policy)), units(1))
    assert act(admin, booking, "extend")["expires_at"] == booking["expires_at"]


def test_an_extended_hold_outlives_its_first_deadline(admin: httpx.Client) -> None:
    policy = {"hold_seconds": 1, "extend_seconds": 600, "max_hold_seconds": 3600}
    event = publish_event(admin, pool_event(5, policy=policy))
    booking, other = place_hold(admin, event, units(1)), place_hold(admin, event, units(1), user="u-2")
    act(admin, booking, "extend")
    wait_until(lambda: get_booking(admin, other)["status"] == "expired", 15)
    assert get_booking(admin, booking)["status"] == "held"


def test_a_due_hold_reads_as_expired_everywhere_and_frees_its_units(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    booking = place_hold(admin, event, seat("A-1"), units(500, "standing", tariff="full"))
    version = expect_ok(public.get(f"/v1/events/{event}"))["version"]
    wait_until(lambda: get_booking(admin, booking)["status"] == "expired", 15)
    assert get_booking(admin, booking)["expires_in_seconds"] is None
    assert list_booking_ids(admin, event=event, status="expired") == [booking["id"]]
    assert list_booking_ids(admin, event=event, status="held") == []
    assert expect_ok(admin.get("/v1/bookings", params={"event": event}))["items"][0]["status"] == "expired"
    assert remaining(public, event) == {"stalls": 40, "standing": 500}
    assert seat_states(public, event) == {}
    assert expect_ok(public.get(f"/v1/events/{event}"))["version"] == version, "the expiry is not stored yet"
    taken = place_hold(admin, event, seat("A-1"), units(500, "standing", tariff="child"), user="u-2")
    assert without_clocks(get_booking(admin, taken)) == without_clocks(taken)
    assert get_booking(admin, booking)["status"] == "expired"


def test_a_due_hold_frees_its_seat_even_if_nobody_reads_it(admin: httpx.Client) -> None:
    event = publish_event(admin, row_event(1, policy={"hold_seconds": 1}))
    expired = place_hold(admin, event, seat("A-1"))
    expect_error(post_hold(admin, event, user="u-2", items=[seat("A-1")]), 409, "seat_taken")
    wait_until(lambda: post_hold(admin, event, user="u-2", items=[seat("A-1")]).status_code == 201, 15)
    expect_error(post_action(admin, expired, "confirm"), 410, "hold_expired")


def test_an_expired_hold_does_not_count_against_its_buyer(admin: httpx.Client) -> None:
    policy = {"hold_seconds": 1, "max_units_per_user": 2, "one_booking_per_user": True}
    event = publish_event(admin, pool_event(5, policy=policy))
    place_hold(admin, event, units(2))
    expect_error(post_hold(admin, event, items=[units(1)]), 409, "already_booked")
    wait_until(lambda: post_hold(admin, event, items=[units(2)]).status_code == 201, 15)


@pytest.fixture(scope="module")
def event_with_bookings(admin: httpx.Client) -> tuple[str, dict[str, Body]]:
    """An event with bookings of two users in several states, in the order of their creation."""
    event = publish_event(
        admin, pool_event(50, policy={"hold_seconds": 1, "extend_seconds": 600, "max_hold_seconds": 6000})
    )
    bookings: dict[str, Body] = {}
    for name, user, actions in (
        ("expired", "ann", ()),
        ("confirmed", "ann", ("confirm",)),
        ("held", "ann", ("extend",)),
        ("cancelled", "bob", ("cancel",)),
        ("refunded", "bob", ("confirm", "refund")),
        ("also_held", "bob", ("extend",)),
    ):
        bookings[name] = act(admin, place_hold(admin, event, units(1), user=user), *actions)
    wait_until(lambda: get_booking(admin, bookings["expired"])["status"] == "expired", 15)
    return event, bookings


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
    admin: httpx.Client, event_with_bookings: tuple[str, dict[str, Body]], query: Body, expected: list[str]
) -> None:
    event, bookings = event_with_bookings
    assert list_booking_ids(admin, event=event, **query) == [bookings[name]["id"] for name in expected]


def test_bookings_can_be_listed_without_an_event(
    admin: httpx.Client, event_with_bookings: tuple[str, dict[str, Body]]
) -> None:
    _, bookings = event_with_bookings
    assert list_booking_ids(admin, user="ann") == [bookings[name]["id"] for name in ("held", "confirmed", "expired")]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7])
def test_the_pages_of_a_list_contain_every_booking_once(
    admin: httpx.Client, event_with_bookings: tuple[str, dict[str, Body]], limit: int
) -> None:
    event, bookings = event_with_bookings
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        query: Body = {"event": event, "limit": limit, **({"after": after} if after else {})}
        page = expect_ok(admin.get("/v1/bookings", params=query))
        assert 0 < len(page["items"]) <= limit
        found += [item["id"] for item in page["items"]]
        after = page["next"]
    assert found == [booking["id"] for booking in reversed(bookings.values())]


def test_a_hold_without_an_idempotency_key_is_refused_and_has_no_effect(
    admin: httpx.Client, public: httpx.Client
) -> None:
    event = publish_event(admin, pool_event(5))
    body = {"user": "u-1", "items": [units(1)]}
    expect_error(admin.post(f"/v1/events/{event}/holds", json=body), 400, "idempotency_key_missing")
    assert remaining(public, event) == {"hall": 5}


def test_a_repeated_request_returns_the_same_booking(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    items = [seat("A-1"), units(2, "standing", tariff="child")]
    first = post_hold(admin, event, key="k", items=items)
    booking = expect_ok(first, 201)
    assert "idempotency-replayed" not in first.headers
    for _ in range(3):
        repeated = post_hold(admin, event, key="k", items=items)
        assert without_clocks(expect_ok(repeated, 201)) == without_clocks(booking)
        assert repeated.headers["idempotency-replayed"] == "true"
    assert remaining(public, event) == {"stalls": 39, "standing": 498}
    assert list_booking_ids(admin, event=event) == [booking["id"]]


def test_the_order_of_fields_in_details_does_not_matter_to_a_repeated_request(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(5))
    first = expect_ok(post_hold(admin, event, key="k", items=[units(1)], details={"a": 1, "b": 2}), 201)
    repeated = post_hold(admin, event, key="k", items=[units(1)], details={"b": 2, "a": 1})
    assert expect_ok(repeated, 201)["id"] == first["id"]
    assert repeated.headers["idempotency-replayed"] == "true"
    expect_error(
        post_hold(admin, event, key="k", items=[units(1)], details={"a": 1, "b": 3}), 422, "idempotency_key_reused"
    )


def test_a_repeated_request_for_the_best_seats_returns_the_same_seats(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    best = {"pool": "stalls", "quantity": 3}
    first = expect_ok(post_hold(admin, event, key="k", best_available=best), 201)
    assert expect_ok(post_hold(admin, event, key="k", best_available=best), 201)["items"] == first["items"]


@pytest.mark.parametrize(
    "actions", [("confirm",), ("cancel",), ("confirm", "refund")], ids=lambda actions: "_".join(actions)
)
def test_a_repeated_request_returns_the_booking_in_its_current_status(
    admin: httpx.Client, actions: tuple[str, ...]
) -> None:
    event = publish_event(admin, pool_event(5))
    booking = act(admin, expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201), *actions)
    repeated = post_hold(admin, event, key="k", items=[units(1)])
    assert without_clocks(expect_ok(repeated, 201)) == without_clocks(booking)
    assert repeated.headers["idempotency-replayed"] == "true"


def test_a_repeated_request_returns_its_booking_even_after_the_event(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(5))
    booking = expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201)
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))
    repeated = expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201)
    assert (repeated["id"], repeated["status"]) == (booking["id"], "cancelled")


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
def test_an_idempotency_key_with_another_body_is_refused(
    admin: httpx.Client, public: httpx.Client, other: Body
) -> None:
    event = publish_event(admin, pool_event(5))
    first = expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201)
    expect_error(post_hold(admin, event, key="k", **other), 422, "idempotency_key_reused")
    assert remaining(public, event) == {"hall": 4}
    assert expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201)["id"] == first["id"]


def test_a_refused_request_is_decided_again_when_repeated(admin: httpx.Client) -> None:
    event = publish_event(admin, row_event(3))
    other = place_hold(admin, event, seat("A-1"))
    for _ in range(2):
        expect_error(post_hold(admin, event, key="k", user="u-2", items=[seat("A-1")]), 409, "seat_taken")
    act(admin, other, "cancel")
    answer = post_hold(admin, event, key="k", user="u-2", items=[seat("A-1")])
    assert expect_ok(answer, 201)["items"][0]["seat"] == "A-1"
    assert "idempotency-replayed" not in answer.headers


def test_the_idempotency_key_of_a_refused_request_can_be_used_again(admin: httpx.Client) -> None:
    event = publish_event(admin, row_event(3))
    place_hold(admin, event, seat("A-1"))
    expect_error(post_hold(admin, event, key="k", user="u-2", items=[seat("A-1")]), 409, "seat_taken")
    expect_ok(post_hold(admin, event, key="k", user="u-2", items=[seat("A-3")]), 201)


def test_the_same_idempotency_key_can_be_used_for_two_events(admin: httpx.Client) -> None:
    first, second = publish_event(admin, pool_event(5)), publish_event(admin, pool_event(5))
    bookings = [expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201) for event in (first, second)]
    assert [booking["event"] for booking in bookings] == [first, second]


def seat_numbers(booking: Body, row: str = "A") -> list[int]:
    labels = [item["seat"] for item in booking["items"]]
    assert {label.partition("-")[0] for label in labels} == {row}
    return sorted(int(label.partition("-")[2]) for label in labels)


def test_the_best_seats_are_adjacent(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    taken: list[str] = []
    for user in range(6):
        booking = expect_ok(
            post_hold(admin, event, user=f"u-{user}", best_available={"pool": "stalls", "quantity": 3}), 201
        )
        labels = [item["seat"] for item in booking["items"]]
        numbers = seat_numbers(booking, labels[0].partition("-")[0])
        assert numbers == list(range(numbers[0], numbers[0] + 3))
        assert all(item["quantity"] == 1 and item["unit_price"] == 3000 for item in booking["items"])
        taken += labels
    assert len(set(taken)) == 18
    assert seat_states(public, event) == dict.fromkeys(taken, "held")


def test_separate_seats_go_only_to_buyers_who_accept_them(admin: httpx.Client) -> None:
    event = publish_event(admin, row_event(5))
    place_hold(admin, event, seat("A-2"), seat("A-4"))
    best = {"pool": "hall", "quantity": 3}
    assert expect_error(post_hold(admin, event, best_available=best), 409, "sold_out")["conflicts"] == ["hall"]
    expect_error(post_hold(admin, event, best_available={**best, "adjacent": True}), 409, "sold_out")
    apart = expect_ok(post_hold(admin, event, best_available={**best, "adjacent": False}), 201)
    assert seat_numbers(apart) == [1, 3, 5]


def test_best_available_never_sells_more_seats_than_are_left(admin: httpx.Client) -> None:
    event = publish_event(admin, row_event(4))
    for adjacent in (True, False):
        best = {"pool": "hall", "quantity": 5, "adjacent": adjacent}
        expect_error(post_hold(admin, event, best_available=best), 409, "sold_out")
    assert seat_numbers(expect_ok(post_hold(admin, event, best_available={"pool": "hall", "quantity": 4}), 201)) == [
        1,
        2,
        3,
        4,
    ]


def test_the_best_seats_cost_the_price_of_the_chosen_tariff(admin: httpx.Client) -> None:
    tariffs = [{"code": "full", "price": 3000}, {"code": "child", "price": 1500}]
    pool = {"code": "hall", "seats": {"rows": ["A"], "numbers": 4}, "tariffs": tariffs}
    event = publish_event(admin, example_event(pools=[pool]))
    best = {"pool": "hall", "quantity": 2, "tariff": "child"}
    assert expect_ok(post_hold(admin, event, best_available=best), 201)["subtotal"] == 3000


def test_the_policy_limits_units_per_user(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(50, policy={"max_units_per_user": 4}))
    expect_error(post_hold(admin, event, items=[units(5)]), 409, "limit_reached")
    first = place_hold(admin, event, units(3))
    expect_error(post_hold(admin, event, items=[units(2)]), 409, "limit_reached")
    act(admin, place_hold(admin, event, units(1)), "confirm")
    expect_error(post_hold(admin, event, items=[units(1)]), 409, "limit_reached")
    place_hold(admin, event, units(4), user="u-2")
    act(admin, first, "cancel")
    place_hold(admin, event, units(3))
    expect_error(post_hold(admin, event, items=[units(1)]), 409, "limit_reached")


def test_the_best_seats_count_towards_the_limit(admin: httpx.Client) -> None:
    event = publish_event(admin, row_event(10, policy={"max_units_per_user": 2}))
    best = {"pool": "hall", "quantity": 3}
    expect_error(post_hold(admin, event, best_available=best), 409, "limit_reached")


@pytest.mark.parametrize("actions", [("cancel",), ("confirm", "refund")], ids=["cancelled", "refunded"])
def test_the_policy_can_limit_a_user_to_one_live_booking(admin: httpx.Client, actions: tuple[str, ...]) -> None:
    event = publish_event(admin, pool_event(5, policy={"one_booking_per_user": True}))
    booking = place_hold(admin, event, units(1))
    expect_error(post_hold(admin, event, items=[units(2)]), 409, "already_booked")
    place_hold(admin, event, units(1), user="u-2")
    for action in actions:
        booking = act(admin, booking, action)
        if action == "confirm":
            expect_error(post_hold(admin, event, items=[units(2)]), 409, "already_booked")
    place_hold(admin, event, units(1))


def test_a_registration_is_confirmed_at_once_and_can_be_cancelled(admin: httpx.Client, public: httpx.Client) -> None:
    event = publish_event(
        admin, example_event(preset="registration", tax_bps=0, pools=[{"code": "places", "capacity": 2}])
    )
    place = {"pool": "places"}
    booking = place_hold(admin, event, place)
    assert (booking["status"], booking["total"], booking["reason"]) == ("confirmed", 0, None)
    assert (booking["expires_at"], booking["expires_in_seconds"]) == (None, None)
    assert expect_ok(post_hold(admin, event, items=[place]))["id"] == booking["id"]
    place_hold(admin, event, place, user="u-2")
    expect_error(post_hold(admin, event, user="u-3", items=[place]), 409, "sold_out")
    assert act(admin, booking, "cancel")["status"] == "cancelled"
    assert remaining(public, event) == {"places": 1}
    place_hold(admin, event, place, user="u-3")


def test_a_shift_of_three_places_accepts_three_people(admin: httpx.Client) -> None:
    event = publish_event(
        admin,
        example_event(
            preset="shift", pools=[{"code": "crew", "capacity": 3, "tariffs": [{"code": "fee", "price": 500}]}]
        ),
    )
    place = {"pool": "crew"}
    bookings = [place_hold(admin, event, place, user=f"u-{n}") for n in range(3)]
    assert all(booking["status"] == "held" for booking in bookings)
    assert all(
        parse_time(booking["expires_at"]) - parse_time(booking["created_at"]) == timedelta(seconds=180)
        for booking in bookings
    )
    assert expect_ok(post_hold(admin, event, user="u-0", items=[place]))["id"] == bookings[0]["id"]
    expect_error(post_hold(admin, event, user="u-9", items=[{**place, "quantity": 2}]), 409, "limit_reached")
    expect_error(post_hold(admin, event, user="u-3", items=[place]), 409, "sold_out")
    act(admin, bookings[0], "cancel")
    place_hold(admin, event, place, user="u-3")


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
def test_an_experience_costs_its_tariffs_plus_tax(
    admin: httpx.Client, tax_bps: int, adults: int, children: int, subtotal: int, tax: int
) -> None:
    tariffs = [{"code": "adult", "price": 4500}, {"code": "child", "price": 2000}]
    slot = {"code": "slot", "capacity": 10, "tariffs": tariffs}
    event = publish_event(admin, example_event(preset="experience", tax_bps=tax_bps, pools=[slot]))
    quantities = {"adult": adults, "child": children}
    booking = place_hold(admin, event, *(units(n, "slot", tariff=code) for code, n in quantities.items() if n))
    assert (booking["subtotal"], booking["tax"], booking["total"]) == (subtotal, tax, subtotal + tax)
    assert act(admin, booking, "confirm")["total"] == subtotal + tax


def test_the_largest_possible_total_is_correct(admin: httpx.Client) -> None:
    pool = {"code": "hall", "capacity": 10_000_000, "tariffs": [{"code": "full", "price": 100_000_000_000}]}
    event = publish_event(admin, example_event(tax_bps=10_000, pools=[pool]))
    booking = place_hold(admin, event, units(500), units(500))
    assert booking["subtotal"] == booking["tax"] == 1_000 * 100_000_000_000
    assert booking["total"] == 2 * booking["subtotal"]
    assert without_clocks(get_booking(admin, booking)) == without_clocks(booking)


def test_a_hold_that_leaves_an_orphan_is_refused_if_the_policy_says_so(admin: httpx.Client) -> None:
    event = publish_event(admin, row_event(10, policy={"avoid_orphans": True}))
    assert expect_error(post_hold(admin, event, items=[seat("A-1"), seat("A-3")]), 409, "orphan_seat")["conflicts"] == [
        "A-2"
    ]
    place_hold(admin, event, seat("A-1"), seat("A-2"))
    relaxed = publish_event(admin, row_event(10, policy={"avoid_orphans": False}))
    place_hold(admin, relaxed, seat("A-1"), seat("A-3"))


Prepare = Callable[[httpx.Client], tuple[str, str, Body]]


def event_not_on_sale_before_a_reused_key(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, pool_event(5))
    expect_ok(post_hold(admin, event, key="k", items=[units(1)]), 201)
    expect_ok(admin.post(f"/v1/events/{event}/complete"))
    return event, "event_not_on_sale", {"key": "k", "items": [units(2)]}


def event_not_on_sale_before_an_unknown_seat(admin: httpx.Client) -> tuple[str, str, Body]:
    event = expect_ok(admin.post("/v1/events", json=row_event(5)), 201)["id"]
    return event, "event_not_on_sale", {"items": [seat("Z-1")]}


def a_reused_key_before_an_unknown_seat(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, row_event(5))
    expect_ok(post_hold(admin, event, key="k", items=[seat("A-1")]), 201)
    return event, "idempotency_key_reused", {"key": "k", "items": [seat("Z-1")]}


def an_unknown_seat_before_an_unknown_pool(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, example_event())
    return event, "unknown_seat", {"items": [units(1, "none"), units(1, "standing", tariff="none"), seat("Z-1")]}


def an_unknown_pool_before_an_unknown_tariff(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, example_event())
    return event, "unknown_pool", {"items": [units(1, "standing", tariff="none"), units(1, "none")]}


def an_unknown_tariff_before_a_second_booking(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, pool_event(5, policy={"one_booking_per_user": True}))
    place_hold(admin, event, units(1))
    return event, "unknown_tariff", {"items": [units(1, tariff="none")]}


def a_second_booking_before_too_many_units(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, pool_event(5, policy={"one_booking_per_user": True, "max_units_per_user": 2}))
    place_hold(admin, event, units(1))
    return event, "already_booked", {"items": [units(3)]}


def too_many_units_before_a_taken_seat(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, row_event(5, policy={"max_units_per_user": 1}))
    place_hold(admin, event, seat("A-1"), user="u-2")
    return event, "limit_reached", {"items": [seat("A-1"), seat("A-2")]}


def too_many_units_before_sold_out(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, pool_event(2, policy={"max_units_per_user": 1}))
    return event, "limit_reached", {"items": [units(3)]}


def a_taken_seat_before_sold_out(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, example_event())
    place_hold(admin, event, seat("A-1"), units(500, "standing", tariff="full"))
    return event, "seat_taken", {"items": [units(1, "standing", tariff="full"), seat("A-1")]}


def sold_out_before_an_orphan(admin: httpx.Client) -> tuple[str, str, Body]:
    event = publish_event(admin, example_event(policy={"avoid_orphans": True}))
    place_hold(admin, event, units(500, "standing", tariff="full"))
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
def test_the_highest_ranking_refusal_is_reported(admin: httpx.Client, prepare: Prepare) -> None:
    event, code, body = prepare(admin)
    answer = post_hold(admin, event, **body)
    expect_error(answer, 422 if code.startswith(("unknown", "idempotency")) else 409, code)


def test_a_cart_token_is_never_returned(admin: httpx.Client) -> None:
    event = publish_event(admin, pool_event(5))
    token = secrets.token_hex(16)
    answer = post_hold(admin, event, items=[units(1)], cart_token=token)
    booking = expect_ok(answer, 201)
    assert token not in answer.text
    assert token not in admin.get(f"/v1/bookings/{booking['id']}").text
    assert token not in admin.get(f"/v1/events/{event}/journal").text


def test_a_booking_is_found_by_its_reference(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    bookings = [expect_ok(post_hold(admin, event, items=[{"seat": f"A-{n}"}]), 201) for n in (1, 2)]
    for text in (bookings[0]["reference"], bookings[0]["reference"].lower()):
        found = expect_ok(admin.get("/v1/bookings", params={"reference": text}))["items"]
        assert [booking["id"] for booking in found] == [bookings[0]["id"]]
    expect_error(admin.get("/v1/bookings", params={"reference": "not one"}), 422, "invalid_request")
