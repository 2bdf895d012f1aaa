"""However large the things of a tenant are, a page of them stays small, and `next` leads to the rest."""

from typing import Any

import httpx
import pytest

from holdfast.api.booking_handlers import PAGE_LINES_MAX
from holdfast.api.event_handlers import EVENTS_PAGE_BYTES, JOURNAL_PAGE_BYTES
from holdfast.core.stock_schemas import TARIFFS_MAX
from tests.support.harness import Org, Server, example_event, post_hold, publish_event, query

SEATS = 2_500
# As long as a label may be, and nearly the same, so that the database stores them in a fraction of their size.
LABELS = [f"{'L' * 58}-{number:05}" for number in range(SEATS)]


@pytest.fixture(scope="module")
def hall(admin: httpx.Client) -> str:
    """An event with several entries in its journal that name all of its seats."""
    seats = [{"label": label} for label in LABELS]
    event = publish_event(admin, example_event(pools=[{"code": "hall", "seats": seats}], policy={}))
    for n in range(8):
        change = {"unblock_seats" if n % 2 else "block_seats": LABELS}
        assert admin.patch(f"/v1/events/{event}", json=change).status_code == 200
    return event


def read_pages(client: httpx.Client, path: str, items: str, **query: Any) -> list[tuple[int, list[dict[str, Any]]]]:
    """The size and the items of each page, until there are no more."""
    pages: list[tuple[int, list[dict[str, Any]]]] = []
    after: dict[str, Any] = {}
    while True:
        response = client.get(path, params={**query, **after})
        assert response.status_code == 200
        body = response.json()
        if body[items]:
            pages.append((len(response.content), body[items]))
        if not body[items] or body["next"] is None:
            return pages
        after = {"after": body["next"]}


@pytest.mark.parametrize(("resource", "items"), [("changes", "changes"), ("journal", "items")])
def test_a_page_of_large_journal_entries_ends_early_and_the_next_one_goes_on(
    admin: httpx.Client, hall: str, resource: str, items: str
) -> None:
    pages = read_pages(admin, f"/v1/events/{hall}/{resource}", items)
    one_entry = max(size for size, _ in pages) // 5
    assert len(pages) > 1
    assert all(size < JOURNAL_PAGE_BYTES + 2 * one_entry for size, _ in pages)
    numbers = [entry["seq"] for _, entries in pages for entry in entries]
    assert numbers == list(range(1, 11))


def test_an_entry_that_is_larger_than_a_page_is_a_page_of_its_own(admin: httpx.Client, server: Server) -> None:
    event = publish_event(admin, example_event())
    assert admin.patch(f"/v1/events/{event}", json={"title": "New"}).status_code == 200
    seats = ",".join(f'"{n}":"blocked"' for n in range(2 * JOURNAL_PAGE_BYTES // 15))
    statement = "UPDATE journal SET data = $2::text::json WHERE number < 3 AND event_id = $1"
    query(server.database_url, statement, bytes.fromhex(event[3:]), f'{{"seats":{{{seats}}}}}')
    pages = read_pages(admin, f"/v1/events/{event}/journal", "items")
    assert [[entry["seq"] for entry in entries] for _, entries in pages] == [[1], [2], [3]]


def test_a_page_of_small_entries_has_as_many_as_were_asked_for(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"max_units_per_user": None}))
    for _ in range(5):
        post_hold(admin, event, items=[{"pool": "standing", "tariff": "full", "quantity": 1}])
    pages = read_pages(admin, f"/v1/events/{event}/journal", "items", limit=3)
    assert [len(entries) for _, entries in pages] == [3, 3, 1]


def test_a_page_of_large_events_ends_early(server: Server) -> None:
    with server.client(Org(server.database_url).headers()) as client:
        pools = [{"code": f"p{n}", "name": f"{n:é>200}", "capacity": 1} for n in range(TARIFFS_MAX)]
        for n in range(13):
            assert client.post("/v1/events", json=example_event(title=f"Event {n}", pools=pools)).status_code == 201
        pages = read_pages(client, "/v1/events", "items", limit=200)
    assert len(pages) > 2
    assert max(size for size, _ in pages) < 2 * EVENTS_PAGE_BYTES
    titles = [event["title"] for _, events in pages for event in events]
    assert titles == [f"Event {n}" for n in range(13)]


def test_a_page_of_large_bookings_ends_early(server: Server) -> None:
    with server.client(Org(server.database_url).headers()) as client:
        grid = {"rows": [f"R{n}" for n in range(10)], "numbers": 1000}
        pool = {"code": "hall", "seats": grid}
        event = publish_event(client, example_event(pools=[pool], policy={"max_units_per_user": None}))
        placed = []
        for _ in range(2 * PAGE_LINES_MAX // 100 - 20):
            held = post_hold(client, event, best_available={"pool": "hall", "quantity": 100})
            assert held.status_code == 201
            placed.append(held.json()["id"])
        pages = read_pages(client, "/v1/bookings", "items", limit=200)
    assert [sum(len(booking["items"]) for booking in bookings) for _, bookings in pages] == [5_000, 3_000]
    assert [booking["id"] for _, bookings in pages for booking in bookings] == list(reversed(placed))


def test_a_booking_reads_the_same_as_when_it_was_placed(admin: httpx.Client) -> None:
    """The engine answers from the layout in memory, a read from the database."""
    event = publish_event(admin, example_event(policy={"avoid_orphans": False, "max_units_per_user": None}))
    items = [{"seat": "A-2"}, {"pool": "standing", "tariff": "full", "quantity": 3}, {"seat": "A-1"}]
    placed = post_hold(admin, event, items=items).json()
    read = admin.get(f"/v1/bookings/{placed['id']}").json()
    (listed,) = admin.get("/v1/bookings", params={"event": event}).json()["items"]
    assert placed["items"] == read["items"] == listed["items"]
    assert [item["seat"] for item in read["items"]] == ["A-2", None, "A-1"]
