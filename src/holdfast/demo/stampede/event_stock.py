"""The event of a stampede as the database has it: its status, its capacity and the units left."""

from msgspec import Struct

from holdfast import sql
from holdfast.core.states import EventStatus
from holdfast.runtime.db import Database


class StampedeEvent(Struct, frozen=True):
    org_id: bytes
    status: EventStatus
    capacity: int


async def find_event(database: Database, event: bytes) -> StampedeEvent | None:
    return await database.event(event).row(StampedeEvent, sql.stampede.event, event)


async def count_units_left(database: Database, event: bytes) -> int:
    units: int = await database.event(event).fetchval(sql.stampede.units_left, event)
    return units
