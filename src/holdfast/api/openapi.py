"""The OpenAPI 3.1 document, made from the table of operations."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.api.call import Access, Operation
from holdfast.api.responses import Problem
from holdfast.core.event_schemas import Request
from holdfast.core.refusals import Refusal

Document = dict[str, Any]


def openapi_document(operations: Sequence[Operation]) -> bytes:
    schemas = _Schemas(operations)
    paths: dict[str, Document] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "summary": "Sells scarce things without ever selling one twice.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)


def refusals_of(operation: Operation) -> list[Refusal]:
    """Everything the operation may refuse with, by rank: its own reasons, and those that follow from its form."""
    also = {Refusal.BUSY, Refusal.UNAUTHORIZED} | ({Refusal.RATE_LIMITED} if operation.is_limited else set())
    if operation.takes or operation.media:
        also |= {Refusal.PAYLOAD_TOO_LARGE, Refusal.INVALID_REQUEST}
    if operation.query:
        also.add(Refusal.INVALID_REQUEST)
    if operation.needs_idempotency_key:
        also.add(Refusal.IDEMPOTENCY_KEY_MISSING)
    if operation.who is not Access.PUBLIC:
        also.add(Refusal.FORBIDDEN)
    return sorted(also | set(operation.refusals), key=lambda refusal: refusal.rank)


class _Schemas:
    """The JSON Schemas of all types that the operations take and give."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._types: list[type] = [Problem]
        for operation in operations:
            self._types += [kind for kind in (operation.takes, operation.gives) if kind and not isinstance(kind, tuple)]
        self._types = list(dict.fromkeys(self._types))
        found, self.components = msgspec.json.schema_components(self._types, ref_template="#/components/schemas/{name}")
        self._references = dict(zip(self._types, found, strict=True))

    def of(self, kind: Any) -> Document:
        return self._references[kind]

    def content(self, kind: Any) -> Document:
        """JSON of a type, or bytes of a media type."""
        if isinstance(kind, tuple):
            return {media: {"schema": {"type": "string", "format": "binary"}} for media in kind}
        return {"application/json": {"schema": self.of(kind)}}


def _operation(operation: Operation, schemas: _Schemas) -> Document:
    document: Document = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": list(_parameters(operation)),
        "responses": _responses(operation, schemas),
        "security": [{"token": []}, {}] if operation.who is Access.PUBLIC else [{"token": []}],
    }
    if operation.takes:
        document["requestBody"] = {
            "required": any(field.required for field in msgspec.structs.fields(operation.takes)),
            "content": schemas.content(operation.takes),
        }
    if operation.media:
        document["requestBody"] = {"required": True, "content": {media: {} for media in operation.media}}
    return document


def _parameters(operation: Operation) -> Iterator[Document]:
    for name in re.findall(r"{(\w+)}", operation.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    if operation.needs_idempotency_key:
        schema = {"type": "string", "minLength": 1, "maxLength": 255}
        yield {"name": "Idempotency-Key", "in": "header", "required": True, "schema": schema}
    if operation.has_etag:
        yield {"name": "If-None-Match", "in": "header", "required": False, "schema": {"type": "string"}}
    if operation.query:
        yield from _query_parameters(operation.query)


def _query_parameters(query: type[Request]) -> Iterator[Document]:
    for field in msgspec.structs.fields(query):
        schema = msgspec.json.schema(field.type)
        yield {"name": field.encode_name, "in": "query", "required": False, "schema": schema}


def _responses(operation: Operation, schemas: _Schemas) -> Document:
    responses: Document = {
        str(operation.status): {
            "description": "Done.",
            "content": schemas.content(operation.gives),
        }
    }
    if operation.has_etag:
        responses["304"] = {"description": "Not modified."}
    codes: dict[int, list[str]] = {}
    for refusal in refusals_of(operation):
        codes.setdefault(refusal.status, []).append(refusal.code)
    for status, names in codes.items():
        responses[str(status)] = {
            "description": " · ".join(names),
            "content": {"application/problem+json": {"schema": schemas.of(Problem)}},
        }
    return responses
