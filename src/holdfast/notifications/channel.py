"""What carries a message to the outside. To add another way, such as SMS, write a `Channel` and name it."""

from datetime import datetime
from typing import Protocol

from msgspec import Struct


class Delivery(Struct, frozen=True, kw_only=True):
    """One message for one target, as the fact that it tells of was written. `body` is JSON."""

    event: bytes
    number: int
    target: str
    channel: str
    org: bytes
    stream: bytes
    kind: str
    body: bytes
    created_at: datetime
    attempts: int


class UndeliveredError(Exception):
    """The message did not arrive. It is tried again later, unless `for_good`. The text goes to the delivery log, which
    staff can read, and names no buyer."""

    def __init__(self, detail: str, *, for_good: bool = False) -> None:
        super().__init__(detail)
        self.for_good = for_good


class TargetGoneError(UndeliveredError):
    """The target wants no more messages at all."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, for_good=True)


class Channel(Protocol):
    async def send(self, delivery: Delivery) -> None:
        """Returns once the other side has taken the message; else raises `UndeliveredError`. It may get the same
        message again: whoever dies between sending and noting it has to send it once more."""
