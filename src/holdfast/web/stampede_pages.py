"""The page that starts a rush of simulated buyers and shows how it goes. Demo mode only."""

from typing import Final

from babel.numbers import format_decimal
from msgspec import Struct, ValidationError, convert
from starlette.responses import Response
from starlette.routing import Route

from holdfast.demo.stampede.launch import BUYERS_MAX, SECONDS_MAX, launch
from holdfast.demo.stampede.record import read_latest_report
from holdfast.demo.stampede.report import StampedeError, StampedeProblem
from holdfast.i18n.texts import section, translate
from holdfast.web.event_listing import EventListing
from holdfast.web.event_pages import event_data, load_event
from holdfast.web.page_request import PageRequest
from holdfast.web.site import Site, json_response

BUYERS: Final = 5_000
SECONDS: Final = 10


class StampedeForm(Struct, frozen=True):
    buyers: int
    seconds: float


def stampede_routes(site: Site) -> list[Route]:
    if not site.settings.demo:
        return []
    return [
        Route("/e/{event}/stampede", site.page(show), methods=["GET"]),
        Route("/e/{event}/stampede", site.page(start), methods=["POST"]),
        Route("/e/{event}/stampede/report", site.page(send_report), methods=["GET"]),
    ]


async def show(page: PageRequest) -> Response:
    return await _page(page, await load_event(page))


async def start(page: PageRequest) -> Response:
    listing = await load_event(page)
    fields = await page.read_fields()
    settings, url = page.site.settings, page.site.settings.public_url
    try:
        form = convert(fields, StampedeForm, strict=False)
        await launch(page.site.database, settings, listing.id, buyers=form.buyers, seconds=form.seconds, url=url)
    except ValidationError:
        return await _page(page, listing, 409, StampedeProblem.OUT_OF_RANGE)
    except StampedeError as error:
        return await _page(page, listing, 409, error.problem)
    return page.redirect(f"/e/{listing.event.id}/stampede")


async def send_report(page: PageRequest) -> Response:
    listing = await load_event(page)
    return json_response(await read_latest_report(page.site.database, listing.id))


async def _page(
    page: PageRequest, listing: EventListing, status: int = 200, problem: StampedeProblem | None = None
) -> Response:
    event = listing.event
    return page.render(
        "stampede.html",
        status,
        event=event,
        listing=listing,
        problem=_problem_text(page.language, problem) if problem else None,
        buyers=BUYERS,
        seconds=SECONDS,
        buyers_max=BUYERS_MAX,
        seconds_max=SECONDS_MAX,
        script_data={
            **event_data(page, listing),
            "report": await read_latest_report(page.site.database, listing.id),
            "reportUrl": f"/e/{event.id}/stampede/report",
            "stampede": section(page.language, "stampede"),
        },
    )


def _problem_text(language: str, problem: StampedeProblem) -> str:
    buyers = format_decimal(BUYERS_MAX, locale=language)
    return translate(language, f"stampede.problem.{problem}", buyers=buyers, seconds=SECONDS_MAX)
