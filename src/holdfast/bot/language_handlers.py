"""The language of a worker, or of the admin chat."""

from aiogram import Router
from aiogram.filters import Command
from aiogram.types import CallbackQuery, Message

from holdfast import sql
from holdfast.bot.buttons import LanguageButton
from holdfast.bot.filters import is_private, is_staff
from holdfast.bot.markup import label, say
from holdfast.bot.turn import Turn
from holdfast.i18n.languages import LANGUAGES

router = Router()


@router.message(Command("language"), is_staff)
@router.message(Command("language"), is_private)
async def ask_language(message: Message, turn: Turn) -> None:
    buttons = [[LanguageButton(language=language).button(label(language, "language.name"))] for language in LANGUAGES]
    turn.reply(turn.text("language.ask"), buttons)


@router.callback_query(LanguageButton.filter())
async def set_language(query: CallbackQuery, callback_data: LanguageButton, turn: Turn) -> None:
    language = callback_data.language
    if language not in LANGUAGES:
        return
    if turn.is_staff:
        turn.also((sql.telegram.set_language, turn.bot.org_id, language))
    else:
        turn.change_person(language=language)
    turn.reply(say(language, "language.set"))
