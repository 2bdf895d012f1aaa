"""The ASGI application of one API process."""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.api.asyncapi import asyncapi_document
from holdfast.api.auth import Authenticator
from holdfast.api.body_sender import PacedSend
from holdfast.api.call import ApiResponse, Operation, Services
from holdfast.api.client_hash import ClientHasher
from holdfast.api.connection_guard import ConnectionGuard
from holdfast.api.endpoint import CLOSE, NO_STORE, QUERY_BYTES_MAX, Endpoint, Limits, close_unread, send_response
from holdfast.api.in_process import InProcessApi
from holdfast.api.live_socket import WATCH, LiveFeed
from holdfast.api.openapi import openapi_document
from holdfast.api.operations import OPERATIONS
from holdfast.api.problems import HTTP_STATUS, problem
from holdfast.api.responses import Problem
from holdfast.api.too_long_page import accepts_html, too_long_page
from holdfast.core.refusals import Refusal, Refused, RefusedError
from holdfast.engine.batch import ignore_commit
from holdfast.engine.engine import Engine
from holdfast.live.live_event import LiveEventCache
from holdfast.payments.inbox import Inbox
from holdfast.payments.registry import make_providers
from holdfast.runtime import db
from holdfast.runtime.loop_lag import LoopLag
from holdfast.runtime.process_lifetime import end_with_parent
from holdfast.runtime.settings import Settings
from holdfast.runtime.storage import open_storage
from holdfast.runtime.supervision import TaskHealth

if TYPE_CHECKING:
    # Its package is optional.
    from holdfast.gate.redis_layer import RedisLayer

READ_CONNECTIONS: Final = 8
REPORT_CONNECTIONS: Final = 4
# Cookies, languages and other lists in headers, which pages parse.
PAGE_HEADER_BYTES_MAX: Final = QUERY_BYTES_MAX
SWITCH_SECONDS: Final = 0.0005
# Granian ignores a signal that arrives before it has begun to serve.
SERVER_START_SECONDS: Final = 0.05
# The position of the one parameter in a path: /v1/events/{id}/…
PARAMETER_AT: Final = 3
PLACEHOLDER: Final = "{}"


class App:
    """Serves the operations and the pages, and drains its lanes before it stops."""

    def __init__(
        self, settings: Settings, operations: Sequence[Operation] = OPERATIONS, pages: "Pages | None" = None
    ) -> None:
        assert settings.database_url is not None
        self._settings = settings
        self._url = settings.database_url
        self._operations = operations
        self._pages = pages
        self._routes: dict[str, PathRoute] = {}
        self._live_routes: dict[str, PathRoute] = {}
        self.loop_lag = LoopLag()
        self._limits: Limits | None = None
        self._router = Router(lifespan=self._lifespan, default=self._not_found, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look an operation up by its path, with the part that may be an id taken out. Anything else is for Starlette's
        router, which is too slow for holds."""
        if scope["type"] != "lifespan":
            path: str = scope["path"]
            parts = path.split("/")
            value = ""
            if len(parts) > PARAMETER_AT:
                value = parts[PARAMETER_AT]
                parts[PARAMETER_AT] = PLACEHOLDER
            routes = self._routes if scope["type"] == "http" else self._live_routes
            route = routes.get("/".join(parts)) or routes.get(path)
            if route is not None:
                scope["path_params"] = {route.parameter: value} if route.parameter else {}
                await route.app(scope, receive, send)
                return
            if scope["type"] == "http" and not await self._admit_page(scope, send):
                return
            if scope["type"] == "http" and self._limits is not None:
                send = PacedSend(self._limits.body_sender, receive, send)
        await self._router(scope, receive, send)

    async def _admit_page(self, scope: Scope, send: Send) -> bool:
        """Refuse a query or a header that would take long to parse. The operations of the API have limits of their own,
        and look at few headers."""
        longest = max((len(value) for _, value in scope["headers"]), default=0)
        if longest <= PAGE_HEADER_BYTES_MAX and len(scope["query_string"]) <= QUERY_BYTES_MAX:
            return True
        detail = (
            f"The query string and each header may have at most {PAGE_HEADER_BYTES_MAX:,} bytes. "
            "Shorten the URL, or clear this site's cookies."
        )
        response: ApiResponse[object] = _refuse(scope, self._limits, Refused(Refusal.INVALID_REQUEST, detail))
        if response.status != HTTP_STATUS[Refusal.RATE_LIMITED] and accepts_html(scope):
            response = too_long_page(response.status, is_https=self._settings.public_url.startswith("https:"))
        await send_response(send, response, NO_STORE, CLOSE)
        return False

    async def _not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        refused = close_unread(_refuse(scope, self._limits, Refused(Refusal.NOT_FOUND)), scope)
        await send_response(send, refused, NO_STORE)

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        end_with_parent()
        interrupt = _Interrupt()
        pool = await db.create_pool(self._url, READ_CONNECTIONS)
        report_pool = await db.create_pool(self._url, REPORT_CONNECTIONS)
        task_health = TaskHealth()
        redis = open_redis(self._settings, db.Database(pool))
        on_commit = redis.writer.add_batch if redis is not None else ignore_commit
        engine = Engine(self._url, self._settings.lanes, task_health, on_commit)
        engine.start()
        services = make_services(self._settings, pool, engine, task_health, report_pool, redis)
        limits = self._limits = Limits(services)
        if redis is not None:
            redis.start(limits.shared)
        live = LiveFeed(services, limits)
        live.start()
        guard = ConnectionGuard(self._settings, live, task_health)
        guard.start()
        self._routes = routes_by_path(self._operations, services, limits)
        self._live_routes = {_route_key(WATCH): PathRoute(WATCH.path_parameter, live)}
        in_process = InProcessApi(self._operations, services, limits)
        pages = self._pages(in_process, services) if self._pages is not None else ()
        self._router.routes.extend([*pages, *_document_routes(self._operations, self._settings, in_process)])
        _tune_interpreter()
        interrupt.set_live_feed(live)
        self.loop_lag.start()
        try:
            yield
        finally:
            await guard.close()
            self.loop_lag.stop()
            await live.close()
            await services.inbox.close()
            await engine.close()
            if redis is not None:
                await redis.close()
            for provider in services.providers.values():
                await provider.aclose()
            await db.close_pool(pool)
            await db.close_pool(report_pool)


# Makes the routes of the pages, which come before the API's own document.
Pages = Callable[[InProcessApi, Services], list[BaseRoute]]


class PathRoute:
    """What serves one path, and the name of the parameter in it."""

    def __init__(self, parameter: str | None, app: ASGIApp) -> None:
        self.parameter = parameter
        self.app = app


class _Interrupt:
    """Handles SIGINT from the start: tell live sockets to reconnect, then terminate the process. Granian would cut them
    off without a word."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._live: asyncio.Future[LiveFeed] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None
        if threading.current_thread() is threading.main_thread():
            self._loop.add_signal_handler(signal.SIGINT, self._begin)

    def set_live_feed(self, live: LiveFeed) -> None:
        self._live.set_result(live)

    def _begin(self) -> None:
        self._task = self._task or self._loop.create_task(self._terminate())

    async def _terminate(self) -> None:
        live = await self._live
        await asyncio.sleep(SERVER_START_SECONDS)
        await live.close()
        os.kill(os.getpid(), signal.SIGTERM)


def open_redis(settings: Settings, database: db.Database) -> "RedisLayer | None":
    if settings.redis_url is None:
        return None
    from holdfast.gate.redis_layer import RedisLayer

    return RedisLayer(settings.redis_url, database)


def make_services(
    settings: Settings,
    pool: db.Pool,
    engine: Engine,
    task_health: TaskHealth | None = None,
    report_pool: db.Pool | None = None,
    redis: "RedisLayer | None" = None,
) -> Services:
    database = db.Database(pool)
    providers = make_providers(settings, database)
    return Services(
        settings=settings,
        database=database,
        reports=db.Database(report_pool or pool),
        engine=engine,
        submit_hold=redis.make_gate(engine).submit if redis is not None else engine.submit,
        redis=redis,
        authenticator=Authenticator(database),
        providers=providers,
        inbox=Inbox(database, engine, providers),
        storage=open_storage(settings.receipts_url, settings.data_dir / "receipts"),
        live_events=LiveEventCache(database),
        task_health=task_health or TaskHealth(),
        client_hasher=ClientHasher(database),
        export_turn=asyncio.Lock(),
    )


def _tune_interpreter() -> None:
    """Requests leave hardly any cycles behind. With the default thresholds the collector took a twelfth of the CPU time
    of a busy process. Threads that build large halls release the interpreter after a moment: with Python's default of
    5 ms, the event loop would wait that long each time it needs the interpreter."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def routes_by_path(operations: Sequence[Operation], services: Services, limits: Limits) -> dict[str, PathRoute]:
    endpoints: dict[str, dict[str, Endpoint]] = defaultdict(dict)
    parameters: dict[str, str | None] = {}
    for operation in operations:
        key = _route_key(operation)
        endpoints[key][operation.method] = Endpoint(operation, services, limits)
        parameters[key] = operation.path_parameter
    return {key: PathRoute(parameters[key], _Methods(by_method, limits)) for key, by_method in endpoints.items()}


def _route_key(operation: Operation) -> str:
    parts = operation.path.split("/")
    if operation.path_parameter is not None:
        assert parts[PARAMETER_AT] == f"{{{operation.path_parameter}}}"
        parts[PARAMETER_AT] = PLACEHOLDER
    return "/".join(parts)


def _document_routes(operations: Sequence[Operation], settings: Settings, in_process: InProcessApi) -> list[Route]:
    documents = {
        "/openapi.json": openapi_document(operations, settings.public_url),
        "/asyncapi.json": asyncapi_document(settings.public_url, settings.bus_prefix),
    }
    return [
        Route(path, _Methods({"GET": _Static(ApiResponse[object](document), in_process)}))
        for path, document in documents.items()
    ]


class _Methods:
    """The endpoints of one path by method."""

    def __init__(self, endpoints: Mapping[str, ASGIApp], limits: Limits | None = None) -> None:
        self._endpoints = endpoints
        self._limits = limits
        self._allow = (b"allow", ", ".join(sorted(endpoints)).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is not None:
            await endpoint(scope, receive, send)
            return
        refused = close_unread(_refuse(scope, self._limits, Refused(Refusal.METHOD_NOT_ALLOWED)), scope)
        await send_response(send, refused, NO_STORE, self._allow)


class _Static:
    def __init__(self, response: ApiResponse[object], in_process: InProcessApi) -> None:
        self._response = response
        self._in_process = in_process

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._in_process.spend(self._in_process.address(scope))
        except RefusedError as error:
            await send_response(send, problem(error.refused))
            return
        await send_response(send, self._response)


def _refuse(scope: Scope, limits: Limits | None, refused: Refused) -> ApiResponse[Problem]:
    """The refusal as a response. It counts against the limit of the client's address like any other request."""
    try:
        if limits is not None:
            limits.per_address.spend(limits.address(scope))
    except RefusedError as error:
        return problem(error.refused)
    return problem(refused)
