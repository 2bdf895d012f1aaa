"""The page on which a rush of simulated buyers is started and watched. In demo mode only."""

from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from holdfast import ids
from holdfast.stampede.launch import launch
from holdfast.stampede.record import StampedeError, latest
from holdfast.web.events import event_data, find_event
from holdfast.web.site import Ask, Site, answer_json
from holdfast.web.things import Availability, Event
from holdfast.web.wording import of_stampede

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


async def show(ask: Ask) -> Response:
    event, revision = await find_event(ask)
    return await _page(ask, event, revision)


async def start(ask: Ask) -> Response:
    event, revision = await find_event(ask)
    form = await ask.form()
    settings = ask.site.settings
    try:
        buyers, seconds = int(form.get("buyers", "")), float(form.get("seconds", ""))
        url = settings.public_url
        await launch(ask.site.pool, settings, _id(event), buyers=buyers, seconds=seconds, url=url)
    except (StampedeError, ValueError) as error:
        told = str(error) if isinstance(error, StampedeError) else None
        return await _page(ask, event, revision, 409, told)
    return ask.go(f"/e/{event.id}/stampede")


async def report(ask: Ask) -> Response:
    event, _ = await find_event(ask)
    return answer_json(await latest(ask.site.pool, _id(event)))


async def _page(ask: Ask, event: Event, revision: int, status: int = 200, problem: str | None = None) -> Response:
    found = await latest(ask.site.pool, _id(event))
    left = await ask.api.get(f"/v1/events/{event.id}/availability", Availability)
    return ask.show(
        "stampede.html",
        status,
        event=event,
        remaining=sum(pool.remaining for pool in left.pools),
        problem=problem,
        buyers=BUYERS,
        seconds=SECONDS,
        page={
            **event_data(ask, event, revision),
            "report": found,
            "address": f"/e/{event.id}/stampede/report",
            "stampede": of_stampede(ask.language),
        },
    )


def _id(event: Event) -> bytes:
    parsed = ids.parse_event(event.id)
    assert parsed is not None
    return parsed
