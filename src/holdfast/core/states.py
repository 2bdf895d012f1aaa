"""The one table of states: what a booking can be, what can happen to it, and what that does to the stock.

Everything else that speaks of states is derived from here: the engine, the SQL of the auditor, the tests and the
diagram in `docs/states.md`.
"""

from enum import StrEnum
from typing import Final

from holdfast.core.refusals import Refusal


class FastStrEnum(StrEnum):
    """A word of a fixed vocabulary. It hashes like its text: tables are looked up with it on the way of every hold."""

    __hash__ = str.__hash__


class Status(FastStrEnum):
    HELD = "held"
    PAYMENT_SUBMITTED = "payment_submitted"
    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REFUNDED = "refunded"
    COMPLETED = "completed"


class Claim(FastStrEnum):
    """Which counter of its pools a booking fills. A transition moves units from one claim to the other."""

    NONE = "none"
    HELD = "held"
    SOLD = "sold"


class Verb(FastStrEnum):
    """What can be asked of a booking that exists."""

    EXTEND = "extend"
    SUBMIT = "submit"
    APPROVE = "approve"
    REJECT = "reject"
    SETTLE = "settle"
    CONFIRM = "confirm"
    CANCEL = "cancel"
    REFUND = "refund"
    EXPIRE = "expire"
    COMPLETE = "complete"


CLAIMS: Final = {
    Status.HELD: Claim.HELD,
    Status.PAYMENT_SUBMITTED: Claim.HELD,
    Status.CONFIRMED: Claim.SOLD,
    Status.REJECTED: Claim.NONE,
    Status.EXPIRED: Claim.NONE,
    Status.CANCELLED: Claim.NONE,
    Status.REFUNDED: Claim.NONE,
    Status.COMPLETED: Claim.SOLD,
}

# A booking in one of these runs out at its `expires_at`.
TIMED: Final = frozenset({Status.HELD, Status.PAYMENT_SUBMITTED})

# A booking in one of these counts against its buyer's limits.
LIVE: Final = frozenset({Status.HELD, Status.PAYMENT_SUBMITTED, Status.CONFIRMED})

# A new booking starts in one of these.
INITIAL: Final = frozenset({Status.HELD, Status.CONFIRMED})

# Where a verb leads. A target equal to the present status is the same action again: it answers with the booking as
# it is and writes nothing, but for `extend`, which moves the deadline.
TRANSITIONS: Final[dict[tuple[Status, Verb], Status | Refusal]] = {
    (Status.HELD, Verb.EXTEND): Status.HELD,
    (Status.HELD, Verb.SUBMIT): Status.PAYMENT_SUBMITTED,
    (Status.HELD, Verb.APPROVE): Refusal.NOT_SUBMITTED,
    (Status.HELD, Verb.REJECT): Refusal.NOT_SUBMITTED,
    (Status.HELD, Verb.SETTLE): Status.CONFIRMED,
    (Status.HELD, Verb.CONFIRM): Status.CONFIRMED,
    (Status.HELD, Verb.CANCEL): Status.CANCELLED,
    (Status.HELD, Verb.REFUND): Refusal.NOT_CONFIRMED,
    (Status.HELD, Verb.EXPIRE): Status.EXPIRED,
    (Status.HELD, Verb.COMPLETE): Refusal.NOT_CONFIRMED,
    (Status.PAYMENT_SUBMITTED, Verb.EXTEND): Refusal.ALREADY_SUBMITTED,
    (Status.PAYMENT_SUBMITTED, Verb.SUBMIT): Status.PAYMENT_SUBMITTED,
    (Status.PAYMENT_SUBMITTED, Verb.APPROVE): Status.CONFIRMED,
    (Status.PAYMENT_SUBMITTED, Verb.REJECT): Status.REJECTED,
    (Status.PAYMENT_SUBMITTED, Verb.SETTLE): Status.CONFIRMED,
    (Status.PAYMENT_SUBMITTED, Verb.CONFIRM): Refusal.ALREADY_SUBMITTED,
    (Status.PAYMENT_SUBMITTED, Verb.CANCEL): Refusal.ALREADY_SUBMITTED,
    (Status.PAYMENT_SUBMITTED, Verb.REFUND): Refusal.NOT_CONFIRMED,
    (Status.PAYMENT_SUBMITTED, Verb.EXPIRE): Status.EXPIRED,
    (Status.PAYMENT_SUBMITTED, Verb.COMPLETE): Refusal.NOT_CONFIRMED,
    (Status.CONFIRMED, Verb.EXTEND): Refusal.ALREADY_CONFIRMED,
    (Status.CONFIRMED, Verb.SUBMIT): Refusal.ALREADY_CONFIRMED,
    (Status.CONFIRMED, Verb.APPROVE): Status.CONFIRMED,
    (Status.CONFIRMED, Verb.REJECT): Refusal.ALREADY_CONFIRMED,
    (Status.CONFIRMED, Verb.SETTLE): Refusal.ALREADY_CONFIRMED,
    (Status.CONFIRMED, Verb.CONFIRM): Status.CONFIRMED,
    # Only a free booking can simply be given up; where money was paid it has to go back (`refund`).
    (Status.CONFIRMED, Verb.CANCEL): Status.CANCELLED,
    (Status.CONFIRMED, Verb.REFUND): Status.REFUNDED,
    (Status.CONFIRMED, Verb.EXPIRE): Refusal.ALREADY_CONFIRMED,
    (Status.CONFIRMED, Verb.COMPLETE): Status.COMPLETED,
    (Status.REJECTED, Verb.EXTEND): Refusal.ALREADY_REJECTED,
    (Status.REJECTED, Verb.SUBMIT): Refusal.ALREADY_REJECTED,
    (Status.REJECTED, Verb.APPROVE): Refusal.ALREADY_REJECTED,
    (Status.REJECTED, Verb.REJECT): Status.REJECTED,
    (Status.REJECTED, Verb.SETTLE): Refusal.ALREADY_REJECTED,
    (Status.REJECTED, Verb.CONFIRM): Refusal.ALREADY_REJECTED,
    (Status.REJECTED, Verb.CANCEL): Refusal.ALREADY_REJECTED,
    (Status.REJECTED, Verb.REFUND): Refusal.ALREADY_REJECTED,
    (Status.REJECTED, Verb.EXPIRE): Refusal.ALREADY_REJECTED,
    (Status.REJECTED, Verb.COMPLETE): Refusal.ALREADY_REJECTED,
    (Status.EXPIRED, Verb.EXTEND): Refusal.HOLD_EXPIRED,
    # Money or a receipt that comes late revives the booking if that `is_revivable`; else it is refused as expired.
    (Status.EXPIRED, Verb.SUBMIT): Status.PAYMENT_SUBMITTED,
    (Status.EXPIRED, Verb.APPROVE): Refusal.HOLD_EXPIRED,
    (Status.EXPIRED, Verb.REJECT): Refusal.HOLD_EXPIRED,
    (Status.EXPIRED, Verb.SETTLE): Status.CONFIRMED,
    (Status.EXPIRED, Verb.CONFIRM): Refusal.HOLD_EXPIRED,
    (Status.EXPIRED, Verb.CANCEL): Refusal.HOLD_EXPIRED,
    (Status.EXPIRED, Verb.REFUND): Refusal.HOLD_EXPIRED,
    (Status.EXPIRED, Verb.EXPIRE): Status.EXPIRED,
    (Status.EXPIRED, Verb.COMPLETE): Refusal.HOLD_EXPIRED,
    (Status.CANCELLED, Verb.EXTEND): Refusal.ALREADY_CANCELLED,
    (Status.CANCELLED, Verb.SUBMIT): Refusal.ALREADY_CANCELLED,
    (Status.CANCELLED, Verb.APPROVE): Refusal.ALREADY_CANCELLED,
    (Status.CANCELLED, Verb.REJECT): Refusal.ALREADY_CANCELLED,
    (Status.CANCELLED, Verb.SETTLE): Refusal.ALREADY_CANCELLED,
    (Status.CANCELLED, Verb.CONFIRM): Refusal.ALREADY_CANCELLED,
    (Status.CANCELLED, Verb.CANCEL): Status.CANCELLED,
    (Status.CANCELLED, Verb.REFUND): Refusal.ALREADY_CANCELLED,
    (Status.CANCELLED, Verb.EXPIRE): Refusal.ALREADY_CANCELLED,
    (Status.CANCELLED, Verb.COMPLETE): Refusal.ALREADY_CANCELLED,
    (Status.REFUNDED, Verb.EXTEND): Refusal.ALREADY_REFUNDED,
    (Status.REFUNDED, Verb.SUBMIT): Refusal.ALREADY_REFUNDED,
    (Status.REFUNDED, Verb.APPROVE): Refusal.ALREADY_REFUNDED,
    (Status.REFUNDED, Verb.REJECT): Refusal.ALREADY_REFUNDED,
    (Status.REFUNDED, Verb.SETTLE): Refusal.ALREADY_REFUNDED,
    (Status.REFUNDED, Verb.CONFIRM): Refusal.ALREADY_REFUNDED,
    (Status.REFUNDED, Verb.CANCEL): Refusal.ALREADY_REFUNDED,
    (Status.REFUNDED, Verb.REFUND): Status.REFUNDED,
    (Status.REFUNDED, Verb.EXPIRE): Refusal.ALREADY_REFUNDED,
    (Status.REFUNDED, Verb.COMPLETE): Refusal.ALREADY_REFUNDED,
    (Status.COMPLETED, Verb.EXTEND): Refusal.ALREADY_COMPLETED,
    (Status.COMPLETED, Verb.SUBMIT): Refusal.ALREADY_COMPLETED,
    (Status.COMPLETED, Verb.APPROVE): Refusal.ALREADY_COMPLETED,
    (Status.COMPLETED, Verb.REJECT): Refusal.ALREADY_COMPLETED,
    (Status.COMPLETED, Verb.SETTLE): Refusal.ALREADY_COMPLETED,
    (Status.COMPLETED, Verb.CONFIRM): Refusal.ALREADY_COMPLETED,
    (Status.COMPLETED, Verb.CANCEL): Refusal.ALREADY_COMPLETED,
    (Status.COMPLETED, Verb.REFUND): Refusal.ALREADY_COMPLETED,
    (Status.COMPLETED, Verb.EXPIRE): Refusal.ALREADY_COMPLETED,
    (Status.COMPLETED, Verb.COMPLETE): Status.COMPLETED,
}


# What can bring an expired booking back.
REVIVING: Final = frozenset(
    verb for (status, verb), target in TRANSITIONS.items() if status is Status.EXPIRED and target in LIVE
)


class EventStatus(FastStrEnum):
    """An event's life. That it is sold out is never stored: it follows from its pools."""

    DRAFT = "draft"
    ACTIVE = "active"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


# What becomes of the bookings of an event that has ended, by what they were and whether they were free. A hold of an
# event that is over runs out by itself.
ENDINGS: Final[dict[EventStatus, dict[tuple[Status, bool], Status]]] = {
    EventStatus.COMPLETED: {
        (Status.CONFIRMED, False): Status.COMPLETED,
        (Status.CONFIRMED, True): Status.COMPLETED,
    },
    EventStatus.CANCELLED: {
        (Status.HELD, False): Status.CANCELLED,
        (Status.HELD, True): Status.CANCELLED,
        (Status.PAYMENT_SUBMITTED, False): Status.CANCELLED,
        (Status.PAYMENT_SUBMITTED, True): Status.CANCELLED,
        (Status.CONFIRMED, False): Status.REFUNDED,
        (Status.CONFIRMED, True): Status.CANCELLED,
    },
}


def edges() -> list[tuple[Status | None, Status, str]]:
    """Every change of status there is, with what causes it; `None` is where a booking begins."""
    begun: list[tuple[Status | None, Status, str]] = [(None, status, "place") for status in Status if status in INITIAL]
    moved = [
        (source, target, verb.value)
        for (source, verb), target in TRANSITIONS.items()
        if isinstance(target, Status) and target is not source
    ]
    ended = [
        (source, target, f"event {event}")
        for event, endings in ENDINGS.items()
        for (source, _), target in endings.items()
        if (source, target) not in {(before, after) for before, after, _ in moved}
    ]
    return begun + moved + list(dict.fromkeys(ended))
