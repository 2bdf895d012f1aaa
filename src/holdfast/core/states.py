"""The one table of states: what a booking can be, what can happen to it, and which units it claims.

Everything else about states derives from here: the engine, the lists of statuses in SQL, the auditor, the tests and the
diagram in `docs/states.md`.
"""

from enum import StrEnum
from typing import Final

from holdfast.core.refusals import Refusal


class FastStrEnum(StrEnum):
    """A StrEnum that hashes like its text, because the path of every hold looks up tables with it."""

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
    """Which counter of its pools a booking fills."""

    NONE = "none"
    HELD = "held"
    SOLD = "sold"


class Verb(FastStrEnum):
    """What can happen to an existing booking."""

    EXTEND = "extend"
    START_PAYMENT = "start_payment"
    SUBMIT = "submit"
    APPROVE = "approve"
    REJECT = "reject"
    SETTLE = "settle"
    CONFIRM = "confirm"
    CANCEL = "cancel"
    REFUND = "refund"
    TRANSFER = "transfer"
    EXPIRE = "expire"


class EventStatus(FastStrEnum):
    """An event is never stored as sold out: that follows from its pools."""

    DRAFT = "draft"
    ACTIVE = "active"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


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

# A new booking starts in one of these.
INITIAL: Final = frozenset({Status.HELD, Status.CONFIRMED})

# Where each verb leads from each status. A verb that leads to the present status changes nothing and returns the
# booking, except `extend`, `start_payment` and `transfer`, which change the booking without changing its status.
_TABLE: Final[dict[Status, dict[Verb, Status | Refusal]]] = {
    Status.HELD: {
        Verb.EXTEND: Status.HELD,
        Verb.START_PAYMENT: Status.HELD,
        Verb.SUBMIT: Status.PAYMENT_SUBMITTED,
        Verb.APPROVE: Refusal.NOT_SUBMITTED,
        Verb.REJECT: Refusal.NOT_SUBMITTED,
        Verb.SETTLE: Status.CONFIRMED,
        Verb.CONFIRM: Status.CONFIRMED,
        Verb.CANCEL: Status.CANCELLED,
        Verb.REFUND: Refusal.NOT_CONFIRMED,
        Verb.TRANSFER: Refusal.NOT_CONFIRMED,
        Verb.EXPIRE: Status.EXPIRED,
    },
    Status.PAYMENT_SUBMITTED: {
        Verb.EXTEND: Refusal.ALREADY_SUBMITTED,
        Verb.START_PAYMENT: Refusal.ALREADY_SUBMITTED,
        Verb.SUBMIT: Status.PAYMENT_SUBMITTED,
        Verb.APPROVE: Status.CONFIRMED,
        Verb.REJECT: Status.REJECTED,
        Verb.SETTLE: Status.CONFIRMED,
        Verb.CONFIRM: Refusal.ALREADY_SUBMITTED,
        Verb.CANCEL: Refusal.ALREADY_SUBMITTED,
        Verb.REFUND: Refusal.NOT_CONFIRMED,
        Verb.TRANSFER: Refusal.NOT_CONFIRMED,
        Verb.EXPIRE: Status.EXPIRED,
    },
    Status.CONFIRMED: {
        Verb.EXTEND: Refusal.ALREADY_CONFIRMED,
        Verb.START_PAYMENT: Refusal.ALREADY_CONFIRMED,
        Verb.SUBMIT: Refusal.ALREADY_CONFIRMED,
        Verb.APPROVE: Status.CONFIRMED,
        Verb.REJECT: Refusal.ALREADY_CONFIRMED,
        Verb.SETTLE: Refusal.ALREADY_CONFIRMED,
        Verb.CONFIRM: Status.CONFIRMED,
        # Only a free booking. A paid one has to be refunded.
        Verb.CANCEL: Status.CANCELLED,
        Verb.REFUND: Status.REFUNDED,
        Verb.TRANSFER: Status.CONFIRMED,
        Verb.EXPIRE: Refusal.ALREADY_CONFIRMED,
    },
    Status.REJECTED: {
        Verb.EXTEND: Refusal.ALREADY_REJECTED,
        Verb.START_PAYMENT: Refusal.ALREADY_REJECTED,
        Verb.SUBMIT: Refusal.ALREADY_REJECTED,
        Verb.APPROVE: Refusal.ALREADY_REJECTED,
        Verb.REJECT: Status.REJECTED,
        Verb.SETTLE: Refusal.ALREADY_REJECTED,
        Verb.CONFIRM: Refusal.ALREADY_REJECTED,
        Verb.CANCEL: Refusal.ALREADY_REJECTED,
        Verb.REFUND: Refusal.ALREADY_REJECTED,
        Verb.TRANSFER: Refusal.ALREADY_REJECTED,
        Verb.EXPIRE: Refusal.ALREADY_REJECTED,
    },
    Status.EXPIRED: {
        Verb.EXTEND: Refusal.HOLD_EXPIRED,
        Verb.START_PAYMENT: Refusal.HOLD_EXPIRED,
        # A late receipt, late money or a late confirmation revives the booking if it `is_revivable`, and is refused
        # otherwise.
        Verb.SUBMIT: Status.PAYMENT_SUBMITTED,
        Verb.APPROVE: Refusal.HOLD_EXPIRED,
        Verb.REJECT: Refusal.HOLD_EXPIRED,
        Verb.SETTLE: Status.CONFIRMED,
        Verb.CONFIRM: Status.CONFIRMED,
        Verb.CANCEL: Refusal.HOLD_EXPIRED,
        Verb.REFUND: Refusal.HOLD_EXPIRED,
        Verb.TRANSFER: Refusal.HOLD_EXPIRED,
        Verb.EXPIRE: Status.EXPIRED,
    },
    Status.CANCELLED: {
        Verb.EXTEND: Refusal.ALREADY_CANCELLED,
        Verb.START_PAYMENT: Refusal.ALREADY_CANCELLED,
        Verb.SUBMIT: Refusal.ALREADY_CANCELLED,
        Verb.APPROVE: Refusal.ALREADY_CANCELLED,
        Verb.REJECT: Refusal.ALREADY_CANCELLED,
        Verb.SETTLE: Refusal.ALREADY_CANCELLED,
        Verb.CONFIRM: Refusal.ALREADY_CANCELLED,
        Verb.CANCEL: Status.CANCELLED,
        Verb.REFUND: Refusal.ALREADY_CANCELLED,
        Verb.TRANSFER: Refusal.ALREADY_CANCELLED,
        Verb.EXPIRE: Refusal.ALREADY_CANCELLED,
    },
    Status.REFUNDED: {
        Verb.EXTEND: Refusal.ALREADY_REFUNDED,
        Verb.START_PAYMENT: Refusal.ALREADY_REFUNDED,
        Verb.SUBMIT: Refusal.ALREADY_REFUNDED,
        Verb.APPROVE: Refusal.ALREADY_REFUNDED,
        Verb.REJECT: Refusal.ALREADY_REFUNDED,
        Verb.SETTLE: Refusal.ALREADY_REFUNDED,
        Verb.CONFIRM: Refusal.ALREADY_REFUNDED,
        Verb.CANCEL: Refusal.ALREADY_REFUNDED,
        Verb.REFUND: Status.REFUNDED,
        Verb.TRANSFER: Refusal.ALREADY_REFUNDED,
        Verb.EXPIRE: Refusal.ALREADY_REFUNDED,
    },
    Status.COMPLETED: {
        Verb.EXTEND: Refusal.ALREADY_COMPLETED,
        Verb.START_PAYMENT: Refusal.ALREADY_COMPLETED,
        Verb.SUBMIT: Refusal.ALREADY_COMPLETED,
        Verb.APPROVE: Refusal.ALREADY_COMPLETED,
        Verb.REJECT: Refusal.ALREADY_COMPLETED,
        Verb.SETTLE: Refusal.ALREADY_COMPLETED,
        Verb.CONFIRM: Refusal.ALREADY_COMPLETED,
        Verb.CANCEL: Refusal.ALREADY_COMPLETED,
        Verb.REFUND: Refusal.ALREADY_COMPLETED,
        Verb.TRANSFER: Refusal.ALREADY_COMPLETED,
        Verb.EXPIRE: Refusal.ALREADY_COMPLETED,
    },
}

TRANSITIONS: Final = {(status, verb): target for status, row in _TABLE.items() for verb, target in row.items()}

# How bookings end when their event ends, by status and whether they are free of charge. Holds of a completed event
# expire at their deadline as usual.
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

# These expire at their `expires_at`.
TIMED: Final = frozenset(
    status for status in set(Status) - {Status.EXPIRED} if TRANSITIONS[status, Verb.EXPIRE] is Status.EXPIRED
)

# These count against their buyer's limits, and end when the event is cancelled.
LIVE: Final = frozenset(status for status, _ in ENDINGS[EventStatus.CANCELLED])

# These fill the `held` counter of their pools, the `sold` counter, or either.
HOLDING: Final = frozenset(status for status in Status if CLAIMS[status] is Claim.HELD)
SOLD: Final = frozenset(status for status in Status if CLAIMS[status] is Claim.SOLD)
CLAIMING: Final = HOLDING | SOLD

# These accept a payment at a provider.
PAYABLE: Final = frozenset(status for status in Status if isinstance(TRANSITIONS[status, Verb.START_PAYMENT], Status))

Edge = tuple[Status | None, Status, str]


def verb_refusals(verb: Verb) -> tuple[Refusal, ...]:
    """Every refusal that the table has for the verb."""
    targets = (TRANSITIONS[status, verb] for status in Status)
    return tuple(dict.fromkeys(target for target in targets if isinstance(target, Refusal)))


def edges() -> list[Edge]:
    """Every change of status with its cause. `None` is the start of a new booking."""
    starts: list[Edge] = [(None, status, "place") for status in Status if status in INITIAL]
    moves = [
        (source, target, verb.value)
        for (source, verb), target in TRANSITIONS.items()
        if isinstance(target, Status) and target is not source
    ]
    endings = [
        (source, target, f"event {event}")
        for event, targets in ENDINGS.items()
        for (source, _), target in targets.items()
    ]
    return starts + moves + list(dict.fromkeys(endings))
