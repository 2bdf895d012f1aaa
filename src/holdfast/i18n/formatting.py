"""Money and times as people read them, in each language that Holdfast speaks."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from babel import Locale
from babel.dates import format_date, format_time, get_timezone_name
from babel.numbers import format_currency, get_currency_symbol

LANGUAGES: Final = ("en", "es")
DEFAULT: Final = "en"

# ISO 4217: how many digits of an amount are minor units, where it is not two. Babel has digits too, but those are of
# everyday use: it would read 100.00 RSD as 10,000.
_MINOR_DIGITS: Final = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}


def language_of(text: str | None) -> str:
    """The language for a tag such as `es-CO`, or English for one that is not spoken here."""
    spoken = (text or "").replace("_", "-").partition("-")[0].strip().lower()
    return spoken if spoken in LANGUAGES else DEFAULT


def minor_digits(currency: str) -> int:
    return next((digits for digits, codes in _MINOR_DIGITS.items() if currency in codes.split()), 2)


def money(amount_minor: int, currency: str, language: str) -> str:
    digits, locale = minor_digits(currency), Locale(language_of(language))
    amount = Decimal(amount_minor).scaleb(-digits)
    return format_currency(amount, currency, _money_pattern(currency, digits, locale), locale, currency_digits=False)


def _money_pattern(currency: str, digits: int, locale: Locale) -> str:
    """How the language writes money, with the currency's own digits, and a space between a number and letters."""
    pattern: str = locale.currency_formats["standard"].pattern.replace(".00", f".{'0' * digits}" if digits else "")
    return pattern.replace("¤#", "¤\u00a0#") if get_currency_symbol(currency, locale)[-1].isalpha() else pattern


def moment(at: datetime, timezone: str, language: str) -> str:
    """The day and time in the zone of the event, which is named: the reader may be in another."""
    there, locale = in_zone(at, timezone), Locale(language_of(language))
    day, time = format_date(there, "full", locale), format_time(there, "short", locale=locale)
    text = f"{day}, {time} ({get_timezone_name(there, 'long', locale=locale)})"
    # A narrow space is missing in many of the fonts that mail is read in.
    return text.replace("\u202f", "\u00a0")


def in_zone(at: datetime, timezone: str) -> datetime:
    """A zone that this machine does not know is no reason to tell no time: in UTC it is right as well."""
    try:
        return at.astimezone(ZoneInfo(timezone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return at.astimezone(UTC)
