"""What the form of an event asks its buyer for: contact details, and answers to the organiser's questions."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, ValidationError, convert

from holdfast.api.requests import ContactNew
from holdfast.api.responses import EventView
from holdfast.core.buyer_form import ANSWER_LENGTH_MAX, Question, is_answered
from holdfast.i18n.texts import translate
from holdfast.web.phone_numbers import normalise_phone

LENGTHS_MAX: Final = {"name": 200, "email": 254, "phone": 40}
# How many answers about units one form can have.
UNIT_ANSWERS_MAX: Final = 400
YES_NO: Final = {"yes": True, "no": False}

FieldKind = Literal["name", "email", "phone", "text", "choice", "yes_no"]
FieldProblem = Literal["required", "name", "email", "phone", "text", "choice", "yes_no"]


class BuyerField(Struct, frozen=True, kw_only=True):
    """One input of the form. `unit` counts from 1 in a question about each unit."""

    name: str
    label: str
    kind: FieldKind
    is_required: bool
    length_max: int = ANSWER_LENGTH_MAX
    choices: tuple[str, ...] = ()
    unit: int | None = None
    question: Question | None = None

    def problem(self, typed: str) -> FieldProblem | None:
        """What is wrong with the text that a buyer typed, or None."""
        value = self.parse(typed)
        if not is_answered(value):
            return "required" if self.is_required or typed.strip() else None
        is_valid = _is_contact(self.kind, value) if self.question is None else self.question.problem(value) is None
        return None if is_valid else self.kind

    def parse(self, typed: str) -> str | bool | None:
        """The value for the API. An empty field has none."""
        if self.kind == "yes_no":
            return YES_NO.get(typed)
        return (normalise_phone(typed) if self.kind == "phone" else typed.strip()) or None


def _is_contact(kind: str, value: Any) -> bool:
    try:
        convert({kind: value}, ContactNew)
    except ValidationError:
        return False
    return True


def contact_fields(event: EventView, language: str) -> list[BuyerField]:
    asked = {"name": event.contact.name, "email": event.contact.email, "phone": event.contact.phone}
    kinds: tuple[Literal["name", "email", "phone"], ...] = ("name", "email", "phone")
    return [
        BuyerField(
            name=kind,
            label=translate(language, f"field.label_{kind}"),
            kind=kind,
            is_required=asked[kind] == "required",
            length_max=LENGTHS_MAX[kind],
        )
        for kind in kinds
        if asked[kind] != "none"
    ]


def booking_questions(event: EventView) -> list[BuyerField]:
    return [_question_field(question) for question in event.questions if question.per == "booking"]


def unit_questions(event: EventView, unit: int) -> list[BuyerField]:
    return [_question_field(question, unit) for question in event.questions if question.per == "unit"]


def asks_about_units(event: EventView) -> bool:
    return any(question.per == "unit" for question in event.questions)


def answered_units_max(event: EventView) -> int | None:
    """How many units a form can ask about, if the event has questions per unit."""
    count = sum(question.per == "unit" for question in event.questions)
    return UNIT_ANSWERS_MAX // count if count else None


def _question_field(question: Question, unit: int | None = None) -> BuyerField:
    # No code contains a number sign.
    ending = "" if unit is None else f"#{unit}"
    return BuyerField(
        name=f"answer.{question.code}{ending}",
        label=question.label,
        kind=question.kind,
        is_required=question.required,
        choices=question.choices,
        unit=unit,
        question=question,
    )


def all_fields(event: EventView, language: str, units: int) -> list[BuyerField]:
    """All fields for a buyer of this many units, in the order of the form."""
    fields = [*contact_fields(event, language), *booking_questions(event)]
    return fields + [field for unit in range(units) for field in unit_questions(event, unit + 1)]


def find_problems(asked: Sequence[BuyerField], typed: Mapping[str, str]) -> dict[str, FieldProblem]:
    """The fields that need a correction, by name."""
    found = {field.name: field.problem(typed.get(field.name, "")) for field in asked}
    return {name: problem for name, problem in found.items() if problem is not None}


def read_contact(event: EventView, language: str, typed: Mapping[str, str]) -> dict[str, Any]:
    return {field.name: field.parse(typed.get(field.name, "")) for field in contact_fields(event, language)}


def read_answers(event: EventView, typed: Mapping[str, str], units: int) -> dict[str, Any]:
    """The answers as the API takes them. Questions without an answer are left out."""
    answers: dict[str, Any] = {}
    for question in event.questions:
        asked = [None] if question.per == "booking" else range(1, units + 1)
        fields = [_question_field(question, unit) for unit in asked]
        values = [field.parse(typed.get(field.name, "")) for field in fields]
        if any(is_answered(value) for value in values):
            answers[question.code] = values[0] if question.per == "booking" else values
    return answers
