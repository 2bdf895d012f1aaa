"""Everything Telegram's servers know in a test: accounts, chats and files."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from tests.support.telegram.chats import Channel, Chat, Group, PrivateChat, SharedChat
from tests.support.telegram.errors import bad_request, forbidden
from tests.support.telegram.files import FileStore
from tests.support.telegram.messages import CallbackQuery, Edit, Keyboard, Message
from tests.support.telegram.people import BotAccount, User

T = TypeVar("T")
OWNER_ID = 777_000
TRANSCRIPT_LINES = 30


class Call(msgspec.Struct, eq=False):
    """A request to the Bot API. Its status is 0 until the server answers."""

    method: str
    params: dict[str, Any]
    time: float
    bot: str
    status: int = 0
    description: str = ""


class World:
    """People's actions are plain calls and work from any thread."""

    def __init__(self) -> None:
        self.bots: dict[str, BotAccount] = {}
        self.users: dict[int, User] = {}
        self.chats: dict[int, SharedChat] = {}
        self.private_chats: dict[tuple[int, int], PrivateChat] = {}
        self.files = FileStore()
        self.callback_queries: dict[str, CallbackQuery] = {}
        self.calls: list[Call] = []
        self.duplicate = False
        self.shuffle = False
        self.random = random.Random(1)
        # The administrator who adds bots to groups and channels.
        self.owner = User(self, OWNER_ID, "Owner", None, None, "en")
        self.revision = 0
        self._lock = threading.RLock()

    def add_bot(self, token: str, username: str) -> BotAccount:
        assert token not in self.bots, f"there is a bot with the token {token}"
        self.bots[token] = BotAccount(self, token, username)
        self.note_change()
        return self.bots[token]

    def user(
        self,
        id_: int,
        first_name: str,
        last_name: str | None = None,
        username: str | None = None,
        language_code: str = "en",
    ) -> User:
        assert id_ not in self.users, f"{self.users[id_].name} has the id {id_}"
        self.users[id_] = User(self, id_, first_name, last_name, username, language_code)
        self.note_change()
        return self.users[id_]

    def group(self, id_: int, title: str) -> Group:
        self.chats[id_] = group = Group(self, id_, title)
        self.note_change()
        return group

    def channel(self, id_: int, title: str, username: str | None = None) -> Channel:
        self.chats[id_] = channel = Channel(self, id_, title)
        channel.username = username
        self.note_change()
        return channel

    def find_bot(self, username: str) -> BotAccount | None:
        return next((bot for bot in list(self.bots.values()) if bot.username.lower() == username.lower()), None)

    def open_private_chat(self, user: User, bot: BotAccount) -> PrivateChat:
        return self.private_chats.setdefault((bot.id, user.id), PrivateChat(self, user, bot))

    def all_chats(self) -> list[Chat]:
        return [*list(self.private_chats.values()), *list(self.chats.values())]

    def find_chat(self, bot: BotAccount, chat_id: int | str | None) -> Chat:
        """The chat as this bot sees it, or Telegram's refusal."""
        if chat_id is None:
            raise bad_request("chat_id is empty")
        if isinstance(chat_id, str):
            named = [chat for chat in list(self.chats.values()) if chat.username and f"@{chat.username}" == chat_id]
            chat: Chat | None = named[0] if named else None
        else:
            chat = self.chats.get(chat_id) or self.private_chats.get((bot.id, chat_id))
        if chat is None and chat_id in bot.seen_users:
            raise forbidden("bot can't initiate conversation with a user")
        if chat is None or bot.id not in chat.members:
            raise bad_request("chat not found")
        return chat

    def post(self, message: Message, kind: str | None = None) -> Message:
        """Add the message to its chat, and tell the bots about it if it comes from a person."""
        with self._lock:
            message.id = message.chat.next_message_id()
            message.chat.messages.append(message)
            self.touch(message)
            if kind:
                message.chat.last_action = message.revision
        for bot in message.chat.bots() if kind else ():
            if message.chat.receives(bot, message):
                self.send_update(bot, kind or "", message.to_wire(), message.chat.id)
        return message

    def press(self, user: User, message: Message, data: str) -> CallbackQuery:
        bot = message.author
        assert bot is not None, f"no bot sent {message}"
        with self._lock:
            query = CallbackQuery(str(4_382_000_000 + len(self.callback_queries)), bot, user, data)
            self.callback_queries[query.id] = query
            self.note_change()
            message.chat.last_action = self.revision
        payload = {
            "id": query.id,
            "from": user.to_wire(),
            "message": message.to_wire(),
            "chat_instance": str(abs(hash((bot.id, message.chat.id)))),
            "data": data,
        }
        self.send_update(bot, "callback_query", payload, user.id)
        return query

    def edit(self, message: Message, body: Any, keyboard: Keyboard) -> None:
        message.edits.append(Edit(time.time(), message.html))
        message.past_keyboards.append(message.keyboard)
        message.body, message.keyboard, message.edit_date = body, keyboard, int(time.time())
        self.touch(message)

    def delete_message(self, chat: Chat, id_: int) -> None:
        message = chat.find_message(id_)
        assert message is not None, f"no message {id_} in {chat.title}"
        message.deleted = True
        self.touch(message)

    def send_update(self, bot: BotAccount, kind: str, payload: dict[str, Any], lane_id: int) -> None:
        with self._lock:
            if sender := payload.get("from"):
                bot.seen_users.add(sender["id"])
            bot.queue.add(kind, payload, lane_id)
        self.note_change()

    def touch(self, message: Message) -> None:
        self.note_change()
        message.revision = self.revision

    def note_change(self) -> None:
        """Whoever waits for changes overrides this."""
        with self._lock:
            self.revision += 1

    async def wait_for(self, condition: Callable[[], T], seconds: float = 5.0, message: str = "") -> T:
        """The condition's result, once it is true. The deadline only keeps a test from hanging."""
        give_up_at = time.monotonic() + seconds
        while not (result := condition()):
            assert time.monotonic() < give_up_at, self._describe_timeout(seconds, message)
            await asyncio.sleep(0.005)
        return result

    def wait_until(self, condition: Callable[[], T], seconds: float = 5.0, message: str = "") -> T:
        """The same for a test without an event loop, whose server runs in a thread of its own."""
        give_up_at = time.monotonic() + seconds
        while not (result := condition()):
            assert time.monotonic() < give_up_at, self._describe_timeout(seconds, message)
            time.sleep(0.02)
        return result

    def transcript(self) -> str:
        """All chats and the last calls, for people to read."""
        lines = []
        for chat in self.all_chats():
            lines += [f"{chat.title}:", *(f"  {message}" for message in chat.messages[-TRANSCRIPT_LINES:])]
        calls = [call for call in self.calls if call.method != "getUpdates"][-TRANSCRIPT_LINES:]
        lines += ["calls:", *(f"  {call.status} {call.method} {call.params} {call.description}" for call in calls)]
        return "\n".join(lines)

    def _describe_timeout(self, seconds: float, message: str) -> str:
        return f"{message or 'did not happen'} in {seconds} s\n{self.transcript()}"
