"""The readable docs of the API, made from the table of operations. One page, no scripts, no requests to other sites."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import msgspec
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import __version__
from holdfast.api.access import Access
from holdfast.api.call import Operation, Tag
from holdfast.api.openapi import refusals_of
from holdfast.api.problems import HTTP_STATUS
from holdfast.core.refusals import Refusal
from holdfast.core.request_types import RequestModel
from holdfast.web.assets import ASSETS, Asset, asset_response, make_asset
from holdfast.web.rendering import templates
from holdfast.web.security import CSP_NONE, content_security_policy, security_headers
from holdfast.web.site import Site

Schema = dict[str, Any]

_ACCESS: Final = {
    Access.PUBLIC: "Anyone",
    Access.BUYERS: "Admin, sales, the customer",
    Access.READERS: "Admin, sales, review, the customer",
    Access.TICKET_READERS: "Admin, sales, door, the customer",
    Access.SALES: "Admin, sales",
    Access.REVIEW: "Admin, review",
    Access.DOOR: "Admin, door",
    Access.ADMIN: "Admin",
}

_TYPES: Final = {"date-time": "RFC 3339 time", "binary": "file", "array": "list"}
_LOWER: Final = ("minimum", "minLength", "minItems")
_UPPER: Final = ("maximum", "maxLength", "maxItems")


class Block(msgspec.Struct, frozen=True):
    """A request or a response: text, and the fields of its type or a link to where they are listed."""

    title: str
    text: str = ""
    anchor: str = ""
    link: str = ""
    fields: tuple[tuple[str, str], ...] = ()


def api_docs_route(site: Site, operations: Sequence[Operation]) -> Route:
    """The page, with the same protection as every other page. Its first reader waits for a thread to render it; the
    event loop does not, and neither does the start of the process."""

    @cache
    def make_page() -> Asset:
        return make_asset(render_api_docs(operations), "text/html; charset=utf-8")

    policy = content_security_policy(CSP_NONE, has_scripts=False)
    headers = security_headers(policy, is_https=site.is_https)

    async def show(request: Request) -> Response:
        page = await asyncio.to_thread(make_page)
        response = asset_response(request, page, headers["cache-control"])
        response.headers.update(headers)
        return response

    return Route("/docs", site.file(show), methods=["GET"])


def render_api_docs(operations: Sequence[Operation]) -> bytes:
    listed: set[type] = set()
    chapters = [(tag, [row for row in operations if row.tag is tag]) for tag in Tag]
    page = templates.get_template("api_docs.html").render(
        asset=ASSETS.url,
        mark_code=_with_code,
        version=__version__,
        chapters=[
            (tag, [(row, list(_blocks(row, listed)), refusals_of(row)) for row in rows])
            for tag, rows in chapters
            if rows
        ],
        access=_ACCESS,
        refusals=[(refusal, HTTP_STATUS[refusal]) for refusal in Refusal],
    )
    return page.encode()


def _with_code(text: str) -> Markup:
    """Text with `code` in backticks."""
    pieces = str(escape(text)).split("`")
    marked = (f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces))
    return Markup("".join(marked))  # noqa: S704 (escaped above)


def _blocks(operation: Operation, listed: set[type]) -> Iterator[Block]:
    if operation.query_type is not None:
        yield _block("Query", operation.query_type, listed)
    if operation.body_content:
        media_types = " or ".join(f"`{name}`" for name in operation.body_content)
        yield Block("Body", f"{media_types}, at most {operation.body_bytes_max:,} bytes.")
        for media_type, kind in operation.body_content.items():
            if kind is not None:
                yield _block(f"Body as {media_type}", kind, listed)
    elif operation.body_type is not None:
        yield _block("Body", operation.body_type, listed)
    yield _response(operation, listed)


def _response(operation: Operation, listed: set[type]) -> Block:
    title = f"Response {operation.status}"
    if operation.response_type is bytes:
        return Block(title, " or ".join(f"`{name}`" for name in operation.response_media_types))
    (kind, suffix), *_ = _structs_in(operation.response_type)
    return _block(f"{title}, a list" if suffix else title, kind, listed)


def _block(title: str, kind: type, listed: set[type]) -> Block:
    """The fields of a type where it first occurs, and a link to there from then on."""
    name = kind.__name__.removesuffix("View")
    if kind in listed:
        return Block(title, link=name)
    listed.add(kind)
    fields = tuple(_fields(kind, "", frozenset()))
    return Block(title, _docstring(kind), anchor=f"type-{name}", fields=fields)


def _docstring(kind: type) -> str:
    return " ".join((kind.__dict__.get("__doc__") or "").split())


def _fields(kind: type, path: str, above: frozenset[type]) -> Iterator[tuple[str, str]]:
    """Each field of a type and of the types inside it: the full path, and a description."""
    for field in msgspec.structs.fields(kind):
        name = f"{path}{field.encode_name}"
        inner = [(struct, suffix) for struct, suffix in _structs_in(field.type) if struct not in above]
        schema = msgspec.json.schema(field.type)
        facts = (_type_name(schema, schema.get("$defs", {})), _default(kind, field))
        sentences = (*_descriptions(schema), *(_docstring(struct) for struct, _ in inner))
        yield name, " · ".join(text for text in (*facts, " ".join(filter(None, sentences))) if text)
        for struct, suffix in inner:
            yield from _fields(struct, f"{name}{suffix}.", above | {kind, struct})


def _default(kind: type, field: msgspec.structs.FieldInfo) -> str:
    if not issubclass(kind, RequestModel):
        return ""
    if field.required:
        return "required"
    is_plain = isinstance(field.default, int | str)
    return f"default `{msgspec.json.encode(field.default).decode()}`" if is_plain else ""


def _structs_in(kind: Any, suffix: str = "") -> Iterator[tuple[type, str]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind, suffix
    suffixes: dict[Any, str] = {list: "[]", tuple: "[]", dict: "{}"}
    for inner in getattr(kind, "__args__", ()):
        yield from _structs_in(inner, suffixes.get(getattr(kind, "__origin__", None), suffix))


def _descriptions(schema: Schema) -> list[str]:
    return [option["description"] for option in schema.get("anyOf", [schema]) if "description" in option]


def _type_name(schema: Schema, definitions: Schema) -> str:
    if "anyOf" in schema:
        return ", or ".join(_type_name(option, definitions) for option in schema["anyOf"])
    if "$ref" in schema:
        target = definitions.get(schema["$ref"].rpartition("/")[2], {})
        return _type_name(target, definitions) if "enum" in target else "object"
    if "enum" in schema:
        return " | ".join(f"`{value}`" for value in schema["enum"])
    name: str = schema.get("format") or schema.get("type", "anything")
    items = f" ({_type_name(schema.get('items', {}), definitions)})" if name == "array" else ""
    return _TYPES.get(name, name) + _bounds(schema) + items


def _bounds(schema: Schema) -> str:
    low = next((schema[name] for name in _LOWER if name in schema), 0)
    high = next((schema[name] for name in _UPPER if name in schema), None)
    if high is None:
        return ""
    unit = " characters" if "maxLength" in schema else " items" if "maxItems" in schema else ""
    return f" of {low:,.0f} to {high:,.0f}{unit}"
