"""What people in Telegram read about a shift."""

from datetime import datetime
from typing import Final

from babel import Locale
from babel.dates import format_time
from msgspec import Struct

from holdfast.api.responses import EventView
from holdfast.bot.markup import bold, escape, paragraphs
from holdfast.i18n.formatting import format_money, in_zone, shorten
from holdfast.i18n.languages import language_of
from holdfast.tickets.shift_facts import OFFERED, SHOWN, shift_facts

# Long texts of a shift share a message with ours. There is less room beside instructions for the payment, and in the
# caption of a photo.
FACT_MAX: Final = 600
SHORT_FACT_MAX: Final = 150


class PoolCount(Struct, frozen=True):
    code: str
    capacity: int
    remaining: int


class Places(Struct, frozen=True):
    """The availability of an event."""

    pools: list[PoolCount]

    @property
    def capacity(self) -> int:
        return sum(pool.capacity for pool in self.pools)

    @property
    def left(self) -> int:
        return sum(pool.remaining for pool in self.pools)

    @property
    def free_pool(self) -> str | None:
        return next((pool.code for pool in self.pools if pool.remaining > 0), None)


def title_html(event: EventView) -> str:
    return bold(escape(shorten(event.title, FACT_MAX)))


def offer_html(event: EventView, language: str) -> str:
    """Everything somebody wants to know before they take the shift."""
    return paragraphs(title_html(event), _facts_html(event, language, OFFERED, FACT_MAX))


def shift_html(event: EventView, language: str, fact_max: int = FACT_MAX) -> str:
    """What somebody who has the shift needs."""
    return paragraphs(title_html(event), _facts_html(event, language, SHOWN, fact_max))


def brief_html(event: EventView, language: str) -> str:
    """When and where, in the space of a caption."""
    return paragraphs(title_html(event), _facts_html(event, language, ("date", "work_time", "address"), SHORT_FACT_MAX))


def price(amount: int | None, event: EventView, language: str) -> str:
    return format_money(amount or 0, event.currency, language)


def time_of_day(at: datetime, timezone: str, language: str) -> str:
    text: str = format_time(in_zone(at, timezone), "short", locale=Locale(language_of(language)))
    return text.replace("\u202f", "\u00a0")


def _facts_html(event: EventView, language: str, names: tuple[str, ...], length_max: int) -> str:
    facts = shift_facts(event.shift, event.currency, language, names)
    return "\n".join(f"{bold(escape(fact.label))}: {escape(shorten(fact.value, length_max))}" for fact in facts)
