"""Makes a span of every HTTP request. Only there if tracing is on."""

from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.app import PARAMETER_AT
from holdfast.api.call import Operation
from holdfast.runtime.otel_tracing import OtelTracing, set_error
from holdfast.runtime.request_ids import current_request_id

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
PAGE: Final = "page"


class TracedApp:
    def __init__(self, app: ASGIApp, operations: Sequence[Operation], tracing: OtelTracing) -> None:
        self._app = app
        self._tracing = tracing
        self._routes = {_mask(operation.path): operation.path for operation in operations}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        route = self._routes.get(_mask(scope["path"])) or self._routes.get(scope["path"]) or PAGE
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        attributes = {"http.request.method": method, "http.route": route}
        with self._tracing.request_span(f"{method} {route}", headers, attributes) as span:

            async def send_and_note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status: int = message["status"]
                    span.set_attribute("http.response.status_code", status)
                    if status >= 500:
                        set_error(span, str(status))
                await send(message)

            await self._app(scope, receive, send_and_note)
            request_id = current_request_id()
            if request_id is not None:
                span.set_attribute("holdfast.request_id", request_id)


def _mask(path: str) -> str:
    """The path without what may be an id, which is always in the same position."""
    parts = path.split("/")
    if len(parts) > PARAMETER_AT:
        parts[PARAMETER_AT] = "{}"
    return "/".join(parts)
