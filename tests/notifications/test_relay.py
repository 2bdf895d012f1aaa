"""The relay delivers every notification at least once and in order, survives crashes, and never waits for another
target."""

import asyncio
import json
import math
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import sql
from holdfast.notifications import delivery_cleanup
from holdfast.notifications.channel import Delivery, TargetGoneError, UndeliveredError
from holdfast.notifications.delivery_cleanup import DONE_SECONDS, HASH_SECONDS, UNCLAIMED_SECONDS, DeliveryCleanup
from holdfast.notifications.relay import CLAIM_MAX, FAILING_MAX, RETRIES, RETRY_FOR_SECONDS, TARGETS_MAX, Relay
from holdfast.runtime import db
from tests.support.engine_harness import async_test, poll_until, remove_guard, shift_clock
from tests.support.harness import IS_LONG, connection_to, free_port
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


async def hang(_: object) -> Any:
    await asyncio.Event().wait()


async def is_all_done(connection: db.Connection) -> bool:
    return await _has_value(connection, "SELECT EXISTS (SELECT FROM delivery WHERE status = 'waiting')", False)


def read_notes(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def wait_for_notes(path: Path, count: int) -> None:
    await poll_until(lambda: path.exists() and path.read_bytes().count(b"\n") > count, 40)


def numbers_by_stream(notes: list[dict[str, Any]]) -> dict[tuple[str, int], list[int]]:
    """The numbers that each target received from each stream, in order and without repeats."""
    streams: dict[tuple[str, int], dict[int, None]] = {}
    for note in notes:
        streams.setdefault((note["target"], note["stream"]), {})[note["number"]] = None
    return {stream: list(numbers) for stream, numbers in streams.items()}


class FailingChannel:
    """A channel that always fails and counts its calls."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls = 0

    async def send(self, delivery: Delivery) -> None:
        self.calls += 1
        raise self.error or UndeliveredError(f"attempt {delivery.attempts}")


async def deliver_with_failures(database: str, *, streams: int, each: int) -> Receiver:
    """Deliver messages of which every third fails once, with a clock fast enough to retry soon."""
    refused: set[int] = set()

    async def refuse_once(request: Request) -> bytes:
        number = request.data["number"]
        if number % 3 or number in refused:
            return http_response(200)
        refused.add(number)
        receiver.requests.remove(request)
        return http_response(503)

    async with connection_to(database) as connection, running_receiver(refuse_once) as receiver:
        org = await insert_org(connection)
        target = await insert_endpoint(connection, org, receiver.url)
        await insert_deliveries(connection, target, org=org, streams=streams, each=each)
        seconds = 0
        async with running_relay(database, send_seconds=600):
            while not await is_all_done(connection):
                seconds += 5
                await shift_clock(connection, seconds)
                await asyncio.sleep(0.1)
        assert await count_statuses(connection, target) == {"delivered": streams * each}
    return receiver


@async_test
async def test_a_stream_arrives_in_order_even_if_attempts_fail(database: str) -> None:
    receiver = await deliver_with_failures(database, streams=5, each=12)
    assert receiver.received_numbers() == {stream: list(range(stream, 60, 5)) for stream in range(5)}
    assert len(receiver.requests) == 60


def test_without_the_check_for_earlier_rows_the_order_is_lost(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = "earlier.number < due.number"
    monkeypatch.setattr(sql.notifications, "claim", remove_guard(guard, sql.notifications.claim, "false"))
    receiver = asyncio.run(deliver_with_failures(database, streams=5, each=12))
    assert any(numbers != sorted(numbers) for numbers in receiver.received_numbers().values())


@async_test
async def test_a_refusing_or_hanging_target_does_not_delay_others(database: str) -> None:
    async with connection_to(database) as connection, running_receiver(hang) as silent, running_receiver() as healthy:
        org = await insert_org(connection)
        dead = await insert_endpoint(connection, org, f"http://127.0.0.1:{free_port()}/")
        hanging = await insert_endpoint(connection, org, silent.url)
        good = await insert_endpoint(connection, org, healthy.url)
        for target in (dead, hanging, good):
            await insert_deliveries(connection, target, org=org, streams=20, each=2)
        async with running_relay(database) as relay:
            await poll_until(lambda: len(silent.requests) == CLAIM_MAX)
            await insert_deliveries(connection, good, org=org, after=100, streams=20)
            await poll_until(lambda: len(healthy.requests) == 60)
            assert await count_statuses(connection, hanging) == {"waiting": 40}
            assert await count_statuses(connection, dead) == {"waiting": 40}
            _cancel_sends(relay)


def _cancel_sends(relay: Relay) -> None:
    """End the hanging sends, so that the test need not wait for them."""
    for task in relay._round_robin.tasks.values():
        task.cancel()


@async_test
async def test_a_healthy_target_gets_a_slot_even_if_more_targets_hang_than_there_are_slots(database: str) -> None:
    class HangingChannel:
        under_way = 0

        async def send(self, delivery: Delivery) -> None:
            if delivery.attempts == 1:
                raise UndeliveredError("at first it fails")
            self.under_way += 1
            await hang(delivery)

    class HealthyChannel:
        calls = 0

        async def send(self, delivery: Delivery) -> None:
            self.calls += 1

    hanging, healthy = HangingChannel(), HealthyChannel()
    dead = TARGETS_MAX + 30
    async with connection_to(database) as connection:
        for number in range(dead):
            await insert_deliveries(connection, f"dead-{number:03}", channel="hanging")
        async with running_relay(database, {"hanging": hanging, "healthy": healthy}) as relay:
            failed_once = "SELECT count(*) FROM delivery WHERE last_error = 'at first it fails'"
            await poll_until(lambda: _has_value(connection, failed_once, dead))
            await shift_clock(connection, 10)
            await poll_until(lambda: hanging.under_way == FAILING_MAX)
            await insert_deliveries(connection, "healthy", channel="healthy", streams=10)
            await poll_until(lambda: healthy.calls == 10)
            assert hanging.under_way == FAILING_MAX
            _cancel_sends(relay)


async def _run_until(relay: Relay, connection: db.Connection, statement: str, expected: object) -> bool:
    """Run the relay once unless the statement already has this value. A relay skips a target that it is still serving,
    so one run may be too early, and one too many continues with the next delivery."""
    if await _has_value(connection, statement, expected):
        return True
    await relay.run_once()
    return False


async def _has_value(connection: db.Connection, statement: str, expected: object) -> bool:
    return bool(await connection.fetchval(statement) == expected)


@async_test
async def test_no_delivery_is_lost_or_out_of_order_while_relays_are_killed(database: str, tmp_path: Path) -> None:
    targets, streams, each = [f"target-{number}" for number in range(8)], 25, 50 if IS_LONG else 15
    count = len(targets) * streams * each
    notes = tmp_path / "notes"
    async with connection_to(database) as connection:
        # Only relays die here, not the database, so commits need not wait for the disk.
        await connection.execute(
            f"ALTER DATABASE {await connection.fetchval('SELECT current_database()')} SET synchronous_commit = off"
        )
        for target in targets:
            await insert_deliveries(connection, target, channel="notes", streams=streams, each=each)
        for killed in range(KILLS + 1):
            process = start_relay_process(database, notes, send_seconds=1)
            try:
                if killed < KILLS:
                    await wait_for_notes(notes, (killed + 1) * count // (KILLS + 1))
                else:
                    await poll_until(lambda: is_all_done(connection), 40)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
        assert await connection.fetchval("SELECT count(*) FROM delivery WHERE status = 'delivered'") == count
    delivered = read_notes(notes)
    in_order = {(t, s): list(range(s, streams * each, streams)) for t in targets for s in range(streams)}
    assert numbers_by_stream(delivered) == in_order
    assert len(delivered) < 1.1 * count


@async_test
async def test_two_simultaneous_relays_deliver_everything_once(database: str, tmp_path: Path) -> None:
    targets, streams, each = [f"target-{number}" for number in range(4)], 50, 10
    notes = tmp_path / "notes"
    processes = [start_relay_process(database, notes) for _ in range(2)]
    try:
        async with connection_to(database) as connection:
            relays = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await poll_until(lambda: _has_value(connection, relays, 2), 30)
            async with connection.transaction():
                for target in targets:
                    await insert_deliveries(connection, target, channel="notes", streams=streams, each=each)
            await poll_until(lambda: is_all_done(connection), 40)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    delivered = read_notes(notes)
    assert set(Counter((note["target"], note["number"]) for note in delivered).values()) == {1}
    assert numbers_by_stream(delivered) == {
        (t, s): list(range(s, 500, streams)) for t in targets for s in range(streams)
    }
    assert {note["pid"] for note in delivered} == {process.pid for process in processes}


@async_test
async def test_another_relay_takes_over_when_the_lease_of_a_dead_one_expires(database: str, tmp_path: Path) -> None:
    async with connection_to(database) as connection, running_receiver(hang) as receiver:
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
            await poll_until(lambda: _run_and_check_all_done(relay, connection))
        assert [request.data["number"] for request in receiver.requests] == [0, 0, 1]
        assert len({request.headers["webhook-id"] for request in receiver.requests}) == 2
        assert (await first_delivery(connection, target))["attempts"] == 2


async def _run_and_check_all_done(relay: Relay, connection: db.Connection) -> bool:
    await relay.run_once()
    return await is_all_done(connection)


@async_test
async def test_lost_connections_lose_no_delivery(database: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with connection_to(database) as connection:
        await insert_deliveries(connection, "target", channel="notes", streams=40, each=20)
        async with running_relay(database, {"notes": FileChannel(notes)}, send_seconds=1):
            for count in (100, 300, 500):
                await wait_for_notes(notes, count)
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            await poll_until(lambda: is_all_done(connection), 30)
    assert numbers_by_stream(read_notes(notes)) == {("target", s): list(range(s, 800, 40)) for s in range(40)}


@async_test
async def test_a_delivery_is_retried_with_growing_waits_for_three_days_and_then_alarms(database: str) -> None:
    failing = FailingChannel()
    async with connection_to(database) as connection, new_relay(database, {"failing": failing}) as relay:
        await insert_deliveries(connection, "target", channel="failing", each=2)
        passed, waits = 0, list[float]()
        with capture_logs() as logs:
            while True:
                await poll_until(lambda: _run_until(relay, connection, FIRST_ERROR, f"attempt {len(waits) + 1}"))
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
        # The second delivery of the stream is as old, so it may have failed by now, too.
        assert {log["event"] for log in logs if log["log_level"] == "error"} == {"delivery_failed"}
        await poll_until(lambda: _run_and_reach_second(relay, connection))


async def _run_and_reach_second(relay: Relay, connection: db.Connection) -> bool:
    """A failed delivery no longer blocks the next one."""
    await relay.run_once()
    return await _has_value(connection, "SELECT attempts > 0 FROM delivery WHERE number = 1", True)


@async_test
async def test_deliveries_behind_a_postponed_one_are_postponed_with_it(database: str) -> None:
    failing = FailingChannel()
    async with connection_to(database) as connection, new_relay(database, {"failing": failing}) as relay:
        await insert_deliveries(connection, "target", channel="failing", each=30)
        await connection.execute("UPDATE delivery SET attempts = 4 WHERE number = 0")
        await poll_until(lambda: _run_until(relay, connection, FIRST_ERROR, "attempt 5"))
        postponed = "SELECT count(*) FROM delivery WHERE due_at = (SELECT due_at FROM delivery WHERE number = 0)"
        due = "SELECT count(*) FROM delivery WHERE due_at <= holdfast_now()"
        await poll_until(lambda: _run_and_check_value(relay, connection, due, 0))
        await shift_clock(connection, 5)
        await poll_until(lambda: _run_and_check_value(relay, connection, due, 0))
        assert await connection.fetchval(postponed) == 30
        assert failing.calls == 1


@async_test
async def test_a_waiting_delivery_is_due_as_soon_as_its_predecessor_is_done(database: str, tmp_path: Path) -> None:
    async with connection_to(database) as connection:
        await insert_deliveries(connection, "target", channel="notes", streams=2, each=5)
        await connection.execute("UPDATE delivery SET due_at = due_at + interval '1 hour' WHERE number > 1")
        async with running_relay(database, {"notes": FileChannel(tmp_path / "notes")}):
            await poll_until(lambda: is_all_done(connection))


@async_test
async def test_a_relay_with_an_expired_lease_does_not_change_a_delivery_of_the_new_owner(database: str) -> None:
    class LateChannel:
        async def send(self, delivery: Delivery) -> None:
            """Fail after another relay took the delivery over."""
            async with connection_to(database) as another:
                await another.execute("UPDATE delivery SET attempts = 2, due_at = holdfast_now() + interval '1 hour'")
            raise UndeliveredError("late")

    async with connection_to(database) as connection:
        await insert_deliveries(connection, "target", channel="late")
        async with running_relay(database, {"late": LateChannel()}):
            await poll_until(lambda: _has_value(connection, "SELECT attempts FROM delivery", 2))
        row = await first_delivery(connection, "target")
        assert row["last_error"] is None
        assert row["due_seconds"] > 3000


@async_test
async def test_a_lease_outlasts_a_send(database: str) -> None:
    async with connection_to(database) as connection:
        send_seconds, leased_seconds = 60.0, list[float]()

        class WatchingChannel:
            async def send(self, delivery: Delivery) -> None:
                leased_seconds.append((await first_delivery(connection, "target"))["due_seconds"])

        await insert_deliveries(connection, "target", channel="watching")
        async with running_relay(database, {"watching": WatchingChannel()}, send_seconds):
            await poll_until(lambda: bool(leased_seconds))
        assert leased_seconds[0] > send_seconds


@async_test
async def test_a_relay_with_an_expired_lease_does_not_fail_what_another_has_delivered(database: str) -> None:
    class LateChannel:
        async def send(self, delivery: Delivery) -> None:
            """Fail for good after another relay delivered it."""
            async with connection_to(database) as another:
                await another.execute(
                    "UPDATE delivery SET status = 'delivered', attempts = 2, done_at = holdfast_now()"
                )
            raise UndeliveredError("late", is_permanent=True)

    async with connection_to(database) as connection:
        await insert_deliveries(connection, "target", channel="late")
        async with running_relay(database, {"late": LateChannel()}):
            await poll_until(lambda: _has_value(connection, "SELECT attempts FROM delivery", 2))
        row = await first_delivery(connection, "target")
        assert (row["status"], row["last_error"]) == ("delivered", None)


async def _run_and_check_value(relay: Relay, connection: db.Connection, statement: str, expected: object) -> bool:
    await relay.run_once()
    return await _has_value(connection, statement, expected)


@pytest.mark.parametrize(
    ("error", "row_status", "detail"),
    [
        (UndeliveredError("no such mailbox", is_permanent=True), "failed", "no such mailbox"),
        (UndeliveredError("x" * 5000), "waiting", "x" * 200),
        (ValueError("buyer@example.org is not to be in a log"), "waiting", "ValueError"),
    ],
)
@async_test
async def test_the_error_of_a_channel_decides_the_status_of_the_delivery(
    database: str, error: Exception, row_status: str, detail: str
) -> None:
    async with connection_to(database) as connection:
        await insert_deliveries(connection, "email", channel="email")
        with capture_logs() as logs:
            async with running_relay(database, {"email": FailingChannel(error)}):
                await poll_until(lambda: _has_value(connection, FIRST_ERROR, detail))
        assert await count_statuses(connection, "email") == {row_status: 1}
        assert "buyer@" not in repr(logs)


@async_test
async def test_a_gone_recipient_does_not_fail_other_emails(database: str) -> None:
    async with connection_to(database) as connection:
        await insert_deliveries(connection, "email", channel="email", each=5)
        failing = FailingChannel(TargetGoneError("no such recipient"))
        async with running_relay(database, {"email": failing}):
            await poll_until(lambda: is_all_done(connection))
        assert failing.calls == 5


@async_test
async def test_a_relay_without_a_channel_leaves_its_messages_to_one_that_has_it(database: str) -> None:
    async with connection_to(database) as connection:
        await insert_deliveries(connection, "email", channel="email", each=3)
        await insert_deliveries(connection, "target", channel="late")
        async with running_relay(database, {"late": FailingChannel()}):
            await poll_until(lambda: _has_value(connection, "SELECT max(attempts) FROM delivery", 1))
        assert (await first_delivery(connection, "email"))["attempts"] == 0
        failing = FailingChannel(UndeliveredError("no such mailbox", is_permanent=True))
        async with running_relay(database, {"email": failing}):
            await poll_until(lambda: failing.calls == 3)


@async_test
async def test_messages_that_no_worker_has_a_channel_for_are_deleted_after_a_week(database: str) -> None:
    async with connection_to(database) as connection:
        for target in ("email", "webhook", "kafka"):
            await insert_deliveries(connection, target, channel=target)
        cleanup = DeliveryCleanup(db.Database(connection), {"webhook"})
        await shift_clock(connection, UNCLAIMED_SECONDS - 60)
        assert await cleanup.run_once() == 0
        await shift_clock(connection, UNCLAIMED_SECONDS + 60)
        assert await cleanup.run_once() == 1
        rows = await connection.fetch("SELECT channel FROM delivery ORDER BY channel")
        assert [row["channel"] for row in rows] == ["kafka", "webhook"]


@async_test
async def test_a_run_deletes_a_bounded_number_of_messages_of_all_targets_and_says_which(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_cleanup, "DELETE_MAX", 5)
    async with connection_to(database) as connection:
        for target, channel in (("email:a", "email"), ("email:b", "email"), ("sms:a", "sms")):
            await insert_deliveries(connection, target, channel=channel, each=4)
        await shift_clock(connection, UNCLAIMED_SECONDS + 60)
        cleanup = DeliveryCleanup(db.Database(connection), {"webhook"})
        with capture_logs() as logs:
            assert [await cleanup.run_once() for _ in range(4)] == [5, 5, 2, 0]
        deleted = [(log["log_level"], log["event"], log["channel"], log["messages"]) for log in logs]
        assert deleted == [
            ("warning", "unsent_messages_deleted", channel, messages)
            for channel, messages in (("email", 5), ("email", 3), ("sms", 2), ("sms", 2))
        ]


@async_test
async def test_the_cleanup_locks_nothing_for_longer_than_one_statement(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begun = DeliveryCleanup._run, []

    async def run_apart(cleanup: DeliveryCleanup, statement: str, *values: object) -> int:
        async with connection_to(database) as other:
            # Fails if an earlier statement of the run still has its lock.
            await other.execute("SELECT FROM delivery FOR UPDATE NOWAIT")
        begun.append(statement)
        return await run(cleanup, statement, *values)

    async with connection_to(database) as connection:
        for target in ("email:a", "email:b"):
            await insert_deliveries(connection, target, channel="email", each=2)
        await connection.execute(
            "UPDATE delivery SET recipient_hash = 'r', status = 'delivered', done_at = holdfast_now() WHERE number = 0"
        )
        await shift_clock(connection, UNCLAIMED_SECONDS + 60)
        monkeypatch.setattr(DeliveryCleanup, "_run", run_apart)
        await DeliveryCleanup(db.Database(connection), {"webhook"}).run_once()
        assert begun.count(sql.notifications.delete_unclaimed) == 2


@async_test
async def test_finished_deliveries_are_deleted_after_30_days(database: str) -> None:
    async with connection_to(database) as connection:
        cleanup = DeliveryCleanup(db.Database(connection), {"webhook"})
        await insert_deliveries(connection, "target", each=3)
        await connection.execute("UPDATE delivery SET status = 'delivered', done_at = holdfast_now() WHERE number = 0")
        await connection.execute("UPDATE delivery SET status = 'failed', done_at = holdfast_now() WHERE number = 1")
        await shift_clock(connection, DONE_SECONDS - 60)
        assert await cleanup.run_once() == 0
        await shift_clock(connection, DONE_SECONDS + 60)
        assert await cleanup.run_once() == 2
        assert await count_statuses(connection, "target") == {"waiting": 1}


@async_test
async def test_a_hash_is_deleted_a_day_after_the_message_was_sent_however_old_the_message_is(database: str) -> None:
    """Otherwise a backlog would lose the count of its own messages while it is sent."""
    async with connection_to(database) as connection:
        cleanup = DeliveryCleanup(db.Database(connection), {"email"})
        await insert_deliveries(connection, "email", channel="email", each=2)
        await connection.execute("UPDATE delivery SET recipient_hash = 'r', buyer_hash = 'b'")
        await shift_clock(connection, 2 * HASH_SECONDS)
        await connection.execute("UPDATE delivery SET status = 'delivered', done_at = holdfast_now() WHERE number = 0")
        assert await cleanup.run_once() == 0
        await shift_clock(connection, 3 * HASH_SECONDS + 60)
        assert await cleanup.run_once() == 1
        rows = await connection.fetch("SELECT recipient_hash, buyer_hash FROM delivery ORDER BY number")
        assert [tuple(row) for row in rows] == [(None, None), (b"r", b"b")], "a message that waits still counts"


@pytest.mark.parametrize("statement", ["delete_old_hashes", "delete_done", "delete_unclaimed"])
@async_test
async def test_the_cleanup_finds_its_rows_by_their_own_index_in_a_database_that_was_never_analysed(
    database: str, statement: str
) -> None:
    index = {"delete_old_hashes": "delivery_with_hash", "delete_done": "delivery_done"}.get(statement, "delivery_due")
    types = "text, integer, integer" if statement == "delete_unclaimed" else "integer, integer"
    values = "'email', 1, 1" if statement == "delete_unclaimed" else "1, 1"
    async with connection_to(database) as connection, connection.transaction():
        await connection.execute(db.INDEX_LOOKUPS_ONLY)
        await connection.execute(f"PREPARE cleanup ({types}) AS {getattr(sql.notifications, statement)}")
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE cleanup ({values})"))
    assert f"Index Scan using {index} on delivery delivery_1" in plan, plan
    assert "Index Scan using delivery_pkey on delivery" in plan, plan
    assert "Seq Scan" not in plan, plan


@async_test
async def test_a_hanging_channel_times_out(database: str) -> None:
    class HangingChannel:
        async def send(self, delivery: Delivery) -> None:
            await hang(delivery)

    async with connection_to(database) as connection:
        await insert_deliveries(connection, "target", channel="hanging")
        async with running_relay(database, {"hanging": HangingChannel()}, send_seconds=0.2):
            await poll_until(lambda: _has_value(connection, FIRST_ERROR, "TimeoutError"))


@async_test
async def test_a_gone_endpoint_is_disabled_and_gets_no_more_webhooks(database: str) -> None:
    async def answer_gone(_: Request) -> bytes:
        return http_response(410)

    async with (
        connection_to(database) as connection,
        running_receiver(answer_gone) as receiver,
        running_receiver() as other,
    ):
        org = await insert_org(connection)
        target = await insert_endpoint(connection, org, receiver.url)
        other_target = await insert_endpoint(connection, org, other.url)
        for endpoint in (target, other_target):
            await insert_deliveries(connection, endpoint, org=org, streams=300, each=2)
        await connection.execute("UPDATE delivery SET due_at = due_at + interval '1 hour' WHERE number % 10 = 9")
        async with running_relay(database):
            await poll_until(
                lambda: _has_value(
                    connection, f"SELECT bool_and(status = 'failed') FROM delivery WHERE target = '{target}'", True
                )
            )
            await insert_deliveries(connection, target, org=org, after=1000)
            await poll_until(
                lambda: _has_value(
                    connection, f"SELECT bool_and(status = 'failed') FROM delivery WHERE target = '{target}'", True
                )
            )
            await poll_until(lambda: len(other.requests) >= 270, 20)
        assert len(receiver.requests) <= 2 * CLAIM_MAX
        (row,) = await connection.fetch("SELECT * FROM webhook_endpoint WHERE id = $1", bytes.fromhex(target))
        assert (row["enabled"], row["disabled_reason"]) == (False, "HTTP 410: the receiver no longer wants webhooks")
        assert await connection.fetchval(
            "SELECT enabled FROM webhook_endpoint WHERE id = $1", bytes.fromhex(other_target)
        )


@pytest.mark.parametrize("statement", ["DELETE FROM webhook_endpoint", "UPDATE webhook_endpoint SET enabled = false"])
@async_test
async def test_deliveries_to_a_deleted_or_disabled_endpoint_fail_quietly(database: str, statement: str) -> None:
    async with connection_to(database) as connection, running_receiver() as receiver:
        org = await insert_org(connection)
        target = await insert_endpoint(connection, org, receiver.url)
        await insert_deliveries(connection, target, org=org, streams=20, each=2)
        await connection.execute(statement)
        with capture_logs() as logs:
            async with running_relay(database):
                await poll_until(lambda: is_all_done(connection))
        assert await count_statuses(connection, target) == {"failed": 40}
        assert receiver.requests == []
        assert {log["log_level"] for log in logs} == {"info"}


@async_test
async def test_a_closing_relay_waits_for_running_deliveries(database: str) -> None:
    started = asyncio.Event()

    async def slow(_: Request) -> bytes:
        started.set()
        await asyncio.sleep(0.3)
        return http_response(200)

    async with connection_to(database) as connection, running_receiver(slow) as receiver:
        org = await insert_org(connection)
        target = await insert_endpoint(connection, org, receiver.url)
        await insert_deliveries(connection, target, org=org, each=2)
        async with running_relay(database):
            await started.wait()
        assert await count_statuses(connection, target) == {"delivered": 1, "waiting": 1}
        assert len(receiver.requests) == 1
