"""Work on a large hall leaves the event loop free for other requests.

Each test does the work once on its own to see how long it takes, and then measures for how long it keeps the loop from
running. A busy machine slows both down. It can also pause the process at any moment, so the best of a few tries counts.
"""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from holdfast import sql
from holdfast.core.event_schemas import EventNew
from holdfast.core.stock_schemas import PoolNew, SeatGrid
from holdfast.engine import event_editor, stock_editor
from holdfast.live import live_event as live_event_module
from holdfast.live.live_event import LiveEvent
from holdfast.runtime import db
from holdfast.runtime.loop_lag import LoopLag
from tests.support.engine_harness import async_test, lane_connection, new_org

TRIES = 5
HALL = EventNew(
    title="Arena",
    starts_at=datetime(2030, 1, 1, tzinfo=UTC),
    currency="EUR",
    pools=[PoolNew(code="hall", seats=SeatGrid(rows=[f"R{row}" for row in range(60)], numbers=1000))],
)


def seconds_of(work: Callable[[], object]) -> float:
    started_at = time.perf_counter()
    work()
    return time.perf_counter() - started_at


async def lag_of(work: Callable[[], Awaitable[object]]) -> float:
    """The longest time for which the loop could not run while this work was done."""
    lag = LoopLag()
    lag.start()
    await work()
    lag.stop()
    return lag.max_seconds


async def check_lag(alone: Callable[[], object], in_loop: Callable[[], Awaitable[object]]) -> None:
    ratios = []
    for _ in range(TRIES):
        ratios.append(await lag_of(in_loop) / seconds_of(alone))
        if ratios[-1] < 0.5:
            return
    raise AssertionError(f"the work kept the loop busy for {ratios} of the time it takes")


@async_test
async def test_creating_a_large_hall_leaves_the_loop_free(database: str) -> None:
    async with lane_connection(database) as connection:
        org = await new_org(connection)

        async def create() -> None:
            await event_editor.create_event(db.Database(connection), org, HALL, "test")

        await create()
        await check_lag(lambda: stock_editor.prepare_stock(HALL.pools), create)


@async_test
async def test_reading_a_large_hall_for_the_first_time_leaves_the_loop_free(database: str) -> None:
    async with lane_connection(database) as connection:
        org = await new_org(connection)
        event = await event_editor.create_event(db.Database(connection), org, HALL, "test")
        seats = await connection.fetch(sql.reads.seats, event)

        async def read() -> None:
            live_event = LiveEvent(db.Database(connection), event)
            await live_event.refresh()
            assert live_event.size == len(seats)

        await check_lag(lambda: live_event_module._make_snapshot(event, 1, seats, {}), read)
