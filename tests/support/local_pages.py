"""The pages in the test's own process, without a server, so that a test can count and change what they use."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
from msgspec import Struct
from starlette.applications import Starlette
from starlette.routing import Route

from holdfast.api.app import make_services
from holdfast.api.endpoint import Limits
from holdfast.api.in_process import InProcessApi
from holdfast.api.operations import OPERATIONS
from holdfast.engine.engine import Engine
from holdfast.runtime import db
from holdfast.runtime.asgi import create_pages
from holdfast.runtime.settings import Settings


class LocalPages(Struct):
    """The pages in this process, with every statement that their pool runs."""

    client: httpx.AsyncClient
    pool: db.Pool
    routes: list[Route]
    statements: list[str]
    api: InProcessApi

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
        # The pool resets a returned connection, and a process reads its secrets every few seconds. Neither is a
        # statement of the page.
        if "pg_advisory_unlock_all" not in query.query and "FROM clock CROSS JOIN secret" not in query.query:
            statements.append(query.query)

    async def prepare(connection: db.Connection) -> None:
        await db.register_uuid_codec(connection)
        connection.add_query_logger(record)

    engine = Engine(url, 1)
    engine.start()
    async with asyncpg.create_pool(url, min_size=1, max_size=4, init=prepare) as pool:
        services = make_services(Settings(database_url=url, **settings), pool, engine)
        api = InProcessApi(OPERATIONS, services, Limits(services))
        routes = create_pages(api, services)
        transport = httpx.ASGITransport(Starlette(routes=routes))
        pages = [route for route in routes if isinstance(route, Route)]
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            yield LocalPages(client, pool, pages, statements, api)
        await services.inbox.close()
    await engine.close()
