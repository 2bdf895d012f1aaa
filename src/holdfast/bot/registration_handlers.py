"""Registers a worker on first use: consent, name, and a phone number that Telegram vouches for."""

import re
from typing import Final

from aiogram import F, Router
from aiogram.types import CallbackQuery, Message
from msgspec import ValidationError, convert

from holdfast.api.requests import PhoneNumber
from holdfast.bot.buttons import ConsentButton
from holdfast.bot.filters import at_step, is_private
from holdfast.bot.markup import plain
from holdfast.bot.offers import show_offer
from holdfast.bot.turn import Turn
from holdfast.runtime import ids

router = Router()

NAME: Final = "register.name"
PHONE: Final = "register.phone"
NAME_MAX: Final = 100


def begin_registration(turn: Turn, event: bytes | None) -> None:
    """Ask before anything is stored. `event` is the shift to show afterwards."""
    agree = ConsentButton(event=ids.format_event_id(event) if event is not None else "")
    turn.reply(turn.text("register.consent", org=turn.bot.org_name), [[agree.button(turn.label("register.agree"))]])


@router.callback_query(ConsentButton.filter(), is_private)
async def take_consent(query: CallbackQuery, callback_data: ConsentButton, turn: Turn) -> None:
    if turn.person.is_registered:
        await _finish(turn, callback_data.event)
        return
    turn.ask(NAME, {"event": callback_data.event})
    turn.reply(turn.text("register.name"))


@router.message(at_step(NAME), is_private, F.text, ~F.text.startswith("/"))
async def take_name(message: Message, turn: Turn) -> None:
    name = plain(message.text or "")
    if not 2 <= len(name) <= NAME_MAX:
        turn.reply(turn.text("register.name_length", max=NAME_MAX))
        return
    turn.change_person(name=name)
    turn.ask(PHONE)
    _ask_phone(turn)


@router.message(at_step(PHONE), is_private, F.contact)
async def take_phone(message: Message, turn: Turn) -> None:
    contact = message.contact
    assert contact is not None
    # Telegram writes numbers with or without a plus, and may group their digits.
    phone = "+" + re.sub(r"\D", "", contact.phone_number)
    if contact.user_id != turn.person.person_id or not _is_phone(phone):
        turn.reply(turn.text("register.own_phone"))
        _ask_phone(turn)
        return
    event = str(turn.dialogue.data.get("event", "")) if turn.dialogue is not None else ""
    turn.change_person(phone=phone, is_registered=True)
    turn.end_dialogue()
    turn.reply(turn.text("register.done", name=turn.person.name), keyboard="remove")
    await _finish(turn, event)


@router.message(at_step(PHONE), is_private, ~F.text.startswith("/"))
async def repeat_phone(message: Message, turn: Turn) -> None:
    _ask_phone(turn)


def _is_phone(text: str) -> bool:
    try:
        convert(text, PhoneNumber)
    except ValidationError:
        return False
    return True


def _ask_phone(turn: Turn) -> None:
    turn.reply(turn.text("register.phone"), keyboard="contact", contact=turn.label("register.share"))


async def _finish(turn: Turn, event_id: str) -> None:
    event = ids.parse_event_id(event_id)
    if event is not None:
        await show_offer(turn, event)
