"""Buses and their relays: Kafka and NATS behind one interface, deliveries that wait for them, and relay processes.

`python -m tests.support.bus_harness <database> <bus> <url> <prefix>` is such a process.
"""

import asyncio
import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from holdfast.core.notification_rules import KAFKA, NATS, bus_target
from holdfast.notifications.bus import Bus
from holdfast.notifications.bus_relay import BusRelay
from holdfast.notifications.channel import Channel
from holdfast.notifications.cloud_events import Topic
from holdfast.notifications.kafka_bus import KafkaBus
from holdfast.notifications.nats_bus import NatsBus
from holdfast.notifications.relay import Relay
from holdfast.runtime import db, ids
from holdfast.runtime.process_lifetime import end_with_parent, set_parent_pid
from holdfast.worker.job import Job, JobLoop
from tests.support import kafka_cluster, nats_process
from tests.support.kafka_cluster import KafkaCluster
from tests.support.nats_process import NatsServer

PUBLIC_URL = "https://tickets.example"
RELAY_SECONDS = 0.1
# librdkafka gives up after this time, so that tests of a broker that is away need not wait longer.
KAFKA_MESSAGE_SECONDS = 3.0


class Broker(ABC):
    """A message broker and its consumer. Each test has a prefix of its own."""

    name: str
    prefix: str
    url: str

    @abstractmethod
    async def read(self, topic: Topic, count: int) -> list[dict[str, Any]]:
        """Wait for so many different CloudEvents, and return everything that has arrived, in order for each key."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def pause(self) -> None: ...

    @abstractmethod
    def resume(self) -> None: ...

    def make(self) -> Bus:
        return make_bus(self.name, self.url, self.prefix)


class KafkaBroker(Broker):
    name = KAFKA

    def __init__(self, cluster: KafkaCluster, prefix: str) -> None:
        self.cluster = cluster
        self.prefix = prefix
        self.url = cluster.url

    async def read(self, topic: Topic, count: int) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._read, f"{self.prefix}.{topic}", count)

    def _read(self, topic: str, count: int) -> list[dict[str, Any]]:
        with kafka_cluster.reading(self.cluster, topic) as reader:
            return [json.loads(message.value()) for message in reader.wait_for(count)]

    def stop(self) -> None:
        self.cluster.stop_brokers()

    def start(self) -> None:
        self.cluster.start_brokers()

    def pause(self) -> None:
        self.cluster.pause()

    def resume(self) -> None:
        self.cluster.resume()


class NatsBroker(Broker):
    name = NATS

    def __init__(self, server: NatsServer, prefix: str) -> None:
        self.server = server
        self.prefix = prefix
        self.url = server.url

    async def read(self, topic: Topic, count: int) -> list[dict[str, Any]]:
        async with nats_process.reading(self.server, f"{self.prefix}.*.{topic}.*") as reader:
            return [json.loads(message.data) for message in await reader.wait_for(count)]

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        self.server.start()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()


def make_bus(name: str, url: str, prefix: str) -> Bus:
    if name == KAFKA:
        return KafkaBus(url, prefix, message_seconds=KAFKA_MESSAGE_SECONDS)
    return NatsBus(url, prefix)


async def insert_messages(
    connection: db.Connection, bus: str, org: bytes, *, bookings: int = 1, each: int = 1, extra_bytes: int = 0
) -> bytes:
    """Insert `each` messages about each booking of a new event, in turns. Returns the event."""
    event = ids.new_id()
    await connection.execute(
        """INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, created_at, due_at)
        SELECT $1, number + 1, $2, $3, $4, lpad(to_hex(number % $5::int + 1), 32, '0')::uuid, 'booking.held',
               json_build_object('seq', number + 1, 'padding', repeat('x', $7::int)), at, at
        FROM (SELECT holdfast_now() AS at) AS clock, generate_series(0, $5::int * $6::int - 1) AS number""",
        event,
        bus_target(bus, org),
        bus,
        org,
        bookings,
        each,
        extra_bytes,
    )
    return event


async def count_rows(connection: db.Connection, bus: str, status: str = "waiting") -> int:
    count: int = await connection.fetchval(
        "SELECT count(*) FROM delivery WHERE channel = $1 AND status = $2", bus, status
    )
    return count


def order_by_booking(messages: list[dict[str, Any]]) -> dict[str, list[int]]:
    """The numbers that arrived for each booking, in order and without repeats."""
    found: dict[str, dict[int, None]] = {}
    for message in messages:
        found.setdefault(message["subject"], {})[message["data"]["seq"]] = None
    return {subject: list(numbers) for subject, numbers in found.items()}


@asynccontextmanager
async def running_relay(
    url: str, buses: Mapping[str, Bus], channels: Mapping[str, Channel] | None = None
) -> AsyncIterator[Relay]:
    """A relay that runs in the background, and closes the buses at its end."""
    pool = await db.create_pool(url, 4, looks_up=True)
    database = db.Database(pool)
    relays = {name: BusRelay(database, name, bus, PUBLIC_URL) for name, bus in buses.items()}
    relay = Relay(database, channels or {}, buses=relays)
    stopping = asyncio.Event()
    job = Job(name="relay", run=relay.run_once, interval_seconds=RELAY_SECONDS, drains=False)
    running = asyncio.create_task(JobLoop([job]).run(stopping))
    try:
        yield relay
    finally:
        stopping.set()
        await running
        await relay.close()
        for bus in buses.values():
            await bus.close()
        await pool.close()


def start_relay_process(url: str, broker: Broker) -> "subprocess.Popen[bytes]":
    set_parent_pid()
    place = [url, broker.name, broker.url, broker.prefix]
    return subprocess.Popen([sys.executable, "-m", "tests.support.bus_harness", *place])


async def _main(url: str, name: str, broker_url: str, prefix: str) -> None:
    end_with_parent()
    async with running_relay(url, {name: make_bus(name, broker_url, prefix)}):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
