"""Demo data: one org with one event per preset, and a film that runs on several evenings."""

from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.event_schemas import ContactChange, EventNew, PolicyChange, QuestionNew
from holdfast.core.shift import Shift
from holdfast.core.states import EventStatus
from holdfast.core.stock_schemas import PoolNew, SeatGrid, SeatNew, TariffNew
from holdfast.engine.event_editor import create_event, set_status
from holdfast.runtime import ids
from holdfast.runtime.credentials import create_org
from holdfast.runtime.db import Database

ORG: Final = "demo"
ACTOR: Final = "demo"
SATURDAY: Final = 5
TOUR_DAYS: Final = 14
FILM: Final = "Metropolis"
SHOWINGS: Final = 6
TOUR_HOURS: Final = (9, 11, 14, 16)
# Bogotá is this many hours behind UTC all year.
BOGOTA_HOURS: Final = 5


class _DemoEventRow(Struct, frozen=True):
    id: bytes
    title: str


async def fill_demo(database: Database) -> list[str]:
    """Create the missing events. Returns one line per event: its id, preset and title."""
    await create_org(database, ORG, "Holdfast Demo")
    org: bytes = await database.shared.fetchval(sql.credentials.org_by_slug, ORG)
    rows = await database.org(org).rows(_DemoEventRow, sql.reads.titles, org)
    existing = {row.title: row.id for row in rows}
    lines = []
    for new in _new_events(datetime.now(UTC)):
        event = existing.get(new.title) or await _publish(database, org, new)
        lines.append(f"{ids.format_event_id(event)}  {new.preset:<12}  {new.title}")
    if FILM not in existing:
        await _show_film(database, org, datetime.now(UTC))
    return lines


async def _show_film(database: Database, org: bytes, now: datetime) -> None:
    """A series: the same film on several evenings, in a small cinema."""
    series = ids.new_id()
    await database.org(org).execute(
        *sql.series.insert_series(
            id=series, org=org, title=FILM, description="Fritz Lang, 1927, with live piano.", details="{}"
        )
    )
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    for day in range(1, SHOWINGS + 1):
        showing = EventNew(
            title=FILM,
            preset="show",
            starts_at=today + timedelta(days=2 * day, hours=19),
            ends_at=today + timedelta(days=2 * day, hours=22),
            timezone="Europe/Madrid",
            currency="EUR",
            tax_bps=1000,
            pools=[
                PoolNew(
                    code="cinema",
                    name="Cinema",
                    tariffs=[
                        TariffNew(code="full", name="Full price", price=1200),
                        TariffNew(code="student", name="Student", price=800),
                    ],
                    seats=SeatGrid(rows=list("ABCDEFGH"), numbers=12),
                )
            ],
            details={"address": "Cine Doré, Calle de Santa Isabel 3"},
            series=ids.format_series_id(series),
        )
        await _publish(database, org, showing)


async def _publish(database: Database, org: bytes, new: EventNew) -> bytes:
    event = await create_event(database, org, new, ACTOR)
    await set_status(database, org, event, EventStatus.ACTIVE, ACTOR)
    return event


def _new_events(now: datetime) -> list[EventNew]:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    saturday = today + timedelta(days=(SATURDAY - today.weekday()) % 7 or 7)
    return [_shift(saturday), _concert(today), _arena(today), _meetup(today), _tours(today)]


def _shift(saturday: datetime) -> EventNew:
    return EventNew(
        title="Warehouse shift, Saturday morning",
        preset="shift",
        starts_at=saturday + timedelta(hours=5),
        ends_at=saturday + timedelta(hours=13),
        timezone="Europe/Madrid",
        currency="EUR",
        pools=[
            PoolNew(
                code="workers",
                name="Workers",
                capacity=3,
                tariffs=[TariffNew(code="fee", name="Service fee", price=500)],
            )
        ],
        contact=ContactChange(name="required", phone="required"),
        providers=[],
        payment_instructions="Send the service fee by bank transfer to ES91 2100 0418 4502 0005 1332.\n"
        "Then upload a photo of the receipt here.",
        shift=Shift(
            order_number=1042,
            salary="14 € an hour",
            food="Lunch included",
            work_time="06:00 to 14:00",
            address="Dock 4, Harbour Road 12",
            service_fee=500,
            buses="12 and 40, stop Harbour",
            additional_info="Bring gloves and closed shoes.",
            date=saturday.date(),
        ),
    )


def _concert(today: datetime) -> EventNew:
    return EventNew(
        title="The Winter Concert",
        preset="show",
        starts_at=today + timedelta(days=20, hours=19),
        ends_at=today + timedelta(days=20, hours=22),
        timezone="Europe/Madrid",
        currency="EUR",
        tax_bps=700,
        pools=_concert_hall(),
        details={"address": "Great Hall, Museum Square 1"},
    )


def _arena(today: datetime) -> EventNew:
    return EventNew(
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
                tariffs=[TariffNew(code="full", name="Full price", price=5500)],
                seats=SeatGrid(rows=[f"{block}{row}" for row in range(1, 26)], numbers=50),
            )
            for block in "ABCD"
        ],
    )


def _meetup(today: datetime) -> EventNew:
    return EventNew(
        title="Open-source meetup",
        preset="registration",
        starts_at=today + timedelta(days=10, hours=17),
        ends_at=today + timedelta(days=10, hours=20),
        timezone="Europe/Madrid",
        currency="EUR",
        pools=[PoolNew(code="places", name="General admission", capacity=120)],
        contact=ContactChange(name="required"),
        questions=[
            QuestionNew(code="diet", label="What do you eat?", kind="choice", choices=["Everything", "Vegan"]),
            QuestionNew(code="talk", label="Would you like to give a lightning talk?", kind="yes_no"),
        ],
    )


def _tours(today: datetime) -> EventNew:
    return EventNew(
        title="Old-town walking tour",
        preset="experience",
        starts_at=today + timedelta(days=1, hours=TOUR_HOURS[0] + BOGOTA_HOURS),
        ends_at=today + timedelta(days=TOUR_DAYS + 1, hours=BOGOTA_HOURS),
        timezone="America/Bogota",
        currency="COP",
        tax_bps=1900,
        policy=PolicyChange(max_units_per_user=12),
        details={"address": "Plaza de Bolívar"},
        pools=[
            _tour(today + timedelta(days=day, hours=hour + BOGOTA_HOURS), hour)
            for day in range(1, TOUR_DAYS + 1)
            for hour in TOUR_HOURS
        ],
    )


def _tour(starts_at: datetime, hour: int) -> PoolNew:
    return PoolNew(
        code=f"{starts_at:%m%d}-{hour:02}00",
        name=f"Tour at {hour:02}:00",
        capacity=20,
        starts_at=starts_at,
        ends_at=starts_at + timedelta(minutes=90),
        tariffs=[
            TariffNew(code="adult", name="Adult", price=5_000_000),
            TariffNew(code="child", name="Child", price=2_500_000, needs_companion=True),
        ],
    )


def _concert_hall() -> list[PoolNew]:
    """2,000 seats in stalls, dress circle and gallery, in rows that curve around the stage."""
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
            seats=[_seat(code, row, number, width, depth) for row in range(rows) for number in range(1, width + 1)],
        )
        for code, name, price, rows, width, depth in sections
    ]


def _seat(section: str, row: int, number: int, width: int, depth: float) -> SeatNew:
    x = number - (width + 1) / 2
    name = f"{section[0].upper()}{row + 1}"
    return SeatNew(label=f"{name}-{number}", row=name, number=number, x=x, y=depth + row - x * x / 120)
