"""Who has to be told of a fact, and what. The messages are written with the fact, and carried outside later."""

from typing import Final

from msgspec import Struct

from holdfast.core.facts import OF_PAYMENTS, TRANSFERRED, Fact
from holdfast.core.money import PaymentStatus
from holdfast.core.states import Status

MAIL: Final = "mail"
WEBHOOK: Final = "webhook"

_LATE_MONEY: Final = OF_PAYMENTS + PaymentStatus.REFUND_DUE
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


class Endpoint(Struct, frozen=True):
    """A webhook endpoint of an org, and the kinds of facts it wants; none named: all."""

    id: bytes
    kinds: frozenset[str]

    def wants(self, kind: str) -> bool:
        return not self.kinds or kind in self.kinds


class Message(Struct, frozen=True):
    target: str
    channel: str
    kind: str


def messages(fact: Fact, endpoints: list[Endpoint]) -> list[Message]:
    kind = told_as(fact.kind)
    told = [Message(endpoint.id.hex(), WEBHOOK, kind) for endpoint in endpoints if endpoint.wants(kind)]
    if fact.booking.email is not None and _is_mailed(fact):
        told.append(Message(MAIL, MAIL, kind))
    return told


def told_as(kind: str) -> str:
    """How the outside calls a kind of fact: `booking.held`, `payment.refunded`."""
    return kind if kind.startswith(OF_PAYMENTS) else f"booking.{kind}"


def _is_mailed(fact: Fact) -> bool:
    """Of a refund the buyer hears once: with the booking that was taken back, or else with money that goes back as soon
    as it has come."""
    return fact.kind in MAILED and (fact.kind != _LATE_MONEY or fact.is_surprise)
