"""A sale reaches Kafka, NATS, a webhook receiver and the live feed, and every message is what `/asyncapi.json` says."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from websockets.sync.client import connect

from holdfast.core.notification_rules import BOOKING_WEBHOOK_KINDS, BUSES, EVENT_WEBHOOK_KINDS
from holdfast.notifications.cloud_events import TOPICS, Topic
from tests.support.bus_harness import insert_messages
from tests.support.command_line import call_holdfast, run_holdfast
from tests.support.harness import (
    Org,
    Server,
    connection_to,
    example_event,
    fresh_database,
    post_hold,
    publish_event,
    query,
    running_server,
)
from tests.support.http_assertions import expect_ok
from tests.support.kafka_cluster import KafkaCluster, reading, running_kafka
from tests.support.nats_process import NatsServer, running_nats
from tests.support.nats_process import reading as reading_nats

DOCS = Path(__file__).parents[2] / "docs" / "event-bus.md"
SALE = ["booking.held", "booking.confirmed", "booking.refunded"]
LIVE_SECONDS = 60


class Sale:
    """One booking, from hold to refund, and every message about it."""

    def __init__(self, server: Server, kafka: KafkaCluster, nats: NatsServer) -> None:
        self.org = Org(server.database_url)
        with server.client(self.org.headers()) as client:
            self.event = publish_event(client, example_event())
            url = f"{server.url.replace('http', 'ws')}/v1/events/{self.event}/live"
            with connect(url, proxy=None, open_timeout=LIVE_SECONDS) as feed:
                self.live = [feed.recv(timeout=LIVE_SECONDS)]
                hold = expect_ok(post_hold(client, self.event, items=[{"seat": "A-5"}], email="ada@example.com"), 201)
                self.booking = hold["id"]
                expect_ok(client.post(f"/v1/bookings/{self.booking}/confirm"))
                expect_ok(client.post(f"/v1/bookings/{self.booking}/refund"))
                while json.loads(self.live[-1]).get("kind") != "refunded":
                    self.live.append(feed.recv(timeout=LIVE_SECONDS))
            self.document: dict[str, Any] = client.get("/asyncapi.json").json()
        with reading(kafka, "holdfast.bookings", "holdfast.events") as reader:
            self.kafka = reader.wait_for(4)
        self.nats = asyncio.run(self._read_nats(nats))

    async def _read_nats(self, nats: NatsServer) -> list[Any]:
        async with reading_nats(nats, "holdfast.>") as reader:
            return await reader.wait_for(4)


@pytest.fixture(scope="module")
def sale(postgres: str) -> Iterator[Sale]:
    with running_kafka() as kafka, running_nats() as nats, fresh_database(postgres) as database:
        buses = {"HOLDFAST_KAFKA_URL": kafka.url, "HOLDFAST_NATS_URL": nats.url}
        with running_server(database, workers=1, worker=True, **buses) as server:
            yield Sale(server, kafka, nats)


def test_kafka_has_the_facts_of_a_booking_in_order_under_its_key(sale: Sale) -> None:
    about = [message for message in sale.kafka if message.key() == sale.booking.encode()]
    events = [json.loads(message.value()) for message in about]
    assert [event["type"] for event in events] == SALE
    assert {message.topic() for message in about} == {"holdfast.bookings"}
    assert dict(about[0].headers())["content-type"].startswith(b"application/cloudevents+json")
    assert {event["subject"] for event in events} == {sale.booking}
    assert {event["source"] for event in events} == {f"/orgs/{sale.org.slug}"}
    published = [message for message in sale.kafka if message.key() == sale.event.encode()]
    assert [json.loads(message.value())["type"] for message in published] == ["event.published"]
    assert {message.topic() for message in published} == {"holdfast.events"}


def test_nats_has_the_same_messages_under_subjects_with_the_org(sale: Sale) -> None:
    org = f"holdfast.{sale.org.slug}"
    subjects = [message.subject for message in sale.nats]
    about_booking = [subject for subject in subjects if ".bookings." in subject]
    assert about_booking == [f"{org}.{kind.replace('booking.', 'bookings.')}" for kind in SALE]
    assert [subject for subject in subjects if subject not in about_booking] == [f"{org}.events.published"]
    for message in sale.nats:
        assert message.headers["Nats-Msg-Id"] == json.loads(message.data)["id"]
    assert {message.data for message in sale.nats} == {message.value() for message in sale.kafka}


def test_no_message_contains_contact_details(sale: Sale) -> None:
    assert [message.value() for message in sale.kafka if b"ada@example.com" in message.value()] == []


def test_real_messages_match_the_document(sale: Sale) -> None:
    for message in sale.kafka:
        event = json.loads(message.value())
        schema_of(sale.document, event["type"]).validate(event)
        assert event["dataschema"].partition("#")[2] in references_in(sale.document)
    kinds = [json.loads(text)["type"] for text in sale.live]
    assert set(kinds) >= {"snapshot", "change"}
    for text, kind in zip(sale.live, kinds, strict=True):
        schema_of(sale.document, "several" if "from" in json.loads(text) else kind).validate(json.loads(text))


def test_the_document_refuses_a_message_of_another_shape(sale: Sale) -> None:
    event = json.loads(next(m.value() for m in sale.kafka if m.key() == sale.booking.encode()))
    schema = schema_of(sale.document, event["type"])
    for change in ({"type": "booking.lost"}, {"time": None}, {"data": {**event["data"], "total": "much"}}):
        assert not schema.is_valid({**event, **change})


def test_every_reference_in_the_document_leads_somewhere(sale: Sale) -> None:
    for reference in references_in(sale.document):
        found: Any = sale.document
        for part in reference.strip("/").split("/"):
            found = found[part]
        assert found
    assert set(sale.document["components"]["messages"]) >= {*BOOKING_WEBHOOK_KINDS, *EVENT_WEBHOOK_KINDS}
    assert sale.document["asyncapi"] == "3.0.0"


def schema_of(document: dict[str, Any], message: str) -> Any:
    payload = document["components"]["messages"][message]["payload"]
    return jsonschema_rs.validator_for({**payload, "components": document["components"]})


def references_in(value: Any) -> set[str]:
    """All `$ref`s in the document, and the schemas of data, which messages name."""
    if isinstance(value, list):
        return set().union(*map(references_in, value))
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"].removeprefix("#")} if isinstance(value.get("$ref"), str) else set()
    return own.union(*map(references_in, value.values()))


def test_the_page_lists_every_topic_and_type() -> None:
    rows = re.findall(
        r"^\| `holdfast\.(\w+)` \| `holdfast\.<org>\.\w+\.\*` \| (.+) \|$", DOCS.read_text(), re.MULTILINE
    )
    listed = {topic: set(re.findall(r"`([a-z_.]+)`", kinds)) for topic, kinds in rows}
    assert listed == {topic: {kind for kind in TOPICS if TOPICS[kind] is topic} for topic in Topic}


def test_without_a_bus_nothing_is_written_and_with_one_everything_is(database: str) -> None:
    async def count(bus: str) -> int:
        async with connection_to(database) as connection:
            found: int = await connection.fetchval("SELECT count(*) FROM delivery WHERE channel = $1", bus)
            return found

    async def register(bus: str) -> None:
        async with connection_to(database) as connection:
            await connection.execute("INSERT INTO event_bus (name) VALUES ($1)", bus)

    with running_server(database, workers=1) as server, server.client(Org(database).headers()) as client:
        event = publish_event(client, example_event())
        expect_ok(post_hold(client, event, items=[{"seat": "A-1"}]), 201)
        assert [asyncio.run(count(bus)) for bus in BUSES] == [0, 0]
        # A process that has no URL of the bus writes for it as soon as another one has registered it.
        asyncio.run(register("kafka"))
        expect_ok(post_hold(client, event, items=[{"seat": "A-2"}]), 201)
        expect_ok(client.patch(f"/v1/events/{event}", json={"title": "Saturday"}))
        assert [asyncio.run(count(bus)) for bus in BUSES] == [2, 0]


def test_the_command_line_shows_and_removes_what_waits(database: str) -> None:
    async def insert() -> None:
        async with connection_to(database) as connection:
            await connection.execute("INSERT INTO event_bus (name) VALUES ('kafka')")
            await insert_messages(connection, "kafka", org.id, bookings=2)
            await connection.execute("UPDATE delivery SET status = 'failed' WHERE number = 1")

    org = Org(database)
    asyncio.run(insert())
    shown = run_holdfast("bus", "status", database_url=database)
    (status,) = json.loads(shown.stdout)
    assert (shown.returncode, status["name"], status["waiting"], status["failed"]) == (1, "kafka", 1, 1)
    assert "publishes 1 messages" in run_holdfast("bus", "retry", "kafka", database_url=database).stderr
    assert call_holdfast(database, "bus", "status").returncode == 0
    query(database, "UPDATE delivery SET last_error = 'no topic', created_at = created_at - interval '16 min'")
    shown = call_holdfast(database, "bus", "status")
    (status,) = json.loads(shown.stdout)
    assert (shown.returncode, status["failed"], status["last_error"]) == (1, 0, "no topic")
    assert 960 <= status["oldest_waiting_seconds"] < 3_600
    assert "deleted 2 messages" in run_holdfast("bus", "remove", "kafka", database_url=database).stderr
    assert json.loads(run_holdfast("bus", "status", database_url=database).stdout) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("HOLDFAST_KAFKA_URL", "amqp://host"), ("HOLDFAST_NATS_URL", "amqp://host"), ("HOLDFAST_BUS_PREFIX", "a b")],
)
def test_a_setting_that_cannot_work_is_named_before_anything_starts(
    database: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_ALLOW_UNSAFE_DATABASE", "true")
    failed = run_holdfast("worker", database_url=database)
    assert failed.returncode == 2
    assert failed.stderr.startswith(f"Cannot use {name}: ")
