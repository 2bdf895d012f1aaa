"""What a buyer answered to the questions of an event, as pages show it."""

from typing import Any, Literal

from msgspec import Raw, Struct, json

from holdfast.api.booking_schemas import BookingView
from holdfast.api.responses import EventView
from holdfast.core.buyer_form import is_answered
from holdfast.web.booking_summary import unit_count


class ShownAnswer(Struct, frozen=True):
    """The question in the organiser's words. The value is true or false if the answer is yes or no."""

    label: str
    value: str | bool


def booking_answers(booking: BookingView, event: EventView) -> list[ShownAnswer]:
    """The answers that are about the whole booking."""
    return _shown(event, "booking", _given(booking))


def unit_answers(booking: BookingView, event: EventView) -> list[list[ShownAnswer]]:
    """The answers about each unit, in the order of the tickets."""
    given = _given(booking)
    lists = {code: values for code, values in given.items() if isinstance(values, list)}
    return [
        _shown(event, "unit", {code: values[unit] for code, values in lists.items() if unit < len(values)})
        for unit in range(unit_count(booking))
    ]


def _given(booking: BookingView) -> dict[str, Any]:
    """Empty for someone who received the booking by transfer."""
    answers = booking.answers
    decoded: dict[str, Any] = json.decode(answers) if isinstance(answers, Raw) else answers or {}
    return decoded


def _shown(event: EventView, per: Literal["booking", "unit"], given: dict[str, Any]) -> list[ShownAnswer]:
    """The organiser may have changed the questions since. Leave out an answer whose question is gone, because it has no
    label, and an answer that no longer fits its question."""
    return [
        ShownAnswer(question.label, value)
        for question in event.questions
        if question.per == per and isinstance(value := given.get(question.code), str | bool) and is_answered(value)
    ]
