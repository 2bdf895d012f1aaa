"""What workers read about a shift, in their language."""

from typing import Final

from babel import Locale
from babel.dates import format_date
from msgspec import Struct

from holdfast.core.shift import Shift
from holdfast.i18n.formatting import format_money
from holdfast.i18n.languages import language_of
from holdfast.i18n.texts import section

# In this order. The organiser's order number and the fee are not for the worker.
SHOWN: Final = ("date", "work_time", "address", "buses", "food", "salary", "additional_info")


class ShiftFact(Struct, frozen=True):
    """`name` is the field of the shift, and `value` may have several lines."""

    name: str
    label: str
    value: str


def shift_facts(shift: Shift | None, currency: str, language: str) -> list[ShiftFact]:
    """Everything that the organiser has filled in. A salary in numbers is an amount of this currency."""
    if shift is None:
        return []
    texts: dict[str, str | None] = {name: getattr(shift, name) for name in SHOWN}
    if shift.date is not None:
        day = format_date(shift.date, "full", Locale(language_of(language)))
        texts["date"] = day[:1].upper() + day[1:]
    if isinstance(shift.salary, int):
        texts["salary"] = format_money(shift.salary, currency, language)
    labels = section(language_of(language), "shift")
    return [ShiftFact(name, labels[name], value) for name, value in texts.items() if value is not None]
