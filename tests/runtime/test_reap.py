"""`holdfast reap` expires due holds once, whoever else does the same, and says what it did."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from holdfast import sql
from holdfast.core.commands import PoolItem
from holdfast.core.states import EventStatus
from holdfast.engine import batch, sweeper
from holdfast.engine.event_editor import set_status
from holdfast.runtime import db, embedded
from tests.support.command_line import call_holdfast, run_audit, run_holdfast, run_installed_holdfast
from tests.support.engine_harness import (
    ACTOR,
    EventHandle,
    hold_many,
    lane_connection,
    new_event,
    new_hold_command,
    one_pool,
    run_commands,
    shift_clock,
)
from tests.support.harness import connection_to, query, running_server, wait_until

HOUR = 3600


def create_events(url: str, *holds: int, title: str = "Friday night") -> list[EventHandle]:
    """One event for each number of holds, in the order of the report."""

    async def create() -> list[EventHandle]:
        async with lane_connection(url) as connection:
            events = [await new_event(connection, pools=one_pool(1_000), title=title) for _ in holds]
            for event, count in zip(events, holds, strict=True):
                await hold_many(connection, event, count)
            return events

    return asyncio.run(create())


def make_due(url: str) -> None:
    """Let all holds pass their deadline, while nobody records it."""

    async def shift() -> None:
        async with lane_connection(url) as connection:
            await shift_clock(connection, HOUR)

    asyncio.run(shift())


def set_event_status(url: str, event: EventHandle, status: EventStatus) -> None:
    async def change() -> None:
        async with connection_to(url) as connection:
            await set_status(db.Database(connection), event.org, event.id, status, ACTOR)

    asyncio.run(change())


def read_report(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1), done.stderr
    return report


def reap(url: str, *arguments: str) -> dict[str, Any]:
    return read_report(call_holdfast(url, "reap", *arguments))


def ended_of(report: dict[str, Any]) -> dict[str, int]:
    return {each["event"]: each["ended"] for each in report["events"]}


def statuses(url: str, event: EventHandle) -> dict[str, int]:
    rows = query(url, "SELECT status, count(*) FROM booking WHERE event_id = $1 GROUP BY status", event.id)
    return {row["status"]: row["count"] for row in rows}


def test_due_holds_expire_and_others_stay(database: str) -> None:
    (due,) = create_events(database, 3)
    make_due(database)
    (fresh,) = create_events(database, 2)
    done = run_installed_holdfast(database, "reap")
    assert read_report(done) == {
        "ok": True,
        "dry_run": False,
        "events": [
            {
                "event": due.text,
                "title": "Friday night",
                "due_holds": 3,
                "due_units": 3,
                "ending_bookings": 0,
                "ended": 3,
                "error": None,
            }
        ],
    }
    assert statuses(database, due) == {"expired": 3}
    assert statuses(database, fresh) == {"held": 2}
    assert reap(database) == {"ok": True, "dry_run": False, "events": []}
    assert run_audit(database_url=database)["ok"]


def test_a_dry_run_counts_holds_and_units_of_each_event_and_writes_nothing(database: str) -> None:
    first, second = create_events(database, 2, 1)

    async def hold_a_group() -> None:
        async with lane_connection(database) as connection:
            group = structs.replace(new_hold_command(second), items=(PoolItem("places", 7),))
            await run_commands(connection, [group])

    asyncio.run(hold_a_group())
    make_due(database)
    before = everything(database)
    report = reap(database, "--dry-run")
    assert report["dry_run"] is True
    assert [(each["event"], each["due_holds"], each["due_units"], each["ended"]) for each in report["events"]] == [
        (first.text, 2, 2, 0),
        (second.text, 2, 8, 0),
    ]
    assert everything(database) == before


def everything(url: str) -> list[Any]:
    tables = ("event", "pool", "booking", "line", "journal", "delivery", "audit")
    return [query(url, f"SELECT {table}::text FROM {table} ORDER BY 1") for table in tables]


def test_more_holds_than_one_sweep_takes_all_expire(database: str) -> None:
    count = batch.SWEEP_MAX + 100
    (event,) = create_events(database, count)
    make_due(database)
    assert ended_of(reap(database)) == {event.text: count}
    assert statuses(database, event) == {"expired": count}


def test_bookings_of_a_cancelled_event_end_with_it(database: str) -> None:
    """The dry run tells holds that expire from bookings that end with their event."""
    (event,) = create_events(database, 2)
    make_due(database)

    query(
        database,
        "UPDATE booking SET expires_at = expires_at + interval '2 hours' "
        "WHERE event_id = $1 AND id = (SELECT id FROM booking LIMIT 1)",
        event.id,
    )
    set_event_status(database, event, EventStatus.CANCELLED)
    (due,) = reap(database, "--dry-run")["events"]
    assert (due["due_holds"], due["ending_bookings"]) == (1, 1)
    assert ended_of(reap(database)) == {event.text: 2}
    assert statuses(database, event) == {"expired": 1, "cancelled": 1}
    assert run_audit(database_url=database)["ok"]


def test_one_event_can_be_reaped_alone(database: str) -> None:
    chosen, other = create_events(database, 2, 2)
    make_due(database)
    assert [each["event"] for each in reap(database, "--event", chosen.text, "--dry-run")["events"]] == [chosen.text]
    assert ended_of(reap(database, "--event", chosen.text)) == {chosen.text: 2}
    assert statuses(database, other) == {"held": 2}
    assert reap(database, "--event", chosen.text)["events"] == []


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("tonight", "tonight is not an event id. An event id is ev_ followed by 32 hexadecimal digits."),
        ("ev_" + "A" * 32, "is not an event id"),
        ("ev_" + "0" * 32, f"There is no event ev_{'0' * 32}."),
    ],
    ids=["no id", "upper case", "unknown"],
)
def test_an_unknown_event_is_refused(database: str, event: str, message: str) -> None:
    (held,) = create_events(database, 1)
    make_due(database)
    for mode in ([], ["--dry-run"]):
        done = call_holdfast(database, "reap", "--event", event, *mode)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert statuses(database, held) == {"held": 1}


def test_an_event_that_fails_does_not_stop_the_others_and_is_reported(database: str) -> None:
    events = create_events(database, 2, 2, 2)
    query(database, "UPDATE pool SET held = 0 WHERE event_id = $1", events[0].id)
    make_due(database)
    done = call_holdfast(database, "reap")
    assert (done.returncode, done.stderr) == (1, "")
    report = read_report(done)
    assert ended_of(report) == {events[0].text: 0, events[1].text: 2, events[2].text: 2}
    broken, *healthy = report["events"]
    assert broken["error"].startswith("OversoldError: ")
    assert [each["error"] for each in healthy] == [None, None]
    assert [statuses(database, event) for event in events] == [{"held": 2}, {"expired": 2}, {"expired": 2}]


def test_an_event_that_is_too_costly_for_one_sweep_is_reaped_in_smaller_ones(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    affordable, sizes = 10, list[int]()
    (event,) = create_events(database, 30)
    make_due(database)

    async def sweep(
        connection: Any, layouts: Any, swept: bytes, lock: str, bookings_max: int, on_commit: batch.CommitListener
    ) -> int:
        sizes.append(bookings_max)
        if bookings_max > affordable:
            raise TimeoutError
        return await batch.sweep(connection, layouts, swept, lock, bookings_max, on_commit)

    monkeypatch.setattr(sweeper, "sweep", sweep)
    assert ended_of(reap(database)) == {event.text: 30}
    assert min(sizes) <= affordable
    assert statuses(database, event) == {"expired": 30}


def test_a_locked_event_is_reported_and_the_others_are_reaped(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(db._LANE_SETTINGS, "lock_timeout", "50ms")
    locked, free = create_events(database, 2, 2)
    make_due(database)

    async def reap_beside_a_lock() -> dict[str, Any]:
        async with connection_to(database) as other, other.transaction():
            await other.fetch(sql.engine.lock, [locked.id])
            return await asyncio.to_thread(reap, database)

    report = asyncio.run(reap_beside_a_lock())
    assert ended_of(report) == {locked.text: 0, free.text: 2}
    assert [each["error"] for each in report["events"]] == [
        "Another process keeps the event locked. Run the command again.",
        None,
    ]
    assert ended_of(reap(database)) == {locked.text: 2}


def check_every_hold_expired_once(url: str, holds: int) -> None:
    counts = query(url, "SELECT count(*) FROM journal WHERE kind = 'expired' GROUP BY booking_id")
    assert [row["count"] for row in counts] == [1] * holds
    assert query(url, "SELECT sum(held + sold) FROM pool")[0][0] == 0
    assert run_audit(database_url=url)["ok"]


def run_at_once(commands: list[Callable[[], "subprocess.CompletedProcess[str]"]]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(commands)) as threads:
        return [read_report(done) for done in threads.map(lambda command: command(), commands)]


def test_two_commands_at_once_expire_every_hold_once(database: str) -> None:
    events, holds = 8, 100
    create_events(database, *[holds] * events)
    make_due(database)
    reports = run_at_once([lambda: run_installed_holdfast(database, "reap")] * 2)
    assert sum(sum(ended_of(report).values()) for report in reports) == events * holds
    check_every_hold_expired_once(database, events * holds)


def test_a_command_beside_a_worker_expires_every_hold_once(database: str) -> None:
    events, holds = 8, 100
    create_events(database, *[holds] * events)
    with running_server(database, workers=1, worker=True):
        make_due(database)
        (report,) = run_at_once([lambda: run_installed_holdfast(database, "reap")])
        assert report["ok"]
        wait_until(lambda: query(database, "SELECT FROM booking WHERE status = 'held'") == [], 30)
    check_every_hold_expired_once(database, events * holds)


def test_the_embedded_database_of_a_folder_can_be_reaped(data_folder: Path) -> None:
    url = embedded.start(data_folder)
    asyncio.run(db.migrate(url))
    (event,) = create_events(url, 2)
    make_due(url)
    done = run_holdfast("reap", "--data", str(data_folder))
    assert ended_of(read_report(done)) == {event.text: 2}
    assert statuses(url, event) == {"expired": 2}


def test_a_folder_without_a_database_is_refused(tmp_path: Path) -> None:
    done = run_holdfast("reap", "--data", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"There is no database in the folder {tmp_path}.")
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_database_is_reported() -> None:
    done = call_holdfast("postgresql://postgres@127.0.0.1:1/none", "reap")
    assert done.returncode == 2
    assert "Cannot reach the database" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_that_is_lost_in_the_middle_is_reported(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_events(database, 1)
    make_due(database)

    async def connect_lane(_url: str) -> db.Connection:
        raise ConnectionRefusedError

    monkeypatch.setattr(db, "connect_lane", connect_lane)
    done = call_holdfast(database, "reap")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Lost the connection to the database.")
