"""The guided dialogue that makes, copies and changes a shift."""

from datetime import UTC, date, datetime, timedelta
from typing import Final

from aiogram import F, Router
from aiogram.filters import Command
from aiogram.types import CallbackQuery, Message
from babel import Locale
from babel.dates import format_date
from msgspec import UNSET, Struct, convert, structs, to_builtins

from holdfast import sql
from holdfast.api import event_handlers as events
from holdfast.api.responses import EventView
from holdfast.bot.buttons import FormButton, ShiftButton, shift_button
from holdfast.bot.filters import at_step, is_staff
from holdfast.bot.markup import Button, bold, escape, paragraphs, unpack_id
from holdfast.bot.org_api import event_id_of
from holdfast.bot.outbox import shift_post
from holdfast.bot.shift_form import (
    FIELDS,
    OPTIONAL,
    FieldError,
    ShiftForm,
    changed_event,
    form_of,
    new_event,
    read_field,
)
from holdfast.bot.shifts import FoundShift, latest_shifts
from holdfast.bot.turn import Dialogue, Turn
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import EventStatus
from holdfast.i18n.formatting import in_zone, shorten
from holdfast.i18n.languages import language_of
from holdfast.tickets.shift_facts import OFFERED, shift_facts

router = Router()

FORM: Final = "form"
PREVIEW: Final = "form.preview"
EARLIER_MAX: Final = 5
LATEST_MAX: Final = 50
# A longer one would not fit into a button.
NUMBER_LENGTH_MAX: Final = 12
TITLE_MAX: Final = 200


class OpenForm(Struct, frozen=True, omit_defaults=True):
    """What the dialogue remembers. A form that changes a shift names its event, and keeps what it had when it was
    opened. With `returns`, the form goes back to the preview after each answer."""

    id: int
    form: ShiftForm
    currency: str
    timezone: str
    event: str | None = None
    opened: ShiftForm | None = None
    returns: bool = False

    def with_field(self, name: str, value: str) -> "OpenForm":
        return structs.replace(self, form=self.form.with_field(name, value))


class MissingFieldError(Exception):
    """A new shift needs this field."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


def _position(dialogue: Dialogue) -> str:
    """The form and the step that a button belongs to. Buttons stay in the chat when the form has moved on."""
    return f"{dialogue.data.get('id')}.{dialogue.step.removeprefix(f'{FORM}.')}"


async def is_current(_: CallbackQuery, callback_data: FormButton, turn: Turn) -> bool:
    return turn.dialogue is not None and callback_data.at == _position(turn.dialogue)


def _open_form(turn: Turn) -> OpenForm:
    assert turn.dialogue is not None
    return convert(turn.dialogue.data, OpenForm)


def _field(turn: Turn) -> str:
    """The field that the form asks for, or `preview`."""
    assert turn.dialogue is not None
    return turn.dialogue.step.removeprefix(f"{FORM}.")


@router.message(Command("new"), is_staff)
async def begin(message: Message, turn: Turn) -> None:
    earlier = await _earlier_shifts(turn)
    if earlier:
        copies = [[shift_button("copy", view, view.title)] for view in earlier]
        empty = FormButton(action="start").button(turn.label("form.empty"))
        turn.reply(turn.text("form.begin"), [*copies, [empty]])
    else:
        await _ask(turn, _new_form(turn), FIELDS[0])


@router.callback_query(FormButton.filter(F.action == "start"), is_staff)
async def begin_empty(query: CallbackQuery, turn: Turn) -> None:
    await _ask(turn, _new_form(turn), FIELDS[0])


@router.callback_query(ShiftButton.filter(F.action.in_({"copy", "edit"})), is_staff)
async def begin_with_shift(query: CallbackQuery, callback_data: ShiftButton, turn: Turn) -> None:
    """A copy is a new shift on another day, with another number. A change keeps both."""
    event = unpack_id(callback_data.event)
    view = await turn.api.find_event(event[0]) if event is not None else None
    if view is None:
        return
    form = form_of(view, turn.language)
    if callback_data.action == "edit":
        _show_preview(
            turn,
            OpenForm(
                turn.update.update_id, form, view.currency, view.timezone, event=view.id, opened=form, returns=True
            ),
        )
        return
    copy = form.with_field("order_number", await _next_order_number(turn)).with_field("date", "")
    await _ask(turn, structs.replace(_new_form(turn), form=copy, returns=True), "date")


@router.message(at_step(FORM), is_staff, F.text, ~F.text.startswith("/"))
async def take_answer(message: Message, turn: Turn) -> None:
    await _take(turn, message.text or "")


@router.callback_query(FormButton.filter(F.action == "value"), at_step(FORM), is_staff, is_current)
async def take_suggestion(query: CallbackQuery, callback_data: FormButton, turn: Turn) -> None:
    await _take(turn, callback_data.field)


@router.callback_query(FormButton.filter(F.action == "skip"), at_step(FORM), is_staff, is_current)
async def skip(query: CallbackQuery, turn: Turn) -> None:
    form, field = _open_form(turn), _field(turn)
    if field in OPTIONAL:
        await _go_on(turn, form.with_field(field, ""), field)


@router.callback_query(FormButton.filter(F.action == "back"), at_step(FORM), is_staff, is_current)
async def go_back(query: CallbackQuery, turn: Turn) -> None:
    form, field = _open_form(turn), _field(turn)
    if form.returns or field not in FIELDS:
        _show_preview(turn, form)
    else:
        await _ask(turn, form, FIELDS[max(0, FIELDS.index(field) - 1)])


@router.callback_query(FormButton.filter(F.action == "cancel"), at_step(FORM), is_staff, is_current)
async def cancel(query: CallbackQuery, turn: Turn) -> None:
    turn.end_dialogue()
    turn.reply(turn.text("form.cancelled"))


@router.callback_query(FormButton.filter(F.action == "edit"), at_step(FORM), is_staff, is_current)
async def choose_field(query: CallbackQuery, callback_data: FormButton, turn: Turn) -> None:
    form = _open_form(turn)
    if callback_data.field in FIELDS:
        await _ask(turn, structs.replace(form, returns=True), callback_data.field)
        return
    buttons = [[_button(turn, "edit", turn.label(f"field.{name}"), name)] for name in FIELDS]
    turn.reply(turn.text("form.which"), buttons)


@router.callback_query(FormButton.filter(F.action == "publish"), at_step(PREVIEW), is_staff, is_current)
async def publish(query: CallbackQuery, turn: Turn) -> None:
    form = _open_form(turn)
    try:
        view = await (_change(turn, form) if form.event is not None else _create(turn, form))
    except MissingFieldError as error:
        await _ask(turn, structs.replace(form, returns=True), error.field)
        return
    except FieldError as error:
        turn.reply(turn.text(str(error)))
        return
    except RefusedError as error:
        turn.reply(_explain(turn, error))
        return
    turn.end_dialogue()
    event = event_id_of(view)
    turn.also((sql.telegram.follow_event, event, turn.bot.org_id))
    if form.event is not None:
        turn.reply(turn.text("form.changed", title=view.title))
        return
    turn.reply(turn.text("form.published" if turn.bot.channel_id else "form.no_channel", title=view.title))
    if turn.bot.channel_id is not None:
        turn.send(shift_post(event, turn.bot.channel_id))


@router.callback_query(FormButton.filter(), is_staff)
async def answer_stale_button(query: CallbackQuery, turn: Turn) -> None:
    """A button of another step, or of a form that is gone. Pressing one twice gets here too."""
    turn.answer = turn.label("form.stale")


async def _create(turn: Turn, form: OpenForm) -> EventView:
    """Create and publish. After a crash in between, the same shift is there already, and goes on from where it is."""
    if form.form.missing is not None:
        raise MissingFieldError(form.form.missing)
    if form.form.times(form.timezone)[0] <= datetime.now(UTC):
        raise FieldError("form.error.past")
    new = new_event(form.form, _title(turn, form.form), form.currency, form.timezone)
    try:
        view = await turn.api.as_staff(turn.person.person_id, events.create_event, body=new)
    except RefusedError as error:
        found = await _find_same(turn, form.form) if error.refused.refusal is Refusal.ORDER_NUMBER_USED else None
        if found is None:
            raise
        view = found
    return await turn.api.as_staff(turn.person.person_id, events.publish_event, view.id)


async def _find_same(turn: Turn, form: ShiftForm) -> EventView | None:
    found = await turn.database.org(turn.bot.org_id).row(
        FoundShift, sql.telegram.shift_by_order_number, turn.bot.org_id, form.order_number
    )
    view = await turn.api.find_event(found.id) if found is not None else None
    is_same = view is not None and view.shift == form.shift and view.status in (EventStatus.DRAFT, EventStatus.ACTIVE)
    return view if is_same else None


async def _change(turn: Turn, form: OpenForm) -> EventView:
    assert form.event is not None
    assert form.opened is not None
    view = await turn.api.as_staff(turn.person.person_id, events.get_event, form.event)
    change = changed_event(form.form, form.opened, view, turn.language, lambda after: _title(turn, after))
    if change is None:
        return view
    if change.starts_at is not UNSET and change.starts_at <= datetime.now(UTC):
        raise FieldError("form.error.past")
    return await turn.api.as_staff(turn.person.person_id, events.change_event, form.event, body=change)


async def _take(turn: Turn, text: str) -> None:
    form, field = _open_form(turn), _field(turn)
    if field not in FIELDS:
        turn.reply(turn.text("form.use_buttons"))
        return
    try:
        value = read_field(field, text, form.currency, _today(form.timezone))
    except FieldError as error:
        turn.reply(turn.text(str(error)))
        return
    await _go_on(turn, form.with_field(field, value), field)


async def _go_on(turn: Turn, form: OpenForm, field: str) -> None:
    following = _next_field(form, field)
    if following is None:
        _show_preview(turn, form)
    else:
        await _ask(turn, form, following)


def _next_field(form: OpenForm, field: str) -> str | None:
    """A shift that exists lacks nothing."""
    if form.event is not None:
        return None
    if form.returns:
        return form.form.missing
    return next(iter(FIELDS[FIELDS.index(field) + 1 :]), None)


async def _ask(turn: Turn, form: OpenForm, field: str) -> None:
    turn.ask(f"{FORM}.{field}", to_builtins(form))
    rows: list[list[Button]] = []
    if field == "date":
        days = (_today(form.timezone) + timedelta(days=ahead) for ahead in range(3))
        rows.append([_button(turn, "value", _short_date(turn, day), day.isoformat()) for day in days])
    if field == "order_number" and not form.form.order_number:
        number = await _next_order_number(turn)
        rows.append([_button(turn, "value", number, number)])
    is_first = field == FIELDS[0] and not form.returns
    navigation = [] if is_first else [_button(turn, "back", turn.label("form.back"))]
    if field in OPTIONAL:
        navigation.append(_button(turn, "skip", turn.label("form.skip")))
    navigation.append(_button(turn, "cancel", turn.label("form.cancel")))
    value = getattr(form.form, field)
    current = turn.text("form.current", value=_shown(turn, form, field)) if value else None
    turn.reply(paragraphs(bold(turn.text(f"field.{field}")), turn.text(f"form.{field}"), current), [*rows, navigation])


def _show_preview(turn: Turn, form: OpenForm) -> None:
    turn.ask(PREVIEW, to_builtins(form))
    facts = shift_facts(form.form.shift, form.currency, turn.language, OFFERED)
    lines = [f"{bold(escape(fact.label))}: {escape(shorten(fact.value, 500))}" for fact in facts]
    lines.append(f"{bold(turn.text('field.workers'))}: {escape(form.form.workers)}")
    instructions = form.form.payment_instructions and (
        f"{bold(turn.text('field.payment_instructions'))}: {escape(shorten(form.form.payment_instructions, 500))}"
    )
    buttons = [
        [_button(turn, "publish", turn.label("form.save" if form.event is not None else "form.publish"))],
        [_button(turn, "edit", turn.label("form.edit")), _button(turn, "cancel", turn.label("form.cancel"))],
    ]
    turn.reply(paragraphs(turn.text("form.preview"), "\n".join(lines), instructions or None), buttons)


def _new_form(turn: Turn) -> OpenForm:
    return OpenForm(turn.update.update_id, ShiftForm(), turn.bot.currency, turn.bot.timezone)


def _button(turn: Turn, action: str, text: str, field: str = "") -> Button:
    """A button for the step that the form is at."""
    assert turn.dialogue is not None
    return FormButton(action=action, field=field, at=_position(turn.dialogue)).button(text)


def _explain(turn: Turn, error: RefusedError) -> str:
    match error.refused.refusal:
        case Refusal.ORDER_NUMBER_USED:
            return turn.text("form.error.order_number_used")
        case Refusal.CAPACITY_IN_USE:
            return turn.text("form.error.capacity_in_use")
        case Refusal.EVENT_ENDED:
            return turn.text("form.error.ended")
        case _:
            return turn.text("form.error.refused", detail=str(error))


async def _earlier_shifts(turn: Turn) -> list[EventView]:
    found = await latest_shifts(turn.database, turn.bot.org_id, EARLIER_MAX)
    return [await turn.api.load_event(shift.id) for shift in found]


async def _next_order_number(turn: Turn) -> str:
    """One more than the highest of the latest numbers, as far as they are numbers."""
    found = await latest_shifts(turn.database, turn.bot.org_id, LATEST_MAX)
    latest = [shift.order_number or "" for shift in found]
    numbers = [int(number) for number in latest if number.isdecimal() and len(number) <= NUMBER_LENGTH_MAX]
    return str(max(numbers, default=0) + 1)


def _today(timezone: str) -> date:
    return in_zone(datetime.now(UTC), timezone).date()


def _short_date(turn: Turn, day: date) -> str:
    text: str = format_date(day, "EEE d MMM", Locale(language_of(turn.language)))
    return text


def _shown(turn: Turn, form: OpenForm, field: str) -> str:
    facts = {fact.name: fact.value for fact in shift_facts(form.form.shift, form.currency, turn.language, OFFERED)}
    return shorten(facts.get(field, str(getattr(form.form, field))), 500)


def _title(turn: Turn, form: ShiftForm) -> str:
    return shorten(turn.label("form.title", number=form.order_number, address=form.address), TITLE_MAX)
