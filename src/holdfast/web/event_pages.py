"""Event pages: one event with its seats, and the form that places a hold."""

import secrets
from typing import Any, Final

from msgspec import DecodeError, Struct, ValidationError, json
from starlette.responses import Response
from starlette.routing import Route

from holdfast.api.booking_schemas import BestAvailable, BookingView, HoldNew, Item
from holdfast.api.requests import BookingsQuery
from holdfast.api.responses import EventView, PoolView
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import EventStatus, Status
from holdfast.i18n.formatting import minor_digits
from holdfast.i18n.texts import section
from holdfast.runtime import ids
from holdfast.web.assets import FOREVER, asset_response
from holdfast.web.booking_summary import is_live, seat_labels
from holdfast.web.customer_api import idempotency_key
from holdfast.web.event_listing import EventListing
from holdfast.web.guest_check import CHALLENGE_SECONDS, CHECK_EXPIRED, Challenge, new_challenge, verify_solution
from holdfast.web.page_problems import PageError, PageProblem, problem_of, refusal_text
from holdfast.web.page_request import PageRequest
from holdfast.web.rendering import page_money
from holdfast.web.seat_layouts import SeatLayouts
from holdfast.web.site import Site, json_response, redirect_to_parent

BOOKINGS_MAX: Final = 50
BEST_MAX: Final = 10
QUANTITY_DIGITS_MAX: Final = 4
NOTHING_CHOSEN: Final = PageProblem(422, "nothing_chosen")


class ChosenSeat(Struct, frozen=True, forbid_unknown_fields=True):
    seat: str
    tariff: str | None = None


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
        Route("/e/{event}/hold", site.page(place_hold), methods=["POST"]),
        Route("/e/{event}/hold", site.page(redirect_to_parent), methods=["GET"]),
    ]


async def show_event(page: PageRequest) -> Response:
    return await _event_page(page, await load_event(page))


async def load_event(page: PageRequest) -> EventListing:
    return await page.load_event(ids.parse_event_id(page.request.path_params["event"]))


async def _event_page(
    page: PageRequest, listing: EventListing, status: int = 200, problem: str | None = None
) -> Response:
    event = listing.event
    bookings = await _live_bookings(page, event)
    held = next((booking for booking in bookings if booking.status is Status.HELD), None)
    return await page.render_rows(
        "event.html",
        sum(len(pool.tariffs) for pool in event.pools) + len(event.details),
        status,
        listing=listing,
        event=event,
        pools=list(zip(event.pools, listing.availability, strict=True)),
        is_on_sale=event.status is EventStatus.ACTIVE,
        held=held,
        problem=problem,
        best_max=min(event.policy.max_units_per_user or BEST_MAX, BEST_MAX),
        key=secrets.token_hex(8),
        needs_check=_needs_check(page, event),
        script_data={
            **event_data(page, listing),
            "check": _check_data(page, event) if _needs_check(page, event) else None,
            "hold": f"/e/{event.id}/hold",
            "mine": [label for booking in bookings for label in seat_labels(booking)],
            "secondsLeft": held.expires_in_seconds if held else None,
        },
    )


async def _live_bookings(page: PageRequest, event: EventView) -> list[BookingView]:
    """What this browser has booked of the event. A browser without a session has nothing."""
    if not page.has_session:
        return []
    bookings = await page.customer.list_bookings(BookingsQuery(event=event.id, limit=BOOKINGS_MAX))
    return [booking for booking in bookings if is_live(booking)]


def event_data(page: PageRequest, listing: EventListing) -> dict[str, Any]:
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
        "pools": [_pool_data(page, event, pool) for pool in event.pools],
        "texts": section(page.language, "script"),
        "map": section(page.language, "map"),
    }


def _pool_data(page: PageRequest, event: EventView, pool: PoolView) -> dict[str, Any]:
    prices = dict.fromkeys(page_money(tariff.price, event.currency, page.language) for tariff in pool.tariffs)
    return {
        "code": pool.code,
        "name": pool.name,
        "seated": pool.seated,
        "prices": " / ".join(prices),
        "tariffs": pool.tariffs,
    }


def _needs_check(page: PageRequest, event: EventView) -> bool:
    return event.policy.guest_check == "work" and page.is_guest


def _check_data(page: PageRequest, event: EventView) -> dict[str, Any]:
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


async def place_hold(page: PageRequest) -> Response:
    """The same form sent twice is one hold; another choice on it is another hold."""
    listing = await load_event(page)
    fields = await page.read_fields()
    try:
        hold = _hold(page, fields, listing.event)
        booking = await _place_hold(page, listing.event, hold, fields)
    except (RefusedError, PageError) as error:
        return await _refused_page(page, listing, problem_of(error), is_best="best_pool" in fields)
    page.keep_session_for(listing.event)
    if page.wants_json:
        return json_response({"booking": f"/b/{booking.id}"}, 201)
    return page.redirect(f"/b/{booking.id}")


async def _place_hold(page: PageRequest, event: EventView, hold: HoldNew, fields: dict[str, str]) -> BookingView:
    if not _needs_check(page, event):
        return await page.customer.place_hold(event.id, hold, idempotency_key(fields, hold))
    # The solution is the idempotency key, so it is valid for one hold, however often the browser sends the form.
    seed = verify_solution(page.keyring, event.id, page.session.guest, event.policy.guest_check_bits, fields)
    try:
        return await page.customer.place_hold(event.id, hold, seed)
    except RefusedError as error:
        if error.refused.refusal is Refusal.IDEMPOTENCY_KEY_REUSED:
            raise PageError(CHECK_EXPIRED) from None
        raise


async def _refused_page(page: PageRequest, listing: EventListing, problem: PageProblem, *, is_best: bool) -> Response:
    limit = listing.event.policy.max_units_per_user
    text = refusal_text(page.language, problem, limit=limit, of_best=is_best)
    if page.wants_json:
        answer = {"code": problem.code, "text": text, "conflicts": problem.conflicts}
        return json_response(answer, problem.status)
    return await _event_page(page, listing, problem.status, text)


def _hold(page: PageRequest, fields: dict[str, str], event: EventView) -> HoldNew:
    email = fields.get("email", "").strip() or None
    if "best_pool" in fields:
        return HoldNew(best_available=_best_available(fields, event), email=email, language=page.language)
    items = [*_chosen_seats(fields), *_chosen_quantities(fields, event)]
    if not items:
        raise PageError(NOTHING_CHOSEN)
    return HoldNew(items=items, email=email, language=page.language)


def _best_available(fields: dict[str, str], event: EventView) -> BestAvailable:
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


def _chosen_seats(fields: dict[str, str]) -> list[Item]:
    try:
        chosen = json.decode(fields.get("seats") or "[]", type=list[ChosenSeat])
    except (ValidationError, DecodeError):
        raise PageError(NOTHING_CHOSEN) from None
    return [Item(seat=each.seat, tariff=each.tariff) for each in chosen]


def _chosen_quantities(fields: dict[str, str], event: EventView) -> list[Item]:
    """Fields carry the positions of a pool and of its tariff: `quantity.0.1`."""
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
