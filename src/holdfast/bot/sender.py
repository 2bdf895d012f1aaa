"""Sends and edits the messages of one bot. Only the leader among its processes does.

A message that was sent just before its process died may be sent again: Telegram has no way to tell. Everything else is
sent once.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
from aiogram import Bot
from aiogram.exceptions import (
    ClientDecodeError,
    TelegramAPIError,
    TelegramBadRequest,
    TelegramEntityTooLarge,
    TelegramForbiddenError,
    TelegramMigrateToChat,
    TelegramRetryAfter,
)
from aiogram.types import BufferedInputFile, Message
from aiohttp import ClientError
from msgspec import Struct, json

from holdfast import sql
from holdfast.bot.flood_limits import FloodLimits
from holdfast.bot.live_messages import Rendered, Renderer
from holdfast.bot.markup import MessageBody, inline_keyboard, reply_markup
from holdfast.bot.org_api import BusyError
from holdfast.bot.outbox import EDIT_DISTANCE_SECONDS, MessageKind
from holdfast.bot.telegram_bot import TelegramBot
from holdfast.runtime import metrics
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS, Database

log = structlog.get_logger()

CLAIM_MAX: Final = 100
CHATS_AT_ONCE: Final = 20
LEASE_SECONDS: Final = 60.0
# How long messages under way have to arrive when the process stops. A message that is cut off may arrive twice.
CLOSE_SECONDS: Final = 10.0
# Messages wait while Telegram or the database is away. A message that the bot fails to make is given up at some point.
OUTAGE_RETRIES: Final = Backoff((1, 3, 10, 30, 60))
RETRIES: Final = Backoff((1, 3, 10, 30, 60, 300, 900))
ERROR_MAX: Final = 200
OUTAGE_ERRORS: Final = (*LOST_ERRORS, *BLOCKED_ERRORS, BusyError, TelegramAPIError, ClientError)
# Telegram's words for an edit that changes nothing, and for a message that is gone.
NOT_MODIFIED: Final = "message is not modified"
GONE: Final = ("message to edit not found", "message can't be edited", "MESSAGE_ID_INVALID", "message not found")
# What Telegram refuses to show as a photo, it still delivers as a document.
NOT_A_PHOTO: Final = ("PHOTO_INVALID", "IMAGE_PROCESS_FAILED", "wrong file", "PHOTO_SAVE_FILE_INVALID", "photo")


class ClaimedMessage(Struct, frozen=True, kw_only=True):
    key: str
    number: int
    chat_id: int
    kind: MessageKind
    body: MessageBody
    event_id: bytes | None
    booking_id: bytes | None
    message_id: int | None
    moved_to: int | None
    shown: bytes | None
    attempts: int
    changes: int

    @property
    def target(self) -> int:
        """The chat that gets the message."""
        return self.chat_id if self.moved_to is None else self.moved_to

    @property
    def is_new(self) -> bool:
        """Whether to send it. Otherwise it is there, and the bot edits it."""
        return self.message_id is None or self.moved_to is not None


class MessageGoneError(Exception):
    """Somebody has deleted the message that was to be edited."""


class Sender:
    """`leads` says whether this process still leads the bot."""

    def __init__(self, database: Database, client: Bot, renderer: Renderer, leads: Callable[[], bool]) -> None:
        self._database = database
        self._client = client
        self._renderer = renderer
        self._leads = leads
        self._limits = FloodLimits()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_closing = False

    async def start(self, org: bytes) -> None:
        """No other process sends for this bot now, so nothing is on its way."""
        await self._database.org(org).execute(sql.telegram.release_messages, org)

    async def run_once(self, bot: TelegramBot) -> int:
        """Begin to send what is due in chats that have a turn. Returns how many chats that are."""
        if len(self._tasks) >= CHATS_AT_ONCE:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        turns = self._limits.free_turns()
        if not turns:
            return 0
        messages = await self._database.org(bot.org_id).rows(
            ClaimedMessage,
            *sql.telegram.claim_messages(
                org=bot.org_id,
                waiting_chats=[*self._limits.waiting_chats(), *self._tasks],
                claim_max=min(turns, CLAIM_MAX),
                lease_seconds=LEASE_SECONDS,
            ),
        )
        chats: dict[int, list[ClaimedMessage]] = defaultdict(list)
        for message in sorted(messages, key=lambda message: (not message.is_new, message.number)):
            chats[message.target].append(message)
        for chat, queue in chats.items():
            self._tasks[chat] = asyncio.create_task(self._serve_chat(bot, chat, queue))
        return len(chats)

    async def close(self) -> None:
        """Finish what is under way. The next leader sends the rest."""
        self._is_closing = True
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve_chat(self, bot: TelegramBot, chat: int, queue: list[ClaimedMessage]) -> None:
        """Send in order, until the chat has to wait for its next turn. If the database fails, messages stay leased, and
        are due again when their lease ends."""
        try:
            for position, message in enumerate(queue):
                if self._is_closing or not self._leads() or not self._limits.take_turn(chat):
                    await self._release(bot, queue[position:])
                    return
                if not await self._send(bot, message):
                    await self._release(bot, queue[position + 1 :])
                    return
        except Exception as error:
            log.error("telegram_chat_failed", exc_info=error)
        finally:
            del self._tasks[chat]

    async def _send(self, bot: TelegramBot, message: ClaimedMessage) -> bool:
        """Whether the chat takes more."""
        try:
            rendered = await self._renderer.render(
                bot, message.kind, message.body, message.event_id, message.booking_id
            )
            message_id = await self._show(message, rendered)
        except TelegramRetryAfter as error:
            log.warning("telegram_flood_limit", seconds=error.retry_after)
            metrics.TELEGRAM_FLOOD_WAITS.add()
            self._limits.pause_after_flood(message.target, error.retry_after)
            await self._release(bot, [message])
            return False
        except TelegramForbiddenError as error:
            await self._database.org(bot.org_id).execute(sql.telegram.set_unreachable, bot.org_id, message.target)
            return await self._give_up(bot, message, error.message)
        except MessageGoneError:
            await self._record(bot, message, None, None, error="deleted")
            await self._renderer.report_post(bot, message.kind, message.event_id, "deleted")
            return True
        except TelegramMigrateToChat as error:
            await self._database.org(bot.org_id).execute(
                *sql.telegram.move_admin_chat(org=bot.org_id, was=message.chat_id, chat=error.migrate_to_chat_id)
            )
            if message.is_new and message.chat_id == bot.admin_chat_id:
                await self._release(bot, [message])
                return False
            return await self._give_up(bot, message, "the group has another id now")
        except ClientDecodeError:
            # Telegram has accepted the message, and sending it again would double it.
            return await self._give_up(bot, message, "the answer was unreadable")
        except (TelegramBadRequest, TelegramEntityTooLarge) as error:
            # What follows the second colon may quote the message.
            log.error("telegram_refused_message", kind=message.kind, error=":".join(error.message.split(":")[:2]))
            return await self._give_up(bot, message, error.message)
        except OUTAGE_ERRORS as error:
            return await self._wait(bot, message, error)
        except Exception as error:
            return await self._retry(bot, message, error)
        await self._record(bot, message, rendered, message_id)
        metrics.TELEGRAM_MESSAGES.add("sent")
        return True

    async def _show(self, message: ClaimedMessage, rendered: Rendered) -> int | None:
        """Send the message, or edit the one that is there if it shows something else. Returns its id."""
        if message.is_new:
            await self._delete_older(message)
            return (await self._send_new(message.target, rendered)).message_id
        assert message.message_id is not None
        if message.shown != _hash(rendered):
            await self._edit(message.chat_id, message.message_id, rendered)
        return message.message_id

    async def _delete_older(self, message: ClaimedMessage) -> None:
        """Telegram does not delete messages that are two days old, nor in a chat that the bot has left."""
        if message.message_id is not None:
            with suppress(TelegramBadRequest, TelegramForbiddenError):
                await self._client.delete_message(message.chat_id, message.message_id)

    async def _send_new(self, chat: int, rendered: Rendered) -> Message:
        markup = reply_markup(rendered.body)
        if rendered.load_file is None:
            return await self._client.send_message(chat, rendered.body.text, reply_markup=markup)
        file = await rendered.load_file()
        upload, text = BufferedInputFile(file.content, file.name), rendered.body.text or None
        if file.is_photo:
            try:
                return await self._client.send_photo(chat, upload, caption=text, reply_markup=markup)
            except TelegramBadRequest as error:
                if not any(words.lower() in error.message.lower() for words in NOT_A_PHOTO):
                    raise
        return await self._client.send_document(chat, upload, caption=text, reply_markup=markup)

    async def _edit(self, chat: int, message_id: int, rendered: Rendered) -> None:
        markup = inline_keyboard(rendered.body.buttons)
        try:
            if rendered.load_file is None:
                await self._client.edit_message_text(
                    rendered.body.text, chat_id=chat, message_id=message_id, reply_markup=markup
                )
            else:
                await self._client.edit_message_caption(
                    chat_id=chat, message_id=message_id, caption=rendered.body.text, reply_markup=markup
                )
        except TelegramBadRequest as error:
            if NOT_MODIFIED in error.message:
                return
            if any(words in error.message for words in GONE):
                raise MessageGoneError from None
            raise

    async def _wait(self, bot: TelegramBot, message: ClaimedMessage, error: Exception) -> bool:
        """Try the message again, and let the chat wait with it. Telegram and the database come back at some point."""
        log.warning("telegram_message_postponed", kind=message.kind, error=type(error).__name__)
        metrics.TELEGRAM_MESSAGES.add("postponed")
        seconds = OUTAGE_RETRIES.seconds_after(message.attempts)
        self._limits.pause(message.target, seconds)
        await self._postpone(bot, message, seconds)
        return False

    async def _retry(self, bot: TelegramBot, message: ClaimedMessage, error: Exception) -> bool:
        """Try again to make this message. Others of the chat need not wait."""
        log.error("telegram_message_failed", kind=message.kind, attempts=message.attempts, exc_info=error)
        metrics.TELEGRAM_MESSAGES.add("failed")
        if RETRIES.is_exhausted(message.attempts):
            return await self._give_up(bot, message, type(error).__name__)
        await self._postpone(bot, message, RETRIES.seconds_after(message.attempts))
        return True

    async def _give_up(self, bot: TelegramBot, message: ClaimedMessage, error: str) -> bool:
        metrics.TELEGRAM_MESSAGES.add("refused")
        await self._record(bot, message, None, message.message_id, error=error)
        await self._renderer.report_post(bot, message.kind, message.event_id, "failed")
        return True

    async def _postpone(self, bot: TelegramBot, message: ClaimedMessage, seconds: float) -> None:
        await self._database.org(bot.org_id).execute(
            *sql.telegram.postpone_message(org=bot.org_id, key=message.key, seconds=seconds)
        )

    async def _record(
        self,
        bot: TelegramBot,
        message: ClaimedMessage,
        rendered: Rendered | None,
        message_id: int | None,
        error: str | None = None,
    ) -> None:
        await self._database.org(bot.org_id).execute(
            *sql.telegram.record_message(
                org=bot.org_id,
                key=message.key,
                chat=message.target,
                message=message_id,
                moved_to=message.moved_to,
                shown=_hash(rendered) if rendered is not None else message.shown,
                next_due_at=rendered.next_due_at if rendered is not None else None,
                changes=message.changes,
                distance_seconds=EDIT_DISTANCE_SECONDS if message.kind is MessageKind.POST else 0.0,
                error=error and error[:ERROR_MAX],
            )
        )

    async def _release(self, bot: TelegramBot, messages: list[ClaimedMessage]) -> None:
        keys = [message.key for message in messages]
        await self._database.org(bot.org_id).execute(sql.telegram.release_claimed, bot.org_id, keys)


def _hash(rendered: Rendered) -> bytes:
    return hashlib.blake2b(json.encode(rendered.body), digest_size=16).digest()
