"""The readable docs of the API, made from the table of operations. One page, no scripts, no outside requests."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import msgspec
from starlette.requests import Request as StarletteRequest
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from holdfast import __version__
from holdfast.api.call import Access, Operation
from holdfast.api.openapi import refusals_of
from holdfast.core.event_schemas import Request
from holdfast.core.refusals import Refusal
from holdfast.web.api_docs_frame import PAGE

_WHO = {
    Access.PUBLIC: "anyone",
    Access.BUYERS: "admin, sales, the customer",
    Access.READERS: "admin, sales, review, the customer",
    Access.TICKET_READERS: "admin, sales, door, the customer",
    Access.SALES: "admin, sales",
    Access.REVIEW: "admin, review",
    Access.DOOR: "admin, door",
    Access.ADMIN: "admin",
}


def docs_route(operations: Sequence[Operation]) -> Route:
    page = docs_page(operations)

    async def show(_: StarletteRequest) -> Response:
        return HTMLResponse(page)

    return Route("/docs", show, methods=["GET"])


def docs_page(operations: Sequence[Operation]) -> bytes:
    contents = "".join(f'<li><a href="#{op.name}"><b>{op.method}</b> {escape(op.path)}</a></li>' for op in operations)
    shown: set[type] = set()
    sections = "".join(_section(operation, shown) for operation in operations)
    refusals = "".join(_refusal_row(refusal) for refusal in Refusal)
    text = PAGE.format(version=__version__, contents=contents, sections=sections, refusals=refusals)
    return text.encode()


def _section(operation: Operation, shown: set[type]) -> str:
    parts = [
        f'<section id="{operation.name}"><h3><b>{operation.method}</b> <code>{escape(operation.path)}</code></h3>',
        f'<p>{_inline(operation.summary)} <span class="who">Who: {_WHO[operation.who]}.</span></p>',
    ]
    if operation.needs_idempotency_key:
        parts.append("<p>Needs an <code>Idempotency-Key</code> header of 1 to 255 characters.</p>")
    if operation.has_etag:
        parts.append("<p>Has an <code>ETag</code>; answers 304 to a matching <code>If-None-Match</code>.</p>")
    if operation.media:
        parts.append(f"<h4>Body</h4><p>{_media(operation.media)}, at most {operation.body_max:,} bytes.</p>")
    for title, kind in (("Query", operation.query), ("Body", operation.takes)):
        if kind is not None:
            parts.append(_fields(title, kind, shown))
    parts.append(_answer(operation, shown))
    codes = ", ".join(f'<a href="#{r.code}"><code>{r.code}</code></a>' for r in refusals_of(operation))
    parts.append(f"<p>Refusals: {codes}</p></section>")
    return "".join(parts)


def _media(names: tuple[str, ...]) -> str:
    return " or ".join(f"<code>{escape(name)}</code>" for name in names)


def _answer(operation: Operation, shown: set[type]) -> str:
    title = f"Answer {operation.status}"
    if isinstance(operation.gives, tuple):
        return f"<h4>{title}</h4><p>{_media(operation.gives)}</p>"
    listed = [kind for kind, _ in _inner_structs(operation.gives)]
    return _fields(title if listed[0] is operation.gives else f"{title}, a list", listed[0], shown)


def _fields(title: str, kind: type[msgspec.Struct], shown: set[type]) -> str:
    """The fields of a type where it first occurs, and later a link to there."""
    name = kind.__name__.removesuffix("View")
    if kind in shown:
        return f'<h4>{title}</h4><p><a href="#type-{name}">{name}</a>, as above.</p>'
    shown.add(kind)
    rows = "".join(_field_rows(kind, "", set()))
    table = f"<table>{rows}</table>" if rows else "<p>Nothing, or an empty object.</p>"
    return f'<h4 id="type-{name}">{title}</h4>{_doc(kind)}{table}'


def _doc(kind: type) -> str:
    text = kind.__dict__.get("__doc__") or ""
    return f"<p>{_inline(' '.join(text.split()))}</p>" if text else ""


def _field_rows(kind: Any, path: str, above: set[Any]) -> Iterator[str]:
    """The fields of a type and of the types inside it, each with its full path."""
    for field in msgspec.structs.fields(kind):
        name = f"{path}{field.encode_name}"
        words = [_describe(msgspec.json.schema(field.type)), _default(kind, field)]
        inner = [(struct, suffix) for struct, suffix in _inner_structs(field.type) if struct not in above]
        docs = [" ".join((struct.__dict__.get("__doc__") or "").split()) for struct, _ in inner]
        told = " · ".join(word for word in (*words, *docs) if word)
        yield f"<tr><th><code>{escape(name)}</code></th><td>{_inline(told)}</td></tr>"
        for struct, suffix in inner:
            yield from _field_rows(struct, f"{name}{suffix}.", above | {kind, struct})


def _default(kind: type, field: Any) -> str:
    """What a caller may leave out, and what is taken instead."""
    if not issubclass(kind, Request):
        return ""
    if field.required:
        return "required"
    return f"default {_json_text(field.default)}" if isinstance(field.default, int | str) else ""


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _inner_structs(kind: Any, suffix: str = "") -> Iterator[tuple[Any, str]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind, suffix
    origin = getattr(kind, "__origin__", None)
    places: dict[Any, str] = {list: "[]", tuple: "[]", dict: "{}"}
    for inner in getattr(kind, "__args__", ()):
        yield from _inner_structs(inner, places.get(origin, suffix))


def _describe(schema: dict[str, Any], definitions: dict[str, Any] | None = None) -> str:
    definitions = definitions or schema.get("$defs", {})
    if "anyOf" in schema:
        told = [option.get("description", "") for option in schema["anyOf"]]
        kinds = " or ".join(_describe({**option, "description": ""}, definitions) for option in schema["anyOf"])
        return " · ".join(part for part in (kinds, *told) if part)
    if "$ref" in schema:
        target = definitions.get(schema["$ref"].rpartition("/")[2], {})
        return " | ".join(target["enum"]) if "enum" in target else "object"
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    words = [schema.get("format", schema.get("type", "anything"))]
    if schema.get("type") == "array":
        words = [f"list of {_describe(schema.get('items', {}), definitions)}"]
    low, high = _bounds(schema)
    if high is not None:
        words.append(f"({low} to {high:,})")
    if schema.get("description"):
        words.append(f"· {schema['description']}")
    return " ".join(str(word) for word in words)


def _bounds(schema: dict[str, Any]) -> tuple[int, int | None]:
    low = next((schema[name] for name in ("minimum", "minLength", "minItems") if name in schema), 0)
    return low, next((schema[name] for name in ("maximum", "maxLength", "maxItems") if name in schema), None)


def _refusal_row(refusal: Refusal) -> str:
    again = "yes" if refusal.retryable else "no"
    return (
        f'<tr id="{refusal.code}"><th><code>{refusal.code}</code></th><td>{refusal.status}</td>'
        f"<td>{escape(refusal.title)}</td><td>{again}</td></tr>"
    )


def _inline(text: str) -> str:
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces))
