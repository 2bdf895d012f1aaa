"""Private chats, groups and channels, each with its transcript."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from tests.support.telegram.entities import FormattedText
from tests.support.telegram.errors import bad_request, forbidden
from tests.support.telegram.messages import Message

if TYPE_CHECKING:
    from tests.support.telegram.people import BotAccount, User
    from tests.support.telegram.world import World

MemberStatus = Literal["creator", "administrator", "member", "left", "kicked"]
ADMINISTRATOR_RIGHTS = (
    "can_manage_chat",
    "can_delete_messages",
    "can_manage_video_chats",
    "can_restrict_members",
    "can_promote_members",
    "can_change_info",
    "can_invite_users",
    "can_post_stories",
    "can_edit_stories",
    "can_delete_stories",
    "can_send_welcome_messages",
)


class Chat:
    """What all chats have in common."""

    type = "private"

    def __init__(self, world: World, id_: int, title: str) -> None:
        self.world = world
        self.id = id_
        self.title = title
        self.username: str | None = None
        self.messages: list[Message] = []
        self.members: dict[int, MemberStatus] = {}
        # A reply counts as new if its revision is above this.
        self.last_action = 0

    @property
    def name(self) -> str:
        return self.title

    @property
    def last(self) -> Message:
        """The newest message that nobody deleted."""
        visible = self.visible
        assert visible, f"no messages in {self.title}"
        return visible[-1]

    @property
    def visible(self) -> list[Message]:
        return [message for message in self.messages if not message.deleted]

    @property
    def texts(self) -> list[str]:
        """Texts and captions of all messages that nobody deleted."""
        return [message.body.text for message in self.visible]

    def find_message(self, id_: int | None) -> Message | None:
        return next((message for message in self.visible if message.id == id_), None)

    async def wait_for_text(self, text: str, seconds: float = 5.0) -> Message:
        """The newest message that contains the text, once there is one."""

        def find() -> Message | None:
            return next((message for message in reversed(self.visible) if text in message.body.text), None)

        found = await self.world.wait_for(find, seconds, f"no {text!r} in {self.title}")
        assert found is not None
        return found

    def next_message_id(self) -> int:
        return len(self.messages) + 1

    def check_writable(self, bot: BotAccount) -> None:
        """Raise what Telegram answers if the bot may not write here."""
        raise NotImplementedError

    def receives(self, bot: BotAccount, message: Message) -> bool:
        """Whether the bot gets an update about the message."""
        raise NotImplementedError

    def bots(self) -> list[BotAccount]:
        return [
            bot for bot in list(self.world.bots.values()) if self.members.get(bot.id) not in (None, "left", "kicked")
        ]

    def member_to_wire(self, account: User | BotAccount, status: MemberStatus | None = None) -> dict[str, Any]:
        status = status or self.members.get(account.id, "left")
        wire: dict[str, Any] = {"user": account.to_wire(), "status": status}
        if status == "kicked":
            wire["until_date"] = 0
        if status in ("creator", "administrator"):
            wire["is_anonymous"] = False
        if status == "administrator":
            wire |= {"can_be_edited": False} | dict.fromkeys(ADMINISTRATOR_RIGHTS, True)
            if self.type == "channel":
                wire |= {"can_post_messages": True, "can_edit_messages": True}
        return wire

    def change_bot_status(self, bot: BotAccount, actor: User, status: MemberStatus) -> None:
        old, self.members[bot.id] = self.members.get(bot.id, "left"), status
        change = {
            "chat": self.to_wire(),
            "from": actor.to_wire(),
            "date": int(time.time()),
            "old_chat_member": self.member_to_wire(bot, old),
            "new_chat_member": self.member_to_wire(bot, status),
        }
        self.world.send_update(bot, "my_chat_member", change, self.id)

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"id": self.id, "type": self.type, "title": self.title}
        return wire | ({"username": self.username} if self.username else {})


class PrivateChat(Chat):
    """The chat of one user with one bot. It exists once the user has started the bot."""

    def __init__(self, world: World, user: User, bot: BotAccount) -> None:
        super().__init__(world, user.id, f"{user.name} with @{bot.username}")
        self.user = user
        self.bot = bot
        self.members = {user.id: "member", bot.id: "member"}

    @property
    def reply_keyboard(self) -> dict[str, Any] | None:
        """The keyboard in place of the user's own, until a message replaces or removes it."""
        for message in reversed(self.visible):
            markup = message.reply_markup or {}
            if "keyboard" in markup:
                used = any(later.sender is self.user for later in self.messages if later.id > message.id)
                return None if used and markup.get("one_time_keyboard") else markup
            if markup.get("remove_keyboard"):
                return None
        return None

    def next_message_id(self) -> int:
        return self.bot.next_message_id()

    def check_writable(self, bot: BotAccount) -> None:
        if self.user.is_deactivated:
            raise forbidden("user is deactivated")
        if self.members[bot.id] == "kicked":
            raise forbidden("bot was blocked by the user")

    def receives(self, bot: BotAccount, message: Message) -> bool:
        return bot is self.bot

    def to_wire(self) -> dict[str, Any]:
        wire = {"id": self.id, "type": "private", **self.user.to_wire()}
        return {name: wire[name] for name in ("id", "type", "first_name", "last_name", "username") if name in wire}


class SharedChat(Chat):
    """A chat that an administrator adds bots to."""

    def add_bot(self, bot: BotAccount, status: MemberStatus = "administrator") -> None:
        self.change_bot_status(bot, self.world.owner, status)

    def remove_bot(self, bot: BotAccount) -> None:
        """The bot's next message gets a 403."""
        self.change_bot_status(bot, self.world.owner, "kicked")

    def add_user(self, user: User, status: MemberStatus = "member") -> None:
        self.members[user.id] = status

    def remove_user(self, user: User) -> None:
        self.members[user.id] = "left"

    def check_writable(self, bot: BotAccount) -> None:
        status = self.members.get(bot.id)
        if status is None:
            raise bad_request("chat not found")
        if status == "kicked":
            raise forbidden(f"bot was kicked from the {self.type} chat")
        if status == "left":
            raise forbidden(f"bot is not a member of the {self.type} chat")


class Group(SharedChat):
    type = "supergroup"

    def receives(self, bot: BotAccount, message: Message) -> bool:
        """In privacy mode, a bot that is no administrator reads only commands, mentions and replies to it."""
        if self.members[bot.id] == "administrator" or not bot.privacy_mode:
            return True
        is_addressed = message.body.text.startswith("/") or f"@{bot.username}" in message.body.text
        return is_addressed or (message.reply_to is not None and message.reply_to.author is bot)


class Channel(SharedChat):
    type = "channel"

    def post(self, text: str) -> Message:
        """Post as an administrator of the channel."""
        return self.world.post(Message(self, 0, self, int(time.time()), FormattedText(text)), "channel_post")

    def check_writable(self, bot: BotAccount) -> None:
        super().check_writable(bot)
        if self.members[bot.id] != "administrator":
            raise bad_request("need administrator rights in the channel chat")

    def receives(self, bot: BotAccount, message: Message) -> bool:
        return True


def find_contact_button(chat: PrivateChat) -> str | None:
    for row in (chat.reply_keyboard or {}).get("keyboard", []):
        for button in row:
            if isinstance(button, dict) and button.get("request_contact"):
                return str(button["text"])
    return None
