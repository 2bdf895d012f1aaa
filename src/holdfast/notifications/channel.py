"""The interface of a channel. To add one, see docs/notifications.md."""

from datetime import datetime
from typing import Protocol

from msgspec import Struct


class Delivery(Struct, frozen=True, kw_only=True):
    """One message for one target, as it was written with its journal entry. `body` is JSON."""

    event: bytes
    number: int
    target: str
    channel: str
    org: bytes
    stream: bytes
    kind: str
    body: str
    created_at: datetime
    attempts: int


class UndeliveredError(Exception):
    """The message did not arrive. The relay retries it unless the failure `is_permanent`, and no sooner than the other
    side asked for. The text goes into the delivery log, which staff read, so it never names a buyer."""

    def __init__(self, detail: str, *, is_permanent: bool = False, retry_after_seconds: float = 0) -> None:
        super().__init__(detail)
        self.is_permanent = is_permanent
        self.retry_after_seconds = retry_after_seconds


class TargetGoneError(UndeliveredError):
    """The target wants no more messages."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, is_permanent=True)


class Channel(Protocol):
    async def send(self, delivery: Delivery) -> None:
        """Return once the other side has accepted the message, otherwise raise `UndeliveredError`. The same message may
        come again: a relay that dies before it records a success leaves the message to another relay."""
