"""The start page, the page of an org and the page of a series: soonest first, searchable, and without scripts."""

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page as BrowserPage
from playwright.sync_api import expect

from holdfast.web.event_list_pages import CARDS_MAX, DATES_MAX
from tests.support.browser import chromium
from tests.support.browser_buyer import PHONE
from tests.support.harness import Org, Server, example_event, publish_event, query
from tests.support.html_client import Page, get_page
from tests.support.http_assertions import expect_ok

NOW = datetime.now(UTC).replace(microsecond=0)
NOON = NOW.replace(hour=12, minute=0, second=0)


def at(days: float, hours: float = 0) -> str:
    """A time that many days after today's noon in UTC."""
    return (NOON + timedelta(days=days, hours=hours)).isoformat()


def soon(minutes: float) -> str:
    return (NOW + timedelta(minutes=minutes)).isoformat()


def day(days: int) -> str:
    return (NOON + timedelta(days=days)).date().isoformat()


@pytest.fixture
def org(server: Server) -> Org:
    return Org(server.database_url)


@pytest.fixture
def admin(server: Server, org: Org) -> Iterator[httpx.Client]:
    with server.client(org.headers()) as client:
        yield client


def new_series(admin: httpx.Client, title: str, **changes: Any) -> str:
    id_: str = expect_ok(admin.post("/v1/series", json={"title": title, **changes}), 201)["id"]
    return id_


def publish(admin: httpx.Client, title: str, starts_at: str, **changes: Any) -> str:
    pools = [{"code": "places", "capacity": 20, "tariffs": [{"code": "full", "price": 1200}]}]
    return publish_event(admin, example_event(**{"title": title, "starts_at": starts_at, "pools": pools, **changes}))


def titles(page: Page) -> list[str]:
    """The titles of the cards, in order."""
    return [text for tag, text in _headings(page) if tag == "h3"]


def _headings(page: Page) -> list[tuple[str, str]]:
    found = []
    for part in page.response.text.split("<h")[1:]:
        if part[:1].isdigit():
            inside = part.partition(">")[2].partition("</h")[0]
            found.append((f"h{part[0]}", " ".join(_without_tags(inside).split())))
    return found


def _without_tags(html: str) -> str:
    text, rest = "", html
    while "<" in rest:
        before, _, rest = rest.partition("<")
        text += before
        rest = rest.partition(">")[2]
    return text + rest


def test_events_are_listed_soonest_first(admin: httpx.Client, buyer: httpx.Client, org: Org) -> None:
    for title, days in (("Third", 9), ("First", 1), ("Second", 5)):
        publish(admin, title, at(days))
    assert titles(get_page(buyer, f"/o/{org.slug}")) == ["First", "Second", "Third"]


def test_events_that_have_ended_are_not_listed(admin: httpx.Client, buyer: httpx.Client, org: Org) -> None:
    slot = {"capacity": 5, "tariffs": [{"code": "full", "price": 100}]}
    began = {"code": "began", **slot, "starts_at": soon(-60)}
    publish(admin, "Began without an end", soon(-5))
    publish(admin, "Under way", soon(-5), ends_at=soon(60))
    publish(admin, "Sells after its start", soon(-5), sales_close_at=soon(60))
    publish(admin, "A slot is left", soon(-120), pools=[began, {"code": "later", **slot, "starts_at": soon(60)}])
    publish(admin, "All slots have begun", soon(-120), pools=[began])
    cancelled = publish(admin, "Cancelled", at(1))
    expect_ok(admin.post(f"/v1/events/{cancelled}/cancel"))
    expect_ok(admin.post("/v1/events", json=example_event(title="Draft", starts_at=at(1))), 201)
    page = get_page(buyer, f"/o/{org.slug}")
    assert set(titles(page)) == {"Under way", "Sells after its start", "A slot is left"}
    # Only what can still be bought counts: five places of the later slot.
    assert "5 left" in page.text
    assert page.text.count("Sales closed") == 1


def test_cards_say_what_is_left_and_when_sales_open(admin: httpx.Client, buyer: httpx.Client, org: Org) -> None:
    publish(admin, "Plenty", at(1))
    publish(admin, "None", at(2), pools=[{"code": "a", "capacity": 0}])
    publish(admin, "Not yet", at(9), sales_open_at=at(3))
    publish(
        admin, "Presale", at(10), sales_open_at=at(3), pools=[{"code": "a", "capacity": 3, "sales_open_at": soon(-1)}]
    )
    text = get_page(buyer, f"/o/{org.slug}").text
    parts = text.split("Plenty")[1]
    assert [word in parts for word in ("20 left", "Sold out", "On sale from", "3 left")] == [True] * 4
    assert text.count("On sale from") == 1


def test_a_card_shows_the_year_if_it_is_another_one(admin: httpx.Client, buyer: httpx.Client, org: Org) -> None:
    publish(admin, "Soon", soon(1))
    publish(admin, "Far away", f"{NOW.year + 3}-03-01T19:00:00Z")
    html = get_page(buyer, f"/o/{org.slug}").response.text
    assert f"<span>Mar {NOW.year + 3}</span>" in html
    assert f" {NOW.year}</span>" not in html


def test_a_card_agrees_with_its_event_about_pools_that_open_at_other_times(
    admin: httpx.Client, buyer: httpx.Client, org: Org
) -> None:
    tariffs = [{"code": "full", "price": 100}]
    later = {"code": "later", "capacity": 5, "tariffs": tariffs, "sales_open_at": at(1)}
    for first, badge in (
        ({"code": "now", "capacity": 7, "tariffs": tariffs}, "12 left"),
        ({"code": "over", "capacity": 7, "tariffs": tariffs, "sales_close_at": soon(-5)}, "On sale"),
    ):
        event = publish(admin, "Two phases", at(3), pools=[first, later])
        assert badge in get_page(buyer, f"/o/{org.slug}").text
        expect_ok(admin.post(f"/v1/events/{event}/cancel"))


def test_a_series_is_one_card_with_its_next_dates(admin: httpx.Client, buyer: httpx.Client, org: Org) -> None:
    film = new_series(admin, "Casablanca")
    shows = [publish(admin, "Film", at(days), series=film) for days in range(2, 8)]
    publish(admin, "Gala", at(3))
    only = publish(admin, "One night", at(4), series=new_series(admin, "A series with one date"))
    page = get_page(buyer, f"/o/{org.slug}")
    assert titles(page) == ["Casablanca", "Gala", "One night"]
    assert "All 6 dates" in page.text
    assert [link for link in page.links("/e/") if link.removeprefix("/e/") in shows] == [f"/e/{e}" for e in shows[:4]]
    assert page.links("/s/") == [f"/s/{film}"]
    assert f"/e/{only}" in page.links()


# A card with one date is the card of its event.
@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ({"q": "kino"}, ["Casablanca", "Silent film"]),
        ({"q": "casablanca"}, ["Casablanca"]),
        ({"q": "KINO silent"}, ["Silent film"]),
        ({"q": "  nothing like it "}, []),
        ({"q": "%"}, []),
        ({"from": day(5)}, ["Far away", "Casablanca", "Gala"]),
        ({"to": day(4)}, ["Casablanca", "Silent film"]),
        ({"from": day(4), "to": day(4)}, ["Silent film", "Film"]),
        ({"from": day(4), "to": day(3)}, ["Casablanca", "Silent film"]),
        ({"from": day(5), "to": day(5)}, ["Far away", "Film"]),
        ({"from": day(6), "to": day(6)}, ["Film"]),
        ({"q": "gala", "to": day(4)}, []),
        ({"from": "yesterday", "to": "0001-01-01", "after": "x"}, ["Casablanca", "Silent film", "Far away", "Gala"]),
    ],
)
def test_buyers_search_by_text_and_by_local_day(
    search_org: Org, buyer: httpx.Client, search: dict[str, str], expected: list[str]
) -> None:
    page = get_page(buyer, f"/o/{search_org.slug}?{httpx.QueryParams(search)}")
    assert titles(page) == expected
    form = page.form(f"/o/{search_org.slug}").fields
    assert form["q"] == search.get("q", "").strip()
    assert ("Nothing matches" in page.text) == (not expected)


@pytest.fixture(scope="module")
def search_org(server: Server) -> Org:
    org = Org(server.database_url)
    with server.client(org.headers()) as admin:
        film = new_series(admin, "Casablanca")
        for days in (3, 4, 5, 6, 7):
            publish(admin, "Film", at(days, 2), series=film, details={"address": "Kino 1"})
        publish(admin, "Silent film", at(4), details={"address": "Kino 2"})
        # It starts on the fourth day in UTC, and after midnight of the fifth in Auckland.
        publish(admin, "Far away", at(4, 1), timezone="Pacific/Auckland")
        publish(admin, "Gala", at(9))
    return org


def test_the_start_page_lists_the_events_of_all_orgs(server: Server, buyer: httpx.Client) -> None:
    word = secrets.token_hex(6)
    for days in (9, 2, 5):
        with server.client(Org(server.database_url).headers()) as admin:
            publish(admin, f"{word} {days}", at(days))
            publish(admin, f"{word} under way {days}", soon(-days), ends_at=soon(30))
    under_way = [f"{word} under way {days}" for days in (9, 5, 2)]
    assert titles(get_page(buyer, f"/?q={word}")) == [*under_way, f"{word} 2", f"{word} 5", f"{word} 9"]
    assert titles(get_page(buyer, f"/?q={word}&from={day(5)}&to={day(8)}")) == [f"{word} 5"]


def test_a_search_finds_only_the_dates_of_a_series_that_match(search_org: Org, buyer: httpx.Client) -> None:
    page = get_page(buyer, f"/o/{search_org.slug}?q=casablanca&from={day(6)}&to={day(7)}")
    assert len(page.links("/e/")) == 2
    assert "All dates" in page.text


def test_pages_of_a_list_continue_and_keep_the_search(
    server: Server, admin: httpx.Client, buyer: httpx.Client, org: Org
) -> None:
    film = new_series(admin, "Film")
    for n in range(3):
        publish(admin, "Film", at(1 + n), series=film)
    event = publish(admin, "Show 0", at(2))
    copy_event(server, event, CARDS_MAX + 2)
    first = get_page(buyer, f"/o/{org.slug}?q=show")
    assert titles(first)[0] == "Show 0"
    (later,) = first.links("after=")
    second = get_page(buyer, later)
    assert len(titles(first)) == CARDS_MAX
    assert len(titles(second)) == 3
    assert not set(titles(first)) & set(titles(second))
    assert "q=show" in later
    assert second.form(f"/o/{org.slug}").fields["q"] == "show"
    assert [link for link in second.links("/o/") if link.endswith("?q=show")]
    # A series is on one page only.
    everything = get_page(buyer, f"/o/{org.slug}")
    assert titles(everything).count("Film") == 1
    (later,) = everything.links("after=")
    assert "Film" not in titles(get_page(buyer, later))


def copy_event(server: Server, event: str, count: int) -> None:
    """Write copies of the event at later times directly, because that is faster."""
    copy = """
        INSERT INTO event (id, org_id, status, title, starts_at, timezone, currency, tax_bps, policy, details,
                           published_at, series_id)
        SELECT gen_random_uuid(), org_id, status, 'Show ' || n, starts_at + n * interval '1 hour', timezone, currency,
               tax_bps, policy, details, published_at, series_id
        FROM event CROSS JOIN generate_series(1, $2::integer) AS n WHERE id = $1 RETURNING id
    """
    made = [row["id"] for row in query(server.database_url, copy, bytes.fromhex(event[3:]), count)]
    pool = "INSERT INTO pool (event_id, number, code, name, seated, capacity)"
    query(server.database_url, f"{pool} SELECT unnest($1::uuid[]), 0, 'a', 'a', false, 5", made)
    tariff = "INSERT INTO tariff (event_id, pool, number, code, name, price)"
    query(server.database_url, f"{tariff} SELECT unnest($1::uuid[]), 0, 0, 'a', 'a', 0", made)


def test_a_series_has_a_page_with_its_dates_by_day(admin: httpx.Client, buyer: httpx.Client, org: Org) -> None:
    film = new_series(admin, "Casablanca", description="In black and white.\nWith <subtitles>.")
    details = {"address": "Kino 1"}
    for hours in (0, 3):
        publish(admin, "Casablanca", at(2, hours), series=film, timezone="America/Bogota", details=details)
    publish(admin, "Casablanca with a talk", at(3), series=film, timezone="America/Bogota", details=details)
    over = publish(admin, "Casablanca", soon(-600), series=film)
    page = get_page(buyer, f"/s/{film}")
    assert "In black and white." in page.text
    assert "With <subtitles>." in page.text
    days = [text for tag, text in _headings(page) if tag == "h2"]
    assert len(days) == 2
    assert page.text.index("7:00") < page.text.index("10:00") < page.text.index("with a talk")
    assert len(page.links("/e/")) == 3
    assert f"/e/{over}" not in page.links()
    assert page.text.count("20 left") == 3
    assert f"/o/{org.slug}" in page.links()


def test_a_long_series_has_several_pages(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    film = new_series(admin, "Casablanca")
    copy_event(server, publish(admin, "Casablanca", at(1), series=film), DATES_MAX + 1)
    first = get_page(buyer, f"/s/{film}")
    (later,) = first.links("after=")
    second = get_page(buyer, later)
    assert [len(page.links("/e/")) for page in (first, second)] == [DATES_MAX, 2]
    assert f"/s/{film}" in second.links()


def test_an_event_page_links_to_the_other_dates(admin: httpx.Client, buyer: httpx.Client) -> None:
    film = new_series(admin, "Casablanca")
    event, alone = publish(admin, "Film", at(2), series=film), publish(admin, "Alone", at(2))
    assert f"/s/{film}" in get_page(buyer, f"/e/{event}").links()
    assert get_page(buyer, f"/e/{alone}").links("/s/") == []


def test_a_series_without_published_events_has_no_page(admin: httpx.Client, buyer: httpx.Client) -> None:
    film = new_series(admin, "Casablanca")
    expect_ok(admin.post("/v1/events", json=example_event(series=film)), 201)
    for path in (f"/s/{film}", "/s/nothing", f"/s/{film[:-1]}*", "/s/%00"):
        get_page(buyer, path, 404)


def test_a_series_whose_dates_are_over_says_so(admin: httpx.Client, buyer: httpx.Client) -> None:
    film = new_series(admin, "Casablanca")
    publish(admin, "Film", soon(-600), series=film)
    assert "No dates right now" in get_page(buyer, f"/s/{film}").text


def test_all_texts_are_translated(admin: httpx.Client, spanish_buyer: httpx.Client, org: Org) -> None:
    film = new_series(admin, "Casablanca")
    for days in (2, 3):
        publish(admin, "Casablanca", at(days), series=film)
    start = get_page(spanish_buyer, f"/o/{org.slug}").text
    assert "Ver las 2 fechas" in start
    assert "Título" in get_page(spanish_buyer, f"/o/{org.slug}").response.text


@pytest.mark.parametrize("look", [{"viewport": {"width": 1280, "height": 900}}, PHONE], ids=["desktop", "phone"])
def test_buyers_find_a_date_in_a_browser(server: Server, search_org: Org, look: dict[str, Any]) -> None:
    with chromium() as browser:
        page: BrowserPage = browser.new_context(**look, java_script_enabled=False).new_page()
        page.goto(f"{server.url}/o/{search_org.slug}")
        page.get_by_label("Search", exact=True).fill("kino")
        page.get_by_label("From").fill(day(5))
        page.get_by_role("button", name="Search").click()
        page.wait_for_url("**q=kino**")
        expect(page.get_by_role("heading", level=3)).to_have_text(["Casablanca"])
        _expect_no_sideways_scrolling(page)
        # The card is a link to the series, and each date on it is a link to its event.
        page.get_by_role("link", name="Casablanca").click()
        page.wait_for_url("**/s/**")
        _expect_no_sideways_scrolling(page)
        page.go_back()
        page.get_by_role("list", name="Next dates").get_by_role("link").first.click()
        page.wait_for_url("**/e/**")


def _expect_no_sideways_scrolling(page: BrowserPage) -> None:
    box = page.locator("main").bounding_box()
    assert box is not None
    assert page.viewport_size is not None
    assert box["width"] <= page.viewport_size["width"]
