"""Calls operations of the API from code in the same process.

The same handlers, role checks and body validation apply as over HTTP. There is no token: the caller is already known.
The code that serves a request calls `spend` once before any other work, however many operations the request needs.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import structlog
from msgspec import Struct, json
from starlette.types import Scope

from holdfast.api.auth import Caller
from holdfast.api.call import ApiResponse, Call, Handler, Operation, Services
from holdfast.api.endpoint import Limits, check_access, decode_json, json_decoder
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import RequestModel
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS

log = structlog.get_logger()

Content = TypeVar("Content")


class InProcessApi:
    """The API as the pages call it."""

    def __init__(self, operations: Sequence[Operation], services: Services, limits: Limits) -> None:
        self._operations = {operation.handler: _InProcessOperation(operation) for operation in operations}
        self._services = services
        self._limits = limits

    def address(self, scope: Scope) -> str:
        """The client address that rate limits count."""
        return self._limits.address(scope)

    def spend(self, address: str) -> None:
        """Count one request of this address; refuse it if the address has made too many."""
        self._limits.per_address.spend(address)

    async def check(self, handler: Handler, caller: Caller, *, id: str) -> None:  # noqa: A002 (as in the path)
        """Refuse a call before anyone reads its body, as over HTTP."""
        operation = self._operations[handler]
        assert operation.path_parameter is not None
        await operation.check(Call(self._services, caller, {operation.path_parameter: id}, {}))

    async def call(
        self,
        handler: Callable[..., Awaitable[ApiResponse[Content]]],
        caller: Caller | None,
        *,
        address: str = "",
        id: str = "",  # noqa: A002 (of what the operation is about, as in the path)
        query: RequestModel | None = None,
        body: Struct | bytes | None = None,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> ApiResponse[Content]:
        """Call the operation of this handler. `address` is the client's, for operations whose limits count it."""
        operation = self._operations[handler]
        path = {operation.path_parameter: id} if operation.path_parameter else {}
        call = Call(self._services, caller, path, headers or {}, lambda: address)
        if caller is not None:
            self._limits.spend_user(caller)
        try:
            return await operation.run(handler, call, query, body)
        except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
            log.error("request_without_database", operation=operation.name, error=type(error).__name__)
            raise RefusedError(Refusal.BUSY) from None


class _InProcessOperation:
    """An operation with the types of its input, which are looked up once."""

    def __init__(self, operation: Operation) -> None:
        self.name = operation.name
        self.path_parameter = operation.path_parameter
        self._operation = operation
        self._query_type = operation.query_type
        self._takes_body = operation.body_type is not None
        self._decoder = json_decoder(operation)

    async def check(self, call: Call) -> None:
        check_access(self._operation, call.caller_or_none)
        assert self._operation.before_body is not None
        await self._operation.before_body(call)

    async def run(
        self,
        handler: Callable[..., Awaitable[ApiResponse[Content]]],
        call: Call,
        query: RequestModel | None,
        body: Struct | bytes | None,
    ) -> ApiResponse[Content]:
        check_access(self._operation, call.caller_or_none)
        if self._takes_body:
            return await handler(call, self._validate(body))
        if self._query_type is not None:
            return await handler(call, query or self._query_type())
        return await handler(call)

    def _validate(self, body: Struct | bytes | None) -> RequestModel | bytes:
        """The body as HTTP would deliver it. Constructing a struct checks no bounds; decoding its JSON does."""
        if self._decoder is not None:
            return decode_json(self._decoder, b"" if body is None else json.encode(body))
        assert isinstance(body, bytes)
        return body
