"""A reference model of one event: a few dictionaries and no counters. It shares no code with the engine."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from holdfast.core.commands import Accepted, ActOnBooking, BestSeats, Command, PlaceHold, PoolItem, SeatItem
from holdfast.core.decide import Outcome
from holdfast.core.event_schemas import PolicyChange
from holdfast.core.refusals import Refusal, Refused

START = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)
ROWS, NUMBERS, FLOOR_CAPACITY = ["A", "B"], 4, 6
LABELS = [f"{row}-{number}" for row in ROWS for number in range(1, NUMBERS + 1)]
PRICES = {"full": 500, "free": 0}
SEAT_PRICE, TAX_PERCENT = 1000, 10
TIMED = {"held", "payment_submitted"}
LIVE = {*TIMED, "confirmed"}
TAKING = (*sorted(TIMED), "confirmed", "completed")
REVIEW_SECONDS, GRACE_SECONDS = 86_400, 120
# Sales close when the event starts.
EVENT_START = START + timedelta(hours=1)

# The status that a verb leads to. Other pairs repeat a verb, or are refused as the tables below say.
TRANSITIONS = {
    ("held", "submit"): "payment_submitted",
    ("held", "settle"): "confirmed",
    ("payment_submitted", "approve"): "confirmed",
    ("payment_submitted", "reject"): "rejected",
    ("payment_submitted", "settle"): "confirmed",
    ("payment_submitted", "expire"): "expired",
    ("expired", "submit"): "payment_submitted",
    ("expired", "settle"): "confirmed",
    ("expired", "confirm"): "confirmed",
    ("held", "confirm"): "confirmed",
    ("held", "cancel"): "cancelled",
    ("held", "expire"): "expired",
    ("confirmed", "refund"): "refunded",
}
REPEATED_IN = {
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
REFUSAL_BY_STATUS = {
    "held": Refusal.NOT_CONFIRMED,
    "payment_submitted": Refusal.ALREADY_SUBMITTED,
    "rejected": Refusal.ALREADY_REJECTED,
    "confirmed": Refusal.ALREADY_CONFIRMED,
    "expired": Refusal.HOLD_EXPIRED,
    "cancelled": Refusal.ALREADY_CANCELLED,
    "refunded": Refusal.ALREADY_REFUNDED,
    "completed": Refusal.ALREADY_COMPLETED,
}
REFUSAL_BY_STATUS_AND_VERB = {
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
    tariffs: Counter[tuple[str, str]]

    def seats(self) -> set[str]:
        return {seat for seat, _ in self.units if seat is not None}

    def quantity(self) -> int:
        return sum(quantity for _, quantity in self.units)

    def floor(self) -> int:
        return sum(quantity for seat, quantity in self.units if seat is None)


class Model:
    def __init__(self, policy: PolicyChange, opens_at: datetime | None) -> None:
        self.policy = policy
        self.opens_at = opens_at
        self.now = START
        self.event = "draft"
        self.entries = 1
        self.capacity = FLOOR_CAPACITY
        self.blocked: set[str] = set()
        self.bookings: dict[bytes, ModelBooking] = {}
        self.keys: dict[bytes, bytes] = {}

    @property
    def is_free(self) -> bool:
        """Nobody could pay for a booking that is confirmed at once."""
        return self.policy.confirm_at_once is True

    def taken(self, *statuses: str) -> tuple[set[str], int]:
        """The seats and the number of floor places of bookings stored in these statuses."""
        matching = [booking for booking in self.bookings.values() if booking.status in statuses]
        return {seat for booking in matching for seat in booking.seats()}, sum(booking.floor() for booking in matching)

    def visible_status(self, booking: ModelBooking) -> str:
        return "expired" if self.is_due(booking) else booking.status

    def is_due(self, booking: ModelBooking) -> bool:
        return booking.status in TIMED and booking.expires_at is not None and booking.expires_at <= self.now

    def expire(self) -> int:
        due = [booking for booking in self.bookings.values() if self.is_due(booking)]
        for booking in due:
            self.set_status(booking, "expired")
        return len(due)

    def sweep(self) -> int:
        return self.expire() + sum(self.wind_up(booking) for booking in self.bookings.values())

    def wind_up(self, booking: ModelBooking) -> bool:
        """End the booking if its event has ended. Return whether it did."""
        if self.event == "completed" and booking.status == "confirmed":
            self.set_status(booking, "completed")
        elif self.event == "cancelled" and booking.status in LIVE:
            self.set_status(booking, "refunded" if booking.status == "confirmed" and booking.total else "cancelled")
        else:
            return False
        return True

    def set_status(self, booking: ModelBooking, status: str) -> None:
        booking.status = status
        self.entries += 1

    def run_batch(self, commands: Sequence[Command], outcomes: Sequence[Outcome]) -> list[object]:
        """The expected answers: the id of a booking, or the refusal. The model reads from the outcomes only which
        best-available seats the engine chose, because any free ones will do, and whether it looked at all bookings of a
        user who had several before the event allowed only one."""
        self.expire()
        live = Counter(booking.user for booking in self.bookings.values() if booking.status in LIVE)
        self.users_with_several = {user for user, count in live.items() if count > 1}
        return [
            self.place(command, outcome) if isinstance(command, PlaceHold) else self.act(command)
            for command, outcome in zip(commands, outcomes, strict=True)
            if isinstance(command, PlaceHold | ActOnBooking)
        ]

    def place(self, command: PlaceHold, outcome: Outcome) -> object:
        if self.event == "draft" and not command.staff:
            return Refusal.NOT_FOUND
        earlier = self.keys.get(command.request_key)
        if earlier is not None and self.bookings[earlier].body == command.fingerprint:
            return earlier
        if self.event != "active":
            return Refusal.EVENT_NOT_ON_SALE
        if not (command.staff and self.policy.box_office is True):
            if self.opens_at is not None and self.now < self.opens_at:
                return Refusal.NOT_ON_SALE_YET
            if self.now >= EVENT_START:
                return Refusal.SALES_CLOSED
        if earlier is not None:
            return Refusal.IDEMPOTENCY_KEY_REUSED
        same = self.find_same(command)
        refused_anyway = (
            command.user in self.users_with_several
            and isinstance(outcome, Refused)
            and outcome.refusal is Refusal.ALREADY_BOOKED
        )
        if same is not None and not refused_anyway:
            return same
        refusal = self.find_refusal(command)
        if refusal is not None:
            return refusal
        units = (
            self.check_best_seats(command.best_available, outcome) if command.best_available else _units(command.items)
        )
        self.add(command, units)
        return command.booking

    def find_same(self, command: PlaceHold) -> bytes | None:
        """The live booking of the same user that already has what the command asks for."""
        labels = {item.label for item in command.items if isinstance(item, SeatItem)}
        for id_, booking in reversed(self.bookings.items()):
            if booking.user != command.user or booking.status not in LIVE:
                continue
            has_units = booking.tariffs == _tariffs(command) and labels <= booking.seats()
            is_named = bool(labels) and labels == booking.seats() and booking.floor() == 0
            if has_units and (is_named or self.policy.one_booking_per_user is True):
                return id_
        return None

    def find_refusal(self, command: PlaceHold) -> Refusal | None:
        labels = {item.label for item in command.items if isinstance(item, SeatItem)}
        wanted = (
            command.best_available.quantity
            if command.best_available
            else sum(quantity for _, quantity in _units(command.items))
        )
        theirs = [other for other in self.bookings.values() if other.user == command.user and other.status in LIVE]
        seats, floor = self.taken(*TAKING)
        floor_wanted = sum(item.quantity for item in command.items if isinstance(item, PoolItem))
        limit = self.policy.max_units_per_user
        least, most = self.policy.min_units, self.policy.max_units
        applies = {
            Refusal.UNKNOWN_SEAT: not labels <= set(LABELS),
            Refusal.UNIT_COUNT: not _or(least, 0) <= wanted <= _or(most, wanted),
            Refusal.ALREADY_BOOKED: self.policy.one_booking_per_user is True and bool(theirs),
            Refusal.LIMIT_REACHED: isinstance(limit, int)
            and sum(other.quantity() for other in theirs) + wanted > limit,
            Refusal.SEAT_TAKEN: bool(labels & (seats | self.blocked)),
            Refusal.SOLD_OUT: floor + floor_wanted > self.capacity or not self.can_seat(command.best_available),
        }
        return next((refusal for refusal, does_apply in applies.items() if does_apply), None)

    def can_seat(self, best: BestSeats | None) -> bool:
        free = self.free_seats()
        if best is None:
            return True
        if not best.adjacent:
            return len(free) >= best.quantity
        starts = ((row, first) for row in ROWS for first in range(1, NUMBERS + 1))
        return any({f"{row}-{n}" for n in range(at, at + best.quantity)} <= free for row, at in starts)

    def free_seats(self) -> set[str]:
        return set(LABELS) - self.taken(*TAKING)[0] - self.blocked

    def check_best_seats(self, best: BestSeats, outcome: Outcome) -> list[tuple[str | None, int]]:
        assert isinstance(outcome, Accepted), "there were enough seats"
        chosen = [LABELS[line.seat] for line in outcome.booking.lines if line.seat is not None]
        assert len(chosen) == best.quantity
        assert set(chosen) <= self.free_seats()
        rows, numbers = {label[0] for label in chosen}, sorted(int(label[2:]) for label in chosen)
        assert not best.adjacent or (len(rows) == 1 and numbers[-1] - numbers[0] == best.quantity - 1)
        return [(label, 1) for label in chosen]

    def add(self, command: PlaceHold, units: list[tuple[str | None, int]]) -> None:
        floor_items = [item for item in command.items if isinstance(item, PoolItem)]
        subtotal = sum(SEAT_PRICE for seat, _ in units if seat) + sum(
            PRICES[item.tariff or ""] * item.quantity for item in floor_items
        )
        subtotal = 0 if self.is_free else subtotal
        confirms_at_once = self.policy.confirm_at_once is True
        hold, maximum = self.policy.hold_seconds, self.policy.max_hold_seconds
        assert isinstance(hold, int)
        assert isinstance(maximum, int)
        self.keys[command.request_key] = command.booking
        self.entries += 1
        self.bookings[command.booking] = ModelBooking(
            user=command.user,
            status="confirmed" if confirms_at_once else "held",
            units=units,
            total=subtotal + subtotal * TAX_PERCENT // 100,
            expires_at=None if confirms_at_once else self.now + timedelta(seconds=hold),
            max_expires_at=None if confirms_at_once else self.now + timedelta(seconds=max(hold, maximum)),
            body=command.fingerprint,
            tariffs=_tariffs(command),
        )

    def act(self, command: ActOnBooking) -> object:
        booking = self.bookings.get(command.booking)
        if booking is None or command.owner not in (None, booking.user):
            return Refusal.NOT_FOUND
        self.wind_up(booking)
        verb = command.verb.value
        if verb == "extend" and booking.status == "held":
            return self.extend(command.booking, booking)
        if verb == "cancel" and booking.status == "confirmed" and not booking.total:
            self.set_status(booking, "cancelled")
        elif (booking.status, verb) in TRANSITIONS and (booking.status != "expired" or self.can_revive(booking)):
            if verb == "submit":
                booking.expires_at = self.now + timedelta(seconds=REVIEW_SECONDS)
            self.set_status(booking, TRANSITIONS[booking.status, verb])
        elif REPEATED_IN.get(verb) != booking.status:
            return REFUSAL_BY_STATUS_AND_VERB.get((booking.status, verb), REFUSAL_BY_STATUS[booking.status])
        return command.booking

    def can_revive(self, booking: ModelBooking) -> bool:
        """Whether an expired booking can be revived: in time, and with all its units still free."""
        assert booking.expires_at is not None
        theirs = [other for other in self.bookings.values() if other.user == booking.user and other.status in LIVE]
        limit = self.policy.max_units_per_user
        return (
            self.event == "active"
            and self.now <= booking.expires_at + timedelta(seconds=GRACE_SECONDS)
            and booking.seats() <= self.free_seats()
            and self.taken(*TAKING)[1] + booking.floor() <= self.capacity
            and not (self.policy.one_booking_per_user is True and theirs)
            and not (isinstance(limit, int) and sum(other.quantity() for other in theirs) + booking.quantity() > limit)
        )

    def extend(self, id_: bytes, booking: ModelBooking) -> object:
        assert booking.expires_at is not None
        assert booking.max_expires_at is not None
        seconds = self.policy.extend_seconds
        assert isinstance(seconds, int)
        until = min(max(booking.expires_at, self.now + timedelta(seconds=seconds)), booking.max_expires_at)
        self.entries += until != booking.expires_at
        booking.expires_at = until
        return id_


def _or(limit: object, default: int) -> int:
    return limit if isinstance(limit, int) else default


def _tariffs(command: PlaceHold) -> Counter[tuple[str, str]]:
    """How many units of each tariff the command asks for."""
    if command.best_available is not None:
        return Counter({("hall", "full"): command.best_available.quantity})
    tariffs: Counter[tuple[str, str]] = Counter()
    for item in command.items:
        if isinstance(item, SeatItem):
            tariffs["hall", "full"] += 1
        else:
            tariffs["floor", item.tariff or ""] += item.quantity
    return tariffs


def _units(items: Sequence[SeatItem | PoolItem]) -> list[tuple[str | None, int]]:
    return [(item.label, 1) if isinstance(item, SeatItem) else (None, item.quantity) for item in items]
