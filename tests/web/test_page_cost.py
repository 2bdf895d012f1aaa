"""Pages stay cheap: each runs a fixed number of SQL statements, however many events are on sale, and signs no token."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import jwt
import pytest
from msgspec import Struct
from starlette.applications import Starlette

from holdfast.api.app import make_services
from holdfast.api.auth import CALLERS_MAX, Authenticator, Caller
from holdfast.api.endpoint import Limits
from holdfast.api.in_process import InProcessApi
from holdfast.api.operations import OPERATIONS
from holdfast.core.booking import Booking
from holdfast.core.commands import Accepted
from holdfast.core.event_schemas import EventChange, PoolChange, SeatGrid
from holdfast.core.states import Verb
from holdfast.engine.engine import Engine
from holdfast.engine.event_editor import change_event
from holdfast.runtime import db, ids
from holdfast.runtime.asgi import create_pages
from holdfast.runtime.credentials import Role
from holdfast.runtime.settings import Settings
from holdfast.web import event_pages
from holdfast.web.customer_api import get_seats
from holdfast.web.session import COOKIE, read_cookie
from holdfast.web.site import SECRET_NAME
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

EVENT_PAGE_STATEMENTS_MAX = 2
HELD_PAGE_STATEMENTS_MAX = 2
STATE_STATEMENTS_MAX = 2
TICKETS_PAGE_STATEMENTS_MAX = 5
START_PAGE_STATEMENTS_MAX = 3


class LocalPages(Struct):
    """The pages in this process, with every statement that their pool runs."""

    client: httpx.AsyncClient
    pool: db.Pool
    statements: list[str]

    async def count_statements(self, path: str) -> int:
        """The number of statements of a page whose caches are warm."""
        await self.get(path)
        self.statements.clear()
        await self.get(path)
        return len(self.statements)

    async def get(self, path: str) -> str:
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text


@asynccontextmanager
async def local_pages(url: str, **settings: Any) -> AsyncIterator[LocalPages]:
    statements: list[str] = []

    def record(query: Any) -> None:
        # The pool resets a returned connection. That is no statement of the page.
        if "pg_advisory_unlock_all" not in query.query:
            statements.append(query.query)

    async def prepare(connection: db.Connection) -> None:
        await db.register_uuid_codec(connection)
        connection.add_query_logger(record)

    engine = Engine(url, 1)
    engine.start()
    async with asyncpg.create_pool(url, min_size=1, max_size=4, init=prepare) as pool:
        services = make_services(Settings(database_url=url, **settings), pool, engine)
        routes = create_pages(InProcessApi(OPERATIONS, services, Limits(services)), services)
        transport = httpx.ASGITransport(Starlette(routes=routes))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            yield LocalPages(client, pool, statements)
        await services.inbox.close()
    await engine.close()


async def _hold_as_guest(connection: db.Connection, pages: LocalPages, event: EventHandle) -> Booking:
    """Place a hold for the guest of this browser, so that the page has a booking to show."""
    await pages.get(f"/e/{event.text}")
    secret = await connection.fetchval("SELECT value FROM secret WHERE name = $1", SECRET_NAME)
    session = read_cookie(pages.client.cookies[COOKIE], secret)
    assert session is not None
    (outcome,) = await run_commands(connection, [new_hold_command(event, "A-1", user=session.user(event.org))])
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

        async def add_pool_first(*arguments: Any) -> Any:
            change = EventChange(pools=[PoolChange(code="box", seats=SeatGrid(rows=["Z"], numbers=1))])
            await change_event(db.Database(connection), event.org, event.id, change, "test")
            return await get_seats(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(event_pages, "get_seats", add_pool_first)
            assert "Z-1" not in await pages.get(layout)
        assert "Z-1" in await pages.get(layout)


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
