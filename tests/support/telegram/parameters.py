"""The parameters of a call, however the bot sends them: in the query, as a form, as multipart or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import BodyPartReader, MultipartReader, hdrs, web

from tests.support.telegram.errors import bad_request

STRUCTURED = frozenset(
    {"reply_markup", "allowed_updates", "entities", "caption_entities", "commands", "reply_parameters", "scope"}
)


NUMERIC = frozenset({"chat_id", "message_id", "user_id", "offset", "limit", "timeout", "max_connections"})


class Upload(msgspec.Struct, frozen=True):
    name: str
    mime_type: str
    data: bytes


class Parameters:
    def __init__(self, values: Mapping[str, Any], uploads: Mapping[str, Upload] | None = None) -> None:
        self.values = {name: _parse(name, value) for name, value in values.items() if value is not None}
        self.uploads = dict(uploads or {})

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return None if value is None else str(value)

    def number(self, name: str, default: int = 0) -> int:
        try:
            return int(self.values.get(name, default))
        except (TypeError, ValueError):
            raise bad_request(f'field "{name}" must be a valid Number') from None

    def flag(self, name: str) -> bool:
        return str(self.values.get(name, "")).lower() in ("true", "1", "yes")

    def structure(self, name: str) -> Any:
        return self.values.get(name)

    def chat_id(self) -> int | str | None:
        """A number, or the @name of a channel."""
        value = self.values.get("chat_id")
        return value if isinstance(value, int) else str(value or "") or None

    def upload(self, name: str) -> Upload | None:
        """The file of this field, which may refer to another part with attach://."""
        if name in self.uploads:
            return self.uploads[name]
        value = self.text(name) or ""
        return self.uploads.get(value.removeprefix("attach://")) if value.startswith("attach://") else None


async def read_parameters(request: web.Request) -> Parameters:
    values: dict[str, Any] = dict(request.query)
    kind = request.content_type
    if kind == "application/json" and request.can_read_body:
        try:
            values |= await request.json()
        except (TypeError, ValueError):
            raise bad_request("can't parse JSON object") from None
        return Parameters(values)
    if kind == "multipart/form-data":
        return await read_multipart(await request.multipart(), values)
    return Parameters(values | dict(await request.post()))


async def read_multipart(reader: MultipartReader, values: dict[str, Any]) -> Parameters:
    uploads = {}
    async for part in reader:
        assert isinstance(part, BodyPartReader), "nested multipart"
        name, data = part.name or "", bytes(await part.read(decode=True))
        if part.filename is None:
            values[name] = data.decode()
        else:
            mime_type = part.headers.get(hdrs.CONTENT_TYPE, "application/octet-stream")
            uploads[name] = Upload(part.filename, mime_type, data)
    return Parameters(values, uploads)


def _parse(name: str, value: Any) -> Any:
    """A form holds only strings. The log of calls shows numbers as numbers, whichever way the bot sent them."""
    if not isinstance(value, str):
        return value
    if name in NUMERIC and value.removeprefix("-").isdecimal():
        return int(value)
    if name not in STRUCTURED:
        return value
    try:
        return json.loads(value) if value else None
    except ValueError:
        subject = "reply keyboard markup" if name == "reply_markup" else name
        raise bad_request(f"can't parse {subject} JSON object") from None
