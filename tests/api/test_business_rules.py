"""Rules that some businesses need: asking twice, slots, sales that open and close, who the buyer is, shifts."""

import csv
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from tests.support.harness import Org, Server, example_event, post_hold, publish_event, query, wait_until
from tests.support.http_assertions import expect_error, expect_ok

Body = dict[str, Any]

TOUR_TARIFFS: Final = [
    {"code": "adult", "price": 4500},
    {"code": "child", "name": "Child", "price": 2000, "needs_companion": True},
]


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[httpx.Client]:
    with server.client(Org(server.database_url).headers()) as client:
        yield client


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def places(capacity: int = 5, price: int = 1000, **more: Any) -> Body:
    return {"code": "places", "capacity": capacity, "tariffs": [{"code": "full", "price": price}], **more}


def hold(client: httpx.Client, event: str, *items: Body, **more: Any) -> Body:
    return expect_ok(post_hold(client, event, items=list(items) or [{"pool": "places"}], **more), 201)


def customer_of(server: Server, admin: httpx.Client, user: str) -> httpx.Client:
    token = expect_ok(admin.post("/v1/customer-tokens", json={"user": user}), 201)["token"]
    return server.client({"Authorization": f"Bearer {token}"})


# Asking for the same again


def test_a_user_who_asks_again_for_their_seats_gets_the_same_booking(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    first = hold(admin, event, {"seat": "A-5"}, {"seat": "A-6"})
    for items in ([{"seat": "A-5"}, {"seat": "A-6"}], [{"seat": "A-6"}, {"seat": "A-5"}]):
        again = post_hold(admin, event, items=items)
        assert expect_ok(again)["id"] == first["id"]
        assert again.headers["idempotency-replayed"] == "true"
    expect_ok(admin.post(f"/v1/bookings/{first['id']}/confirm"))
    assert expect_ok(post_hold(admin, event, items=items))["status"] == "confirmed"


def test_a_request_that_includes_an_own_seat_names_the_booking_that_has_it(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    mine = hold(admin, event, {"seat": "A-5"})
    hold(admin, event, {"seat": "A-6"}, user="u-2")
    for items in (
        [{"seat": "A-5"}, {"seat": "A-7"}],
        [{"seat": "A-6"}, {"seat": "A-5"}],
        [{"seat": "A-5"}, {"pool": "standing", "tariff": "full"}],
    ):
        problem = expect_error(post_hold(admin, event, items=items), 409, "seat_taken")
        assert problem["booking"] == mine["id"]
        assert "already has A-5" in problem["detail"]
        with customer_of(server, admin, "u-1") as owner, customer_of(server, admin, "u-3") as stranger:
            assert (
                expect_error(post_hold(owner, event, items=items, user=None), 409, "seat_taken")["booking"]
                == (mine["id"])
            )
            refused = expect_error(post_hold(stranger, event, items=items, user=None), 409, "seat_taken")
            assert "booking" not in refused
            assert "already has" not in refused["detail"]


def test_a_cancelled_or_expired_seat_is_held_anew(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    first = hold(admin, event, {"seat": "A-5"})
    wait_until(lambda: post_hold(admin, event, items=[{"seat": "A-5"}]).status_code == 201, 15)
    long = publish_event(admin, example_event())
    second = hold(admin, long, {"seat": "A-5"})
    expect_ok(admin.post(f"/v1/bookings/{second['id']}/cancel"))
    assert hold(admin, long, {"seat": "A-5"})["id"] not in (first["id"], second["id"])


def test_two_more_places_of_a_counted_pool_stay_two_more(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places()]))
    item = {"pool": "places", "quantity": 2}
    assert hold(admin, event, item)["id"] != hold(admin, event, item)["id"]
    expect_error(post_hold(admin, event, items=[item]), 409, "sold_out")


def test_where_a_user_can_have_one_booking_the_same_units_are_the_same_booking(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places()], policy={"one_booking_per_user": True}))
    first = hold(admin, event, {"pool": "places", "quantity": 2})
    again = post_hold(admin, event, items=[{"pool": "places", "quantity": 1}, {"pool": "places", "quantity": 1}])
    assert expect_ok(again)["id"] == first["id"]
    other = expect_error(post_hold(admin, event, items=[{"pool": "places"}]), 409, "already_booked")
    assert other["booking"] == first["id"]


def test_the_best_seats_are_the_same_booking_if_a_user_can_have_one(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"one_booking_per_user": True}))
    best = {"pool": "stalls", "quantity": 2}
    first = expect_ok(post_hold(admin, event, best_available=best), 201)
    assert expect_ok(post_hold(admin, event, best_available=best))["id"] == first["id"]


def test_a_limit_names_a_booking_of_the_user(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places()], policy={"max_units_per_user": 2}))
    assert "booking" not in expect_error(
        post_hold(admin, event, items=[{"pool": "places", "quantity": 3}]), 409, "limit_reached"
    )
    first = hold(admin, event)
    problem = expect_error(post_hold(admin, event, items=[{"pool": "places", "quantity": 2}]), 409, "limit_reached")
    assert problem["booking"] == first["id"]


def test_a_transfer_does_not_name_the_booking_of_the_recipient(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places()], policy={"one_booking_per_user": True}))
    mine = hold(admin, event, user="u-1")
    hold(admin, event, user="u-2")
    expect_ok(admin.post(f"/v1/bookings/{mine['id']}/confirm"))
    with customer_of(server, admin, "u-1") as owner:
        refused = owner.post(f"/v1/bookings/{mine['id']}/transfer", json={"user": "u-2"})
        assert "booking" not in expect_error(refused, 409, "already_booked")


# Prices and presets


def test_a_paid_event_cannot_confirm_at_once(admin: httpx.Client) -> None:
    paid, free = places(), places(price=0)
    for event in (
        example_event(pools=[paid], policy={"confirm_at_once": True}),
        example_event(pools=[paid], preset="registration"),
    ):
        problem = expect_error(admin.post("/v1/events", json=event), 422, "invalid_request")
        assert problem["errors"][0]["field"] == "policy.confirm_at_once"
    registration = publish_event(admin, example_event(pools=[free], preset="registration"))
    show = publish_event(admin, example_event(pools=[paid]))
    for event_id, change in (
        (registration, {"pools": [{"code": "places", "tariffs": [{"code": "full", "price": 1}]}]}),
        (registration, {"pools": [places(code="vip")]}),
        (show, {"policy": {"confirm_at_once": True}}),
    ):
        expect_error(admin.patch(f"/v1/events/{event_id}", json=change), 422, "invalid_request")
    expect_ok(admin.patch(f"/v1/events/{registration}", json={"title": "Meet-up"}))


def test_a_shift_gives_three_minutes_and_no_more(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(preset="shift", pools=[places()]))
    booking = hold(admin, event)
    for path in ("extend", "payments"):
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        body = {"provider": "sandbox"} if path == "payments" else {}
        answer = admin.post(f"/v1/bookings/{booking['id']}/{path}", json=body, headers=headers)
        assert answer.status_code in (200, 201), answer.text
        after = expect_ok(admin.get(f"/v1/bookings/{booking['id']}"))
        assert after["expires_at"] == booking["expires_at"] == booking["max_expires_at"]


@pytest.mark.parametrize(("preset", "extra"), [("show", 300), ("arena", 300), ("experience", 300)])
def test_starting_a_payment_early_costs_no_time(admin: httpx.Client, preset: str, extra: int) -> None:
    booking = hold(admin, publish_event(admin, example_event(preset=preset, pools=[places()])))
    for _ in range(2):
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        path = f"/v1/bookings/{booking['id']}/payments"
        expect_ok(admin.post(path, json={"provider": "sandbox"}, headers=headers), 201)
        after = expect_ok(admin.get(f"/v1/bookings/{booking['id']}"))
        more = datetime.fromisoformat(after["expires_at"]) - datetime.fromisoformat(booking["expires_at"])
        assert more == timedelta(seconds=extra)
        assert after["expires_at"] == after["max_expires_at"]


def test_an_event_says_which_providers_it_offers(admin: httpx.Client) -> None:
    unknown = example_event(pools=[places()], providers=["sandbax"])
    expect_error(admin.post("/v1/events", json=unknown), 422, "unknown_provider")
    event = publish_event(admin, example_event(pools=[places()], providers=["sandbox"]))
    assert expect_ok(admin.get(f"/v1/events/{event}"))["providers"] == ["sandbox"]
    expect_error(admin.patch(f"/v1/events/{event}", json={"providers": ["sandbax"]}), 422, "unknown_provider")
    path, key = f"/v1/bookings/{hold(admin, event)['id']}/payments", {"Idempotency-Key": secrets.token_hex(8)}
    expect_ok(admin.post(path, json={"provider": "sandbox"}, headers=key), 201)


# When sales open and close


def test_sales_open_and_close(admin: httpx.Client) -> None:
    opens_at = in_seconds(3600)
    early = publish_event(admin, example_event(pools=[places()], sales_open_at=opens_at))
    problem = expect_error(post_hold(admin, early, items=[{"pool": "places"}]), 409, "not_on_sale_yet")
    assert datetime.fromisoformat(problem["sales_open_at"]) == datetime.fromisoformat(opens_at)
    late = publish_event(admin, example_event(pools=[places()], sales_close_at=in_seconds(-1)))
    expect_error(post_hold(admin, late, items=[{"pool": "places"}]), 409, "sales_closed")
    begun = publish_event(admin, example_event(pools=[places()], starts_at=in_seconds(-1)))
    expect_error(post_hold(admin, begun, items=[{"pool": "places"}]), 409, "sales_closed")
    view = expect_ok(admin.get(f"/v1/events/{begun}"))
    assert (view["sales_open_at"], view["sales_close_at"]) == (None, view["starts_at"])
    running = publish_event(
        admin, example_event(pools=[places()], starts_at=in_seconds(-1), sales_close_at=in_seconds(3600))
    )
    hold(admin, running)


def test_an_event_with_slots_is_on_sale_until_the_last_one_begins(admin: httpx.Client) -> None:
    slots = [places(code=f"s{hour}", starts_at=f"2030-05-01T{hour}:00:00Z") for hour in (10, 16)]
    event = publish_event(admin, example_event(pools=slots, starts_at="2030-05-01T10:00:00Z"))
    assert expect_ok(admin.get(f"/v1/events/{event}"))["sales_close_at"] == "2030-05-01T16:00:00Z"


def test_sales_open_by_themselves(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places()], sales_open_at=in_seconds(1.5)))
    expect_error(post_hold(admin, event, items=[{"pool": "places"}]), 409, "not_on_sale_yet")
    wait_until(lambda: post_hold(admin, event, items=[{"pool": "places"}]).status_code == 201, 15)


def test_a_replay_returns_its_booking_after_sales_have_closed(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places()]))
    first = hold(admin, event, key="k")
    expect_ok(admin.patch(f"/v1/events/{event}", json={"sales_close_at": in_seconds(-1)}))
    assert hold(admin, event, key="k")["id"] == first["id"]
    other_body = post_hold(admin, event, items=[{"pool": "places", "quantity": 2}], key="k")
    expect_error(other_body, 409, "sales_closed")


def test_the_box_office_books_before_and_after_sales_if_the_policy_says_so(server: Server, admin: httpx.Client) -> None:
    policy = {"box_office": True}
    closed = publish_event(admin, example_event(pools=[places()], starts_at=in_seconds(-1), policy=policy))
    early = publish_event(admin, example_event(pools=[places()], sales_open_at=in_seconds(3600), policy=policy))
    with customer_of(server, admin, "u-1") as customer:
        for event, code in ((closed, "sales_closed"), (early, "not_on_sale_yet")):
            hold(admin, event)
            expect_error(post_hold(customer, event, user=None, items=[{"pool": "places"}]), 409, code)


def test_a_slot_has_its_own_window(admin: httpx.Client) -> None:
    slots = [
        places(code="begun", starts_at=in_seconds(-60), ends_at=in_seconds(60)),
        places(code="later", starts_at=in_seconds(3600)),
        places(code="presale", starts_at=in_seconds(7200), sales_open_at=in_seconds(-60)),
        places(code="closed", starts_at=in_seconds(7200), sales_close_at=in_seconds(-1)),
    ]
    event = publish_event(admin, example_event(pools=slots, starts_at=in_seconds(-60)))
    hold(admin, event, {"pool": "later"})
    for code in ("begun", "closed"):
        problem = expect_error(post_hold(admin, event, items=[{"pool": code}]), 409, "sales_closed")
        assert problem["conflicts"] == [code]
    mixed = post_hold(admin, event, items=[{"pool": "later"}, {"pool": "begun"}])
    assert expect_error(mixed, 409, "sales_closed")["conflicts"] == ["begun"]
    expect_ok(
        admin.patch(f"/v1/events/{event}", json={"sales_open_at": in_seconds(600), "sales_close_at": in_seconds(3000)})
    )
    hold(admin, event, {"pool": "presale"})
    expect_error(post_hold(admin, event, items=[{"pool": "later"}]), 409, "not_on_sale_yet")
    expect_ok(admin.patch(f"/v1/events/{event}", json={"sales_open_at": None, "sales_close_at": in_seconds(-1)}))
    expect_error(post_hold(admin, event, items=[{"pool": "later"}]), 409, "sales_closed")


def test_times_that_contradict_each_other_are_refused(admin: httpx.Client) -> None:
    start, before, after = "2030-05-01T10:00:00Z", "2030-05-01T09:00:00Z", "2030-05-01T11:00:00Z"
    cases: list[tuple[str, Body]] = [
        ("sales_open_at", {"sales_open_at": after}),
        ("pools.places.ends_at", {"pools": [places(ends_at=after)]}),
        ("pools.places.sales_close_at", {"pools": [places(starts_at=start, sales_close_at=after)]}),
        ("pools.places.sales_open_at", {"pools": [places(starts_at=start, sales_open_at=after)]}),
        ("payment_instructions", {"payment_instructions": " \n"}),
        (
            "pools.places.ends_at",
            {"ends_at": after, "pools": [places(starts_at=start, ends_at="2030-05-01T12:00:00Z")]},
        ),
        ("pools.places.starts_at", {"ends_at": after, "pools": [places(starts_at="2030-05-01T12:00:00Z")]}),
    ]
    for field, event in cases:
        body = {**example_event(pools=[places()], starts_at=start), **event}
        problem = expect_error(admin.post("/v1/events", json=body), 422, "invalid_request")
        assert problem["errors"][0]["field"] == field
    event_id = publish_event(admin, example_event(pools=[places(starts_at=start)], starts_at=start))
    for change in (
        {"sales_open_at": after},
        {"pools": [{"code": "places", "ends_at": before}]},
        {"pools": [{"code": "places", "sales_close_at": after}]},
        {"ends_at": "2030-05-01T10:00:01Z", "pools": [{"code": "places", "starts_at": after}]},
    ):
        expect_error(admin.patch(f"/v1/events/{event_id}", json=change), 422, "invalid_request")
    moved = {"pools": [{"code": "places", "starts_at": after, "ends_at": "2030-05-01T12:00:00Z"}]}
    (pool,) = expect_ok(admin.patch(f"/v1/events/{event_id}", json=moved))["pools"]
    assert (pool["starts_at"], pool["ends_at"]) == (after, "2030-05-01T12:00:00Z")
    cleared = {"pools": [{"code": "places", "starts_at": None, "ends_at": None}]}
    assert expect_ok(admin.patch(f"/v1/events/{event_id}", json=cleared))["pools"][0]["starts_at"] is None


# Who comes, and how many


def test_a_child_needs_an_adult_in_the_same_slot(admin: httpx.Client) -> None:
    slots = [
        {"code": code, "capacity": 9, "tariffs": TOUR_TARIFFS, "starts_at": in_seconds(at)}
        for code, at in (("morning", 3600), ("afternoon", 7200))
    ]
    event = publish_event(admin, example_event(pools=slots))
    adult, child = {"pool": "morning", "tariff": "adult"}, {"pool": "morning", "tariff": "child", "quantity": 2}
    for items in ([child], [{**adult, "pool": "afternoon"}, child]):
        problem = expect_error(post_hold(admin, event, items=items), 422, "companion_required")
        assert "Child" in problem["detail"]
        assert problem["conflicts"] == ["morning"]
    assert hold(admin, event, adult, child)["subtotal"] == 4500 + 2 * 2000
    grown = [{"code": "child", "price": 2000, "needs_companion": False}]
    expect_ok(admin.patch(f"/v1/events/{event}", json={"pools": [{"code": "morning", "tariffs": grown}]}))
    hold(admin, event, child, user="u-2")


def test_a_change_of_price_keeps_the_need_for_a_companion(admin: httpx.Client) -> None:
    pools = [{"code": "tour", "capacity": 9, "tariffs": TOUR_TARIFFS}]
    event = publish_event(admin, example_event(pools=pools))
    cheaper = [{"code": "child", "price": 1000}]
    view = expect_ok(admin.patch(f"/v1/events/{event}", json={"pools": [{"code": "tour", "tariffs": cheaper}]}))
    assert view["pools"][0]["tariffs"][1] == {
        "code": "child",
        "name": "Child",
        "price": 1000,
        "needs_companion": True,
    }


def test_a_booking_has_a_smallest_and_a_largest_number_of_units(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places(50)], policy={"min_units": 2, "max_units": 4}))
    for quantity, words in ((1, "at least 2"), (5, "at most 4")):
        problem = expect_error(
            post_hold(admin, event, items=[{"pool": "places", "quantity": quantity}]), 422, "unit_count"
        )
        assert words in problem["detail"]
    for quantity in (2, 4):
        hold(admin, event, {"pool": "places", "quantity": quantity})
    wrong = {"policy": {"min_units": 5}}
    expect_error(admin.patch(f"/v1/events/{event}", json=wrong), 422, "invalid_request")


def test_the_event_says_which_contact_details_a_booking_needs(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places(50)], contact={"name": "required", "phone": "required"}))
    assert expect_ok(admin.get(f"/v1/events/{event}"))["contact"] == {
        "name": "required",
        "email": "optional",
        "phone": "required",
    }
    problem = expect_error(
        post_hold(admin, event, items=[{"pool": "places"}], contact={"name": " "}), 422, "contact_required"
    )
    assert [error["field"] for error in problem["errors"]] == ["contact.name", "contact.phone"]
    contact = {"name": "Ada Lovelace", "email": "ada@example.org", "phone": "+441632960961"}
    booking = hold(admin, event, contact=contact)
    assert booking["contact"] == contact
    assert booking["email"] == "ada@example.org"
    assert expect_ok(admin.get(f"/v1/bookings/{booking['id']}"))["contact"] == contact
    expect_ok(admin.patch(f"/v1/events/{event}", json={"contact": {"phone": "none"}}))
    hold(admin, event, contact={"name": "Bob"}, email="bob@example.org")


@pytest.mark.parametrize("phone", ["0441632960961", "+44 1632 960961", "+0441632960961", "+441", "+4416329609611234"])
def test_a_phone_number_has_its_country_code(admin: httpx.Client, phone: str) -> None:
    event = publish_event(admin, example_event(pools=[places()]))
    answer = post_hold(admin, event, items=[{"pool": "places"}], contact={"phone": phone})
    assert "country code" in expect_error(answer, 422, "invalid_request")["detail"]


@pytest.mark.parametrize("text", ["a\r\nBcc: x", "\x1b[31m", "a\u202eb", "a\u2028b"])
def test_a_name_and_an_answer_are_plain_text(admin: httpx.Client, text: str) -> None:
    question = {"code": "note", "label": "Note"}
    event = publish_event(admin, example_event(pools=[places()], questions=[question]))
    expect_error(post_hold(admin, event, items=[{"pool": "places"}], contact={"name": text}), 422, "invalid_request")
    if "\n" not in text:
        answers = {"note": text}
        expect_error(post_hold(admin, event, items=[{"pool": "places"}], answers=answers), 422, "invalid_request")


def test_invisible_characters_are_no_answer(admin: httpx.Client) -> None:
    question = {"code": "note", "label": "Note", "required": True}
    event = publish_event(admin, example_event(pools=[places()], contact={"name": "required"}, questions=[question]))
    nobody: Body = {"contact": {"name": "\u200b"}}
    expect_error(post_hold(admin, event, items=[{"pool": "places"}], **nobody), 422, "contact_required")
    nothing: Body = {"contact": {"name": "Ada"}, "answers": {"note": "\ufeff "}}
    expect_error(post_hold(admin, event, items=[{"pool": "places"}], **nothing), 422, "answer_required")


def test_an_email_has_two_spellings_but_one_value(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places(50)]))
    old = hold(admin, event, email="ada@example.org")
    assert old["contact"] == {"name": None, "email": "ada@example.org", "phone": None}
    two: Body = {"email": "ada@example.org", "contact": {"email": "eve@example.org"}}
    expect_error(post_hold(admin, event, items=[{"pool": "places"}], **two), 422, "invalid_request")


QUESTIONS: Final = [
    {"code": "diet", "label": "Diet", "kind": "choice", "choices": ["any", "vegan"], "per": "unit", "required": True},
    {"code": "note", "label": "Anything else?"},
    {"code": "terms", "label": "May we film?", "kind": "yes_no", "required": True},
]


def test_answers_are_checked_kept_and_exported(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places(50)], questions=QUESTIONS))
    two = [{"pool": "places", "quantity": 2}]
    for answers, fields in (
        (None, ["answers.diet", "answers.terms"]),
        ({"diet": ["any", None], "terms": True}, ["answers.diet"]),
        ({"diet": ["any", "vegan"], "terms": None}, ["answers.terms"]),
    ):
        more: Body = {"answers": answers} if answers else {}
        problem = expect_error(post_hold(admin, event, items=two, **more), 422, "answer_required")
        assert [error["field"] for error in problem["errors"]] == fields
    for wrong in (
        {"diet": ["any", "meat"], "terms": True},
        {"diet": ["any"], "terms": True},
        {"diet": "any", "terms": True},
        {"diet": ["any", "any"], "terms": "yes"},
        {"diet": ["any", "any"], "terms": True, "note": False},
        {"diet": ["any", "any"], "terms": True, "unknown": "x"},
        {"diet": ["any", "any"], "terms": True, "note": "x" * 1001},
        {"diet": ["any", "any"], "terms": True, "note": {"a": 1}},
    ):
        expect_error(post_hold(admin, event, items=two, answers=wrong), 422, "invalid_request")
    answers = {"diet": ["any", "vegan"], "terms": False, "note": "=1+1"}
    booking = hold(admin, event, *two, answers=answers, contact={"name": "Ada", "phone": "+441632960961"})
    assert booking["answers"] == answers
    assert expect_ok(admin.get(f"/v1/bookings/{booking['id']}"))["answers"] == answers
    assert expect_ok(admin.post(f"/v1/bookings/{booking['id']}/confirm"))["answers"] == answers
    rows = list(csv.DictReader(admin.get(f"/v1/events/{event}/bookings.csv").text.splitlines()))
    assert [(row["name"], row["phone"], row["Diet"], row["Anything else?"], row["May we film?"]) for row in rows] == [
        ("Ada", "'+441632960961", "any | vegan", "'=1+1", "no")
    ]


def test_an_answer_stays_with_its_unit_when_items_are_merged(admin: httpx.Client) -> None:
    pools = [{"code": "tour", "capacity": 9, "tariffs": TOUR_TARIFFS}]
    question = {"code": "name", "label": "Name", "per": "unit"}
    event = publish_event(admin, example_event(pools=pools, questions=[question, {"code": "note", "label": "Note"}]))
    items = [{"pool": "tour", "tariff": tariff} for tariff in ("adult", "child", "adult")]
    booking = hold(admin, event, *items, answers={"name": ["Ann", "Tim", "Bob"], "note": "x"})
    assert [(item["tariff"], item["quantity"]) for item in booking["items"]] == [("adult", 2), ("child", 1)]
    assert booking["answers"] == {"name": ["Ann", "Bob", "Tim"], "note": "x"}


def test_answers_belong_to_the_person_who_gave_them(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places()], questions=[{"code": "note", "label": "Note"}]))
    booking = hold(admin, event, answers={"note": "secret"}, contact={"name": "Ada", "phone": "+441632960961"})
    expect_ok(admin.post(f"/v1/bookings/{booking['id']}/confirm"))
    moved = admin.post(
        f"/v1/bookings/{booking['id']}/transfer", json={"user": "u-2", "contact": {"name": "Bob"}, "language": "en"}
    )
    assert expect_ok(moved)["contact"] == {"name": "Bob", "email": None, "phone": None}
    with customer_of(server, admin, "u-2") as recipient:
        seen = expect_ok(recipient.get(f"/v1/bookings/{booking['id']}"))
    assert (seen["answers"], seen["contact"]["name"]) == (None, "Bob")


def test_an_event_without_questions_takes_no_answers(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places()]))
    expect_error(post_hold(admin, event, items=[{"pool": "places"}], answers={"a": "b"}), 422, "invalid_request")
    hold(admin, event, answers={})


def test_questions_are_at_most_twenty_and_consistent(admin: httpx.Client) -> None:
    question = {"code": "q", "label": "Q"}
    for questions in (
        [{**question, "code": f"q{n}"} for n in range(21)],
        [question, question],
        [{**question, "kind": "choice"}],
        [{**question, "choices": ["a"]}],
        [{**question, "kind": "choice", "choices": ["a", "a"]}],
    ):
        answer = admin.post("/v1/events", json=example_event(pools=[places()], questions=questions))
        expect_error(answer, 422, "invalid_request")


def test_what_the_form_needs_comes_in_the_documented_order(admin: httpx.Client) -> None:
    """Each refusal hides the ones after it."""
    event = publish_event(
        admin,
        example_event(
            pools=[{"code": "tour", "capacity": 1, "tariffs": TOUR_TARIFFS}],
            contact={"name": "required"},
            questions=[{"code": "note", "label": "Note", "required": True}],
            policy={"min_units": 2, "max_units_per_user": 2},
        ),
    )
    child, adult = {"pool": "tour", "tariff": "child"}, {"pool": "tour", "tariff": "adult", "quantity": 3}
    contact: Body = {"contact": {"name": "Ada"}}
    answers: Body = {"answers": {"note": "x"}}
    expect_error(post_hold(admin, event, items=[child]), 422, "contact_required")
    expect_error(post_hold(admin, event, items=[child], **contact), 422, "answer_required")
    expect_error(post_hold(admin, event, items=[child], **contact, **answers), 422, "companion_required")
    one_adult = [{**adult, "quantity": 1}]
    expect_error(post_hold(admin, event, items=one_adult, **contact, **answers), 422, "unit_count")
    expect_error(post_hold(admin, event, items=[adult], **contact, **answers), 409, "limit_reached")


# Late, and shifts


def test_a_late_confirmation_revives_the_booking_within_the_grace(admin: httpx.Client) -> None:
    policy = {"hold_seconds": 1, "late_grace_seconds": 600}
    event = publish_event(admin, example_event(pools=[places(1)], policy=policy))
    strict = publish_event(admin, example_event(pools=[places(1)], policy={**policy, "late_grace_seconds": 0}))
    late, too_late = hold(admin, event), hold(admin, strict)
    for booking in (late, too_late):
        path = f"/v1/bookings/{booking['id']}"
        wait_until(lambda path=path: admin.get(path).json()["status"] == "expired", 15)  # type: ignore[misc]
    assert expect_ok(admin.post(f"/v1/bookings/{late['id']}/confirm"))["status"] == "confirmed"
    expect_error(admin.post(f"/v1/bookings/{too_late['id']}/confirm"), 410, "hold_expired")
    expect_error(post_hold(admin, event, items=[{"pool": "places"}], user="u-2"), 409, "sold_out")


def test_a_late_confirmation_never_takes_a_place_from_somebody_else(admin: httpx.Client) -> None:
    event = publish_event(
        admin, example_event(pools=[places(1)], policy={"hold_seconds": 1, "late_grace_seconds": 600})
    )
    late = hold(admin, event)
    wait_until(lambda: post_hold(admin, event, items=[{"pool": "places"}], user="u-2").status_code == 201, 15)
    expect_error(admin.post(f"/v1/bookings/{late['id']}/confirm"), 410, "hold_expired")


def test_a_shift_has_typed_fields_and_its_fee_is_the_price(admin: httpx.Client) -> None:
    shift = {
        "order_number": 1042,
        "salary": 250_000,
        "food": "Lunch",
        "work_time": "08:00 to 17:00",
        "address": "Gate 3, Dock Road",
        "service_fee": 1500,
        "buses": "12, 40",
        "additional_info": "Bring gloves.",
        "date": "2027-03-05",
    }
    event = publish_event(admin, example_event(preset="shift", pools=[{"code": "crew", "capacity": 3}], shift=shift))
    view = expect_ok(admin.get(f"/v1/events/{event}"))
    assert view["shift"] == shift
    assert view["pools"][0]["tariffs"][0]["price"] == 1500
    two_prices = example_event(pools=[places(price=1)], shift={"service_fee": 2})
    expect_error(admin.post("/v1/events", json=two_prices), 422, "invalid_request")
    expect_error(admin.patch(f"/v1/events/{event}", json={"shift": {"service_fee": 2}}), 422, "invalid_request")
    expect_error(admin.patch(f"/v1/events/{event}", json={"shift": {"pay": 2}}), 422, "invalid_request")
    added = expect_ok(admin.patch(f"/v1/events/{event}", json={"pools": [{"code": "late", "capacity": 1}]}))
    assert added["pools"][1]["tariffs"][0]["price"] == 1500
    assert expect_ok(admin.patch(f"/v1/events/{event}", json={"shift": None}))["shift"] is None


def test_an_order_number_is_unique_in_its_org(server: Server, admin: httpx.Client) -> None:
    def numbered(number: int | str) -> Body:
        return example_event(pools=[places()], shift={"order_number": number})

    first = expect_ok(admin.post("/v1/events", json=numbered(77)), 201)
    for number in (77, "77", "77 "):
        expect_error(admin.post("/v1/events", json=numbered(number)), 409, "order_number_used")
    other = expect_ok(admin.post("/v1/events", json=numbered("77-B")), 201)
    change = {"shift": {"order_number": 77}}
    expect_error(admin.patch(f"/v1/events/{other['id']}", json=change), 409, "order_number_used")
    expect_ok(admin.patch(f"/v1/events/{first['id']}", json=change))
    with server.client(Org(server.database_url).headers()) as elsewhere:
        expect_ok(elsewhere.post("/v1/events", json=numbered(77)), 201)


def test_nobody_but_staff_and_the_buyer_can_see_the_contact(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places()], questions=[{"code": "note", "label": "Note"}]))
    secret = {"name": "Ada Sekret", "email": "ada.sekret@example.org", "phone": "+441632960961"}
    hold(admin, event, contact=secret, answers={"note": "sekret"})
    with server.client() as public:
        for path in ("changes", "availability"):
            assert "ekret" not in public.get(f"/v1/events/{event}/{path}").text
    assert "ekret" not in admin.get(f"/v1/events/{event}/journal").text
    journal = query(server.database_url, "SELECT string_agg(data::text, ' ') FROM journal")[0][0]
    assert "ekret" not in journal
    assert "441632960961" not in journal
