"""The days and slots of an event whose pools have their own times."""

from calendar import Calendar
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Final

from babel import Locale
from msgspec import Struct

from holdfast.web.pool_offers import PoolOffer

# An event with fewer slots shows each of them with its tariffs.
SLOTS_MIN: Final = 3
# With more days than this, the calendar shows a month at a time.
CHIPS_MAX: Final = 10


class SlotDay(Struct, frozen=True):
    date: date
    slots: tuple[PoolOffer, ...]

    @property
    def is_available(self) -> bool:
        return any(slot.is_available for slot in self.slots)


class SlotCalendar(Struct, frozen=True):
    """All days with slots, the day that the page shows, and the slot that the buyer chose on it."""

    days: Mapping[date, SlotDay]
    day: SlotDay
    slot: PoolOffer | None
    week_start: int

    @property
    def shows_months(self) -> bool:
        return len(self.days) > CHIPS_MAX

    @property
    def weeks(self) -> list[list[SlotDay]]:
        """The month of the shown day, with the days before and after it that fill its weeks."""
        shown = self.day.date
        weeks = Calendar(self.week_start).monthdatescalendar(shown.year, shown.month)
        return [[self.days.get(day, SlotDay(day, ())) for day in week] for week in weeks]

    @property
    def previous_month(self) -> SlotDay | None:
        month = _month(self.day.date)
        earlier = [day for day in self.days.values() if _month(day.date) < month]
        return _first_choice(day for day in earlier if _month(day.date) == _month(earlier[-1].date))

    @property
    def next_month(self) -> SlotDay | None:
        month = _month(self.day.date)
        later = [day for day in self.days.values() if _month(day.date) > month]
        return _first_choice(day for day in later if _month(day.date) == _month(later[0].date))


def slot_calendar(
    offers: Sequence[PoolOffer], language: str, *, day: str | None, slot: str | None
) -> SlotCalendar | None:
    """The calendar of an event with enough slots. `day` and `slot` are what the buyer asked for."""
    slots = sorted((offer for offer in offers if offer.is_slot), key=_start)
    if len(slots) < SLOTS_MIN:
        return None
    by_day: dict[date, list[PoolOffer]] = {}
    for each in slots:
        assert each.day is not None
        by_day.setdefault(each.day, []).append(each)
    days = {at: SlotDay(at, tuple(found)) for at, found in by_day.items()}
    chosen = next((each for each in slots if each.pool.code == slot and each.is_available), None)
    wanted = chosen.day.isoformat() if chosen is not None and chosen.day is not None else day
    shown = next((each for each in days.values() if each.date.isoformat() == wanted), None)
    shown = shown or _first_choice(days.values())
    assert shown is not None
    return SlotCalendar(days, shown, chosen, Locale(language).first_week_day)


def _start(offer: PoolOffer) -> tuple[float, int]:
    assert offer.pool.starts_at is not None
    return offer.pool.starts_at.timestamp(), offer.number


def _first_choice(days: Iterable[SlotDay]) -> SlotDay | None:
    """The first day with a free slot, or else the first day."""
    found = list(days)
    return next((day for day in found if day.is_available), found[0] if found else None)


def _month(day: date) -> tuple[int, int]:
    return day.year, day.month


def calendar_names(language: str) -> dict[str, list[str]]:
    """Months, and weekdays from Monday on, for browsers that do not know their names in this language."""
    locale = Locale(language)
    months, days = locale.months["stand-alone"], locale.days["stand-alone"]
    return {
        "months": [months["wide"][number].capitalize() for number in range(1, 13)],
        "shortMonths": [months["abbreviated"][number] for number in range(1, 13)],
        "weekdays": [days["wide"][number] for number in range(7)],
        "shortWeekdays": [days["abbreviated"][number] for number in range(7)],
        "letters": [days["narrow"][number] for number in range(7)],
    }
