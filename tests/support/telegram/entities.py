"""Formatted text: Telegram's HTML in, plain text with entities out, and back. Offsets count UTF-16 code units."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import msgspec

from tests.support.telegram.errors import bad_request

ENTITY_OF_TAG = {
    "b": "bold",
    "strong": "bold",
    "i": "italic",
    "em": "italic",
    "u": "underline",
    "ins": "underline",
    "s": "strikethrough",
    "strike": "strikethrough",
    "del": "strikethrough",
    "tg-spoiler": "spoiler",
    "a": "text_link",
    "code": "code",
    "pre": "pre",
    "blockquote": "blockquote",
}
TAG_OF_ENTITY = {kind: tag for tag, kind in reversed(ENTITY_OF_TAG.items())}
ATTRIBUTE = re.compile(r"""\s+([\w-]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+))?""")
REFERENCE = re.compile(r"&(?:(lt|gt|amp|quot)|#(\d{1,7})|#x([0-9a-fA-F]{1,6}));")
CHARACTERS = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}
DETECTED = re.compile(
    r"(?P<url>https?://[^\s<>\"]+)|(?<![\w/])(?P<bot_command>/\w{1,64}(?:@\w+)?)|(?<!\w)(?P<mention>@\w{4,32})"
)


class Entity(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    offset: int
    length: int
    url: str | None = None
    language: str | None = None

    @property
    def end(self) -> int:
        return self.offset + self.length

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire


class FormattedText(msgspec.Struct, frozen=True):
    text: str = ""
    entities: tuple[Entity, ...] = ()

    @property
    def html(self) -> str:
        return render_html(self.text, self.entities)

    def entities_to_wire(self) -> list[dict[str, Any]]:
        """Also the links, commands and mentions that Telegram finds in plain text."""
        return [entity.to_wire() for entity in (*self.entities, *detect_entities(self.text))]


def read_text(source: str, parse_mode: str | None, entities: Iterable[dict[str, Any]] | None) -> FormattedText:
    """The text of a message as a bot sends it."""
    if not parse_mode:
        known = (msgspec.convert(entity, Entity) for entity in entities or ())
        return _trim(source, [entity for entity in known if entity.type in TAG_OF_ENTITY])
    if parse_mode.lower() != "html":
        # Markdown is Telegram's too, but no bot of ours sends it.
        raise bad_request("unsupported parse_mode")
    return _trim(*parse_html(source))


def parse_html(source: str) -> tuple[str, list[Entity]]:
    text, at = "", 0
    entities: list[Entity] = []
    open_tags: list[tuple[str, int, dict[str, str]]] = []
    while at < len(source):
        if source[at] == "&" and (reference := REFERENCE.match(source, at)):
            text, at = text + _decode(reference), reference.end()
        elif source[at] != "<":
            text, at = text + source[at], at + 1
        elif source.startswith("</", at):
            name, at = _read_end_tag(source, at, [tag for tag, _, _ in open_tags])
            _, offset, attributes = open_tags.pop()
            if length := units(text) - offset:
                entities.append(_make_entity(name, offset, length, attributes, text))
        else:
            name, attributes, at = _read_start_tag(source, at)
            open_tags.append((name, units(text), attributes))
    if open_tags:
        raise _unparsable(f'Can\'t find end tag corresponding to start tag "{open_tags[-1][0]}"')
    return text, entities


def _read_start_tag(source: str, start: int) -> tuple[str, dict[str, str], int]:
    found = re.compile(r"[^\s>]*").match(source, start + 1)
    assert found is not None
    name, at = found[0].lower(), found.end()
    if at == len(source):
        raise _unparsable(f"Unclosed start tag at byte offset {_byte_offset(source, start)}")
    if name != "span" and name not in ENTITY_OF_TAG:
        raise _unparsable(f'Unsupported start tag "{name}" at byte offset {_byte_offset(source, start)}')
    attributes: dict[str, str] = {}
    while found := ATTRIBUTE.match(source, at):
        attributes[found[1].lower()] = REFERENCE.sub(_decode, (found[2] or "").strip("\"'"))
        at = found.end()
    closed = re.compile(r"\s*>").match(source, at)
    if closed is None:
        raise _unparsable(f"Unclosed start tag at byte offset {_byte_offset(source, start)}")
    if name == "span" and attributes.get("class") != "tg-spoiler":
        raise _unparsable(f'Tag "span" must have class "tg-spoiler" at byte offset {_byte_offset(source, start)}')
    return name, attributes, closed.end()


def _read_end_tag(source: str, start: int, open_tags: Sequence[str]) -> tuple[str, int]:
    if not open_tags:
        raise _unparsable(f"Unexpected end tag at byte offset {_byte_offset(source, start)}")
    end = source.find(">", start)
    if end < 0:
        raise _unparsable(f"Unclosed end tag at byte offset {_byte_offset(source, start)}")
    name, expected = source[start + 2 : end].strip().lower(), open_tags[-1]
    if name and name != expected:
        offset = _byte_offset(source, start)
        raise _unparsable(f'Unmatched end tag at byte offset {offset}, expected "</{expected}>", found "</{name}>"')
    return expected, end + 1


def _make_entity(tag: str, offset: int, length: int, attributes: dict[str, str], text: str) -> Entity:
    if tag == "a":
        return Entity("text_link", offset, length, url=attributes.get("href") or _slice(text, offset, offset + length))
    if tag == "blockquote" and "expandable" in attributes:
        return Entity("expandable_blockquote", offset, length)
    return Entity("spoiler" if tag == "span" else ENTITY_OF_TAG[tag], offset, length)


def _decode(reference: re.Match[str]) -> str:
    name, decimal, hexadecimal = reference.groups()
    if name:
        return CHARACTERS[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else reference[0]


def _unparsable(reason: str) -> Exception:
    return bad_request(f"can't parse entities: {reason}")


def _byte_offset(source: str, at: int) -> int:
    return len(source[:at].encode())


def _trim(text: str, entities: list[Entity]) -> FormattedText:
    """Telegram cuts off white space around a message."""
    cut = units(text) - units(text.lstrip())
    text = text.strip()
    kept = []
    for entity in entities:
        start, end = max(entity.offset - cut, 0), min(entity.end - cut, units(text))
        if start < end:
            kept.append(msgspec.structs.replace(entity, offset=start, length=end - start))
    return FormattedText(text, tuple(sorted(kept, key=lambda entity: (entity.offset, -entity.length, entity.type))))


def detect_entities(text: str) -> list[Entity]:
    return [
        Entity(found.lastgroup or "", units(text[: found.start()]), units(found[0]))
        for found in DETECTED.finditer(text)
    ]


def render_html(text: str, entities: Sequence[Entity]) -> str:
    parts: list[str] = []
    open_entities: list[Entity] = []
    at = 0

    def write_until(end: int) -> None:
        nonlocal at
        while open_entities and open_entities[-1].end <= end:
            entity = open_entities.pop()
            parts.extend((escape(_slice(text, at, entity.end), quote=False), f"</{_tag(entity)}>"))
            at = max(at, entity.end)
        parts.append(escape(_slice(text, at, end), quote=False))
        at = max(at, end)

    for entity in entities:
        write_until(entity.offset)
        url = f' href="{escape(entity.url)}"' if entity.url else ""
        parts.append(f"<{_tag(entity)}{url}>")
        open_entities.append(entity)
    write_until(units(text))
    return "".join(parts)


def _tag(entity: Entity) -> str:
    return "blockquote" if entity.type == "expandable_blockquote" else TAG_OF_ENTITY[entity.type]


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _slice(text: str, start: int, end: int) -> str:
    return text.encode("utf-16-le")[2 * start : 2 * end].decode("utf-16-le")
