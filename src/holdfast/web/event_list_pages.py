"""Lists of events: the start page, the page of an org, and the page of a series."""

from datetime import date
from typing import Final
from urllib.parse import urlencode

from msgspec import Struct
from starlette.responses import Response
from starlette.routing import Route

from holdfast import sql
from holdfast.api.event_search import parse_cursor
from holdfast.runtime import ids
from holdfast.web.event_cards import EventSearch, group_by_day, load_cards, load_dates
from holdfast.web.event_listing import Org
from holdfast.web.page_problems import NOT_FOUND, PageError
from holdfast.web.page_request import PageRequest
from holdfast.web.site import Site

# Events and series on one page.
CARDS_MAX: Final = 60
DATES_MAX: Final = 200
SEARCH_TEXT_MAX: Final = 100
# Days for which every event's times are valid.
FIRST_YEAR: Final = 1971
LAST_YEAR: Final = 2499


class SeriesPage(Struct, frozen=True):
    """A series with published events, and the org that it belongs to."""

    id: bytes
    title: str
    description: str | None
    org_id: bytes
    slug: str
    org_name: str
    colour: str | None
    logo_hash: str | None
    frame_origins: list[str]

    @property
    def org(self) -> Org:
        return Org(self.org_id, self.slug, self.org_name, self.colour, self.logo_hash, self.frame_origins)


def event_list_routes(site: Site) -> list[Route]:
    return [
        Route("/", site.page(show_start), methods=["GET"]),
        Route("/o/{slug}", site.page(show_org), methods=["GET"]),
        Route("/s/{series}", site.page(show_series), methods=["GET"]),
    ]


async def show_start(page: PageRequest) -> Response:
    """If only one org sells, the start page is the page of that org."""
    orgs = await page.site.database.all_events.rows(Org, sql.pages.orgs_on_sale)
    if len(orgs) == 1:
        page.org = orgs[0]
    return await _events_page(page)


async def show_org(page: PageRequest) -> Response:
    page.org = await page.site.load_org(page.request.path_params["slug"])
    return await _events_page(page)


async def _events_page(page: PageRequest) -> Response:
    """What is on sale, soonest first."""
    search = _read_search(page)
    cards, following = await load_cards(page.site.database, page.org.id if page.org else None, search, CARDS_MAX)
    return await page.render_rows(
        "events.html",
        sum(len(card.events) for card in cards),
        cards=cards,
        search=search,
        path=page.request.url.path,
        first_page=_url(page, after=None) if search.after else None,
        next_page=_url(page, after=str(following)) if following else None,
    )


async def show_series(page: PageRequest) -> Response:
    series_id = ids.parse_series_id(page.request.path_params["series"])
    series = (
        await page.site.database.shared.row(SeriesPage, sql.pages.series_with_org, series_id) if series_id else None
    )
    if series is None:
        raise PageError(NOT_FOUND)
    page.org = series.org
    after = parse_cursor(page.request.query_params.get("after", ""))
    events, following = await load_dates(page.site.database, series.id, after, DATES_MAX)
    return await page.render_rows(
        "series.html",
        len(events),
        series=series,
        days=group_by_day(events),
        places={event.short_place for event in events},
        first_page=_url(page, after=None) if after else None,
        next_page=_url(page, after=str(following)) if following else None,
    )


def _read_search(page: PageRequest) -> EventSearch:
    """What the form asks for. Ignore anything that is not a search: a reader can edit the address by hand."""
    query = page.request.query_params
    days = [_parse_day(query.get(name, "")) for name in ("from", "to")]
    if days[0] and days[1] and days[0] > days[1]:
        days.reverse()
    text = "".join(character for character in query.get("q", "") if character.isprintable())
    return EventSearch(text.strip()[:SEARCH_TEXT_MAX], days[0], days[1], parse_cursor(query.get("after", "")))


def _parse_day(text: str) -> date | None:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if FIRST_YEAR <= day.year <= LAST_YEAR else None


def _url(page: PageRequest, after: str | None) -> str:
    """The address of another part of the same list."""
    query = {name: value for name, value in page.request.query_params.items() if name in ("q", "from", "to") and value}
    parameters = urlencode({**query, "after": after} if after else query)
    return f"{page.request.url.path}?{parameters}" if parameters else page.request.url.path
