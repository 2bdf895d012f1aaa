"""Everything buyers can see and do without JavaScript, from the list of events to their tickets."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import icalendar
import pytest

import holdfast
from holdfast.runtime import ids
from tests.support.harness import (
    Org,
    Server,
    example_event,
    fresh_database,
    publish_event,
    query,
    running_server,
    wait_until,
)
from tests.support.html_client import (
    Page,
    get_page,
    hold_on_page,
    new_visitor,
    parse_page,
    pay_in_sandbox,
    redirect_target,
    submit_file,
    submit_form,
)
from tests.support.http_assertions import expect_ok
from tests.support.resources import TINY_PNG, reviewed_event
from tests.support.sample_files import MIB, jpeg_of_size
from tests.support.ticket_reader import read_qr_codes, render_svg

STATIC = Path(holdfast.__file__).parent / "web" / "static"
STANDING = {"quantity__1__0": "2"}
PLACES: list[dict[str, Any]] = [{"code": "places", "capacity": 3, "tariffs": [{"code": "full", "price": 1000}]}]
FREE: list[dict[str, Any]] = [{"code": "places", "capacity": 3, "tariffs": [{"code": "full", "price": 0}]}]
ONE = {"quantity__0__0": "1"}
AWAITED_SECONDS = 30


@pytest.fixture(scope="module")
def org(server: Server) -> Org:
    """An org with a known slug, for the addresses of its pages."""
    return Org(server.database_url, "acme")


@pytest.fixture
def buyer(server: Server) -> Iterator[httpx.Client]:
    with new_visitor(server) as client:
        yield client


@pytest.fixture
def comprador(server: Server) -> Iterator[httpx.Client]:
    with new_visitor(server, "es-CO,en;q=0.5") as client:
        yield client


def _run_out(server: Server, booking: str) -> None:
    """Expire a hold without waiting."""
    named = ids.parse_booking_id(booking.removeprefix("/b/"))
    assert named is not None
    statement = "UPDATE booking SET expires_at = holdfast_now() - interval '1 second' WHERE event_id = $1 AND id = $2"
    query(server.database_url, statement, *named)


def _id(booking: str) -> str:
    return booking.removeprefix("/b/").partition("?")[0]


def _bookings(admin: httpx.Client, event: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = expect_ok(admin.get("/v1/bookings", params={"event": event}))["items"]
    return items


def _title(page: Page) -> str:
    return page.text.partition(" · ")[0]


def test_the_start_page_shows_no_org_the_only_org_or_all_orgs(postgres: str) -> None:
    with (
        fresh_database(postgres) as database,
        running_server(database, workers=1) as server,
        new_visitor(server) as buyer,
    ):
        assert "Nothing on sale right now" in get_page(buyer, "/").text
        one = Org(database, "one")
        with server.client(one.headers()) as clerk:
            assert "Nothing on sale right now" in get_page(buyer, "/").text
            expect_ok(clerk.post("/v1/events", json=example_event(title="Not yet")), 201)
            assert "Nothing on sale right now" in get_page(buyer, "/o/one").text
            publish_event(clerk, example_event(title="Of the first"))
        start = get_page(buyer, "/")
        assert "Of the first" in start.text
        assert "Not yet" not in start.text
        assert start.links("/o/one/bookings")
        with server.client(Org(database, "two").headers()) as clerk:
            publish_event(clerk, example_event(title="Of the second", starts_at="2027-01-01T19:00:00Z"))
        start = get_page(buyer, "/")
        assert 0 < start.text.index("Of the second") < start.text.index("Of the first")
        assert not start.links("/bookings")
        assert "Of the second" not in get_page(buyer, "/o/one").text
        assert "Of the first" not in get_page(buyer, "/o/two").text


def test_pages_promise_emails_only_if_there_is_a_mail_server(server: Server, product: Server) -> None:
    for sends, shop in ((True, server), (False, product)):
        with shop.client(Org(shop.database_url).headers()) as admin, new_visitor(shop) as buyer:
            event = publish_event(admin, example_event(preset="registration", pools=FREE))
            page = get_page(buyer, f"/e/{event}")
            assert ("We'll email your tickets here." in page.text) is sends
            booking = redirect_target(submit_form(buyer, page.form("/hold"), **ONE, email="ada@example.org"))
            confirmed = get_page(buyer, booking).text
            assert "You're in!" in confirmed
            assert ("We've emailed you a copy." in confirmed) is sends
            assert ("we'll email you too." in get_page(buyer, "/paid").text) is sends


def test_a_missing_page_is_shown_in_the_readers_language(
    server: Server, admin: httpx.Client, buyer: httpx.Client, comprador: httpx.Client
) -> None:
    draft = expect_ok(admin.post("/v1/events", json=example_event(title="Secret plans")), 201)["id"]
    absent = ids.format_event_id(bytes(16))
    paths = ["/o/nobody", "/o/nobody/bookings", f"/e/{absent}", f"/e/{draft}", "/e/x", f"/e/{draft}/layout.json"]
    paths += [
        "/b/x",
        f"/b/{ids.format_booking_id(bytes(16), bytes(16))}",
        f"/b/{ids.format_booking_id(bytes(16), bytes(16))}/state",
    ]
    for path in paths:
        assert _title(get_page(buyer, path, 404)) == "We couldn't find that page", path
        assert _title(get_page(comprador, path, 404)) == "No encontramos esta página", path
    assert get_page(buyer, f"/e/{draft}", 404).text == get_page(buyer, f"/e/{absent}", 404).text


def test_a_booking_is_shown_to_the_browser_that_made_it_and_to_no_other(
    server: Server, admin: httpx.Client, buyer: httpx.Client, comprador: httpx.Client
) -> None:
    event = publish_event(admin, reviewed_event(title="Private matters"))
    booking = hold_on_page(buyer, event, **STANDING)
    parsed = ids.parse_booking_id(_id(booking))
    assert parsed is not None
    absent = f"/b/{ids.format_booking_id(parsed[0], bytes(16))}"
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    ticket = get_page(buyer, booking).links("/ticket.pdf")[0].partition("/tickets/")[2].partition("/")[0]
    own = hold_on_page(comprador, event, **STANDING)
    with new_visitor(server, "es") as never_here:
        for stranger in (never_here, comprador):
            for file in ("", "/state", "/calendar.ics", f"/tickets/{ticket}/qr.svg", f"/tickets/{ticket}/ticket.pdf"):
                theirs = get_page(stranger, booking + file, 404)
                assert theirs.text == get_page(stranger, absent + file, 404).text
                assert "Private matters" not in theirs.text
    assert comprador.get(f"{own}/tickets/{ticket}/qr.svg").status_code == 404
    token = {"form_token": get_page(comprador, f"/e/{event}").form("/hold").fields["form_token"]}
    for verb in ("extend", "cancel", "pay"):
        origin = {"Origin": server.url}
        assert comprador.post(f"{booking}/{verb}", data=token, headers=origin).status_code == 404
    answer = comprador.post(f"{booking}/receipt", data=token, files={"file": ("r.png", TINY_PNG)})
    assert answer.status_code == 404
    assert expect_ok(admin.get(f"/v1/bookings/{_id(booking)}"))["status"] == "confirmed"


def test_a_buyer_without_script_goes_from_the_event_to_the_tickets(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(
        admin, example_event(title="All the way", details={"address": "1 Main St", "doors_open": "at seven"})
    )
    shown = get_page(buyer, "/o/acme")
    assert f"/e/{event}" in shown.links("/e/")
    page = get_page(buyer, f"/e/{event}")
    for text in (
        "All the way",
        "Friday, March 5, 2027, 7:00 PM",
        "1 Main St",
        "Doors open: at seven",
        "€15.00",
        "500 left",
    ):
        assert text in page.text.replace("\xa0", " "), text
    booking = redirect_target(submit_form(buyer, page.form("/hold"), **STANDING, email="ada@example.org"))
    held = get_page(buyer, booking)
    assert _title(held) == "All the way"
    for text in ("We're holding 2 spots for you", "standing · full", "€30.00", "Tax (19%) €5.70", "Total €35.70"):
        assert text in held.text, text
    (found,) = _bookings(admin, event)
    assert (found["email"], found["language"], found["total"]) == ("ada@example.org", "en", 3570)
    assert found["user"].startswith("guest-")
    assert "2 spots held for you" in get_page(buyer, f"/e/{event}").text
    back = pay_in_sandbox(buyer, booking)
    assert back.startswith(f"{booking}?payment=pay_")
    wait_until(lambda: "You're in!" in get_page(buyer, back).text, AWAITED_SECONDS)
    page = get_page(buyer, back)
    assert "Here are your 2 tickets" in page.text
    assert "We've emailed you a copy." in page.text
    assert len(page.links("/ticket.pdf")) == 2
    assert "Confirmed" in get_page(buyer, "/o/acme/bookings").text


def test_tickets_come_as_a_qr_code_a_pdf_and_a_calendar_entry(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(
        admin, example_event(title="With tickets", ends_at="2027-03-05T21:00:00Z", details={"address": "Here"})
    )
    booking = hold_on_page(buyer, event, **STANDING)
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    page = get_page(buyer, booking)
    codes = [ticket["code"] for ticket in admin.get(f"/v1/bookings/{_id(booking)}/tickets").json()]
    pictures = [attributes["src"] or "" for tag, attributes in page.tags if tag == "img"]
    assert len(pictures) == len(codes) == 2
    for address, code in zip(pictures, codes, strict=True):
        drawn = buyer.get(address)
        assert (drawn.status_code, drawn.headers["content-type"]) == (200, "image/svg+xml")
        assert read_qr_codes(render_svg(ElementTree.fromstring(drawn.content))) == [code]
    paper = buyer.get(page.links("/ticket.pdf")[0])
    assert paper.headers["content-type"] == "application/pdf"
    assert paper.content.startswith(b"%PDF-")
    date = buyer.get(page.links("/calendar.ics")[0])
    assert date.headers["content-type"] == "text/calendar; charset=utf-8"
    (entry,) = icalendar.Calendar.from_ical(date.content).events
    assert (entry["summary"], entry["location"]) == ("With tickets", "Here")
    assert entry.start.isoformat() == "2027-03-05T19:00:00+00:00"


def test_a_ticket_that_was_used_is_shown_as_used(
    server: Server, org: Org, admin: httpx.Client, buyer: httpx.Client
) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    assert "Used" not in get_page(buyer, booking).text
    code = admin.get(f"/v1/bookings/{_id(booking)}/tickets").json()[0]["code"]
    expect_ok(admin.post("/v1/checkins", json={"code": code}))
    assert get_page(buyer, booking).text.count("Used") == 1


def test_more_time_can_be_had_near_the_end_and_as_far_as_the_policy_goes(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    policy = {"hold_seconds": 60, "extend_seconds": 120, "max_hold_seconds": 100}
    booking = hold_on_page(buyer, publish_event(admin, example_event(policy=policy)), **STANDING)
    page = get_page(buyer, booking)
    assert 0 < page.data["secondsLeft"] <= 60
    assert redirect_target(submit_form(buyer, page.form("/extend"))) == booking
    page = get_page(buyer, booking)
    assert 60 < page.data["secondsLeft"] <= 100
    assert "This hold can't be extended any further." in page.text
    assert not page.has_form("/extend")


def test_no_extension_is_offered_at_the_limit(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event(policy={"extend_seconds": 0})), **STANDING)
    page = get_page(buyer, booking)
    assert "This hold can't be extended any further." in page.text
    assert not page.has_form("/extend")


def test_the_script_of_a_booking_page_gets_all_its_data(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    policy = {"hold_seconds": 90, "extend_seconds": 45}
    booking = hold_on_page(buyer, publish_event(admin, example_event(policy=policy)), **STANDING)
    data = get_page(buyer, booking).data
    assert (data["totalSeconds"], data["extendSeconds"]) == (90, 45)
    state = expect_ok(buyer.get(data["stateUrl"]))
    assert state == {name: data[name] for name in state} | {"secondsLeft": state["secondsLeft"]}
    assert (state["status"], state["payment"]) == ("held", None)
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    later = expect_ok(buyer.get(data["stateUrl"]))
    assert (later["status"], later["secondsLeft"]) == ("confirmed", None)
    assert later["version"] > state["version"]


@pytest.mark.parametrize("script", ["booking.js", "event.js", "event_map.js", "order.js", "page.js"])
def test_every_element_a_script_needs_is_on_its_page(
    server: Server, admin: httpx.Client, buyer: httpx.Client, script: str
) -> None:
    """Only a buyer would notice a name that one side has changed."""
    event = publish_event(admin, example_event())
    page = get_page(buyer, f"/e/{event}")
    if script == "booking.js":
        page = get_page(buyer, redirect_target(submit_form(buyer, page.form("/hold"), **STANDING)))
    source = (STATIC / script).read_text()
    told = page.data
    assert set(re.findall(r"\bpage\.(\w+)", source)) - {"js"} <= set(told)
    assert set(re.findall(r"\bsay\(\"(\w+)\"", source)) <= {key.removesuffix(".many") for key in told["texts"]}


def test_the_best_seats_are_had_without_a_script(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    (form,) = [form for form in get_page(buyer, f"/e/{event}").forms if "best_pool" in form.fields]
    assert (form.fields["best_quantity"], form.fields["best_adjacent"]) == ("2", "yes")
    booking = redirect_target(submit_form(buyer, form, best_quantity="3"))
    (found,) = _bookings(admin, event)
    seats = [item["seat"] for item in found["items"]]
    assert len({seat[0] for seat in seats}) == 1
    assert all(seat in get_page(buyer, booking).text for seat in seats)
    assert "3 spots held for you" in get_page(buyer, f"/e/{event}").text
    assert get_page(buyer, f"/e/{event}").data["mine"] == seats


def test_the_best_seats_of_another_area_are_had_at_its_own_price(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    """Without a script the prices to choose from stay those of the first area."""
    pools = [
        {"code": name, "tariffs": [{"code": f"{name}-full", "price": price}], "seats": {"rows": [name], "numbers": 5}}
        for name, price in (("stalls", 3000), ("balcony", 2000))
    ]
    event = publish_event(admin, example_event(pools=pools))
    (form,) = [form for form in get_page(buyer, f"/e/{event}").forms if "best_pool" in form.fields]
    assert form.fields["best_tariff"] == "stalls-full"
    redirect_target(submit_form(buyer, form, best_pool="balcony"))
    (found,) = _bookings(admin, event)
    assert (found["subtotal"], {item["tariff"] for item in found["items"]}) == (4000, {"balcony-full"})


def test_too_many_of_the_best_seats_are_refused_with_a_reason(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    pools = [{"code": "box", "tariffs": [{"code": "full", "price": 1}], "seats": {"rows": ["A", "B"], "numbers": 2}}]
    event = publish_event(admin, example_event(pools=pools))
    (form,) = [form for form in get_page(buyer, f"/e/{event}").forms if "best_pool" in form.fields]
    refused = parse_page(submit_form(buyer, form, best_quantity="3"), 409)
    assert "Sorry, we couldn't find that many seats." in refused.text
    assert _bookings(admin, event) == []


def test_a_free_booking_is_confirmed_at_once_and_can_be_cancelled(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event(preset="registration", pools=FREE))
    page = get_page(buyer, f"/e/{event}")
    assert "Book now" in page.text
    booking = redirect_target(submit_form(buyer, page.form("/hold"), **ONE))
    page = get_page(buyer, booking)
    assert "You're in!" in page.text
    assert "Total Free" in page.text
    again = parse_page(submit_form(buyer, get_page(buyer, f"/e/{event}").form("/hold"), **ONE), 409)
    assert "You already have a booking for this event." in again.text
    assert redirect_target(submit_form(buyer, page.form("/cancel"))) == booking
    assert "This booking is no longer valid." in get_page(buyer, booking).text
    assert redirect_target(submit_form(buyer, page.form("/cancel"))) == booking
    hold_on_page(buyer, event, **ONE)


def test_a_free_hold_asks_for_confirmation(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event(pools=FREE)), **ONE)
    page = get_page(buyer, booking)
    assert "Nothing to pay" in page.text
    assert redirect_target(submit_form(buyer, page.form("/pay"))) == booking
    assert "You're in!" in get_page(buyer, booking).text


def test_a_paid_booking_cannot_be_cancelled_on_the_page(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
    form = get_page(buyer, booking).form("/cancel")
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    assert not get_page(buyer, booking).has_form("/cancel")
    refused = parse_page(submit_form(buyer, form), 409)
    assert "This booking is already confirmed." in refused.text
    assert "You're in!" in refused.text


def test_cancelled_places_are_free_at_once(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=PLACES))
    booking = hold_on_page(buyer, event, quantity__0__0="3")
    assert "Sold out" in get_page(buyer, f"/e/{event}").text
    assert redirect_target(submit_form(buyer, get_page(buyer, booking).form("/cancel"))) == booking
    assert "This booking is no longer valid." in get_page(buyer, booking).text
    assert "3 left" in get_page(buyer, f"/e/{event}").text
    refused = parse_page(buyer.post(f"{booking}/extend", data=_token(buyer, event)), 409)
    assert "This booking is already cancelled." in refused.text


def _token(client: httpx.Client, event: str) -> dict[str, str]:
    return {"form_token": get_page(client, f"/e/{event}").form("/hold").fields["form_token"]}


def test_an_unavailable_choice_shows_the_page_with_a_reason(
    server: Server, admin: httpx.Client, buyer: httpx.Client, comprador: httpx.Client
) -> None:
    event = publish_event(admin, example_event(pools=PLACES, policy={"max_units_per_user": 2}))
    form = get_page(buyer, f"/e/{event}").form("/hold")
    nothing = parse_page(submit_form(buyer, form), 422)
    assert "Choose at least one seat or spot first." in nothing.text
    assert nothing.has_form("/hold")
    limit = parse_page(submit_form(buyer, form, quantity__0__0="3"), 409)
    assert "The limit is 2 per person" in limit.text
    mail = parse_page(submit_form(buyer, form, **ONE, email="nobody"), 422)
    assert "including your email address." in mail.text
    redirect_target(submit_form(buyer, form, quantity__0__0="2"))
    short = parse_page(
        submit_form(comprador, get_page(comprador, f"/e/{event}").form("/hold"), quantity__0__0="2"), 409
    )
    assert "Lo sentimos, ya no quedan suficientes lugares." in short.text
    assert "Queda 1" in short.text
    assert len(_bookings(admin, event)) == 1


@pytest.mark.parametrize("quantity", ["-1", "1.5", "0x10", "99999", "1e3", "x", " ", "\0", "1" * 5000])
def test_an_invalid_number_of_places_is_refused(
    server: Server, admin: httpx.Client, buyer: httpx.Client, quantity: str
) -> None:
    event = publish_event(admin, example_event())
    for form in get_page(buyer, f"/e/{event}").forms:
        name = "best_quantity" if "best_pool" in form.fields else "quantity__1__0"
        assert submit_form(buyer, form, **{name: quantity}).status_code in (409, 422)
    assert _bookings(admin, event) == []


def test_an_area_that_is_full_can_be_neither_chosen_nor_had(
    server: Server, admin: httpx.Client, buyer: httpx.Client, comprador: httpx.Client
) -> None:
    event = publish_event(admin, example_event(pools=PLACES))
    early = get_page(comprador, f"/e/{event}").form("/hold")
    hold_on_page(buyer, event, quantity__0__0="3")
    page = get_page(comprador, f"/e/{event}")
    assert "Agotado" in page.text
    assert "quantity.0.0" not in page.form("/hold").fields
    assert (
        "Lo sentimos, ya no quedan suficientes lugares." in parse_page(submit_form(comprador, early, **ONE), 409).text
    )
    assert "Agotado" in get_page(comprador, "/o/acme").text


def test_a_taken_seat_is_explained_to_the_script_with_its_name(
    server: Server, admin: httpx.Client, buyer: httpx.Client, comprador: httpx.Client
) -> None:
    event = publish_event(admin, example_event(policy={"avoid_orphans": True}))
    script = {"Accept": "application/json"}
    form = get_page(buyer, f"/e/{event}").form("/hold")
    seats = '[{"seat": "A-5", "tariff": "full"}, {"seat": "A-6"}]'
    taken = submit_form(buyer, form, script, seats=seats)
    assert taken.headers["content-type"] == "application/json"
    document = expect_ok(taken, 201)
    assert set(document) == {"booking"}
    assert "A-5" in get_page(buyer, document["booking"]).text
    form = get_page(comprador, f"/e/{event}").form("/hold")
    refused = submit_form(comprador, form, script, seats='[{"seat": "A-5"}, {"seat": "A-4"}]')
    assert refused.status_code == 409
    text = "Lo sentimos, alguien acaba de tomar A-5."
    assert refused.json() == {"code": "seat_taken", "text": text, "conflicts": ["A-5"]}
    lonely = submit_form(comprador, form, script, seats='[{"seat": "A-8"}]')
    assert (lonely.status_code, lonely.json()["code"], lonely.json()["conflicts"]) == (409, "orphan_seat", ["A-7"])
    assert "A-7" in lonely.json()["text"]
    for wrong in ('[{"seat": 1}]', "[", "{}", '[{"seat": "A-1", "quantity": 2}]', "[[]]", '"A-1"', "null"):
        answer = submit_form(comprador, form, script, seats=wrong)
        assert answer.status_code == 422, wrong
        assert answer.json()["text"], wrong
    unknown = submit_form(comprador, form, script, seats='[{"seat": "Z-9"}]')
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_seat")
    assert unknown.json()["text"] == "Algo no funcionó. Inténtalo de nuevo."


def test_the_same_form_sent_many_times_at_once_is_one_booking(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    form = get_page(buyer, f"/e/{event}").form("/hold")
    with ThreadPoolExecutor(6) as threads:
        sent = [threads.submit(submit_form, buyer, form, **STANDING) for _ in range(6)]
        places = {redirect_target(each.result()) for each in sent}
    assert len(places) == 1
    assert len(_bookings(admin, event)) == 1


def test_another_choice_on_the_same_page_and_the_same_on_another_are_holds_of_their_own(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    form = get_page(buyer, f"/e/{event}").form("/hold")
    first = redirect_target(submit_form(buyer, form, **STANDING))
    second = redirect_target(submit_form(buyer, form, quantity__1__0="1"))
    third = hold_on_page(buyer, event, **STANDING)
    assert len({first, second, third}) == 3
    assert sum(item["quantity"] for booking in _bookings(admin, event) for item in booking["items"]) == 5


def test_the_same_pay_form_sent_many_times_is_one_payment(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
    form = get_page(buyer, booking).form("/pay")
    with ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(submit_form, buyer, form) for _ in range(4)]
        places = {redirect_target(each.result()) for each in sent}
    assert len(places) == 1
    assert len(expect_ok(admin.get(f"/v1/bookings/{_id(booking)}"))["payments"]) == 1


def test_a_failed_payment_says_so_and_can_be_retried(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
    back = pay_in_sandbox(buyer, booking, "fail")
    wait_until(lambda: "Your payment didn't go through" in get_page(buyer, back).text, AWAITED_SECONDS)
    back = pay_in_sandbox(buyer, booking)
    wait_until(lambda: "You're in!" in get_page(buyer, back).text, AWAITED_SECONDS)


def test_a_buyer_who_returns_before_the_notice_is_asked_to_wait(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
    back = pay_in_sandbox(buyer, booking, "never_answer")
    assert "Waiting for your payment to go through" in get_page(buyer, back).text
    assert "Waiting for your payment" not in get_page(buyer, booking).text


@pytest.mark.parametrize(
    "values", [{"provider": "gold"}, {"provider": ""}, {"provider": "receipt"}, {"provider": "ä\0\n" * 500}]
)
def test_an_unknown_payment_method_is_refused(
    server: Server, admin: httpx.Client, buyer: httpx.Client, values: dict[str, str]
) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
    form = get_page(buyer, booking).form("/pay")
    answer = submit_form(buyer, form, **values)
    page = parse_page(answer, answer.status_code)
    assert answer.status_code in (409, 422)
    assert "We're holding 2 spots for you" in page.text
    assert 'role="alert"' in answer.text


@pytest.mark.parametrize("key", ["", "x" * 5000, "ä\r\nx-a: b", "\0"])
def test_a_key_of_a_form_that_no_page_has_is_as_good_as_another(
    server: Server, admin: httpx.Client, buyer: httpx.Client, key: str
) -> None:
    event = publish_event(admin, example_event())
    booking = redirect_target(submit_form(buyer, get_page(buyer, f"/e/{event}").form("/hold"), **STANDING, key=key))
    form = get_page(buyer, booking).form("/pay")
    assert redirect_target(submit_form(buyer, form, key=key)) == redirect_target(submit_form(buyer, form, key=key))


def test_a_receipt_is_uploaded_reviewed_and_approved(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, reviewed_event())
    booking = hold_on_page(buyer, event, **STANDING, email="ada@example.org")
    form = get_page(buyer, booking).form("/receipt")
    assert redirect_target(submit_file(buyer, form, TINY_PNG)) == booking
    page = get_page(buyer, booking)
    assert "We're checking your receipt" in page.text
    assert "We'll email you" in page.text
    assert not page.has_form("/cancel")
    assert "Under review" in get_page(buyer, "/o/acme/bookings").text
    refused = parse_page(buyer.post(f"{booking}/cancel", data=_token(buyer, event)), 409)
    assert "We're already checking your receipt." in refused.text
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/approve"))
    assert "You're in!" in get_page(buyer, booking).text


def test_a_rejected_receipt_shows_the_reason(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    booking = hold_on_page(buyer, publish_event(admin, reviewed_event()), **STANDING)
    redirect_target(submit_file(buyer, get_page(buyer, booking).form("/receipt"), TINY_PNG))
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/reject", json={"reason": "It is of <last> year."}))
    page = get_page(buyer, booking)
    assert "Your receipt wasn't accepted" in page.text
    assert "It is of <last> year." in page.text


def test_a_file_that_is_no_receipt_is_refused_with_what_would_be_one(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    booking = hold_on_page(buyer, publish_event(admin, reviewed_event()), **STANDING)
    form = get_page(buyer, booking).form("/receipt")
    wrong = parse_page(submit_file(buyer, form, b"<script>alert(1)</script>"), 422)
    assert "JPEG, PNG, WebP, HEIC or PDF" in _alert(wrong)
    assert "e-mail" not in _alert(wrong)
    for answer in (submit_form(buyer, form), submit_file(buyer, form, b"")):
        assert "Choose a photo or PDF of the receipt first." in _alert(parse_page(answer, 422))
    two = [("file", ("a.png", TINY_PNG)), ("file", ("b.png", TINY_PNG))]
    assert buyer.post(form.action, data=form.fields, files=two).status_code in (400, 422)
    assert get_page(buyer, booking).data["status"] == "held"
    with new_visitor(server) as other:
        other.cookies = buyer.cookies
        page = parse_page(submit_file(other, form, jpeg_of_size(10 * MIB + 1)), 413)
        assert "That file is too large. The limit is 10 MB." in _alert(page)
    with new_visitor(server) as other:
        other.cookies = buyer.cookies
        assert "That file is too large" in parse_page(submit_file(other, form, jpeg_of_size(12 * MIB)), 413).text
    assert redirect_target(submit_file(buyer, form, jpeg_of_size(10 * MIB))) == booking


def _alert(page: Page) -> str:
    """What stands above the summary. The title of the page ends before it."""
    return page.text.partition(" · Your booking · ")[2].partition("Your booking")[0]


def test_no_page_asks_for_a_receipt_that_nobody_reviews(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    booking = hold_on_page(buyer, event, **STANDING)
    assert not get_page(buyer, booking).has_form("/receipt")
    answer = buyer.post(f"{booking}/receipt", data=_token(buyer, event), files={"file": ("r.png", TINY_PNG)})
    assert parse_page(answer, 409).data["status"] == "held"


def test_more_receipts_than_are_taken_are_refused_without_speaking_of_places(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, reviewed_event(policy={"review": "manual", "max_units_per_user": 4}))
    booking = hold_on_page(buyer, event, **STANDING)
    for number in range(20):
        expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/receipt", json={"file_ref": f"f-{number}"}))
    answer = buyer.post(f"{booking}/receipt", data=_token(buyer, event), files={"file": ("r.png", TINY_PNG)})
    page = parse_page(answer, 409)
    assert "None" not in page.text
    assert "That didn't work. Please try again." in _alert(page)


def test_an_expired_hold_says_so_and_frees_its_places(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, example_event(pools=PLACES))
    booking = hold_on_page(buyer, event, quantity__0__0="3")
    held = get_page(buyer, booking)
    redirect_target(submit_form(buyer, held.form("/pay")))
    late = get_page(buyer, booking)
    _run_out(server, booking)
    page = get_page(buyer, booking)
    assert "Your time ran out" in page.text
    assert "Did your payment go through anyway?" in page.text
    assert page.links(f"/e/{event}")
    assert page.data["status"] == "expired"
    for form in (late.form("/pay"), held.form("/extend"), held.form("/cancel")):
        refused = parse_page(submit_form(buyer, form), 410)
        assert "Sorry, your time ran out and the hold expired." in refused.text
    assert "3 left" in get_page(buyer, f"/e/{event}").text
    assert "Expired" in get_page(buyer, "/o/acme/bookings").text


def test_a_reason_code_is_shown_in_the_buyers_language(
    server: Server, admin: httpx.Client, comprador: httpx.Client
) -> None:
    booking = hold_on_page(comprador, publish_event(admin, example_event()), **STANDING)
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/refund", json={"reason": "refunded_by_provider"}))
    page = get_page(comprador, booking)
    assert "El proveedor de pagos reembolsó el pago." in page.text
    assert "refunded_by_provider" not in page.text


def test_pages_show_a_refunded_booking_and_a_cancelled_event(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    refunded, kept, held = (hold_on_page(buyer, event, **STANDING) for _ in range(3))
    for booking in (refunded, kept):
        expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    ticket = get_page(buyer, refunded).links("/ticket.pdf")[0]
    expect_ok(admin.post(f"/v1/bookings/{_id(refunded)}/refund", json={"reason": "You asked for it."}))
    page = get_page(buyer, refunded)
    assert "Booking refunded" in page.text
    assert "You asked for it." in page.text
    assert "This is no longer valid" in parse_page(buyer.get(ticket), 409).text
    form = get_page(buyer, f"/e/{event}").form("/hold")
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))
    assert "The event was cancelled." in get_page(buyer, kept).text
    assert "Booking cancelled" in get_page(buyer, held).text
    page = get_page(buyer, f"/e/{event}")
    assert "This event was cancelled." in page.text
    assert page.forms == []
    assert "This event was cancelled." in parse_page(submit_form(buyer, form, **STANDING), 409).text


def test_an_event_that_is_over_says_so(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, example_event(title="Long ago", starts_at="2020-01-01T00:00:00Z"))
    booking = hold_on_page(buyer, event, **STANDING)
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    expect_ok(admin.post(f"/v1/events/{event}/complete"))
    page = get_page(buyer, booking)
    assert "This event is over" in page.text
    assert len(page.links("/ticket.pdf")) == 2
    assert "This event is over." in get_page(buyer, f"/e/{event}").text
    assert f"/e/{event}" not in get_page(buyer, "/o/acme").links()
    assert "Long ago" in get_page(buyer, "/o/acme/bookings").text


def test_my_bookings_are_mine(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    assert "No bookings yet" in get_page(buyer, "/o/acme/bookings").text
    event = publish_event(admin, example_event(title="Mine"))
    booking = hold_on_page(buyer, event, **STANDING)
    assert get_page(buyer, "/o/acme/bookings").links("/b/") == [booking]
    with new_visitor(server) as other:
        assert "No bookings yet" in get_page(other, "/o/acme/bookings").text


def test_amounts_and_times_are_those_of_the_event_in_the_readers_language(
    server: Server, admin: httpx.Client, comprador: httpx.Client
) -> None:
    places = [{"code": "p", "name": "Turno", "capacity": 50_000, "tariffs": [{"code": "t", "price": 1_234_567_800}]}]
    event = publish_event(
        admin,
        example_event(
            currency="COP", tax_bps=750, timezone="America/Bogota", starts_at="2027-03-06T01:30:00Z", pools=places
        ),
    )
    page = get_page(comprador, f"/e/{event}")
    assert ("html", {"lang": "es"}) in page.tags
    text = page.text.replace("\xa0", " ")
    for part in (
        "viernes, 5 de marzo de 2027, 20:30",
        "hora estándar de Colombia",
        "Quedan 50.000",
        "12.345.678,00 COP",
    ):
        assert part in text, part
    booking = hold_on_page(comprador, event, **ONE)
    text = get_page(comprador, booking).text.replace("\xa0", " ")
    for part in ("Impuestos (7,5 %) 925.925,85 COP", "Total 13.271.603,85 COP", "Te guardamos 1 lugar"):
        assert part in text, part
    euros = publish_event(admin, example_event())
    assert "15,00 €" in get_page(comprador, f"/e/{euros}").text.replace("\xa0", " ")
    (found,) = _bookings(admin, event)
    assert found["language"] == "es"


def test_a_chosen_language_is_remembered(server: Server, buyer: httpx.Client) -> None:
    page = get_page(buyer, "/o/nobody?x=1", 404)
    (spanish,) = page.links("lang=es")
    assert spanish == "/o/nobody?x=1&lang=es"
    assert "No encontramos esta página" in get_page(buyer, spanish, 404).text
    assert "No encontramos esta página" in get_page(buyer, "/o/nobody", 404).text
    assert "We couldn't find that page" in get_page(buyer, "/o/nobody?lang=en", 404).text
    assert "We couldn't find that page" in get_page(buyer, "/o/nobody?lang=xx", 404).text


@pytest.mark.parametrize(
    ("accepted_languages", "language"),
    [("", "en"), ("es", "es"), ("de,es-MX;q=0.9,en;q=0.8", "es"), ("fr", "en"), ("EN-us,es", "en"), (";;,=", "en")],
)
def test_the_first_language_of_the_browser_that_is_spoken_here_is_taken(
    server: Server, accepted_languages: str, language: str
) -> None:
    with new_visitor(server, accepted_languages) as client:
        assert ("html", {"lang": language}) in get_page(client, "/o/nobody", 404).tags


def test_after_a_form_the_links_to_other_languages_lead_to_the_page_it_was_on(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    refused = parse_page(submit_form(buyer, get_page(buyer, f"/e/{event}").form("/hold")), 422)
    assert refused.links("lang=es") == [f"/e/{event}?lang=es"]


def test_a_person_is_shown_a_page_where_there_is_nothing_and_a_program_a_problem(server: Server) -> None:
    person, program = {"accept": "text/html,*/*;q=0.8"}, {"accept": "*/*"}
    shown = httpx.get(f"{server.url}/nowhere/at/all", headers=person)
    assert (shown.status_code, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
    for path, headers in (("/nowhere", program), ("/v1/nowhere", person)):
        told = httpx.get(f"{server.url}{path}", headers=headers)
        assert (told.status_code, told.headers["content-type"]) == (404, "application/problem+json")


def test_a_forms_address_that_is_loaded_again_leads_to_its_page(server: Server) -> None:
    answer = httpx.get(f"{server.url}/e/ev_1/hold")
    assert (answer.status_code, answer.headers["location"]) == (303, "/e/ev_1")
