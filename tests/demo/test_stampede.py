"""A stampede sells every unit once, and its verdict tells the truth."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import psutil
import pytest

from holdfast.core.policy import Policy
from holdfast.core.seating import find_orphans
from holdfast.demo.stampede.buyers import Buyer, SharedState
from holdfast.demo.stampede.client import Client
from holdfast.demo.stampede.event_map import EventMap, EventResponse, MapPool, MapSeat, MapTariff
from holdfast.demo.stampede.launch import launch
from holdfast.demo.stampede.record import SILENT_SECONDS, read_latest_report
from holdfast.demo.stampede.report import (
    GrantedHold,
    GrantedItem,
    Report,
    StampedeError,
    StampedeProblem,
    State,
    Tally,
    add_tallies,
    percentile_ms,
)
from holdfast.demo.stampede.verdict import ClaimedItem, PoolCount, Recount, reach_verdict
from holdfast.engine.findings import Finding
from holdfast.runtime import db, ids
from holdfast.runtime.settings import Settings
from tests.support.builders import seat_grid, seated_layout
from tests.support.child_processes import children_with
from tests.support.engine_harness import async_test
from tests.support.harness import (
    Server,
    example_event,
    free_port,
    fresh_database,
    post_hold,
    publish_event,
    query,
    run_with_connection,
    running_server,
    wait_until,
)
from tests.support.http_assertions import expect_ok

PATIENCE_SECONDS: Final = 60
SEATS: Final = 120
PLACES: Final = 30
NOW: Final = datetime(2027, 3, 5, 19, tzinfo=UTC)


def hall_event(rows: str = "ABCDEF", numbers: int = 20) -> dict[str, Any]:
    """An event whose policy avoids orphan seats."""
    tariffs = [{"code": "full", "price": 1500}, {"code": "child", "price": 700}]
    stalls = {"code": "stalls", "seats": {"rows": list(rows), "numbers": numbers}}
    return example_event(preset="show", pools=[stalls, {"code": "standing", "capacity": PLACES, "tariffs": tariffs}])


def start_stampede(server: Server, event: str, *options: str, url: str | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "stampede", "--event", event, "--url", url or server.url, *options],
        env={**os.environ, "HOLDFAST_DATABASE_URL": server.database_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish_stampede(process: "subprocess.Popen[str]") -> tuple[int, dict[str, Any], str]:
    """Wait for the end. Return the exit code, the last report, and the errors."""
    out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    lines = out.splitlines()
    return process.returncode, json.loads(lines[-1]) if lines else {}, errors


def read_row(server: Server, event: str) -> Any:
    rows = query(
        server.database_url, "SELECT * FROM stampede WHERE event_id = $1 ORDER BY started_at", parse_event_id(event)
    )
    return rows[-1] if rows else None


def parse_event_id(event: str) -> bytes:
    found = ids.parse_event_id(event)
    assert found is not None
    return found


def has_arrivals(server: Server, event: str) -> bool:
    row = read_row(server, event)
    return row is not None and json.loads(row["report"])["arrived"] > 0


def generator_processes(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The load generators of a stampede."""
    return children_with("holdfast.demo.stampede.load_generator", process.pid)


def test_a_stampede_sells_every_unit_exactly_once(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event())
    expect_ok(
        post_hold(admin, event, items=[{"seat": "A-1"}, {"seat": "A-2"}, {"pool": "standing", "tariff": "full"}]), 201
    )
    code, report, errors = finish_stampede(start_stampede(server, event, "--buyers", "300", "--seconds", "1", "--json"))
    assert code == 0, errors
    assert report["verdict"]["ok"], report
    assert report["verdict"]["taken"] == report["verdict"]["capacity"] == SEATS + PLACES
    assert report["verdict"]["twice"] == report["verdict"]["lost"] == report["left"] == 0
    assert report["arrived"] == report["done"] == 300
    assert report["units"] == SEATS + PLACES - 3
    assert report["requests"] == report["winners"] + sum(report["refusals"].values()) >= 300
    assert report["refusals"]["sold_out"] > 0
    assert 0 < report["p50_ms"] <= report["p95_ms"] <= report["p99_ms"]
    lines = "SELECT seat, quantity FROM line WHERE event_id = $1 AND live"
    taken = query(server.database_url, lines, parse_event_id(event))
    assert len({row["seat"] for row in taken if row["seat"] is not None}) == SEATS
    assert sum(row["quantity"] for row in taken) == SEATS + PLACES
    users = query(
        server.database_url, "SELECT DISTINCT user_id FROM booking WHERE event_id = $1", parse_event_id(event)
    )
    assert len(users) == report["winners"] + 1
    row = read_row(server, event)
    assert row["ended_at"] is not None
    assert json.loads(row["report"])["state"] == report["state"] == "done"
    assert json.loads(row["report"])["verdict"] == report["verdict"]


def test_a_stampede_still_sells_everything_if_api_processes_are_killed(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event())
    stampede = start_stampede(server, event, "--buyers", "200", "--seconds", "3", "--json")
    wait_until(lambda: has_arrivals(server, event), PATIENCE_SECONDS)
    for pid in server.api_pids():
        os.kill(pid, signal.SIGKILL)
    code, report, errors = finish_stampede(stampede)
    assert code == 0, (report, errors)
    assert report["errors"] > 0
    assert report["verdict"]["taken"] == SEATS + PLACES


def test_the_verdict_finds_an_acknowledged_seat_that_is_not_booked(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event(numbers=100))
    stampede = start_stampede(server, event, "--buyers", "60", "--seconds", "3", "--json")
    corrupt = """UPDATE line SET live = false WHERE (event_id, booking_id, number) IN (
        SELECT event_id, booking_id, number FROM line WHERE event_id = $1 AND live AND seat IS NOT NULL LIMIT 1
    ) RETURNING seat"""
    wait_until(lambda: bool(query(server.database_url, corrupt, parse_event_id(event))), PATIENCE_SECONDS)
    code, report, _ = finish_stampede(stampede)
    assert code == 1
    assert report["state"] == "done"
    assert not report["verdict"]["ok"]
    assert report["verdict"]["lost"] == 1
    found = "\n".join(report["verdict"]["findings"])
    assert "does not have it" in found
    assert "Auditor: held_counter" in found


def test_a_killed_load_generator_fails_the_stampede(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event())
    stampede = start_stampede(server, event, "--buyers", "100", "--seconds", "3", "--json")
    wait_until(lambda: has_arrivals(server, event), PATIENCE_SECONDS)
    generator_processes(stampede)[0].kill()
    code, report, _ = finish_stampede(stampede)
    assert code == 1
    assert report["state"] == "failed"
    assert not report["verdict"]["ok"]
    assert report["verdict"]["findings"] == ["A load generator died or hung before its buyers were done."]


def test_stopping_a_stampede_stops_all_its_processes(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event())
    stampede = start_stampede(server, event, "--buyers", "1000", "--seconds", "100", "--json")
    wait_until(lambda: has_arrivals(server, event), PATIENCE_SECONDS)
    generators = generator_processes(stampede)
    stampede.send_signal(signal.SIGINT)
    code, _, errors = finish_stampede(stampede)
    assert code == 2
    assert errors == "Stopped.\n"
    assert len(generators) == 2
    assert not any(generator.is_running() for generator in generators)
    row = read_row(server, event)
    assert row["ended_at"] is not None
    assert json.loads(row["report"])["state"] == "failed"


@pytest.mark.parametrize(
    ("event", "url", "message"),
    [
        ("the concert", None, "not an event id"),
        (ids.format_event_id(bytes(16)), None, "no such event"),
        ("draft", None, "The event is draft"),
        ("published", f"http://127.0.0.1:{free_port()}", "No server answers"),
        ("published", "ftp://127.0.0.1", "start with http://"),
    ],
    ids=["not an id", "unknown", "not on sale", "no server", "not HTTP"],
)
def test_an_impossible_stampede_is_reported_without_a_traceback(
    server: Server, admin: httpx.Client, event: str, url: str | None, message: str
) -> None:
    if event == "draft":
        event = expect_ok(admin.post("/v1/events", json=example_event()), 201)["id"]
    elif event == "published":
        event = publish_event(admin, example_event())
    code, report, errors = finish_stampede(start_stampede(server, event, "--json", url=url))
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors
    assert report == {}
    assert not ids.parse_event_id(event) or read_row(server, event) is None


# Stampedes started on a page.


@pytest.fixture(scope="module")
def server(postgres: str) -> Iterator[Server]:
    """A server of its own, because tests kill its processes."""
    with fresh_database(postgres) as url, running_server(url, workers=2) as server:
        yield server


@pytest.fixture
def demo(server: Server, monkeypatch: pytest.MonkeyPatch) -> Settings:
    # The server sets this variable for its children. Other tests must not inherit it.
    monkeypatch.setenv("HOLDFAST_PARENT_PID", str(os.getpid()))
    return Settings(database_url=server.database_url, demo=True)


def launch_stampede(settings: Settings, event: str, url: str, buyers: int = 20, seconds: float = 1) -> bytes:
    async def launch_with_pool() -> bytes:
        assert settings.database_url is not None
        async with await db.create_pool(settings.database_url, 1) as pool:
            return await launch(
                db.Database(pool), settings, parse_event_id(event), buyers=buyers, seconds=seconds, url=url
            )

    return asyncio.run(launch_with_pool())


def latest_report(server: Server, event: str) -> Report:
    found = run_with_connection(
        lambda connection: read_latest_report(db.Database(connection), parse_event_id(event)), server.database_url
    )
    assert found is not None
    return found


def test_a_page_starts_one_stampede_at_a_time_and_shows_its_report(
    server: Server, admin: httpx.Client, demo: Settings
) -> None:
    event = publish_event(admin, hall_event())
    assert (
        run_with_connection(
            lambda connection: read_latest_report(db.Database(connection), parse_event_id(event)), server.database_url
        )
        is None
    )
    stampede = launch_stampede(demo, event, server.url, seconds=3)
    assert read_row(server, event)["id"] == stampede
    assert latest_report(server, event).state is State.RUNNING
    with pytest.raises(StampedeError, match="is running on this event"):
        launch_stampede(demo, event, server.url)
    wait_until(lambda: latest_report(server, event).state is not State.RUNNING, PATIENCE_SECONDS)
    report = latest_report(server, event)
    assert report.verdict is not None
    assert report.verdict.ok
    assert report.done == report.winners == 20
    assert read_row(server, event)["id"] == stampede


def test_a_page_cannot_start_a_stampede_outside_demo_mode(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event())
    with pytest.raises(StampedeError, match="HOLDFAST_DEMO"):
        launch_stampede(Settings(database_url=server.database_url), event, server.url)
    assert read_row(server, event) is None


def test_a_stampede_that_cannot_start_records_the_reason(server: Server, admin: httpx.Client, demo: Settings) -> None:
    event = publish_event(admin, hall_event())
    launch_stampede(demo, event, f"http://127.0.0.1:{free_port()}")
    wait_until(lambda: latest_report(server, event).state is State.FAILED, PATIENCE_SECONDS)
    assert latest_report(server, event).failure is StampedeProblem.NO_SERVER


def test_a_killed_stampede_does_not_block_the_next(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event())
    stampede = start_stampede(server, event, "--buyers", "1000", "--seconds", "300", "--json")
    wait_until(lambda: has_arrivals(server, event), PATIENCE_SECONDS)
    generators = generator_processes(stampede)
    stampede.kill()
    finish_stampede(stampede)
    wait_until(lambda: not any(generator.is_running() for generator in generators), PATIENCE_SECONDS)
    silence = f"""UPDATE stampede SET report = jsonb_set(report::jsonb, '{{updated_at}}', to_jsonb(
        (report ->> 'updated_at')::timestamptz - interval '{SILENT_SECONDS} seconds'))::json WHERE event_id = $1"""
    query(server.database_url, silence, parse_event_id(event))
    assert latest_report(server, event).state is State.FAILED
    code, report, _ = finish_stampede(start_stampede(server, event, "--buyers", "5", "--seconds", "0", "--json"))
    assert (code, report["state"]) == (0, "done")


def test_a_stampede_started_on_a_page_ends_with_the_server_process(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, hall_event())
    page = f"""
import time
from holdfast.runtime.settings import Settings
from tests.demo.test_stampede import launch_stampede
launch_stampede(Settings.from_environment(), {event!r}, {server.url!r}, buyers=400, seconds=40)
time.sleep(600)
"""
    environment = {"HOLDFAST_DATABASE_URL": server.database_url, "HOLDFAST_DEMO": "true"}
    process = subprocess.Popen([sys.executable, "-c", page], env={**os.environ, **environment})
    try:
        wait_until(lambda: has_arrivals(server, event), PATIENCE_SECONDS)
        children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait()
    assert len(children) == 3
    wait_until(lambda: not any(child.is_running() for child in children), PATIENCE_SECONDS)
    assert latest_report(server, event).failure is StampedeProblem.STOPPED


# The buyers.


class UnreliableServer:
    """Closes the connection at the first request, is busy at the second, and accepts the third."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.is_closed = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
                await reader.readexactly(int(lines["content-length"]))
                self.keys.append(lines["idempotency-key"])
                if len(self.keys) == 1:
                    break
                status, document = self._document()
                body = json.dumps(document).encode()
                writer.write(
                    b"HTTP/1.1 %s\r\nretry-after: 0\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body
                )
        except asyncio.IncompleteReadError:
            self.is_closed.set()
        writer.close()
        await writer.wait_closed()

    def _document(self) -> tuple[bytes, dict[str, Any]]:
        if len(self.keys) == 2:
            return b"503 Busy", {"code": "busy"}
        items = [{"pool": "standing", "seat": None, "quantity": 1}]
        return b"201 Created", {"id": "bk_1", "items": items, "created_at": NOW.isoformat(), "expires_at": None}


@async_test
async def test_a_buyer_retries_with_the_same_key_until_there_is_an_answer() -> None:
    unreliable = UnreliableServer()
    async with await asyncio.start_server(unreliable.answer, "127.0.0.1") as server:
        client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        event_map = EventMap(EventResponse((MapPool("standing", 10, False, (MapTariff("full"),)),)))
        shared = SharedState(client, asyncio.Semaphore(1), "ev_1", event_map, Tally(), [], [])
        await Buyer("somebody", "token", shared).buy()
        client.close()
        await unreliable.is_closed.wait()
    assert unreliable.keys == ["somebody-1"] * 3
    assert (shared.tally.errors, shared.tally.refusals, shared.tally.winners) == (1, {"busy": 1}, 1)
    assert [hold.id for hold in shared.granted] == ["bk_1"]


@pytest.mark.parametrize("attempt", range(30))
def test_a_careful_choice_leaves_no_orphan_and_finds_the_last_seats(attempt: int) -> None:
    layout = seated_layout(seat_grid("ABC", 12), policy=Policy(avoid_orphans=True))
    event_map = EventMap(EventResponse((MapPool("stalls", 36, True, (MapTariff("full"),)),)))
    free = [True] * len(layout.seats)
    while any(free):
        seats = zip(layout.seats, free, strict=True)
        event_map.update(
            [MapSeat(s.label, "stalls", s.row, s.number_in_row, "free" if is_free else "held") for s, is_free in seats]
        )
        quantity = random.randint(1, 4)
        while (picked := event_map.choose_seats(quantity, careful=True)) is None:
            quantity -= 1
        chosen = [layout.seat_by_label[seat.label].number for seat in picked]
        assert len(chosen) == quantity
        assert not find_orphans(layout, chosen, free.__getitem__)
        for seat in chosen:
            free[seat] = False
    event_map.mark_taken(tuple(seat.label for seat in layout.seats))
    assert event_map.choose_seats(1, careful=False) is None


# The report and the verdict.


def granted_hold(id_: str, seat: str, minute: int = 0, until: int | None = 10) -> GrantedHold:
    ends_at = None if until is None else NOW + timedelta(minutes=until)
    return GrantedHold(id_, (GrantedItem("stalls", seat, 1),), NOW + timedelta(minutes=minute), ends_at)


def recount(*claims: tuple[str, str], taken: int | None = None, minute: int = 5) -> Recount:
    """A recount of ten seats with these claims."""
    lines = tuple(
        ClaimedItem(booking, f"buyer of {booking}", GrantedItem("stalls", seat, 1)) for booking, seat in claims
    )
    return Recount(
        NOW + timedelta(minutes=minute), (PoolCount("stalls", len(claims) if taken is None else taken, 10),), lines
    )


def test_a_verdict_is_ok_if_every_acknowledged_unit_exists() -> None:
    verdict = reach_verdict(
        [granted_hold("b1", "A-1"), granted_hold("b2", "A-2", until=None)], recount(("b1", "A-1"), ("b2", "A-2")), []
    )
    assert verdict.ok
    assert verdict.text == "2 of 10 units taken, 0 seats sold twice, 0 units lost. The auditor finds nothing wrong."


def test_the_verdict_finds_a_double_sale_even_if_the_database_shows_one_owner() -> None:
    verdict = reach_verdict(
        [granted_hold("b1", "A-1"), granted_hold("b2", "A-1", minute=1)], recount(("b2", "A-1")), []
    )
    assert not verdict.ok
    assert (verdict.twice, verdict.lost) == (1, 1)


def test_a_seat_can_be_sold_again_once_its_hold_has_expired() -> None:
    verdict = reach_verdict(
        [granted_hold("b1", "A-1", until=2), granted_hold("b2", "A-1", minute=2)], recount(("b2", "A-1")), []
    )
    assert verdict.ok, verdict.findings


def test_a_repeated_answer_counts_once() -> None:
    assert reach_verdict([granted_hold("b1", "A-1"), granted_hold("b1", "A-1")], recount(("b1", "A-1")), []).ok


def test_the_verdict_finds_unacknowledged_units_unless_their_buyer_got_no_answer() -> None:
    unclaimed = recount(("b1", "A-1"))
    assert not reach_verdict([], unclaimed, []).ok
    assert reach_verdict([], unclaimed, [], unanswered=["buyer of b1"]).ok


def test_the_verdict_finds_more_taken_units_than_the_capacity() -> None:
    assert not reach_verdict([], recount(taken=11), []).ok


def test_the_verdict_includes_the_findings_of_the_auditor() -> None:
    verdict = reach_verdict([], recount(), [Finding("ev_1", "held_counter", "stalls", "It has too many.")])
    assert verdict.findings == ("Auditor: held_counter of stalls: It has too many.",)
    assert not verdict.ok


def test_the_tallies_of_processes_add_up() -> None:
    one, other = Tally(arrived=2, refusals={"sold_out": 1}), Tally(arrived=3, refusals={"sold_out": 2, "busy": 1})
    for latency_ms in range(1, 101):
        (one if latency_ms % 2 else other).count_answer(latency_ms / 1000)
    both = add_tallies([one, other])
    assert (both.arrived, both.requests, both.refusals) == (5, 100, {"sold_out": 3, "busy": 1})
    assert percentile_ms(both.latencies, 0.5) == pytest.approx(50, rel=0.06)
    assert percentile_ms(both.latencies, 0.99) == pytest.approx(99, rel=0.06)
    assert percentile_ms(Tally().latencies, 0.5) is None
