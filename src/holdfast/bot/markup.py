"""The texts and buttons of messages, as Telegram takes them."""

import base64
import html
import re
import unicodedata
from collections.abc import Sequence
from typing import Final, Literal

from aiogram.types import (
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    KeyboardButton,
    ReplyKeyboardMarkup,
    ReplyKeyboardRemove,
)
from msgspec import Struct

from holdfast.i18n.formatting import shorten
from holdfast.i18n.texts import translate

TEXT_MAX: Final = 4096
CAPTION_MAX: Final = 1024
NAME_MAX: Final = 100
# Marks that change the direction of the text around them, so that a name could turn our words around.
_BIDI_MARKS: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_TOKENS: Final = re.compile(r"<(?P<is_end>/?)(?P<tag>[a-z]+)[^>]*>|&\w+;|.", re.DOTALL)

Markup = InlineKeyboardMarkup | ReplyKeyboardMarkup | ReplyKeyboardRemove


class Button(Struct, frozen=True, omit_defaults=True):
    """Either `data`, which comes back to the bot, or the address of a page or a chat."""

    text: str
    data: str | None = None
    url: str | None = None


Buttons = Sequence[Sequence[Button]]


class MessageBody(Struct, frozen=True, omit_defaults=True):
    """`text` is HTML. `contact` is the label of a button that sends the person's own phone number."""

    text: str
    buttons: list[list[Button]] = []
    keyboard: Literal["contact", "remove"] | None = None
    contact: str = ""


def inline_keyboard(buttons: Buttons) -> InlineKeyboardMarkup | None:
    if not buttons:
        return None
    return InlineKeyboardMarkup(
        inline_keyboard=[
            [InlineKeyboardButton(text=button.text, callback_data=button.data, url=button.url) for button in row]
            for row in buttons
        ]
    )


def reply_markup(body: MessageBody) -> Markup | None:
    match body.keyboard:
        case "contact":
            button = KeyboardButton(text=body.contact, request_contact=True)
            return ReplyKeyboardMarkup(keyboard=[[button]], resize_keyboard=True, one_time_keyboard=True)
        case "remove":
            return ReplyKeyboardRemove()
        case None:
            return inline_keyboard(body.buttons)


def plain(text: str) -> str:
    """A text that somebody typed, on one line and without marks that turn text around."""
    visible = _BIDI_MARKS.sub("", text)
    return " ".join("".join(" " if unicodedata.category(c) == "Cc" else c for c in visible).split())


def escape(value: object) -> str:
    """A value within HTML. Several lines stay several lines."""
    return html.escape("\n".join(plain(line) for line in str(value).split("\n")), quote=False)


def say(language: str, key: str, **values: object) -> str:
    """A text of the bot as HTML, with its values escaped."""
    return translate(language, f"bot.{key}", **{name: escape(value) for name, value in values.items()})


def label(language: str, key: str, **values: object) -> str:
    """A text of the bot for buttons and pop-ups, which have no markup."""
    return translate(language, f"bot.{key}", **{name: plain(str(value)) for name, value in values.items()})


def fit_html(html_text: str, length_max: int) -> str:
    """Cut a text that is longer than Telegram takes, but no tag in two. Telegram counts UTF-16 units, and no markup."""
    tokens = list(_TOKENS.finditer(html_text))
    if sum(_count_units(token) for token in tokens) <= length_max:
        return html_text
    parts: list[str] = []
    open_tags: list[str] = []
    length = 0
    for token in tokens:
        length += _count_units(token)
        if length >= length_max:
            break
        if token["tag"]:
            open_tags = open_tags[:-1] if token["is_end"] else [*open_tags, token["tag"]]
        parts.append(token[0])
    return "".join(parts).rstrip() + "…" + "".join(f"</{tag}>" for tag in reversed(open_tags))


def _count_units(token: re.Match[str]) -> int:
    return 0 if token["tag"] else len(html.unescape(token[0]).encode("utf-16-le", "surrogatepass")) // 2


def bold(html_text: str) -> str:
    return f"<b>{html_text}</b>"


def paragraphs(*parts: str | None) -> str:
    return "\n\n".join(part for part in parts if part)


def shorten_name(name: str) -> str:
    return shorten(plain(name), NAME_MAX)


def pack_id(*ids: bytes) -> str:
    """Ids for the data of a button, which has room for 64 bytes."""
    return base64.urlsafe_b64encode(b"".join(ids)).rstrip(b"=").decode()


def unpack_id(text: str, count: int = 1) -> tuple[bytes, ...] | None:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return tuple(raw[i : i + 16] for i in range(0, len(raw), 16)) if len(raw) == 16 * count else None
