"""A batch never reads the details of bookings. An older version allowed them to be large."""

from typing import Any, cast

from holdfast.core.states import EventStatus, Verb
from holdfast.engine.batch import run_batch, sweep
from holdfast.engine.event_editor import set_status
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime import db
from tests.support.engine_harness import (
    ACTOR,
    EventHandle,
    async_test,
    hold_many,
    lane_connection,
    new_action_command,
    new_event,
    one_pool,
)

MEBIBYTE = 1024 * 1024
BOOKINGS = 20


class MeasuredConnection:
    """A connection that knows the size of the largest text that it has read or sent."""

    def __init__(self, connection: db.Connection) -> None:
        self._connection = connection
        self.largest = 0

    async def fetchval(self, statement: str, *values: Any) -> Any:
        value = await self._connection.fetchval(statement, *values)
        self._measure(value, *values)
        return value

    async def fetchrow(self, statement: str, *values: Any) -> Any:
        self._measure(*values)
        return await self._connection.fetchrow(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def _measure(self, *values: Any) -> None:
        self.largest = max([self.largest, *(len(value) for value in values if isinstance(value, str))])


async def _event_with_large_details(connection: db.Connection) -> tuple[EventHandle, list[bytes]]:
    event = await new_event(connection, pools=one_pool(BOOKINGS))
    bookings = await hold_many(connection, event, BOOKINGS)
    await connection.execute(
        "UPDATE booking SET details = json_build_object('a', repeat('x', $2)) WHERE event_id = $1", event.id, MEBIBYTE
    )
    return event, bookings


@async_test
async def test_winding_up_an_event_does_not_read_the_details_of_its_bookings(database: str) -> None:
    async with lane_connection(database) as connection:
        event, _ = await _event_with_large_details(connection)
        await set_status(db.Database(connection), event.org, event.id, EventStatus.CANCELLED, ACTOR)
        measured = MeasuredConnection(connection)
        assert await sweep(cast(db.Connection, measured), LayoutCache(), event.id) == BOOKINGS
        assert 0 < measured.largest < MEBIBYTE


@async_test
async def test_acting_on_bookings_does_not_read_their_details_and_keeps_them(database: str) -> None:
    async with lane_connection(database) as connection:
        event, bookings = await _event_with_large_details(connection)
        measured = MeasuredConnection(connection)
        commands = [new_action_command(event, booking, Verb.CONFIRM) for booking in bookings]
        await run_batch(cast(db.Connection, measured), LayoutCache(), commands)
        assert 0 < measured.largest < MEBIBYTE
        kept = "SELECT count(*) FROM booking WHERE status = 'confirmed' AND length(details ->> 'a') = $1"
        assert await connection.fetchval(kept, MEBIBYTE) == BOOKINGS
