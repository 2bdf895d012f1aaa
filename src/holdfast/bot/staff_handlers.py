"""What staff do with published shifts: look at them, cancel them, and post them again."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from aiogram import F, Router
from aiogram.filters import Command, CommandStart
from aiogram.types import CallbackQuery, Message

from holdfast import sql
from holdfast.api import event_handlers as events
from holdfast.api.responses import EventView
from holdfast.bot.buttons import ShiftButton, shift_button
from holdfast.bot.filters import is_staff
from holdfast.bot.markup import MessageBody, bold, escape, paragraphs, unpack_id
from holdfast.bot.org_api import event_id_of
from holdfast.bot.outbox import MessageKind, NewMessage, shift_post
from holdfast.bot.roster import attendee_lines, load_attendees
from holdfast.bot.shift_texts import offer_html, title_html
from holdfast.bot.shifts import DAY_MAX, NOT_CANCELLED, find_shifts, local_day
from holdfast.bot.submissions import show_receipts
from holdfast.bot.turn import Turn
from holdfast.core.refusals import RefusedError
from holdfast.core.states import EventStatus
from holdfast.i18n.formatting import in_zone

router = Router()

LISTED_MAX: Final = 20
# The markup around texts is short, and does not count.
PAGE_LENGTH: Final = 3_500
PUBLISHED: Final = (EventStatus.ACTIVE, EventStatus.COMPLETED, EventStatus.CANCELLED)


@router.message(CommandStart(magic=F.args.is_(None)), is_staff)
@router.message(Command("help"), is_staff)
async def show_help(message: Message, turn: Turn) -> None:
    turn.reply(turn.text("staff_help", org=turn.bot.org_name))


@router.message(Command("shifts"), is_staff)
async def list_shifts(message: Message, turn: Turn) -> None:
    earliest = datetime.now(UTC) - timedelta(hours=12)
    found = await _load_shifts(turn, earliest, None, PUBLISHED, LISTED_MAX)
    buttons = [[shift_button("view", view, view.title)] for view in found]
    turn.reply(turn.text("staff.shifts" if buttons else "staff.no_shifts"), buttons)


@router.message(Command("today"), is_staff)
async def list_today(message: Message, turn: Turn) -> None:
    """The shifts of the local day, and who is coming to each. Few messages, because a group gets few a minute."""
    today = in_zone(datetime.now(UTC), turn.bot.timezone).date()
    found = await _load_shifts(turn, *local_day(today, turn.bot.timezone), NOT_CANCELLED, DAY_MAX)
    if not found:
        turn.reply(turn.text("staff.none_today"))
        return
    parts = [(view, await _summary(turn, view)) for view in found]
    for page in _pages(parts):
        buttons = [[shift_button("view", view, view.title)] for view, _ in page]
        turn.reply(paragraphs(*(text for _, text in page)), buttons)
    day = MessageBody(today.isoformat())
    turn.send(NewMessage(key=turn.next_key(), chat_id=turn.chat_id, kind=MessageKind.ROSTER, body=day))


@router.message(Command("receipts"), is_staff)
async def list_receipts(message: Message, turn: Turn) -> None:
    if not await show_receipts(turn, turn.chat_id):
        turn.reply(turn.text("staff.no_receipts"))


@router.callback_query(ShiftButton.filter(F.action == "view"), is_staff)
async def view_shift(query: CallbackQuery, callback_data: ShiftButton, turn: Turn) -> None:
    view = await _find(turn, callback_data)
    if view is not None:
        await _show(turn, view)


@router.callback_query(ShiftButton.filter(F.action == "cancel"), is_staff)
async def ask_to_cancel(query: CallbackQuery, callback_data: ShiftButton, turn: Turn) -> None:
    view = await _find(turn, callback_data)
    if view is not None:
        sure = shift_button("really_cancel", view, turn.label("shift.really_cancel"))
        turn.reply(turn.text("shift.ask_to_cancel", title=view.title), [[sure]])


@router.callback_query(ShiftButton.filter(F.action == "really_cancel"), is_staff)
async def cancel_shift(query: CallbackQuery, callback_data: ShiftButton, turn: Turn) -> None:
    """Everyone concerned hears of it through the journal, and so does the channel post."""
    view = await _find(turn, callback_data)
    if view is None:
        return
    try:
        await turn.api.as_staff(turn.person.person_id, events.cancel_event, view.id)
        turn.reply(turn.text("shift.cancelled", title=view.title))
    except RefusedError:
        turn.reply(turn.text("form.error.ended"))


@router.callback_query(ShiftButton.filter(F.action == "post"), is_staff)
async def post_again(query: CallbackQuery, callback_data: ShiftButton, turn: Turn) -> None:
    view = await _find(turn, callback_data)
    if view is None:
        return
    event = event_id_of(view)
    if view.status is not EventStatus.ACTIVE:
        turn.reply(turn.text("form.error.ended"))
        return
    if turn.bot.channel_id is None:
        turn.reply(turn.text("form.no_channel", title=view.title))
        return
    turn.also((sql.telegram.follow_event, event, turn.bot.org_id))
    turn.show_again(shift_post(event, turn.bot.channel_id))
    turn.answer = turn.label("shift.posted")


async def _show(turn: Turn, view: EventView) -> None:
    rows = [
        [
            shift_button("people", view, turn.label("shift.people")),
            shift_button("export", view, turn.label("shift.export")),
        ],
    ]
    if view.status is EventStatus.ACTIVE:
        rows += [
            [
                shift_button("edit", view, turn.label("shift.edit")),
                shift_button("cancel", view, turn.label("shift.cancel")),
            ],
            [
                shift_button("copy", view, turn.label("shift.copy")),
                shift_button("post", view, turn.label("shift.post")),
            ],
        ]
    else:
        rows.append([shift_button("copy", view, turn.label("shift.copy"))])
    turn.reply(paragraphs(offer_html(view, turn.language), await _state(turn, view)), rows)


async def _load_shifts(
    turn: Turn, earliest: datetime, before: datetime | None, statuses: Sequence[EventStatus], shifts_max: int
) -> list[EventView]:
    found = await find_shifts(turn.database, turn.bot.org_id, earliest, before, statuses, shifts_max)
    return [await turn.api.load_event(shift.id) for shift in found]


async def _summary(turn: Turn, view: EventView) -> str:
    event = event_id_of(view)
    work_time = view.shift.work_time if view.shift is not None else None
    attendees = await load_attendees(turn.database, turn.bot.org_id, event)
    lines = [title_html(view), escape(work_time or ""), await _state(turn, view)]
    lines += attendee_lines(attendees, turn.language)
    return "\n".join(line for line in lines if line)


def _pages(parts: list[tuple[EventView, str]]) -> list[list[tuple[EventView, str]]]:
    """As many shifts in a message as fit."""
    pages: list[list[tuple[EventView, str]]] = [[]]
    for part in parts:
        if pages[-1] and sum(len(text) for _, text in [*pages[-1], part]) > PAGE_LENGTH:
            pages.append([])
        pages[-1].append(part)
    return pages


async def _state(turn: Turn, view: EventView) -> str:
    event = event_id_of(view)
    places = await turn.api.load_places(event)
    return bold(
        turn.text(
            "shift.state",
            status=turn.label(f"event.{view.status}"),
            taken=places.capacity - places.left,
            capacity=places.capacity,
        )
    )


async def _find(turn: Turn, pressed: ShiftButton) -> EventView | None:
    event = unpack_id(pressed.event)
    return await turn.api.find_event(event[0]) if event is not None else None
