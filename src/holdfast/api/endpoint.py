"""From a raw ASGI request to an operation's handler, and back. Every hold takes this path, so it stays lean."""

import asyncio
import re
from typing import Final, TypeVar
from urllib.parse import parse_qsl

import structlog
from msgspec import DecodeError, Struct, ValidationError, convert, json, structs
from starlette.types import Message, Receive, Scope, Send

from holdfast.api.access import Access
from holdfast.api.auth import Caller
from holdfast.api.call import BODY_BYTES_MAX, ApiResponse, Call, Handler, Operation, Services
from holdfast.api.problems import problem
from holdfast.api.rate_limit import RateLimit
from holdfast.api.validation import invalid_body, invalid_query
from holdfast.core.event_schemas import RequestModel
from holdfast.core.refusals import Refusal, Refused, RefusedError
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS

log = structlog.get_logger()

Headers = dict[bytes, bytes]
Decoded = TypeVar("Decoded", bound=Struct)

BODY_SECONDS: Final = 30
DRAINED_BYTES_MAX: Final = 1024 * 1024
IDEMPOTENCY_KEY_MAX: Final = 255
DEPTH_MAX: Final = 64
QUERY_PARAMETERS_MAX: Final = 50

# The server drops a connection after a body that it has not read, so the client must not send another request there.
CLOSE: Final = (b"connection", b"close")

_ESCAPED_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
# The closing quote is optional, so that matching stays linear in an unterminated string.
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_encode: Final = json.Encoder().encode


class UnreadBodyError(Exception):
    """A request was refused before its body was read to the end."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.refused = refused


class Limits:
    """The rate limits of one process."""

    def __init__(self, services: Services) -> None:
        self.per_key = RateLimit(services.settings.rate_per_key)
        self.per_address = RateLimit(services.settings.rate_per_address)
        self.proxies = services.settings.proxies

    def address(self, scope: Scope, headers: Headers) -> str:
        """The client's address, as the outermost of our own proxies saw it."""
        if self.proxies:
            hops = headers.get(b"x-forwarded-for", b"").split(b",")
            if len(hops) >= self.proxies:
                return hops[-self.proxies].strip().decode("latin-1")
        client = scope.get("client")
        return client[0] if client else ""


class Endpoint:
    """One operation as an ASGI application. `handler` replaces the operation's own."""

    def __init__(
        self, operation: Operation, services: Services, limits: Limits, handler: Handler | None = None
    ) -> None:
        self._operation = operation
        self._services = services
        self._limits = limits
        self._handler = handler or operation.handler
        self._query_type = operation.query_type
        self._takes_body = operation.body_type is not None
        self._decoder = json_decoder(operation)
        assert not (self._takes_body and self._query_type), "a handler takes either a body or a query"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._respond(scope, receive)
        except RefusedError as error:
            response = problem(error.refused)
        except UnreadBodyError as error:
            refused = problem(error.refused)
            response = structs.replace(refused, headers=(*refused.headers, CLOSE))
        except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
            log.error("request_without_database", operation=self._operation.name, error=type(error).__name__)
            response = problem(Refused(Refusal.BUSY))
        except Exception:
            log.exception("request_failed", operation=self._operation.name)
            response = problem(Refused(Refusal.INTERNAL))
        await send_response(send, response)

    async def _respond(self, scope: Scope, receive: Receive) -> ApiResponse[object]:
        operation = self._operation
        headers: Headers = dict(scope["headers"])
        token = _bearer_token(headers)
        cached = self._services.authenticator.find_cached(token) if token is not None else None
        if cached is not None and cached.user is None:
            self._limits.per_key.spend(cached.actor)
        elif operation.is_rate_limited:
            self._limits.per_address.spend(self._limits.address(scope, headers))
        early = (
            await self._authenticate_upload(token, cached) if operation.body_content and _is_large(headers) else None
        )
        body = await self._read_body(headers, receive) if self._takes_body else None
        query = self._read_query(scope["query_string"]) if self._query_type is not None else None
        if operation.needs_idempotency_key and not _has_idempotency_key(headers):
            raise RefusedError(Refusal.IDEMPOTENCY_KEY_MISSING)
        caller = early or await self._authenticate(token, cached)
        call = Call(self._services, caller, scope["path_params"], headers)
        if body is not None:
            return await self._handler(call, body)
        return await (self._handler(call) if query is None else self._handler(call, query))

    async def _authenticate(self, token: str | None, cached: Caller | None) -> Caller | None:
        caller = cached
        if caller is None and token is not None:
            caller = await self._services.authenticator.identify(token)
        check_access(self._operation, caller)
        return caller

    async def _authenticate_upload(self, token: str | None, cached: Caller | None) -> Caller | None:
        """An upload that the caller may not send is refused before it is read."""
        try:
            return await self._authenticate(token, cached)
        except RefusedError as error:
            raise UnreadBodyError(error.refused) from None

    async def _read_body(self, headers: Headers, receive: Receive) -> RequestModel | bytes:
        raw = await _receive_body(headers, receive, self._operation.body_bytes_max)
        return raw if self._decoder is None else decode_json(self._decoder, raw)

    def _read_query(self, raw: bytes) -> RequestModel:
        assert self._query_type is not None
        try:
            pairs = parse_qsl(
                raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_PARAMETERS_MAX
            )
        except UnicodeDecodeError:
            raise RefusedError(Refusal.INVALID_REQUEST, "The query string is not UTF-8 in percent-encoding.") from None
        except ValueError:
            raise RefusedError(
                Refusal.INVALID_REQUEST, f"The query string has more than {QUERY_PARAMETERS_MAX} parameters."
            ) from None
        if any("\0" in text for pair in pairs for text in pair):
            raise _nul_refused()
        try:
            return convert(dict(pairs), self._query_type, strict=False)
        except ValidationError as error:
            raise invalid_query(error, self._query_type) from None


async def send_response(send: Send, response: ApiResponse[object]) -> None:
    body = response.body if isinstance(response.body, bytes) else _encode(response.body)
    headers = [
        (b"content-type", response.content_type),
        (b"content-length", str(len(body)).encode()),
        *response.headers,
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def check_access(operation: Operation, caller: Caller | None) -> None:
    """Refuse a caller who may not call the operation."""
    if caller is None:
        if operation.access is not Access.PUBLIC:
            raise RefusedError(Refusal.UNAUTHORIZED)
    elif caller.role not in operation.access.roles:
        raise RefusedError(Refusal.FORBIDDEN, f"The role `{caller.role}` does not allow this request.")


def json_decoder(operation: Operation) -> "json.Decoder[RequestModel] | None":
    """Decodes the document that the operation takes, if it takes one."""
    body_type = operation.body_type
    return json.Decoder(body_type) if body_type is not None and issubclass(body_type, RequestModel) else None


def decode_json(decoder: "json.Decoder[Decoded]", raw: bytes) -> Decoded:
    """An empty body stands for an empty object."""
    _check_text(raw)
    try:
        return decoder.decode(raw or b"{}")
    except UnicodeDecodeError:
        raise RefusedError(Refusal.INVALID_REQUEST, "The body is not UTF-8.") from None
    except (ValidationError, DecodeError) as error:
        raise invalid_body(error, decoder.type) from None


async def _receive_body(headers: Headers, receive: Receive, bytes_max: int) -> bytes:
    """The whole body. One that declares itself too large is refused unread."""
    length = headers.get(b"content-length", b"0")
    if len(length) > 9 or (length.isdigit() and int(length) > bytes_max):
        raise UnreadBodyError(_too_large(bytes_max))
    message = await receive()
    if not message.get("more_body") and message["type"] == "http.request":
        whole: bytes = message.get("body", b"")
        return whole
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _receive_rest(message, receive, bytes_max)
    except TimeoutError:
        raise RefusedError(
            Refusal.INVALID_REQUEST, f"The body did not arrive within {BODY_SECONDS} seconds. Send it again."
        ) from None


async def _receive_rest(message: Message, receive: Receive, bytes_max: int) -> bytes:
    body = bytearray(message.get("body", b""))
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
        if len(body) > bytes_max:
            refused = _too_large(bytes_max)
            if not await _drain(message, receive):
                raise UnreadBodyError(refused)
            raise RefusedError(refused.refusal, refused.detail)
    if message["type"] == "http.disconnect":
        raise RefusedError(Refusal.INVALID_REQUEST, "The connection closed before the body ended.")
    return bytes(body)


async def _drain(message: Message, receive: Receive) -> bool:
    """Read on for a while, and return whether that was the rest. If we answered a client that is still sending, the
    connection would be reset, and the answer could get lost."""
    left = DRAINED_BYTES_MAX
    while message.get("more_body") and left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
    return not message.get("more_body")


def _check_text(raw: bytes) -> None:
    """Refuse what the decoder accepts and PostgreSQL does not store."""
    if b"\\u0000" in raw and _ESCAPED_NUL.search(raw):
        raise _nul_refused()
    if raw.count(b"[") + raw.count(b"{") > DEPTH_MAX and _depth(raw) > DEPTH_MAX:
        raise RefusedError(Refusal.INVALID_REQUEST, f"The body is nested more than {DEPTH_MAX} levels deep.")


def _depth(raw: bytes) -> int:
    deepest = depth = 0
    for bracket in re.findall(rb"[\[\]{}]", _STRING.sub(b"", raw)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _nul_refused() -> RefusedError:
    return RefusedError(Refusal.INVALID_REQUEST, "Text may not contain NUL characters.")


def _too_large(bytes_max: int) -> Refused:
    return Refused(Refusal.PAYLOAD_TOO_LARGE, f"The body may have at most {bytes_max:,} bytes.")


def _has_idempotency_key(headers: Headers) -> bool:
    return 1 <= len(headers.get(b"idempotency-key", b"")) <= IDEMPOTENCY_KEY_MAX


def _bearer_token(headers: Headers) -> str | None:
    value = headers.get(b"authorization")
    if value is None:
        return None
    scheme, _, token = value.partition(b" ")
    return token.decode("latin-1") if scheme.lower() == b"bearer" else ""


def _is_large(headers: Headers) -> bool:
    length = headers.get(b"content-length", b"")
    return not length.isdigit() or int(length[:10]) > BODY_BYTES_MAX
