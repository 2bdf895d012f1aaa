"""Links an admin chat and a channel to the org, and follows a group that gets another id."""

from contextlib import suppress

from aiogram import F, Router
from aiogram.enums import ChatMemberStatus
from aiogram.exceptions import TelegramAPIError
from aiogram.filters import Command, CommandObject
from aiogram.types import ChatMemberUpdated, Message

from holdfast import sql
from holdfast.bot.filters import is_staff
from holdfast.bot.markup import say
from holdfast.bot.submissions import show_receipts
from holdfast.bot.telegram_bot import Purpose, create_code, hash_code
from holdfast.bot.turn import Turn

router = Router()


@router.message(Command("link"))
async def link_admin_chat(message: Message, command: CommandObject, turn: Turn) -> None:
    code = hash_code(command.args or "")
    if not await _is_valid(turn, code, "staff"):
        turn.reply(turn.text("link.invalid"))
        return
    before = turn.bot.admin_chat_id
    if before is not None and before != turn.chat_id:
        turn.reply(say(turn.bot.language, "link.moved", org=turn.bot.org_name), chat=before)
    turn.also(sql.telegram.link_admin_chat(org=turn.bot.org_id, hash=code, chat=turn.chat_id))
    turn.reply(say(turn.bot.language, "link.admin", org=turn.bot.org_name))
    # Receipts may have come while there was no chat, or another one.
    await show_receipts(turn, turn.chat_id)


@router.channel_post(Command("link"))
async def link_channel(message: Message, command: CommandObject, turn: Turn) -> None:
    code = hash_code(command.args or "")
    if not await _is_valid(turn, code, "channel"):
        return
    turn.also(sql.telegram.link_channel(org=turn.bot.org_id, hash=code, chat=turn.chat_id))
    if turn.bot.admin_chat_id is not None:
        text = say(turn.bot.language, "link.channel", channel=message.chat.title or "")
        turn.reply(text, chat=turn.bot.admin_chat_id)
    # Subscribers have no use for the code. The bot may not be allowed to delete it.
    with suppress(TelegramAPIError):
        await turn.client.delete_message(turn.chat_id, message.message_id)


@router.message(Command("channel"), is_staff)
async def make_channel_code(message: Message, turn: Turn) -> None:
    code = await create_code(turn.database, turn.bot.org_id, "channel")
    turn.reply(turn.text("link.how", bot=f"@{turn.bot.username}") + f"\n\n<code>/link {code}</code>")


@router.message(F.migrate_to_chat_id, is_staff)
async def follow_group(message: Message, turn: Turn) -> None:
    chat = message.migrate_to_chat_id
    assert chat is not None
    turn.also(sql.telegram.move_admin_chat(org=turn.bot.org_id, was=turn.chat_id, chat=chat))
    await show_receipts(turn, chat)


@router.my_chat_member()
async def note_membership(change: ChatMemberUpdated, turn: Turn) -> None:
    """Somebody has blocked the bot. A message from them, or letting it in again, takes that back."""
    if change.new_chat_member.status == ChatMemberStatus.KICKED and turn.chat_id == turn.person.person_id:
        turn.also((sql.telegram.set_unreachable, turn.bot.org_id, turn.person.person_id))


async def _is_valid(turn: Turn, code: bytes, purpose: Purpose) -> bool:
    org = turn.bot.org_id
    return bool(await turn.database.org(org).fetchval(sql.telegram.has_code, code, org, purpose))
