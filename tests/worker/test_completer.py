"""The completer ends every event that is over, even if it cannot end some of them."""

from holdfast import sql
from holdfast.runtime import db
from holdfast.worker.completer import Completer
from tests.support.engine_harness import EventHandle, async_test, lane_connection, new_event, new_org, one_pool


async def _status(connection: db.Connection, event: EventHandle) -> str:
    status: str = await connection.fetchval("SELECT status FROM event WHERE id = $1", event.id)
    return status


@async_test
async def test_a_locked_event_does_not_keep_others_from_being_completed(database: str) -> None:
    async with lane_connection(database) as connection, lane_connection(database) as other:
        org = await new_org(connection)
        over = {"starts_at": "2026-01-01T19:00:00Z", "ends_at": "2026-01-01T20:00:00Z", "pools": one_pool(1)}
        locked, free = [await new_event(connection, org, **over) for _ in range(2)]
        await connection.execute("SET lock_timeout = '50ms'")
        await connection.execute("UPDATE event SET ends_at = ends_at - interval '1 day' WHERE id = $1", locked.id)
        completer = Completer(db.Database(connection))
        async with other.transaction():
            await other.fetch(sql.engine.lock, [locked.id])
            assert await completer.run_once() == 1
            assert [await _status(connection, event) for event in (locked, free)] == ["active", "completed"]
            assert await completer.run_once() == 0
        assert await Completer(db.Database(connection)).run_once() == 1
        assert await _status(connection, locked) == "completed"
