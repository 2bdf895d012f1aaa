"""What people in Telegram read about a shift."""

from datetime import datetime
from typing import Final

from babel import Locale
from babel.dates import format_time

from holdfast.api.responses import EventView
from holdfast.bot.markup import Button, MessageBody, bold, escape, paragraphs, say
from holdfast.bot.org_api import Places
from holdfast.core.states import EventStatus
from holdfast.i18n.formatting import format_money, in_zone, shorten
from holdfast.i18n.languages import language_of
from holdfast.tickets.shift_facts import OFFERED, SHOWN, shift_facts

# Long texts of a shift share a message with ours. There is less room beside instructions for the payment, and in the
# caption of a photo.
FACT_MAX: Final = 600
SHORT_FACT_MAX: Final = 150


def title_html(event: EventView) -> str:
    return bold(escape(shorten(event.title, FACT_MAX)))


def offer_html(event: EventView, language: str) -> str:
    """What a worker wants to know before taking the shift."""
    return paragraphs(title_html(event), _facts_html(event, language, OFFERED, FACT_MAX))


def shift_html(event: EventView, language: str, fact_max: int = FACT_MAX) -> str:
    """What a worker needs for the shift."""
    return paragraphs(title_html(event), _facts_html(event, language, SHOWN, fact_max))


def brief_html(event: EventView, language: str) -> str:
    """When and where, in the space of a caption."""
    return paragraphs(title_html(event), _facts_html(event, language, ("date", "work_time", "address"), SHORT_FACT_MAX))


def offer_body(event: EventView, places: Places, language: str, take: Button) -> MessageBody:
    """The shift and how many places are left. The button is there while there are any."""
    is_open = event.status is EventStatus.ACTIVE and places.left > 0
    text = paragraphs(offer_html(event, language), bold(_places_text(event, places, language)))
    return MessageBody(text, [[take]] if is_open else [])


def _places_text(event: EventView, places: Places, language: str) -> str:
    if event.status in (EventStatus.COMPLETED, EventStatus.CANCELLED):
        return say(language, f"post.{event.status}")
    if places.left == 0:
        return say(language, "post.full", capacity=places.capacity)
    return say(language, "post.left", left=places.left, capacity=places.capacity)


def price(amount: int | None, event: EventView, language: str) -> str:
    return format_money(amount or 0, event.currency, language)


def time_of_day(at: datetime, timezone: str, language: str) -> str:
    text: str = format_time(in_zone(at, timezone), "short", locale=Locale(language_of(language)))
    return text.replace("\u202f", "\u00a0")


def _facts_html(event: EventView, language: str, names: tuple[str, ...], length_max: int) -> str:
    facts = shift_facts(event.shift, event.currency, language, names)
    return "\n".join(f"{bold(escape(fact.label))}: {escape(shorten(fact.value, length_max))}" for fact in facts)
