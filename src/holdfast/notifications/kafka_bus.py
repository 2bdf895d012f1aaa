"""Publishes to Kafka. A message counts as published once all in-sync replicas have stored it."""

import asyncio
import threading
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import structlog
from msgspec import Struct

from holdfast.notifications.bus import check_prefix
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.cloud_events import CONTENT_TYPE, BusMessage, Topic
from holdfast.runtime.extras import optional_import

with optional_import("confluent_kafka", extra="kafka"):
    from confluent_kafka import KafkaError, KafkaException, Message, Producer

log = structlog.get_logger()

PORT: Final = 9092
# librdkafka gives up on a message before the relay does, so no message is sent after the relay has postponed it.
MESSAGE_SECONDS: Final = 20
# The same for a message that Kafka gets a second time, without a batch around it.
ALONE_SECONDS: Final = 8
# A message larger than this is alone in its batch, so a broker that refuses the batch means this message.
BATCH_BYTES: Final = 65_536
QUEUED_MESSAGES_MAX: Final = 20_000
QUEUED_KBYTES_MAX: Final = 65_536
POLL_SECONDS: Final = 0.1
CLOSE_SECONDS: Final = 5.0
LOOKUP_SECONDS: Final = 5.0

# What the order and safety of messages depend on. The URL may not change these options.
FIXED_OPTIONS: Final[dict[str, str | int]] = {
    "enable.idempotence": "true",
    "acks": "all",
    "batch.size": BATCH_BYTES,
    "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
    "queue.buffering.max.kbytes": QUEUED_KBYTES_MAX,
}
# What the URL may change. Java clients partition by the same hash, so they can join these topics with their own.
DEFAULT_OPTIONS: Final[dict[str, str | int]] = {
    "client.id": "holdfast",
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "linger.ms": 5,
    # Holdfast reports errors itself. Without this, librdkafka also writes them to stderr.
    "log_level": 0,
}
URL_OPTIONS: Final = ("message.timeout.ms", "bootstrap.servers", "security.protocol", "sasl.username", "sasl.password")

# What librdkafka reports for a topic that does not exist.
NO_TOPIC: Final = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)

_FORM: Final = "Write it as kafka://host:9092,other:9092 or kafka+ssl://user:password@host:9092?option=value."


class KafkaUrl(Struct, frozen=True):
    """`kafka://host:9092,other:9092?option=value`. With `kafka+ssl`, the connection is encrypted. With a user and a
    password, Holdfast logs in with SASL. The options are those of librdkafka."""

    options: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> "KafkaUrl":
        url = _split(text)
        if url.scheme not in ("kafka", "kafka+ssl"):
            raise ValueError(f"It must start with kafka:// or kafka+ssl://. {_FORM}")
        if url.path.strip("/") or url.fragment:
            raise ValueError(f"Only options may follow the hosts. {_FORM}")
        if "@" in url.query:
            # The rest of a password, which must not appear in an error as the name of an option.
            raise ValueError(
                "An option contains an @. Percent-encode special characters in the user, the password and the options: "
                "? is %3F, / is %2F, # is %23 and @ is %40."
            )
        given = dict(parse_qsl(url.query, keep_blank_values=True))
        for name in given:
            if name in FIXED_OPTIONS or name in URL_OPTIONS:
                raise ValueError(f"It may not set {name}: Holdfast sets that option itself.")
        if "transactional.id" in given:
            raise ValueError("It may not set transactional.id: Holdfast publishes without transactions.")
        return cls({**_connection_options(url), **given})


def _split(text: str) -> SplitResult:
    """Some versions of Python refuse a list of hosts in which an IPv6 address comes later."""
    scheme, _, rest = text.partition("://")
    end = min((at for mark in "/?#" if (at := rest.find(mark)) >= 0), default=len(rest))
    hosts, path = rest[:end], rest[end:].removeprefix("/")
    return urlsplit(f"{scheme}:///{path}")._replace(netloc=hosts)


def _connection_options(url: SplitResult) -> dict[str, str]:
    login, _, hosts = url.netloc.rpartition("@")
    user, _, password = login.partition(":")
    if login and not (user and password):
        raise ValueError(f"It has a user without a password, or the reverse. {_FORM}")
    options = {"bootstrap.servers": ",".join(_with_port(host) for host in hosts.split(","))}
    security = "ssl" if url.scheme == "kafka+ssl" else "plaintext"
    options["security.protocol"] = f"sasl_{security}" if login else security
    if login:
        options |= {"sasl.mechanism": "PLAIN", "sasl.username": unquote(user), "sasl.password": unquote(password)}
    return options


def _with_port(host: str) -> str:
    parsed = urlsplit(f"//{host}")
    try:
        port = parsed.port or PORT
    except ValueError:
        raise ValueError(f"The port of a host is not a number. {_FORM}") from None
    if not parsed.hostname:
        raise ValueError(f"It has no host. {_FORM}")
    name = f"[{parsed.hostname}]" if ":" in parsed.hostname else parsed.hostname
    return f"{name}:{port}"


def check_kafka(url: str) -> KafkaUrl:
    """Raise `ValueError` if no producer can be made from this URL. Does not wait for a broker."""
    parsed = KafkaUrl.parse(url)
    _make_producer(parsed, MESSAGE_SECONDS)
    return parsed


def _make_producer(url: KafkaUrl, message_seconds: float, *, alone: bool = False) -> Producer:
    milliseconds = int(message_seconds * 1_000)
    options: dict[str, object] = {
        **DEFAULT_OPTIONS,
        # A topic that is missing for so long is reported as missing, rather than as a broker that does not answer.
        "topic.metadata.propagation.max.ms": milliseconds // 2,
        **url.options,
        **FIXED_OPTIONS,
        "message.timeout.ms": milliseconds,
        "error_cb": _log_error,
    }
    if alone:
        options["batch.num.messages"] = 1
    try:
        return Producer(options)
    except KafkaException as error:
        # The text names the option. The check of the URL has refused names that could be a part of a password.
        raise ValueError(f"librdkafka refuses it: {error.args[0].str()}") from None


def find_missing_topics(url: str, prefix: str) -> list[str]:
    """The topics that Kafka lacks. Blocks for a few seconds at most, and creates none."""
    producer = _make_producer(KafkaUrl.parse(url), MESSAGE_SECONDS)
    try:
        known = producer.list_topics(timeout=LOOKUP_SECONDS).topics
    except KafkaException as error:
        raise UndeliveredError(f"Kafka: {error.args[0].name()}") from None
    return [topic for topic in (f"{prefix}.{each}" for each in Topic) if topic not in known]


class KafkaBus:
    """A producer, and if batches turn out to be too large, another one that sends each message alone. A producer can
    fail for good, for example if the cluster has forgotten it; then the next message starts another one."""

    def __init__(self, url: str, prefix: str, *, message_seconds: float = MESSAGE_SECONDS) -> None:
        self._url = KafkaUrl.parse(url)
        self._prefix = check_prefix(prefix)
        self._message_seconds = message_seconds
        # By whether it sends messages alone.
        self._producers = {False: self._start_producer(alone=False)}

    async def publish(self, message: BusMessage) -> None:
        topic = f"{self._prefix}.{message.topic}"
        error = await self._send(topic, message, alone=False)
        if error is not None and _is_too_large(error) and len(message.content) <= BATCH_BYTES:
            # Perhaps it was the batch that was too large.
            error = await self._send(topic, message, alone=True)
        if error is not None:
            raise UndeliveredError(_explain(error, topic), is_permanent=_is_too_large(error))

    async def close(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(producer.close) for producer in self._producers.values()))

    async def _send(self, topic: str, message: BusMessage, *, alone: bool) -> KafkaError | None:
        producer = self._producers.get(alone)
        if producer is None:
            producer = self._producers[alone] = self._start_producer(alone=alone)
        error = await producer.send(topic, message)
        if error is not None and (producer.has_failed or error.fatal()) and self._producers.get(alone) is producer:
            log.warning("kafka_producer_replaced", error=error.name())
            del self._producers[alone]
            producer.abandon()
        return error

    def _start_producer(self, *, alone: bool) -> "_PolledProducer":
        seconds = min(self._message_seconds, ALONE_SECONDS) if alone else self._message_seconds
        return _PolledProducer(_make_producer(self._url, seconds, alone=alone))


class _PolledProducer:
    """A producer and the thread that collects its delivery reports. librdkafka sends in threads of its own."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._is_closing = False
        # The producer can send nothing more.
        self.has_failed = False
        self._thread = threading.Thread(target=self._poll, name="kafka-reports", daemon=True)
        self._thread.start()

    async def send(self, topic: str, message: BusMessage) -> KafkaError | None:
        """The broker's error, or None once the message is stored."""
        loop = asyncio.get_running_loop()
        report: asyncio.Future[KafkaError | None] = loop.create_future()

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            _call_in(loop, lambda: None if report.done() else report.set_result(error))

        try:
            self._producer.produce(
                topic,
                key=message.key,
                value=message.content,
                headers=[("content-type", CONTENT_TYPE.encode())],
                on_delivery=on_delivery,
            )
        except BufferError:
            raise UndeliveredError("Kafka: the queue is full") from None
        except KafkaException as error:
            found: KafkaError = error.args[0]
            return found
        return await report

    def abandon(self) -> None:
        """Let the thread end on its own, and fail what is left in the queue."""
        self._producer.purge(blocking=False)
        self._is_closing = True

    def close(self) -> None:
        """Blocks for a few seconds at most. The relay has ended, so whatever is left becomes due again later."""
        self._producer.flush(CLOSE_SECONDS)
        self.abandon()
        self._thread.join(CLOSE_SECONDS)

    def _poll(self) -> None:
        while not self._is_closing:
            self._collect_reports()
        # The reports of purged messages.
        self._collect_reports()

    def _collect_reports(self) -> None:
        try:
            self._producer.poll(POLL_SECONDS)
        except KafkaException as error:
            # Only a producer that has failed for good raises here. The reports that follow still matter.
            self.has_failed = True
            _log_error(error.args[0])


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        # The loop has ended, so nobody waits for the report.
        return


def _is_too_large(error: KafkaError) -> bool:
    """The message, or the batch that it was in."""
    return error.code() == KafkaError.MSG_SIZE_TOO_LARGE


def _explain(error: KafkaError, topic: str) -> str:
    if error.code() in NO_TOPIC:
        return f"Kafka has no topic {topic}"
    return f"Kafka: {error.name()} for the topic {topic}"


def _log_error(error: KafkaError) -> None:
    log.warning("kafka_failed", error=error.name())
