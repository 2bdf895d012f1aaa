"""The base class of request bodies, the types of their fields, and the refusal of a field."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct, json

from holdfast.core.refusals import FieldError, Refusal, RefusedError

DAY_SECONDS = 86_400
# In UTF-8.
LABEL_BYTES_MAX = 64
DETAILS_BYTES_MAX = 16 * 1024
DETAILS_LEVELS_MAX = 64

Code = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$(?!\n)", description="Letters, digits and _ . : - only."),
]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Label = Annotated[str, Meta(min_length=1, max_length=LABEL_BYTES_MAX)]
Quantity = Annotated[int, Meta(ge=1, le=1000)]
UnpaidUnits = Annotated[int, Meta(ge=1, le=1_000_000)]
Price = Annotated[int, Meta(ge=0, le=100_000_000_000, description="In minor units of the event's currency.")]
Capacity = Annotated[int, Meta(ge=0, le=10_000_000)]
TaxBps = Annotated[int, Meta(ge=0, le=10_000, description="Tax on top of prices, in hundredths of a percent.")]
Currency = Annotated[str, Meta(pattern=r"^[A-Z]{3}$(?!\n)", description="ISO 4217.")]
Time = Annotated[datetime, Meta(tz=True, description="RFC 3339, with a time zone.")]
TimeZone = Annotated[str, Meta(min_length=1, max_length=64, description="An IANA name. Pages show times in this zone.")]
Details = Annotated[dict[str, Any], Meta(description="Free-form: at most 16 KiB as JSON, and at most 64 levels deep.")]
Seconds = Annotated[int, Meta(ge=0, le=366 * DAY_SECONDS)]
PositiveSeconds = Annotated[int, Meta(ge=1, le=366 * DAY_SECONDS)]
Coordinate = Annotated[float, Meta(ge=-1e9, le=1e9)]
SeatNumber = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]


class RequestModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of request bodies and queries."""


def details_too_large() -> RefusedError:
    return invalid_field("details", f"may take at most {DETAILS_BYTES_MAX // 1024} KiB as JSON")


def check_details(details: Details) -> None:
    """Refuse details that are too large or too deep. Check the size first, because it bounds the search for depth."""
    too_deep = invalid_field("details", f"may be nested at most {DETAILS_LEVELS_MAX} levels deep")
    try:
        size = len(json.encode(details))
    except RecursionError:
        raise too_deep from None
    if size > DETAILS_BYTES_MAX:
        raise details_too_large()
    level: list[Any] = [details]
    for _ in range(DETAILS_LEVELS_MAX):
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise too_deep


def invalid_field(field: str, message: str) -> RefusedError:
    """`message` completes a sentence about the field: "must be at least 1"."""
    return RefusedError(Refusal.INVALID_REQUEST, f"`{field}` {message}.", errors=(FieldError(field, message),))


def _children(value: Any) -> Iterable[Any]:
    """The objects and lists directly inside the value."""
    members = value.values() if isinstance(value, dict) else value
    return (member for member in members if isinstance(member, dict | list))


def check_unique(field: str, what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise invalid_field(field, f"has the {what} {value} twice")
        seen.add(value)
