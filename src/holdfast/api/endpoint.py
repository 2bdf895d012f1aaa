"""From a raw ASGI request to an operation's handler, and back. Every hold takes this path, so it stays lean."""

import asyncio
import re
import time
from functools import partial
from typing import Final, TypeVar
from urllib.parse import parse_qsl

import structlog
from msgspec import DecodeError, Raw, Struct, ValidationError, convert, json, structs
from starlette.types import Receive, Scope, Send

from holdfast.api.access import Access
from holdfast.api.auth import Caller
from holdfast.api.body_reader import STRANGERS_BYTES_MAX, BodyReader, UnreadBodyError, content_length
from holdfast.api.body_sender import PIECE_BYTES, BodySender
from holdfast.api.call import ApiResponse, Call, Handler, Header, Operation, Services, StreamedBody
from holdfast.api.client_address import client_address
from holdfast.api.problems import problem
from holdfast.api.rate_limit import RateLimit
from holdfast.api.validation import invalid_body, invalid_query
from holdfast.core.refusals import Refusal, Refused, RefusedError
from holdfast.core.request_types import RequestModel, details_too_large
from holdfast.runtime import metrics
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS
from holdfast.runtime.request_ids import HEADER as REQUEST_ID
from holdfast.runtime.request_ids import current_request_id

log = structlog.get_logger()

Headers = dict[bytes, bytes]
Decoded = TypeVar("Decoded", bound=Struct)
Content = TypeVar("Content")

IDEMPOTENCY_KEY_MAX: Final = 255
TOKEN_BYTES_MAX: Final = 4096
QUERY_BYTES_MAX: Final = 8192
# Details as the client writes them, with spaces and escapes.
RAW_DETAILS_BYTES_MAX: Final = 128 * 1024
# A thread decodes and checks larger bodies, because they would block the event loop.
DECODED_AT_ONCE_MAX: Final = 64 * 1024
QUERY_PARAMETERS_MAX: Final = 50
# An address that causes more refusals per second than this is limited even where there is no rate limit.
REFUSED_PER_SECOND: Final = 50

# The server drops a connection after a body that it has not read, so the client must not send another request there.
CLOSE: Final = (b"connection", b"close")

# No cache keeps what only the caller may see.
NO_STORE: Final = (b"cache-control", b"private, no-store")
# A public response is the same for callers with a token, except that staff also see drafts.
NO_CACHE: Final = (b"cache-control", b"private, no-cache")

_ESCAPED_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_encode: Final = json.Encoder().encode


class Limits:
    """The limits of one process on requests and their bodies."""

    def __init__(self, services: Services) -> None:
        settings, is_shared = services.settings, services.redis is not None
        self.per_key = RateLimit("key", settings.rate_per_key, is_shared=is_shared)
        self.per_user = RateLimit("user", settings.rate_per_user, is_shared=is_shared)
        self.per_address = RateLimit("address", settings.rate_per_address, is_shared=is_shared)
        # For operations that have no rate limit unless someone misuses them.
        self.refused_per_address = RateLimit("refused", REFUSED_PER_SECOND, is_shared=is_shared)
        self.body_reader = BodyReader()
        self.strangers_body_reader = BodyReader(buffered_bytes_max=STRANGERS_BYTES_MAX)
        self.body_sender = BodySender()
        self._proxies = services.settings.proxies

    @property
    def shared(self) -> list[RateLimit]:
        """The rate limits that all processes share if there is a Redis."""
        return [self.per_key, self.per_user, self.per_address, self.refused_per_address]

    def spend_user(self, caller: Caller) -> None:
        """Count one request of a customer; refuse it if the customer has made too many."""
        if caller.user is not None:
            self.per_user.spend(f"{caller.org.hex()}:{caller.user}")

    def address(self, scope: Scope) -> str:
        """The client address that the limits count."""
        return client_address(scope, self._proxies)


class Endpoint:
    """One operation as an ASGI application. `handler` replaces the operation's own."""

    def __init__(
        self, operation: Operation, services: Services, limits: Limits, handler: Handler | None = None
    ) -> None:
        self._operation = operation
        self._name = operation.name
        self._services = services
        self._limits = limits
        self._handler = handler or operation.handler
        self._query_type = operation.query_type
        self._takes_body = operation.body_type is not None
        self._decoder = json_decoder(operation)
        self._is_public = operation.access is Access.PUBLIC
        assert not (self._takes_body and self._query_type), "a handler takes either a body or a query"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_at = time.monotonic()
        try:
            response = await self._respond(scope, receive)
        except RefusedError as error:
            response = problem(error.refused)
        except UnreadBodyError as error:
            refused = problem(error.refused)
            response = structs.replace(refused, headers=(*refused.headers, CLOSE))
        except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
            log.error("request_without_database", operation=self._operation.name, error=type(error).__name__)
            response = close_unread(problem(Refused(Refusal.BUSY)), scope)
        except Exception:
            log.exception("request_failed", operation=self._operation.name)
            response = close_unread(problem(Refused(Refusal.INTERNAL)), scope)
        metrics.HTTP_REQUEST_SECONDS.observe(time.monotonic() - began_at, self._name, response.status)
        if isinstance(response.body, StreamedBody):
            await send_start(send, response, None, self._cache_headers(scope))
            await self._stream(response.body, receive, send)
            return
        body = encode_body(response)
        if len(body) == 1 and len(body[0]) <= PIECE_BYTES:
            await send_start(send, response, len(body[0]), self._cache_headers(scope))
            await send({"type": "http.response.body", "body": body[0]})
        else:
            await send_start(send, response, sum(map(len, body)), self._cache_headers(scope))
            await self._limits.body_sender.send(body, receive, send)

    async def _stream(self, body: StreamedBody, receive: Receive, send: Send) -> None:
        """The status is on its way, so an error can only leave the body incomplete. The server then closes the
        connection, and the client notices that the last chunk is missing."""
        try:
            await self._limits.body_sender.send(body.parts, receive, send)
        except Exception:
            log.exception("response_cut_off", operation=self._operation.name)

    def _cache_headers(self, scope: Scope) -> tuple[Header, ...]:
        if not self._is_public:
            return (NO_STORE,)
        return (NO_CACHE,) if any(name == b"authorization" for name, _ in scope["headers"]) else ()

    async def _respond(self, scope: Scope, receive: Receive) -> ApiResponse[object]:
        """Identify the caller first, so that unauthenticated requests cost almost nothing."""
        headers: Headers = dict(scope["headers"])
        try:
            caller = await self._admit(scope, headers)
            query = self._read_query(scope["query_string"]) if self._query_type is not None else None
            find_address = partial(self._limits.address, scope)
            call = Call(self._services, caller, scope["path_params"], headers, find_address)
            if self._operation.before_body is not None:
                await self._operation.before_body(call)
        except RefusedError as error:
            if not self._operation.is_rate_limited:
                self._limits.refused_per_address.spend(self._limits.address(scope))
            if content_length(headers) == 0:
                raise
            raise UnreadBodyError(error.refused) from None
        if self._takes_body:
            body = await self._read_body(headers, receive)
            if self._operation.is_rate_limited:
                return await self._handler(call, body)
            return await self._handle_unlimited(call, body)
        return await (self._handler(call) if query is None else self._handler(call, query))

    async def _admit(self, scope: Scope, headers: Headers) -> Caller | None:
        """Return the caller. Refuse a request that exceeds a rate limit, or that the caller's role does not allow."""
        operation, limits = self._operation, self._limits
        token = _bearer_token(headers)
        caller = self._services.authenticator.find_cached(token) if token is not None else None
        if caller is not None and caller.user is None:
            limits.per_key.spend(caller.actor)
        elif operation.is_rate_limited:
            limits.per_address.spend(limits.address(scope))
        else:
            limits.refused_per_address.check(limits.address(scope))
        if caller is None and token is not None:
            caller = await self._services.authenticator.identify(token)
        if caller is not None:
            limits.spend_user(caller)
        check_access(operation, caller)
        needs_key = operation.needs_idempotency_key or (
            operation.takes_idempotency_key and b"idempotency-key" in headers
        )
        if needs_key and not _has_idempotency_key(headers):
            raise RefusedError(Refusal.IDEMPOTENCY_KEY_MISSING)
        return caller

    async def _handle_unlimited(self, call: Call, body: RequestModel | bytes) -> ApiResponse[object]:
        """Only refused requests count if the operation has no rate limit."""
        try:
            return await self._handler(call, body)
        except RefusedError:
            self._limits.refused_per_address.spend(call.find_address())
            raise

    async def _read_body(self, headers: Headers, receive: Receive) -> RequestModel | bytes:
        reader = self._limits.strangers_body_reader if self._is_public else self._limits.body_reader
        raw = await reader.read(headers, receive, self._operation.body_bytes_max)
        if self._decoder is None:
            return raw
        if len(raw) > DECODED_AT_ONCE_MAX:
            check_raw_details(raw)
            return await asyncio.to_thread(decode_json, self._decoder, raw)
        return decode_json(self._decoder, raw)

    def _read_query(self, raw: bytes) -> RequestModel:
        assert self._query_type is not None
        if len(raw) > QUERY_BYTES_MAX:
            raise RefusedError(Refusal.INVALID_REQUEST, f"The query string may have at most {QUERY_BYTES_MAX:,} bytes.")
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


async def send_response(send: Send, response: ApiResponse[object], *headers: Header) -> None:
    """Send a response that is not large."""
    (body,) = encode_body(response)
    await send_start(send, response, len(body), headers)
    await send({"type": "http.response.body", "body": body})


def encode_body(response: ApiResponse[object]) -> tuple[bytes, ...]:
    body = response.body
    assert not isinstance(body, StreamedBody)
    if isinstance(body, tuple):
        return body
    return (body if isinstance(body, bytes) else _encode(body),)


async def send_start(
    send: Send, response: ApiResponse[object], length: int | None, headers: tuple[Header, ...]
) -> None:
    all_headers = [(b"content-type", response.content_type), *headers, *response.headers]
    if length is not None:
        all_headers.append((b"content-length", str(length).encode()))
    request_id = current_request_id()
    if request_id is not None:
        all_headers.append((REQUEST_ID, request_id.encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": all_headers})


def close_unread(response: ApiResponse[Content], scope: Scope) -> ApiResponse[Content]:
    """The response to a request whose body may not have been read."""
    if content_length(dict(scope["headers"])) == 0:
        return response
    return structs.replace(response, headers=(*response.headers, CLOSE))


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


class _BodyWithDetails(Struct):
    details: Raw = Raw()
    template: Raw = Raw()


_decode_raw_details: Final = json.Decoder(_BodyWithDetails).decode


def check_raw_details(raw: bytes) -> None:
    """Refuse details that are far too large without decoding them. Details are free-form, so they may contain more
    objects than the decoder builds in a reasonable time, and decoding holds the GIL."""
    try:
        body = _decode_raw_details(raw)
        template = _decode_raw_details(body.template or b"{}")
    except (DecodeError, RecursionError):
        # The operation's own decoder reports what is wrong.
        return
    if max(len(bytes(body.details)), len(bytes(template.details))) > RAW_DETAILS_BYTES_MAX:
        raise details_too_large()


def decode_json(decoder: "json.Decoder[Decoded]", raw: bytes) -> Decoded:
    """An empty body stands for an empty object."""
    _check_text(raw)
    try:
        return decoder.decode(raw or b"{}")
    except UnicodeDecodeError:
        raise RefusedError(Refusal.INVALID_REQUEST, "The body is not UTF-8.") from None
    except (ValidationError, DecodeError) as error:
        raise invalid_body(error, decoder.type) from None
    except RecursionError:
        raise RefusedError(Refusal.INVALID_REQUEST, "The body is nested too deeply.") from None


def _check_text(raw: bytes) -> None:
    """Refuse what the decoder accepts and PostgreSQL does not store."""
    if b"\\u0000" in raw and _ESCAPED_NUL.search(raw):
        raise _nul_refused()


def _nul_refused() -> RefusedError:
    return RefusedError(Refusal.INVALID_REQUEST, "Text may not contain NUL characters.")


def _has_idempotency_key(headers: Headers) -> bool:
    return 1 <= len(headers.get(b"idempotency-key", b"")) <= IDEMPOTENCY_KEY_MAX


def _bearer_token(headers: Headers) -> str | None:
    value = headers.get(b"authorization")
    if value is None:
        return None
    scheme, _, token = value.partition(b" ")
    is_token = scheme.lower() == b"bearer" and len(token) <= TOKEN_BYTES_MAX
    return token.decode("latin-1") if is_token else ""
