"""What an event asks its buyers: contact details, and the organiser's questions."""

import re
from typing import Any, Final, Literal

from msgspec import Struct, json

from holdfast.core.booking import BuyerInput
from holdfast.core.refusals import FieldError, Refusal, RefusedError

Asked = Literal["required", "optional", "none"]
# Control characters except line breaks and tabs, and those that change the direction of the text around them.
UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
ANSWER_LENGTH_MAX: Final = 1_000
ANSWERS_BYTES_MAX: Final = 16 * 1024


class ContactRules(Struct, frozen=True, kw_only=True):
    """Which contact details pages ask for. Callers of the API can always send all of them."""

    name: Asked = "none"
    email: Asked = "optional"
    phone: Asked = "none"

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(field for field in self.__struct_fields__ if getattr(self, field) == "required")


class Question(Struct, frozen=True, kw_only=True):
    """A question that buyers answer once per booking, or for each of its units."""

    code: str
    label: str
    kind: Literal["text", "choice", "yes_no"] = "text"
    per: Literal["booking", "unit"] = "booking"
    required: bool = False
    choices: tuple[str, ...] = ()

    def problem(self, value: Any) -> str | None:
        """What is wrong with an answer, or None."""
        if self.kind == "yes_no":
            return None if isinstance(value, bool) else "must be true or false"
        if self.kind == "choice":
            return None if value in self.choices else f"must be one of: {', '.join(self.choices)}"
        if not isinstance(value, str):
            return "must be text"
        if UNPRINTABLE.search(value):
            return "may not contain control characters"
        return None if len(value) <= ANSWER_LENGTH_MAX else f"can have at most {ANSWER_LENGTH_MAX} characters"


def is_answered(value: Any) -> bool:
    """Whether a person can see the value: not if it is empty, or made of spaces and invisible characters."""
    if isinstance(value, str):
        return any(character.isprintable() and not character.isspace() for character in value)
    return value is not None


def check_contact(required: tuple[str, ...], buyer: BuyerInput) -> None:
    missing = [field for field in required if not is_answered(getattr(buyer, field))]
    if missing:
        errors = tuple(FieldError(f"contact.{field}", "is required") for field in missing)
        raise RefusedError(
            Refusal.CONTACT_REQUIRED, f"The event requires the buyer's {', '.join(missing)}.", errors=errors
        )


def check_answers(questions: tuple[Question, ...], answers: str | None, units: int) -> None:
    """Check the answers to an event's questions. `answers` is a JSON object by code. A question per unit takes a list
    with one value for each unit."""
    given: dict[str, Any] = json.decode(answers) if answers is not None else {}
    by_code = {question.code: question for question in questions}
    unknown = [code for code in given if code not in by_code]
    if unknown:
        raise _invalid(unknown[0], "is not one of the event's questions")
    missing = []
    for question in questions:
        values = _values(question, given.get(question.code), units)
        for value in values:
            if is_answered(value) and (problem := question.problem(value)):
                raise _invalid(question.code, problem)
        if question.required and not all(is_answered(value) for value in values):
            missing.append(question.code)
    if missing:
        errors = tuple(FieldError(f"answers.{code}", "is required") for code in missing)
        raise RefusedError(
            Refusal.ANSWER_REQUIRED, f"These questions need an answer: {', '.join(missing)}.", errors=errors
        )


def sort_answers(questions: tuple[Question, ...], answers: str, order: list[int]) -> str:
    """Reorder the answers per unit."""
    given: dict[str, Any] = json.decode(answers)
    for question in questions:
        values = given.get(question.code)
        if question.per == "unit" and values is not None:
            given[question.code] = [values[at] for at in order]
    return json.encode(given).decode()


def _values(question: Question, answer: Any, units: int) -> list[Any]:
    if question.per == "booking":
        return [answer]
    if answer is None:
        # One missing answer stands for all of them.
        return [None]
    if not isinstance(answer, list) or len(answer) != units:
        raise _invalid(question.code, f"must be a list with one answer for each of the {units} units")
    return answer


def _invalid(code: str, message: str) -> RefusedError:
    field = f"answers.{code}"
    return RefusedError(Refusal.INVALID_REQUEST, f"`{field}` {message}.", errors=(FieldError(field, message),))
