"""What workers read about a shift, in their language."""

from collections.abc import Sequence
from datetime import date
from typing import Final

from babel import Locale
from babel.dates import format_date
from msgspec import Struct

from holdfast.core.shift import Shift
from holdfast.i18n.formatting import format_money
from holdfast.i18n.languages import language_of
from holdfast.i18n.texts import section

# In this order. Somebody who has the shift needs neither the fee nor the organiser's order number.
SHOWN: Final = ("date", "work_time", "address", "buses", "food", "salary", "additional_info")
# What somebody wants to know before they take the shift.
OFFERED: Final = (
    "date",
    "work_time",
    "salary",
    "service_fee",
    "food",
    "address",
    "buses",
    "order_number",
    "additional_info",
)
AMOUNTS: Final = ("salary", "service_fee")


class ShiftFact(Struct, frozen=True):
    """`name` is the field of the shift, and `value` may have several lines."""

    name: str
    label: str
    value: str


def shift_facts(shift: Shift | None, currency: str, language: str, names: Sequence[str] = SHOWN) -> list[ShiftFact]:
    """The fields that the organiser has filled in."""
    if shift is None:
        return []
    labels = section(language_of(language), "shift")
    values = {name: getattr(shift, name) for name in names}
    return [
        ShiftFact(name, labels[name], _text(name, value, currency, language))
        for name, value in values.items()
        if value is not None
    ]


def _text(name: str, value: str | int | date, currency: str, language: str) -> str:
    """A salary is text, or an amount in this currency."""
    if name in AMOUNTS and isinstance(value, int):
        return format_money(value, currency, language)
    if isinstance(value, date):
        day: str = format_date(value, "full", Locale(language_of(language)))
        return day[:1].upper() + day[1:]
    return str(value)
