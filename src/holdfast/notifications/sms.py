"""Writes SMS. Carriers charge by segment, so a text never has more than a few of them."""

from datetime import datetime
from enum import StrEnum
from typing import Final

from babel import Locale
from babel.dates import format_date
from msgspec import Struct

from holdfast.i18n.formatting import format_times, in_zone, shorten
from holdfast.i18n.languages import language_of
from holdfast.i18n.texts import translate

SEGMENTS_MAX: Final = 3
NAME_MAX: Final = 40
_NAME_MIN: Final = 12

# GSM 03.38: characters that take one place in a segment, and those that take two.
_GSM: Final = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿"
    "abcdefghijklmnopqrstuvwxyzäöñüà"
)
_GSM_TWICE: Final = frozenset("^{}\\[~]|€\f")
# Characters that look nearly the same in GSM 03.38. A single one outside of it more than halves a segment.
_PLAIN: Final = str.maketrans(
    {
        "‘": "'", "’": "'", "ʻ": "'", "ʼ": "'", "“": '"', "”": '"', "«": '"', "»": '"', "–": "-", "—": "-", "…": "...",  # noqa: RUF001
        "\u00a0": " ", "\u202f": " ", "á": "a", "í": "i", "ó": "o", "ú": "u", "Á": "A", "Í": "I", "Ó": "O", "Ú": "U",
    }
)  # fmt: skip
_GSM_SEGMENT, _GSM_PART = 160, 153
_UCS2_SEGMENT, _UCS2_PART = 70, 67


class SmsKind(StrEnum):
    """What an SMS is about. Each kind has its text in the section `sms` of every language."""

    CONFIRMED = "confirmed"
    REMINDER = "reminder"


class Sms(Struct, frozen=True, kw_only=True):
    """The facts of an SMS. `link` leads to the tickets, if the buyer has a page with them."""

    kind: SmsKind
    language: str | None
    org_name: str
    event_title: str
    booking: str
    starts_at: datetime
    timezone: str
    link: str | None


def write_sms(sms: Sms) -> str:
    """The text, in at most `SEGMENTS_MAX` segments. Long names get shorter first; then the link goes."""
    for link in (sms.link, None):
        for name_max in range(NAME_MAX, _NAME_MIN - 1, -4):
            text = _compose(sms, link, name_max)
            if count_segments(text) <= SEGMENTS_MAX:
                return text
    raise AssertionError("the texts of a language are too long")


def count_segments(text: str) -> int:
    """How many segments carriers charge for. Outside of GSM 03.38, a character is one or two units of UTF-16."""
    if all(character in _GSM or character in _GSM_TWICE for character in text):
        units = sum(2 if character in _GSM_TWICE else 1 for character in text)
        return 1 if units <= _GSM_SEGMENT else -(-units // _GSM_PART)
    units = len(text.encode("utf-16-le")) // 2
    return 1 if units <= _UCS2_SEGMENT else -(-units // _UCS2_PART)


def _compose(sms: Sms, link: str | None, name_max: int) -> str:
    language = language_of(sms.language)
    text = translate(
        language,
        f"sms.{sms.kind}",
        org=_one_line(sms.org_name, name_max),
        event=_one_line(sms.event_title, name_max),
        booking=sms.booking,
        when=_format_start(sms.starts_at, sms.timezone, language),
    )
    if link is not None:
        text = f"{text} {translate(language, 'sms.tickets', link=link)}"
    plain = text.translate(_PLAIN)
    return plain if count_segments(plain) < count_segments(text) else text


def _one_line(name: str, length_max: int) -> str:
    visible = "".join(character if character.isprintable() else " " for character in name)
    return shorten(" ".join(visible.split()), length_max)


def _format_start(at: datetime, timezone: str, language: str) -> str:
    """Day and time where the event is. Such as "Mar 5, 2027, 8:00 PM"."""
    locale = Locale(language)
    return f"{format_date(in_zone(at, timezone), 'medium', locale)}, {format_times(at, None, timezone, locale)}"
