"""What the page of an event asks, offers and refuses by the event's rules, without JavaScript."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.harness import Server, example_event, post_hold, publish_event
from tests.support.html_client import Form, Page, get_page, hold_on_page, parse_page, redirect_target, submit_form
from tests.support.http_assertions import expect_ok

SCRIPT = {"Accept": "application/json"}
SHIFT = {
    "order_number": 1042,
    "salary": 11_200,
    "food": "Lunch",
    "work_time": "06:00 to 14:00",
    "address": "Dock 4",
    "service_fee": 500,
    "buses": "7 and 21",
    "additional_info": "Bring gloves.",
    "date": "2027-03-05",
}


def places(**changes: Any) -> dict[str, Any]:
    pool = {"code": "places", "name": "Places", "capacity": 9, "tariffs": [{"code": "full", "price": 500}]}
    return {**pool, **changes}


def free_event(**changes: Any) -> dict[str, Any]:
    return example_event(**{"preset": "registration", "pools": [places(tariffs=None)], **changes})


def shift_event(**changes: Any) -> dict[str, Any]:
    return example_event(**{"preset": "shift", "pools": [places()], **changes})


def slot_event(count: int = 4, **changes: Any) -> dict[str, Any]:
    """A tour with one slot a day, from the first of March."""
    tariffs = [{"code": "adult", "price": 1000}, {"code": "child", "price": 500, "needs_companion": True}]
    start = datetime(2027, 3, 1, 23, 30, tzinfo=UTC)
    pools = [
        places(
            code=f"s{n}",
            name=f"Tour {n}",
            capacity=3,
            starts_at=(start + timedelta(days=n - 1)).isoformat(),
            tariffs=tariffs,
        )
        for n in range(1, count + 1)
    ]
    return example_event(**{"pools": pools, "starts_at": "2027-03-01T23:30:00Z", **changes})


def seconds_from_now(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def bookings_of(admin: httpx.Client, event: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = expect_ok(admin.get("/v1/bookings", params={"event": event}))["items"]
    return items


def inputs(page: Page, **wanted: str) -> list[dict[str, str | None]]:
    found = [attributes for tag, attributes in page.shown_tags if tag in ("input", "select", "fieldset")]
    return [each for each in found if all(each.get(name) == value for name, value in wanted.items())]


def order(client: httpx.Client, event: str) -> Form:
    return get_page(client, f"/e/{event}").form("/hold")


@pytest.mark.parametrize(("make", "button"), [(shift_event, "Take this place"), (free_event, "Register")])
def test_where_everyone_can_have_one_place_nobody_chooses_a_number(
    server: Server, admin: httpx.Client, buyer: httpx.Client, make: Any, button: str
) -> None:
    event = publish_event(admin, make())
    page = get_page(buyer, f"/e/{event}")
    assert button in page.text
    assert not inputs(page, type="number")
    assert not inputs(page, type="radio")
    redirect_target(submit_form(buyer, page.form("/hold")))
    (booking,) = bookings_of(admin, event)
    assert [item["quantity"] for item in booking["items"]] == [1]


def test_one_place_among_several_is_a_choice_whose_first_free_option_is_chosen(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    pools = [places(code="hall", capacity=1, tariffs=None), places(code="online", tariffs=None)]
    event = publish_event(admin, free_event(pools=pools))
    assert order(buyer, event).fields["choice"] == "0.0"
    expect_ok(post_hold(admin, event, items=[{"pool": "hall"}]), 201)
    page = get_page(buyer, f"/e/{event}")
    assert len(inputs(page, type="radio", name="choice")) == 2
    assert page.form("/hold").fields["choice"] == "1.0"
    redirect_target(submit_form(buyer, page.form("/hold")))
    assert {booking["items"][0]["pool"] for booking in bookings_of(admin, event)} == {"hall", "online"}


def test_the_calendar_shows_days_then_slots_then_tariffs(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, slot_event(timezone="Europe/Madrid"))
    page = get_page(buyer, f"/e/{event}")
    assert "Tuesday, March 2, 2027" in page.text, "half past eleven in UTC is the next day in Madrid"
    assert "12:30 AM Tour 1 From €5.00 3 left" in page.text.replace("\u202f", " ")
    assert "Tour 2" not in page.text
    assert not inputs(page, type="number")
    (day,) = page.links("day=2027-03-04#")
    page = get_page(buyer, day.partition("#")[0])
    (slot,) = page.links("slot=s3")
    page = get_page(buyer, slot.partition("#")[0])
    assert len(inputs(page, type="number")) == 2
    redirect_target(submit_form(buyer, page.form("/hold"), quantity__2__0="2", quantity__2__1="1"))
    (booking,) = bookings_of(admin, event)
    assert {(item["pool"], item["tariff"], item["quantity"]) for item in booking["items"]} == {
        ("s3", "adult", 2),
        ("s3", "child", 1),
    }
    page = get_page(buyer, f"/e/{event}?day=2027-03-04")
    assert "Sold out" in page.text
    assert not page.links("slot=")


def test_a_calendar_of_many_days_shows_one_month(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, slot_event(count=60))
    page = get_page(buyer, f"/e/{event}")
    assert len([link for link in page.links("day=2027-03-") if "slot=" not in link]) == 31
    assert "April 2027" not in page.text
    (april,) = page.links("day=2027-04-")
    page = get_page(buyer, april.partition("#")[0])
    assert "April 2027" in page.text
    assert page.links("day=2027-03-01#")
    for wrong in ("day=2027-13-99", "day=x&slot=nothing", "slot=s3&day=2020-01-01", "day=&slot="):
        get_page(buyer, f"/e/{event}?{wrong}")


def test_a_thousand_slots_make_a_page_with_few_elements(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    start = datetime(2027, 3, 1, 8, 0, tzinfo=UTC)
    pools = [
        {"code": f"s{n}", "capacity": 3, "starts_at": (start + timedelta(hours=n)).isoformat()} for n in range(1000)
    ]
    page = get_page(buyer, f"/e/{publish_event(admin, example_event(pools=pools))}")
    assert len(page.tags) < 500
    assert len(page.data["pools"]) == 1000


def test_every_tariff_of_an_event_fits_into_its_form(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=[places(code=f"p{n}") for n in range(1000)]))
    form = order(buyer, event)
    assert len(form.fields) > 1000
    redirect_target(submit_form(buyer, form, quantity__999__0="1"))


def test_a_form_cannot_ask_for_more_units_than_a_booking_can_have(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    """Otherwise a small form would make the server look at a million answers."""
    tariffs = [{"code": f"t{n}", "price": 100} for n in range(20)]
    questions = [{"code": "name", "label": "Name", "per": "unit"}]
    event = publish_event(
        admin, example_event(pools=[{"code": "p", "capacity": 10_000, "tariffs": tariffs}], questions=questions)
    )
    many = {f"quantity__0__{n}": "9999" for n in range(20)}
    answer = submit_form(buyer, order(buyer, event), **many, asked=str(20 * 9999))
    assert parse_page(answer, 422)
    assert bookings_of(admin, event) == []


def test_two_slots_are_shown_with_their_times(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    page = get_page(buyer, f"/e/{publish_event(admin, slot_event(count=2))}")
    assert "Monday, March 1, 2027, 11:30 PM" in page.text.replace("\u202f", " ")
    assert len(inputs(page, type="number")) == 4
    assert not page.links("day=")


def test_a_slot_that_has_begun_or_whose_sales_are_closed_cannot_be_chosen(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    today = seconds_from_now(3600)
    pools = [
        places(code="begun", starts_at=seconds_from_now(-60)),
        places(code="closed", starts_at=today, sales_close_at=seconds_from_now(-60)),
        places(code="later", starts_at=today, sales_open_at=seconds_from_now(600)),
        places(code="free", starts_at=today),
    ]
    event = publish_event(admin, example_event(pools=pools, starts_at=seconds_from_now(-60)))
    days = {link.partition("#")[0] for link in get_page(buyer, f"/e/{event}").links("day=")}
    pages = [get_page(buyer, day) for day in days | {f"/e/{event}"}]
    text = " ".join(page.text for page in pages)
    assert {link.partition("slot=")[2] for page in pages for link in page.links("#slot")} == {"free#slot"}
    for words in ("Already started", "Sales closed", "Opens "):
        assert words in text, words
    form = get_page(buyer, f"/e/{event}?slot=free").form("/hold")
    for n, refusal in enumerate(["Sales have closed.", "Sales have closed.", "Sales haven't opened yet."]):
        assert refusal in parse_page(submit_form(buyer, form, **{f"quantity__{n}__0": "1"}), 409).text
    assert bookings_of(admin, event) == []


def test_before_sales_open_the_page_says_when_and_has_no_form(
    server: Server, admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event(sales_open_at="2027-03-01T10:00:00Z", timezone="Europe/Madrid"))
    page = get_page(buyer, f"/e/{event}")
    assert "Be here on Monday, March 1, 2027, 11:00 AM (Central European Standard Time)." in page.text.replace(
        "\xa0", " "
    )
    assert not page.has_form("/hold")
    assert page.data["sale"]["state"] == "soon"
    assert not [tag for tag, attributes in page.tags if attributes.get("http-equiv")], "too far away to reload"
    assert "La venta empieza pronto" in get_page(spanish_buyer, f"/e/{event}").text


def test_a_browser_without_scripts_loads_the_page_again_when_sales_open(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event(sales_open_at=seconds_from_now(100)))
    page = get_page(buyer, f"/e/{event}")
    (seconds,) = [attributes["content"] for _, attributes in page.tags if attributes.get("http-equiv") == "refresh"]
    assert 100 < int(seconds or 0) <= 106


def test_a_form_from_before_the_opening_or_after_the_close_is_refused_with_the_time(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    form = order(buyer, event)
    expect_ok(admin.patch(f"/v1/events/{event}", json={"sales_open_at": "2027-03-01T10:00:00Z"}))
    early = parse_page(submit_form(buyer, form, quantity__1__0="1"), 409)
    assert "Sales haven't opened yet. They open on Monday, March 1, 2027, 10:00 AM" in early.text.replace("\xa0", " ")
    closed = {"sales_open_at": None, "sales_close_at": seconds_from_now(-1)}
    expect_ok(admin.patch(f"/v1/events/{event}", json=closed))
    late = parse_page(submit_form(buyer, form, quantity__1__0="1"), 409)
    assert "Sales have closed." in late.text
    assert not late.has_form("/hold")
    assert "Sales have closed." in get_page(buyer, f"/e/{event}").text


def test_the_form_asks_what_the_event_asks(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    contact = {"name": "required", "email": "none", "phone": "optional"}
    questions = [
        {"code": "diet", "label": "What do you eat?", "kind": "choice", "choices": ["All", "Vegan"], "required": True},
        {"code": "talk", "label": "A talk?", "kind": "yes_no", "required": True},
        {"code": "note", "label": "Anything else?"},
    ]
    event = publish_event(admin, free_event(contact=contact, questions=questions))
    page = get_page(buyer, f"/e/{event}")
    (name,), (phone,) = inputs(page, name="name"), inputs(page, name="phone")
    assert ("required" in name, name["autocomplete"]) == (True, "name")
    assert ("required" in phone, phone["autocomplete"], phone["type"]) == (False, "tel", "tel")
    assert not inputs(page, name="email")
    typed = {"name": "Ada", "phone": "0034 (911) 23-45.67", "answer__diet": "Vegan", "answer__talk": "no"}
    redirect_target(submit_form(buyer, page.form("/hold"), **typed))
    (booking,) = bookings_of(admin, event)
    assert booking["contact"] == {"name": "Ada", "email": None, "phone": "+34911234567"}
    assert booking["answers"] == {"diet": "Vegan", "talk": False}


def test_errors_come_back_next_to_their_fields_and_keep_what_was_typed(
    server: Server, admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    contact = {"name": "required", "phone": "required"}
    questions = [{"code": "note", "label": "Why?", "required": True}, {"code": "ok", "label": "OK?", "kind": "yes_no"}]
    event = publish_event(admin, example_event(contact=contact, questions=questions))
    typed = {"quantity__1__1": "3", "email": "ada@example.org", "phone": "911 234 567", "answer__ok": "yes"}
    form = order(buyer, event)
    page = parse_page(submit_form(buyer, form, **typed, seats='[{"seat": "A-5", "tariff": "full"}]'), 422)
    assert "Please correct the marked fields." in page.text
    assert "Please start with + and the country code" in page.text
    for name, is_wrong in {"name": True, "phone": True, "email": False, "answer.note": True}.items():
        (field,) = inputs(page, name=name)
        assert (field.get("aria-invalid") == "true") is is_wrong, name
        assert f"{field['id']}-error" in (field["aria-describedby"] or "").split(), name
    kept = page.form("/hold").fields
    assert kept["quantity.1.1"] == "3"
    assert kept["seats"] == '[{"seat": "A-5", "tariff": "full"}]'
    assert (kept["email"], kept["phone"], kept["answer.ok"]) == ("ada@example.org", "911 234 567", "yes")
    missing = parse_page(submit_form(buyer, page.form("/hold"), phone="+34911234567"), 422)
    assert "Please fill in the marked fields." in missing.text
    missing = parse_page(submit_form(buyer, missing.form("/hold"), name="Ada"), 422)
    assert "Please answer the marked questions." in missing.text
    redirect_target(submit_form(buyer, missing.form("/hold"), answer__note="Because"))
    (booking,) = bookings_of(admin, event)
    assert sum(item["quantity"] for item in booking["items"]) == 4
    page = parse_page(submit_form(spanish_buyer, order(spanish_buyer, event), quantity__1__0="1", phone="x"), 422)
    assert "Corrige los campos marcados." in page.text
    assert "Empieza con + y el código de país" in page.text


def test_scripts_get_the_errors_by_field(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, free_event(contact={"name": "required"}))
    answer = submit_form(buyer, order(buyer, event), SCRIPT, email="nobody")
    assert (answer.status_code, answer.json()["code"]) == (422, "wrong_fields")
    assert set(answer.json()["errors"]) == {"name", "email"}


def guests_event(**changes: Any) -> dict[str, Any]:
    unit = {"code": "guest", "label": "Who is coming?", "per": "unit", "required": True}
    return example_event(**{"questions": [unit], "contact": {"name": "required"}, **changes})


def test_without_scripts_the_questions_about_each_ticket_come_after_the_choice(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, guests_event())
    details = parse_page(submit_form(buyer, order(buyer, event), quantity__1__0="2", quantity__1__1="1", name="Ada"))
    for text in ("2 \u00d7 full", "1 \u00d7 child", "Ticket 1 · full", "Ticket 2 · full", "Ticket 3 · child"):
        assert text in details.text, text
    assert details.form("/hold").fields["name"] == "Ada"
    assert bookings_of(admin, event) == []
    answers = {f"answer.guest#{n}": name for n, name in enumerate(("Ada", "", "Cy"), 1)}
    form = details.form("/hold")
    form.fields |= answers
    again = parse_page(submit_form(buyer, form), 422)
    marked = [field["name"] for field in inputs(again) if field.get("aria-invalid")]
    assert marked == ["answer.guest#2"]
    form = again.form("/hold")
    assert form.fields["answer.guest#3"] == "Cy"
    form.fields["answer.guest#2"] = "Ben"
    target = redirect_target(submit_form(buyer, form))
    assert redirect_target(submit_form(buyer, form)) == target, "the same form is the same hold"
    (booking,) = bookings_of(admin, event)
    assert booking["answers"] == {"guest": ["Ada", "Ben", "Cy"]}
    assert booking["contact"]["name"] == "Ada"


def test_the_best_seats_come_with_the_same_questions(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, guests_event(questions=[]))
    (form,) = [form for form in get_page(buyer, f"/e/{event}").forms if "best_pool" in form.fields]
    details = parse_page(submit_form(buyer, form))
    assert "2 \u00d7 full · Stalls" in details.text
    wrong = parse_page(submit_form(buyer, details.form("/hold")), 422)
    assert "Please fill in the marked fields." in wrong.text
    redirect_target(submit_form(buyer, wrong.form("/hold"), name="Ada"))
    (booking,) = bookings_of(admin, event)
    assert [item["seat"][0] for item in booking["items"]] == ["A", "A"]


def test_more_tickets_than_a_form_can_ask_about_are_refused(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, guests_event(policy={"max_unpaid_units_per_user": None}))
    refused = parse_page(submit_form(buyer, order(buyer, event), quantity__1__0="401"), 422)
    assert "You can book up to 400 at a time." in refused.text


def test_a_buyer_who_already_has_a_seat_is_led_to_their_booking(
    server: Server, admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    form = order(buyer, event)
    own = redirect_target(submit_form(buyer, form, seats='[{"seat": "A-5"}]'))
    again = order(buyer, event)
    assert redirect_target(submit_form(buyer, again, seats='[{"seat": "A-5"}]')) == own, "the same seat again"
    expect_ok(post_hold(admin, event, items=[{"seat": "A-9"}]), 201)
    seats = '[{"seat": "A-5"}, {"seat": "A-9"}, {"seat": "A-12"}]'
    page = parse_page(submit_form(buyer, again, seats=seats), 409)
    assert "Sorry, someone just took A-9. You already hold A-5. Continue to payment" in page.text
    assert own in page.links()
    answer = submit_form(buyer, again, SCRIPT, seats='[{"seat": "A-5"}, {"seat": "A-12"}]').json()
    assert (answer["text"], answer["url"], answer["link"]) == ("You already hold A-5.", own, "Continue to payment")
    expect_ok(admin.post(f"/v1/bookings/{own.removeprefix('/b/')}/confirm"))
    page = parse_page(submit_form(buyer, again, seats='[{"seat": "A-5"}, {"seat": "A-12"}]'), 409)
    assert "You already have A-5. See your booking" in page.text
    theirs = parse_page(submit_form(spanish_buyer, order(spanish_buyer, event), seats='[{"seat": "A-5"}]'), 409)
    assert "Lo sentimos, alguien acaba de tomar A-5." in theirs.text
    assert own not in theirs.links()


def test_a_second_place_for_the_same_worker_leads_to_the_first(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    pools = [places(code="day"), places(code="night")]
    event = publish_event(admin, shift_event(pools=pools))
    early = order(buyer, event)
    own = redirect_target(submit_form(buyer, early, choice="0.0"))
    assert redirect_target(submit_form(buyer, early, choice="0.0", key="another page")) == own
    answer = submit_form(buyer, early, SCRIPT, choice="1.0")
    assert (answer.status_code, answer.json()["code"]) == (409, "already_booked")
    assert answer.json()["text"] == "You already hold a spot."
    assert answer.json()["url"] == own
    page = parse_page(submit_form(buyer, early, choice="1.0"), 409)
    assert "You already hold a spot. Continue to payment" in page.text
    assert own in page.links()
    page = get_page(buyer, f"/e/{event}")
    assert "You already hold a spot. Continue to payment" in page.text
    assert not page.has_form("/hold")


def test_a_buyer_at_the_limit_is_led_to_their_booking(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"max_units_per_user": 3}))
    own = hold_on_page(buyer, event, quantity__1__0="2")
    page = parse_page(submit_form(buyer, order(buyer, event), quantity__1__1="2"), 409)
    assert "The limit is 3 per person, including what you already have. Continue to payment" in page.text
    assert own in page.links()


def test_a_booking_has_as_many_units_as_the_event_allows(
    server: Server, admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event(policy={"min_units": 2, "max_units": 4}))
    page = get_page(buyer, f"/e/{event}")
    assert "You can book 2 to 4 at a time." in page.text
    assert [field["max"] for field in inputs(page, type="number")] == ["4", "4"]
    for quantity in ("1", "5"):
        refused = parse_page(submit_form(buyer, page.form("/hold"), quantity__1__0=quantity), 422)
        assert "Please choose a different number. You can book 2 to 4 at a time." in refused.text
    refused = parse_page(submit_form(spanish_buyer, order(spanish_buyer, event), quantity__1__0="1"), 422)
    assert "Elige otra cantidad. Puedes reservar de 2 a 4 a la vez." in refused.text


def test_a_child_needs_a_companion(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, slot_event())
    page = get_page(buyer, f"/e/{event}?slot=s2")
    assert "Only together with another ticket" in page.text
    refused = parse_page(submit_form(buyer, page.form("/hold"), quantity__1__1="1"), 422)
    assert "Some of these tickets need a companion." in refused.text
    assert refused.form("/hold").fields["quantity.1.1"] == "1", "the slot is still chosen"


def test_the_facts_of_a_shift_are_a_list(
    server: Server, admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    event = publish_event(admin, shift_event(shift=SHIFT))
    text = get_page(buyer, f"/e/{event}").text
    for fact in (
        "Date Friday, March 5, 2027",
        "Working hours 06:00 to 14:00",
        "Pay €112.00",
        "Service fee €5.00",
        "Food Lunch",
        "Address Dock 4",
        "Buses 7 and 21",
        "Order number 1042",
        "Good to know Bring gloves.",
    ):
        assert fact in text, fact
    assert "Salario 112,00 €" in get_page(spanish_buyer, f"/e/{event}").text.replace("\xa0", " ")
    hourly = publish_event(admin, shift_event(shift={"salary": "15 € an hour"}, title="Hourly"))
    assert "Pay 15 € an hour" in get_page(buyer, f"/e/{hourly}").text


def test_the_address_of_a_shift_is_the_place_of_its_event(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, shift_event(shift={"address": "Dock 4"}, title="At the docks"))
    (description,) = [
        attributes["content"]
        for tag, attributes in get_page(buyer, f"/e/{event}").tags
        if attributes.get("name") == "description"
    ]
    assert "Dock 4" in (description or "")


def test_a_guest_with_a_late_slot_keeps_their_session_until_it_is_over(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(
        admin, slot_event(count=3, pools=[places(code="far", starts_at=seconds_from_now(200 * 86_400))])
    )
    response = submit_form(buyer, order(buyer, event), quantity__0__0="1")
    redirect_target(response)
    max_age = response.headers["set-cookie"].partition("Max-Age=")[2].partition(";")[0]
    assert int(max_age) > 200 * 86_400
