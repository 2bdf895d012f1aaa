"""The ASGI application of one API process."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.asyncapi import asyncapi_document
from holdfast.api.auth import Authenticator
from holdfast.api.body_sender import PacedSend
from holdfast.api.call import ApiResponse, Operation, Services
from holdfast.api.client_hash import ClientHasher
from holdfast.api.connection_guard import ConnectionGuard
from holdfast.api.drain import Drain
from holdfast.api.endpoint import CLOSE, NO_STORE, QUERY_BYTES_MAX, Endpoint, Limits, close_unread, send_response
from holdfast.api.in_process import InProcessApi
from holdfast.api.live_socket import WATCH, LiveFeed
from holdfast.api.metrics_page import PATH as METRICS_PATH
from holdfast.api.metrics_page import MetricsPage
from holdfast.api.openapi import openapi_document
from holdfast.api.operations import OPERATIONS
from holdfast.api.problems import HTTP_STATUS, problem
from holdfast.api.process_metrics import follow_process
from holdfast.api.request_id_header import add_request_id
from holdfast.api.responses import Problem
from holdfast.api.too_long_page import accepts_html, too_long_page
from holdfast.core.commands import PlaceHold
from holdfast.core.decide import Outcome
from holdfast.core.refusals import Refusal, Refused, RefusedError
from holdfast.engine.batch import notify_all
from holdfast.engine.command_metrics import record_hold
from holdfast.engine.engine import Engine
from holdfast.engine.engine_logs import EngineLogs
from holdfast.live.live_event import LiveEventCache
from holdfast.payments.inbox import Inbox
from holdfast.payments.registry import make_providers
from holdfast.runtime import db, metrics
from holdfast.runtime.exporter import Exporter
from holdfast.runtime.instruments import stop_recording
from holdfast.runtime.loop_lag import LoopLag
from holdfast.runtime.process_lifetime import end_with_parent
from holdfast.runtime.request_ids import choose_request_id, set_request_id
from holdfast.runtime.settings import Settings
from holdfast.runtime.storage import open_storage
from holdfast.runtime.supervision import TaskHealth, keep_running
from holdfast.runtime.tracing import close_tracing

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
# What the metrics call requests for pages and their files.
PAGE: Final = "page"


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
        self._drain = Drain(has_proxies=settings.proxies > 0)
        self._router = Router(lifespan=self._lifespan, default=self._not_found, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look an operation up by its path, with the part that may be an id taken out. Anything else is for Starlette's
        router, which is too slow for holds."""
        if scope["type"] != "lifespan":
            request_id = choose_request_id(scope["headers"])
            set_request_id(request_id)
            if self._drain.has_begun:
                send = self._drain.closing(scope, send)
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
                send = PacedSend(self._limits.body_sender, receive, _count_page(add_request_id(send, request_id)))
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
        task_health = TaskHealth()
        interrupt = _Interrupt(self._drain, task_health)
        # Granian may hang if SIGTERM comes while it starts.
        end_with_parent(signal.SIGINT)
        pool = await db.create_pool(self._url, READ_CONNECTIONS)
        report_pool = await db.create_pool(self._url, REPORT_CONNECTIONS)
        redis = open_redis(self._settings, db.Database(pool))
        logs = EngineLogs(self._settings, db.Database(pool))
        await logs.start()
        on_commit = notify_all(redis.writer.add_batch if redis is not None else None, logs.on_commit)
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
        exporter = _make_exporter(self._settings)
        self._router.routes.extend(
            [
                *pages,
                *_document_routes(self._operations, self._settings, in_process),
                Route(METRICS_PATH, MetricsPage(exporter, limits, self._settings)),
            ]
        )
        follow_process(services, live, {"requests": pool, "reports": report_pool})
        exporting = None
        if exporter is not None:
            exporting = asyncio.create_task(keep_running("metrics", exporter.run, task_health, lambda: None))
        _tune_interpreter()
        interrupt.set_live_feed(live)
        self.loop_lag.start()
        try:
            yield
        finally:
            await guard.close()
            if exporting is not None:
                exporting.cancel()
            self.loop_lag.stop()
            await live.close()
            await services.inbox.close()
            await engine.close()
            await logs.close()
            if redis is not None:
                await redis.close()
            for provider in services.providers.values():
                await provider.aclose()
            await db.close_pool(pool)
            await db.close_pool(report_pool)
            await close_tracing()


# Makes the routes of the pages, which come before the API's own document.
Pages = Callable[[InProcessApi, Services], list[BaseRoute]]


class PathRoute:
    """What serves one path, and the name of the parameter in it."""

    def __init__(self, parameter: str | None, app: ASGIApp) -> None:
        self.parameter = parameter
        self.app = app


class _Interrupt:
    """Handles SIGINT from the start: tell live sockets to reconnect, let proxies move on, then terminate the process.
    Granian would cut them off without a word."""

    def __init__(self, drain: Drain, task_health: TaskHealth) -> None:
        self._drain = drain
        self._task_health = task_health
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
        self._task_health.is_stopping = True
        await asyncio.gather(live.close(), self._drain.run())
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
        submit_hold=redis.make_gate(engine).submit if redis is not None else partial(_submit_hold, engine),
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


def _make_exporter(settings: Settings) -> Exporter | None:
    if settings.metrics:
        return Exporter("api")
    stop_recording()
    return None


async def _submit_hold(engine: Engine, command: PlaceHold) -> Outcome:
    return record_hold(await engine.submit(command), metrics.POSTGRES)


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


def _count_page(send: Send) -> Send:
    """Count the request when its response begins."""
    began_at = time.monotonic()

    async def send_counted(message: Message) -> None:
        if message["type"] == "http.response.start":
            metrics.HTTP_REQUEST_SECONDS.observe(time.monotonic() - began_at, PAGE, message["status"])
        await send(message)

    return send_counted


def _document_routes(operations: Sequence[Operation], settings: Settings, in_process: InProcessApi) -> list[Route]:
    @cache
    def make_openapi() -> ApiResponse[object]:
        return ApiResponse[object](openapi_document(operations, settings.public_url))

    @cache
    def make_asyncapi() -> ApiResponse[object]:
        return ApiResponse[object](asyncapi_document(settings.public_url, settings.bus_prefix))

    return [
        Route("/openapi.json", _Methods({"GET": _Static(make_openapi, in_process)})),
        Route("/asyncapi.json", _Methods({"GET": _Static(make_asyncapi, in_process)})),
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
    """A response that a thread makes for the first request."""

    def __init__(self, make_response: Callable[[], ApiResponse[object]], in_process: InProcessApi) -> None:
        self._make_response = make_response
        self._in_process = in_process

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._in_process.spend(self._in_process.address(scope))
        except RefusedError as error:
            await send_response(send, problem(error.refused))
            return
        await send_response(send, await asyncio.to_thread(self._make_response))


def _refuse(scope: Scope, limits: Limits | None, refused: Refused) -> ApiResponse[Problem]:
    """The refusal as a response. It counts against the limit of the client's address like any other request."""
    try:
        if limits is not None:
            limits.per_address.spend(limits.address(scope))
    except RefusedError as error:
        return problem(error.refused)
    return problem(refused)
