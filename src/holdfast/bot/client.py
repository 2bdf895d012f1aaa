"""The client of Telegram's Bot API. Importing aiogram takes long, so only what needs it imports this module."""

import secrets
from typing import Final

from aiogram import Bot
from aiogram.client.default import DefaultBotProperties
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.enums import ParseMode
from aiogram.exceptions import TelegramAPIError, TelegramUnauthorizedError
from aiogram.utils.token import TokenValidationError

from holdfast import sql
from holdfast.bot.telegram_bot import BotDefaults, BotError, delete_rows
from holdfast.runtime.db import Database

REQUEST_SECONDS: Final = 20.0


def open_client(token: str, api: str) -> Bot:
    try:
        return Bot(
            token,
            session=AiohttpSession(api=TelegramAPIServer.from_base(api), timeout=REQUEST_SECONDS),
            default=DefaultBotProperties(parse_mode=ParseMode.HTML, link_preview_is_disabled=True),
        )
    except TokenValidationError:
        raise BotError(
            "This is not a bot token. A token looks like 123456:ABC-DEF, and @BotFather issues it."
        ) from None


async def connect_bot(database: Database, org: bytes, token: str, api: str, defaults: BotDefaults) -> str:
    """Ask Telegram whose token this is, and make it the org's bot. Returns the bot's user name."""
    client = open_client(token, api)
    try:
        me = await client.get_me()
    except TelegramUnauthorizedError:
        raise BotError("Telegram does not accept this token. Get the current one from @BotFather.") from None
    except TelegramAPIError as error:
        raise BotError(f"Cannot ask Telegram about this token: {error.message}.") from None
    finally:
        await client.session.close()
    owner = await database.shared.fetchval(sql.telegram.org_of_bot, me.id)
    if owner not in (None, org):
        raise BotError("This bot belongs to another org. Create one bot for each org.")
    username = me.username or str(me.id)
    async with database.org(org).transaction() as scope:
        if owner is None:
            await delete_rows(scope, org)
        await scope.execute(
            *sql.telegram.connect_bot(
                org=org,
                bot=me.id,
                token=token,
                username=username,
                webhook_secret=secrets.token_urlsafe(32),
                language=defaults.language,
                currency=defaults.currency,
                timezone=defaults.timezone,
            )
        )
    return username
