"""What workers do: open a shift, take a place, give it up, and look at their shifts."""

from datetime import UTC, datetime
from typing import Final

from aiogram import Router
from aiogram.filters import Command, CommandObject, CommandStart
from aiogram.types import CallbackQuery, Message

from holdfast.api import booking_handlers as bookings
from holdfast.api import event_handlers as events
from holdfast.api import payment_handlers as payments
from holdfast.api.booking_schemas import HoldNew, Item
from holdfast.api.requests import ContactNew, PaymentNew, WithReason
from holdfast.api.responses import EventView
from holdfast.bot.buttons import GiveUpButton, ShiftButton, TakeButton, shift_button
from holdfast.bot.filters import is_private
from holdfast.bot.markup import bold, pack_id, paragraphs, unpack_id
from holdfast.bot.offers import find_shift, show_offer
from holdfast.bot.org_api import booking_ids_of
from holdfast.bot.outbox import booking_card
from holdfast.bot.own_bookings import find_bookings
from holdfast.bot.registration_handlers import begin_registration
from holdfast.bot.shift_texts import brief_html
from holdfast.bot.shifts import find_shifts
from holdfast.bot.turn import Turn
from holdfast.core.payment import RECEIPT
from holdfast.core.refusals import Refusal, Refused, RefusedError
from holdfast.core.states import LIVE, EventStatus, Status
from holdfast.i18n.formatting import format_moment
from holdfast.runtime import ids

router = Router()

OFFERS_MAX: Final = 10
OWN_MAX: Final = 10
# Refusals that have a sentence of their own. The others share one.
REFUSALS: Final = frozenset(
    {
        Refusal.SOLD_OUT,
        Refusal.ALREADY_BOOKED,
        Refusal.EVENT_NOT_ON_SALE,
        Refusal.NOT_ON_SALE_YET,
        Refusal.SALES_CLOSED,
        Refusal.TOO_MANY_EXPIRED_HOLDS,
        Refusal.RATE_LIMITED,
        Refusal.BUSY,
        Refusal.CONTACT_REQUIRED,
        Refusal.ANSWER_REQUIRED,
        Refusal.HOLD_EXPIRED,
        Refusal.ALREADY_SUBMITTED,
        Refusal.ALREADY_CONFIRMED,
    }
)


@router.message(CommandStart(), is_private)
async def start(message: Message, command: CommandObject, turn: Turn) -> None:
    """A deep link names a shift. Without one, workers see what is open."""
    turn.end_dialogue()
    event = ids.parse_event_id(command.args or "")
    if not turn.person.is_registered:
        turn.reply(turn.text("welcome", org=turn.bot.org_name))
        begin_registration(turn, event)
    elif event is not None:
        await show_offer(turn, event)
    else:
        await _show_offers(turn)


@router.callback_query(ShiftButton.filter(), is_private)
async def open_offer(query: CallbackQuery, callback_data: ShiftButton, turn: Turn) -> None:
    event = unpack_id(callback_data.event)
    if event is not None:
        await show_offer(turn, event[0])


@router.callback_query(TakeButton.filter(), is_private)
async def take_place(query: CallbackQuery, callback_data: TakeButton, turn: Turn) -> None:
    """Hold a place. The journal brings the card with the countdown; a worker who holds one already gets it again."""
    unpacked = unpack_id(callback_data.event)
    view = await find_shift(turn, unpacked[0]) if unpacked is not None else None
    if unpacked is None or view is None:
        turn.reply(turn.text("offer.unknown"))
    elif not turn.person.is_registered:
        begin_registration(turn, unpacked[0])
    elif turn.person.is_blocked:
        turn.reply(turn.text("refused.blocked", org=turn.bot.org_name))
    else:
        try:
            await _hold(turn, unpacked[0], view)
        except RefusedError as error:
            # The bot died after it had placed this hold, and would choose another pool now. The hold stands.
            if error.refused.refusal is not Refusal.IDEMPOTENCY_KEY_REUSED:
                turn.reply(explain(turn, error.refused))


async def _hold(turn: Turn, event: bytes, view: EventView) -> None:
    person = turn.person
    places = await turn.api.load_places(event)
    # Shifts that were made elsewhere may have several pools, and several tariffs of the same price.
    pool = next((pool for pool in view.pools if pool.code == places.free_pool), view.pools[0])
    hold = HoldNew(
        items=[Item(pool=pool.code, tariff=pool.tariffs[0].code, quantity=1)],
        contact=ContactNew(name=person.name, phone=person.phone),
        language=person.language,
    )
    # Telegram may deliver an update again, even days later. It never means a second place.
    key = f"telegram:{turn.bot.bot_id}:{turn.update.update_id}".encode()
    response = await turn.api.as_worker(
        person.person_id, bookings.place_hold, view.id, body=hold, headers={b"idempotency-key": key}
    )
    booking = response.content
    if booking.status is Status.HELD and booking.total == 0:
        await turn.api.as_worker(
            person.person_id,
            payments.start_payment,
            booking.id,
            body=PaymentNew(provider=RECEIPT),
            headers={b"idempotency-key": key},
        )
    if response.status == 200:
        turn.show_again(booking_card(*booking_ids_of(booking), turn.chat_id))


@router.callback_query(GiveUpButton.filter(), is_private)
async def give_up(query: CallbackQuery, callback_data: GiveUpButton, turn: Turn) -> None:
    unpacked = unpack_id(callback_data.booking, 2)
    if unpacked is None:
        return
    booking = ids.format_booking_id(*unpacked)
    try:
        await turn.api.as_worker(turn.person.person_id, bookings.cancel_booking, booking, body=WithReason())
    except RefusedError as error:
        turn.reply(explain(turn, error.refused))
        return
    turn.reply(turn.text("given_up"))


@router.message(Command("shifts"), is_private)
async def show_own_shifts(message: Message, turn: Turn) -> None:
    live = [booking for status in LIVE for booking in await find_bookings(turn, status)]
    if not live:
        turn.reply(turn.text("own.none"))
    for booking in live[:OWN_MAX]:
        view = (await turn.api.as_worker(turn.person.person_id, events.get_event, booking.event)).content
        status = bold(turn.text(f"status.{booking.status}"))
        reference = turn.text("reference", reference=booking.reference)
        give_up_button = GiveUpButton(booking=pack_id(*booking_ids_of(booking))).button(turn.label("give_up"))
        buttons = [[give_up_button]] if booking.status is Status.HELD else []
        turn.reply(paragraphs(brief_html(view, turn.person.language), status, reference), buttons)


@router.message(Command("help"), is_private)
async def show_help(message: Message, turn: Turn) -> None:
    turn.reply(turn.text("help", org=turn.bot.org_name))


@router.message(is_private)
async def answer_anything_else(message: Message, turn: Turn) -> None:
    turn.reply(turn.text("not_understood"))


async def _show_offers(turn: Turn) -> None:
    now = datetime.now(UTC)
    found = await find_shifts(turn.database, turn.bot.org_id, now, None, [EventStatus.ACTIVE], OFFERS_MAX)
    views = [await turn.api.load_event(shift.id) for shift in found]
    buttons = [[shift_button("open", view, view.title)] for view in views]
    turn.reply(turn.text("offers" if buttons else "offers.none"), buttons)


def explain(turn: Turn, refused: Refused) -> str:
    """Why not, and what to do now."""
    refusal = refused.refusal
    if refusal not in REFUSALS:
        return turn.text("refused.other")
    opens = refused.sales_open_at
    return turn.text(
        f"refused.{refusal.code}",
        minutes=max(1, -(-(refused.retry_after or 60) // 60)),
        when=format_moment(opens, turn.bot.timezone, turn.language) if opens is not None else "",
        org=turn.bot.org_name,
    )
