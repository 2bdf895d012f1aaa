"""Series over HTTP, requests for many events, and lists of events by time, series and text."""

import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from holdfast.api import event_handlers
from holdfast.api.event_search import EventCursor, parse_cursor, search_patterns
from holdfast.api.requests import EventsQuery
from holdfast.api.series_handlers import JOBS_MAX
from tests.support.cases import case
from tests.support.concurrent_requests import request, send_all_at_once
from tests.support.engine_harness import async_test, lane_connection, new_event, new_org
from tests.support.harness import Org, Server, example_event, publish_event, query, running_server
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.local_pages import local_pages
from tests.support.resources import THREE_DAYS, create_series, post_series_events

Body = dict[str, Any]


@pytest.fixture
def org(server: Server) -> Org:
    return Org(server.database_url)


@pytest.fixture
def admin(server: Server, org: Org) -> Iterator[httpx.Client]:
    with server.client(org.headers()) as client:
        yield client


@pytest.fixture
def public(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def new_series(admin: httpx.Client, **changes: Any) -> str:
    id_: str = expect_ok(admin.post("/v1/series", json={"title": "Casablanca", **changes}), 201)["id"]
    return id_


def create_event(admin: httpx.Client, **changes: Any) -> str:
    id_: str = expect_ok(admin.post("/v1/events", json=example_event(**changes)), 201)["id"]
    return id_


def list_events(client: httpx.Client, **params: Any) -> list[str]:
    """The ids of all events, page by page."""
    found: list[str] = []
    while True:
        page = expect_ok(client.get("/v1/events", params=params))
        found += [event["id"] for event in page["items"]]
        if page["next"] is None:
            return found
        params["after"] = page["next"]


def test_a_series_can_be_created_read_and_changed(admin: httpx.Client) -> None:
    answer = admin.post("/v1/series", json={"title": "Casablanca", "description": "1942", "details": {"minutes": 102}})
    series = expect_ok(answer, 201)
    assert answer.headers["location"] == f"/v1/series/{series['id']}"
    assert expect_ok(admin.get(f"/v1/series/{series['id']}")) == series
    changed = expect_ok(admin.patch(f"/v1/series/{series['id']}", json={"description": None, "title": "Vertigo"}))
    assert changed == {**series, "title": "Vertigo", "description": None}
    assert series["details"] == {"minutes": 102}
    renamed = expect_ok(admin.patch(f"/v1/series/{series['id']}", json={"details": {}, "description": "Hitchcock"}))
    assert renamed == {**changed, "details": {}, "description": "Hitchcock"}
    assert expect_ok(admin.patch(f"/v1/series/{series['id']}", json={})) == renamed
    expect_error(admin.post("/v1/series", json={"title": "x", "colour": "red"}), 422, "invalid_request")
    expect_error(admin.patch(f"/v1/series/{series['id']}", json={"title": ""}), 422, "invalid_request")


def test_the_public_sees_a_series_once_an_event_of_it_is_published(
    admin: httpx.Client, public: httpx.Client, org: Org
) -> None:
    series = new_series(admin)
    event = create_event(admin, series=series)
    expect_error(public.get(f"/v1/series/{series}"), 404, "not_found")
    assert expect_ok(public.get("/v1/series", params={"org": org.slug}))["items"] == []
    assert [item["id"] for item in expect_ok(admin.get("/v1/series"))["items"]] == [series]
    expect_ok(admin.post(f"/v1/events/{event}/publish"))
    assert expect_ok(public.get(f"/v1/series/{series}"))["title"] == "Casablanca"
    assert [item["id"] for item in expect_ok(public.get("/v1/series", params={"org": org.slug}))["items"]] == [series]


def test_the_pages_of_the_list_of_series_contain_each_once(admin: httpx.Client) -> None:
    created = [new_series(admin) for _ in range(5)]
    found, after = [], None
    while True:
        page = expect_ok(admin.get("/v1/series", params={"limit": 2, **({"after": after} if after else {})}))
        found += [item["id"] for item in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert found == created[::-1]


def test_an_event_can_join_and_leave_a_series(admin: httpx.Client) -> None:
    series = new_series(admin)
    event = create_event(admin)
    path = f"/v1/events/{event}"
    assert expect_ok(admin.get(path))["series"] is None
    assert expect_ok(admin.patch(path, json={"series": series}))["series"] == series
    assert expect_ok(admin.patch(path, json={"title": "Another"}))["series"] == series
    assert expect_ok(admin.patch(path, json={"series": None}))["series"] is None


def test_a_series_of_another_org_cannot_have_events_of_this_one(server: Server, admin: httpx.Client) -> None:
    event = create_event(admin)
    with server.client(Org(server.database_url).headers()) as other:
        foreign = create_series(other)
        before = list_events(other, series=foreign)
        for series in (foreign, "se_nothing", ""):
            with case(series):
                refused = admin.post("/v1/events", json=example_event(series=series))
                assert expect_error(refused, 422, "invalid_request")["errors"][0]["field"] == "series"
                expect_error(admin.patch(f"/v1/events/{event}", json={"series": series}), 422, "invalid_request")
        expect_error(post_series_events(admin, foreign), 404, "not_found")
        assert list_events(admin, series=foreign) == []
        assert list_events(other, series=foreign) == before


def test_a_request_for_many_events_is_accepted_and_its_progress_can_be_read(admin: httpx.Client) -> None:
    series = new_series(admin)
    answer = post_series_events(admin, series, publish=True)
    job = expect_ok(answer, 202)
    expected = {"series": series, "status": "waiting", "total": 3, "created": 0, "failed": 0, "errors": []}
    assert {name: job[name] for name in expected} == expected
    assert answer.headers["location"] == f"/v1/series-jobs/{job['id']}"
    assert expect_ok(admin.get(answer.headers["location"])) == job


def test_the_same_request_is_one_job(admin: httpx.Client) -> None:
    series = new_series(admin)
    first = expect_ok(post_series_events(admin, series), 202)
    again = post_series_events(admin, series)
    assert expect_ok(again, 202)["id"] == first["id"]
    assert again.headers["idempotency-replayed"] == "true"
    assert expect_ok(post_series_events(admin, series, publish=True), 202)["id"] != first["id"]
    assert expect_ok(post_series_events(admin, new_series(admin)), 202)["id"] != first["id"]


def test_a_key_makes_one_job_of_one_body(admin: httpx.Client) -> None:
    series, key = new_series(admin), {"Idempotency-Key": "k-1"}
    first = expect_ok(post_series_events(admin, series, key), 202)
    assert expect_ok(post_series_events(admin, series, key), 202)["id"] == first["id"]
    expect_error(post_series_events(admin, series, key, publish=True), 422, "idempotency_key_reused")
    # A new key asks for the same events once more.
    assert expect_ok(post_series_events(admin, series, {"Idempotency-Key": "k-2"}), 202)["id"] != first["id"]
    expect_error(post_series_events(admin, series, {"Idempotency-Key": "k" * 256}), 400, "idempotency_key_missing")


@pytest.mark.parametrize("key", ["", "one key"])
def test_simultaneous_requests_make_one_job(server: Server, admin: httpx.Client, org: Org, key: str) -> None:
    series = new_series(admin)
    body = {"template": example_event(), "rule": THREE_DAYS}
    raw = request("POST", f"/v1/series/{series}/events", org.keys["admin"], body, key)
    replies = send_all_at_once(server.port, [raw] * 16)
    assert {reply.status for reply in replies} == {202}
    assert len({reply.body["id"] for reply in replies}) == 1
    (row,) = query(
        server.database_url, "SELECT count(*) FROM series_job WHERE series_id = $1", bytes.fromhex(series[3:])
    )
    assert row["count"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {"rule": "FREQ=DAILY"},
        {"rule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30;COUNT=3"},
        {"rule": "FREQ=DAILY;COUNT=1001"},
        {"rule": None},
        {"rule": "x" * 501},
        {"starts": []},
        {"starts": ["2027-03-05"]},
        {"starts": ["2027-03-05T19:00:00Z"] * 1001},
        {"until": "2027-03-05"},
        {"template": {"title": "No pools"}},
        {"template": {**example_event(), "series": "se_1"}},
        {"template": {**example_event(), "ends_at": "2027-03-05T18:00:00Z"}},
        {"template": {**example_event(), "timezone": "Moon/Base"}},
        {"template": {**example_event(), "policy": {"confirm_at_once": True}}},
        {"rule": "FREQ=MONTHLY;BYDAY=60MO;COUNT=2"},
        {"template": {**example_event(), "details": {"text": "x" * 17_000}}},
        {"template": {**example_event(), "details": {"text": "x" * 200_000}}},
    ],
)
def test_a_request_that_cannot_work_is_refused_and_leaves_no_job(
    server: Server, admin: httpx.Client, body: Body
) -> None:
    series = new_series(admin)
    expect_error(post_series_events(admin, series, **body), 422, "invalid_request")
    assert not query(server.database_url, "SELECT FROM series_job WHERE series_id = $1", bytes.fromhex(series[3:]))


def test_a_template_names_only_providers_that_are_set_up(admin: httpx.Client) -> None:
    template = {**example_event(), "providers": ["sandbax"]}
    answer = post_series_events(admin, new_series(admin), template=template, rule="FREQ=DAILY;COUNT=2")
    expect_error(answer, 422, "unknown_provider")


def test_an_org_can_have_only_so_many_unfinished_jobs(admin: httpx.Client) -> None:
    series = new_series(admin)
    for n in range(JOBS_MAX):
        expect_ok(post_series_events(admin, series, {"Idempotency-Key": f"{n}"}), 202)
    expect_error(post_series_events(admin, series, {"Idempotency-Key": "more"}), 409, "limit_reached")
    # What is already accepted stays accepted.
    expect_ok(post_series_events(admin, series, {"Idempotency-Key": "0"}), 202)


def test_a_request_beyond_the_quotas_of_the_org_is_refused(server: Server, org: Org) -> None:
    with (
        running_server(
            server.database_url, workers=1, HOLDFAST_EVENTS_PER_ORG="5", HOLDFAST_SEATS_PER_ORG="100"
        ) as small,
        small.client(org.headers()) as client,
    ):
        series = new_series(client)
        plain = example_event(pools=[{"code": "a", "capacity": 1}])
        # Two events with 40 seats fit, three do not.
        expect_error(post_series_events(client, series), 409, "limit_reached")
        expect_ok(post_series_events(client, series, rule="FREQ=DAILY;COUNT=2"), 202)
        expect_error(
            post_series_events(client, series, template=plain, rule="FREQ=DAILY;COUNT=6"), 409, "limit_reached"
        )
        expect_ok(post_series_events(client, series, template=plain, rule="FREQ=DAILY;COUNT=5"), 202)


@pytest.fixture(scope="module")
def catalogue(server: Server) -> Iterator[tuple[httpx.Client, str, dict[str, str]]]:
    """An org with a few events, its slug, and the ids of the events by name, soonest first."""
    org = Org(server.database_url, f"list-{secrets.token_hex(3)}")
    with server.client(org.headers()) as client:
        film = new_series(client, title="Casablanca")
        slots = [
            {"code": str(day), "capacity": 1, "starts_at": f"2027-03-{day:02}T10:00:00Z", "ends_at": None}
            for day in (2, 9)
        ]
        events: dict[str, Body] = {
            "museum": {"title": "Museum", "starts_at": "2027-03-01T09:00:00Z", "pools": slots},
            "monday": {"title": "Monday", "starts_at": "2027-03-01T19:00:00Z", "ends_at": "2027-03-01T21:00:00Z"},
            "opera": {"title": "Ópera: 100% Verdi", "starts_at": "2027-03-04T19:00:00Z"},
            "first": {"title": "Film", "series": film, "starts_at": "2027-03-05T19:00:00Z"},
            "shift": {
                "title": "Warehouse",
                "starts_at": "2027-03-06T06:00:00Z",
                "shift": {"address": "Dock 4, Harbour Road"},
            },
            "second": {"title": "Film", "series": film, "starts_at": "2027-03-12T19:00:00Z"},
            "gala": {"title": "Gala", "starts_at": "2027-03-13T19:00:00Z", "details": {"address": "Great Hall"}},
        }
        created = {
            name: publish_event(client, example_event(**event)) for name, event in reversed(list(events.items()))
        }
        yield client, org.slug, dict(reversed(list(created.items())))


def names(ids_by_name: dict[str, str], found: list[str]) -> list[str]:
    by_id = {id_: name for name, id_ in ids_by_name.items()}
    return [by_id[id_] for id_ in found]


Catalogue = tuple[httpx.Client, str, dict[str, str]]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 200])
def test_events_are_listed_soonest_first_and_each_once(catalogue: Catalogue, public: httpx.Client, limit: int) -> None:
    admin, slug, created = catalogue
    assert list_events(admin, limit=limit) == list(created.values())
    assert list_events(public, limit=limit, org=slug) == list(created.values())
    everywhere = list_events(public, limit=200)
    assert [id_ for id_ in everywhere if id_ in created.values()] == list(created.values())


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"from": "2027-03-05T19:00:00Z"}, ["museum", "first", "shift", "second", "gala"]),
        ({"from": "2027-03-09T10:00:00Z"}, ["museum", "second", "gala"]),
        ({"from": "2027-03-09T10:00:01Z"}, ["second", "gala"]),
        ({"to": "2027-03-04T19:00:00Z"}, ["museum", "monday"]),
        ({"from": "2027-03-04T00:00:00+01:00", "to": "2027-03-05T00:00:00+01:00"}, ["museum", "opera"]),
        ({"from": "2027-03-05T00:00:00Z", "to": "2027-03-01T00:00:00Z"}, []),
        ({"from": "9999-12-31T23:59:59-14:00"}, []),
        ({"to": "0001-01-01T00:00:00+14:00"}, []),
        ({"q": "film"}, ["first", "second"]),
        ({"q": "CASABLANCA"}, ["first", "second"]),
        ({"q": "hall great"}, ["gala"]),
        ({"q": "gala harbour"}, []),
        ({"q": "harbour ware"}, ["shift"]),
        ({"q": "100%"}, ["opera"]),
        ({"q": "ópera"}, ["opera"]),
        ({"q": "%"}, ["opera"]),
        ({"q": "_"}, []),
        ({"q": "\\"}, []),
        ({"q": "  "}, ["museum", "monday", "opera", "first", "shift", "second", "gala"]),
        ({"q": "a", "from": "2027-03-06T00:00:00Z"}, ["shift", "second", "gala"]),
    ],
)
def test_events_can_be_searched(
    catalogue: Catalogue, public: httpx.Client, params: dict[str, str], expected: list[str]
) -> None:
    admin, slug, created = catalogue
    for limit in (1, 200):
        assert names(created, list_events(admin, limit=limit, **params)) == expected
        assert names(created, list_events(public, limit=limit, org=slug, **params)) == expected
        if "from" in params or "to" in params:
            found = [id_ for id_ in list_events(public, limit=200, **params) if id_ in created.values()]
            assert names(created, found) == expected


def test_events_can_be_listed_by_series(catalogue: Catalogue, public: httpx.Client) -> None:
    admin, slug, created = catalogue
    series = expect_ok(admin.get(f"/v1/events/{created['first']}"))["series"]
    for client, params in ((admin, {}), (public, {}), (public, {"org": slug})):
        assert names(created, list_events(client, series=series, limit=1, **params)) == ["first", "second"]
    assert names(created, list_events(public, series=series, **{"from": "2027-03-06T00:00:00Z"})) == ["second"]
    assert list_events(public, series=series, q="gala") == []
    assert list_events(public, series="se_nothing") == []
    assert list_events(public, series=series, org="no-such-org") == []


@async_test
async def test_a_search_continues_where_it_stopped_even_if_it_has_found_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_handlers, "SCANNED_MAX", 3)
    async with lane_connection(database) as connection, local_pages(database) as pages:
        org = await new_org(connection)
        for day in range(1, 8):
            title = "Gala" if day == 7 else f"Day {day}"
            await new_event(connection, org, title=title, starts_at=f"2027-03-0{day}T19:00:00Z")
        found, after = [], None
        while True:
            query = EventsQuery(q="gala", after=after)
            page = (await pages.api.call(event_handlers.list_events, None, query=query)).content
            found.append([event.title for event in page.items])
            after = page.next
            if after is None:
                break
    assert found == [[], [], ["Gala"]]


def test_a_start_that_moves_moves_the_event_in_lists(admin: httpx.Client) -> None:
    soon, later = (create_event(admin, starts_at=f"2027-03-0{day}T19:00:00Z") for day in (1, 2))
    assert list_events(admin) == [soon, later]
    expect_ok(admin.patch(f"/v1/events/{soon}", json={"starts_at": "2027-03-03T19:00:00Z"}))
    assert list_events(admin) == [later, soon]


def test_a_slot_that_is_added_or_moved_counts_for_lists(admin: httpx.Client) -> None:
    event = create_event(admin, pools=[{"code": "a", "capacity": 1}])
    since = {"from": "2027-03-10T00:00:00Z"}
    assert list_events(admin, **since) == []
    slot = {"code": "b", "capacity": 1, "starts_at": "2027-03-11T10:00:00Z"}
    expect_ok(admin.patch(f"/v1/events/{event}", json={"pools": [slot]}))
    assert list_events(admin, **since) == [event]
    expect_ok(admin.patch(f"/v1/events/{event}", json={"pools": [{"code": "b", "starts_at": "2027-03-08T10:00:00Z"}]}))
    assert list_events(admin, **since) == []


def test_a_cursor_reads_back_and_nothing_else_is_a_cursor() -> None:
    text = "AAZpIlLYrAABoexMcdB7HZ0RcPoABtVq"
    cursor = parse_cursor(text)
    assert isinstance(cursor, EventCursor)
    assert str(cursor) == text
    for other in ("", "x", text[:-1], text + "A", text[:-1] + "*", "_" * 32, f"{text}\n", " " * 32):
        assert parse_cursor(other) is None, other


def test_a_search_has_a_limited_number_of_words_that_match_literally() -> None:
    assert search_patterns("a_b 100% c\\d") == ["%a\\_b%", "%100\\%%", "%c\\\\d%"]
    assert len(search_patterns("word " * 50)) == 8
    assert search_patterns(None) == []
