"""The URLs of brokers become options of their clients, and a URL that cannot work gets a clear error."""

import asyncio

import pytest

from holdfast.notifications.bus import check_prefix, stream_name
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.cloud_events import BusMessage, Topic
from holdfast.notifications.kafka_bus import KafkaBus, KafkaUrl, check_kafka
from holdfast.notifications.nats_bus import NatsBus, NatsUrl, check_nats
from tests.support.engine_harness import async_test

MESSAGE = BusMessage(id="1", topic=Topic.BOOKINGS, org="org", kind="booking.held", key="bk", content=b"{}")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("kafka://one", {"bootstrap.servers": "one:9092", "security.protocol": "plaintext"}),
        ("kafka://one:1,[::1]:2", {"bootstrap.servers": "one:1,[::1]:2", "security.protocol": "plaintext"}),
        (
            "kafka+ssl://ada:p%40ss@one?sasl.mechanism=SCRAM-SHA-512&ssl.ca.location=/ca.pem",
            {
                "bootstrap.servers": "one:9092",
                "security.protocol": "sasl_ssl",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "ada",
                "sasl.password": "p@ss",
                "ssl.ca.location": "/ca.pem",
            },
        ),
    ],
)
def test_a_kafka_url_becomes_options_of_librdkafka(url: str, options: dict[str, str]) -> None:
    assert KafkaUrl.parse(url).options == options


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://one", "must start with kafka://"),
        ("kafka://", "no host"),
        ("kafka://one:many", "port"),
        ("kafka://one/topic", "Only options"),
        ("kafka://ada@one", "without a password"),
        ("kafka://one?acks=1", "may not set acks"),
        ("kafka://one?message.timeout.ms=1", "may not set message.timeout.ms"),
        ("kafka://one?no.such.option=1", "no.such.option"),
        ("kafka://ada:secret@one?sasl.mechanism=NONE", "librdkafka refuses"),
        ("kafka+ssl://ada:12?34secret@one", "Percent-encode"),
        ("kafka://one?transactional.id=1", "without transactions"),
    ],
)
def test_a_kafka_url_that_cannot_work_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as error:
        check_kafka(url)
    assert "secret" not in str(error.value)


def test_a_nats_url_names_every_server() -> None:
    assert NatsUrl.parse("nats://ada:secret@one:4222,two").servers == (
        "nats://ada:secret@one:4222",
        "nats://ada:secret@two",
    )


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://one", "must start with nats://"),
        ("nats://", "host is missing"),
        ("nats://ada:secret@one:many", "port is not a number"),
        ("nats://one/path", "may follow the hosts"),
        ("nats://one?ca=/ca.pem", "need tls://"),
        ("tls://one?key=/key.pem", "needs the option cert"),
        ("tls://one?ca=/does/not/exist", "Cannot read its certificates"),
    ],
)
def test_a_nats_url_that_cannot_work_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as error:
        check_nats(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("prefix", ["", ".", "a..b", "a b", "a.*", "a.>", "x" * 101])
def test_a_prefix_that_a_broker_cannot_use_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="A prefix has"):
        check_prefix(prefix)


def test_a_stream_has_no_dots_in_its_name() -> None:
    assert stream_name(check_prefix("acme.holdfast")) == "ACME_HOLDFAST"


@async_test
async def test_an_encrypted_nats_url_sends_nothing_to_a_server_that_does_not_encrypt() -> None:
    """Whoever sits in between could pose as such a server, and ask for the password."""
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.9.0","max_payload":1048576,"headers":true}\r\n')
        received.extend(await reader.read(1_000))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    bus = NatsBus(f"tls://ada:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}", "holdfast")
    try:
        with pytest.raises(UndeliveredError, match="SecureConnRequiredError"):
            await bus.publish(MESSAGE)
    finally:
        await bus.close()
        server.close()
    assert bytes(received) == b""


@async_test
async def test_a_message_for_an_unreachable_kafka_fails_after_its_time() -> None:
    bus = KafkaBus("kafka://127.0.0.1:1", "holdfast", message_seconds=1)
    try:
        with pytest.raises(UndeliveredError, match="_MSG_TIMED_OUT") as error:
            await bus.publish(MESSAGE)
        assert not error.value.is_permanent
    finally:
        await bus.close()
