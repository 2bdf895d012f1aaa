"""Validation errors: translates msgspec's messages into sentences about the fields of a request."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from msgspec import Struct, inspect

from holdfast.api.requests import Colour, EmailAddress, Language, OrgName, PersonName, PhoneNumber, Reference, WebUrl
from holdfast.core.refusals import FieldError, Refusal, RefusedError
from holdfast.core.request_types import Code, Currency, invalid_field
from holdfast.core.shift import OrderText

NAME_MAX: Final = 100
TIME: Final = "must be an RFC 3339 time with a time zone, such as 2027-03-05T19:00:00Z"
NOT_VALID: Final = "is not valid"

_TYPES: Final = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "array": "a list",
    "object": "an object",
}

_PATTERNS: Final[dict[Any, str]] = {
    Code: "may contain only letters, digits and _ . : -, at most 64 of them, and must start with a letter or digit",
    Currency: "must be an ISO 4217 code of three capital letters, such as EUR",
    EmailAddress: "must be an email address",
    PhoneNumber: "must be a phone number with its country code, such as +34911234567",
    OrderText: "may contain only letters, digits, spaces and _ . / -, and must start with a letter or digit",
    Language: "must be a BCP 47 language tag, such as en or pt-BR",
    Reference: "must be a booking reference of ten hexadecimal digits",
    WebUrl: "must be a URL that starts with https:// or http://",
    PersonName: "may not contain control characters or line breaks",
    OrgName: "may not contain control characters or line breaks",
    Colour: "must be a colour such as #1f6feb",
}
# msgspec quotes the pattern in its message.
_BY_QUOTED_PATTERN: Final = {repr(kind.__metadata__[0].pattern): text for kind, text in _PATTERNS.items()}

_BOUNDS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_UNITS: Final = {"str": "character", "array": "item", "object": "field", "bytes": "byte"}

_LOCATED: Final = re.compile(r"(?P<message>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL)
_MALFORMED: Final = re.compile(r"JSON is malformed: (?P<what>.*) \(byte (?P<byte>\d+)\)", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_STEP: Final = re.compile(r"(\w+)|\[\d+\]")


def invalid_body(error: Exception, body_type: type[Struct]) -> RefusedError:
    return _invalid_request(str(error), body_type, "field")


def invalid_query(error: Exception, query_type: type[Struct]) -> RefusedError:
    return _invalid_request(str(error), query_type, "query parameter")


def _invalid_request(text: str, kind: type[Struct], noun: str) -> RefusedError:
    located = _LOCATED.fullmatch(text)
    assert located is not None
    # msgspec writes `details[...]` for a value somewhere in a dictionary.
    message, path = located["message"], (located["path"] or "").replace("[...]", "")
    if missing := _MISSING.fullmatch(message):
        return invalid_field(_join(path, missing["name"]), "is required")
    if unknown := _UNKNOWN.fullmatch(message):
        return invalid_field(_join(path, unknown["name"]), f"is not a known {noun}")
    if path:
        return invalid_field(path, _predicate(message, kind, path))
    return _invalid_body(_describe_body(message))


def _join(path: str, name: str) -> str:
    cut = name if len(name) <= NAME_MAX else name[:NAME_MAX] + "…"
    return f"{path}.{cut}" if path else cut


def _invalid_body(message: str) -> RefusedError:
    return RefusedError(Refusal.INVALID_REQUEST, f"The body {message}.", errors=(FieldError("body", message),))


def _describe_body(message: str) -> str:
    """Describe a body in which no single field is wrong."""
    if malformed := _MALFORMED.fullmatch(message):
        return f"is not valid JSON: {malformed['what']} at byte {malformed['byte']}"
    if message == "Input data was truncated":
        return "is not valid JSON: it ends too early"
    return _predicate(message, None, "")


def _predicate(message: str, kind: type[Struct] | None, path: str) -> str:
    if message.startswith("Invalid enum value") and kind is not None:
        return f"must be one of {', '.join(_choices(kind, path))}"
    for pattern, describe in _RULES:
        if found := re.fullmatch(pattern, message, re.DOTALL):
            return describe(found)
    return NOT_VALID


def _describe_type(found: re.Match[str]) -> str:
    """Leave null out: a field that accepts null is optional, and that is the better advice."""
    names = [name for name in found[1].split(" | ") if name != "null"]
    if "datetime" in names:
        return TIME
    return f"must be {' or '.join(_TYPES[name] for name in names)}" if {*names} <= _TYPES.keys() else NOT_VALID


def _describe_length(found: re.Match[str]) -> str:
    unit, bound, count = _UNITS[found[1]], found[2], int(found[3])
    if bound == ">=" and count == 1:
        return "must not be empty"
    return f"must have {_BOUNDS[bound]} {count:,} {unit}{'s' if count != 1 else ''}"


_RULES: Final[tuple[tuple[str, Callable[[re.Match[str]], str]], ...]] = (
    (r"Expected `(?:int|float)` (>=|<=|>|<) (.+)", lambda found: f"must be {_BOUNDS[found[1]]} {_number(found[2])}"),
    (r"Expected `(?:int|float)` that's a multiple of (.+)", lambda found: f"must be a multiple of {found[1]}"),
    (r"Expected `(str|array|object|bytes)` of length (>=|<=) (\d+)", _describe_length),
    (r"Expected `str` matching regex (.+)", lambda found: _BY_QUOTED_PATTERN.get(found[1], NOT_VALID)),
    (r"Expected `(?:datetime|date|time)` with .*", lambda _: TIME),
    (r"Invalid RFC3339 encoded .*", lambda _: TIME),
    (r"Expected `([^`]+)`(?:, got `[^`]+`)?", _describe_type),
    (r"(?:Integer value|Number|Timestamp) (?:is )?out of range", lambda _: "contains a number that is out of range"),
    (r"Invalid value .*", lambda _: "is not a known value"),
)


def _number(text: str) -> str:
    number = float(text)
    return f"{number:,.0f}" if number.is_integer() else text


def _choices(kind: type[Struct], path: str) -> list[str]:
    """The values of a field that accepts a fixed choice."""
    found = list(_members(_type_info(kind)))
    for step in _STEP.finditer(path):
        found = [member for each in found for member in _members(_step_into(each, step[1]))]
    return [str(value) for each in found if isinstance(each, inspect.LiteralType) for value in each.values]


@cache
def _type_info(kind: type[Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _members(kind: inspect.Type | None) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        yield from kind.types
    elif kind is not None:
        yield kind


def _step_into(kind: inspect.Type, name: str | None) -> inspect.Type | None:
    """The type of a struct's field, or without a name that of a list's items."""
    if isinstance(kind, inspect.StructType) and name is not None:
        return next((field.type for field in kind.fields if field.encode_name == name), None)
    return kind.item_type if isinstance(kind, inspect.ListType) and name is None else None
