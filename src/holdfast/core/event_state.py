"""The state of one event: what a batch has loaded of it, and the changes that the batch makes.

The engine creates one for each batch, under the event's lock. `decide` changes it, and the engine saves the changes.
"""

from collections.abc import Mapping, Set
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from msgspec import Struct, structs

from holdfast.core.booking import Booking
from holdfast.core.clients import ClientRecords, UserRecord
from holdfast.core.commands import Receipt, TransferBooking
from holdfast.core.journal import (
    EXTENDED,
    NO_CHANGE,
    PAYMENT_PREFIX,
    SEAT_STATE_BY_STATUS,
    TRANSFERRED,
    EntryData,
    JournalEntry,
    PoolState,
    SeatState,
)
from holdfast.core.layout import Layout, Pool
from holdfast.core.payment import Payment, PaymentStatus
from holdfast.core.seating import SeatChooser
from holdfast.core.states import CLAIMING, CLAIMS, Claim, Status

SYSTEM: Final = "system"


class OversoldError(AssertionError):
    """A counter left its bounds. This is a bug in the engine, and it must be loud."""


class PoolCounter(Struct):
    """The taken units of a pool. The engine and the schema both enforce `held + sold <= capacity`."""

    capacity: int
    held: int
    sold: int

    @property
    def remaining(self) -> int:
        return self.capacity - self.held - self.sold


class CounterShift(Struct):
    """By how much this batch changes the counters of a pool."""

    held: int = 0
    sold: int = 0


class SeatOwner(Struct, frozen=True, gc=False):
    """What a batch knows about the booking of a taken seat if it has not loaded it."""

    id: bytes
    user: str


class PaymentChange(Struct, frozen=True):
    """The booking of a payment that this batch changes, and the status it was loaded with; a new one has none."""

    booking: bytes
    was: PaymentStatus | None


class EventState:
    def __init__(
        self,
        layout: Layout,
        now: datetime,
        version: int,
        counters: dict[int, PoolCounter],
        bookings: dict[bytes, Booking],
        taken: set[int],
        users: Mapping[str, UserRecord],
        clients: ClientRecords | None = None,
        checked_in: Set[bytes] = frozenset(),
        owners: dict[int, SeatOwner | Booking] | None = None,
    ) -> None:
        self.layout = layout
        self.now = now
        self.version = version
        self.counters = counters
        self.bookings = bookings
        self.taken = taken
        # Who has a taken seat. Only known if the owner asks for the seat again in this batch, or took it in this batch.
        self.owners = owners or {}
        # The users whose limits this batch may check. Others do not count.
        self.users = users
        self.clients = clients or ClientRecords({}, {})
        # Loaded only for bookings that this batch transfers.
        self.checked_in = checked_in
        self.booking_by_request = {booking.request_key: booking for booking in bookings.values()}
        # The changes to save. Changed bookings and payments keep the status they were loaded with.
        self.new_bookings: set[bytes] = set()
        self.changed_bookings: dict[bytes, Status] = {}
        self.changed_payments: dict[bytes, PaymentChange] = {}
        self.new_receipts: list[tuple[bytes, Receipt]] = []
        self.counter_shifts: dict[int, CounterShift] = {}
        self.entries: list[JournalEntry] = []
        # How many entries there were before the first command, and after each command.
        self.decided: list[int] = []
        # How many lines the bookings in these entries have: the cost of saving and reporting them.
        self.line_count = 0
        self._choosers: dict[int, SeatChooser] = {}

    @property
    def has_changes(self) -> bool:
        return bool(self.entries or self.new_receipts)

    @cached_property
    def deadlines(self) -> tuple[datetime, datetime]:
        """When a hold placed now expires, and the latest time to which it can be extended."""
        policy = self.layout.policy
        longest = max(policy.max_hold_seconds, policy.hold_seconds)
        return self.now + timedelta(seconds=policy.hold_seconds), self.now + timedelta(seconds=longest)

    def is_free(self, seat: int) -> bool:
        return seat not in self.taken and not self.layout.seats[seat].blocked

    def seat_chooser(self, pool: Pool) -> SeatChooser:
        if pool.number not in self._choosers:
            self._choosers[pool.number] = SeatChooser(self.layout, pool, self.taken)
        return self._choosers[pool.number]

    def add_booking(self, booking: Booking, actor: str) -> Booking:
        self.new_bookings.add(booking.id)
        return self._record(None, booking, booking.status, actor, self._claim_units(None, booking))

    def move_booking(
        self,
        booking: Booking,
        status: Status,
        actor: str,
        reason: str | None = None,
        expires_at: datetime | None = None,
    ) -> Booking:
        """Change the booking's status. Its units move to the counter that the new status claims, or become free."""
        after = structs.replace(
            booking,
            status=status,
            reason=reason,
            expires_at=expires_at or booking.expires_at,
            version=self.version + 1,
        )
        if booking.status not in CLAIMING and status in CLAIMING:
            after = structs.replace(after, one_per_user=self.layout.policy.one_booking_per_user)
        return self._record(booking, after, status, actor, self._claim_units(booking, after))

    def extend_booking(self, booking: Booking, expires_at: datetime, actor: str) -> Booking:
        after = structs.replace(booking, expires_at=expires_at, version=self.version + 1)
        return self._record(booking, after, EXTENDED, actor, NO_CHANGE)

    def transfer_booking(self, booking: Booking, command: TransferBooking) -> Booking:
        after = structs.replace(
            booking,
            user=command.user,
            name=command.name,
            email=command.email,
            phone=command.phone,
            language=command.language,
            generation=booking.generation + 1,
            one_per_user=self.layout.policy.one_booking_per_user,
            version=self.version + 1,
        )
        for line in after.lines:
            if line.seat is not None:
                self.owners[line.seat] = after
        return self._record(booking, after, TRANSFERRED, command.actor, NO_CHANGE)

    def record_payment(
        self,
        booking: Booking,
        payment: Payment,
        actor: str,
        *,
        is_unexpected: bool = False,
        received: tuple[int | None, str | None] = (None, None),
    ) -> Booking:
        """Add a payment to the booking, or replace the one with the same id. `received` is the amount and currency that
        arrived, if it is not what the payment asks for."""
        known = booking.payment(payment.id)
        self.changed_payments.setdefault(payment.id, PaymentChange(booking.id, known.status if known else None))
        others = tuple(payment if other.id == payment.id else other for other in booking.payments)
        after = structs.replace(booking, payments=others if known else (*others, payment), version=self.version + 1)
        amount, currency = received
        data = EntryData(reason=payment.reason, payment=payment.id.hex(), amount=amount, currency=currency)
        return self._record(booking, after, PAYMENT_PREFIX + payment.status, actor, data, is_unexpected)

    def schedule_payment_check(self, payment: Payment, booking: bytes) -> None:
        """Save the payment unchanged, which makes a worker ask its provider about it soon."""
        self.changed_payments.setdefault(payment.id, PaymentChange(booking, payment.status))

    def add_receipt(self, booking: Booking, receipt: Receipt) -> Booking:
        self.new_receipts.append((booking.id, receipt))
        after = structs.replace(booking, receipts=(*booking.receipts, receipt.hash))
        self.bookings[after.id] = after
        return after

    def _record(
        self,
        before: Booking | None,
        after: Booking,
        kind: str,
        actor: str,
        data: EntryData,
        is_unexpected: bool = False,
    ) -> Booking:
        self.version += 1
        assert after.version == self.version
        if before is not None and before.id not in self.new_bookings:
            self.changed_bookings.setdefault(before.id, before.status)
        self.bookings[after.id] = after
        self.booking_by_request[after.request_key] = after
        self._count_for_users(before, after)
        if after.client is not None:
            self.clients.follow(before, after, self.now)
        was = before.status if before is not None else None
        self.line_count += len(after.lines)
        self.entries.append(JournalEntry(self.version, kind, after, actor, data, is_unexpected, was))
        return after

    def _claim_units(self, before: Booking | None, after: Booking) -> EntryData:
        old = CLAIMS[before.status] if before else Claim.NONE
        new = CLAIMS[after.status]
        state = SEAT_STATE_BY_STATUS[after.status]
        seats: dict[str, SeatState] = {}
        pools: dict[str, PoolState] = {}
        for line in after.lines:
            if old is not new:
                self._shift_counter(line.pool, old, -line.quantity)
                self._shift_counter(line.pool, new, line.quantity)
            if line.seat is not None:
                if new is Claim.NONE:
                    self._release_seat(line.seat)
                elif old is Claim.NONE:
                    self._take_seat(line.seat)
                    self.owners[line.seat] = after
                seats[self.layout.seats[line.seat].label] = state
        for pool in dict.fromkeys(line.pool for line in after.lines):
            pools[self.layout.pools[pool].code] = self._pool_state(pool)
        return EntryData(seats, pools, after.reason)

    def _shift_counter(self, pool: int, claim: Claim, quantity: int) -> None:
        if claim is Claim.NONE:
            return
        counter = self.counters[pool]
        shift = self.counter_shifts.setdefault(pool, CounterShift())
        if claim is Claim.HELD:
            counter.held += quantity
            shift.held += quantity
        else:
            counter.sold += quantity
            shift.sold += quantity

    def _take_seat(self, seat: int) -> None:
        assert seat not in self.taken, "another booking already has this seat"
        self.taken.add(seat)
        if chooser := self._choosers.get(self.layout.seats[seat].pool):
            chooser.mark(seat, free=False)

    def _release_seat(self, seat: int) -> None:
        self.taken.discard(seat)
        self.owners.pop(seat, None)
        if chooser := self._choosers.get(self.layout.seats[seat].pool):
            chooser.mark(seat, free=self.is_free(seat))

    def _pool_state(self, pool: int) -> PoolState:
        counter = self.counters[pool]
        if counter.held < 0 or counter.sold < 0 or counter.remaining < 0:
            raise OversoldError(f"pool {pool} would have {counter}")
        return PoolState(counter.capacity, counter.held, counter.sold, counter.remaining)

    def _count_for_users(self, before: Booking | None, after: Booking) -> None:
        if before is not None and before.user in self.users:
            self.users[before.user].remove(before, self.now)
        if after.user in self.users:
            self.users[after.user].add(after, self.now)
