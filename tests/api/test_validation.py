"""Errors in a request are described by field, in plain English, without the decoder's terms."""

import re
from typing import Annotated, Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct, inspect

from holdfast.api.booking_schemas import HoldNew
from holdfast.api.operations import OPERATIONS
from holdfast.api.requests import BookingsQuery, CustomerTokenNew, OrgChange, PaymentNew, TransferNew
from holdfast.api.validation import NOT_VALID, TIME, invalid_body, invalid_query
from holdfast.core.event_schemas import EventChange, EventNew
from holdfast.core.refusals import Refusal, Refused, RefusedError
from holdfast.core.request_types import RequestModel

CODE: Final = "may contain only letters, digits and _ . : -, at most 64 of them, and must start with a letter or digit"
# Terms that only make sense to somebody who knows our decoder.
LEAKS: Final = re.compile(
    r"Expected `|\$\.|`\$|regex|\| null|null \||\b(int|str|bool|float|dict|datetime|array|NoneType|msgspec)\b|\^\["
)


def expect_refused(content: bytes, kind: type[Struct]) -> Refused:
    try:
        msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        return invalid_body(error, kind).refused
    except RefusedError as error:
        return error.refused
    raise AssertionError(f"{content!r} was accepted")


def event(**fields: Any) -> bytes:
    pool = {"code": "hall", "capacity": 5}
    defaults = {"title": "x", "starts_at": "2027-03-05T19:00:00Z", "currency": "EUR", "pools": [pool]}
    return msgspec.json.encode({**defaults, **fields})


def hold(**item: Any) -> bytes:
    return msgspec.json.encode({"user": "u-1", "items": [item]})


def with_details(details: Any) -> bytes:
    return msgspec.json.encode({"details": details})


def hold_with_details(details: Any) -> bytes:
    return msgspec.json.encode({"user": "u-1", "items": [{"seat": "A-1"}], "details": details})


def details_of_size(bytes_: int) -> dict[str, str]:
    """Details that take exactly this many bytes as JSON, of which some characters take two."""
    plain = bytes_ - len('{"a":""}') - 2 * 100
    return {"a": "\N{LATIN SMALL LETTER E WITH ACUTE}" * 100 + "x" * plain}


def nested_details(levels: int) -> dict[str, Any]:
    """Details of so many objects and lists within each other."""
    value: Any = []
    for level in range(levels - 2):
        value = [1, value] if level % 2 else {"a": 1, "b": value}
    return {"a": value}


LARGE: Final = "may take at most 16 KiB as JSON"
DEEP: Final = "may be nested at most 64 levels deep"
DETAILS_TOO_LARGE: Final = details_of_size(16 * 1024 + 1)
DETAILS_TOO_DEEP: Final = nested_details(65)

CASES: Final[dict[str, tuple[type[Struct], bytes, str, str]]] = {
    "missing field": (EventNew, b'{"title": "x"}', "starts_at", "is required"),
    "missing inner field": (EventNew, event(pools=[{}]), "pools[0].code", "is required"),
    "unknown field": (EventNew, event(colour="red"), "colour", "is not a known field"),
    "unknown inner field": (HoldNew, hold(seat="A-1", row="A"), "items[0].row", "is not a known field"),
    "wrong type": (HoldNew, hold(seat=1), "items[0].seat", "must be a string"),
    "number for a text": (EventNew, event(title=5), "title", "must be a string"),
    "text for an integer": (EventNew, event(tax_bps="19"), "tax_bps", "must be an integer"),
    "fraction for an integer": (EventNew, event(tax_bps=1.5), "tax_bps", "must be an integer"),
    "null for an integer": (EventNew, event(tax_bps=None), "tax_bps", "must be an integer"),
    "text for a boolean": (
        EventNew,
        event(policy={"avoid_orphans": "yes"}),
        "policy.avoid_orphans",
        "must be true or false",
    ),
    "text for a list": (EventNew, event(pools="hall"), "pools", "must be a list"),
    "text for an object": (EventNew, event(details="x"), "details", "must be an object"),
    "number for a list or an object": (
        EventNew,
        event(pools=[{"code": "a", "seats": 5}]),
        "pools[0].seats",
        "must be an object or a list",
    ),
    "text for a number": (
        EventNew,
        event(pools=[{"code": "a", "seats": [{"label": "A", "x": "left"}]}]),
        "pools[0].seats[0].x",
        "must be a number",
    ),
    "too small": (HoldNew, hold(pool="a", quantity=0), "items[0].quantity", "must be at least 1"),
    "too large": (HoldNew, hold(pool="a", quantity=1001), "items[0].quantity", "must be at most 1,000"),
    "too large a number": (
        EventNew,
        event(pools=[{"code": "a", "seats": [{"label": "A", "x": 1e300}]}]),
        "pools[0].seats[0].x",
        "must be at most 1,000,000,000",
    ),
    "beyond 64 bits": (EventNew, event(tax_bps=2**70), "tax_bps", "must be at most 10,000"),
    "beyond the floats": (
        EventNew,
        event()[:-1] + b', "details": {"a": 1e999}}',
        "details",
        "contains a number that is out of range",
    ),
    "large details of a new event": (EventNew, event(details=DETAILS_TOO_LARGE), "details", LARGE),
    "large details of a change": (EventChange, with_details(DETAILS_TOO_LARGE), "details", LARGE),
    "large details of a hold": (HoldNew, hold_with_details(DETAILS_TOO_LARGE), "details", LARGE),
    "deep details of a new event": (EventNew, event(details=DETAILS_TOO_DEEP), "details", DEEP),
    "deep details of a change": (EventChange, with_details(DETAILS_TOO_DEEP), "details", DEEP),
    "deep details of a hold": (HoldNew, hold_with_details(DETAILS_TOO_DEEP), "details", DEEP),
    "empty text": (EventNew, event(title=""), "title", "must not be empty"),
    "long text": (EventNew, event(title="t" * 201), "title", "must have at most 200 characters"),
    "empty list": (EventNew, event(pools=[]), "pools", "must not be empty"),
    "long list": (
        OrgChange,
        b'{"frame_origins": [%s]}' % b", ".join([b'"x"'] * 21),
        "frame_origins",
        "must have at most 20 items",
    ),
    "code": (EventNew, event(pools=[{"code": "a b", "capacity": 1}]), "pools[0].code", CODE),
    "currency": (
        EventNew,
        event(currency="eur"),
        "currency",
        "must be an ISO 4217 code of three capital letters, such as EUR",
    ),
    "email": (TransferNew, b'{"user": "u", "email": "x"}', "email", "must be an email address"),
    "language": (
        TransferNew,
        b'{"user": "u", "language": "?"}',
        "language",
        "must be a BCP 47 language tag, such as en or pt-BR",
    ),
    "return address": (
        PaymentNew,
        b'{"provider": "p", "return_url": "x"}',
        "return_url",
        "must be a URL that starts with https:// or http://",
    ),
    "name": (OrgChange, rb'{"name": "a\n"}', "name", "may not contain control characters or line breaks"),
    "colour": (OrgChange, b'{"colour": "red"}', "colour", "must be a colour such as #1f6feb"),
    "time without a zone": (EventNew, event(starts_at="2027-03-05T19:00:00"), "starts_at", TIME),
    "invalid time": (EventNew, event(starts_at="tomorrow"), "starts_at", TIME),
    "number for a time": (EventNew, event(starts_at=5), "starts_at", TIME),
    "choice": (EventNew, event(policy={"review": "x"}), "policy.review", "must be one of manual, none"),
    "choice of a new event": (
        EventNew,
        event(preset="opera"),
        "preset",
        "must be one of arena, experience, registration, shift, show",
    ),
    "truncated": (HoldNew, b'{"user": ', "body", "is not valid JSON: it ends too early"),
    "malformed": (HoldNew, b'{"user"; 1}', "body", "is not valid JSON: expected ':' at byte 7"),
    "two documents": (PaymentNew, b'{"provider": "p"}{}', "body", "is not valid JSON: trailing characters at byte 18"),
    "another type": (HoldNew, b"[]", "body", "must be an object"),
    "constraint on several fields": (HoldNew, hold(), "items", "has an item without a seat or a pool"),
}


@pytest.mark.parametrize(("kind", "content", "field", "message"), CASES.values(), ids=CASES)
def test_an_invalid_body_is_described_by_field(kind: type[Struct], content: bytes, field: str, message: str) -> None:
    refused = expect_refused(content, kind)
    assert refused.refusal is Refusal.INVALID_REQUEST
    assert [(error.field, error.message) for error in refused.errors] == [(field, message)]
    subject = "The body" if field == "body" else f"`{field}`"
    assert refused.detail == f"{subject} {message}."
    assert not LEAKS.search(refused.detail)


QUERIES: Final = {
    "text for a number": ({"limit": "x"}, "limit", "must be an integer"),
    "too many": ({"limit": "201"}, "limit", "must be at most 200"),
    "reference": ({"reference": "zz"}, "reference", "must be a booking reference of ten hexadecimal digits"),
    "unknown": ({"colour": "red"}, "colour", "is not a known query parameter"),
}


@pytest.mark.parametrize(("query", "field", "message"), QUERIES.values(), ids=QUERIES)
def test_an_invalid_query_is_described_by_parameter(query: dict[str, str], field: str, message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(query, BookingsQuery, strict=False)
    refused = invalid_query(caught.value, BookingsQuery).refused
    assert [(error.field, error.message) for error in refused.errors] == [(field, message)]


class UnusualModel(RequestModel, frozen=True):
    """Constraints that no operation has today."""

    multiple: Annotated[int, Meta(multiple_of=5)] = 0
    above: Annotated[float, Meta(gt=0.5)] = 1.0
    pattern: Annotated[str, Meta(pattern="^nobody describe this$")] = ""
    blob: bytes = b""
    pair: tuple[int, int] = (0, 0)
    named: Annotated[dict[str, int], Meta(max_length=1)] = msgspec.field(default_factory=dict)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"multiple": 3}', "`multiple` must be a multiple of 5."),
        (b'{"above": 0.25}', "`above` must be more than 0.5."),
        (b'{"pattern": "x"}', f"`pattern` {NOT_VALID}."),
        (b'{"blob": "?"}', f"`blob` {NOT_VALID}."),
        (b'{"pair": [1]}', f"`pair` {NOT_VALID}."),
        (b'{"named": {"a": 1, "b": 2}}', "`named` must have at most 1 field."),
        (b'{"named": {"a": "x"}}', "`named` must be an integer."),
    ],
)
def test_an_unforeseen_constraint_is_described_without_the_decoders_terms(content: bytes, message: str) -> None:
    assert expect_refused(content, UnusualModel).detail == message


def test_a_long_name_of_an_unknown_field_is_truncated() -> None:
    refused = expect_refused(msgspec.json.encode({"x" * 5000: 1, "provider": "p"}), PaymentNew)
    assert len(refused.detail) < 200


BODY_TYPES: Final = sorted(
    {kind for row in OPERATIONS if (kind := row.body_type or row.query_type) and kind is not bytes},
    key=lambda kind: kind.__name__,
)


def patterns(kind: Any) -> set[str]:
    found = {kind.pattern} if isinstance(kind, inspect.StrType) and kind.pattern else set()
    for name in ("fields", "types"):
        for inner in getattr(kind, name, ()):
            found |= patterns(getattr(inner, "type", inner))
    return found | (patterns(kind.item_type) if hasattr(kind, "item_type") else set())


def test_every_pattern_of_a_request_is_described() -> None:
    found = set().union(*(patterns(inspect.type_info(kind)) for kind in BODY_TYPES))
    assert found
    for pattern in found:
        error = msgspec.ValidationError(f"Expected `str` matching regex {pattern!r} - at `$.code`")
        assert NOT_VALID not in invalid_body(error, PaymentNew).refused.detail, pattern


# No letters that could spell one of the decoder's terms.
TEXTS: Final = st.text("xyz _-0123456789", min_size=1, max_size=12)
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def almost_valid(draw: st.DrawFn) -> tuple[type[Struct], bytes]:
    """A body whose fields have the right names, and anything as values."""
    kind: Any = draw(st.sampled_from([EventNew, EventChange, HoldNew, OrgChange, PaymentNew, CustomerTokenNew]))
    return kind, msgspec.json.encode(_document(draw, inspect.type_info(kind), depth=3))


def _document(draw: st.DrawFn, kind: Any, depth: int) -> Any:
    if isinstance(kind, inspect.UnionType):
        kind = draw(st.sampled_from(kind.types))
    if depth and isinstance(kind, inspect.StructType) and draw(st.integers(0, 5)):
        fields = draw(st.lists(st.sampled_from(kind.fields), unique_by=lambda field: field.encode_name))
        return {field.encode_name: _document(draw, field.type, depth - 1) for field in [*fields, *_required(kind)]}
    if depth and isinstance(kind, inspect.ListType) and draw(st.integers(0, 5)):
        return [_document(draw, kind.item_type, depth - 1)]
    return draw(VALUES)


def _required(kind: Any) -> list[Any]:
    return [field for field in kind.fields if field.required]


def describe(content: bytes, kind: type[Struct]) -> str:
    """The whole error text about the body, or an empty string if it is accepted."""
    try:
        msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        refused = invalid_body(error, kind).refused
        return " ".join([refused.detail, *(error.message for error in refused.errors)])
    except (RefusedError, UnicodeDecodeError) as error:
        return str(error)
    return ""


@given(almost_valid())
def test_no_description_contains_the_decoders_terms(case: tuple[type[Struct], bytes]) -> None:
    kind, content = case
    assert not LEAKS.search(describe(content, kind))


@given(st.binary(max_size=40))
def test_any_bytes_are_described_without_the_decoders_terms(content: bytes) -> None:
    assert not LEAKS.search(describe(content, HoldNew))


def test_details_of_16_kib_and_64_levels_are_accepted() -> None:
    for details in (details_of_size(16 * 1024), nested_details(64)):
        assert msgspec.json.decode(event(details=details), type=EventNew).details == details
        assert msgspec.json.decode(with_details(details), type=EventChange).details == details
        assert msgspec.json.decode(hold_with_details(details), type=HoldNew).details == details


def test_details_of_900_levels_are_refused_and_not_an_error() -> None:
    """Reading a value takes fewer levels of Python's stack than writing it."""
    for levels in range(900, 1000, 7):
        content = b'{"details":' + b'{"a":' * levels + b"1" + b"}" * (levels + 1)
        try:
            refused = expect_refused(content, EventChange)
        except RecursionError:
            continue
        assert refused.errors[0].message == DEEP
