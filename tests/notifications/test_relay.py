"""The relay delivers every notification at least once and in order, survives crashes, and never waits for another
target."""

import asyncio
import json
import math
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import sql
from holdfast.notifications.channel import Delivery, TargetGoneError, UndeliveredError
from holdfast.notifications.relay import CLAIM_MAX, FAILING_MAX, RETRIES, RETRY_FOR_SECONDS, TARGETS_MAX, Relay
from holdfast.runtime import db
from tests.support.engine_harness import async_test, poll_until, remove_guard, shift_clock
from tests.support.harness import IS_LONG, free_port
from tests.support.relay_harness import (
    FileChannel,
    Receiver,
    Request,
    count_statuses,
    first_delivery,
    http_response,
    insert_deliveries,
    insert_endpoint,
    insert_org,
    new_relay,
    running_receiver,
    running_relay,
    start_relay_process,
)

KILLS = 4
FIRST_ERROR = "SELECT last_error FROM delivery ORDER BY number LIMIT 1"


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[db.Connection]:
    connection = await db.connect(url)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


async def hang(_: object) -> Any:
    await asyncio.Event().wait()


async def all_done(connection: db.Connection) -> bool:
    return await _finds(connection, "SELECT EXISTS (SELECT FROM delivery WHERE status = 'waiting')", False)


def read_notes(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def until_noted(path: Path, count: int) -> None:
    await poll_until(lambda: path.exists() and path.read_bytes().count(b"\n") > count, 40)


def first_told(notes: list[dict[str, Any]]) -> dict[tuple[str, int], list[int]]:
    """What each target received from each stream, in order and without repeats."""
    told: dict[tuple[str, int], dict[int, None]] = {}
    for note in notes:
        told.setdefault((note["target"], note["stream"]), {})[note["number"]] = None
    return {where: list(numbers) for where, numbers in told.items()}


class Trouble:
    """A channel that fails on request and counts its calls."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked = 0

    async def send(self, delivery: Delivery) -> None:
        self.asked += 1
        raise self.error or UndeliveredError(f"attempt {delivery.attempts}")


async def deliver_with_failures(database: str, *, streams: int, each: int) -> Receiver:
    """Every message fails once, and the clock runs so fast that it is soon tried again."""
    refused: set[int] = set()

    async def refuse_once(request: Request) -> bytes:
        number = request.data["number"]
        if number % 3 or number in refused:
            return http_response(200)
        refused.add(number)
        receiver.requests.remove(request)
        return http_response(503)

    async with connected(database) as connection, running_receiver(refuse_once) as receiver:
        org = await insert_org(connection)
        target = await insert_endpoint(connection, org, receiver.url)
        await insert_deliveries(connection, target, org=org, streams=streams, each=each)
        later = 0
        async with running_relay(database, send_seconds=600):
            while not await all_done(connection):
                later += 5
                await shift_clock(connection, later)
                await asyncio.sleep(0.1)
        assert await count_statuses(connection, target) == {"delivered": streams * each}
    return receiver


@async_test
async def test_a_stream_arrives_in_order_though_attempts_fail_in_between(database: str) -> None:
    receiver = await deliver_with_failures(database, streams=5, each=12)
    assert receiver.received_numbers() == {stream: list(range(stream, 60, 5)) for stream in range(5)}
    assert len(receiver.requests) == 60


def test_without_the_check_for_earlier_rows_the_order_is_lost(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = "earlier.number < due.number"
    monkeypatch.setattr(sql.notifications, "claim", remove_guard(guard, sql.notifications.claim, "false"))
    receiver = asyncio.run(deliver_with_failures(database, streams=5, each=12))
    assert any(numbers != sorted(numbers) for numbers in receiver.received_numbers().values())


@async_test
async def test_targets_that_refuse_or_hang_do_not_delay_another(database: str) -> None:
    async with connected(database) as connection, running_receiver(hang) as silent, running_receiver() as well:
        org = await insert_org(connection)
        dead = await insert_endpoint(connection, org, f"http://127.0.0.1:{free_port()}/")
        hanging = await insert_endpoint(connection, org, silent.url)
        good = await insert_endpoint(connection, org, well.url)
        for target in (dead, hanging, good):
            await insert_deliveries(connection, target, org=org, streams=20, each=2)
        async with running_relay(database) as relay:
            await poll_until(lambda: len(silent.requests) == CLAIM_MAX)
            await insert_deliveries(connection, good, org=org, after=100, streams=20)
            await poll_until(lambda: len(well.requests) == 60)
            assert await count_statuses(connection, hanging) == {"waiting": 40}
            assert await count_statuses(connection, dead) == {"waiting": 40}
            _cut_short(relay)


def _cut_short(relay: Relay) -> None:
    """Nobody needs to wait for what hangs."""
    for task in relay._serving.values():
        task.cancel()


@async_test
async def test_a_well_target_finds_a_place_among_more_hanging_ones_than_there_are_places(database: str) -> None:
    class Hanging:
        under_way = 0

        async def send(self, delivery: Delivery) -> None:
            if delivery.attempts == 1:
                raise UndeliveredError("at first it fails")
            self.under_way += 1
            await hang(delivery)

    class Well:
        asked = 0

        async def send(self, delivery: Delivery) -> None:
            self.asked += 1

    hanging, well = Hanging(), Well()
    dead = TARGETS_MAX + 30
    async with connected(database) as connection:
        for number in range(dead):
            await insert_deliveries(connection, f"dead-{number:03}", channel="hanging")
        async with running_relay(database, {"hanging": hanging, "well": well}) as relay:
            failed_once = "SELECT count(*) FROM delivery WHERE last_error = 'at first it fails'"
            await poll_until(lambda: _finds(connection, failed_once, dead))
            await shift_clock(connection, 10)
            await poll_until(lambda: hanging.under_way == FAILING_MAX)
            await insert_deliveries(connection, "well", channel="well", streams=10)
            await poll_until(lambda: well.asked == 10)
            assert hanging.under_way == FAILING_MAX
            _cut_short(relay)


async def _runs_until(relay: Relay, connection: db.Connection, statement: str, expected: object) -> bool:
    """A relay skips a target that it is still serving, so one run may come too early, and one too many goes on to the
    next delivery."""
    if await _finds(connection, statement, expected):
        return True
    await relay.run_once()
    return False


async def _finds(connection: db.Connection, statement: str, expected: object) -> bool:
    return bool(await connection.fetchval(statement) == expected)


@async_test
async def test_no_delivery_is_lost_or_out_of_order_while_relays_are_killed(database: str, tmp_path: Path) -> None:
    targets, streams, each = [f"target-{number}" for number in range(8)], 25, 50 if IS_LONG else 15
    count = len(targets) * streams * each
    notes = tmp_path / "notes"
    async with connected(database) as connection:
        # Only relays die here, not the database, so nothing is lost by not waiting for the disk.
        await connection.execute(
            f"ALTER DATABASE {await connection.fetchval('SELECT current_database()')} SET synchronous_commit = off"
        )
        for target in targets:
            await insert_deliveries(connection, target, channel="notes", streams=streams, each=each)
        for killed in range(KILLS + 1):
            process = start_relay_process(database, notes, send_seconds=1)
            try:
                if killed < KILLS:
                    await until_noted(notes, (killed + 1) * count // (KILLS + 1))
                else:
                    await poll_until(lambda: all_done(connection), 40)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
        assert await connection.fetchval("SELECT count(*) FROM delivery WHERE status = 'delivered'") == count
    told = read_notes(notes)
    in_order = {(t, s): list(range(s, streams * each, streams)) for t in targets for s in range(streams)}
    assert first_told(told) == in_order
    assert len(told) < 1.1 * count


@async_test
async def test_two_relays_at_once_deliver_everything_once(database: str, tmp_path: Path) -> None:
    targets, streams, each = [f"target-{number}" for number in range(4)], 50, 10
    notes = tmp_path / "notes"
    processes = [start_relay_process(database, notes) for _ in range(2)]
    try:
        async with connected(database) as connection:
            relays = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await poll_until(lambda: _finds(connection, relays, 2), 30)
            async with connection.transaction():
                for target in targets:
                    await insert_deliveries(connection, target, channel="notes", streams=streams, each=each)
            await poll_until(lambda: all_done(connection), 40)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    told = read_notes(notes)
    assert set(Counter((note["target"], note["number"]) for note in told).values()) == {1}
    assert first_told(told) == {(t, s): list(range(s, 500, streams)) for t in targets for s in range(streams)}
    assert {note["pid"] for note in told} == {process.pid for process in processes}


@async_test
async def test_another_relay_takes_over_when_the_lease_of_a_dead_one_expires(database: str, tmp_path: Path) -> None:
    async with connected(database) as connection, running_receiver(hang) as receiver:
        org = await insert_org(connection)
        target = await insert_endpoint(connection, org, receiver.url)
        await insert_deliveries(connection, target, org=org, each=2)
        process = start_relay_process(database, tmp_path / "notes", send_seconds=10)
        await poll_until(lambda: len(receiver.requests) == 1, 30)
        process.kill()
        process.wait()
        async with new_relay(database) as relay:
            await relay.run_once()
            row = await first_delivery(connection, target)
            assert (row["attempts"], row["status"]) == (1, "waiting")
            assert 0 < row["due_seconds"] <= 20
            receiver.answer = lambda _: asyncio.sleep(0, http_response(200))
            await shift_clock(connection, 30)
            await poll_until(lambda: _passes(relay, connection))
        assert [request.data["number"] for request in receiver.requests] == [0, 0, 1]
        assert len({request.headers["webhook-id"] for request in receiver.requests}) == 2
        assert (await first_delivery(connection, target))["attempts"] == 2


async def _passes(relay: Relay, connection: db.Connection) -> bool:
    await relay.run_once()
    return await all_done(connection)


@async_test
async def test_connections_that_are_lost_lose_no_delivery(database: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with connected(database) as connection:
        await insert_deliveries(connection, "target", channel="notes", streams=40, each=20)
        async with running_relay(database, {"notes": FileChannel(notes)}, send_seconds=1):
            for told in (100, 300, 500):
                await until_noted(notes, told)
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            await poll_until(lambda: all_done(connection), 30)
    assert first_told(read_notes(notes)) == {("target", s): list(range(s, 800, 40)) for s in range(40)}


@async_test
async def test_attempts_grow_rarer_until_three_days_are_over_and_then_it_is_an_alarm(database: str) -> None:
    trouble = Trouble()
    async with connected(database) as connection, new_relay(database, {"trouble": trouble}) as relay:
        await insert_deliveries(connection, "target", channel="trouble", each=2)
        passed, waits = 0, list[float]()
        with capture_logs() as logs:
            while True:
                await poll_until(lambda: _runs_until(relay, connection, FIRST_ERROR, f"attempt {len(waits) + 1}"))
                row = await first_delivery(connection, "target")
                if row["status"] == "failed":
                    break
                waits.append(row["due_seconds"])
                passed += math.ceil(row["due_seconds"]) + 1
                await shift_clock(connection, passed)
        assert RETRY_FOR_SECONDS <= passed < RETRY_FOR_SECONDS + 60
        for wait, planned in zip(waits, (*RETRIES.waits_seconds, 12 * 3600, 12 * 3600), strict=False):
            assert 0.88 * planned - 1 < wait < 1.12 * planned
        assert len(waits) > len(RETRIES.waits_seconds) + 2
        assert row["last_error"] == f"attempt {len(waits) + 1}"
        assert [log["event"] for log in logs if log["log_level"] == "error"] == ["delivery_failed"]
        await poll_until(lambda: _passes_to_second(relay, connection))


async def _passes_to_second(relay: Relay, connection: db.Connection) -> bool:
    """What has failed is no longer in the way of what comes after it."""
    await relay.run_once()
    return await _finds(connection, "SELECT attempts > 0 FROM delivery WHERE number = 1", True)


@async_test
async def test_rows_behind_one_that_is_put_off_cost_nothing_until_it_is_due(database: str) -> None:
    trouble = Trouble()
    async with connected(database) as connection, new_relay(database, {"trouble": trouble}) as relay:
        await insert_deliveries(connection, "target", channel="trouble", each=30)
        await connection.execute("UPDATE delivery SET attempts = 4 WHERE number = 0")
        await poll_until(lambda: _runs_until(relay, connection, FIRST_ERROR, "attempt 5"))
        aside = "SELECT count(*) FROM delivery WHERE due_at = (SELECT due_at FROM delivery WHERE number = 0)"
        due = "SELECT count(*) FROM delivery WHERE due_at <= holdfast_now()"
        await poll_until(lambda: _passes_and_finds(relay, connection, due, 0))
        await shift_clock(connection, 5)
        await poll_until(lambda: _passes_and_finds(relay, connection, due, 0))
        assert await connection.fetchval(aside) == 30
        assert trouble.asked == 1


@async_test
async def test_a_waiting_delivery_is_due_as_soon_as_its_predecessor_is_done(database: str, tmp_path: Path) -> None:
    async with connected(database) as connection:
        await insert_deliveries(connection, "target", channel="notes", streams=2, each=5)
        await connection.execute("UPDATE delivery SET due_at = due_at + interval '1 hour' WHERE number > 1")
        async with running_relay(database, {"notes": FileChannel(tmp_path / "notes")}):
            await poll_until(lambda: all_done(connection))


@async_test
async def test_a_relay_that_outlived_its_lease_does_not_delay_the_new_owner(database: str) -> None:
    class Late:
        async def send(self, delivery: Delivery) -> None:
            """In the meantime another relay has taken it over."""
            async with connected(database) as another:
                await another.execute("UPDATE delivery SET attempts = 2, due_at = holdfast_now() + interval '1 hour'")
            raise UndeliveredError("late")

    async with connected(database) as connection:
        await insert_deliveries(connection, "target", channel="late")
        async with running_relay(database, {"late": Late()}):
            await poll_until(lambda: _finds(connection, "SELECT attempts FROM delivery", 2))
        row = await first_delivery(connection, "target")
        assert row["last_error"] is None
        assert row["due_seconds"] > 3000


async def _passes_and_finds(relay: Relay, connection: db.Connection, statement: str, expected: object) -> bool:
    await relay.run_once()
    return await _finds(connection, statement, expected)


@pytest.mark.parametrize(
    ("error", "row_status", "detail"),
    [
        (UndeliveredError("no such mailbox", is_permanent=True), "failed", "no such mailbox"),
        (UndeliveredError("x" * 5000), "waiting", "x" * 200),
        (ValueError("buyer@example.org is not to be in a log"), "waiting", "ValueError"),
    ],
)
@async_test
async def test_how_a_channel_fails_decides_what_becomes_of_the_row(
    database: str, error: Exception, row_status: str, detail: str
) -> None:
    async with connected(database) as connection:
        await insert_deliveries(connection, "mail", channel="mail")
        with capture_logs() as logs:
            async with running_relay(database, {"mail": Trouble(error)}):
                await poll_until(lambda: _finds(connection, FIRST_ERROR, detail))
        assert await count_statuses(connection, "mail") == {row_status: 1}
        assert "buyer@" not in repr(logs)


@async_test
async def test_only_an_endpoint_can_be_gone_as_a_whole(database: str) -> None:
    async with connected(database) as connection:
        await insert_deliveries(connection, "mail", channel="mail", each=5)
        trouble = Trouble(TargetGoneError("this buyer is"))
        async with running_relay(database, {"mail": trouble}):
            await poll_until(lambda: all_done(connection))
        assert trouble.asked == 5


@async_test
async def test_a_message_for_a_channel_that_is_not_set_up_fails_at_once_without_an_alarm(database: str) -> None:
    async with connected(database) as connection:
        await insert_deliveries(connection, "mail", channel="mail", each=3)
        with capture_logs() as logs:
            async with running_relay(database):
                await poll_until(lambda: all_done(connection))
        assert await count_statuses(connection, "mail") == {"failed": 3}
        assert (await first_delivery(connection, "mail"))["last_error"] == "this channel is not set up"
        assert {log["log_level"] for log in logs} == {"info"}


@async_test
async def test_a_channel_that_never_returns_is_cut_off(database: str) -> None:
    class Hanging:
        async def send(self, delivery: Delivery) -> None:
            await hang(delivery)

    async with connected(database) as connection:
        await insert_deliveries(connection, "target", channel="hanging")
        async with running_relay(database, {"hanging": Hanging()}, send_seconds=0.2):
            await poll_until(lambda: _finds(connection, FIRST_ERROR, "TimeoutError"))


@async_test
async def test_a_gone_endpoint_is_disabled_and_gets_nothing_more(database: str) -> None:
    async def gone(_: Request) -> bytes:
        return http_response(410)

    async with connected(database) as connection, running_receiver(gone) as receiver, running_receiver() as other:
        org = await insert_org(connection)
        target = await insert_endpoint(connection, org, receiver.url)
        unconcerned = await insert_endpoint(connection, org, other.url)
        for endpoint in (target, unconcerned):
            await insert_deliveries(connection, endpoint, org=org, streams=300, each=2)
        await connection.execute("UPDATE delivery SET due_at = due_at + interval '1 hour' WHERE number % 10 = 9")
        async with running_relay(database):
            await poll_until(
                lambda: _finds(
                    connection, f"SELECT bool_and(status = 'failed') FROM delivery WHERE target = '{target}'", True
                )
            )
            await insert_deliveries(connection, target, org=org, after=1000)
            await poll_until(
                lambda: _finds(
                    connection, f"SELECT bool_and(status = 'failed') FROM delivery WHERE target = '{target}'", True
                )
            )
            await poll_until(lambda: len(other.requests) >= 270, 20)
        assert len(receiver.requests) <= 2 * CLAIM_MAX
        (row,) = await connection.fetch("SELECT * FROM webhook_endpoint WHERE id = $1", bytes.fromhex(target))
        assert (row["enabled"], row["disabled_reason"]) == (False, "HTTP 410: the receiver no longer wants webhooks")
        assert await connection.fetchval(
            "SELECT enabled FROM webhook_endpoint WHERE id = $1", bytes.fromhex(unconcerned)
        )


@pytest.mark.parametrize("how", ["DELETE FROM webhook_endpoint", "UPDATE webhook_endpoint SET enabled = false"])
@async_test
async def test_deliveries_to_a_deleted_or_disabled_endpoint_fail_quietly(database: str, how: str) -> None:
    async with connected(database) as connection, running_receiver() as receiver:
        org = await insert_org(connection)
        target = await insert_endpoint(connection, org, receiver.url)
        await insert_deliveries(connection, target, org=org, streams=20, each=2)
        await connection.execute(how)
        with capture_logs() as logs:
            async with running_relay(database):
                await poll_until(lambda: all_done(connection))
        assert await count_statuses(connection, target) == {"failed": 40}
        assert receiver.requests == []
        assert {log["log_level"] for log in logs} == {"info"}


@async_test
async def test_closing_waits_for_running_work(database: str) -> None:
    begun = asyncio.Event()

    async def slow(_: Request) -> bytes:
        begun.set()
        await asyncio.sleep(0.3)
        return http_response(200)

    async with connected(database) as connection, running_receiver(slow) as receiver:
        org = await insert_org(connection)
        target = await insert_endpoint(connection, org, receiver.url)
        await insert_deliveries(connection, target, org=org, each=2)
        async with running_relay(database):
            await begun.wait()
        assert await count_statuses(connection, target) == {"delivered": 1, "waiting": 1}
        assert len(receiver.requests) == 1
