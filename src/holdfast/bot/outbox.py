"""Messages that wait to be sent. Their keys make writing them idempotent."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct, json

from holdfast import sql
from holdfast.bot.markup import MessageBody
from holdfast.runtime.db import DatabaseScope

# The post of a shift is edited at most this often, so that others in the channel get a turn.
EDIT_DISTANCE_SECONDS: Final = 4.0
# A chat in which so many answers wait gets no more of them. Only somebody who floods the bot gets there.
WAITING_MAX: Final = 50
ANSWER_PREFIX: Final = "update:"


class MessageKind(StrEnum):
    """A `text` says what its body says. The others show an event or a booking as it is when they are sent."""

    TEXT = "text"
    POST = "post"
    CARD = "card"
    REVIEW = "review"
    RECEIPT = "receipt"
    ROSTER = "roster"


class NewMessage(Struct, frozen=True, kw_only=True):
    key: str
    chat_id: int
    kind: MessageKind = MessageKind.TEXT
    body: MessageBody = MessageBody("")
    event_id: bytes | None = None
    booking_id: bytes | None = None


class _MessageRow(Struct, frozen=True):
    """The row as JSON, in which ids are hexadecimal."""

    key: str
    chat_id: int
    kind: MessageKind
    body: MessageBody
    event_id: str | None
    booking_id: str | None


def answer_key(update: int, answer: int | str) -> str:
    """An update has several answers, which it writes once however often the bot handles it."""
    return f"{ANSWER_PREFIX}{update}:{answer}"


def booking_card(event: bytes, booking: bytes, chat: int) -> NewMessage:
    key = f"card:{booking.hex()}"
    return NewMessage(key=key, chat_id=chat, kind=MessageKind.CARD, event_id=event, booking_id=booking)


def review(event: bytes, booking: bytes, number: int, chat: int) -> NewMessage:
    """`number` is that of the entry in the journal. A booking has a review each time that it waits for one."""
    key = f"review:{booking.hex()}:{number}"
    return NewMessage(key=key, chat_id=chat, kind=MessageKind.REVIEW, event_id=event, booking_id=booking)


def shift_post(event: bytes, channel: int) -> NewMessage:
    return NewMessage(key=f"post:{event.hex()}", chat_id=channel, kind=MessageKind.POST, event_id=event)


async def write_messages(scope: DatabaseScope, org: bytes, messages: Sequence[NewMessage]) -> None:
    if messages:
        rows = [_row(message) for message in messages]
        await scope.execute(
            *sql.telegram.insert_messages(
                org=org, rows=json.encode(rows).decode(), answer_prefix=ANSWER_PREFIX, waiting_max=WAITING_MAX
            )
        )


async def refresh_event(scope: DatabaseScope, org: bytes, event: bytes, bookings: Sequence[bytes]) -> None:
    """Show the present state in the post of an event, and in the cards and reviews of these bookings."""
    await scope.execute(
        *sql.telegram.refresh_event(
            org=org, event=event, bookings=list(set(bookings)), distance_seconds=EDIT_DISTANCE_SECONDS
        )
    )


def _row(message: NewMessage) -> _MessageRow:
    return _MessageRow(
        message.key,
        message.chat_id,
        message.kind,
        message.body,
        None if message.event_id is None else message.event_id.hex(),
        None if message.booking_id is None else message.booking_id.hex(),
    )
