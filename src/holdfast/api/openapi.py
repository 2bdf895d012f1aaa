"""The OpenAPI 3.1 document, made from the table of operations."""

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from holdfast import __version__
from holdfast.api.access import Access
from holdfast.api.call import Operation, Resource, Tag
from holdfast.api.problems import HTTP_STATUS
from holdfast.api.responses import BookingWebhook, EventWebhook, Problem
from holdfast.core.notification_rules import BOOKING_WEBHOOK_KINDS, EVENT_WEBHOOK_KINDS
from holdfast.core.refusals import Refusal
from holdfast.core.request_types import RequestModel

JsonObject = dict[str, Any]

SCHEMA_REFERENCE: Final = "#/components/schemas/{name}"
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
WEBHOOKS: Final[dict[str, type]] = {
    **dict.fromkeys(BOOKING_WEBHOOK_KINDS, BookingWebhook),
    **dict.fromkeys(EVENT_WEBHOOK_KINDS, EventWebhook),
}
BINARY: Final[JsonObject] = {"type": "string", "format": "binary"}

_PARAMETERS: Final = {
    Resource.EVENT: "The event's id.",
    Resource.BOOKING: "The booking's id.",
    Resource.PAYMENT: "The payment's id.",
    Resource.RECEIPT: "The receipt's id.",
    Resource.TICKET: "The ticket's id.",
    Resource.ENDPOINT: "The webhook endpoint's id.",
    Resource.SERIES: "The series' id.",
    Resource.SERIES_JOB: "The job's id.",
    Resource.PROVIDER: "The payment provider, such as `sandbox` or `stripe`.",
}


def openapi_document(operations: Sequence[Operation], public_url: str = "http://localhost") -> bytes:
    schemas = _Schemas(operations)
    paths: dict[str, JsonObject] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    used = {operation.tag for operation in operations}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "summary": "Sells scarce things without ever selling one twice.",
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": _server_url(public_url)}],
        "tags": [{"name": tag.title, "description": tag.description} for tag in Tag if tag in used],
        "paths": paths,
        "webhooks": {kind: _webhook(kind, payload, schemas) for kind, payload in WEBHOOKS.items()},
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A secret key of your org, or a customer token.",
                }
            },
        },
    }
    return msgspec.json.encode(document)


def _server_url(public_url: str) -> str:
    """A name of this machine leads clients elsewhere to the wrong server. `/` is where they found the document."""
    return "/" if urlsplit(public_url).hostname in LOCAL_HOSTS else public_url


def refusals_of(operation: Operation) -> list[Refusal]:
    """Every refusal an operation may respond with, by rank: its own, and those that follow from its form."""
    also = {Refusal.BUSY, Refusal.UNAUTHORIZED}
    if operation.is_rate_limited:
        also.add(Refusal.RATE_LIMITED)
    if operation.path_parameter is not None:
        also.add(Refusal.NOT_FOUND)
    if operation.body_type is not None:
        also |= {Refusal.PAYLOAD_TOO_LARGE, Refusal.INVALID_REQUEST}
    if operation.query_type is not None:
        also.add(Refusal.INVALID_REQUEST)
    if operation.needs_idempotency_key or operation.takes_idempotency_key:
        also.add(Refusal.IDEMPOTENCY_KEY_MISSING)
    if operation.access is not Access.PUBLIC:
        also.add(Refusal.FORBIDDEN)
    return sorted(also | set(operation.refusals), key=lambda refusal: refusal.rank)


class _Schemas:
    """The JSON Schemas of all types in requests and responses."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        used = (kind for operation in operations for kind in _types(operation))
        types = list(dict.fromkeys([Problem, *used, *WEBHOOKS.values()]))
        references, self.components = msgspec.json.schema_components(types, ref_template=SCHEMA_REFERENCE)
        self._references = dict(zip(types, references, strict=True))

    def content(self, media_type: str, kind: type | None) -> JsonObject:
        """The document of a type, or a file if there is none."""
        return {media_type: {"schema": BINARY if kind is None else self._references[kind]}}


def _types(operation: Operation) -> Iterator[type]:
    yield from (kind for kind in operation.body_content.values() if kind is not None)
    yield from (kind for kind in (operation.body_type, operation.response_type) if kind not in (None, bytes))


def _operation(operation: Operation, schemas: _Schemas) -> JsonObject:
    document: JsonObject = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag.title],
        "parameters": list(_parameters(operation)),
        "responses": _responses(operation, schemas),
        "security": [{"token": []}, {}] if operation.access is Access.PUBLIC else [{"token": []}],
    }
    if operation.body_type is not None:
        document["requestBody"] = _request_body(operation.body_type, operation, schemas)
    return document


def _webhook(kind: str, payload: type, schemas: _Schemas) -> JsonObject:
    """What Holdfast sends. `webhooks` of OpenAPI describes requests to the reader's own server."""
    return {
        "post": {
            "operationId": f"receive_{kind.replace('.', '_')}",
            "summary": f"Receive `{kind}`, if your webhook endpoint subscribes to it.",
            "tags": [Tag.WEBHOOKS.title],
            "requestBody": {"required": True, "content": schemas.content("application/json", payload)},
            "responses": {"2XX": {"description": "Received. After any other status, Holdfast sends it again."}},
        }
    }


def _request_body(kind: type, operation: Operation, schemas: _Schemas) -> JsonObject:
    is_raw = not issubclass(kind, RequestModel)
    media_types = operation.body_content if is_raw else {"application/json": kind}
    content: JsonObject = {}
    for media_type, document_type in media_types.items():
        content |= schemas.content(media_type, document_type)
    return {"required": is_raw or any(field.required for field in msgspec.structs.fields(kind)), "content": content}


def _parameters(operation: Operation) -> Iterator[JsonObject]:
    text = {"type": "string"}
    if operation.path_parameter is not None:
        description = _PARAMETERS[operation.resource]
        name = operation.path_parameter
        yield {"name": name, "in": "path", "required": True, "description": description, "schema": text}
    if operation.needs_idempotency_key or operation.takes_idempotency_key:
        yield {
            "name": "Idempotency-Key",
            "in": "header",
            "required": operation.needs_idempotency_key,
            "description": "Requests with the same key and body return the same result, however often you send them.",
            "schema": {**text, "minLength": 1, "maxLength": 255},
        }
    if operation.has_etag:
        description = "The ETag of an earlier response. If nothing has changed, the response is 304 without a body."
        yield {"name": "If-None-Match", "in": "header", "required": False, "description": description, "schema": text}
    if operation.query_type is not None:
        yield from _query_parameters(operation.query_type)


def _query_parameters(query_type: type[RequestModel]) -> Iterator[JsonObject]:
    for field in msgspec.structs.fields(query_type):
        (schema,), _ = msgspec.json.schema_components([field.type], ref_template=SCHEMA_REFERENCE)
        yield {"name": field.encode_name, "in": "query", "required": False, "schema": schema}


def _responses(operation: Operation, schemas: _Schemas) -> JsonObject:
    kind = None if operation.response_type is bytes else operation.response_type
    content: JsonObject = {}
    for media_type in operation.response_media_types:
        content |= schemas.content(media_type, kind)
    statuses = [status for status in (operation.status_if_unchanged, operation.status) if status is not None]
    responses: JsonObject = {
        str(status): {"description": HTTPStatus(status).phrase, "content": content} for status in statuses
    }
    if operation.has_etag:
        responses["304"] = {"description": "Not Modified"}
    codes: dict[int, list[str]] = {}
    for refusal in refusals_of(operation):
        codes.setdefault(HTTP_STATUS[refusal], []).append(refusal.code)
    for status, names in codes.items():
        responses[str(status)] = {
            "description": " · ".join(names),
            "content": schemas.content("application/problem+json", Problem),
        }
    return responses
