"""Staff approve and reject receipts. Two of them may press at once, and one may sit at another screen."""

from typing import Final

from aiogram import F, Router
from aiogram.types import CallbackQuery, Message
from msgspec import Struct, convert, to_builtins

from holdfast.api import booking_handlers as bookings
from holdfast.api.booking_schemas import BookingView
from holdfast.api.requests import WithReason
from holdfast.bot.buttons import DecideButton, ReasonButton
from holdfast.bot.filters import at_step, is_staff
from holdfast.bot.markup import escape, label, plain, unpack_id
from holdfast.bot.turn import Dialogue, Turn
from holdfast.core.refusals import RefusedError
from holdfast.core.states import Status
from holdfast.i18n.formatting import shorten
from holdfast.i18n.languages import language_of
from holdfast.runtime import ids

router = Router()

REASON: Final = "reject"
REASONS: Final = ("unreadable", "amount", "not_received", "used")
OWN_WORDS: Final = "text"
REASON_MAX: Final = 500


class AwaitedReason(Struct, frozen=True):
    """The booking whose receipt somebody is about to reject, and the dialogue that this interrupts."""

    booking: str
    interrupted: Dialogue | None = None


@router.callback_query(DecideButton.filter(), is_staff)
async def approve(query: CallbackQuery, callback_data: DecideButton, turn: Turn) -> None:
    booking = _booking_id(callback_data.booking)
    if booking is None:
        return
    try:
        await turn.api.as_staff(turn.person.person_id, bookings.approve_booking, booking)
        turn.answer = turn.label("review.confirmed")
    except RefusedError as error:
        turn.answer = await _state(turn, booking, error)


@router.callback_query(ReasonButton.filter(F.reason == ""), is_staff)
async def ask_reason(query: CallbackQuery, callback_data: ReasonButton, turn: Turn) -> None:
    view = await _find(turn, callback_data.booking)
    if view is None:
        return
    if view.status is not Status.PAYMENT_SUBMITTED:
        turn.answer = turn.label(f"review.{view.status}")
        return
    buttons = [
        [ReasonButton(booking=callback_data.booking, reason=reason).button(turn.label(f"reason.{reason}"))]
        for reason in (*REASONS, OWN_WORDS)
    ]
    turn.reply(turn.text("review.why", name=view.contact.name or "", reference=view.reference), buttons)


@router.callback_query(ReasonButton.filter(F.reason == OWN_WORDS), is_staff)
async def ask_own_words(query: CallbackQuery, callback_data: ReasonButton, turn: Turn) -> None:
    """The reason may interrupt a form. The form goes on afterwards."""
    view = await _find(turn, callback_data.booking)
    if view is None:
        return
    interrupted = turn.dialogue
    if interrupted is not None and interrupted.step == REASON:
        interrupted = convert(interrupted.data, AwaitedReason).interrupted
    turn.ask(REASON, to_builtins(AwaitedReason(callback_data.booking, interrupted)))
    turn.reply(turn.text("review.type_reason", name=view.contact.name or "", reference=view.reference))


@router.callback_query(ReasonButton.filter(F.reason.in_(REASONS)), is_staff)
async def reject(query: CallbackQuery, callback_data: ReasonButton, turn: Turn) -> None:
    view = await _find(turn, callback_data.booking)
    if view is not None:
        # The worker reads the reason.
        words = label(language_of(view.language), f"reason.{callback_data.reason}")
        turn.answer = await _reject(turn, view.id, words)


@router.message(at_step(REASON), is_staff, F.text, ~F.text.startswith("/"))
async def reject_in_own_words(message: Message, turn: Turn) -> None:
    assert turn.dialogue is not None
    awaited = convert(turn.dialogue.data, AwaitedReason)
    booking = _booking_id(awaited.booking)
    if awaited.interrupted is not None:
        turn.ask(awaited.interrupted.step, awaited.interrupted.data)
    else:
        turn.end_dialogue()
    if booking is not None:
        turn.reply(escape(await _reject(turn, booking, shorten(plain(message.text or ""), REASON_MAX))))


async def _reject(turn: Turn, booking: str, words: str) -> str:
    try:
        await turn.api.as_staff(turn.person.person_id, bookings.reject_booking, booking, body=WithReason(reason=words))
    except RefusedError as error:
        return await _state(turn, booking, error)
    return turn.label("review.rejected")


async def _state(turn: Turn, booking: str, error: RefusedError) -> str:
    """Somebody else has decided, or the time for it is over."""
    try:
        view = await turn.api.as_staff(turn.person.person_id, bookings.get_booking, booking)
    except RefusedError:
        return str(error)
    return turn.label(f"review.{view.status}")


async def _find(turn: Turn, packed: str) -> BookingView | None:
    booking = _booking_id(packed)
    try:
        return await turn.api.as_staff(turn.person.person_id, bookings.get_booking, booking) if booking else None
    except RefusedError as error:
        turn.answer = str(error)
        return None


def _booking_id(packed: str) -> str | None:
    unpacked = unpack_id(packed, 2)
    return ids.format_booking_id(*unpacked) if unpacked is not None else None
