"""Attempts and refusals are logged up to a number per second, and counted beyond it."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.core.refusals import Refusal, Refused
from holdfast.core.states import Verb
from holdfast.engine import attempt_log as module
from holdfast.engine.attempt_log import AttemptLog, attempt_log
from holdfast.runtime import db, ids
from holdfast.runtime.request_ids import set_request_id
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    one_pool,
    poll_until,
)
from tests.support.lane_harness import running_lane, submit_all

EVENT = EventHandle(bytes(16), bytes(16))


@pytest.fixture(autouse=True)
def _stop_afterwards() -> Iterator[None]:
    yield
    attempt_log.stop()


def _named(logs: list[Any], name: str) -> list[dict[str, Any]]:
    return [dict(line) for line in logs if line["event"] == name]


@async_test
async def test_lines_and_counts_add_up_to_the_attempts() -> None:
    attempts = AttemptLog()
    attempts.start(3)
    with capture_logs() as logs:
        for _ in range(10):
            attempts.add_attempt(new_hold_command(EVENT))
        attempts.stop()
    (suppressed,) = _named(logs, "lines_suppressed")
    assert len(_named(logs, "hold_attempted")) == 3
    assert (suppressed["name"], suppressed["lines"]) == ("hold_attempted", 7)


@async_test
async def test_suppressed_refusals_are_counted_by_their_code() -> None:
    attempts = AttemptLog()
    attempts.start(1)
    sold_out, taken = Refused(Refusal.SOLD_OUT), Refused(Refusal.SEAT_TAKEN)
    with capture_logs() as logs:
        for refused in (taken, sold_out, sold_out, taken):
            attempts.add_refusal(new_hold_command(EVENT), refused, None)
        attempts.stop()
    assert [line["refusal"] for line in _named(logs, "hold_refused")] == ["seat_taken"]
    assert _named(logs, "lines_suppressed")[0]["by_kind"] == {"sold_out": 2, "seat_taken": 1}


@async_test
async def test_attempts_leave_room_for_refusals() -> None:
    attempts = AttemptLog()
    attempts.start(2)
    with capture_logs() as logs:
        for _ in range(5):
            attempts.add_attempt(new_hold_command(EVENT))
        attempts.add_refusal(new_hold_command(EVENT), Refused(Refusal.SOLD_OUT), None)
        attempts.stop()
    assert len(_named(logs, "hold_refused")) == 1


@async_test
async def test_the_next_second_begins_with_a_report_and_a_full_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_SECONDS", 0.05)
    attempts = AttemptLog()
    attempts.start(1)
    with capture_logs() as logs:
        attempts.add_attempt(new_hold_command(EVENT))
        attempts.add_attempt(new_hold_command(EVENT))
        await poll_until(lambda: bool(_named(logs, "lines_suppressed")))
        attempts.add_attempt(new_hold_command(EVENT))
        attempts.stop()
    assert len(_named(logs, "hold_attempted")) == 2
    assert sum(line["lines"] for line in _named(logs, "lines_suppressed")) == 1


@async_test
async def test_zero_turns_attempts_off() -> None:
    attempts = AttemptLog()
    attempts.start(0)
    with capture_logs() as logs:
        attempts.add_attempt(new_hold_command(EVENT))
        attempts.add_refusal(new_hold_command(EVENT), Refused(Refusal.SOLD_OUT), None)
        attempts.stop()
    assert logs == []


@async_test
async def test_the_engine_logs_each_refusal_with_its_request(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(1))
        async with running_lane(partial(db.connect_lane, database)) as lane:
            attempt_log.start(100)
            (first,) = await submit_all(lane, [sold := new_hold_command(event)])
            set_request_id("r1")
            with capture_logs() as logs:
                refused = new_hold_command(event)
                await lane.submit(refused)
                await lane.submit(new_action_command(event, sold.booking, Verb.REFUND))
    assert not isinstance(first, Refused)
    (hold,) = _named(logs, "hold_refused")
    assert (hold["refusal"], hold["outcome"], hold["request_id"]) == ("sold_out", "refused", "r1")
    assert hold["event_id"] == ids.format_event_id(event.id)
    assert hold["duration_ms"] >= 0
    (action,) = _named(logs, "command_refused")
    assert (action["refusal"], action["command"]) == ("not_confirmed", "ActOnBooking")


@async_test
async def test_a_lane_that_has_closed_logs_its_refusals(database: str) -> None:
    async with running_lane(partial(db.connect_lane, database)) as lane:
        attempt_log.start(100)
        await lane.close()
        with capture_logs() as logs:
            await asyncio.wait_for(lane.submit(new_hold_command(EVENT)), 10)
    assert [line["refusal"] for line in _named(logs, "hold_refused")] == ["busy"]
