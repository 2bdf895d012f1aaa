"""Pages stay cheap: each runs a fixed number of SQL statements, however many events are on sale, and signs no token."""

import asyncio
import re
import threading
from typing import Any

import jwt
import pytest

from holdfast import sql
from holdfast.api import ticket_handlers
from holdfast.api.auth import CALLERS_MAX, Authenticator, Caller
from holdfast.core.booking import Booking
from holdfast.core.commands import Accepted
from holdfast.core.event_schemas import EventChange
from holdfast.core.states import Verb
from holdfast.core.stock_schemas import PoolChange, SeatGrid
from holdfast.engine.event_editor import change_event
from holdfast.runtime import db, ids
from holdfast.runtime.credentials import Role
from holdfast.runtime.shared_secrets import SecretName, SharedSecret
from holdfast.web import page_request, seat_layouts, site
from holdfast.web.assets import make_asset
from holdfast.web.rendering import compile_templates, templates
from holdfast.web.session import COOKIE, read_cookie
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    new_org,
    run_commands,
)
from tests.support.harness import SANDBOX_SECRET
from tests.support.html_client import HTML
from tests.support.local_pages import LocalPages, local_pages

EVENT_PAGE_STATEMENTS_MAX = 2
HELD_PAGE_STATEMENTS_MAX = 2
STATE_STATEMENTS_MAX = 2
TICKETS_PAGE_STATEMENTS_MAX = 5
START_PAGE_STATEMENTS_MAX = 3


async def _hold_as_guest(connection: db.Connection, pages: LocalPages, event: EventHandle) -> Booking:
    """Place a hold for the guest of this browser, so that the page has a booking to show."""
    await pages.get(f"/e/{event.text}")
    keyring = await SharedSecret(db.Database(connection), SecretName.SESSIONS).keyring()
    cookie = read_cookie(pages.client.cookies[COOKIE], keyring)
    assert cookie is not None
    user = cookie.session.user(event.org)
    (outcome,) = await run_commands(connection, [new_hold_command(event, "A-1", user=user)])
    assert isinstance(outcome, Accepted)
    return outcome.booking


@async_test
async def test_booking_pages_cost_few_statements(database: str) -> None:
    async with lane_connection(database) as connection, local_pages(database) as pages:
        event = await new_event(connection)
        booking = await _hold_as_guest(connection, pages, event)
        path = f"/b/{ids.format_booking_id(event.id, booking.id)}"
        assert await pages.count_statements(path) <= HELD_PAGE_STATEMENTS_MAX, pages.statements
        assert await pages.count_statements(f"{path}/state") <= STATE_STATEMENTS_MAX, pages.statements
        assert not [statement for statement in pages.statements if "FROM tariff" in statement]
        await run_commands(connection, [new_action_command(event, booking.id, Verb.CONFIRM)])
        assert await pages.count_statements(path) <= TICKETS_PAGE_STATEMENTS_MAX, pages.statements
        assert "/qr.svg" in await pages.get(path)


@async_test
async def test_a_list_of_bookings_does_not_load_the_pools_of_their_events(database: str) -> None:
    async with lane_connection(database) as connection, local_pages(database) as pages:
        event = await new_event(connection, title="The winter concert")
        await _hold_as_guest(connection, pages, event)
        slug = await connection.fetchval("SELECT slug FROM org")
        pages.statements.clear()
        assert "The winter concert" in await pages.get(f"/o/{slug}/bookings")
        assert sql.pages.booked_events in pages.statements
        assert not [statement for statement in pages.statements if "FROM tariff" in statement]


@async_test
async def test_a_process_shows_a_booking_without_loading_the_hall(database: str) -> None:
    async with lane_connection(database) as connection, local_pages(database) as pages:
        event = await new_event(connection)
        booking = await _hold_as_guest(connection, pages, event)
        pages.statements.clear()
        assert "A-1" in await pages.get(f"/b/{ids.format_booking_id(event.id, booking.id)}")
        assert "A-1" in await pages.get(f"/e/{event.text}")
        assert sql.engine.load_layout_seats not in pages.statements


@async_test
async def test_everyone_who_opens_a_seat_map_at_once_shares_one_read(database: str) -> None:
    async with lane_connection(database) as connection, local_pages(database) as pages:
        event = await new_event(connection)
        await asyncio.gather(*(pages.get(f"/e/{event.text}/layout.json") for _ in range(8)))
        assert pages.statements.count(sql.pages.seat_positions) == 1


@async_test
async def test_seat_maps_above_the_memory_limit_leave_the_cache_oldest_first(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lane_connection(database) as connection, local_pages(database) as pages:
        paths = [f"/e/{(await new_event(connection)).text}/layout.json" for _ in range(3)]
        size = make_asset((await pages.get(paths[0])).encode(), "").size
        monkeypatch.setattr(seat_layouts, "LAYOUTS_BYTES_MAX", 2 * size)
        for path in (paths[1], paths[0], paths[2], paths[0], paths[2]):
            await pages.get(path)
        assert pages.statements.count(sql.pages.seat_positions) == 3
        await pages.get(paths[1])
        assert pages.statements.count(sql.pages.seat_positions) == 4


@async_test
async def test_an_event_page_for_a_guest_costs_few_statements_and_no_token(database: str) -> None:
    async with lane_connection(database) as connection, local_pages(database) as pages:
        event = await new_event(connection)
        await _hold_as_guest(connection, pages, event)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jwt, "encode", lambda *_, **__: pytest.fail("a page signed a token"))
            count = await pages.count_statements(f"/e/{event.text}")
        assert "A-1" in await pages.get(f"/e/{event.text}")
        assert 1 <= count <= EVENT_PAGE_STATEMENTS_MAX, pages.statements


@async_test
async def test_a_list_costs_the_same_with_one_event_and_with_sixty(database: str) -> None:
    async with lane_connection(database) as connection, local_pages(database) as pages:
        org = await new_org(connection)
        slug = await connection.fetchval("SELECT slug FROM org")
        await new_event(connection, org, title="Number 0")
        paths = ("/", f"/o/{slug}")
        alone = [await pages.count_statements(path) for path in paths]
        for number in range(1, 60):
            await new_event(connection, org, title=f"Number {number}")
        assert [await pages.count_statements(path) for path in paths] == alone
        assert max(alone) <= START_PAGE_STATEMENTS_MAX
        assert (await pages.get("/")).count(">Number ") == 60


@async_test
async def test_a_pool_added_while_the_seats_are_read_appears_with_the_next_revision(database: str) -> None:
    async with lane_connection(database) as connection, local_pages(database) as pages:
        event = await new_event(connection)
        layout = f"/e/{event.text}/layout.json"

        load_layout = seat_layouts._load_layout

        async def add_pool_first(*arguments: Any) -> Any:
            change = EventChange(pools=[PoolChange(code="box", seats=SeatGrid(rows=["Z"], numbers=1))])
            await change_event(db.Database(connection), event.org, event.id, change, "test")
            return await load_layout(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(seat_layouts, "_load_layout", add_pool_first)
            assert "Z-1" not in await pages.get(layout)
        assert "Z-1" in await pages.get(layout)


@async_test
async def test_no_route_works_for_an_address_that_is_over_its_limit(database: str) -> None:
    """This covers routes that are added later."""
    async with local_pages(database, rate_per_address=0.001, demo=True, sandbox_webhook_secret=SANDBOX_SECRET) as pages:
        assert (await pages.client.get("/docs")).status_code == 200
        pages.statements.clear()
        routes = [(method, route.path) for route in pages.routes for method in (route.methods or set()) - {"HEAD"}]
        assert {path for _, path in routes} >= {"/", "/logo/{slug}", "/static/{version}/{name}", "/enter", "/docs"}
        for method, path in routes:
            answer = await pages.client.request(method, re.sub(r"{\w+(:path)?}", "x", path), headers={"accept": HTML})
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1"), (method, path)
        answer = await pages.client.get("/", headers={"accept": "application/json"})
        assert (answer.status_code, answer.json()) == (429, {"code": "rate_limited"})
        assert pages.statements == []


@async_test
async def test_a_page_that_calls_several_operations_counts_once(database: str) -> None:
    async with lane_connection(database) as connection, local_pages(database, rate_per_address=0.001) as pages:
        event = await new_event(connection)
        assert (await pages.client.get(f"/e/{event.text}/layout.json")).status_code == 200
        assert (await pages.client.get(f"/e/{event.text}/layout.json")).status_code == 429


@async_test
async def test_the_limit_of_pages_counts_the_address_that_the_outermost_proxy_saw(database: str) -> None:
    """A client can send lines of its own, and each proxy may add a line instead of appending to one."""

    async def count(pages: LocalPages, client: str) -> list[int]:
        answers = [
            await pages.client.get(
                "/docs", headers=[("x-forwarded-for", f"192.0.2.{n}, {client}"), ("x-forwarded-for", "10.0.0.1")]
            )
            for n in range(3)
        ]
        return [answer.status_code for answer in answers]

    async with local_pages(database, rate_per_address=0.001, proxies=2) as pages:
        assert await count(pages, "198.51.100.1") == [200, 429, 429]
        assert await count(pages, "198.51.100.2") == [200, 429, 429]


@async_test
async def test_a_browser_that_requests_too_many_pages_is_limited(database: str) -> None:
    async with lane_connection(database) as connection, local_pages(database, rate_per_address=2) as pages:
        event = await new_event(connection)
        for path in ("/", f"/e/{event.text}"):
            codes = []
            for _ in range(20):
                pages.client.cookies.clear()
                codes.append((await pages.client.get(path)).status_code)
            assert 429 in codes, path


@async_test
async def test_many_customers_do_not_evict_a_busy_key_from_the_cache(database: str) -> None:
    async with await db.create_pool(database, 1) as pool:
        authenticator = Authenticator(db.Database(pool))
        staff = Caller(b"", Role.ADMIN, "key:staff")
        authenticator._remember("staff", staff, 60)
        for number in range(CALLERS_MAX + 10):
            authenticator._remember(f"customer {number}", staff, 60)
            assert authenticator.find_cached("staff") is staff
        assert authenticator.find_cached("customer 0") is None
        assert len(authenticator._cache) == CALLERS_MAX


@async_test
async def test_a_thread_compiles_all_templates_for_the_first_page(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def compile_all() -> None:
        threads.append(threading.current_thread().name)
        compile_templates()

    assert templates.cache is not None
    templates.cache.clear()
    monkeypatch.setattr(site, "compile_templates", compile_all)
    async with lane_connection(database) as connection, local_pages(database) as pages:
        event = await new_event(connection)
        await asyncio.gather(*(pages.get(f"/e/{event.text}") for _ in range(3)))
    assert len(threads) == 1
    assert threads[0] != threading.main_thread().name
    assert len(templates.cache) == len(templates.list_templates())


@async_test
async def test_a_thread_draws_qr_codes(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def record(_: str) -> bytes:
        threads.append(threading.current_thread().name)
        return b""

    monkeypatch.setattr(ticket_handlers, "qr_svg", record)
    async with lane_connection(database) as connection, local_pages(database) as pages:
        event = await new_event(connection)
        booking = await _hold_as_guest(connection, pages, event)
        await run_commands(connection, [new_action_command(event, booking.id, Verb.CONFIRM)])
        page = await pages.get(f"/b/{ids.format_booking_id(event.id, booking.id)}")
        path = re.findall(r'"(/b/[^"]+)/qr.svg', page)[0]
        await pages.get(f"{path}/qr.svg")
    assert len(threads) == 1
    assert threading.main_thread().name not in threads


@async_test
async def test_a_thread_renders_a_page_with_many_rows(database: str) -> None:
    threads: dict[str, str] = {}

    def record(template: str, *_: Any, **__: Any) -> str:
        threads[template] = threading.current_thread().name
        return ""

    async with lane_connection(database) as connection, local_pages(database) as pages:
        pools = [{"code": f"p{n}", "capacity": 1} for n in range(page_request.ROWS_AT_ONCE_MAX + 1)]
        large, small = await new_event(connection, pools=pools), await new_event(connection)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(page_request, "render", record)
            await pages.get(f"/e/{small.text}")
            assert threads.pop("event.html") == threading.main_thread().name
            await pages.get(f"/e/{large.text}")
            assert threads.pop("event.html") != threading.main_thread().name
            tariffs = [{"code": f"t{n}", "price": n} for n in range(page_request.ROWS_AT_ONCE_MAX)]
            two_pools = [{"code": code, "capacity": 1, "tariffs": tariffs} for code in "ab"]
            await pages.get(f"/e/{(await new_event(connection, pools=two_pools)).text}")
            assert threads.pop("event.html") != threading.main_thread().name
            patch.setattr(page_request, "ROWS_AT_ONCE_MAX", 1)
            await pages.get("/")
            assert threads.pop("events.html") != threading.main_thread().name
