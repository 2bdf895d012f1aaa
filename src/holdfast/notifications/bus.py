"""The interface of a message broker, and the name under which Holdfast publishes."""

import re
from typing import Final, Protocol

from holdfast.notifications.cloud_events import BusMessage

PREFIX_MAX: Final = 100

_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class Bus(Protocol):
    async def publish(self, message: BusMessage) -> None:
        """Return once the broker has stored the message, otherwise raise `UndeliveredError`. The same message may come
        again."""

    async def close(self) -> None: ...


def stream_name(prefix: str) -> str:
    """The JetStream stream of a prefix. Names of streams have no dots."""
    return prefix.upper().replace(".", "_")


def check_prefix(prefix: str) -> str:
    """The prefix, if Kafka and NATS can both use it."""
    if len(prefix) > PREFIX_MAX or not _PREFIX.fullmatch(prefix):
        raise ValueError(
            f"A prefix has up to {PREFIX_MAX} letters, digits, hyphens and underscores, with single dots in between."
        )
    return prefix
