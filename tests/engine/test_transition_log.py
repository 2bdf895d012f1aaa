"""The engine logs one line per change, after the commit, with the request that caused it."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.core.commands import Accepted, Command
from holdfast.core.decide import Outcome
from holdfast.core.journal import JournalEntry
from holdfast.core.payment import PaymentStatus
from holdfast.core.refusals import Refused
from holdfast.core.states import Status, Verb
from holdfast.engine import batch
from holdfast.engine.lane import Lane
from holdfast.engine.load import LoadedBatch
from holdfast.engine.transition_log import LINE_NAMES, log_transitions
from holdfast.runtime import db, ids
from holdfast.runtime.request_ids import set_request_id
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    new_payment_command,
    one_pool,
    shift_clock,
)
from tests.support.lane_harness import running_lane


async def _submit(lane: Lane, requests: dict[str, Command]) -> list[Outcome]:
    """Submit all commands at once, each under its own request id, so that they share a batch."""

    async def submit(request_id: str, command: Command) -> Outcome:
        set_request_id(request_id)
        return await lane.submit(command)

    return await asyncio.gather(*[asyncio.create_task(submit(*each)) for each in requests.items()])


async def _lines(work: Awaitable[object]) -> list[dict[str, Any]]:
    with capture_logs() as logs:
        await work
    return [dict(line) for line in logs if line["event"].startswith(("booking_", "payment_"))]


def _shown(lines: list[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    return [(line["event"], line["booking"], line.get("request_id")) for line in lines]


def _id(event: EventHandle, booking: bytes) -> str:
    return ids.format_booking_id(event.id, booking)


@async_test
async def test_each_change_of_a_shared_batch_has_its_own_request(database: str) -> None:
    async with lane_connection(database) as connection:
        event, other = await new_event(connection, pools=one_pool(2)), await new_event(connection, pools=one_pool(9))
        connect = partial(db.connect_lane, database)
        async with running_lane(connect, on_commit=log_transitions) as lane:
            first, second, third, elsewhere = (new_hold_command(each) for each in (event, event, event, other))
            requests: dict[str, Command] = {"r1": first, "r2": second, "r3": third, "r4": elsewhere}
            outcomes: list[Outcome] = []
            lines = await _lines(_collect(lane, requests, outcomes))
    assert [isinstance(outcome, Accepted) for outcome in outcomes] == [True, True, False, True]
    assert sorted(_shown(lines)) == sorted(
        [
            ("booking_held", _id(event, first.booking), "r1"),
            ("booking_held", _id(event, second.booking), "r2"),
            ("booking_held", _id(other, elsewhere.booking), "r4"),
        ]
    )
    for line in lines:
        assert line["org"] in (ids.format_org_id(event.org), ids.format_org_id(other.org))
        assert (line["outcome"], line["actor"]) == ("accepted", "test")
        assert line["duration_ms"] >= 0


async def _collect(lane: Lane, requests: dict[str, Command], outcomes: list[Outcome]) -> None:
    outcomes += await _submit(lane, requests)


@async_test
async def test_two_requests_about_one_booking_in_one_batch_keep_their_ids(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(5, price=0))
        connect = partial(db.connect_lane, database)
        async with running_lane(connect, on_commit=log_transitions) as lane:
            hold = new_hold_command(event)
            await lane.submit(hold)
            confirm = new_action_command(event, hold.booking, Verb.CONFIRM)
            cancel = new_action_command(event, hold.booking, Verb.CANCEL)
            lines = await _lines(_submit(lane, {"r1": confirm, "again": confirm, "r2": cancel}))
    booking = _id(event, hold.booking)
    assert _shown(lines) == [("booking_confirmed", booking, "r1"), ("booking_cancelled", booking, "r2")]
    assert [line["was"] for line in lines] == ["held", "confirmed"]


@async_test
async def test_a_command_to_an_event_that_does_not_exist_takes_no_line(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(5))
        async with running_lane(partial(db.connect_lane, database), on_commit=log_transitions) as lane:
            lost, hold = new_hold_command(EventHandle(ids.new_id(), event.org)), new_hold_command(event)
            lines = await _lines(_submit(lane, {"r1": lost, "r2": hold}))
    assert _shown(lines) == [("booking_held", _id(event, hold.booking), "r2")]


@async_test
async def test_an_expiry_belongs_to_no_request(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(1))
        connect = partial(db.connect_lane, database)
        async with running_lane(connect, on_commit=log_transitions) as lane:
            late, next_one = new_hold_command(event), new_hold_command(event)
            await lane.submit(late)
            await shift_clock(connection, 86_400)
            lines = await _lines(_submit(lane, {"r1": next_one}))
    assert _shown(lines) == [
        ("booking_expired", _id(event, late.booking), None),
        ("booking_held", _id(event, next_one.booking), "r1"),
    ]
    assert "duration_ms" not in lines[0]
    assert lines[0]["actor"] == "system"


@async_test
async def test_payments_have_lines_with_their_ids(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(1))
        async with running_lane(partial(db.connect_lane, database), on_commit=log_transitions) as lane:
            hold = new_hold_command(event)
            await lane.submit(hold)
            payment = new_payment_command(event, hold.booking)
            lines = await _lines(_submit(lane, {"r1": payment}))
    started = next(line for line in lines if line["event"] == "payment_started")
    assert started["payment"] == ids.format_payment_id(event.id, payment.payment)


@async_test
async def test_a_change_that_does_not_commit_has_no_line(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail_after_saving(connection: db.Connection, loaded: LoadedBatch) -> None:
        await save(connection, loaded)
        raise RuntimeError("the disk is on fire")

    save = batch.save  # type: ignore[attr-defined]
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(1))
        async with running_lane(partial(db.connect_lane, database), on_commit=log_transitions) as lane:
            monkeypatch.setattr(batch, "save", fail_after_saving)
            outcomes: list[Outcome] = []
            lines = await _lines(_collect(lane, {"r1": new_hold_command(event)}, outcomes))
    assert isinstance(outcomes[0], Refused)
    assert lines == []


def test_every_kind_of_journal_entry_has_a_name() -> None:
    """`JournalEntry` lists the kinds in its docstring."""
    assert "extended" in (JournalEntry.__doc__ or "")
    kinds = {*(str(status) for status in Status), "extended", "transferred"}
    assert set(LINE_NAMES) == kinds | {f"payment.{status}" for status in PaymentStatus}
    assert len(set(LINE_NAMES.values())) == len(LINE_NAMES)
