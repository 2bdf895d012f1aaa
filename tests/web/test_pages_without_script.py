"""Everything buyers can see and do without JavaScript, from the list of events to their tickets."""

import re
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
WAIT_SECONDS = 30


@pytest.fixture(scope="module")
def org(server: Server) -> Org:
    """An org with a known slug, for the URLs of its pages."""
    return Org(server.database_url, "acme")


def _expire(server: Server, booking: str) -> None:
    """Expire a hold without waiting."""
    parsed = ids.parse_booking_id(booking.removeprefix("/b/"))
    assert parsed is not None
    statement = "UPDATE booking SET expires_at = holdfast_now() - interval '1 second' WHERE event_id = $1 AND id = $2"
    query(server.database_url, statement, *parsed)


def _id(booking: str) -> str:
    return booking.removeprefix("/b/").partition("?")[0]


def _bookings(admin: httpx.Client, event: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = expect_ok(admin.get("/v1/bookings", params={"event": event}))["items"]
    return items


def _title(page: Page) -> str:
    return page.text.partition(" · ")[0]


def test_the_start_page_shows_the_events_of_every_org(postgres: str) -> None:
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
    for sends, site in ((True, server), (False, product)):
        with site.client(Org(site.database_url).headers()) as admin, new_visitor(site) as buyer:
            event = publish_event(admin, example_event(preset="registration", pools=FREE))
            page = get_page(buyer, f"/e/{event}")
            assert ("We'll email your tickets here." in page.text) is sends
            booking = redirect_target(submit_form(buyer, page.form("/hold"), **ONE, email="ada@example.org"))
            confirmed = get_page(buyer, booking).text
            assert "You're in!" in confirmed
            assert ("We've emailed you a copy." in confirmed) is sends
            assert ("we'll email you too." in get_page(buyer, "/paid").text) is sends


def test_a_missing_page_is_shown_in_the_readers_language(
    server: Server, admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
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
        assert _title(get_page(spanish_buyer, path, 404)) == "No encontramos esta página", path
    assert get_page(buyer, f"/e/{draft}", 404).text == get_page(buyer, f"/e/{absent}", 404).text


def test_only_the_browser_that_made_a_booking_can_see_it(
    server: Server, admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    event = publish_event(admin, reviewed_event(title="Private matters"))
    booking = hold_on_page(buyer, event, **STANDING)
    parsed = ids.parse_booking_id(_id(booking))
    assert parsed is not None
    absent = f"/b/{ids.format_booking_id(parsed[0], bytes(16))}"
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    ticket = get_page(buyer, booking).links("/ticket.pdf")[0].partition("/tickets/")[2].partition("/")[0]
    own = hold_on_page(spanish_buyer, event, **STANDING)
    with new_visitor(server, "es") as new_browser:
        for stranger in (new_browser, spanish_buyer):
            for file in ("", "/state", "/calendar.ics", f"/tickets/{ticket}/qr.svg", f"/tickets/{ticket}/ticket.pdf"):
                missing = get_page(stranger, booking + file, 404)
                assert missing.text == get_page(stranger, absent + file, 404).text
                assert "Private matters" not in missing.text
    assert spanish_buyer.get(f"{own}/tickets/{ticket}/qr.svg").status_code == 404
    token = {"form_token": get_page(spanish_buyer, f"/e/{event}").form("/hold").fields["form_token"]}
    for verb in ("extend", "cancel", "pay"):
        origin = {"Origin": server.url}
        assert spanish_buyer.post(f"{booking}/{verb}", data=token, headers=origin).status_code == 404
    answer = spanish_buyer.post(f"{booking}/receipt", data=token, files={"file": ("r.png", TINY_PNG)})
    assert answer.status_code == 404
    assert expect_ok(admin.get(f"/v1/bookings/{_id(booking)}"))["status"] == "confirmed"


def test_the_details_of_an_event_are_in_the_language_of_the_reader(
    admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    details = {
        "address": "1 Main St",
        "dress_code": "<b>black</b> tie",
        "season": 2027,
        "altitude": 12500,
        "rating": 4.5678,
        "balance": -3,
        "parking": True,
        "sitting": False,
        "stars": 10**400,
        "size": 1.25e-300,
        "tags": ["hidden"],
        "map": {"hidden": 1},
        "nothing": None,
    }
    event = publish_event(admin, example_event(title="With details", details=details))
    texts = {
        buyer: ["Altitude: 12,500", "Rating: 4.5678", "Parking: Yes", "Sitting: No"],
        spanish_buyer: ["Altitude: 12.500", "Rating: 4,5678", "Parking: Sí", "Sitting: No"],
    }
    for reader, expected in texts.items():
        page = get_page(reader, f"/e/{event}")
        for text in (
            "Dress code: <b>black</b> tie",
            "Season: 2027",
            "Balance: -3",
            "Stars: 1E+400",
            "Size: 1.25E-300",
            *expected,
        ):
            assert text in page.text, text
        for absent in ("idden", "Tags", "Map:", "Nothing", "Address:"):
            assert absent not in page.text, absent


def test_a_buyer_without_script_can_buy_tickets(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
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
    wait_until(lambda: "You're in!" in get_page(buyer, back).text, WAIT_SECONDS)
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
        qr_code = buyer.get(address)
        assert (qr_code.status_code, qr_code.headers["content-type"]) == (200, "image/svg+xml")
        assert read_qr_codes(render_svg(ElementTree.fromstring(qr_code.content))) == [code]
    pdf = buyer.get(page.links("/ticket.pdf")[0])
    assert pdf.headers["content-type"] == "application/pdf"
    assert pdf.content.startswith(b"%PDF-")
    calendar = buyer.get(page.links("/calendar.ics")[0])
    assert calendar.headers["content-type"] == "text/calendar; charset=utf-8"
    (entry,) = icalendar.Calendar.from_ical(calendar.content).events
    assert (entry["summary"], entry["location"]) == ("With tickets", "Here")
    assert entry.start.isoformat() == "2027-03-05T19:00:00+00:00"


def test_a_used_ticket_is_shown_as_used(server: Server, org: Org, admin: httpx.Client, buyer: httpx.Client) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    assert "Used" not in get_page(buyer, booking).text
    code = admin.get(f"/v1/bookings/{_id(booking)}/tickets").json()[0]["code"]
    expect_ok(admin.post("/v1/checkins", json={"code": code}))
    assert get_page(buyer, booking).text.count("Used") == 1


def test_a_buyer_can_extend_a_hold_up_to_the_maximum(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    policy = {"hold_seconds": 60, "extend_seconds": 120, "max_hold_seconds": 100}
    booking = hold_on_page(buyer, publish_event(admin, example_event(policy=policy)), **STANDING)
    page = get_page(buyer, booking)
    assert 0 < page.data["secondsLeft"] <= 60
    assert redirect_target(submit_form(buyer, page.form("/extend"))) == booking
    page = get_page(buyer, booking)
    assert 60 < page.data["secondsLeft"] <= 100
    assert "This hold can't be extended any further." in page.text
    assert not page.has_form("/extend")


def test_a_hold_that_cannot_be_extended_offers_no_extension(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
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


@pytest.mark.parametrize(
    "script",
    [
        "booking.js",
        "calendar.js",
        "event.js",
        "event_map.js",
        "hold_form.js",
        "opening.js",
        "order.js",
        "own_seats.js",
        "page.js",
        "pool_boxes.js",
        "slot_panel.js",
    ],
)
def test_every_element_a_script_needs_is_on_its_page(
    server: Server, admin: httpx.Client, buyer: httpx.Client, script: str
) -> None:
    """Otherwise only a buyer would notice that one side renamed something."""
    event = publish_event(admin, example_event())
    page = get_page(buyer, f"/e/{event}")
    if script == "booking.js":
        page = get_page(buyer, redirect_target(submit_form(buyer, page.form("/hold"), **STANDING)))
    source = (STATIC / script).read_text()
    data = page.data
    assert set(re.findall(r"\bpage\.(\w+)", source)) - {"js"} <= set(data)
    assert set(re.findall(r"\bsay\(\"(\w+)\"", source)) <= {key.removesuffix(".many") for key in data["texts"]}


def test_a_buyer_without_script_can_get_the_best_seats(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
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


def test_the_best_seats_of_another_area_have_its_own_price(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    """Without a script, the form keeps offering the prices of the first area."""
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


def test_a_request_for_too_many_best_seats_is_refused_with_a_reason(
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
    assert "Register" in page.text
    booking = redirect_target(submit_form(buyer, page.form("/hold")))
    page = get_page(buyer, booking)
    assert "You're in!" in page.text
    assert "Total Free" in page.text
    second = get_page(buyer, f"/e/{event}")
    assert "You already have a spot. See your booking" in second.text
    assert booking in second.links()
    assert not second.has_form("/hold")
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


def test_places_of_a_cancelled_hold_are_free_at_once(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
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


def test_a_refused_choice_shows_the_page_with_a_reason(
    server: Server, admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event(pools=PLACES, policy={"max_units_per_user": 2}))
    form = get_page(buyer, f"/e/{event}").form("/hold")
    nothing = parse_page(submit_form(buyer, form), 422)
    assert "Choose at least one seat or spot first." in nothing.text
    assert nothing.has_form("/hold")
    limit = parse_page(submit_form(buyer, form, quantity__0__0="3"), 409)
    assert "The limit is 2 per person" in limit.text
    mail = parse_page(submit_form(buyer, form, **ONE, email="nobody"), 422)
    assert "This doesn't look like an email address." in mail.text
    redirect_target(submit_form(buyer, form, quantity__0__0="2"))
    short = parse_page(
        submit_form(spanish_buyer, get_page(spanish_buyer, f"/e/{event}").form("/hold"), quantity__0__0="2"), 409
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


def test_a_full_area_can_be_neither_chosen_nor_booked(
    server: Server, admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event(pools=PLACES))
    early = get_page(spanish_buyer, f"/e/{event}").form("/hold")
    hold_on_page(buyer, event, quantity__0__0="3")
    page = get_page(spanish_buyer, f"/e/{event}")
    assert "Agotado" in page.text
    assert "quantity.0.0" not in page.form("/hold").fields
    assert (
        "Lo sentimos, ya no quedan suficientes lugares."
        in parse_page(submit_form(spanish_buyer, early, **ONE), 409).text
    )
    assert "Agotado" in get_page(spanish_buyer, "/o/acme").text


def test_a_refused_seat_is_named_in_the_answer_to_the_script(
    server: Server, admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
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
    form = get_page(spanish_buyer, f"/e/{event}").form("/hold")
    refused = submit_form(spanish_buyer, form, script, seats='[{"seat": "A-5"}, {"seat": "A-4"}]')
    assert refused.status_code == 409
    text = "Lo sentimos, alguien acaba de tomar A-5."
    assert refused.json() == {"code": "seat_taken", "text": text, "conflicts": ["A-5"]}
    orphan = submit_form(spanish_buyer, form, script, seats='[{"seat": "A-8"}]')
    assert (orphan.status_code, orphan.json()["code"], orphan.json()["conflicts"]) == (409, "orphan_seat", ["A-7"])
    assert "A-7" in orphan.json()["text"]
    for wrong in ('[{"seat": 1}]', "[", "{}", '[{"seat": "A-1", "quantity": 2}]', "[[]]", '"A-1"', "null"):
        answer = submit_form(spanish_buyer, form, script, seats=wrong)
        assert answer.status_code == 422, wrong
        assert answer.json()["text"], wrong
    unknown = submit_form(spanish_buyer, form, script, seats='[{"seat": "Z-9"}]')
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_seat")
    assert unknown.json()["text"] == "Algo no funcionó. Inténtalo de nuevo."


def test_simultaneous_copies_of_a_form_make_one_booking(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    form = get_page(buyer, f"/e/{event}").form("/hold")
    with ThreadPoolExecutor(6) as threads:
        sent = [threads.submit(submit_form, buyer, form, **STANDING) for _ in range(6)]
        targets = {redirect_target(each.result()) for each in sent}
    assert len(targets) == 1
    assert len(_bookings(admin, event)) == 1


def test_another_choice_or_another_page_makes_a_new_hold(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    form = get_page(buyer, f"/e/{event}").form("/hold")
    first = redirect_target(submit_form(buyer, form, **STANDING))
    second = redirect_target(submit_form(buyer, form, quantity__1__0="1"))
    third = hold_on_page(buyer, event, **STANDING)
    assert len({first, second, third}) == 3
    assert sum(item["quantity"] for booking in _bookings(admin, event) for item in booking["items"]) == 5


def test_simultaneous_copies_of_a_pay_form_start_one_payment(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
    form = get_page(buyer, booking).form("/pay")
    with ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(submit_form, buyer, form) for _ in range(4)]
        targets = {redirect_target(each.result()) for each in sent}
    assert len(targets) == 1
    assert len(expect_ok(admin.get(f"/v1/bookings/{_id(booking)}"))["payments"]) == 1


def test_a_failed_payment_is_shown_and_can_be_retried(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
    back = pay_in_sandbox(buyer, booking, "fail")
    wait_until(lambda: "Your payment didn't go through" in get_page(buyer, back).text, WAIT_SECONDS)
    back = pay_in_sandbox(buyer, booking)
    wait_until(lambda: "You're in!" in get_page(buyer, back).text, WAIT_SECONDS)


def test_a_page_before_the_notice_asks_the_buyer_to_wait(
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
def test_any_key_in_a_form_is_accepted(server: Server, admin: httpx.Client, buyer: httpx.Client, key: str) -> None:
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


def test_an_invalid_receipt_is_refused_with_the_accepted_types(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    booking = hold_on_page(buyer, publish_event(admin, reviewed_event()), **STANDING)
    form = get_page(buyer, booking).form("/receipt")
    wrong = parse_page(submit_file(buyer, form, b"<script>alert(1)</script>"), 422)
    assert "JPEG, PNG, WebP, HEIC or PDF" in _alert(wrong)
    assert "email" not in _alert(wrong)
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
    """The text between the page title and the summary."""
    return page.text.partition(" · Your booking · ")[2].partition("Your booking")[0]


def test_a_page_offers_no_receipt_upload_if_the_event_offers_no_review(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    booking = hold_on_page(buyer, event, **STANDING)
    assert not get_page(buyer, booking).has_form("/receipt")
    answer = buyer.post(f"{booking}/receipt", data=_token(buyer, event), files={"file": ("r.png", TINY_PNG)})
    assert parse_page(answer, 409).data["status"] == "held"


def test_a_refused_receipt_does_not_show_the_limit_of_places(
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


def test_a_buyer_who_never_paid_reads_that_an_expired_hold_cost_nothing(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event(pools=PLACES)), **ONE)
    _expire(server, booking)
    text = get_page(buyer, booking).text
    assert "You haven't been charged." in text
    assert "Did your payment go through anyway?" not in text


@pytest.mark.parametrize("pools", [None, PLACES], ids=["with seats", "without seats"])
def test_only_an_event_with_seats_asks_for_javascript(
    admin: httpx.Client, buyer: httpx.Client, pools: list[dict[str, Any]] | None
) -> None:
    event = publish_event(admin, example_event(**({"pools": pools} if pools else {})))
    assert ("Turn on JavaScript to choose seats on the map." in get_page(buyer, f"/e/{event}").text) is (pools is None)


def test_an_expired_hold_is_shown_as_expired_and_frees_its_places(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event(pools=PLACES))
    booking = hold_on_page(buyer, event, quantity__0__0="3")
    held = get_page(buyer, booking)
    redirect_target(submit_form(buyer, held.form("/pay")))
    late = get_page(buyer, booking)
    _expire(server, booking)
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
    server: Server, admin: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    booking = hold_on_page(spanish_buyer, publish_event(admin, example_event()), **STANDING)
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/refund", json={"reason": "refunded_by_provider"}))
    page = get_page(spanish_buyer, booking)
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


def test_a_completed_event_is_shown_as_over(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    times = {"starts_at": "2020-01-01T00:00:00Z", "sales_close_at": "2099-01-01T00:00:00Z"}
    event = publish_event(admin, example_event(title="Long ago", **times))
    booking = hold_on_page(buyer, event, **STANDING)
    expect_ok(admin.post(f"/v1/bookings/{_id(booking)}/confirm"))
    expect_ok(admin.post(f"/v1/events/{event}/complete"))
    page = get_page(buyer, booking)
    assert "This event is over" in page.text
    assert len(page.links("/ticket.pdf")) == 2
    assert "This event is over." in get_page(buyer, f"/e/{event}").text
    assert f"/e/{event}" not in get_page(buyer, "/o/acme").links()
    assert "Long ago" in get_page(buyer, "/o/acme/bookings").text


def test_a_browser_lists_only_its_own_bookings(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    assert "No bookings yet" in get_page(buyer, "/o/acme/bookings").text
    event = publish_event(admin, example_event(title="Mine"))
    booking = hold_on_page(buyer, event, **STANDING)
    assert get_page(buyer, "/o/acme/bookings").links("/b/") == [booking]
    with new_visitor(server) as other:
        assert "No bookings yet" in get_page(other, "/o/acme/bookings").text


def test_amounts_and_times_follow_the_event_and_the_readers_language(
    server: Server, admin: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    pools = [{"code": "p", "name": "Turno", "capacity": 50_000, "tariffs": [{"code": "t", "price": 1_234_567_800}]}]
    event = publish_event(
        admin,
        example_event(
            currency="COP", tax_bps=750, timezone="America/Bogota", starts_at="2027-03-06T01:30:00Z", pools=pools
        ),
    )
    page = get_page(spanish_buyer, f"/e/{event}")
    assert ("html", {"lang": "es"}) in page.tags
    text = page.text.replace("\xa0", " ")
    for part in (
        "viernes, 5 de marzo de 2027, 20:30",
        "hora estándar de Colombia",
        "Quedan 50.000",
        "12.345.678,00 COP",
    ):
        assert part in text, part
    booking = hold_on_page(spanish_buyer, event, **ONE)
    text = get_page(spanish_buyer, booking).text.replace("\xa0", " ")
    for part in ("Impuestos (7,5 %) 925.925,85 COP", "Total 13.271.603,85 COP", "Te guardamos 1 lugar"):
        assert part in text, part
    euros = publish_event(admin, example_event())
    assert "15,00 €" in get_page(spanish_buyer, f"/e/{euros}").text.replace("\xa0", " ")
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
def test_the_page_is_in_the_first_supported_language_of_the_browser(
    server: Server, accepted_languages: str, language: str
) -> None:
    with new_visitor(server, accepted_languages) as client:
        assert ("html", {"lang": language}) in get_page(client, "/o/nobody", 404).tags


def test_the_language_links_after_a_form_lead_to_its_page(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    refused = parse_page(submit_form(buyer, get_page(buyer, f"/e/{event}").form("/hold")), 422)
    assert refused.links("lang=es") == [f"/e/{event}?lang=es"]


def test_an_unknown_path_shows_a_page_to_a_browser_and_a_problem_to_a_program(server: Server) -> None:
    browser, program = {"accept": "text/html,*/*;q=0.8"}, {"accept": "*/*"}
    page = httpx.get(f"{server.url}/nowhere/deeper", headers=browser, timeout=30, verify=False)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    for path, headers in (("/nowhere", program), ("/v1/nowhere", browser)):
        problem = httpx.get(f"{server.url}{path}", headers=headers, timeout=30, verify=False)
        assert (problem.status_code, problem.headers["content-type"]) == (404, "application/problem+json")


def test_a_get_request_to_a_form_url_redirects_to_its_page(server: Server) -> None:
    answer = httpx.get(f"{server.url}/e/ev_1/hold", timeout=30, verify=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/e/ev_1")
