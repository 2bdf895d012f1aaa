"""The bot of an org: its settings, and the codes that link chats to it."""

import hashlib
import secrets
from typing import Final, Literal

from msgspec import Struct

from holdfast import sql
from holdfast.runtime.db import Database, DatabaseScope

CODE_SECONDS: Final = 3600.0
CODE_LENGTH: Final = 10
# Without letters and digits that look alike.
CODE_LETTERS: Final = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"


Purpose = Literal["staff", "channel"]


class BotError(ValueError):
    """The bot cannot be set up. The text says why."""


class TelegramBot(Struct, frozen=True, kw_only=True):
    """`language` is what staff read. New shifts start with `currency` and `timezone`."""

    org_id: bytes
    bot_id: int
    token: str
    username: str
    webhook_secret: str
    admin_chat_id: int | None
    channel_id: int | None
    language: str
    currency: str
    timezone: str
    org_name: str


class BotDefaults(Struct, frozen=True):
    """What an operator has chosen. None keeps what is there."""

    language: str | None = None
    currency: str | None = None
    timezone: str | None = None


async def disconnect_bot(database: Database, org: bytes) -> None:
    """Forget the bot, its chats and everything under way. Workers and their bookings stay."""
    async with database.org(org).transaction() as scope:
        await scope.execute(sql.telegram.disconnect_bot, org)
        await delete_rows(scope, org)


async def delete_rows(scope: DatabaseScope, org: bytes) -> None:
    """What belongs to one bot, and means nothing to another one."""
    for statement in (
        sql.telegram.delete_updates,
        sql.telegram.delete_messages,
        sql.telegram.delete_dialogues,
        sql.telegram.delete_cursors,
        sql.telegram.delete_codes,
    ):
        await scope.execute(statement, org)


async def create_code(database: Database, org: bytes, purpose: Purpose) -> str:
    """A code that links one chat to the org's bot, within an hour."""
    code = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
    await database.shared.execute(sql.telegram.delete_expired_codes)
    await database.org(org).execute(
        *sql.telegram.insert_code(hash=hash_code(code), org=org, purpose=purpose, seconds=CODE_SECONDS)
    )
    return code


def hash_code(code: str) -> bytes:
    """A plain hash is enough: a code has 50 random bits and an hour to live."""
    return hashlib.sha256(code.strip().upper().encode(errors="replace")).digest()
