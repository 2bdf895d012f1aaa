"""Layouts, bookings, event states and commands built by hand, for tests of the pure core."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from holdfast.core.booking import Booking, Line
from holdfast.core.buyer_form import ContactRules
from holdfast.core.clients import UserRecord
from holdfast.core.commands import Accepted, ActOnBooking, Command, PlaceHold, PoolItem, SeatItem
from holdfast.core.decide import Outcome, decide
from holdfast.core.event_state import SYSTEM, EventState, PoolCounter, SeatOwner
from holdfast.core.layout import Layout, Pool, Seat, SeatPlan, Tariff
from holdfast.core.policy import Policy
from holdfast.core.refusals import Refusal, Refused
from holdfast.core.sales_window import Schedule
from holdfast.core.states import EventStatus, Status, Verb

NOW = datetime(2027, 3, 5, 12, 0, tzinfo=UTC)
EVENT = b"event-of-tests-1"
ORG = b"org---of-tests-1"
OTHER_ORG = b"org---of-tests-2"
VERSION = 40

STALLS, STANDING = 0, 1
STANDING_CAPACITY = 10

COUNTED_AS_HELD = (Status.HELD, Status.PAYMENT_SUBMITTED)
COUNTED_AS_SOLD = (Status.CONFIRMED, Status.COMPLETED)


def make_id(name: str) -> bytes:
    return name.encode().rjust(16, b".")


def seconds_from_now(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def seat_grid(rows: str, numbers: int, pool: int = STALLS, first: int = 0) -> tuple[Seat, ...]:
    positions = [(row, number) for row in rows for number in range(1, numbers + 1)]
    return tuple(
        Seat(first + at, f"{row}-{number}", pool, row, number, None, None, False)
        for at, (row, number) in enumerate(positions)
    )


def seated_layout(seats: Sequence[Seat], **changes: Any) -> Layout:
    """An event of one pool with these seats."""
    pool = Pool(STALLS, "stalls", "Stalls", (Tariff(0, "full", "Full", 3000),), (seats[0].number, seats[-1].number))
    return example_layout(pools=(pool,), seats=tuple(seats), **changes)


def example_layout(**changes: Any) -> Layout:
    """Two rows of five seats at one tariff, and standing room at two."""
    seats = seat_grid("AB", 5)
    stalls = Pool(STALLS, "stalls", "Stalls", (Tariff(0, "full", "Full", 3000),), (0, len(seats) - 1))
    tariffs = (Tariff(0, "full", "Full", 1500), Tariff(1, "child", "Child", 700))
    standing = Pool(STANDING, "standing", "Standing", tariffs, None)
    fields: dict[str, Any] = {
        "event": EVENT,
        "org": ORG,
        "revision": 1,
        "status": EventStatus.ACTIVE,
        "currency": "EUR",
        "tax_bps": 1900,
        "policy": Policy(),
        "schedule": Schedule(seconds_from_now(7 * 86_400)),
        "contact": ContactRules(),
        "questions": (),
        "providers": None,
        "seats_revision": 1,
        "pools": (stalls, standing),
        "seats": seats,
    }
    values = {**fields, **changes}
    return Layout(seat_plan=SeatPlan(values.pop("seats")), **values)


def seat_line(label: str, layout: Layout | None = None) -> Line:
    seat = (layout or example_layout()).seat_by_label[label]
    return Line(seat.pool, 0, seat.number, 1, 3000)


def standing_line(quantity: int, unit_price: int = 1500) -> Line:
    return Line(STANDING, 0, None, quantity, unit_price)


def make_booking(name: str, status: Status = Status.HELD, *lines: Line, **changes: Any) -> Booking:
    """A booking made a minute ago, with nine minutes until it expires."""
    subtotal = sum(line.quantity * line.unit_price for line in lines)
    booking = Booking(
        id=make_id(name),
        event=EVENT,
        org=ORG,
        user=f"user of {name}",
        status=status,
        lines=lines,
        subtotal=subtotal,
        tax=0,
        total=subtotal,
        currency="EUR",
        created_at=seconds_from_now(-60),
        expires_at=seconds_from_now(540),
        max_expires_at=seconds_from_now(1740),
        request_key=make_id(f"key of {name}"),
        fingerprint=make_id(f"of {name}"),
        version=VERSION - 1,
    )
    return structs.replace(booking, **changes)


def make_free(booking: Booking) -> Booking:
    lines = tuple(structs.replace(line, unit_price=0) for line in booking.lines)
    return structs.replace(booking, lines=lines, subtotal=0, tax=0, total=0)


def make_event_state(layout: Layout | None = None, bookings: Iterable[Booking] = (), now: datetime = NOW) -> EventState:
    """The state of an event with exactly these bookings."""
    layout = layout or example_layout()
    bookings = list(bookings)
    counters = {pool.number: PoolCounter(_capacity(layout, pool), 0, 0) for pool in layout.pools}
    taken: set[int] = set()
    owners: dict[int, SeatOwner | Booking] = {}
    for booking in bookings:
        for line in booking.lines:
            counters[line.pool].held += line.quantity if booking.status in COUNTED_AS_HELD else 0
            counters[line.pool].sold += line.quantity if booking.status in COUNTED_AS_SOLD else 0
            if line.seat is not None and booking.status in COUNTED_AS_HELD + COUNTED_AS_SOLD:
                taken.add(line.seat)
                owners[line.seat] = SeatOwner(booking.id, booking.user)
    users: dict[str, UserRecord] = defaultdict(UserRecord)
    for booking in bookings:
        users[booking.user].add(booking, now)
    by_id = {booking.id: booking for booking in bookings}
    return EventState(layout, now, VERSION, counters, by_id, taken, users, owners=owners)


def _capacity(layout: Layout, pool: Pool) -> int:
    if pool.seats is None:
        return STANDING_CAPACITY
    return sum(seat.pool == pool.number and not seat.blocked for seat in layout.seats)


def place_command(name: str, *items: SeatItem | PoolItem, **changes: Any) -> PlaceHold:
    fields: dict[str, Any] = {
        "event": EVENT,
        "org": ORG,
        "booking": make_id(name),
        "user": f"user of {name}",
        "actor": f"actor of {name}",
        "request_key": make_id(f"key of {name}"),
        "fingerprint": make_id(f"of {name}"),
        "items": items,
    }
    return PlaceHold(**{**fields, **changes})


def act_command(name: str, verb: Verb, **changes: Any) -> ActOnBooking:
    fields: dict[str, Any] = {"event": EVENT, "org": ORG, "booking": make_id(name), "verb": verb, "actor": "the clerk"}
    return ActOnBooking(**{**fields, **changes})


def decide_one(state: EventState, command: Command) -> Outcome:
    (outcome,) = decide(state, [command])
    return outcome


def expect_accepted(state: EventState, command: Command) -> Accepted:
    outcome = decide_one(state, command)
    assert isinstance(outcome, Accepted), outcome
    return outcome


def expect_booking(state: EventState, command: Command) -> Booking:
    return expect_accepted(state, command).booking


def expect_refused(state: EventState, command: Command) -> Refused:
    """A refused command changes nothing, except that holds expire and bookings end with their event."""
    entries, receipts = len(state.entries), len(state.new_receipts)
    outcome = decide_one(state, command)
    assert isinstance(outcome, Refused), outcome
    assert {entry.actor for entry in state.entries[entries:]} <= {SYSTEM}, state.entries[entries:]
    assert len(state.new_receipts) == receipts
    return outcome


def expect_refusal(state: EventState, command: Command) -> Refusal:
    return expect_refused(state, command).refusal


def held_and_sold(state: EventState, pool: int = STANDING) -> tuple[int, int]:
    """How many units of a pool are held, and how many are sold."""
    return state.counters[pool].held, state.counters[pool].sold


def is_unchanged(state: EventState) -> bool:
    """Whether the decision left nothing to save."""
    return not (state.entries or state.new_bookings or state.changed_bookings or state.counter_shifts)
