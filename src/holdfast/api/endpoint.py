"""From a raw ASGI request to the call of an operation, and back. This is on the way of every hold, so it is lean."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import structlog
from msgspec import DecodeError, ValidationError, convert, json

from holdfast.api.auth import Caller
from holdfast.api.call import BODY_MAX, Access, ApiResponse, Call, Operation, Services
from holdfast.api.problems import problem
from holdfast.api.rate_limit import RateLimit
from holdfast.core.refusals import FieldError, Refusal, Refused, RefusedError
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS

log = structlog.get_logger()

Scope = Any
Receive = Any
Send = Any
Headers = dict[bytes, bytes]

BODY_SECONDS: Final = 30
KEY_MAX: Final = 255
DEPTH_MAX: Final = 64

_ESCAPED_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
# The closing quote is optional, so that nothing is ever looked at twice.
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_encode: Final = json.Encoder().encode


class Limits:
    """The rate limits of a process."""

    def __init__(self, services: Services) -> None:
        self.per_key = RateLimit(services.settings.rate_per_key)
        self.per_address = RateLimit(services.settings.rate_per_address)
        self.proxies = services.settings.proxies

    def address(self, scope: Scope, headers: Headers) -> str:
        """Where the request came from, as the nearest proxy that is ours saw it."""
        if self.proxies:
            hops = headers.get(b"x-forwarded-for", b"").split(b",")
            if len(hops) >= self.proxies:
                return hops[-self.proxies].strip().decode("latin-1")
        client = scope.get("client")
        return client[0] if client else ""


class Endpoint:
    """One operation as an ASGI application."""

    def __init__(self, operation: Operation, services: Services, limits: Limits) -> None:
        self._operation = operation
        self._services = services
        self._limits = limits
        self._roles = operation.who.value
        self._decoder = json.Decoder(operation.takes) if operation.takes else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope, receive)
        except RefusedError as error:
            answer = problem(error.refused)
        except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
            log.error("request_without_database", operation=self._operation.name, error=type(error).__name__)
            answer = problem(Refused(Refusal.BUSY))
        except Exception:
            log.exception("request_failed", operation=self._operation.name)
            answer = problem(Refused(Refusal.INTERNAL))
        await send_answer(send, answer)

    async def _answer(self, scope: Scope, receive: Receive) -> ApiResponse:
        operation = self._operation
        headers: Headers = dict(scope["headers"])
        token = _token(headers)
        known = self._services.callers.recall(token) if token is not None else None
        if known is not None and known.user is None:
            self._limits.per_key.spend(known.actor)
        elif operation.is_limited:
            self._limits.per_address.spend(self._limits.address(scope, headers))
        # A body that is not judged here, and is large, need not be read for whoever may not send it.
        early = await self._caller(token, known) if operation.media and _is_large(headers) else None
        body = await self._body(headers, receive)
        query = self._query(scope["query_string"])
        if operation.needs_idempotency_key and not 1 <= len(headers.get(b"idempotency-key", b"")) <= KEY_MAX:
            raise RefusedError(Refusal.IDEMPOTENCY_KEY_MISSING)
        caller = early or await self._caller(token, known)
        return await operation.function(Call(self._services, caller, _path(scope), query, body, headers))

    async def _caller(self, token: str | None, known: Caller | None) -> Caller | None:
        if token is None:
            if self._operation.who is not Access.PUBLIC:
                raise RefusedError(Refusal.UNAUTHORIZED)
            return None
        caller = known or await self._services.callers.identify(token)
        if caller.role not in self._roles:
            raise RefusedError(Refusal.FORBIDDEN, f"The role {caller.role} may not do that.")
        return caller

    async def _body(self, headers: Headers, receive: Receive) -> Any:
        if self._decoder is None and not self._operation.media:
            return None
        raw = await _read(headers, receive, self._operation.body_max)
        if self._decoder is None:
            return raw
        check_text(raw)
        try:
            return self._decoder.decode(raw or b"{}")
        except UnicodeDecodeError:
            raise RefusedError(Refusal.INVALID_REQUEST, "The body is not UTF-8.") from None
        except (ValidationError, DecodeError) as error:
            raise invalid_body(error) from None

    def _query(self, raw: bytes) -> Any:
        if self._operation.query is None:
            return None
        try:
            pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
            if any("\0" in value for pair in pairs for value in pair):
                raise RefusedError(Refusal.INVALID_REQUEST, "Text may not contain NUL characters.")
            return convert(dict(pairs), self._operation.query, strict=False)
        except (ValidationError, ValueError) as error:
            raise invalid_body(error) from None


async def send_answer(send: Send, answer: ApiResponse) -> None:
    body = answer.body if isinstance(answer.body, bytes) else _encode(answer.body)
    headers = [
        (b"content-type", answer.content_type),
        (b"content-length", str(len(body)).encode()),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _read(headers: Headers, receive: Receive, most: int) -> bytes:
    """The whole body. What is too large is refused before it is taken in."""
    length = headers.get(b"content-length", b"0")
    if len(length) > 9 or (length.isdigit() and int(length) > most):
        raise RefusedError(Refusal.PAYLOAD_TOO_LARGE, f"At most {most} bytes.")
    message = await receive()
    if not message.get("more_body") and message["type"] == "http.request":
        whole: bytes = message.get("body", b"")
        return whole
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _receive_rest(message, receive, most)
    except TimeoutError:
        raise RefusedError(Refusal.INVALID_REQUEST, f"The body did not arrive within {BODY_SECONDS} seconds.") from None


async def _receive_rest(message: Any, receive: Receive, most: int) -> bytes:
    body = bytearray(message.get("body", b""))
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
        if len(body) > most:
            raise RefusedError(Refusal.PAYLOAD_TOO_LARGE, f"At most {most} bytes.")
    if message["type"] == "http.disconnect":
        raise RefusedError(Refusal.INVALID_REQUEST, "The body broke off.")
    return bytes(body)


def check_text(raw: bytes) -> None:
    """What a decoder would take, and we would choke on later."""
    if b"\\u0000" in raw and _ESCAPED_NUL.search(raw):
        raise RefusedError(Refusal.INVALID_REQUEST, "Text may not contain NUL characters.")
    if raw.count(b"[") + raw.count(b"{") > DEPTH_MAX and _depth(raw) > DEPTH_MAX:
        raise RefusedError(Refusal.INVALID_REQUEST, f"The document is nested more than {DEPTH_MAX} levels deep.")


def _depth(raw: bytes) -> int:
    deepest = depth = 0
    for bracket in re.findall(rb"[\[\]{}]", _STRING.sub(b"", raw)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _token(headers: Headers) -> str | None:
    value = headers.get(b"authorization")
    if value is None:
        return None
    scheme, _, token = value.partition(b" ")
    return token.decode("latin-1") if scheme.lower() == b"bearer" else ""


def _is_large(headers: Headers) -> bool:
    length = headers.get(b"content-length", b"")
    return not length.isdigit() or int(length[:10]) > BODY_MAX


def _path(scope: Scope) -> Mapping[str, str]:
    path: Mapping[str, str] = scope["path_params"]
    return path


def invalid_body(error: Exception) -> RefusedError:
    """The message of the decoder, with the field it speaks of."""
    message, _, place = str(error).partition(" - at `")
    field = place.rstrip("`").removeprefix("$").lstrip(".")
    return RefusedError(Refusal.INVALID_REQUEST, str(error), errors=(FieldError(field, message),))
