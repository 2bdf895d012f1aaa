"""The engine without HTTP: events and commands in process, and a clock that tests can set."""

import asyncio
import functools
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from typing import Any, ParamSpec

import msgspec

from holdfast.core.commands import (
    Accepted,
    ActOnBooking,
    BookingAction,
    Command,
    PlaceHold,
    PoolItem,
    SeatItem,
    StartPayment,
)
from holdfast.core.decide import Outcome
from holdfast.core.event_schemas import EventNew
from holdfast.core.states import EventStatus, Verb
from holdfast.engine.batch import run_batch
from holdfast.engine.event_editor import create_event, set_status
from holdfast.engine.layout_cache import LayoutCache
from holdfast.runtime import db, ids
from holdfast.runtime.credentials import create_org
from holdfast.sql import NamedStatement
from tests.support.harness import connection_to, example_event

P = ParamSpec("P")
ACTOR = "test"
TEST_SECONDS = 60
BATCH = 400
LOCK_SECONDS = 3


def async_test(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a coroutine as a test, in an event loop of its own, with a timeout."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(TEST_SECONDS):
                await test(*args, **kwargs)

        asyncio.run(main())

    return run


def lane_connection(url: str) -> AbstractAsyncContextManager[db.Connection]:
    return connection_to(url, db.connect_lane)


class EventHandle(msgspec.Struct, frozen=True):
    id: bytes
    org: bytes

    @property
    def text(self) -> str:
        return ids.format_event_id(self.id)


async def new_org(connection: db.Connection) -> bytes:
    org = await create_org(db.Database(connection), f"org-{secrets.token_hex(4)}")
    assert org is not None
    return org


async def new_event(connection: db.Connection, org: bytes | None = None, **changes: Any) -> EventHandle:
    """An event on sale, as `harness.example_event` describes it."""
    org = org or await new_org(connection)
    event = await create_event(db.Database(connection), org, msgspec.convert(example_event(**changes), EventNew), ACTOR)
    await set_status(db.Database(connection), org, event, EventStatus.ACTIVE, ACTOR)
    return EventHandle(event, org)


def one_pool(capacity: int, price: int = 100) -> list[dict[str, Any]]:
    return [{"code": "places", "capacity": capacity, "tariffs": [{"code": "full", "price": price}]}]


def new_hold_command(
    event: EventHandle, *seats: str, pool: str = "places", details: str | None = None, user: str = ""
) -> PlaceHold:
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


def new_action_command(event: EventHandle, booking: bytes, verb: BookingAction) -> ActOnBooking:
    return ActOnBooking(event=event.id, org=event.org, booking=booking, verb=verb, actor=ACTOR)


def new_payment_command(event: EventHandle, booking: bytes, payment: bytes | None = None) -> StartPayment:
    payment = payment or ids.new_id()
    return StartPayment(
        event=event.id,
        org=event.org,
        booking=booking,
        payment=payment,
        provider="sandbox",
        actor=ACTOR,
        request_key=payment,
        fingerprint=payment,
    )


async def run_commands(connection: db.Connection, commands: Sequence[Command]) -> list[Outcome]:
    """Run the commands in batches of limited size."""
    outcomes: list[Outcome] = []
    layouts = LayoutCache()
    for at in range(0, len(commands), BATCH):
        batch = await run_batch(connection, layouts, commands[at : at + BATCH], LOCK_SECONDS)
        outcomes += [outcome for outcome in batch if outcome is not None]
    return outcomes


async def hold_many(connection: db.Connection, event: EventHandle, count: int) -> list[bytes]:
    """Place `count` holds of one unit each and return their bookings."""
    outcomes = await run_commands(connection, [new_hold_command(event) for _ in range(count)])
    assert all(isinstance(outcome, Accepted) for outcome in outcomes)
    return [outcome.booking.id for outcome in outcomes if isinstance(outcome, Accepted)]


async def sell_many(connection: db.Connection, event: EventHandle, count: int) -> list[bytes]:
    """Place and confirm `count` bookings of one unit each."""
    bookings = await hold_many(connection, event, count)
    await run_commands(connection, [new_action_command(event, booking, Verb.CONFIRM) for booking in bookings])
    return bookings


async def shift_clock(connection: db.Connection | db.DatabaseScope, seconds: int) -> None:
    """Set the clock of this database ahead by this many seconds."""
    await connection.execute(
        "CREATE OR REPLACE FUNCTION holdfast_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE "
        f"AS 'SELECT clock_timestamp() + interval ''{seconds} seconds'''"
    )


async def poll_until(condition: Callable[[], Awaitable[bool] | bool], seconds: float = 10) -> None:
    """Poll until the condition holds. The deadline only keeps a test from hanging."""
    async with asyncio.timeout(seconds):
        while not await _resolve(condition()):
            await asyncio.sleep(0.01)


async def _resolve(result: Awaitable[bool] | bool) -> bool:
    return result if isinstance(result, bool) else await result


def remove_guard(guard: str, statement: NamedStatement, replacement: str = "") -> NamedStatement:
    """Return the statement without one of its conditions, to show what the condition prevents."""
    assert guard in statement.text
    unguarded = copy(statement)
    unguarded.text = statement.text.replace(guard, replacement)
    return unguarded


async def is_waiting_for_lock(observer: db.Connection, pid: int) -> bool:
    is_waiting: bool = await observer.fetchval(
        "SELECT wait_event_type IS NOT DISTINCT FROM 'Lock' FROM pg_stat_activity WHERE pid = $1", pid
    )
    return is_waiting
