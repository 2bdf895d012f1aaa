"""Renders templates with the texts and formats of the reader's language."""

from datetime import date, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from babel import Locale
from babel.dates import format_date, format_time
from babel.numbers import format_decimal
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from msgspec import json

from holdfast.api.branding import logo_path
from holdfast.core.states import Status
from holdfast.core.time_slot import TimeSlot
from holdfast.i18n.formatting import format_detail_number, format_moment, format_money, format_period, in_zone
from holdfast.i18n.languages import LANGUAGES
from holdfast.i18n.reason_texts import reason_text
from holdfast.i18n.texts import translate
from holdfast.web.assets import ASSETS
from holdfast.web.booking_summary import is_received, last_payment, seat_labels, unit_count

if TYPE_CHECKING:
    from holdfast.web.page_request import PageRequest

# Each language in its own words, such as "Español".
# Babel writes a letter of Uzbek with a quotation mark.
LANGUAGE_NAMES: Final = {
    code: str(Locale(code).display_name).capitalize().replace("\u2018", "\u02bb") for code in LANGUAGES
}

PATTERNS: Final = 6
FORMATTED_MAX: Final = 10_000
TONES: Final = {
    Status.HELD: "is-warn",
    Status.PAYMENT_SUBMITTED: "is-info",
    Status.CONFIRMED: "is-good",
    Status.REJECTED: "is-bad",
    Status.EXPIRED: "is-off",
    Status.CANCELLED: "is-off",
    Status.REFUNDED: "is-off",
    Status.COMPLETED: "is-off",
}

templates: Final = Environment(
    loader=PackageLoader("holdfast.web"),
    autoescape=True,
    undefined=StrictUndefined,
    auto_reload=False,
    trim_blocks=True,
    lstrip_blocks=True,
)


def compile_templates() -> None:
    """Compile every template. Otherwise its first use does that, which takes up to 30 ms."""
    for name in templates.list_templates():
        templates.get_template(name)


# Babel takes most of the time of a page that lists events, and the same prices and dates occur again and again.
page_money: Final = lru_cache(FORMATTED_MAX)(format_money)
_moment: Final = lru_cache(FORMATTED_MAX)(format_moment)
_detail_number: Final = lru_cache(FORMATTED_MAX)(format_detail_number)


@lru_cache(FORMATTED_MAX)
def _period(slot: TimeSlot, timezone: str, language: str) -> str:
    return format_period(slot.starts_at, slot.shown_end, timezone, language)


@lru_cache(FORMATTED_MAX)
def _day(at: datetime, timezone: str, pattern: str, language: str) -> str:
    return format_date(in_zone(at, timezone), pattern, language)


@lru_cache(FORMATTED_MAX)
def _clock(at: datetime, timezone: str, language: str) -> str:
    return format_time(in_zone(at, timezone), "short", locale=language)


def _deadline(at: datetime, now: datetime, timezone: str, language: str) -> str:
    """The time to the second, with the day if that is not today."""
    if in_zone(at, timezone).date() != in_zone(now, timezone).date():
        return _moment(at, timezone, language)
    return format_time(in_zone(at, timezone), "medium", locale=language).replace("\u202f", "\u00a0")


@lru_cache(FORMATTED_MAX)
def long_day(day: date, language: str) -> str:
    """A civil day, such as "Friday, March 5, 2027"."""
    return format_date(day, "full", language)


@lru_cache(FORMATTED_MAX)
def _civil(day: date, pattern: str, language: str) -> str:
    return format_date(day, pattern, language)


@lru_cache(FORMATTED_MAX)
def short_moment(at: datetime, timezone: str, language: str) -> str:
    """Day and time, where there is little room."""
    return f"{_day(at, timezone, 'd MMM', language)}, {_clock(at, timezone, language)}"


def slot_time(starts_at: datetime, ends_at: datetime | None, timezone: str, language: str) -> str:
    """The time of day of a slot: when it starts and, if that is known, when it ends."""
    times = [_clock(at, timezone, language) for at in (starts_at, ends_at) if at is not None]
    return " \u2013 ".join(times)


@lru_cache(FORMATTED_MAX)
def _number(value: float, language: str) -> str:
    return format_decimal(value, locale=language)


def render(template: str, page: "PageRequest", /, **context: object) -> str:
    language = page.language
    return templates.get_template(template).render(
        t=lambda key, **values: translate(language, f"page.{key}", **values),
        reason=lambda reason: reason_text(language, reason),
        money=lambda amount, currency: page_money(amount, currency, language),
        moment=lambda at, zone: _moment(at, zone, language),
        deadline=lambda at, now, zone: _deadline(at, now, zone, language),
        period=lambda slot, zone: _period(slot, zone, language),
        day=lambda at, zone, pattern: _day(at, zone, pattern, language),
        clock=lambda at, zone: _clock(at, zone, language),
        civil=lambda day, pattern: _civil(day, pattern, language),
        long_day=lambda day: long_day(day, language),
        short_moment=lambda at, zone: short_moment(at, zone, language),
        slot_time=lambda pool, zone: slot_time(pool.starts_at, pool.ends_at, zone, language),
        number=lambda count: _number(count, language),
        detail_number=lambda value: _detail_number(value, language),
        asset=ASSETS.url,
        icon=_icon,
        logo_path=logo_path,
        pattern=_pattern,
        tone=TONES.__getitem__,
        sandbox_text=lambda key, **values: translate(language, f"sandbox.{key}", **values),
        description=lambda key, **values: translate(language, f"description.{key}", **values),
        to_json=_to_json,
        is_received=is_received,
        last_payment=last_payment,
        seat_labels=seat_labels,
        unit_count=unit_count,
        language=language,
        languages=[(code, LANGUAGE_NAMES[code], _url_in(page, code)) for code in LANGUAGES],
        org=page.org,
        form_token=page.form_token,
        is_embedded=page.is_embedded,
        is_demo=page.site.settings.demo,
        sends_email=page.site.settings.smtp_url is not None,
        **context,
    )


def _icon(name: str) -> Markup:
    address = f"{ASSETS.url('icons.svg')}#{name}"
    return Markup('<svg class="icon" aria-hidden="true"><use href="{}"></use></svg>').format(address)


def _pattern(event_id: str) -> int:
    """The background pattern of an event, chosen by its id so that it never changes."""
    return int(event_id[-4:], 16) % PATTERNS + 1


def _to_json(value: object) -> Markup:
    """JSON for the page's script. No text in it can end the element that contains it."""
    return Markup(json.encode(value).decode().replace("<", "\\u003c"))  # noqa: S704


def _url_in(page: "PageRequest", language: str) -> str:
    """The address of this page in another language. After a form, the address of the page that the form is on."""
    path: str = page.request.scope["path"]
    if page.request.method == "POST":
        path = path.rpartition("/")[0]
    query = {name: value for name, value in page.request.query_params.items() if name != "token"}
    return f"{quote(path)}?{urlencode({**query, 'lang': language})}"
