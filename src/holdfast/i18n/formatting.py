"""Formats money, times and long texts for readers of each supported language."""

from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from babel import Locale
from babel.dates import format_date, format_time, get_timezone_name
from babel.numbers import format_currency, format_decimal, get_currency_symbol

from holdfast.i18n.languages import language_of

# ISO 4217: the number of minor digits, where it is not two. Babel's digits follow everyday use instead, and would show
# 100.00 RSD as 10,000.
_MINOR_DIGITS: Final = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}

# A dash between two times, which stays on the same line as the first.
_UNTIL: Final = "\u00a0\u2013 "

# An address is free text of any length. Tickets, emails and pages show this much of it.
VENUE_ADDRESS_MAX: Final = 300

# Numbers outside these bounds have too many digits to write out.
_WRITTEN_OUT_MIN, _WRITTEN_OUT_MAX = 1e-6, 1e15
_SIX_DIGITS: Final = Context(prec=6)
# A number of four digits may be a year, so only larger ones have their thousands separated.
_GROUPED_MIN: Final = 10_000


def minor_digits(currency: str) -> int:
    return next((digits for digits, codes in _MINOR_DIGITS.items() if currency in codes.split()), 2)


def format_money(amount_minor: int, currency: str, language: str) -> str:
    digits, locale = minor_digits(currency), Locale(language_of(language))
    amount = Decimal(amount_minor).scaleb(-digits)
    return format_currency(amount, currency, _money_pattern(currency, digits, locale), locale, currency_digits=False)


def _money_pattern(currency: str, digits: int, locale: Locale) -> str:
    """The language's pattern with the currency's own digits, and a space between letters and the number."""
    pattern: str = locale.currency_formats["standard"].pattern.replace(".00", f".{'0' * digits}" if digits else "")
    return pattern.replace("¤#", "¤\u00a0#") if get_currency_symbol(currency, locale)[-1].isalpha() else pattern


def format_detail_number(value: float, language: str) -> str:
    """A number in the details of an event, with all of its digits. Only the merchant knows what it counts."""
    if value and not _WRITTEN_OUT_MIN <= abs(value) < _WRITTEN_OUT_MAX:
        return str(_SIX_DIGITS.create_decimal(value).normalize())
    locale = Locale(language_of(language))
    is_grouped = abs(value) >= _GROUPED_MIN
    return format_decimal(value, locale=locale, decimal_quantization=False, group_separator=is_grouped)


def format_moment(at: datetime, timezone: str, language: str) -> str:
    return format_period(at, None, timezone, language)


def format_period(starts_at: datetime, ends_at: datetime | None, timezone: str, language: str) -> str:
    """Start and end in the event's time zone, with the zone's name, because the reader may be in another zone."""
    local, locale = in_zone(starts_at, timezone), Locale(language_of(language))
    day, times = format_date(local, "full", locale), format_times(starts_at, ends_at, timezone, locale)
    text = f"{day}, {times} ({get_timezone_name(local, 'long', locale=locale)})"
    # Many mail clients use fonts without the narrow no-break space.
    return text.replace("\u202f", "\u00a0")


def format_times(starts_at: datetime, ends_at: datetime | None, timezone: str, locale: Locale) -> str:
    """The time of day, and the end if there is one. An end on another day names that day."""
    start = in_zone(starts_at, timezone)
    text = format_time(start, "short", locale=locale)
    if ends_at is None:
        return text
    end = in_zone(ends_at, timezone)
    day = "" if end.date() == start.date() else f"{format_date(end, 'full', locale)}, "
    return f"{text}{_UNTIL}{day}{format_time(end, 'short', locale=locale)}"


def in_zone(at: datetime, timezone: str) -> datetime:
    """Falls back to UTC if this machine does not know the zone."""
    try:
        return at.astimezone(ZoneInfo(timezone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return at.astimezone(UTC)


def shorten(text: str, length_max: int) -> str:
    """Cut a text that is too long, and mark the cut."""
    return text if len(text) <= length_max else text[: length_max - 1].rstrip() + "…"
