"""A transfer and a check-in at the same moment: a used ticket cannot be transferred, and a transferred one admits
nobody."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import sql
from holdfast.core.commands import Accepted, TransferBooking
from holdfast.core.decide import Outcome
from holdfast.core.refusals import Refusal, Refused
from holdfast.core.states import Verb
from holdfast.runtime import db
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    hold_many,
    is_waiting_for_lock,
    lane_connection,
    new_action_command,
    new_event,
    one_pool,
    poll_until,
    run_commands,
)


class Door:
    """A confirmed booking, the connection of a lane, and the connection of a scanner."""

    def __init__(self, event: EventHandle, booking: bytes, lane: db.Connection, scanner: db.Connection) -> None:
        self.event = event
        self.booking = booking
        self.lane = lane
        self.scanner = scanner

    async def check_in(self) -> Any:
        """The result of the scan; `at` is set if it admits."""
        return await self.scanner.fetchrow(
            *sql.tickets.check_in(
                event=self.event.id, booking=self.booking, line=0, unit=0, generation=0, gate=None, nonce=None, actor=""
            )
        )

    async def transfer(self) -> Outcome:
        command = TransferBooking(
            event=self.event.id, org=self.event.org, booking=self.booking, generation=0, user="ben", actor="test"
        )
        (outcome,) = await run_commands(self.lane, [command])
        return outcome

    async def wait_for_lock(self, waiting: db.Connection, observer: db.Connection) -> None:
        pid = waiting.get_server_pid()
        await poll_until(lambda: is_waiting_for_lock(observer, pid))


@asynccontextmanager
async def open_door(database: str) -> AsyncIterator[Door]:
    async with lane_connection(database) as lane, lane_connection(database) as scanner:
        event = await new_event(lane, pools=one_pool(10))
        (booking,) = await hold_many(lane, event, 1)
        await run_commands(lane, [new_action_command(event, booking, Verb.CONFIRM)])
        yield Door(event, booking, lane, scanner)


async def _transfer_during_check_in(door: Door) -> Outcome:
    """Transfer while a scan has its row but has not committed."""
    async with door.scanner.transaction():
        assert (await door.check_in())["at"] is not None
        transfer = asyncio.create_task(door.transfer())
        await door.wait_for_lock(door.lane, door.scanner)
    return await transfer


@async_test
async def test_a_ticket_that_is_being_used_to_enter_cannot_be_transferred(database: str) -> None:
    async with open_door(database) as door:
        outcome = await _transfer_during_check_in(door)
        assert isinstance(outcome, Refused)
        assert outcome.refusal is Refusal.ALREADY_CHECKED_IN
        assert await door.lane.fetchval("SELECT generation FROM booking") == 0


@async_test
async def test_without_the_lock_a_used_ticket_is_transferred(database: str) -> None:
    """The control."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql.engine, "lock_transfers", sql.engine.lock_transfers.replace("FOR NO KEY UPDATE", ""))
        async with open_door(database) as door:
            assert isinstance(await _transfer_during_check_in(door), Accepted)


@async_test
async def test_a_ticket_that_is_being_transferred_admits_nobody(database: str) -> None:
    async with open_door(database) as door, lane_connection(database) as observer:
        await door.lane.execute("BEGIN")
        await door.lane.execute("UPDATE booking SET generation = 1")
        scan = asyncio.create_task(door.check_in())
        await door.wait_for_lock(door.scanner, observer)
        await door.lane.execute("COMMIT")
        found = await scan
        assert (found["generation"], found["at"]) == (1, None)
        assert await observer.fetchval("SELECT count(*) FROM checkin") == 0
