"""The ASGI application of one API process."""

import asyncio
import gc
import os
import re
import signal
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from starlette.routing import BaseRoute, Route, Router

from holdfast.api.auth import Callers
from holdfast.api.call import ApiResponse, Operation, Services
from holdfast.api.endpoint import Endpoint, Limits, Receive, Scope, Send, send_answer
from holdfast.api.live_socket import WATCH, LiveFeed
from holdfast.api.openapi import openapi_document
from holdfast.api.operations import OPERATIONS
from holdfast.api.problems import problem
from holdfast.core.refusals import Refusal, Refused
from holdfast.engine.engine import Engine
from holdfast.live.live_event import LiveEvents
from holdfast.payments.inbox import Inbox
from holdfast.payments.registry import make_providers
from holdfast.runtime import db
from holdfast.runtime.process_lifetime import end_with_parent
from holdfast.runtime.settings import Settings
from holdfast.runtime.storage import open_storage

READ_CONNECTIONS: Final = 8
CLOSE_SECONDS: Final = 5
BEGIN_SECONDS: Final = 0.05
# Which part of a path is the id: /v1/events/{id}/…
ID_AT: Final = 3


class App:
    """Starts with what it needs, serves the table of operations, and drains its lanes before it stops."""

    def __init__(
        self, settings: Settings, operations: Sequence[Operation] = OPERATIONS, pages: "Pages | None" = None
    ) -> None:
        assert settings.database_url is not None
        self._settings = settings
        self._url = settings.database_url
        self._operations = operations
        self._pages = pages
        self._paths: dict[str, _Methods] = {}
        self._feeds: dict[str, LiveFeed] = {}
        self._router = Router(lifespan=self._lifespan, default=_not_found, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Operations are found by their path as it is, or with whatever stands at the place of `{id}`; the rest is for
        the router."""
        if scope["type"] != "lifespan":
            parts = scope["path"].split("/")
            scope["path_params"] = {}
            if len(parts) > ID_AT:
                scope["path_params"] = {"id": parts[ID_AT]}
                parts[ID_AT] = "{id}"
            served = self._paths if scope["type"] == "http" else self._feeds
            found = served.get("/".join(parts)) or served.get(scope["path"])
            if found is not None:
                await found(scope, receive, send)
                return
        await self._router(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        end_with_parent()
        interrupt = _Interrupt()
        pool = await db.create_pool(self._url, READ_CONNECTIONS)
        engine = Engine(self._url, self._settings.lanes)
        engine.start()
        services = _services(self._settings, pool, engine)
        limits = Limits(services)
        live = LiveFeed(services, limits)
        self._paths = operations_by_path(self._operations, services, limits)
        self._feeds = {WATCH.path: live}
        more = self._pages(self, services) if self._pages is not None else ()
        self._router.routes.extend([*more, *_documents(self._operations)])
        _tune_gc()
        interrupt.serve(live)
        try:
            yield
        finally:
            await live.close()
            await services.inbox.close()
            await engine.close()
            await _close(pool)


# Routes of other edges, made once there is a house, and looked at before our own.
Pages = Callable[[App, Services], list[BaseRoute]]


class _Interrupt:
    """What an interrupt does from the start: once the process serves, those who watch are told that it will be back,
    and then it is terminated. Granian would cut them off, and must not be asked to stop before it has begun."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._live: asyncio.Future[LiveFeed] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None
        if threading.current_thread() is threading.main_thread():
            self._loop.add_signal_handler(signal.SIGINT, self._begin)

    def serve(self, live: LiveFeed) -> None:
        self._live.set_result(live)

    def _begin(self) -> None:
        self._task = self._task or self._loop.create_task(self._leave())

    async def _leave(self) -> None:
        live = await self._live
        await asyncio.sleep(BEGIN_SECONDS)
        await live.close()
        os.kill(os.getpid(), signal.SIGTERM)


async def _close(pool: db.Pool) -> None:
    """Those who still read are waited for, but not for ever."""
    try:
        await asyncio.wait_for(pool.close(), CLOSE_SECONDS)
    except TimeoutError:
        pool.terminate()


def _services(settings: Settings, pool: db.Pool, engine: Engine) -> Services:
    database = db.Database(pool)
    providers = make_providers(settings, database)
    return Services(
        settings=settings,
        pool=pool,
        database=database,
        engine=engine,
        callers=Callers(pool),
        providers=providers,
        inbox=Inbox(database, engine, providers),
        storage=open_storage(settings.receipts_url, settings.data_dir / "receipts"),
        live_events=LiveEvents(db.Database(pool)),
    )


def _tune_gc() -> None:
    """Hardly anything here is garbage in circles. What lives from the start is never looked at again, and the rest
    seldom: by default the collector took a twelfth of the time of a busy process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def operations_by_path(operations: Sequence[Operation], services: Services, limits: Limits) -> "dict[str, _Methods]":
    by_path: dict[str, dict[str, Endpoint]] = defaultdict(dict)
    for operation in operations:
        path = re.sub(r"{\w+}", "{id}", operation.path)
        assert "{" not in path or path.split("/")[ID_AT] == "{id}"
        by_path[path][operation.method] = Endpoint(operation, services, limits)
    return {path: _Methods(endpoints) for path, endpoints in by_path.items()}


def _documents(operations: Sequence[Operation]) -> list[Route]:
    document = _Static(ApiResponse(openapi_document(operations)))
    start = _Static(ApiResponse(b"", 307, ((b"location", b"/docs"),)))
    shown = {"/openapi.json": document, "/": start}
    return [Route(path, _Methods({"GET": static})) for path, static in shown.items()]


class _Methods:
    """The endpoints of one path by method."""

    def __init__(self, endpoints: "dict[str, Endpoint] | dict[str, _Static]") -> None:
        self._endpoints = endpoints
        self._allow = (b"allow", ", ".join(sorted(endpoints)).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is not None:
            await endpoint(scope, receive, send)
            return
        answer = problem(Refused(Refusal.METHOD_NOT_ALLOWED))
        await send_answer(send, ApiResponse(answer.body, answer.status, (self._allow,), answer.content_type))


class _Static:
    def __init__(self, answer: ApiResponse) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_answer(send, self._answer)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    await send_answer(send, problem(Refused(Refusal.NOT_FOUND)))
