"""Holdfast without HTTP: events made and commands given in process, and a clock that can be moved."""

import asyncio
import functools
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ParamSpec

import msgspec
import psutil

from holdfast.core.commands import Accepted, ActOnBooking, Command, PlaceHold, PoolItem, SeatItem
from holdfast.core.decide import Outcome
from holdfast.core.event_schemas import EventNew
from holdfast.core.states import EventStatus, Verb
from holdfast.engine.batch import run_batch
from holdfast.engine.event_editor import create_event, set_status
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime import db, ids
from holdfast.runtime.credentials import create_org
from tests.house import show

P = ParamSpec("P")
ACTOR = "test"
TEST_SECONDS = 60
BATCH = 400


def in_a_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """A test that is a coroutine, run in an event loop of its own. It fails rather than hangs."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(TEST_SECONDS):
                await test(*args, **kwargs)

        asyncio.run(main())

    return run


@asynccontextmanager
async def lane_connection(url: str) -> AsyncIterator[db.Connection]:
    connection = await db.connect_lane(url)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


class Event(msgspec.Struct, frozen=True):
    id: bytes
    org: bytes

    @property
    def text(self) -> str:
        return ids.format_event_id(self.id)


async def new_org(connection: db.Connection) -> bytes:
    org = await create_org(connection, f"org-{secrets.token_hex(4)}")
    assert org is not None
    return org


async def new_event(connection: db.Connection, org: bytes | None = None, **changes: Any) -> Event:
    """An event on sale, as `house.show` describes it."""
    org = org or await new_org(connection)
    event = await create_event(connection, org, msgspec.convert(show(**changes), EventNew), ACTOR)
    await set_status(connection, org, event, EventStatus.ACTIVE, ACTOR)
    return Event(event, org)


def one_pool(capacity: int, price: int = 100) -> list[dict[str, Any]]:
    return [{"code": "places", "capacity": capacity, "tariffs": [{"code": "full", "price": price}]}]


def place(event: Event, *seats: str, pool: str = "places", details: str | None = None, user: str = "") -> PlaceHold:
    """A hold of these seats, or of one unit of the pool."""
    booking = ids.new_id()
    return PlaceHold(
        event=event.id,
        org=event.org,
        booking=booking,
        user=user or booking.hex(),
        actor=ACTOR,
        request_key=hashlib.blake2b(booking, digest_size=16).digest(),
        fingerprint=booking,
        items=tuple(SeatItem(seat) for seat in seats) or (PoolItem(pool, 1),),
        details=details,
    )


def act(event: Event, booking: bytes, verb: Verb) -> ActOnBooking:
    return ActOnBooking(event=event.id, org=event.org, booking=booking, verb=verb, actor=ACTOR)


async def serve(connection: db.Connection, commands: Sequence[Command]) -> list[Outcome]:
    """Run the commands in batches of bearable size."""
    outcomes: list[Outcome] = []
    layouts = LayoutCache()
    for at in range(0, len(commands), BATCH):
        outcomes += await run_batch(connection, layouts, commands[at : at + BATCH])
    return outcomes


async def hold_many(connection: db.Connection, event: Event, count: int) -> list[bytes]:
    """The bookings of so many holds of one unit each."""
    outcomes = await serve(connection, [place(event) for _ in range(count)])
    assert all(isinstance(outcome, Accepted) for outcome in outcomes)
    return [outcome.booking.id for outcome in outcomes if isinstance(outcome, Accepted)]


async def move_clock(connection: db.Connection, seconds: int) -> None:
    """From now on it is so much later in this database than it is outside."""
    await connection.execute(
        "CREATE OR REPLACE FUNCTION holdfast_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE "
        f"AS 'SELECT clock_timestamp() + interval ''{seconds} seconds'''"
    )


async def until(condition: Callable[[], Awaitable[bool] | bool], seconds: float = 10) -> None:
    """A deadline for what must happen at all, not a measure of how fast it does."""
    async with asyncio.timeout(seconds):
        while not await _truth(condition()):
            await asyncio.sleep(0.01)


async def _truth(found: Awaitable[bool] | bool) -> bool:
    return found if isinstance(found, bool) else await found


async def waits_for_a_lock(observer: db.Connection, pid: int) -> bool:
    found: bool = await observer.fetchval(
        "SELECT wait_event_type IS NOT DISTINCT FROM 'Lock' FROM pg_stat_activity WHERE pid = $1", pid
    )
    return found


def postmaster_of(folder: Path) -> psutil.Process:
    """The embedded PostgreSQL of a data folder, which has left its pid there; it need not run any more."""
    return psutil.Process(int((folder / "postgres" / "postmaster.pid").read_text().split()[0]))


def is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def stop_postgres(folder: Path) -> None:
    """End the embedded PostgreSQL of a data folder, if it runs, whoever else may use it."""
    try:
        postmaster = postmaster_of(folder)
    except (FileNotFoundError, psutil.NoSuchProcess):
        return
    if is_running(postmaster) and postmaster.name() == "postgres":
        postmaster.send_signal(signal.SIGINT)
        postmaster.wait(20)


def holdfast(*arguments: str, database_url: str = "") -> "subprocess.CompletedProcess[str]":
    """The command line. Without an address it uses the embedded PostgreSQL of the `--data` folder it is given."""
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_DATABASE_URL"}
    if database_url:
        environment["HOLDFAST_DATABASE_URL"] = database_url
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments], env=environment, capture_output=True, text=True, timeout=60
    )


def audit(*arguments: str, database_url: str = "") -> dict[str, Any]:
    """What `holdfast audit` says, once its exit code is checked against it."""
    done = holdfast("audit", *arguments, database_url=database_url)
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1), done.stderr
    return report
