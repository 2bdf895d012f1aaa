"""One update that the bot handles: who sent it, where they are in a dialogue, and what comes of it.

A turn only collects what it says and remembers. `save` writes all of it in one transaction with the end of the update,
so an update that is handled again after a crash says nothing twice.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

from aiogram import Bot
from aiogram.types import Update
from msgspec import Struct, json, structs

from holdfast import sql
from holdfast.bot.markup import Button, MessageBody, label, say
from holdfast.bot.org_api import OrgApi
from holdfast.bot.outbox import NewMessage, answer_key, write_messages
from holdfast.bot.people import Person, save_person
from holdfast.bot.telegram_bot import TelegramBot
from holdfast.runtime.db import Database

# Telegram shows no more of a pop-up.
ANSWER_MAX: Final = 200


class Dialogue(Struct, frozen=True):
    """The step that the bot waits for, and what it has collected so far."""

    step: str
    data: dict[str, Any]


class AlreadyHandledError(Exception):
    """Another process has handled this update."""


class Turn:
    def __init__(
        self,
        *,
        bot: TelegramBot,
        client: Bot,
        database: Database,
        api: OrgApi,
        update: Update,
        chat_id: int,
        person: Person,
        is_person_changed: bool,
        booking: tuple[bytes, bytes] | None = None,
        dialogue: Dialogue | None,
    ) -> None:
        self.bot = bot
        self.client = client
        self.database = database
        self.api = api
        self.update = update
        self.chat_id = chat_id
        self.person = person
        self.dialogue = dialogue
        self.answer = ""
        # The booking that this update is about, if an earlier attempt to handle it has chosen one.
        self.booking = booking
        self._is_person_changed = is_person_changed
        self._is_dialogue_changed = False
        self._messages: list[NewMessage] = []
        self._statements: list[tuple[Any, ...]] = []

    @property
    def is_staff(self) -> bool:
        """Whether the update comes from the org's admin chat, whose members are its staff."""
        return self.chat_id == self.bot.admin_chat_id

    @property
    def language(self) -> str:
        """The admin chat has one language for all of its members."""
        return self.bot.language if self.is_staff else self.person.language

    def text(self, key: str, **values: object) -> str:
        return say(self.language, key, **values)

    def label(self, key: str, **values: object) -> str:
        return label(self.language, key, **values)

    def reply(
        self,
        html_text: str,
        buttons: Sequence[Sequence[Button]] = (),
        *,
        chat: int | None = None,
        keyboard: Literal["contact", "remove"] | None = None,
        contact: str = "",
    ) -> None:
        body = MessageBody(html_text, [list(row) for row in buttons], keyboard, contact)
        self.send(NewMessage(key=self.next_key(), chat_id=self.chat_id if chat is None else chat, body=body))

    def next_key(self) -> str:
        return answer_key(self.update.update_id, len(self._messages))

    def send(self, message: NewMessage) -> None:
        self._messages.append(message)

    def show_again(self, message: NewMessage) -> None:
        """Move a message that shows an event or a booking to the end of its chat, or send it if it is new."""
        self.also(sql.telegram.send_again(org=self.bot.org_id, key=message.key, chat=message.chat_id))
        self.send(message)

    def also(self, statement: tuple[Any, ...]) -> None:
        """Run a statement about the org in the transaction that ends the update."""
        self._statements.append(statement)

    async def choose_booking(self, event: bytes, booking: bytes) -> None:
        """Remember which booking this update is about, also if the process dies before the update has ended."""
        self.booking = (event, booking)
        await self.database.org(self.bot.org_id).execute(
            *sql.telegram.choose_booking(
                org=self.bot.org_id, number=self.update.update_id, event=event, booking=booking
            )
        )

    def ask(self, step: str, data: dict[str, Any] | None = None) -> None:
        """Wait for an answer. `data` is what the dialogue remembers."""
        before = self.dialogue.data if self.dialogue is not None else {}
        self.dialogue = Dialogue(step, before if data is None else data)
        self._is_dialogue_changed = True

    def end_dialogue(self) -> None:
        self._is_dialogue_changed = self.dialogue is not None or self._is_dialogue_changed
        self.dialogue = None

    def change_person(self, **changes: Any) -> None:
        self.person = structs.replace(self.person, **changes)
        self._is_person_changed = True

    async def save(self) -> None:
        org = self.bot.org_id
        async with self.database.org(org).transaction() as scope:
            if await scope.fetchval(sql.telegram.finish_update, org, self.update.update_id) is None:
                raise AlreadyHandledError
            if self._is_person_changed:
                await save_person(scope, org, self.person)
            if self._is_dialogue_changed:
                where = (org, self.chat_id, self.person.person_id)
                if self.dialogue is None:
                    await scope.execute(sql.telegram.end_dialogue, *where)
                else:
                    await scope.execute(
                        *sql.telegram.save_dialogue(
                            org=org,
                            chat=self.chat_id,
                            person=self.person.person_id,
                            step=self.dialogue.step,
                            data=json.encode(self.dialogue.data).decode(),
                        )
                    )
            for statement, *values in self._statements:
                await scope.execute(statement, *values)
            await write_messages(scope, org, self._messages)
