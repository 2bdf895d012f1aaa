"""Who has to be told of a fact, and what. The messages are written with the fact, and carried outside later."""

from typing import Final

from msgspec import Struct

from holdfast.core.journal import PAYMENT_PREFIX, TRANSFERRED, JournalEntry
from holdfast.core.payment import PaymentStatus
from holdfast.core.states import Status

MAIL: Final = "mail"
WEBHOOK: Final = "webhook"

_LATE_MONEY: Final = PAYMENT_PREFIX + PaymentStatus.REFUND_DUE
# What a buyer is written about, if we know where to. A hold is not: they are looking at it.
MAILED: Final = frozenset(
    {
        Status.CONFIRMED.value,
        Status.EXPIRED.value,
        Status.REJECTED.value,
        Status.CANCELLED.value,
        Status.REFUNDED.value,
        TRANSFERRED,
        _LATE_MONEY,
    }
)


class WebhookSubscription(Struct, frozen=True):
    """A webhook endpoint of an org, and the kinds of facts it wants; none named: all."""

    id: bytes
    kinds: frozenset[str]

    def wants(self, kind: str) -> bool:
        return not self.kinds or kind in self.kinds


class Notification(Struct, frozen=True):
    target: str
    channel: str
    kind: str


def notifications_for(entry: JournalEntry, endpoints: list[WebhookSubscription]) -> list[Notification]:
    kind = public_kind(entry.kind)
    told = [Notification(endpoint.id.hex(), WEBHOOK, kind) for endpoint in endpoints if endpoint.wants(kind)]
    if entry.booking.email is not None and _is_mailed(entry):
        told.append(Notification(MAIL, MAIL, kind))
    return told


def public_kind(kind: str) -> str:
    """How the outside calls a kind of fact: `booking.held`, `payment.refunded`."""
    return kind if kind.startswith(PAYMENT_PREFIX) else f"booking.{kind}"


def _is_mailed(entry: JournalEntry) -> bool:
    """Of a refund the buyer hears once: with the booking that was taken back, or else with money that goes back as soon
    as it has come."""
    return entry.kind in MAILED and (entry.kind != _LATE_MONEY or entry.is_unexpected)
