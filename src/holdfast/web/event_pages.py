"""The page of an event, with everything that a buyer can choose."""

import math
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field
from starlette.responses import Response
from starlette.routing import Route

from holdfast.api.booking_schemas import BookingView
from holdfast.api.requests import BookingsQuery
from holdfast.api.responses import EventView
from holdfast.core.sales_window import SaleState
from holdfast.core.states import EventStatus, Status
from holdfast.i18n.formatting import minor_digits
from holdfast.i18n.texts import section
from holdfast.runtime import ids
from holdfast.tickets.shift_facts import OFFERED, shift_facts
from holdfast.web.assets import FOREVER, asset_response
from holdfast.web.booking_summary import is_live, seat_labels
from holdfast.web.buyer_fields import answered_units_max, booking_questions, contact_fields, unit_questions
from holdfast.web.event_listing import EventListing
from holdfast.web.guest_check import CHALLENGE_SECONDS, Challenge, new_challenge
from holdfast.web.hold_choice import best_quantities, chosen_pool, units_max, units_min
from holdfast.web.own_bookings import Notice, blocking_booking, own_booking_data, own_booking_notice
from holdfast.web.page_request import PageRequest
from holdfast.web.pool_offers import EventSale, PoolOffer, event_sale, pool_offers
from holdfast.web.rendering import page_money, short_moment, slot_time
from holdfast.web.seat_layouts import SeatLayouts
from holdfast.web.site import Site, json_response
from holdfast.web.slot_calendar import SlotCalendar, calendar_names, slot_calendar
from holdfast.web.unit_rules import units_rule

BOOKINGS_MAX: Final = 50
# A browser without scripts reloads a page that waits for sales to open, if that is soon enough.
REFRESH_SECONDS_MAX: Final = 86_400
SPREAD_SECONDS: Final = 5


class SentForm(Struct, frozen=True):
    """What a browser has sent, so that its page can show it again, with errors by the name of the field."""

    fields: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    notice: Notice | None = None


NOTHING_SENT: Final = SentForm()


def event_routes(site: Site) -> list[Route]:
    layouts = SeatLayouts()

    async def send_layout(page: PageRequest) -> Response:
        listing = await load_event(page)
        asset = await layouts.get(page, listing)
        is_current = page.request.query_params.get("revision") == str(listing.revision)
        return asset_response(page.request, asset, FOREVER if is_current else "no-cache")

    return [
        Route("/e/{event}", site.page(show_event), methods=["GET"]),
        Route("/e/{event}/layout.json", site.page(send_layout), methods=["GET"]),
        Route("/e/{event}/challenge", site.page(send_challenge), methods=["GET"]),
        Route("/e/{event}/own", site.page(send_own_bookings), methods=["GET"]),
    ]


async def show_event(page: PageRequest) -> Response:
    return await event_page(page, await load_event(page))


async def load_event(page: PageRequest) -> EventListing:
    return await page.load_event(ids.parse_event_id(page.request.path_params["event"]))


async def event_page(
    page: PageRequest, listing: EventListing, sent: SentForm = NOTHING_SENT, status: int = 200
) -> Response:
    event, policy = listing.event, listing.event.policy
    bookings = await _live_bookings(page, event)
    offers = pool_offers(listing)
    calendar = _calendar(page, event, offers, sent)
    sale = event_sale(offers)
    blocking = blocking_booking(bookings, is_single=policy.one_booking_per_user or policy.max_units_per_user == 1)
    return await page.render_rows(
        "event.html",
        sum(len(pool.tariffs) for pool in event.pools),
        status,
        listing=listing,
        event=event,
        offers=offers,
        calendar=calendar,
        sale=sale,
        sent=sent,
        refresh_seconds=_refresh_seconds(sale, listing.now),
        is_on_sale=event.status is EventStatus.ACTIVE,
        held=_held_booking(bookings),
        blocking=own_booking_notice(page.language, blocking) if blocking else None,
        shift=shift_facts(event.shift, event.currency, page.language, OFFERED),
        key=secrets.token_hex(8),
        needs_check=needs_check(page, event),
        **_choice_context(listing, offers, calendar, sent),
        **_form_context(page, event),
        # The template calls it. The times of a thousand slots take long to format, and a thread renders long pages.
        script_data=lambda: {
            **event_data(page, listing, offers),
            **_form_data(page, event, bookings),
            "sale": {"state": sale.state, "opensAt": _milliseconds(sale.opens_at)},
            "isSingle": _is_single(listing),
            "calendar": _calendar_data(calendar, page.language) if calendar else None,
        },
    )


def _choice_context(
    listing: EventListing, offers: Sequence[PoolOffer], calendar: SlotCalendar | None, sent: SentForm
) -> dict[str, Any]:
    """The pools that the page shows outside its map and its calendar, and the initial choice."""
    pools = [offer for offer in offers if not offer.pool.seated and not (calendar and offer.is_slot)]
    shown = [*pools, calendar.slot] if calendar and calendar.slot else pools
    return {
        "pools": pools,
        "is_single": _is_single(listing),
        "is_lone": sum(len(offer.pool.tariffs) for offer in shown) == 1,
        "single_choice": _single_choice(shown, sent),
        "best_quantities": best_quantities(listing.event.policy),
    }


def _form_context(page: PageRequest, event: EventView) -> dict[str, Any]:
    return {
        "units_rule": "" if units_max(event.policy) == 1 else units_rule(event, page.language),
        "units_most": _units_most(event),
        "contact_fields": contact_fields(event, page.language),
        "booking_questions": booking_questions(event),
        "unit_questions": unit_questions(event, 0),
    }


def _form_data(page: PageRequest, event: EventView, bookings: Sequence[BookingView]) -> dict[str, Any]:
    """What scripts need to know about the form and its buyer."""
    held = _held_booking(bookings)
    return {
        "check": check_data(page, event) if needs_check(page, event) else None,
        "hold": f"/e/{event.id}/hold",
        "ownUrl": f"/e/{event.id}/own",
        "own": [own_booking_data(page.language, booking) for booking in bookings],
        "mine": [label for booking in bookings for label in seat_labels(booking)],
        "secondsLeft": held.expires_in_seconds if held else None,
        "least": units_min(event.policy),
        "most": _units_most(event),
    }


def _held_booking(bookings: Sequence[BookingView]) -> BookingView | None:
    return next((booking for booking in bookings if booking.status is Status.HELD), None)


def _is_single(listing: EventListing) -> bool:
    """Whether a buyer chooses one unit instead of a number. On a map, they choose a seat."""
    return units_max(listing.event.policy) == 1 and not listing.is_seated


def _calendar(page: PageRequest, event: EventView, offers: Sequence[PoolOffer], sent: SentForm) -> SlotCalendar | None:
    query = page.request.query_params
    slot = chosen_pool(sent.fields, event) if sent.fields else query.get("slot")
    return slot_calendar(offers, page.language, day=query.get("day"), slot=slot)


def _single_choice(offers: Sequence[PoolOffer], sent: SentForm) -> str | None:
    """The position of the initial choice: the unit that the buyer sent, or the first that is free."""
    free = [f"{offer.number}.{n}" for offer in offers if offer.is_available for n in range(len(offer.pool.tariffs))]
    wanted = sent.fields.get("choice")
    return wanted if wanted in free else next(iter(free), None)


def _refresh_seconds(sale: EventSale, now: datetime) -> int | None:
    """When a browser without scripts reloads the page. Browsers do not all come in the same second."""
    if sale.opens_at is None:
        return None
    seconds = math.ceil((sale.opens_at - now).total_seconds()) + 1 + secrets.randbelow(SPREAD_SECONDS)
    return seconds if seconds <= REFRESH_SECONDS_MAX else None


def _units_most(event: EventView) -> int | None:
    limits = (units_max(event.policy), answered_units_max(event))
    return min((limit for limit in limits if limit is not None), default=None)


async def _live_bookings(page: PageRequest, event: EventView) -> list[BookingView]:
    """What this browser has booked of the event. A browser without a session has nothing."""
    if not page.has_session:
        return []
    bookings = await page.customer.list_bookings(BookingsQuery(event=event.id, limit=BOOKINGS_MAX))
    return [booking for booking in bookings if is_live(booking)]


async def send_own_bookings(page: PageRequest) -> Response:
    """The buyer's own bookings, for a page that has to find out who took one of its chosen seats."""
    listing = await load_event(page)
    bookings = await _live_bookings(page, listing.event)
    return json_response({"own": [own_booking_data(page.language, booking) for booking in bookings]})


def event_data(page: PageRequest, listing: EventListing, offers: Sequence[PoolOffer] | None = None) -> dict[str, Any]:
    """What the page's scripts need to know about an event."""
    event = listing.event
    return {
        "event": event.id,
        "live": f"/v1/events/{event.id}/live",
        "layout": f"/e/{event.id}/layout.json?revision={listing.revision}" if listing.is_seated else None,
        "language": page.language,
        "currency": event.currency,
        "digits": minor_digits(event.currency),
        "taxBps": event.tax_bps,
        "limit": event.policy.max_units_per_user,
        "now": _milliseconds(listing.now),
        "pools": [_pool_data(page, event, offer) for offer in offers or pool_offers(listing)],
        "texts": section(page.language, "script"),
        "map": section(page.language, "map"),
    }


def _pool_data(page: PageRequest, event: EventView, offer: PoolOffer) -> dict[str, Any]:
    pool = offer.pool
    prices = dict.fromkeys(page_money(tariff.price, event.currency, page.language) for tariff in pool.tariffs)
    data = {
        "code": pool.code,
        "name": pool.name,
        "seated": pool.seated,
        "prices": " / ".join(prices),
        "tariffs": pool.tariffs,
        "opensAt": _milliseconds(offer.window.opens_at),
        "closesAt": _milliseconds(offer.window.closes_at),
    }
    if offer.state is SaleState.SOON and offer.window.opens_at is not None:
        data["opens"] = short_moment(offer.window.opens_at, event.timezone, page.language)
    if pool.starts_at is not None:
        data["startsAt"] = _milliseconds(pool.starts_at)
        data["day"] = offer.day
        data["time"] = slot_time(pool.starts_at, pool.ends_at, event.timezone, page.language)
    return data


def _calendar_data(calendar: SlotCalendar, language: str) -> dict[str, Any]:
    return {
        "day": calendar.day.date,
        "slot": calendar.slot.pool.code if calendar.slot is not None else None,
        "weekStart": calendar.week_start,
        "showsMonths": calendar.shows_months,
        "names": calendar_names(language),
    }


def _milliseconds(at: datetime | None) -> int | None:
    """Since the epoch. Rounded up, so that a script never acts before the time has come."""
    return math.ceil(at.timestamp() * 1000) if at is not None else None


def needs_check(page: PageRequest, event: EventView) -> bool:
    return event.policy.guest_check == "work" and page.is_guest


def check_data(page: PageRequest, event: EventView) -> dict[str, Any]:
    return {
        "url": f"/e/{event.id}/challenge",
        "seconds": CHALLENGE_SECONDS,
        "challenge": _new_challenge(page, event),
    }


def _new_challenge(page: PageRequest, event: EventView) -> Challenge:
    return new_challenge(page.keyring, event.id, page.session.guest, event.policy.guest_check_bits)


async def send_challenge(page: PageRequest) -> Response:
    """A new challenge, for a page that stayed open until the first one expired."""
    listing = await load_event(page)
    return json_response(_new_challenge(page, listing.event))
