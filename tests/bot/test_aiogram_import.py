"""aiogram's types are built when they are first used, with the same result as if aiogram had built them all."""

import subprocess
import sys

import pytest

from tests.support.harness import IS_LONG

IMPORT_FIRST = "from holdfast.bot.aiogram_import import import_aiogram; import_aiogram()\n"
USE_TYPES = """
from aiogram.methods import GetChatAdministrators, Response, SendMessage
from aiogram.types import ChatMemberOwner, InlineKeyboardButton, InlineKeyboardMarkup, Message, Update

user = {"id": 7, "is_bot": False, "first_name": "Ivan"}
chat = {"id": 7, "type": "private"}
message = {"message_id": 1, "date": 1, "chat": chat, "from": user, "text": "/start"}
update = Update.model_validate({"update_id": 1, "message": {**message, "reply_to_message": message}})
print(repr(update))
print(repr(Response[Message].model_validate({"ok": True, "result": message})))
owner = {"status": "creator", "user": user, "is_anonymous": False}
print(repr(Response[GetChatAdministrators.__returning__].model_validate({"ok": True, "result": [owner]})))
button = InlineKeyboardButton(text="Take a place", callback_data="take")
print(SendMessage(chat_id=7, text="Hello", reply_markup=InlineKeyboardMarkup(inline_keyboard=[[button]])).model_dump())
"""
# Says whether a type that nobody has used is built.
IS_UNUSED_BUILT = "\nfrom aiogram.types import Giveaway; print(Giveaway.__pydantic_complete__)"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_a_type_is_built_at_its_first_use() -> None:
    """If this fails after an upgrade, aiogram builds its types in another way. `holdfast bot` would start slowly again,
    or not at all."""
    output = run(IMPORT_FIRST + USE_TYPES + IS_UNUSED_BUILT)
    assert output.count("'Ivan'") == 4
    assert output.endswith("False\n")


@pytest.mark.skipif(not IS_LONG, reason="builds all types, which takes long")
def test_types_built_at_their_first_use_are_the_same() -> None:
    late = run("import aiogram\n" + IMPORT_FIRST + USE_TYPES + IS_UNUSED_BUILT)
    assert late.endswith("True\n")
    assert late.removesuffix("True\n") == run(IMPORT_FIRST + USE_TYPES)
