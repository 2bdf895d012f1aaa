"""A Kafka producer that has failed for good is replaced, a batch that is too large takes no message with it, and errors
name the topic."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError
from msgspec import structs

from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.cloud_events import BusMessage, Topic
from holdfast.notifications.kafka_bus import BATCH_BYTES, KafkaBus
from tests.support.engine_harness import async_test
from tests.support.kafka_cluster import KafkaCluster, reading, running_kafka


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with running_kafka() as cluster:
        yield cluster


def message(number: int, size: int = 0) -> BusMessage:
    content = f"{number}".encode() + b"x" * size
    return BusMessage(id=str(number), topic=Topic.BOOKINGS, org="org", kind="booking.held", key="bk_1", content=content)


@async_test
async def test_the_next_message_starts_another_producer(kafka: KafkaCluster) -> None:
    bus = KafkaBus(kafka.url, "fatal")
    try:
        await bus.publish(message(1))
        # librdkafka treats a gap in the sequence of an idempotent producer as fatal.
        kafka.fail_next_produce(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        with pytest.raises(UndeliveredError, match="OUT_OF_ORDER_SEQUENCE_NUMBER") as error:
            await bus.publish(message(2))
        assert not error.value.is_permanent
        await bus.publish(message(2))
    finally:
        await bus.close()
    with reading(kafka, "fatal.bookings") as reader:
        assert [(found.key(), found.value()) for found in reader.wait_for(2)] == [(b"bk_1", b"1"), (b"bk_1", b"2")]


@async_test
async def test_a_message_is_refused_for_good_only_if_kafka_refuses_it_alone(kafka: KafkaCluster) -> None:
    bus = KafkaBus(kafka.url, "large")
    try:
        kafka.fail_next_produce(KafkaError.MSG_SIZE_TOO_LARGE)
        await bus.publish(message(1))
        for failures, size in ((2, 0), (1, BATCH_BYTES + 1)):
            for _ in range(failures):
                kafka.fail_next_produce(KafkaError.MSG_SIZE_TOO_LARGE)
            with pytest.raises(UndeliveredError, match=r"MSG_SIZE_TOO_LARGE for the topic large\.bookings") as error:
                await bus.publish(message(2, size))
            assert error.value.is_permanent
    finally:
        await bus.close()
    with reading(kafka, "large.bookings") as reader:
        assert [found.value() for found in reader.wait_for(1)] == [b"1"]


@async_test
async def test_a_missing_topic_is_named_and_its_messages_wait(kafka: KafkaCluster) -> None:
    kafka.remove_topic("partly.payments")
    bus = KafkaBus(kafka.url, "partly", message_seconds=10)
    try:
        await bus.publish(message(1))
        with pytest.raises(UndeliveredError, match=r"^Kafka has no topic partly\.payments$") as error:
            await bus.publish(structs.replace(message(2), topic=Topic.PAYMENTS))
        assert not error.value.is_permanent
    finally:
        await bus.close()
