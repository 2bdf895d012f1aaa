"""Every journal entry reaches the bus at least once and in order for each booking, whatever happens to the broker or to
the workers. Runs on a real NATS server, and on the Kafka cluster of librdkafka."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest
from msgspec import structs
from nats.aio.client import Client
from structlog.testing import capture_logs

from holdfast import sql
from holdfast.core.notification_rules import BUSES, KAFKA, bus_target
from holdfast.notifications import bus_relay
from holdfast.notifications.bus_registry import remove_bus, retry_failed
from holdfast.notifications.bus_relay import (
    PUBLISH_SECONDS,
    PUBLISHES_PER_LEASE,
    RETRY_FOR_SECONDS,
    UNKNOWN_KIND_SECONDS,
    BusRelay,
)
from holdfast.notifications.channel import Delivery, UndeliveredError
from holdfast.notifications.claimed_delivery import STREAM_WAIT_SECONDS
from holdfast.notifications.cloud_events import TOPICS, BusMessage, Topic, bus_message
from holdfast.notifications.nats_bus import NatsBus
from holdfast.notifications.relay import Relay
from holdfast.runtime import db
from holdfast.runtime.backoff import FailureBackoff
from tests.support.bus_harness import (
    Broker,
    KafkaBroker,
    NatsBroker,
    count_rows,
    insert_messages,
    order_by_booking,
    running_relay,
    start_relay_process,
)
from tests.support.engine_harness import async_test, poll_until, remove_guard, shift_clock
from tests.support.harness import IS_LONG, connection_to
from tests.support.kafka_cluster import KafkaCluster, running_kafka
from tests.support.nats_process import NatsServer, running_nats
from tests.support.relay_harness import insert_deliveries, insert_org

WAIT_SECONDS = 60
LEASE_SECONDS = int(PUBLISHES_PER_LEASE * PUBLISH_SECONDS)
TOO_LARGE_BYTES = 2_000_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with running_kafka() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with running_nats() as server:
        yield server


@pytest.fixture(params=BUSES)
def broker(request: pytest.FixtureRequest) -> Broker:
    prefix = f"test-{secrets.token_hex(4)}"
    if request.param == KAFKA:
        return KafkaBroker(request.getfixturevalue("kafka"), prefix)
    return NatsBroker(request.getfixturevalue("nats"), prefix)


class WorkingChannel:
    """Another channel, which keeps what it delivers."""

    def __init__(self) -> None:
        self.delivered = 0

    async def send(self, delivery: Delivery) -> None:
        self.delivered += 1


class MemoryBus:
    """Keeps what it publishes. Fails each message of a third of the bookings once."""

    def __init__(self) -> None:
        self.published: list[BusMessage] = []
        self._refused: set[str] = set()

    async def publish(self, message: BusMessage) -> None:
        await asyncio.sleep(0)
        if int(message.id.rpartition("_")[2]) % 3 == 0 and message.id not in self._refused:
            self._refused.add(message.id)
            raise UndeliveredError("not now")
        self.published.append(message)

    async def close(self) -> None:
        return


async def is_empty(connection: db.Connection, bus: str) -> bool:
    return await count_rows(connection, bus) == 0


async def wait_until_empty(connection: db.Connection, bus: str, *, shift_seconds: int = 0) -> None:
    """Wait until everything is published. The clock moves on, so that retries come soon. It moves only as far as the
    longest retry, which is shorter than a lease."""
    seconds = 0
    for _ in range(WAIT_SECONDS * 10):
        if await is_empty(connection, bus):
            return
        if seconds < shift_seconds:
            seconds += 1
            await shift_clock(connection, seconds)
        await asyncio.sleep(0.1)
    raise AssertionError(f"{await count_rows(connection, bus)} messages still wait")


def expected_order(bookings: int, each: int) -> list[list[int]]:
    return [list(range(booking + 1, bookings * each + 1, bookings)) for booking in range(bookings)]


@async_test
async def test_several_workers_that_are_killed_lose_nothing_and_keep_the_order(database: str, broker: Broker) -> None:
    bookings, each = (100, 40) if IS_LONG else (20, 30)
    async with connection_to(database) as connection:
        org = await insert_org(connection)
        await insert_messages(connection, broker.name, org, bookings=bookings, each=each)
        processes = [start_relay_process(database, broker) for _ in range(2)]
        try:
            await poll_until(_has_fewer_rows(connection, broker.name, bookings * each), WAIT_SECONDS)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert await count_rows(connection, broker.name) > 0, "they were done before they were killed"
        await shift_clock(connection, LEASE_SECONDS + 1)
        processes = [start_relay_process(database, broker) for _ in range(2)]
        try:
            await wait_until_empty(connection, broker.name)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        messages = await broker.read(Topic.BOOKINGS, bookings * each)
    assert sorted(order_by_booking(messages).values()) == expected_order(bookings, each)
    by_id = {message["id"]: message for message in messages}
    assert len(by_id) == bookings * each
    assert all(message == by_id[message["id"]] for message in messages)


async def publish_with_failures(database: str, *, bookings: int, each: int) -> list[list[int]]:
    bus = MemoryBus()
    async with connection_to(database) as connection:
        org = await insert_org(connection)
        await insert_messages(connection, KAFKA, org, bookings=bookings, each=each)
        async with running_relay(database, {KAFKA: bus}):
            await wait_until_empty(connection, KAFKA, shift_seconds=LEASE_SECONDS * each)
    numbers: dict[str, list[int]] = {}
    for message in bus.published:
        numbers.setdefault(message.key, []).append(int(message.id.rpartition("_")[2]))
    return sorted(numbers.values())


@async_test
async def test_messages_of_a_booking_wait_for_one_that_is_retried(database: str) -> None:
    assert await publish_with_failures(database, bookings=4, each=6) == expected_order(4, 6)


def test_without_the_check_for_earlier_rows_the_order_is_lost(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = "earlier.number < due.number"
    monkeypatch.setattr(sql.notifications, "claim", remove_guard(guard, sql.notifications.claim, "false"))
    found = asyncio.run(publish_with_failures(database, bookings=4, each=6))
    assert any(numbers != sorted(numbers) for numbers in found)


@async_test
async def test_a_message_published_just_before_a_crash_comes_again_with_the_same_id(
    database: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connection_to(database) as connection:
        org = await insert_org(connection)
        await insert_messages(connection, broker.name, org, bookings=3)
        with monkeypatch.context() as patch:
            # The relay publishes, and then loses the database.
            patch.setattr(BusRelay, "_delete", _lose_database)
            async with running_relay(database, {broker.name: broker.make()}):
                first = await broker.read(Topic.BOOKINGS, 3)
        assert await count_rows(connection, broker.name) == 3
        await shift_clock(connection, LEASE_SECONDS + 1)
        async with running_relay(database, {broker.name: broker.make()}):
            await wait_until_empty(connection, broker.name)
        again = await broker.read(Topic.BOOKINGS, 3)
    counts = Counter(message["id"] for message in again)
    assert set(counts) == {message["id"] for message in first}
    # JetStream drops messages whose id it has seen.
    assert set(counts.values()) == ({2} if broker.name == KAFKA else {1})


async def _lose_database(*_: object) -> None:
    raise ConnectionResetError


@pytest.mark.parametrize("absence", ["stopped", "hanging"])
@async_test
async def test_a_broker_that_is_away_loses_nothing_and_delays_no_other_channel(
    database: str, broker: Broker, absence: str
) -> None:
    leave, come_back = (broker.stop, broker.start) if absence == "stopped" else (broker.pause, broker.resume)
    other = WorkingChannel()
    async with connection_to(database) as connection:
        org = await insert_org(connection)
        async with running_relay(database, {broker.name: broker.make()}, {"other": other}):
            await insert_messages(connection, broker.name, org)
            await wait_until_empty(connection, broker.name)
            leave()
            try:
                await insert_messages(connection, broker.name, org, bookings=5, each=3)
                await poll_until(_exists(connection, broker.name, "attempts > 0"), WAIT_SECONDS)
                await insert_deliveries(connection, "other", channel="other", org=org, streams=10, each=3)
                await poll_until(lambda: other.delivered == 30, WAIT_SECONDS)
                assert await count_rows(connection, broker.name) == 15
                await poll_until(_exists(connection, broker.name, "last_error IS NOT NULL"), WAIT_SECONDS)
            finally:
                come_back()
            await wait_until_empty(connection, broker.name, shift_seconds=LEASE_SECONDS - 10)
        messages = await broker.read(Topic.BOOKINGS, 16)
    assert sorted(order_by_booking(messages).values()) == sorted([[1], *expected_order(5, 3)])


@async_test
async def test_a_message_that_is_too_large_blocks_nothing_and_can_be_published_again(
    database: str, broker: Broker
) -> None:
    async with connection_to(database) as connection:
        org = await insert_org(connection)
        await insert_messages(connection, broker.name, org, bookings=4, each=2)
        await connection.execute(
            "UPDATE delivery SET body = json_build_object('seq', number, 'padding', repeat('x', $1::int)) "
            "WHERE number = 2",
            TOO_LARGE_BYTES,
        )
        async with running_relay(database, {broker.name: broker.make()}):
            await wait_until_empty(connection, broker.name)
            refused = await connection.fetchrow("SELECT number, status, last_error FROM delivery")
            assert refused is not None
            assert (refused["number"], refused["status"]) == (2, "failed")
            assert refused["last_error"].startswith(("Kafka: MSG_SIZE_TOO_LARGE", "NATS: MaxPayloadError"))
            arrived = order_by_booking(await broker.read(Topic.BOOKINGS, 7))
            assert sorted(arrived.values()) == [[1, 5], [3, 7], [4, 8], [6]]
            await connection.execute("UPDATE delivery SET body = json_build_object('seq', number)")
            assert await retry_failed(db.Database(connection), broker.name) == 1
            await wait_until_empty(connection, broker.name)
        assert len(await broker.read(Topic.BOOKINGS, 8)) == 8


@async_test
async def test_a_row_that_is_no_message_blocks_nothing(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_for_second(delivery: Delivery, *values: str) -> BusMessage:
        if delivery.number == 2:
            raise ValueError
        return bus_message(delivery, *values)

    monkeypatch.setattr(bus_relay, "bus_message", fail_for_second)
    async with connection_to(database) as connection:
        await insert_messages(connection, KAFKA, await insert_org(connection), each=3)
        bus = MemoryBus()
        with capture_logs() as logs:
            async with running_relay(database, {KAFKA: bus}):
                await wait_until_empty(connection, KAFKA, shift_seconds=40)
        assert [message.id.rpartition("_")[2] for message in bus.published] == ["1", "3"]
        assert [log["number"] for log in logs if log["event"] == "bus_message_refused"] == [2]
        assert await connection.fetchval("SELECT last_error FROM delivery") == (
            "booking.held cannot be made a message: ValueError"
        )


@async_test
async def test_a_fact_of_a_newer_version_waits_for_a_newer_worker_and_delays_no_other_booking(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WorkingBus(MemoryBus):
        async def publish(self, message: BusMessage) -> None:
            self.published.append(message)

        @property
        def numbers(self) -> list[str]:
            return [message.id.rpartition("_")[2] for message in self.published]

    kind, old, new, failures = "booking.of_a_later_version", WorkingBus(), WorkingBus(), list[str]()
    monkeypatch.setattr(FailureBackoff, "record_failure", lambda _, target: failures.append(target))
    async with connection_to(database) as connection:
        org = await insert_org(connection)
        await insert_messages(connection, KAFKA, org, each=3)
        await connection.execute("UPDATE delivery SET kind = $1 WHERE number = 2", kind)
        async with running_relay(database, {KAFKA: old}):
            await poll_until(_exists(connection, KAFKA, "last_error IS NOT NULL"), WAIT_SECONDS)
            await insert_messages(connection, KAFKA, org, each=2)
            await poll_until(lambda: len(old.published) == 3, WAIT_SECONDS)
        assert old.numbers == ["1", "1", "2"], "the second booking's do not wait"
        assert failures == [], "nothing is wrong with the bus"
        rows = await connection.fetch("SELECT number, status FROM delivery ORDER BY number")
        assert [tuple(row) for row in rows] == [(2, "waiting"), (3, "waiting")]
        monkeypatch.setitem(TOPICS, kind, Topic.BOOKINGS)
        await shift_clock(connection, 2 * int(UNKNOWN_KIND_SECONDS))
        async with running_relay(database, {KAFKA: new}):
            await wait_until_empty(connection, KAFKA)
        assert new.numbers == ["2", "3"]


@async_test
async def test_many_facts_of_a_newer_version_do_not_hold_up_the_first_message_after_a_failure(database: str) -> None:
    """A target that has failed gets one message at a time, until one arrives."""
    bus = MemoryBus()
    async with connection_to(database) as connection:
        org = await insert_org(connection)
        await insert_messages(connection, KAFKA, org, bookings=20)
        await connection.execute("UPDATE delivery SET kind = 'booking.of_a_later_version'")
        await insert_messages(connection, KAFKA, org)
        target = await connection.fetchval("SELECT DISTINCT target FROM delivery")
        relay = BusRelay(db.Database(connection), KAFKA, bus, "https://shop.example")
        relay._failures.record_failure(target)
        with capture_logs() as logs:
            await relay._serve(target)
    assert len(bus.published) == 1
    assert [log["event"] for log in logs] == ["bus_message_unknown"] * 20


@async_test
async def test_a_stream_that_takes_only_some_subjects_is_found_out(nats: NatsServer) -> None:
    client = Client()
    await client.connect(nats.url)
    await client.jetstream().add_stream(name="PARTLY", subjects=["partly.*.bookings.*", "partly.*.events.*"])
    bus = NatsBus(nats.url, "partly")
    message = BusMessage(id="1", topic=Topic.BOOKINGS, org="org", kind="booking.held", key="bk_1", content=b"{}")
    try:
        with capture_logs() as logs:
            await bus.publish(message)
            with pytest.raises(
                UndeliveredError, match=r"no stream takes the subject partly\.org\.payments\.started"
            ) as error:
                await bus.publish(structs.replace(message, topic=Topic.PAYMENTS, kind="payment.started"))
        assert not error.value.is_permanent
        assert logs[0]["event"] == "nats_stream_missing"
        assert logs[0]["subjects"] == ["partly.*.payments.*"]
    finally:
        await bus.close()
        await client.close()


@async_test
async def test_one_orgs_backlog_does_not_delay_another(database: str) -> None:
    """The bus accepts nothing of the first org, however long it waits."""
    accepted: list[str] = []

    class PartialBus(MemoryBus):
        async def publish(self, message: BusMessage) -> None:
            if message.org == slow_slug:
                await asyncio.Event().wait()
            accepted.append(message.id)

    async with connection_to(database) as connection:
        slow, fast = await insert_org(connection), await insert_org(connection)
        slow_slug = await connection.fetchval("SELECT slug FROM org WHERE id = $1", slow)
        await insert_messages(connection, KAFKA, slow, bookings=300, each=2)
        async with running_relay(database, {KAFKA: PartialBus()}) as relay:
            await poll_until(_exists(connection, KAFKA, "attempts > 0"), WAIT_SECONDS)
            await insert_messages(connection, KAFKA, fast, bookings=10, each=3)
            await poll_until(lambda: len(accepted) == 30, WAIT_SECONDS)
            _cancel(relay)


def _cancel(relay: Relay) -> None:
    """End the hanging messages, so that the test need not wait for them."""
    for bus in relay._buses.values():
        for task in bus._round_robin.tasks.values():
            task.cancel()


@async_test
async def test_a_worker_without_the_bus_leaves_its_rows_to_one_that_has_it(database: str) -> None:
    other = WorkingChannel()
    async with connection_to(database) as connection:
        org = await insert_org(connection)
        await insert_messages(connection, KAFKA, org, bookings=2)
        async with running_relay(database, {}, {"other": other}):
            await insert_deliveries(connection, "other", channel="other", org=org)
            await poll_until(lambda: other.delivered == 1, WAIT_SECONDS)
        assert await connection.fetchval("SELECT max(attempts) FROM delivery WHERE channel = $1", KAFKA) == 0
        assert await count_rows(connection, KAFKA) == 2
        assert await remove_bus(db.Database(connection), KAFKA) == 2


@async_test
async def test_searching_and_finishing_cost_the_same_with_a_large_backlog(database: str) -> None:
    """The plans are made on an empty table, as on a new installation."""
    pool = await db.create_pool(database, 1, looks_up=True)
    try:
        async with pool.acquire() as connection:
            org = await insert_org(connection)
            target = bus_target(KAFKA, org)
            claim = sql.notifications.claim(
                target=target,
                stream_wait_seconds=STREAM_WAIT_SECONDS,
                retry_for_seconds=RETRY_FOR_SECONDS,
                claim_max=100,
                lease_seconds=LEASE_SECONDS,
            )
            for _ in range(6):
                await connection.fetch(*claim)
                await _finish(connection, target, [])
            costs = []
            for bookings in (200, 20_000):
                await insert_messages(connection, KAFKA, org, bookings=bookings, each=2)
                before = await _pages_read(connection)
                rows = await connection.fetch(*claim)
                await _finish(connection, target, [(row["event"], row["number"]) for row in rows])
                costs.append(await _pages_read(connection) - before)
                assert len(rows) == 100
    finally:
        await pool.close()
    # Deeper indexes, but no scan: 20,000 bookings fill more than 1,000 pages.
    assert costs[1] < 2 * costs[0] + 500


@pytest.mark.parametrize(("looks_up", "scans"), [(True, False), (False, True)])
@async_test
async def test_a_plan_made_on_an_empty_table_scans_unless_the_connection_only_looks_up(
    database: str, looks_up: bool, scans: bool
) -> None:
    pool = await db.create_pool(database, 1, looks_up=looks_up)
    try:
        async with pool.acquire() as connection:
            await connection.execute("SET plan_cache_mode = force_generic_plan")
            statement = sql.event_bus.finish
            types = {"events": "uuid[]", "numbers": "bigint[]", "target": "text"}
            declared = ", ".join(types[name] for name in statement.parameters)
            await connection.execute(f"PREPARE finish ({declared}) AS {statement.text}")
            values = ", ".join("'kafka:'" if types[name] == "text" else "'{}'" for name in statement.parameters)
            plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE finish ({values})"))
    finally:
        await pool.close()
    assert ("Seq Scan on delivery" in plan) == scans, plan


async def _finish(connection: db.Connection, target: str, keys: list[tuple[bytes, int]]) -> None:
    events, numbers = [event for event, _ in keys], [number for _, number in keys]
    await connection.execute(*sql.event_bus.finish(events=events, numbers=numbers, target=target))


async def _pages_read(connection: db.Connection) -> int:
    await connection.execute("SELECT pg_stat_force_next_flush()")
    pages: int = await connection.fetchval(
        "SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::bigint "
        "FROM pg_statio_user_tables WHERE relname = 'delivery'"
    )
    return pages


def _has_fewer_rows(connection: db.Connection, bus: str, count: int) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await count_rows(connection, bus) < count

    return check


def _exists(connection: db.Connection, bus: str, condition: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        query = f"SELECT EXISTS (SELECT FROM delivery WHERE channel = $1 AND {condition})"
        found: bool = await connection.fetchval(query, bus)
        return found

    return check
