"""Shows a shift to a worker who may want it."""

from holdfast.api import event_handlers as events
from holdfast.api.responses import EventView
from holdfast.bot.buttons import TakeButton
from holdfast.bot.markup import pack_id
from holdfast.bot.shift_texts import offer_body
from holdfast.bot.turn import Turn
from holdfast.core.refusals import RefusedError
from holdfast.runtime import ids


async def find_shift(turn: Turn, event: bytes) -> EventView | None:
    """A published shift of the org."""
    try:
        response = await turn.api.as_worker(turn.person.person_id, events.get_event, ids.format_event_id(event))
    except RefusedError:
        return None
    return response.content if response.content.shift is not None else None


async def show_offer(turn: Turn, event: bytes) -> None:
    view = await find_shift(turn, event)
    if view is None:
        turn.reply(turn.text("offer.unknown"))
        return
    take = TakeButton(event=pack_id(event)).button(turn.label("take"))
    body = offer_body(view, await turn.api.load_places(event), turn.language, take)
    turn.reply(body.text, body.buttons)
