"""Everything that one process does for one bot."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import structlog
from aiogram import Bot, Dispatcher
from aiogram.exceptions import TelegramAPIError, TelegramConflictError
from aiogram.methods import TelegramMethod
from aiogram.types import BotCommand, BotCommandScopeAllPrivateChats, BotCommandScopeChat
from msgspec import json

from holdfast import sql
from holdfast.bot.client import open_client
from holdfast.bot.follower import Follower
from holdfast.bot.inbox import ALLOWED_UPDATES, Inbox, InvalidUpdateError
from holdfast.bot.leadership import Leadership
from holdfast.bot.live_messages import Renderer
from holdfast.bot.markup import label
from holdfast.bot.org_api import OrgApi
from holdfast.bot.reminders import Reminders
from holdfast.bot.sender import Sender
from holdfast.bot.telegram_bot import TelegramBot
from holdfast.i18n.languages import LANGUAGES
from holdfast.runtime.db import Database
from holdfast.runtime.supervision import TaskHealth, keep_running

log = structlog.get_logger()

LEAD_SECONDS: Final = 1.0
# How often an idle bot looks for work that comes from other processes. Its own work wakes it.
IDLE_SECONDS: Final = 0.5
RENEW_SECONDS: Final = 3.0
INTRODUCE_SECONDS: Final = 30.0
DISCOVER_SECONDS: Final = 3.0
REMIND_SECONDS: Final = 5.0
POLL_SECONDS: Final = 10
POLL_RETRY_SECONDS: Final = 2.0
POLLED_MAX: Final = 100

WORKER_COMMANDS: Final = ("shifts", "language", "help")
STAFF_COMMANDS: Final = ("new", "shifts", "today", "receipts", "channel", "language", "help")

Run = Callable[[TelegramBot], Awaitable[int]]


class GetRawUpdates(TelegramMethod[list[dict[str, Any]]]):
    """`getUpdates`, without a look at the updates: one that aiogram does not understand must not stop the others."""

    __returning__ = list[dict[str, Any]]
    __api_method__ = "getUpdates"

    offset: int | None = None
    limit: int
    timeout: int
    allowed_updates: list[str]


class BotRunner:
    """Runs until it is closed. `webhook_url` is where Telegram delivers updates; without it, the leader polls."""

    def __init__(
        self,
        bot: TelegramBot,
        database: Database,
        api: OrgApi,
        dispatcher: Dispatcher,
        leadership: Leadership,
        *,
        telegram_api: str,
        webhook_url: str | None,
    ) -> None:
        self.bot = bot
        self._database = database
        self._leadership = leadership
        self._webhook_url = webhook_url
        self._client: Bot = open_client(bot.token, telegram_api)
        renderer = Renderer(database, api)
        self._inbox = Inbox(database, self._client, api, dispatcher, self._wake)
        self._sender = Sender(database, self._client, renderer, lambda: leadership.leads(self.bot.bot_id))
        self._follower = Follower(database, api)
        self._reminders = Reminders(database, api)
        self._leads = asyncio.Event()
        self._introduce_at = 0.0
        self._updates, self._changes, self._messages = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._health = TaskHealth()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loops: Sequence[tuple[str, Callable[[], Awaitable[None]]]] = (
            ("lead", self._lead),
            ("handle", self._handle),
            ("renew", self._renew),
            ("poll", self._poll),
            ("follow", lambda: self._repeat(self._follow, IDLE_SECONDS, self._changes)),
            ("send", lambda: self._repeat(self._sender.run_once, IDLE_SECONDS, self._messages)),
            ("discover", lambda: self._repeat(self._follower.discover, DISCOVER_SECONDS)),
            ("remind", lambda: self._repeat(self._reminders.run_once, REMIND_SECONDS)),
        )
        for name, run in loops:
            task = keep_running(f"bot.{name}", run, self._health, lambda: None)
            self._tasks.append(asyncio.ensure_future(task))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._inbox.close()
        await self._sender.close()
        await self._client.session.close()

    def _wake(self) -> None:
        """An update is handled: the chat may have another one, and there is something to follow and to send."""
        for event in (self._updates, self._changes, self._messages):
            event.set()

    @property
    def is_healthy(self) -> bool:
        return self._health.is_good

    async def receive(self, body: bytes) -> None:
        await self._inbox.store(self.bot.org_id, body)
        self._updates.set()

    async def _lead(self) -> None:
        """Try to lead until this process does, then make sure that it still does."""
        while True:
            if await self._leadership.try_lead(self.bot.bot_id):
                if not self._leads.is_set():
                    await self._begin_to_lead()
                if self._introduce_at <= time.monotonic():
                    await self._introduce()
            else:
                self._leads.clear()
                self._introduce_at = 0.0
            await self._reload()
            await asyncio.sleep(LEAD_SECONDS)

    async def _begin_to_lead(self) -> None:
        await self._sender.start(self.bot.org_id)
        if self._webhook_url is None:
            await self._inbox.start(self.bot.org_id)
        log.info("telegram_bot_led", bot=self.bot.bot_id)
        self._leads.set()

    async def _introduce(self) -> None:
        """Tell Telegram how to deliver updates and which commands there are, once Telegram answers."""
        self._introduce_at = time.monotonic() + INTRODUCE_SECONDS
        try:
            await self._set_delivery()
            await self._set_commands()
            await self._introduce_to_staff()
            self._introduce_at = math.inf
        except TelegramAPIError as error:
            log.error("telegram_bot_not_introduced", bot=self.bot.bot_id, error=type(error).__name__)

    async def _set_delivery(self) -> None:
        if self._webhook_url is None:
            await self._client.delete_webhook(drop_pending_updates=False)
        else:
            await self._client.set_webhook(
                f"{self._webhook_url.rstrip('/')}/telegram/{self.bot.bot_id}",
                secret_token=self.bot.webhook_secret,
                allowed_updates=ALLOWED_UPDATES,
            )

    async def _set_commands(self) -> None:
        for language in LANGUAGES:
            commands = _commands(language, WORKER_COMMANDS, "command")
            scope = BotCommandScopeAllPrivateChats()
            await self._client.set_my_commands(commands, scope=scope, language_code=language)
        await self._client.set_my_commands(_commands("en", WORKER_COMMANDS, "command"))

    async def _introduce_to_staff(self) -> None:
        if self.bot.admin_chat_id is None:
            return
        try:
            await self._client.set_my_commands(
                _commands(self.bot.language, STAFF_COMMANDS, "staff_command"),
                scope=BotCommandScopeChat(chat_id=self.bot.admin_chat_id),
            )
        except TelegramAPIError as error:
            log.warning("telegram_commands_not_set", error=type(error).__name__)

    async def _reload(self) -> None:
        """The settings of the bot, which other processes may change."""
        found = await self._database.org(self.bot.org_id).row(TelegramBot, sql.telegram.bot, self.bot.org_id)
        if found is None or found.token != self.bot.token:
            return
        is_new_chat = (found.admin_chat_id, found.language) != (self.bot.admin_chat_id, self.bot.language)
        self.bot = found
        if is_new_chat and self._leads.is_set():
            await self._introduce_to_staff()

    async def _load_bot(self) -> TelegramBot:
        await self._reload()
        return self.bot

    async def _handle(self) -> None:
        """Handle updates. With a webhook every process does, and with polling the leader."""
        while True:
            if self._webhook_url is None:
                await self._leads.wait()
            if not await self._inbox.run_once(self.bot.org_id, self._load_bot):
                await _wait(self._updates, IDLE_SECONDS)

    async def _renew(self) -> None:
        while True:
            await self._inbox.renew(self.bot)
            await asyncio.sleep(RENEW_SECONDS)

    async def _follow(self, bot: TelegramBot) -> int:
        items = await self._follower.run_once(bot)
        if items:
            self._messages.set()
        return items

    async def _repeat(self, run: Run, seconds: float, wake: asyncio.Event | None = None) -> None:
        """Run as long as this process leads, again at once while there is work."""
        while True:
            await self._leads.wait()
            if not self._leadership.leads(self.bot.bot_id):
                self._leads.clear()
                continue
            if not await run(self.bot):
                await _wait(wake or asyncio.Event(), seconds)

    async def _poll(self) -> None:
        if self._webhook_url is not None:
            await asyncio.Event().wait()
        offset = 0
        while True:
            await self._leads.wait()
            try:
                updates = await self._client(
                    GetRawUpdates(
                        offset=offset or None,
                        limit=POLLED_MAX,
                        timeout=POLL_SECONDS,
                        allowed_updates=ALLOWED_UPDATES,
                    ),
                    request_timeout=2 * POLL_SECONDS,
                )
            except TelegramConflictError:
                log.warning("telegram_polled_elsewhere", bot=self.bot.bot_id)
                await asyncio.sleep(POLL_RETRY_SECONDS)
                continue
            except TelegramAPIError as error:
                log.warning("telegram_unavailable", error=type(error).__name__)
                await asyncio.sleep(POLL_RETRY_SECONDS)
                continue
            if not updates:
                # Telegram may start with other numbers after a quiet week.
                offset = 0
            for update in updates:
                try:
                    await self._inbox.store(self.bot.org_id, json.encode(update))
                except InvalidUpdateError:
                    log.error("telegram_update_unknown", update=update.get("update_id"))
                offset = max(offset, int(update["update_id"]) + 1)
            if updates:
                self._updates.set()


def _commands(language: str, names: Sequence[str], section: str) -> list[BotCommand]:
    return [BotCommand(command=name, description=label(language, f"{section}.{name}")) for name in names]


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
    finally:
        event.clear()
