"""The accounts behind the chats: bots, and people whom a test plays."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.support.telegram.chats import Chat, PrivateChat, find_contact_button
from tests.support.telegram.entities import FormattedText
from tests.support.telegram.messages import CallbackQuery, Contact, Message
from tests.support.telegram.update_queue import UpdateQueue

if TYPE_CHECKING:
    from tests.support.telegram.update_queue import Poll, Webhook
    from tests.support.telegram.world import World


class BotAccount:
    def __init__(self, world: World, token: str, username: str) -> None:
        self.world = world
        self.token = token
        self.id = int(token.partition(":")[0])
        self.username = username
        self.privacy_mode = True
        self.commands: dict[str, list[dict[str, Any]]] = {}
        self.queue = UpdateQueue(world)
        self.webhook: Webhook | None = None
        self.poll: Poll | None = None
        # Telegram tells a bot apart who never wrote to it from who does not exist, once it has seen them in a group.
        self.seen_users: set[int] = set()
        self._message_ids = itertools.count(1)

    @property
    def name(self) -> str:
        return f"@{self.username}"

    def next_message_id(self) -> int:
        """Private chats of one account share the numbers of their messages."""
        return next(self._message_ids)

    def to_wire(self) -> dict[str, Any]:
        return {"id": self.id, "is_bot": True, "first_name": self.username, "username": self.username}

    def __repr__(self) -> str:
        return self.name


class User:
    """A person. Every action is an update for the bots that see it."""

    def __init__(
        self, world: World, id_: int, first_name: str, last_name: str | None, username: str | None, language_code: str
    ) -> None:
        self.world = world
        self.id = id_
        self.first_name = first_name
        self.last_name = last_name
        self.username = username
        self.language_code = language_code
        self.is_deactivated = False

    @property
    def name(self) -> str:
        return f"{self.first_name} {self.last_name}" if self.last_name else self.first_name

    def chat(self, bot: BotAccount) -> PrivateChat:
        """Raise an AssertionError if the user has not started the bot."""
        chat = self.world.private_chats.get((bot.id, self.id))
        assert chat is not None, f"{self.name} has not started {bot.name}"
        return chat

    def start(self, bot: BotAccount, payload: str | None = None) -> Message:
        """Open the chat, unblock the bot if necessary, and send /start."""
        chat = self.world.open_private_chat(self, bot)
        if chat.members[bot.id] == "kicked":
            self.unblock(bot)
        return self.say(chat, f"/start {payload}" if payload else "/start")

    def say(self, to: Chat | BotAccount, text: str, reply_to: Message | None = None) -> Message:
        return self._send(to, body=FormattedText(text), reply_to=reply_to)

    def press(self, message: Message, text_or_data: str, stale: bool = False) -> CallbackQuery:
        """Press a callback button. With `stale`, one that an edit removed after the user's finger was on its way."""
        button = message.find_button(text_or_data, stale)
        assert button.callback_data is not None, f"{button.text!r} opens {button.url}: use `open`"
        assert not message.deleted or stale, f"{message} is deleted"
        return self.world.press(self, message, button.callback_data)

    def open(self, message: Message, button_text: str) -> Message:
        """Follow a button to https://t.me/<bot>?start=<payload>."""
        return self.open_link(message.find_button(button_text).url or "")

    def open_link(self, url: str) -> Message:
        address = urlsplit(url)
        bot = self.world.find_bot(address.path.strip("/"))
        assert address.hostname in ("t.me", "telegram.me"), f"not a link to Telegram: {url!r}"
        assert bot is not None, f"no such bot: {url!r}"
        return self.start(bot, parse_qs(address.query).get("start", [None])[0])

    def send_photo(
        self,
        to: Chat | BotAccount,
        data: bytes,
        caption: str | None = None,
        media_group_id: str | None = None,
        reply_to: Message | None = None,
    ) -> Message:
        sizes = self.world.files.add_photo(data)
        return self._send(
            to,
            body=FormattedText(caption or ""),
            photo_sizes=sizes,
            media_group_id=media_group_id,
            reply_to=reply_to,
        )

    def send_document(
        self,
        to: Chat | BotAccount,
        data: bytes,
        file_name: str = "receipt.pdf",
        mime_type: str = "application/pdf",
        caption: str | None = None,
        media_group_id: str | None = None,
    ) -> Message:
        file = self.world.files.add(data, file_name, mime_type)
        return self._send(to, body=FormattedText(caption or ""), document_file=file, media_group_id=media_group_id)

    def share_contact(self, bot: BotAccount, phone: str) -> Message:
        """Press the button that asks for the user's own phone number."""
        chat = self.chat(bot)
        assert find_contact_button(chat) is not None, f"{bot.name} does not ask for a contact: {chat.reply_keyboard}"
        return self.send_contact(chat, Contact(phone, self.first_name, self.last_name, self.id))

    def send_contact(self, to: Chat | BotAccount, contact: Contact) -> Message:
        """Attach any contact, which may be someone else's."""
        return self._send(to, contact=contact)

    def block(self, bot: BotAccount) -> None:
        self.chat(bot).change_bot_status(bot, self, "kicked")

    def unblock(self, bot: BotAccount) -> None:
        self.chat(bot).change_bot_status(bot, self, "member")

    async def wait_for_reply(self, to: Chat | BotAccount, text: str = "", seconds: float = 5.0) -> Message:
        """The first message that a bot sent or edited since the user's last action in the chat, and that contains the
        text."""
        chat = to if isinstance(to, Chat) else self.chat(to)

        def find() -> Message | None:
            new = (message for message in chat.visible if message.revision > chat.last_action)
            answers = (message for message in new if message.author is not None)
            return next((message for message in answers if text in message.body.text), None)

        found = await self.world.wait_for(find, seconds, f"no reply {text!r} to {self.name}")
        assert found is not None
        return found

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"id": self.id, "is_bot": False, "first_name": self.first_name}
        optional = {"last_name": self.last_name, "username": self.username, "language_code": self.language_code}
        return wire | {name: value for name, value in optional.items() if value}

    def __repr__(self) -> str:
        return self.name

    def _send(self, to: Chat | BotAccount, **content: Any) -> Message:
        chat = to if isinstance(to, Chat) else self.chat(to)
        if isinstance(chat, PrivateChat):
            assert chat.members[chat.bot.id] != "kicked", f"{self.name} blocked {chat.bot.name}"
        else:
            chat.members.setdefault(self.id, "member")
        return self.world.post(Message(chat, 0, self, int(time.time()), **content), "message")
