"""Keyboards under messages, checked as Telegram checks them."""

from typing import Any

import msgspec

from tests.support.telegram.errors import bad_request
from tests.support.telegram.messages import Button, Keyboard

CALLBACK_DATA_BYTES = 64
MAX_BUTTONS = 100
URL_SCHEMES = ("http://", "https://", "tg://")
OTHER_ACTIONS = frozenset(
    {"web_app", "login_url", "switch_inline_query", "switch_inline_query_current_chat", "copy_text", "pay"}
)


def read_inline_keyboard(markup: Any) -> Keyboard:
    """The inline keyboard of a reply_markup, which may hold another kind or none."""
    if not markup:
        return ()
    if not isinstance(markup, dict):
        raise bad_request("object expected as reply markup")
    rows = tuple(tuple(_read_button(button) for button in row) for row in markup.get("inline_keyboard") or ())
    if sum(len(row) for row in rows) > MAX_BUTTONS:
        raise bad_request("REPLY_MARKUP_TOO_LONG")
    return tuple(row for row in rows if row)


def _read_button(source: Any) -> Button:
    if not isinstance(source, dict) or not source.get("text"):
        raise bad_request('can\'t parse inline keyboard button: Field "text" must be of type String')
    button = msgspec.convert(source, Button)
    if button.callback_data is None and button.url is None and not OTHER_ACTIONS & source.keys():
        raise bad_request("can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard")
    if button.callback_data is not None and not 0 < len(button.callback_data.encode()) <= CALLBACK_DATA_BYTES:
        raise bad_request("BUTTON_DATA_INVALID")
    if button.url is not None and not button.url.startswith(URL_SCHEMES):
        raise bad_request(f"inline keyboard button URL '{button.url}' is invalid: Wrong HTTP URL")
    return button
