"""Who comes to a shift: the list, the export, no-shows, and workers who may not come again."""

from aiogram import F, Router
from aiogram.types import CallbackQuery

from holdfast import sql
from holdfast.bot.buttons import AttendeeButton, ShiftButton
from holdfast.bot.filters import is_staff
from holdfast.bot.markup import Button, escape, pack_id, paragraphs, unpack_id
from holdfast.bot.org_api import person_of
from holdfast.bot.outbox import MessageKind, NewMessage
from holdfast.bot.people import load_person
from holdfast.bot.roster import COMING, LISTED_MAX, Attendee, attendee_lines, load_attendee, load_attendees
from holdfast.bot.turn import Turn
from holdfast.core.actors import STAFF_ACTOR
from holdfast.core.states import SOLD
from holdfast.runtime import ids

router = Router()


@router.callback_query(ShiftButton.filter(F.action == "people"), is_staff)
async def list_people(query: CallbackQuery, callback_data: ShiftButton, turn: Turn) -> None:
    event = unpack_id(callback_data.event)
    if event is None:
        return
    attendees = await load_attendees(turn.database, turn.bot.org_id, event[0])
    if not attendees:
        turn.reply(turn.text("roster.none"))
        return
    numbers = [
        AttendeeButton(action="show", booking=pack_id(event[0], attendee.id)).button(str(number))
        for number, attendee in enumerate(attendees[:LISTED_MAX], 1)
    ]
    lines = "\n".join(attendee_lines(attendees, turn.language))
    turn.reply(paragraphs(lines, turn.text("roster.choose")), _rows(numbers))


@router.callback_query(ShiftButton.filter(F.action == "export"), is_staff)
async def export_people(query: CallbackQuery, callback_data: ShiftButton, turn: Turn) -> None:
    event = unpack_id(callback_data.event)
    if event is not None:
        turn.send(NewMessage(key=turn.next_key(), chat_id=turn.chat_id, kind=MessageKind.ROSTER, event_id=event[0]))


@router.callback_query(AttendeeButton.filter(), is_staff)
async def act_on_attendee(query: CallbackQuery, callback_data: AttendeeButton, turn: Turn) -> None:
    unpacked = unpack_id(callback_data.booking, 2)
    if unpacked is None:
        return
    event, booking = unpacked
    attendee = await load_attendee(turn.database, turn.bot.org_id, event, booking)
    person = person_of(attendee.user_id) if attendee is not None else None
    if attendee is None or attendee.status not in COMING:
        turn.answer = turn.label("roster.gone")
        return
    match callback_data.action:
        case "no_show" if person is not None:
            actor = f"{STAFF_ACTOR}{turn.person.person_id}"
            turn.also(
                sql.telegram.save_no_show(event=event, booking=booking, org=turn.bot.org_id, person=person, actor=actor)
            )
            turn.reply(turn.text("roster.marked", name=attendee.shown_name))
        case "came":
            turn.also((sql.telegram.delete_no_show, event, booking))
            turn.reply(turn.text("roster.unmarked", name=attendee.shown_name))
        case "block" | "unblock" if person is not None:
            is_blocked = callback_data.action == "block"
            turn.also(
                sql.telegram.set_blocked(
                    org=turn.bot.org_id, person=person, is_blocked=is_blocked, language=turn.language
                )
            )
            turn.reply(turn.text(f"roster.{callback_data.action}ed", name=attendee.shown_name))
        case _:
            await _show(turn, event, attendee, person)


async def _show(turn: Turn, event: bytes, attendee: Attendee, person: int | None) -> None:
    packed = pack_id(event, attendee.id)
    buttons: list[Button] = []
    absences, is_unreachable = 0, False
    if person is not None:
        known = await load_person(turn.database, turn.bot.org_id, person)
        absences = await turn.database.org(turn.bot.org_id).fetchval(sql.telegram.no_shows, turn.bot.org_id, person)
        is_blocked = known is not None and known.is_blocked
        is_unreachable = known is not None and known.is_unreachable
        actions = [("came" if attendee.is_no_show else "no_show") if attendee.status in SOLD else None]
        actions.append("unblock" if is_blocked else "block")
        buttons = [
            AttendeeButton(action=action, booking=packed).button(turn.label(f"roster.do_{action}"))
            for action in actions
            if action is not None
        ]
    lines = (
        escape(attendee.shown_name),
        escape(attendee.phone or ""),
        turn.text(f"status.{attendee.status}"),
        turn.text("reference", reference=ids.booking_reference(attendee.id)),
        turn.text("review.no_shows", count=absences) if absences else "",
        turn.text("roster.unreachable") if is_unreachable else "",
    )
    turn.reply("\n".join(line for line in lines if line), [[button] for button in buttons])


def _rows(buttons: list[Button]) -> list[list[Button]]:
    return [buttons[start : start + 6] for start in range(0, len(buttons), 6)]
