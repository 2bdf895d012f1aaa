"""`holdfast reap`: expires due holds now, without waiting for a worker."""

import asyncio
from collections import deque
from functools import partial
from typing import Annotated, Final

import msgspec
import typer
from asyncpg import LockNotAvailableError
from msgspec import Struct

from holdfast import sql
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.sweeper import NotConnectedError, SweeperPool
from holdfast.runtime import db, ids
from holdfast.runtime.cli_database import DataFolder, fail, find_database, open_database, require_database

# Each failure halves the event's next sweep, so the last try covers a single booking.
TRIES_MAX: Final = 10


class EventToReap(Struct, frozen=True):
    """What is due in an event: holds past their deadline with their units and, if the event has ended, bookings that
    end with it."""

    id: bytes
    title: str
    due_holds: int
    due_units: int
    ending_bookings: int


class ReapedEvent(Struct, frozen=True, kw_only=True):
    """An event in the report. `ended` counts the bookings that this command expired or ended. It is lower than what was
    due if a worker ended some of them first."""

    event: str
    title: str
    due_holds: int
    due_units: int
    ending_bookings: int
    ended: int
    error: str | None


class ReapReport(Struct, frozen=True, kw_only=True):
    ok: bool
    dry_run: bool
    events: list[ReapedEvent]


def reap(
    event: Annotated[str | None, typer.Option(help="Reap only this event.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what is due, and change nothing.")] = False,
    data: DataFolder = None,
) -> None:
    """Expire all holds that are past their deadline, and end the bookings of completed and cancelled events.

    A worker does the same every second. Run this if no worker is running, or to see why an event fails. You can run it
    next to workers and servers. Prints a report as JSON. Exits with 1 if an event failed; the others are done.
    """
    event_id = ids.parse_event_id(event) if event is not None else None
    if event is not None and event_id is None:
        fail(f"{event} is not an event id. An event id is ev_ followed by 32 hexadecimal digits.")
    require_database(data)
    url = find_database(data) if dry_run else open_database(data)
    try:
        report = asyncio.run(_reap(url, event_id, dry_run=dry_run))
    except db.LOST_ERRORS:
        fail("Lost the connection to the database. Everything reaped so far is saved. Run the command again.")
    typer.echo(msgspec.json.format(msgspec.json.encode(report)))
    raise typer.Exit(0 if report.ok else 1)


async def _reap(url: str, event: bytes | None, *, dry_run: bool) -> ReapReport:
    connection = await (db.connect_reader if dry_run else db.connect)(url)
    try:
        due = await _find_due(db.Database(connection), event)
    finally:
        await connection.close()
    sweepers = SweeperPool(partial(db.connect_lane, url), LayoutCache())
    try:
        reaped = [_report(each) for each in due] if dry_run else await _sweep_all(sweepers, due)
    finally:
        sweepers.close()
    return ReapReport(ok=not any(each.error for each in reaped), dry_run=dry_run, events=reaped)


async def _find_due(database: db.Database, event: bytes | None) -> list[EventToReap]:
    if event is not None and await database.event(event).fetchrow(sql.reads.event_owner, event) is None:
        fail(f"There is no event {ids.format_event_id(event)}.")
    return await database.all_events.rows(EventToReap, *sql.worker.events_to_reap(event=event))


async def _sweep_all(sweepers: SweeperPool, due: list[EventToReap]) -> list[ReapedEvent]:
    """Sweep every event until nothing is due. An event that fails waits behind the others for its next try."""
    ended = dict.fromkeys((each.id for each in due), 0)
    errors: dict[bytes, str] = {}
    tries = deque((each.id, TRIES_MAX) for each in due)
    while tries:
        event, left = tries.popleft()
        errors.pop(event, None)
        try:
            while count := await sweepers.sweep(event):
                ended[event] += count
        except NotConnectedError:
            raise
        except LockNotAvailableError:
            errors[event] = "Another process keeps the event locked. Run the command again."
        except Exception as error:
            # The other lines of a database error quote rows, which may contain a buyer's data.
            errors[event] = f"{type(error).__name__}: {error}".partition("\n")[0]
            if left > 1:
                tries.append((event, left - 1))
    return [_report(each, ended[each.id], errors.get(each.id)) for each in due]


def _report(due: EventToReap, ended: int = 0, error: str | None = None) -> ReapedEvent:
    return ReapedEvent(
        event=ids.format_event_id(due.id),
        title=due.title,
        due_holds=due.due_holds,
        due_units=due.due_units,
        ending_bookings=due.ending_bookings,
        ended=ended,
        error=error,
    )
