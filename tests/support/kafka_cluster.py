"""A Kafka cluster on loopback: the mock cluster of librdkafka, which speaks Kafka's protocol, in a process of its own.

`python -m tests.support.kafka_cluster` is that process. Its first line of output is where its brokers listen. Then it
obeys one command per line, and ends with its input.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

BROKERS = (1, 2, 3)
PRODUCE = 0
# UNKNOWN_TOPIC_OR_PARTITION in Kafka's protocol.
UNKNOWN_TOPIC = 3
ERROR_TEXT_BYTES = 512
WAIT_SECONDS = 60


class KafkaCluster:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        assert process.stdout is not None
        self.brokers = process.stdout.readline().strip()
        self.url = f"kafka://{self.brokers}"

    def stop_brokers(self) -> None:
        """They refuse connections until `start_brokers`, and keep their messages."""
        self._command("down")

    def start_brokers(self) -> None:
        self._command("up")

    def fail_next_produce(self, error: int) -> None:
        self._command(f"fail {error}")

    def remove_topic(self, topic: str) -> None:
        """From now on, the cluster says that there is no such topic."""
        self._command(f"missing {topic}")

    def pause(self) -> None:
        """They accept connections, and never answer until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def topics(self) -> set[str]:
        return set(AdminClient({"bootstrap.servers": self.brokers}).list_topics(timeout=WAIT_SECONDS).topics)

    def _command(self, text: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


class KafkaReader:
    """A consumer of whole topics, without a group. Keeps what it has read, in order of arrival for each key."""

    def __init__(self, cluster: KafkaCluster, *topics: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": cluster.brokers, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
        )
        self._consumer.assign([partition for topic in topics for partition in self._wait_for_topic(topic)])
        self.messages: list[Any] = []

    def _wait_for_topic(self, topic: str) -> list[TopicPartition]:
        """The first message creates it."""
        give_up_at = time.monotonic() + WAIT_SECONDS
        while not (found := self._consumer.list_topics(timeout=WAIT_SECONDS).topics.get(topic)):
            assert time.monotonic() < give_up_at, f"there is no topic {topic}"
            time.sleep(0.02)
        return [TopicPartition(topic, number, 0) for number in found.partitions]

    def read(self) -> list[Any]:
        """Everything that has arrived so far."""
        while found := self._consumer.consume(1_000, 0.2):
            self.messages += [message for message in found if message.error() is None]
        return self.messages

    def wait_for(self, count: int) -> list[Any]:
        """Read until there are so many different messages."""
        give_up_at = time.monotonic() + WAIT_SECONDS
        while len({message.value() for message in self.read()}) < count:
            assert time.monotonic() < give_up_at, f"only {len(self.messages)} messages"
        return self.messages

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def running_kafka() -> Iterator[KafkaCluster]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.kafka_cluster"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            yield KafkaCluster(process)
        finally:
            process.kill()


@contextmanager
def reading(cluster: KafkaCluster, *topics: str) -> Iterator[KafkaReader]:
    reader = KafkaReader(cluster, *topics)
    try:
        yield reader
    finally:
        reader.close()


def _load_library() -> ctypes.CDLL:
    """The librdkafka that the Python package has loaded. The package has no functions of its own for the cluster."""
    assert confluent_kafka.libversion()
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "librdkafka" in line)
    library = ctypes.CDLL(path)
    library.rd_kafka_new.restype = library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_new.argtypes = (ctypes.c_void_p, ctypes.c_int)
    library.rd_kafka_mock_cluster_bootstraps.argtypes = (ctypes.c_void_p,)
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    for switch in (library.rd_kafka_mock_broker_set_down, library.rd_kafka_mock_broker_set_up):
        switch.argtypes = (ctypes.c_void_p, ctypes.c_int32)
    return library


def _serve() -> None:
    library = _load_library()
    client = library.rd_kafka_new(0, None, ctypes.create_string_buffer(ERROR_TEXT_BYTES), ERROR_TEXT_BYTES)
    cluster = library.rd_kafka_mock_cluster_new(client, len(BROKERS))
    print(library.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    switches = {"down": library.rd_kafka_mock_broker_set_down, "up": library.rd_kafka_mock_broker_set_up}
    for line in sys.stdin:
        command, _, value = line.strip().partition(" ")
        if command == "fail":
            library.rd_kafka_mock_push_request_errors(
                ctypes.c_void_p(cluster), ctypes.c_int16(PRODUCE), ctypes.c_size_t(1), ctypes.c_int(int(value))
            )
        elif command == "missing":
            library.rd_kafka_mock_topic_set_error(
                ctypes.c_void_p(cluster), ctypes.c_char_p(value.encode()), ctypes.c_int(UNKNOWN_TOPIC)
            )
        else:
            for broker in BROKERS:
                switches[command](cluster, broker)
        print("done", flush=True)
    os._exit(0)


if __name__ == "__main__":
    _serve()
