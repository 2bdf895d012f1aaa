"""What must be true of one event, in the plainest terms: a few dictionaries and no counters. It shares no code with the
engine."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from holdfast.core.commands import Accepted, ActOnBooking, BestSeats, Command, PlaceHold, PoolItem, SeatItem
from holdfast.core.decide import Outcome
from holdfast.core.event_schemas import PolicyChange
from holdfast.core.refusals import Refusal

START = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)
ROWS, NUMBERS, FLOOR_CAPACITY = ["A", "B"], 4, 6
LABELS = [f"{row}-{number}" for row in ROWS for number in range(1, NUMBERS + 1)]
PRICES = {"full": 500, "free": 0}
SEAT_PRICE, TAX_PERCENT = 1000, 10
TIMED = {"held", "payment_submitted"}
ALIVE = {*TIMED, "confirmed"}
TAKING = (*sorted(TIMED), "confirmed", "completed")
REVIEW_SECONDS, GRACE_SECONDS = 86_400, 120

# The status that a verb leads to. Any other pair is refused as the second table says.
MOVES = {
    ("held", "submit"): "payment_submitted",
    ("held", "settle"): "confirmed",
    ("payment_submitted", "approve"): "confirmed",
    ("payment_submitted", "reject"): "rejected",
    ("payment_submitted", "settle"): "confirmed",
    ("payment_submitted", "expire"): "expired",
    ("expired", "submit"): "payment_submitted",
    ("expired", "settle"): "confirmed",
    ("held", "confirm"): "confirmed",
    ("held", "cancel"): "cancelled",
    ("held", "expire"): "expired",
    ("confirmed", "refund"): "refunded",
}
SAME = {
    "submit": "payment_submitted",
    "approve": "confirmed",
    "reject": "rejected",
    "confirm": "confirmed",
    "cancel": "cancelled",
    "refund": "refunded",
    "expire": "expired",
    "start_payment": "held",
    "transfer": "confirmed",
}
SAYS_NO = {
    "held": Refusal.NOT_CONFIRMED,
    "payment_submitted": Refusal.ALREADY_SUBMITTED,
    "rejected": Refusal.ALREADY_REJECTED,
    "confirmed": Refusal.ALREADY_CONFIRMED,
    "expired": Refusal.HOLD_EXPIRED,
    "cancelled": Refusal.ALREADY_CANCELLED,
    "refunded": Refusal.ALREADY_REFUNDED,
    "completed": Refusal.ALREADY_COMPLETED,
}
SAYS_NO_TO = {
    ("held", "approve"): Refusal.NOT_SUBMITTED,
    ("held", "reject"): Refusal.NOT_SUBMITTED,
    ("payment_submitted", "refund"): Refusal.NOT_CONFIRMED,
    ("payment_submitted", "transfer"): Refusal.NOT_CONFIRMED,
}


class ModelBooking(Struct):
    """A booking in the model. Each unit is a seat label or None, and a quantity."""

    user: str
    status: str
    units: list[tuple[str | None, int]]
    total: int
    expires_at: datetime | None
    max_expires_at: datetime | None
    body: bytes

    def seats(self) -> set[str]:
        return {seat for seat, _ in self.units if seat is not None}

    def quantity(self) -> int:
        return sum(quantity for _, quantity in self.units)

    def floor(self) -> int:
        return sum(quantity for seat, quantity in self.units if seat is None)


class Model:
    def __init__(self, policy: PolicyChange) -> None:
        self.policy = policy
        self.now = START
        self.event = "draft"
        self.entries = 1
        self.capacity = FLOOR_CAPACITY
        self.blocked: set[str] = set()
        self.bookings: dict[bytes, ModelBooking] = {}
        self.keys: dict[bytes, bytes] = {}

    def taken(self, *statuses: str) -> tuple[set[str], int]:
        """The seats and the number of floor places of bookings stored in these statuses."""
        those = [entry for entry in self.bookings.values() if entry.status in statuses]
        return {seat for entry in those for seat in entry.seats()}, sum(entry.floor() for entry in those)

    def reads_as(self, entry: ModelBooking) -> str:
        return "expired" if self.is_due(entry) else entry.status

    def is_due(self, entry: ModelBooking) -> bool:
        return entry.status in TIMED and entry.expires_at is not None and entry.expires_at <= self.now

    def expire(self) -> int:
        due = [entry for entry in self.bookings.values() if self.is_due(entry)]
        for entry in due:
            self.move(entry, "expired")
        return len(due)

    def sweep(self) -> int:
        return self.expire() + sum(self.end(entry) for entry in self.bookings.values())

    def end(self, entry: ModelBooking) -> bool:
        """End the booking if its event has ended, and say whether it did."""
        if self.event == "completed" and entry.status == "confirmed":
            self.move(entry, "completed")
        elif self.event == "cancelled" and entry.status in ALIVE:
            self.move(entry, "refunded" if entry.status == "confirmed" and entry.total else "cancelled")
        else:
            return False
        return True

    def move(self, entry: ModelBooking, status: str) -> None:
        entry.status = status
        self.entries += 1

    def batch(self, commands: Sequence[Command], outcomes: Sequence[Outcome]) -> list[object]:
        """The expected answers: the id of a booking, or the refusal. Of the outcomes the model reads only which
        best-available seats the engine chose, because any free ones will do."""
        self.expire()
        return [
            self.place(command, outcome) if isinstance(command, PlaceHold) else self.act(command)
            for command, outcome in zip(commands, outcomes, strict=True)
            if isinstance(command, PlaceHold | ActOnBooking)
        ]

    def place(self, command: PlaceHold, outcome: Outcome) -> object:
        earlier = self.keys.get(command.request_key)
        if earlier is not None and self.bookings[earlier].body == command.fingerprint:
            return earlier
        if self.event != "active":
            return Refusal.EVENT_NOT_ON_SALE
        if earlier is not None:
            return Refusal.IDEMPOTENCY_KEY_REUSED
        said = self.objection(command)
        if said is not None:
            return said
        units = self.best(command.best_available, outcome) if command.best_available else _units(command.items)
        self.add(command, units)
        return command.booking

    def objection(self, command: PlaceHold) -> Refusal | None:
        labels = {item.label for item in command.items if isinstance(item, SeatItem)}
        wanted = (
            command.best_available.quantity
            if command.best_available
            else sum(quantity for _, quantity in _units(command.items))
        )
        theirs = [e for e in self.bookings.values() if e.user == command.user and e.status in ALIVE]
        seats, floor = self.taken(*TAKING)
        asked = sum(item.quantity for item in command.items if isinstance(item, PoolItem))
        limit = self.policy.max_units_per_user
        objections = {
            Refusal.UNKNOWN_SEAT: not labels <= set(LABELS),
            Refusal.ALREADY_BOOKED: self.policy.one_booking_per_user is True and bool(theirs),
            Refusal.LIMIT_REACHED: isinstance(limit, int) and sum(e.quantity() for e in theirs) + wanted > limit,
            Refusal.SEAT_TAKEN: bool(labels & (seats | self.blocked)),
            Refusal.SOLD_OUT: floor + asked > self.capacity or not self.has_best(command.best_available),
        }
        return next((refusal for refusal, stands in objections.items() if stands), None)

    def has_best(self, best: BestSeats | None) -> bool:
        free = self.free()
        if best is None:
            return True
        if not best.adjacent:
            return len(free) >= best.quantity
        starts = ((row, first) for row in ROWS for first in range(1, NUMBERS + 1))
        return any({f"{row}-{n}" for n in range(at, at + best.quantity)} <= free for row, at in starts)

    def free(self) -> set[str]:
        return set(LABELS) - self.taken(*TAKING)[0] - self.blocked

    def best(self, best: BestSeats, outcome: Outcome) -> list[tuple[str | None, int]]:
        assert isinstance(outcome, Accepted), "there were seats enough"
        given = [LABELS[line.seat] for line in outcome.booking.lines if line.seat is not None]
        assert len(given) == best.quantity
        assert set(given) <= self.free()
        rows, numbers = {label[0] for label in given}, sorted(int(label[2:]) for label in given)
        assert not best.adjacent or (len(rows) == 1 and numbers[-1] - numbers[0] == best.quantity - 1)
        return [(label, 1) for label in given]

    def add(self, command: PlaceHold, units: list[tuple[str | None, int]]) -> None:
        tariffs = [item for item in command.items if isinstance(item, PoolItem)]
        subtotal = sum(SEAT_PRICE for seat, _ in units if seat) + sum(
            PRICES[t.tariff or ""] * t.quantity for t in tariffs
        )
        at_once = self.policy.confirm_at_once is True
        hold, longest = self.policy.hold_seconds, self.policy.max_hold_seconds
        assert isinstance(hold, int)
        assert isinstance(longest, int)
        self.keys[command.request_key] = command.booking
        self.entries += 1
        self.bookings[command.booking] = ModelBooking(
            user=command.user,
            status="confirmed" if at_once else "held",
            units=units,
            total=subtotal + subtotal * TAX_PERCENT // 100,
            expires_at=None if at_once else self.now + timedelta(seconds=hold),
            max_expires_at=None if at_once else self.now + timedelta(seconds=max(hold, longest)),
            body=command.fingerprint,
        )

    def act(self, command: ActOnBooking) -> object:
        entry = self.bookings.get(command.booking)
        if entry is None or command.owner not in (None, entry.user):
            return Refusal.NOT_FOUND
        self.end(entry)
        verb = command.verb.value
        if verb == "extend" and entry.status == "held":
            return self.extend(command.booking, entry)
        if verb == "cancel" and entry.status == "confirmed" and not entry.total:
            self.move(entry, "cancelled")
        elif (entry.status, verb) in MOVES and (entry.status != "expired" or self.has_back(entry)):
            if verb == "submit":
                entry.expires_at = self.now + timedelta(seconds=REVIEW_SECONDS)
            self.move(entry, MOVES[entry.status, verb])
        elif SAME.get(verb) != entry.status:
            return SAYS_NO_TO.get((entry.status, verb), SAYS_NO[entry.status])
        return command.booking

    def has_back(self, entry: ModelBooking) -> bool:
        """Whether an expired booking can be revived: in time, and with all its units still free."""
        assert entry.expires_at is not None
        theirs = [e for e in self.bookings.values() if e.user == entry.user and e.status in ALIVE]
        limit = self.policy.max_units_per_user
        return (
            self.event == "active"
            and self.now <= entry.expires_at + timedelta(seconds=GRACE_SECONDS)
            and entry.seats() <= self.free()
            and self.taken(*TAKING)[1] + entry.floor() <= self.capacity
            and not (self.policy.one_booking_per_user is True and theirs)
            and not (isinstance(limit, int) and sum(e.quantity() for e in theirs) + entry.quantity() > limit)
        )

    def extend(self, id_: bytes, entry: ModelBooking) -> object:
        assert entry.expires_at is not None
        assert entry.max_expires_at is not None
        seconds = self.policy.extend_seconds
        assert isinstance(seconds, int)
        until = min(max(entry.expires_at, self.now + timedelta(seconds=seconds)), entry.max_expires_at)
        self.entries += until != entry.expires_at
        entry.expires_at = until
        return id_


def _units(items: Sequence[SeatItem | PoolItem]) -> list[tuple[str | None, int]]:
    return [(item.label, 1) if isinstance(item, SeatItem) else (None, item.quantity) for item in items]
