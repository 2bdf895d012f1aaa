"""Receipts: a photo or a document that a worker sends becomes the receipt of the place they hold."""

import asyncio
import io
from typing import Any, Final

from aiogram import F, Router
from aiogram.exceptions import TelegramBadRequest
from aiogram.types import CallbackQuery, Message
from msgspec import Struct, convert, to_builtins

from holdfast import sql
from holdfast.api import booking_handlers as bookings
from holdfast.api import event_handlers as events
from holdfast.api import receipt_handlers as receipts
from holdfast.api.booking_schemas import BookingView
from holdfast.api.receipt_upload import FILE_BYTES_MAX, form_with_file
from holdfast.api.requests import BookingsQuery
from holdfast.bot.buttons import ReceiptButton, TakeButton
from holdfast.bot.filters import at_step, is_private
from holdfast.bot.markup import MessageBody, pack_id, paragraphs, unpack_id
from holdfast.bot.org_api import booking_ids_of
from holdfast.bot.outbox import MessageKind, NewMessage
from holdfast.bot.own_bookings import find_booking, find_bookings
from holdfast.bot.shift_texts import time_of_day
from holdfast.bot.turn import Turn
from holdfast.bot.worker_handlers import explain
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import EventStatus, Status

router = Router()

CHOOSE: Final = "receipt"
CHOICES_MAX: Final = 8
WAITING_FILES_MAX: Final = 10
# A file is in memory several times while it passes through.
_DOWNLOADS: Final = asyncio.Semaphore(4)


class SentFile(Struct, frozen=True):
    """A file at Telegram. `file_id` serves to download it; only `file_unique_id` tells whether it was sent before."""

    file_id: str
    file_unique_id: str
    size: int
    # The pictures of an album arrive one by one.
    album: str | None = None


class SentFiles(Struct, frozen=True):
    """Files that wait until the worker says which booking they are for."""

    files: list[SentFile]


class FileTooLargeError(Exception):
    """Telegram does not hand out files of this size, or Holdfast does not store them."""


class _BoundedBuffer(io.BytesIO):
    """Refuses a file that is larger than Telegram said."""

    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > FILE_BYTES_MAX:
            raise FileTooLargeError
        return super().write(data)


@router.message(is_private, F.photo | F.document)
async def take_file(message: Message, turn: Turn) -> None:
    file = _sent_file(message)
    waiting = _waiting_files(turn)
    candidates = await _find_bookings(turn, message)
    if not candidates:
        turn.reply(turn.text("receipt.no_hold"))
    elif len(candidates) == 1:
        await _submit(turn, candidates[0], file)
    else:
        turn.ask(CHOOSE, to_builtins(SentFiles([*waiting, file][-WAITING_FILES_MAX:])))
        if file.album is None or file.album not in {other.album for other in waiting}:
            turn.reply(turn.text("receipt.which"), [[await _choice(turn, booking)] for booking in candidates])


@router.callback_query(ReceiptButton.filter(), is_private, at_step(CHOOSE))
async def choose_booking(query: CallbackQuery, callback_data: ReceiptButton, turn: Turn) -> None:
    unpacked = unpack_id(callback_data.booking, 2)
    booking = await find_booking(turn, *unpacked) if unpacked is not None else None
    if booking is None:
        return
    files = _waiting_files(turn)
    turn.end_dialogue()
    for file in files:
        await _submit(turn, booking, file)


def _waiting_files(turn: Turn) -> list[SentFile]:
    if turn.dialogue is None or turn.dialogue.step != CHOOSE:
        return []
    return convert(turn.dialogue.data, SentFiles).files


async def _find_bookings(turn: Turn, message: Message) -> list[BookingView]:
    """The booking whose card the worker replied to, or else every place that waits for a receipt, or else the last one
    that was lost: its receipt may still be in time."""
    chosen = turn.booking
    replied = message.reply_to_message
    if chosen is None and replied is not None:
        row = await turn.database.org(turn.bot.org_id).fetchrow(
            sql.telegram.message_of_booking, turn.bot.org_id, turn.chat_id, replied.message_id
        )
        chosen = (row["event_id"], row["booking_id"]) if row is not None else None
    if chosen is not None:
        booking = await find_booking(turn, *chosen)
        return [booking] if booking is not None else []
    for status in (Status.HELD, Status.PAYMENT_SUBMITTED):
        if found := await find_bookings(turn, status):
            return found[:CHOICES_MAX]
    # Only the newest booking: a worker who has lost a place and taken another one pays for the new one.
    recent = await turn.api.as_worker(turn.person.person_id, bookings.list_bookings, query=BookingsQuery(limit=1))
    return [booking for booking in recent.content.items if booking.status is Status.EXPIRED]


async def _choice(turn: Turn, booking: BookingView) -> Any:
    view = (await turn.api.as_worker(turn.person.person_id, events.get_event, booking.event)).content
    return ReceiptButton(booking=pack_id(*booking_ids_of(booking))).button(view.title)


async def _submit(turn: Turn, booking: BookingView, file: SentFile) -> None:
    # The choice may look different after a crash, because the booking has its receipt then.
    await turn.choose_booking(*booking_ids_of(booking))
    try:
        # Files of strangers are large. Only one that the booking can take is worth a download.
        await turn.api.check_as_worker(turn.person.person_id, receipts.submit_receipt, booking.id)
        async with _DOWNLOADS:
            headers, body = form_with_file(await _download(turn, file))
        await turn.api.as_worker(turn.person.person_id, receipts.submit_receipt, booking.id, body=body, headers=headers)
    except FileTooLargeError:
        turn.reply(turn.text("receipt.too_large"))
    except RefusedError as error:
        await _explain_refusal(turn, booking, error)
    else:
        await _record(turn, booking, file)


async def _download(turn: Turn, file: SentFile) -> bytes:
    if file.size > FILE_BYTES_MAX:
        raise FileTooLargeError
    try:
        found = await turn.client.get_file(file.file_id)
    except TelegramBadRequest as error:
        if "too big" in error.message:
            raise FileTooLargeError from None
        raise
    assert found.file_path is not None
    buffer = _BoundedBuffer()
    await turn.client.download_file(found.file_path, buffer)
    return buffer.getvalue()


async def _record(turn: Turn, booking: BookingView, file: SentFile) -> None:
    """The journal tells staff and worker about the first file of a receipt. Others go to staff one by one."""
    event, booking_id = booking_ids_of(booking)
    known = (sql.telegram.has_receipt, event, booking_id, file.file_unique_id)
    if await turn.database.event(event).fetchval(*known):
        turn.reply(turn.text("receipt.known"))
        return
    turn.also(
        sql.telegram.save_receipt(
            event=event,
            booking=booking_id,
            org=turn.bot.org_id,
            file_unique_id=file.file_unique_id,
            file_id=file.file_id,
        )
    )
    found = (await turn.api.as_staff(None, receipts.list_receipts, booking.id)).items
    newest = max(found, key=lambda receipt: receipt.at)
    if len(found) == 1:
        return
    if turn.bot.admin_chat_id is not None:
        turn.send(
            NewMessage(
                key=f"receipt:{newest.id}",
                chat_id=turn.bot.admin_chat_id,
                kind=MessageKind.RECEIPT,
                body=MessageBody(newest.id),
                event_id=event,
                booking_id=booking_id,
            )
        )
    if file.album is None:
        turn.reply(turn.text("receipt.added"))


async def _explain_refusal(turn: Turn, booking: BookingView, error: RefusedError) -> None:
    match error.refused.refusal:
        case Refusal.HOLD_EXPIRED:
            await _explain_late_receipt(turn, booking)
        case Refusal.INVALID_REQUEST:
            turn.reply(turn.text("receipt.wrong_file"))
        case Refusal.PAYLOAD_TOO_LARGE:
            turn.reply(turn.text("receipt.too_large"))
        case Refusal.LIMIT_REACHED:
            turn.reply(turn.text("receipt.too_many"))
        case _:
            turn.reply(explain(turn, error.refused))


async def _explain_late_receipt(turn: Turn, booking: BookingView) -> None:
    """The time is up, and a late receipt is not accepted: the shift is over, or somebody else has the place by now, or
    it comes too late."""
    event, _ = booking_ids_of(booking)
    view = (await turn.api.as_worker(turn.person.person_id, events.get_event, booking.event)).content
    places = await turn.api.load_places(event)
    grace_minutes = -(-view.policy.late_grace_seconds // 60)
    is_open = view.status is EventStatus.ACTIVE
    can_retry = is_open and places.left > 0
    if can_retry:
        key = "late.too_late" if grace_minutes else "late.not_accepted"
    else:
        key = "late.taken" if is_open else "late.ended"
    at = time_of_day(booking.expires_at, view.timezone, turn.language) if booking.expires_at is not None else ""
    text = paragraphs(
        turn.text(key, at=at, minutes=grace_minutes),
        turn.text("late.paid", org=turn.bot.org_name, reference=booking.reference),
    )
    again = TakeButton(event=pack_id(event)).button(turn.label("try_again"))
    turn.reply(text, [[again]] if can_retry else [])


def _sent_file(message: Message) -> SentFile:
    file = message.photo[-1] if message.photo else message.document
    assert file is not None
    return SentFile(file.file_id, file.file_unique_id, file.file_size or 0, message.media_group_id)
