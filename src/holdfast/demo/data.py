"""Demo data: one org with one event per preset."""

from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast import sql
from holdfast.core.event_schemas import EventNew, PolicyChange, PoolNew, SeatGrid, SeatNew, TariffNew
from holdfast.core.states import EventStatus
from holdfast.engine.event_editor import create_event, set_status
from holdfast.runtime import ids
from holdfast.runtime.credentials import create_org
from holdfast.runtime.db import Connection

ORG: Final = "demo"
ACTOR: Final = "demo"


async def fill_demo(connection: Connection) -> list[str]:
    """Make what is missing. Returns one line for each event: its id, preset and title."""
    await create_org(connection, ORG, "Holdfast Demo")
    org = (await connection.fetchrow(sql.credentials.org_by_slug, ORG))["id"]
    known = {row["title"]: row["id"] for row in await connection.fetch(sql.reads.events, org, False, None, None, 200)}
    lines = []
    for offer in _offers(datetime.now(UTC)):
        event = known.get(offer.title)
        if event is None:
            event = await create_event(connection, org, offer, ACTOR)
            await set_status(connection, org, event, EventStatus.ACTIVE, ACTOR)
        lines.append(f"{ids.format_event_id(event)}  {offer.preset:<12}  {offer.title}")
    return lines


def _offers(now: datetime) -> list[EventNew]:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return [
        EventNew(
            title="Warehouse shift, Saturday morning",
            preset="shift",
            starts_at=today + timedelta(days=6, hours=5),
            ends_at=today + timedelta(days=6, hours=13),
            timezone="Europe/Madrid",
            currency="EUR",
            pools=[PoolNew(code="workers", name="Workers", capacity=3, tariffs=[TariffNew(code="fee", price=500)])],
            details={
                "address": "Dock 4, Harbour Road 12",
                "pay": "14 EUR an hour",
                "hours": "06:00 to 14:00",
            },
        ),
        EventNew(
            title="The Winter Concert",
            preset="show",
            starts_at=today + timedelta(days=20, hours=19),
            ends_at=today + timedelta(days=20, hours=22),
            timezone="Europe/Madrid",
            currency="EUR",
            tax_bps=700,
            pools=_hall(),
            details={"address": "Great Hall, Museum Square 1"},
        ),
        EventNew(
            title="Arena Final",
            preset="arena",
            starts_at=today + timedelta(days=40, hours=18),
            ends_at=today + timedelta(days=40, hours=21),
            timezone="Europe/Madrid",
            currency="EUR",
            tax_bps=1900,
            pools=[
                PoolNew(
                    code=f"block-{block}",
                    name=f"Block {block}",
                    tariffs=[TariffNew(code="full", price=5500)],
                    seats=SeatGrid(rows=[f"{block}{row}" for row in range(1, 26)], numbers=50),
                )
                for block in "ABCD"
            ],
        ),
        EventNew(
            title="Open-source meetup",
            preset="registration",
            starts_at=today + timedelta(days=10, hours=17),
            ends_at=today + timedelta(days=10, hours=20),
            timezone="Europe/Madrid",
            currency="EUR",
            pools=[PoolNew(code="places", name="Places", capacity=120)],
        ),
        EventNew(
            title="Old-town walking tour",
            preset="experience",
            starts_at=today + timedelta(days=3, hours=14),
            ends_at=today + timedelta(days=3, hours=23),
            timezone="America/Bogota",
            currency="COP",
            tax_bps=1900,
            policy=PolicyChange(max_units_per_user=12),
            pools=[
                PoolNew(
                    code=f"{hour:02}:00",
                    name=f"Tour at {hour:02}:00",
                    capacity=20,
                    tariffs=[
                        TariffNew(code="adult", name="Adult", price=5_000_000),
                        TariffNew(code="child", name="Child", price=2_500_000),
                    ],
                )
                for hour in (9, 11, 14, 16)
            ],
        ),
    ]


def _hall() -> list[PoolNew]:
    """2,000 seats: stalls before a dress circle before a gallery, rows curved around the stage."""
    sections = [
        ("stalls", "Stalls", 9000, 20, 50, 6.0),
        ("circle", "Dress circle", 6500, 12, 50, 30.0),
        ("gallery", "Gallery", 3500, 8, 50, 46.0),
    ]
    return [
        PoolNew(
            code=code,
            name=name,
            tariffs=[
                TariffNew(code="full", name="Full price", price=price),
                TariffNew(code="student", name="Student", price=price // 2),
            ],
            seats=[_seat(code, row, place, width, depth) for row in range(rows) for place in range(1, width + 1)],
        )
        for code, name, price, rows, width, depth in sections
    ]


def _seat(section: str, row: int, place: int, width: int, depth: float) -> SeatNew:
    offset = place - (width + 1) / 2
    name = f"{section[0].upper()}{row + 1}"
    return SeatNew(label=f"{name}-{place}", row=name, number=place, x=offset, y=depth + row - offset * offset / 120)
