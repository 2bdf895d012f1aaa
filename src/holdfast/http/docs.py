"""The readable docs of the API, made from the table of operations. One page, no scripts, no outside requests."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.core.refusals import Refusal
from holdfast.http.openapi import refusals_of
from holdfast.http.operation import Operation, Who
from holdfast.http.page import PAGE

_WHO = {
    Who.PUBLIC: "anyone",
    Who.BUYERS: "admin, sales, the customer",
    Who.READERS: "admin, sales, review, the customer",
    Who.SALES: "admin, sales",
    Who.ADMIN: "admin",
}


def docs_page(operations: Sequence[Operation]) -> bytes:
    contents = "".join(f'<li><a href="#{op.name}"><b>{op.method}</b> {escape(op.path)}</a></li>' for op in operations)
    sections = "".join(_section(operation) for operation in operations)
    refusals = "".join(_refusal_row(refusal) for refusal in Refusal)
    text = PAGE.format(version=__version__, contents=contents, sections=sections, refusals=refusals)
    return text.encode()


def _section(operation: Operation) -> str:
    parts = [
        f'<section id="{operation.name}"><h3><b>{operation.method}</b> <code>{escape(operation.path)}</code></h3>',
        f'<p>{_inline(operation.summary)} <span class="who">Who: {_WHO[operation.who]}.</span></p>',
    ]
    if operation.needs_idempotency_key:
        parts.append("<p>Needs an <code>Idempotency-Key</code> header of 1 to 255 characters.</p>")
    if operation.has_etag:
        parts.append("<p>Has an <code>ETag</code>; answers 304 to a matching <code>If-None-Match</code>.</p>")
    for title, kind in (("Query", operation.query), ("Body", operation.takes), ("Answer", operation.gives)):
        if kind is not None:
            code = f" {operation.status}" if title == "Answer" else ""
            parts.append(_fields(title + code, kind))
    codes = ", ".join(f'<a href="#{r.code}"><code>{r.code}</code></a>' for r in refusals_of(operation))
    parts.append(f"<p>Refusals: {codes}</p></section>")
    return "".join(parts)


def _fields(title: str, kind: type[msgspec.Struct]) -> str:
    rows = "".join(_field_rows(kind, "", set()))
    return f"<h4>{title}</h4>" + (f"<table>{rows}</table>" if rows else "<p>Empty.</p>")


def _field_rows(kind: Any, path: str, above: set[Any]) -> Iterator[str]:
    """The fields of a type and of the types inside it, each with its full path."""
    for field in msgspec.structs.fields(kind):
        name = f"{path}{field.encode_name}"
        schema = msgspec.json.schema(field.type)
        yield f"<tr><th><code>{escape(name)}</code></th><td>{escape(_describe(schema))}</td></tr>"
        for inner, suffix in _inner_structs(field.type):
            if inner not in above:
                yield from _field_rows(inner, f"{name}{suffix}.", above | {kind, inner})


def _inner_structs(kind: Any, suffix: str = "") -> Iterator[tuple[Any, str]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind, suffix
    origin = getattr(kind, "__origin__", None)
    for inner in getattr(kind, "__args__", ()):
        yield from _inner_structs(inner, "[]" if origin in (list, tuple) else suffix)


def _describe(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        told = [option.get("description", "") for option in schema["anyOf"]]
        kinds = " or ".join(_describe({**option, "description": ""}) for option in schema["anyOf"])
        return " · ".join(part for part in (kinds, *told) if part)
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if "$ref" in schema:
        return "object"
    words = [schema.get("format", schema.get("type", "anything"))]
    if schema.get("type") == "array":
        words = [f"list of {_describe(schema.get('items', {}))}"]
    bounds = [schema.get(name) for name in ("minimum", "minLength", "minItems")]
    tops = [schema.get(name) for name in ("maximum", "maxLength", "maxItems")]
    low = next((bound for bound in bounds if bound is not None), None)
    high = next((bound for bound in tops if bound is not None), None)
    if high is not None:
        words.append(f"({low if low is not None else 0} to {high})")
    if schema.get("description"):
        words.append(f"· {schema['description']}")
    return " ".join(str(word) for word in words)


def _refusal_row(refusal: Refusal) -> str:
    again = "yes" if refusal.retryable else "no"
    return (
        f'<tr id="{refusal.code}"><th><code>{refusal.code}</code></th><td>{refusal.status}</td>'
        f"<td>{escape(refusal.title)}</td><td>{again}</td></tr>"
    )


def _inline(text: str) -> str:
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces))
