"""The auditor recounts everything and names exactly what is wrong."""

from datetime import datetime

import asyncpg
import pytest
from msgspec import Struct, json

from holdfast import sql
from holdfast.core.commands import Accepted, TransferBooking
from holdfast.core.event_schemas import EventChange, PolicyChange
from holdfast.core.states import EventStatus, Verb
from holdfast.engine import audit_payments, auditor, save_payments
from holdfast.engine.audit_chain import VerifiedChain
from holdfast.engine.auditor import audit_event
from holdfast.engine.batch import sweep
from holdfast.engine.event_editor import change_event, set_status
from holdfast.engine.layout_cache import LayoutCache
from holdfast.payments import due_payments, inbox, reconciler, refunds
from holdfast.runtime import db, ids
from tests.support.command_line import call_holdfast, run_audit
from tests.support.engine_harness import (
    ACTOR,
    EventHandle,
    async_test,
    hold_many,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    new_org,
    one_pool,
    run_commands,
    shift_clock,
)
from tests.support.harness import query, run_with_connection, running_server

STOCK = [
    {"code": "hall", "seats": {"rows": ["A", "B"], "numbers": 10}, "tariffs": [{"code": "full", "price": 3000}]},
    *one_pool(50),
]
HOUR = 3600


class BusyEvent(Struct, frozen=True):
    """An event with a history of every kind of change, and one of its bookings in each status."""

    event: EventHandle
    held: bytes
    confirmed: bytes
    expired: bytes
    cancelled: bytes
    refunded: bytes


async def _create_busy_event(connection: db.Connection) -> BusyEvent:
    event = await new_event(connection, pools=STOCK)
    expired = new_hold_command(event, "A-1", "A-2")
    await run_commands(connection, [expired, new_hold_command(event)])
    await shift_clock(connection, HOUR)
    names = ["held", "confirmed", "cancelled", "refunded"]
    placed = {name: new_hold_command(event, f"B-{number}") for number, name in enumerate(names, 1)}
    await run_commands(
        connection, [*placed.values(), new_hold_command(event, "A-1"), *(new_hold_command(event) for _ in range(5))]
    )
    await run_commands(
        connection,
        [
            new_action_command(event, placed["held"].booking, Verb.EXTEND),
            new_action_command(event, placed["confirmed"].booking, Verb.CONFIRM),
            new_action_command(event, placed["cancelled"].booking, Verb.CANCEL),
            new_action_command(event, placed["refunded"].booking, Verb.CONFIRM),
        ],
    )
    await run_commands(connection, [new_action_command(event, placed["refunded"].booking, Verb.REFUND)])
    await change_event(db.Database(connection), event.org, event.id, EventChange(block_seats=["B-10"]), ACTOR)
    return BusyEvent(event, expired=expired.booking, **{name: command.booking for name, command in placed.items()})


@async_test
async def test_the_auditor_finds_nothing_wrong_with_a_busy_event(database: str) -> None:
    async with lane_connection(database) as connection:
        busy = await _create_busy_event(connection)
        statuses = await connection.fetch("SELECT DISTINCT status FROM booking ORDER BY status")
        assert [row["status"] for row in statuses] == ["cancelled", "confirmed", "expired", "held", "refunded"]
        audit = await audit_event(db.Database(connection), busy.event.id)
        assert audit.findings == []
        assert audit.version == await connection.fetchval("SELECT version FROM event")


@pytest.mark.parametrize("status", [EventStatus.COMPLETED, EventStatus.CANCELLED])
@async_test
async def test_the_auditor_finds_nothing_wrong_with_an_ended_event(database: str, status: EventStatus) -> None:
    async with lane_connection(database) as connection:
        event = (await _create_busy_event(connection)).event
        await set_status(db.Database(connection), event.org, event.id, status, ACTOR)
        while await sweep(connection, LayoutCache(), event.id):
            pass
        assert (await audit_event(db.Database(connection), event.id)).findings == []


ONE_PER_USER = {"one_booking_per_user": True}


@async_test
async def test_the_schema_refuses_a_second_live_booking_of_a_user(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(5), policy=ONE_PER_USER)
        first, second = [new_hold_command(event, user=user) for user in ("ann", "bob")]
        await run_commands(connection, [first, second])
        plant = "UPDATE booking SET user_id = 'ann' WHERE id = $1"
        with pytest.raises(asyncpg.UniqueViolationError, match="booking_one_per_user"):
            await connection.execute(plant, second.booking)
        await run_commands(connection, [new_action_command(event, first.booking, Verb.CANCEL)])
        await connection.execute(plant, second.booking)
        assert (await audit_event(db.Database(connection), event.id)).findings == []


@pytest.mark.parametrize("disarm", ["DROP INDEX booking_one_per_user", "UPDATE booking SET one_per_user = false"])
@async_test
async def test_the_auditor_finds_a_second_live_booking_of_a_user(database: str, disarm: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(5), policy=ONE_PER_USER)
        first, second = [new_hold_command(event, user=user) for user in ("ann", "bob")]
        await run_commands(connection, [first, second])
        await connection.execute(disarm)
        await connection.execute("UPDATE booking SET user_id = 'ann'")
        (finding,) = (await audit_event(db.Database(connection), event.id)).findings
        latest = max(first.booking, second.booking)
        assert (finding.what, finding.subject) == ("one_per_user", ids.format_booking_id(event.id, latest))
        assert "ann" not in finding.detail


@async_test
async def test_bookings_from_before_a_user_could_have_only_one_are_in_order(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(9))
        earlier = [new_hold_command(event, user="ann") for _ in range(2)]
        await run_commands(connection, earlier)
        limit = EventChange(policy=PolicyChange(one_booking_per_user=True))
        await change_event(db.Database(connection), event.org, event.id, limit, ACTOR)
        outcomes = await run_commands(connection, [new_hold_command(event, user=user) for user in ("ann", "bob")])
        assert [isinstance(outcome, Accepted) for outcome in outcomes] == [True, True], "ann has the same units already"
        assert {row["id"] for row in await connection.fetch("SELECT id FROM booking WHERE user_id = 'ann'")} == {
            command.booking for command in earlier
        }
        assert (await audit_event(db.Database(connection), event.id)).findings == []


@async_test
async def test_a_booking_can_be_revived_after_a_user_may_have_several_again(database: str) -> None:
    """The booking was the only one of its user when it was placed, and no longer is."""
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(9), policy={**ONE_PER_USER, "late_grace_seconds": 3600})
        first, second = [new_hold_command(event, user="ann") for _ in range(2)]
        await run_commands(connection, [first])
        await connection.execute("UPDATE booking SET expires_at = now()")
        await run_commands(connection, [second])
        allow = EventChange(policy=PolicyChange(one_booking_per_user=False))
        await change_event(db.Database(connection), event.org, event.id, allow, ACTOR)
        (outcome,) = await run_commands(connection, [new_action_command(event, first.booking, Verb.CONFIRM)])
        assert isinstance(outcome, Accepted)
        assert outcome.booking.status == "confirmed"
        assert (await audit_event(db.Database(connection), event.id)).findings == []


@async_test
async def test_one_batch_can_hand_a_booking_on_to_a_user_who_gives_theirs_up(database: str) -> None:
    """PostgreSQL checks the index row by row, in any order."""
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(9), policy=ONE_PER_USER)
        mine, theirs = [new_hold_command(event, user=user) for user in ("ann", "bob")]
        await run_commands(connection, [mine, theirs])
        await run_commands(connection, [new_action_command(event, mine.booking, Verb.CONFIRM)])
        to_cid, to_bob = [
            TransferBooking(
                event=event.id, org=event.org, booking=mine.booking, generation=generation, user=user, actor=ACTOR
            )
            for generation, user in enumerate(("cid", "bob"))
        ]
        cancel = new_action_command(event, theirs.booking, Verb.CANCEL)
        outcomes = await run_commands(connection, [to_cid, cancel, to_bob])
        assert all(isinstance(outcome, Accepted) for outcome in outcomes), outcomes
        assert await connection.fetchval("SELECT count(*) FROM booking WHERE one_per_user AND user_id = 'bob'") == 2
        assert (await audit_event(db.Database(connection), event.id)).findings == []


@async_test
async def test_a_user_with_two_bookings_gets_both_again_in_one_batch(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection)
        seats = ("A-1", "B-1")
        first = await run_commands(connection, [new_hold_command(event, seat, user="ann") for seat in seats])
        again = await run_commands(connection, [new_hold_command(event, seat, user="ann") for seat in seats])
        assert [outcome.booking.id for outcome in again if isinstance(outcome, Accepted)] == [
            outcome.booking.id for outcome in first if isinstance(outcome, Accepted)
        ]


def test_the_audit_command_prints_json_and_exits_with_1_only_if_something_is_wrong(database: str) -> None:
    busy = run_with_connection(_create_busy_event, database)
    assert run_audit(database_url=database) == {"ok": True, "events": 1, "findings": []}
    query(database, "UPDATE pool SET held = held + 1 WHERE code = 'places'")
    done = call_holdfast(database, "audit")
    report = json.decode(done.stdout)
    assert done.returncode == 1
    assert (report["ok"], report["events"]) == (False, 1)
    assert [(f["event"], f["what"], f["subject"]) for f in report["findings"]] == [
        (busy.event.text, "held_counter", "places")
    ]


def test_readyz_reports_the_last_findings_of_the_auditor(database: str) -> None:
    async def corrupt_and_audit(connection: db.Connection) -> int:
        busy = await _create_busy_event(connection)
        assert await auditor.run_once(db.Database(connection)) == []
        await connection.execute("UPDATE pool SET held = held + 1 WHERE code = 'places'")
        assert await auditor.run_once(db.Database(connection)) == [], "the event has not changed since the last audit"
        await run_commands(connection, [new_hold_command(busy.event)])
        return len(await auditor.run_once(db.Database(connection)))

    with running_server(database, workers=1) as server, server.client() as client:
        assert client.get("/readyz").json()["audit"] == {"events": 0, "findings": 0, "last_at": None}
        assert run_with_connection(corrupt_and_audit, database) == 1
        summary = client.get("/readyz").json()["audit"]
    assert (summary["events"], summary["findings"]) == (1, 1)
    assert datetime.fromisoformat(summary["last_at"])


@async_test
async def test_an_audit_pass_is_bounded_and_the_next_one_continues(database: str) -> None:
    async with lane_connection(database) as connection:
        more = 3
        org = (await new_event(connection)).org
        for _ in range(auditor.EVENTS_MAX + more - 1):
            await new_event(connection, org, pools=one_pool(1))
        audited = []
        for _ in range(3):
            await auditor.run_once(db.Database(connection))
            audited.append(await connection.fetchval("SELECT count(*) FROM audit"))
        assert audited == [auditor.EVENTS_MAX, auditor.EVENTS_MAX + more, auditor.EVENTS_MAX + more]


@async_test
async def test_an_audit_pass_that_has_used_up_its_time_has_audited_the_event_that_waited_longest(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lane_connection(database) as connection:
        org = await new_org(connection)
        events = [await new_event(connection, org, pools=one_pool(9)) for _ in range(3)]
        await auditor.run_once(db.Database(connection))
        monkeypatch.setattr(auditor, "RUN_SECONDS", 0.0)
        audited = []
        for _ in range(2 * len(events)):
            # All of them go on selling, so all of them always wait for an audit.
            for event in events:
                await hold_many(connection, event, 1)
            before = await connection.fetchval("SELECT max(at) FROM audit")
            await auditor.run_once(db.Database(connection))
            rows = await connection.fetch("SELECT event_id FROM audit WHERE at > $1", before)
            audited.append([row["event_id"] for row in rows])
        first_round, second_round = audited[: len(events)], audited[len(events) :]
        assert sorted(first_round) == sorted([event.id] for event in events), "one per pass, and each of them"
        assert second_round == first_round


@async_test
async def test_an_event_that_cannot_be_audited_waits_behind_the_others(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit_event = auditor.audit_event

    async def time_out(database: db.Database, event: bytes, *, since: VerifiedChain | None) -> auditor.Audit:
        if event == broken.id:
            raise TimeoutError
        return await audit_event(database, event, since=since)

    async with lane_connection(database) as connection:
        org = await new_org(connection)
        broken, healthy = [await new_event(connection, org, pools=one_pool(1)) for _ in range(2)]
        monkeypatch.setattr(auditor, "audit_event", time_out)
        monkeypatch.setattr(auditor, "EVENTS_MAX", 1)
        for event in (broken, healthy):
            await connection.execute(sql.audit.postpone, event.id)
        for _ in range(2):
            assert await auditor.run_once(db.Database(connection)) == []
        assert await connection.fetchval("SELECT version > 0 FROM audit WHERE event_id = $1", healthy.id)
        assert await connection.fetchval(sql.audit.summary) == 1
        monkeypatch.setattr(auditor, "audit_event", audit_event)
        await auditor.run_once(db.Database(connection))
        assert await connection.fetchval(sql.audit.summary) == 2


def test_the_auditor_gives_workers_more_time_than_they_take() -> None:
    """Otherwise, it would report payments that are in order."""
    waits = (*reconciler.POLLS.waits_seconds, *due_payments.BUSY_RETRIES.waits_seconds, save_payments.CHECK_SECONDS)
    assert max(waits) < audit_payments.POLL_MAX.total_seconds()
    assert max(refunds.RETRIES.waits_seconds) < audit_payments.REFUND_WAIT_MAX.total_seconds()
    assert 1.5 * sum(refunds.RETRIES.waits_seconds) < audit_payments.REFUND_MAX.total_seconds()
    assert 1.5 * max(inbox.QUESTION_TIMEOUT, inbox.MATCH_TIMEOUT, inbox.STUCK_AFTER) < audit_payments.NOTICE_MAX


@async_test
async def test_a_capacity_is_known_before_anybody_books(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(5))
        assert (await auditor.audit_event(db.Database(connection), event.id)).findings == []
        await connection.execute("UPDATE pool SET capacity = 15")
        (finding,) = (await auditor.audit_event(db.Database(connection), event.id)).findings
        assert finding.what == "pool_history"
        assert "capacity: 5 in the journal, 15 in the pool" in finding.detail
