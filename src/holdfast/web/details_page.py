"""The page between a choice and its hold, for a form that could not ask everything at once."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from starlette.responses import Response

from holdfast.api.booking_schemas import Item
from holdfast.api.responses import EventView, PoolView
from holdfast.i18n.texts import section
from holdfast.web.buyer_fields import BuyerField, all_fields, booking_questions, contact_fields, unit_questions
from holdfast.web.event_listing import EventListing
from holdfast.web.event_pages import SentForm, check_data, needs_check
from holdfast.web.hold_choice import HoldChoice
from holdfast.web.page_request import PageRequest

# Fields that the page sets itself.
OWN_FIELDS: Final = {"asked", "form_token", "check_issued_at", "check_salt", "check_number"}


class ChosenLine(Struct, frozen=True):
    """A part of the choice: how many of what. Only the map knows the price of a seat."""

    name: str
    quantity: int
    price: int | None
    pool: PoolView | None


class ChosenUnit(Struct, frozen=True):
    name: str
    fields: list[BuyerField]


async def details_page(
    page: PageRequest, listing: EventListing, choice: HoldChoice, sent: SentForm, status: int = 200
) -> Response:
    event = listing.event
    lines = _lines(event, choice)
    names = [line.name for line in lines for _ in range(line.quantity)]
    return await page.render_rows(
        "hold_details.html",
        choice.units,
        status,
        listing=listing,
        event=event,
        lines=lines,
        sent=sent,
        hidden=_hidden_fields(page, event, choice, sent.fields),
        contact_fields=contact_fields(event, page.language),
        booking_questions=booking_questions(event),
        units=[ChosenUnit(name, unit_questions(event, n)) for n, name in enumerate(names, 1)],
        needs_check=needs_check(page, event),
        script_data={
            "check": check_data(page, event) if needs_check(page, event) else None,
            "hold": f"/e/{event.id}/hold",
            "language": page.language,
            "texts": section(page.language, "script"),
        },
    )


def _lines(event: EventView, choice: HoldChoice) -> list[ChosenLine]:
    best = choice.best
    items = [Item(pool=best.pool, tariff=best.tariff, quantity=best.quantity)] if best else choice.items
    return [_line(event, item) for item in items]


def _line(event: EventView, item: Item) -> ChosenLine:
    if item.seat is not None:
        return ChosenLine(item.seat, 1, None, None)
    pool = next((pool for pool in event.pools if pool.code == item.pool), None)
    tariffs = [tariff for tariff in pool.tariffs if tariff.code == item.tariff] if pool else []
    if pool is None or not tariffs:
        return ChosenLine(str(item.pool), item.quantity or 1, None, None)
    return ChosenLine(tariffs[0].name, item.quantity or 1, tariffs[0].price, pool)


def _hidden_fields(
    page: PageRequest, event: EventView, choice: HoldChoice, fields: Mapping[str, str]
) -> dict[str, str]:
    """Everything that the buyer sent and the page does not ask again: the choice, and the key of the first form."""
    shown = {field.name for field in all_fields(event, page.language, choice.units)} | OWN_FIELDS
    return {name: value for name, value in fields.items() if name not in shown and value not in ("", "0")}
