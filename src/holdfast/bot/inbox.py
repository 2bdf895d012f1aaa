"""Updates from Telegram: stored once, then handled in the order of their chat."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, Final

import structlog
from aiogram import Bot, Dispatcher
from aiogram.exceptions import TelegramAPIError
from aiogram.types import Chat, Update, User
from aiohttp import ClientError
from msgspec import Meta, Struct, json, structs
from pydantic import ValidationError

from holdfast import sql
from holdfast.bot.markup import MessageBody, say
from holdfast.bot.org_api import BusyError, OrgApi
from holdfast.bot.outbox import NewMessage, answer_key, write_messages
from holdfast.bot.people import Person, load_person
from holdfast.bot.telegram_bot import TelegramBot
from holdfast.bot.turn import ANSWER_MAX, AlreadyHandledError, Dialogue, Turn
from holdfast.i18n.languages import language_of
from holdfast.runtime import metrics, tracing
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS, Database
from holdfast.runtime.request_ids import set_request_id

log = structlog.get_logger()

# The updates that a process handles at a time. A slow download delays no other chat.
HANDLED_AT_ONCE: Final = 50
# A chat may have this many updates waiting. A stranger who sends more loses the rest.
WAITING_MAX: Final = 100
# A process renews its leases while it works. If it dies, another one goes on after this time.
LEASE_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
RETRIES: Final = Backoff((0.5, 2, 5, 15, 60))
ATTEMPTS_MAX: Final = 8
ALLOWED_UPDATES: Final = ["message", "callback_query", "channel_post", "my_chat_member"]
UPDATE_BYTES_MAX: Final = 256 * 1024


class ClaimedUpdate(Struct, frozen=True):
    number: int
    chat_id: int
    body: str
    attempts: int
    event_id: bytes | None
    booking_id: bytes | None


class InvalidUpdateError(ValueError):
    """This is not an update of the Bot API."""


class Inbox:
    """Receives and handles the updates of one bot."""

    def __init__(
        self,
        database: Database,
        client: Bot,
        api: OrgApi,
        dispatcher: Dispatcher,
        on_handled: Callable[[], None],
    ) -> None:
        self._database = database
        self._client = client
        self._api = api
        self._dispatcher = dispatcher
        self._on_handled = on_handled
        self._tasks: dict[asyncio.Task[None], int] = {}

    async def start(self, org: bytes) -> None:
        """No other process handles updates of this bot now."""
        await self._database.org(org).execute(sql.telegram.release_updates, org)

    async def store(self, org: bytes, body: bytes) -> None:
        """Keep an update. Telegram may forget it afterwards."""
        try:
            update, text = json.decode(body, type=_UpdateHead), body.decode()
        except ValueError:
            raise InvalidUpdateError from None
        await self._database.org(org).execute(
            *sql.telegram.insert_update(
                org=org,
                number=update.update_id,
                chat=update.chat_id,
                waiting_max=WAITING_MAX,
                body=text,
            )
        )

    async def run_once(self, org: bytes, load_bot: Callable[[], Awaitable[TelegramBot]]) -> int:
        """Begin to handle what is due. Returns how many updates that are. The last update may have changed the bot."""
        if len(self._tasks) >= HANDLED_AT_ONCE:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        places = HANDLED_AT_ONCE - len(self._tasks)
        claimed = await self._database.org(org).rows(
            ClaimedUpdate,
            *sql.telegram.claim_updates(org=org, claim_max=places, lease_seconds=LEASE_SECONDS),
        )
        if not claimed:
            return 0
        bot = await load_bot()
        for update in claimed:
            task = asyncio.create_task(self._handle(bot, update))
            self._tasks[task] = update.number
            task.add_done_callback(self._finish)
        return len(claimed)

    async def renew(self, bot: TelegramBot) -> None:
        """Keep the updates that this process is at work on."""
        if self._tasks:
            await self._database.org(bot.org_id).execute(
                *sql.telegram.renew_updates(
                    org=bot.org_id, numbers=list(self._tasks.values()), lease_seconds=LEASE_SECONDS
                )
            )

    async def close(self) -> None:
        """Finish what is under way, or leave it to another process or the next start."""
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finish(self, task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        self._on_handled()

    async def _handle(self, bot: TelegramBot, claimed: ClaimedUpdate) -> None:
        set_request_id(f"telegram_{bot.bot_id}_{claimed.number}")
        try:
            if claimed.attempts > ATTEMPTS_MAX:
                # Whatever it was that handling this update did to the process, it does not happen again.
                await self._give_up(bot, claimed, "failed")
                return
            turn = await self._begin(bot, claimed)
            if turn is not None:
                with tracing.span("telegram update"):
                    await self._dispatcher.feed_update(self._client, turn.update, turn=turn)
                await turn.save()
                metrics.TELEGRAM_UPDATES.add("handled")
                await self._answer(turn)
            else:
                await self._give_up(bot, claimed)
        except AlreadyHandledError:
            return
        except Exception as error:
            # Errors of the connection to Telegram may quote the URL, which contains the token.
            is_outage = isinstance(error, TelegramAPIError | ClientError | TimeoutError | BusyError)
            log.error(
                "telegram_update_failed",
                update=claimed.number,
                attempts=claimed.attempts,
                error=type(error).__name__,
                exc_info=None if is_outage else error,
            )
            metrics.TELEGRAM_UPDATES.add("failed")
            # If the database is the problem, the update becomes due again when its lease ends.
            with suppress(*LOST_ERRORS, *BLOCKED_ERRORS):
                await self._postpone(bot, claimed)

    async def _postpone(self, bot: TelegramBot, claimed: ClaimedUpdate) -> None:
        if claimed.attempts >= ATTEMPTS_MAX:
            await self._give_up(bot, claimed, "failed")
            return
        seconds = RETRIES.seconds_after(claimed.attempts)
        await self._database.org(bot.org_id).execute(
            *sql.telegram.postpone_update(org=bot.org_id, number=claimed.number, seconds=seconds)
        )

    async def _begin(self, bot: TelegramBot, claimed: ClaimedUpdate) -> Turn | None:
        """None for an update that nobody sent, or that this version of the Bot API does not know."""
        try:
            update = Update.model_validate_json(claimed.body, context={"bot": self._client})
        except ValidationError:
            log.error("telegram_update_unknown", update=claimed.number)
            return None
        sender, chat = _sender(update), _chat(update)
        if chat is None:
            return None
        known = await load_person(self._database, bot.org_id, sender.id) if sender is not None else None
        # A channel speaks for itself.
        person_id = sender.id if sender is not None else chat.id
        person = known or Person(person_id, "", None, language_of(sender.language_code if sender is not None else None))
        # Staff need a name, so that the others know who decided. Workers tell us theirs when they register.
        is_nameless = chat.id == bot.admin_chat_id and sender is not None and not person.name
        if is_nameless and sender is not None:
            person = structs.replace(person, name=sender.full_name or str(sender.id))
        dialogue = await self._database.org(bot.org_id).row(
            Dialogue, sql.telegram.dialogue, bot.org_id, chat.id, person_id
        )
        return Turn(
            bot=bot,
            client=self._client,
            database=self._database,
            api=self._api,
            update=update,
            chat_id=chat.id,
            person=person,
            is_person_changed=is_nameless or person.is_unreachable,
            booking=(claimed.event_id, claimed.booking_id) if claimed.event_id and claimed.booking_id else None,
            dialogue=dialogue,
        )

    async def _answer(self, turn: Turn) -> None:
        """End the wait of a button. Nothing depends on it, and Telegram soon forgets about buttons."""
        query = turn.update.callback_query
        if query is None:
            return
        try:
            await self._client.answer_callback_query(query.id, text=turn.answer[:ANSWER_MAX] or None)
        except TelegramAPIError as error:
            log.info("telegram_button_not_answered", error=type(error).__name__)

    async def _give_up(self, bot: TelegramBot, claimed: ClaimedUpdate, text: str | None = None) -> None:
        """End the update without doing what it asked for. A person, but no channel, reads this text."""
        metrics.TELEGRAM_UPDATES.add("given_up")
        person = await load_person(self._database, bot.org_id, claimed.chat_id)
        body = MessageBody(say(person.language if person is not None else bot.language, text)) if text else None
        async with self._database.org(bot.org_id).transaction() as scope:
            is_ended = await scope.fetchval(sql.telegram.finish_update, bot.org_id, claimed.number)
            if is_ended and body is not None and claimed.chat_id != bot.channel_id:
                message = NewMessage(key=answer_key(claimed.number, "failed"), chat_id=claimed.chat_id, body=body)
                await write_messages(scope, bot.org_id, [message])


class _ChatHead(Struct, frozen=True):
    id: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _MessageHead(Struct, frozen=True):
    chat: _ChatHead


class _QueryHead(Struct, frozen=True):
    message: _MessageHead | None = None


class _UpdateHead(Struct, frozen=True):
    """What the order of updates depends on."""

    update_id: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    message: _MessageHead | None = None
    channel_post: _MessageHead | None = None
    my_chat_member: _MessageHead | None = None
    callback_query: _QueryHead | None = None

    @property
    def chat_id(self) -> int:
        pressed = self.callback_query.message if self.callback_query is not None else None
        found = self.message or self.channel_post or self.my_chat_member or pressed
        return found.chat.id if found is not None else 0


def _sender(update: Update) -> User | None:
    for part in (update.message, update.callback_query, update.my_chat_member):
        if part is not None:
            return part.from_user
    return None


def _chat(update: Update) -> Chat | None:
    query = update.callback_query
    if query is not None:
        return query.message.chat if query.message is not None else None
    found: Any = update.message or update.channel_post or update.my_chat_member
    chat: Chat | None = found.chat if found is not None else None
    return chat
