"""Messages of a transcript, as Telegram's servers know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tests.support.telegram.entities import FormattedText
from tests.support.telegram.files import PhotoSize, StoredFile

if TYPE_CHECKING:
    from tests.support.telegram.chats import Channel, Chat
    from tests.support.telegram.people import BotAccount, User


class Button(msgspec.Struct, frozen=True):
    text: str
    callback_data: str | None = None
    url: str | None = None
    request_contact: bool = False

    def to_wire(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.to_builtins(self).items() if value not in (None, False)}


Keyboard = tuple[tuple[Button, ...], ...]


class Edit(NamedTuple):
    """A version that an edit replaced."""

    time: float
    html: str


class Contact(msgspec.Struct, frozen=True):
    phone_number: str
    first_name: str
    last_name: str | None = None
    user_id: int | None = None

    def to_wire(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.to_builtins(self).items() if value is not None}


class CallbackQuery(msgspec.Struct, eq=False):
    """A pressed button. The bot's answer appears in it."""

    id: str
    bot: BotAccount
    user: User
    data: str
    answered: bool = False
    answer_text: str | None = None
    show_alert: bool = False
    url: str | None = None


class Message(msgspec.Struct, eq=False):
    chat: Chat
    id: int
    sender: BotAccount | User | Channel
    date: int
    body: FormattedText = FormattedText()
    photo_sizes: tuple[PhotoSize, ...] = ()
    document_file: StoredFile | None = None
    contact: Contact | None = None
    keyboard: Keyboard = ()
    reply_markup: dict[str, Any] | None = None
    reply_to: Message | None = None
    media_group_id: str | None = None
    edits: list[Edit] = msgspec.field(default_factory=list)
    past_keyboards: list[Keyboard] = msgspec.field(default_factory=list)
    edit_date: int | None = None
    deleted: bool = False
    revision: int = 0
    # The bot that sent it. In a channel, the channel is the sender.
    author: BotAccount | None = None

    @property
    def is_media(self) -> bool:
        return bool(self.photo_sizes or self.document_file)

    @property
    def text(self) -> str | None:
        return None if self.is_media or self.contact else self.body.text

    @property
    def caption(self) -> str | None:
        return (self.body.text or None) if self.is_media else None

    @property
    def html(self) -> str:
        """The text or caption with its tags, in one normal form: `<strong>` reads as `<b>`."""
        return self.body.html

    @property
    def photo(self) -> bytes | None:
        return self.photo_sizes[-1].file.data if self.photo_sizes else None

    @property
    def document(self) -> bytes | None:
        return self.document_file.data if self.document_file else None

    @property
    def file_name(self) -> str | None:
        return self.document_file.name if self.document_file else None

    @property
    def buttons(self) -> list[str]:
        """The texts of all inline buttons."""
        return [button.text for row in self.keyboard for button in row]

    def find_button(self, text_or_data: str, stale: bool = False) -> Button:
        """Raise an AssertionError if there is no such button. A stale one may also come from before an edit."""
        keyboards: list[Keyboard] = [self.keyboard, *(reversed(self.past_keyboards) if stale else ())]
        buttons: list[Button] = [button for keyboard in keyboards for row in keyboard for button in row]
        for button in buttons:
            if text_or_data in (button.text, button.callback_data):
                return button
        raise AssertionError(f"no button {text_or_data!r} in {self}")

    def __repr__(self) -> str:
        marks = [
            "photo" if self.photo_sizes else "",
            f"document {self.file_name}" if self.document_file else "",
            f"contact {self.contact.phone_number}" if self.contact else "",
            f"buttons {self.buttons}" if self.keyboard else "",
            f"edited {len(self.edits)}x" if self.edits else "",
            "deleted" if self.deleted else "",
        ]
        shown = " ".join(f"({mark})" for mark in marks if mark)
        return f"[{self.id}] {self.sender.name}: {self.body.text!r} {shown}".rstrip()

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"message_id": self.id, "date": self.date, "chat": self.chat.to_wire()}
        wire["sender_chat" if self.sender is self.chat else "from"] = self.sender.to_wire()
        wire |= self._content_to_wire()
        if self.contact:
            wire["contact"] = self.contact.to_wire()
        if self.keyboard:
            wire["reply_markup"] = keyboard_to_wire(self.keyboard)
        if self.reply_to:
            wire["reply_to_message"] = {**self.reply_to.to_wire()}
            wire["reply_to_message"].pop("reply_to_message", None)
        if self.media_group_id:
            wire["media_group_id"] = self.media_group_id
        if self.edit_date:
            wire["edit_date"] = self.edit_date
        return wire

    def _content_to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {}
        if self.photo_sizes:
            wire["photo"] = [size.to_wire() for size in self.photo_sizes]
        if self.document_file:
            file = self.document_file
            wire["document"] = {**file.to_wire(), "file_name": file.name, "mime_type": file.mime_type}
        if self.body.text:
            prefix = "caption_" if self.is_media else ""
            wire["caption" if self.is_media else "text"] = self.body.text
            if entities := self.body.entities_to_wire():
                wire[f"{prefix}entities"] = entities
        return wire


def keyboard_to_wire(keyboard: Keyboard) -> dict[str, Any]:
    return {"inline_keyboard": [[button.to_wire() for button in row] for row in keyboard]}
