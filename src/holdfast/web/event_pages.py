"""Pages of events: what is on sale, the seats of one event, and taking a hold."""

import asyncio
import gzip
import secrets
from collections import OrderedDict
from typing import Any, Final

from msgspec import DecodeError, Struct, ValidationError, json
from starlette.responses import Response
from starlette.routing import Route

from holdfast import sql
from holdfast.core.states import EventStatus
from holdfast.i18n.formatting import minor_digits, money
from holdfast.i18n.texts import section
from holdfast.web.api_client import ApiError, key_of
from holdfast.web.api_types import Availability, Booking, BookingList, Event, EventList, Pool, Problem, Seats
from holdfast.web.assets import FOREVER, Asset, zippable
from holdfast.web.page_texts import refusal_text
from holdfast.web.site import PageRequest, Site, answer_json, go_up

LAYOUTS_MAX: Final = 32
BOOKINGS_MAX: Final = 50
CARDS_MAX: Final = 200
BEST_MAX: Final = 10
NOTHING_CHOSEN: Final = Problem(422, "nothing_chosen")


class Card(Struct, frozen=True):
    """An event in a list, with how much is left of it."""

    event: Event
    capacity: int
    remaining: int


class SeatChosen(Struct, frozen=True, forbid_unknown_fields=True):
    seat: str
    tariff: str | None = None


class SeatLayouts:
    """Where the seats of an event are, as the seat map takes it. It stays the same for a revision of the event."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int], Asset] = OrderedDict()

    async def get(self, page: PageRequest, event: Event, revision: int) -> Asset:
        key = (event.id, revision)
        if key not in self._known:
            self._known[key] = await self._load(page, event)
            if len(self._known) > LAYOUTS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    async def _load(self, page: PageRequest, event: Event) -> Asset:
        pools = {pool.code: n for n, pool in enumerate(event.pools)}
        seats = (await page.api.get(f"/v1/events/{event.id}/seats", Seats)).seats
        rows = [(each.label, pools[each.pool], each.row, each.number, each.x, each.y) for each in seats]
        content = json.encode({"seats": rows})
        return Asset(content, await asyncio.to_thread(gzip.compress, content, 6), "application/json")


def event_routes(site: Site) -> list[Route]:
    layouts = SeatLayouts()

    async def send_layout(page: PageRequest) -> Response:
        event, revision = await find_event(page)
        asset = await layouts.get(page, event, revision)
        is_current = page.request.query_params.get("revision") == str(revision)
        return zippable(page.request, asset, FOREVER if is_current else "no-cache")

    return [
        Route("/", site.page(show_start), methods=["GET"]),
        Route("/o/{slug}", site.page(show_org), methods=["GET"]),
        Route("/e/{event}", site.page(show_event), methods=["GET"]),
        Route("/e/{event}/layout.json", site.page(send_layout), methods=["GET"]),
        Route("/e/{event}/hold", site.page(take_hold), methods=["POST"]),
        Route("/e/{event}/hold", site.page(go_up), methods=["GET"]),
    ]


async def show_start(page: PageRequest) -> Response:
    """Where one org sells, the start is its page."""
    slugs = [row["slug"] for row in await page.site.pool.fetch(sql.secrets.orgs)]
    if len(slugs) == 1:
        page.org = await page.site.org(slugs[0])
    return page.show("events.html", cards=await _cards(page))


async def show_org(page: PageRequest) -> Response:
    page.org = await page.site.org(page.request.path_params["slug"])
    return page.show("events.html", cards=await _cards(page))


async def _cards(page: PageRequest) -> list[Card]:
    """What is on sale, soonest first."""
    query: dict[str, str | int] = {"status": "active", "limit": CARDS_MAX}
    if page.org:
        query["org"] = page.org.slug
    events = (await page.api.get("/v1/events", EventList, **query)).items
    left = await asyncio.gather(*(page.api.get(f"/v1/events/{each.id}/availability", Availability) for each in events))
    cards = [
        Card(event, sum(pool.capacity for pool in now.pools), sum(pool.remaining for pool in now.pools))
        for event, now in zip(events, left, strict=True)
    ]
    return sorted(cards, key=lambda card: card.event.starts_at)


async def show_event(page: PageRequest) -> Response:
    event, revision = await find_event(page)
    return await _event_page(page, event, revision)


async def find_event(page: PageRequest) -> tuple[Event, int]:
    named = page.request.path_params["event"]
    org, revision = await page.site.org_of_event(named)
    event = await page.api.get(f"/v1/events/{named}", Event)
    # Not before: an event that is not published yet is not there at all.
    page.org = org
    return event, revision


async def _event_page(
    page: PageRequest, event: Event, revision: int, status: int = 200, problem: str | None = None
) -> Response:
    left = await page.api.get(f"/v1/events/{event.id}/availability", Availability)
    mine = await _bookings(page, event)
    held = next((booking for booking in mine if booking.status == "held"), None)
    by_code = {pool.code: pool for pool in left.pools}
    return page.show(
        "event.html",
        status,
        event=event,
        pools=[(pool, by_code[pool.code]) for pool in event.pools],
        remaining=sum(pool.remaining for pool in left.pools),
        is_on_sale=event.status is EventStatus.ACTIVE,
        held=held,
        problem=problem,
        best_max=min(event.policy.max_units_per_user or BEST_MAX, BEST_MAX),
        key=secrets.token_hex(8),
        page={
            **event_data(page, event, revision),
            "hold": f"/e/{event.id}/hold",
            "mine": [label for booking in mine for label in booking.seats],
            "secondsLeft": held.expires_in_seconds if held else None,
        },
    )


async def _bookings(page: PageRequest, event: Event) -> list[Booking]:
    """What this browser has of the event. Who was never here has nothing."""
    if not page.is_known:
        return []
    api = await page.customer()
    found = await api.get("/v1/bookings", BookingList, event=event.id, limit=BOOKINGS_MAX)
    return [booking for booking in found.items if booking.is_live]


def event_data(page: PageRequest, event: Event, revision: int) -> dict[str, Any]:
    """What scripts have to know of an event."""
    return {
        "event": event.id,
        "live": f"/v1/events/{event.id}/live",
        "layout": f"/e/{event.id}/layout.json?revision={revision}" if event.is_seated else None,
        "language": page.language,
        "currency": event.currency,
        "digits": minor_digits(event.currency),
        "taxBps": event.tax_bps,
        "most": event.policy.max_units_per_user,
        "pools": [_pool_data(page, event, pool) for pool in event.pools],
        "texts": section(page.language, "script"),
        "map": section(page.language, "map"),
    }


def _pool_data(page: PageRequest, event: Event, pool: Pool) -> dict[str, Any]:
    return {
        "code": pool.code,
        "name": pool.name,
        "seated": pool.seated,
        "prices": " / ".join(
            dict.fromkeys(money(tariff.price, event.currency, page.language) for tariff in pool.tariffs)
        ),
        "tariffs": [{"code": tariff.code, "name": tariff.name, "price": tariff.price} for tariff in pool.tariffs],
    }


async def take_hold(page: PageRequest) -> Response:
    """A hold from the page's form. The same form sent twice is one hold; another choice on it is another one."""
    event, revision = await find_event(page)
    form = await page.form()
    try:
        body = {**_choice(form, event), **_buyer(page, form)}
        api = await page.customer()
        path = f"/v1/events/{event.id}/holds"
        booking = await api.post(path, Booking, body, key=key_of(form, body))
    except ApiError as error:
        return await _refused(page, event, revision, error, of_best="best_pool" in form)
    if page.wants_json:
        return answer_json({"booking": f"/b/{booking.id}"}, 201)
    return page.go(f"/b/{booking.id}")


async def _refused(page: PageRequest, event: Event, revision: int, error: ApiError, *, of_best: bool) -> Response:
    problem = error.problem
    text = refusal_text(page.language, problem, event, of_best=of_best)
    if page.wants_json:
        answer = {"code": problem.code, "text": text, "conflicts": problem.conflicts}
        return answer_json(answer, problem.status)
    return await _event_page(page, event, revision, problem.status, text)


def _choice(form: dict[str, str], event: Event) -> dict[str, Any]:
    if "best_pool" in form:
        return {"best_available": _best(form, event)}
    items = [*_seats(form), *_quantities(form, event)]
    if not items:
        raise ApiError(NOTHING_CHOSEN)
    return {"items": items}


def _best(form: dict[str, str], event: Event) -> dict[str, Any]:
    """Without a script the tariffs to choose from stay those of the first area. Whoever has chosen another one gets the
    tariff whose price was shown with it."""
    tariffs = [tariff.code for pool in event.pools if pool.code == form["best_pool"] for tariff in pool.tariffs]
    wanted = form.get("best_tariff")
    return {
        "pool": form["best_pool"],
        "quantity": _whole(form.get("best_quantity", "")),
        "adjacent": form.get("best_adjacent") == "yes",
        "tariff": wanted if wanted in tariffs else next(iter(tariffs), None),
    }


def _seats(form: dict[str, str]) -> list[SeatChosen]:
    try:
        return json.decode(form.get("seats") or "[]", type=list[SeatChosen])
    except (ValidationError, DecodeError):
        raise ApiError(NOTHING_CHOSEN) from None


def _quantities(form: dict[str, str], event: Event) -> list[dict[str, Any]]:
    """Fields are named by the places of a pool and of its tariff: `quantity.0.1`."""
    named = {
        f"quantity.{n}.{m}": {"pool": pool.code, "tariff": tariff.code}
        for n, pool in enumerate(event.pools)
        for m, tariff in enumerate(pool.tariffs)
    }
    chosen = {name: _whole(form[name]) for name in named if form.get(name)}
    return [{**named[name], "quantity": quantity} for name, quantity in chosen.items() if quantity]


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 4:
        raise ApiError(NOTHING_CHOSEN)
    return int(text)


def _buyer(page: PageRequest, form: dict[str, str]) -> dict[str, str]:
    email = form.get("email", "").strip()
    return {"language": page.language} | ({"email": email} if email else {})
