"""Recurrence rules (RFC 5545): from a rule such as `FREQ=WEEKLY;BYDAY=MO,FR;COUNT=10` to the starts of events."""

import re
from calendar import isleap
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

from holdfast.core.refusals import RefusedError
from holdfast.core.request_types import invalid_field

FIELD: Final = "rule"
STARTS_MAX: Final = 1_000
# How many years after the first start the last one may be.
HORIZON_YEARS: Final = 10

FREQUENCIES: Final = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
# How often a weekday can occur: BYDAY=2MO is the second Monday of a month or a year.
WEEKDAY_NUMBERS_MAX: Final = {"MONTHLY": 5, "YEARLY": 53}
_NUMBERS: Final = r"[+-]?\d{1,3}(,[+-]?\d{1,3})*"
_WEEKDAY: Final = r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)"
_PARTS: Final = {
    "FREQ": "|".join(FREQUENCIES),
    "INTERVAL": r"[1-9]\d{0,3}",
    "COUNT": r"[1-9]\d{0,8}",
    "UNTIL": r"\d{8}(T\d{6}Z?)?",
    "WKST": "MO|TU|WE|TH|FR|SA|SU",
    "BYDAY": f"{_WEEKDAY}(,{_WEEKDAY})*",
    "BYMONTH": r"\d{1,2}(,\d{1,2})*",
    "BYMONTHDAY": _NUMBERS,
    "BYYEARDAY": _NUMBERS,
    "BYWEEKNO": _NUMBERS,
    "BYSETPOS": _NUMBERS,
    "BYHOUR": r"\d{1,2}(,\d{1,2})*",
    "BYMINUTE": r"\d{1,2}(,\d{1,2})*",
}
# The bounds that RFC 5545 sets for each part. A negative number counts from the end.
_BOUNDS: Final = {
    "BYMONTH": (1, 12),
    "BYMONTHDAY": (1, 31),
    "BYYEARDAY": (1, 366),
    "BYWEEKNO": (1, 53),
    "BYSETPOS": (1, 366),
    "BYHOUR": (0, 23),
    "BYMINUTE": (0, 59),
}


def expand_rule(rule: str, first: datetime, timezone: str) -> list[datetime]:
    """The starts that the rule makes, in UTC. `first` is where it begins to count (DTSTART). It is itself a start only
    if it matches the rule. The rule counts in local time: 08:00 stays 08:00 when the clocks change.

    A hostile rule takes a tenth of a second. Call this in a thread."""
    parts = _parse(rule)
    zone = ZoneInfo(timezone)
    begin = first.astimezone(zone).replace(tzinfo=None)
    count = int(parts.pop("COUNT", 0))
    until = _parse_until(parts.pop("UNTIL"), zone) if "UNTIL" in parts else None
    if bool(count) == (until is not None):
        raise invalid_field(FIELD, "needs either COUNT or UNTIL, so that it ends")
    if count > STARTS_MAX:
        raise _too_many()
    end = begin.replace(year=begin.year + HORIZON_YEARS, day=min(begin.day, 28))
    starts: list[datetime] = []
    for local in _occurrences(parts, begin, end):
        if until is not None and local > until:
            break
        if local == begin:
            # In the hour that the clocks repeat, only the template says which of the two is meant.
            starts.append(first.astimezone(UTC))
        elif _exists(local, zone):
            starts.append(local.replace(tzinfo=zone).astimezone(UTC))
        if count and len(starts) == count:
            break
        if len(starts) > STARTS_MAX:
            raise _too_many()
    else:
        # The rule has no more starts before the horizon.
        if starts and (count or (until is not None and until > end)):
            raise invalid_field(FIELD, f"must end within {HORIZON_YEARS} years")
    if not starts:
        raise invalid_field(FIELD, f"matches no time within {HORIZON_YEARS} years")
    return starts


def _too_many() -> RefusedError:
    return invalid_field(FIELD, f"makes more than {STARTS_MAX:,} events")


def _parse(rule: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in rule.removeprefix("RRULE:").split(";"):
        name, _, value = part.partition("=")
        if name not in _PARTS:
            raise invalid_field(FIELD, f"has the unknown part `{name[:20]}`; the known parts are {', '.join(_PARTS)}")
        if name in parts:
            raise invalid_field(FIELD, f"has {name} twice")
        if not re.fullmatch(_PARTS[name], value, re.ASCII) or not _is_within_bounds(name, value):
            raise invalid_field(FIELD, f"has a {name} that RFC 5545 or Holdfast does not allow")
        parts[name] = value
    if "FREQ" not in parts:
        raise invalid_field(FIELD, f"needs FREQ, which is one of {', '.join(FREQUENCIES)}")
    most = WEEKDAY_NUMBERS_MAX.get(parts["FREQ"], 0)
    if any(abs(int(number)) not in range(1, most + 1) for number in re.findall(r"[+-]?\d+", parts.get("BYDAY", ""))):
        raise invalid_field(FIELD, "has a BYDAY with a number that RFC 5545 does not allow with this FREQ")
    return parts


def _is_within_bounds(name: str, value: str) -> bool:
    if name not in _BOUNDS:
        return True
    lowest, highest = _BOUNDS[name]
    return all(lowest <= abs(int(number)) <= highest for number in value.split(","))


def _parse_until(text: str, zone: ZoneInfo) -> datetime:
    """The last local time that counts. A day without a time counts to its end."""
    try:
        day = date(int(text[:4]), int(text[4:6]), int(text[6:8]))
        if len(text) == len("20270305"):
            return datetime.combine(day, time.max)
        at = datetime.combine(day, time(int(text[9:11]), int(text[11:13]), int(text[13:15])))
        return at.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None) if text.endswith("Z") else at
    except (ValueError, OverflowError):
        raise invalid_field(FIELD, "has an UNTIL that is not a date") from None


def _exists(local: datetime, zone: ZoneInfo) -> bool:
    """Whether local clocks ever show this time. RFC 5545 leaves out times that they skip."""
    return local.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local


def _occurrences(parts: dict[str, str], begin: datetime, end: datetime) -> Iterator[datetime]:
    """The local times that match the rule, up to `end`.

    A rule that matches nothing, such as every 30 February, keeps dateutil searching until the year 9999. So it searches
    years shortly before 9999 that have the same calendar."""
    text = ";".join(f"{name}={value}" for name, value in parts.items())
    late_year = _latest_year_like(begin.year)
    late_end = end.replace(year=late_year + end.year - begin.year)
    try:
        rule = rrulestr(text, dtstart=begin.replace(year=late_year))
    except ValueError:
        raise invalid_field(FIELD, "is not a recurrence rule of RFC 5545") from None
    for late in rule:
        if late > late_end:
            return
        yield late.replace(year=late.year - late_year + begin.year)


@cache
def _latest_year_like(year: int) -> int:
    """The latest year from which the calendar runs as it does from this one, up to the horizon. The calendar repeats
    every 400 years, and every 28 years while no century interferes."""
    # The weeks of a year also depend on the year before.
    span = range(-1, HORIZON_YEARS + 1)
    for late in range(date.max.year - HORIZON_YEARS, year, -1):
        if date(late, 1, 1).weekday() == date(year, 1, 1).weekday() and all(
            isleap(late + n) == isleap(year + n) for n in span
        ):
            return late
    return year


def move_by_wall_clock(at: datetime, distance: timedelta, zone: ZoneInfo) -> datetime:
    """Move a time by `distance` on the clocks of the zone."""
    local = at.astimezone(zone).replace(tzinfo=None) + distance
    return local.replace(tzinfo=zone).astimezone(UTC)


def wall_clock_distance(start: datetime, end: datetime, zone: ZoneInfo) -> timedelta:
    return end.astimezone(zone).replace(tzinfo=None) - start.astimezone(zone).replace(tzinfo=None)
