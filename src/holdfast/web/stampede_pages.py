"""The page on which a rush of simulated buyers is started and watched. In demo mode only."""

from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from holdfast.demo.stampede.launch import launch
from holdfast.demo.stampede.record import StampedeError, read_latest_report
from holdfast.i18n.texts import section
from holdfast.runtime import ids
from holdfast.runtime.db import Database
from holdfast.web.api_types import Availability, Event
from holdfast.web.event_pages import event_data, find_event
from holdfast.web.site import PageRequest, Site, answer_json

BUYERS: Final = 5_000
SECONDS: Final = 10


def stampede_routes(site: Site) -> list[Route]:
    if not site.settings.demo:
        return []
    return [
        Route("/e/{event}/stampede", site.page(show), methods=["GET"]),
        Route("/e/{event}/stampede", site.page(start), methods=["POST"]),
        Route("/e/{event}/stampede/report", site.page(report), methods=["GET"]),
    ]


async def show(page: PageRequest) -> Response:
    event, revision = await find_event(page)
    return await _page(page, event, revision)


async def start(page: PageRequest) -> Response:
    event, revision = await find_event(page)
    form = await page.form()
    settings = page.site.settings
    try:
        buyers, seconds = int(form.get("buyers", "")), float(form.get("seconds", ""))
        url = settings.public_url
        await launch(Database(page.site.pool), settings, _id(event), buyers=buyers, seconds=seconds, url=url)
    except (StampedeError, ValueError) as error:
        told = str(error) if isinstance(error, StampedeError) else None
        return await _page(page, event, revision, 409, told)
    return page.go(f"/e/{event.id}/stampede")


async def report(page: PageRequest) -> Response:
    event, _ = await find_event(page)
    return answer_json(await read_latest_report(Database(page.site.pool), _id(event)))


async def _page(
    page: PageRequest, event: Event, revision: int, status: int = 200, problem: str | None = None
) -> Response:
    found = await read_latest_report(Database(page.site.pool), _id(event))
    left = await page.api.get(f"/v1/events/{event.id}/availability", Availability)
    return page.show(
        "stampede.html",
        status,
        event=event,
        remaining=sum(pool.remaining for pool in left.pools),
        problem=problem,
        buyers=BUYERS,
        seconds=SECONDS,
        page={
            **event_data(page, event, revision),
            "report": found,
            "address": f"/e/{event.id}/stampede/report",
            "stampede": section(page.language, "stampede"),
        },
    )


def _id(event: Event) -> bytes:
    parsed = ids.parse_event_id(event.id)
    assert parsed is not None
    return parsed
