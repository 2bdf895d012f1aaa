"""What a buyer chose on the form of an event: seats, quantities of pools, or the best seats available."""

from collections.abc import Mapping
from typing import Final

from msgspec import DecodeError, Struct, ValidationError, json

from holdfast.api.booking_schemas import UNITS_MAX, BestAvailable, Item
from holdfast.api.responses import EventView
from holdfast.core.policy import Policy
from holdfast.web.page_problems import PageError, PageProblem

QUANTITY_DIGITS_MAX: Final = 4
BEST_MAX: Final = 10
TOO_MANY_UNITS: Final = PageProblem(422, "unit_count")
NOTHING_CHOSEN: Final = PageProblem(422, "nothing_chosen")


class ChosenSeat(Struct, frozen=True, forbid_unknown_fields=True):
    seat: str
    tariff: str | None = None


class HoldChoice(Struct, frozen=True):
    """Either items or the best seats, and how many units that is."""

    items: tuple[Item, ...]
    best: BestAvailable | None
    units: int


def units_min(policy: Policy) -> int:
    return policy.min_units or 1


def units_max(policy: Policy) -> int | None:
    """How many units one form can ask for."""
    return min((each for each in (policy.max_units_per_user, policy.max_units) if each is not None), default=None)


def best_quantities(policy: Policy) -> range:
    least = units_min(policy)
    most = max(least, BEST_MAX)
    return range(least, min(units_max(policy) or most, most) + 1)


def read_choice(fields: Mapping[str, str], event: EventView) -> HoldChoice:
    if "best_pool" in fields:
        best = _best_available(fields, event)
        return HoldChoice((), best, best.quantity)
    items = (*_chosen_seats(fields), *(_single_choice(fields, event) or _chosen_quantities(fields, event)))
    if not items:
        raise PageError(NOTHING_CHOSEN)
    units = sum(item.quantity or 1 for item in items)
    if units > UNITS_MAX:
        # Everything after this works once per unit.
        raise PageError(TOO_MANY_UNITS)
    return HoldChoice(items, None, units)


def _best_available(fields: Mapping[str, str], event: EventView) -> BestAvailable:
    """Without scripts, the page offers only the tariffs of the first area. Buyers who choose another area get the
    tariff whose price the page shows for it."""
    pool = fields["best_pool"]
    tariffs = [tariff.code for each in event.pools if each.code == pool for tariff in each.tariffs]
    wanted = fields.get("best_tariff")
    return BestAvailable(
        pool=pool,
        quantity=_parse_quantity(fields.get("best_quantity", "")),
        adjacent=fields.get("best_adjacent") == "yes",
        tariff=wanted if wanted in tariffs else next(iter(tariffs), None),
    )


def _chosen_seats(fields: Mapping[str, str]) -> list[Item]:
    try:
        chosen = json.decode(fields.get("seats") or "[]", type=list[ChosenSeat])
    except (ValidationError, DecodeError):
        raise PageError(NOTHING_CHOSEN) from None
    return [Item(seat=each.seat, tariff=each.tariff) for each in chosen]


def _single_choice(fields: Mapping[str, str], event: EventView) -> list[Item]:
    """If everybody can have one unit, the form has a choice instead of quantities: `choice=0.1` is the second
    tariff of the first pool."""
    wanted = fields.get("choice")
    return [
        Item(pool=pool.code, tariff=tariff.code, quantity=1)
        for n, pool in enumerate(event.pools)
        for m, tariff in enumerate(pool.tariffs)
        if wanted == f"{n}.{m}"
    ]


def _chosen_quantities(fields: Mapping[str, str], event: EventView) -> list[Item]:
    """Field names carry the positions of a pool and its tariff: `quantity.0.1`."""
    return [
        Item(pool=pool.code, tariff=tariff.code, quantity=quantity)
        for n, pool in enumerate(event.pools)
        for m, tariff in enumerate(pool.tariffs)
        if (quantity := _parse_quantity(fields.get(f"quantity.{n}.{m}") or "0"))
    ]


def _parse_quantity(text: str) -> int:
    if not text.isdecimal() or len(text) > QUANTITY_DIGITS_MAX:
        raise PageError(NOTHING_CHOSEN)
    return int(text)


def chosen_pool(fields: Mapping[str, str], event: EventView) -> str | None:
    """The code of a pool that the form asks for, to show the same slot again."""
    for n, pool in enumerate(event.pools):
        quantities = (fields.get(f"quantity.{n}.{m}", "0") for m in range(len(pool.tariffs)))
        if fields.get("choice", "").partition(".")[0] == str(n) or any(each.strip("0") for each in quantities):
            return pool.code
    return None
