"""The open book of one event: what a batch has loaded of it, and what the batch changes in it.

A book is made for one batch, under the event's lock, and consumed by `decide`.
"""

from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from msgspec import Struct, structs

from holdfast.core.commands import Receipt
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
from holdfast.core.layout import Layout
from holdfast.core.model import Booking, Counter, Pool
from holdfast.core.payment import Payment, PaymentStatus
from holdfast.core.seating import Chooser
from holdfast.core.states import CLAIMS, LIVE, Claim, Status

SYSTEM: Final = "system"


class OversoldError(AssertionError):
    """A counter left its bounds. This is a bug in the engine, and must be loud."""


class CounterShift(Struct):
    """How much the counters of a pool move in this batch."""

    held: int = 0
    sold: int = 0


class EventState:
    def __init__(
        self,
        layout: Layout,
        now: datetime,
        version: int,
        counters: dict[int, Counter],
        bookings: dict[bytes, Booking],
        taken: dict[int, bytes],
    ) -> None:
        self.layout = layout
        self.now = now
        self.version = version
        self.counters = counters
        self.bookings = bookings
        self.taken = taken
        self.booking_by_request = {booking.request_key: booking for booking in bookings.values()}
        # What the batch changes, to be saved: new bookings, the first status of changed ones, counters, facts; of
        # payments the booking and the first status of each, where a new one has none; receipts; whom bookings went to.
        self.created: set[bytes] = set()
        self.changed: dict[bytes, Status] = {}
        self.paid: dict[bytes, tuple[bytes, PaymentStatus | None]] = {}
        self.receipts: list[tuple[bytes, Receipt]] = []
        self.transferred: set[bytes] = set()
        self.shifts: dict[int, CounterShift] = {}
        self.entries: list[JournalEntry] = []
        self._choosers: dict[int, Chooser] = {}
        self._live_of_user: dict[str, dict[bytes, Booking]] = {}
        self._counts_users = layout.policy.counts_users
        for booking in bookings.values():
            self._index_live(booking)

    @property
    def is_touched(self) -> bool:
        """Whether there is anything to save."""
        return bool(self.entries or self.receipts)

    @cached_property
    def deadlines(self) -> tuple[datetime, datetime]:
        """When a hold placed now runs out, and how far it can be extended at most."""
        policy = self.layout.policy
        longest = max(policy.max_hold_seconds, policy.hold_seconds)
        return self.now + timedelta(seconds=policy.hold_seconds), self.now + timedelta(seconds=longest)

    def is_free(self, seat: int) -> bool:
        return seat not in self.taken and not self.layout.seats[seat].blocked

    def chooser(self, pool: Pool) -> Chooser:
        if pool.number not in self._choosers:
            self._choosers[pool.number] = Chooser(self.layout, pool, self.is_free)
        return self._choosers[pool.number]

    def live_bookings_of(self, user: str) -> list[Booking]:
        return list(self._live_of_user.get(user, {}).values())

    def add(self, booking: Booking, actor: str) -> Booking:
        """A new booking takes its units. Its version is the next one."""
        self.created.add(booking.id)
        return self._enter(None, booking, booking.status, actor, self._claim(None, booking))

    def move(
        self,
        booking: Booking,
        status: Status,
        actor: str,
        reason: str | None = None,
        expires_at: datetime | None = None,
    ) -> Booking:
        """A booking comes into another status; its units move from one counter to another, or are given back."""
        after = structs.replace(
            booking,
            status=status,
            reason=reason,
            expires_at=expires_at or booking.expires_at,
            version=self.version + 1,
        )
        return self._enter(booking, after, status, actor, self._claim(booking, after))

    def extend(self, booking: Booking, expires_at: datetime, actor: str) -> Booking:
        after = structs.replace(booking, expires_at=expires_at, version=self.version + 1)
        return self._enter(booking, after, EXTENDED, actor, NO_CHANGE)

    def pay(self, booking: Booking, payment: Payment, actor: str, *, is_unexpected: bool = False) -> Booking:
        """A payment of the booking begins, or comes into another status."""
        known = booking.payment(payment.id)
        self.paid.setdefault(payment.id, (booking.id, known.status if known else None))
        others = tuple(payment if other.id == payment.id else other for other in booking.payments)
        after = structs.replace(booking, payments=others if known else (*others, payment), version=self.version + 1)
        data = EntryData(reason=payment.reason, payment=payment.id.hex())
        return self._enter(booking, after, PAYMENT_PREFIX + payment.status, actor, data, is_unexpected)

    def add_receipt(self, booking: Booking, receipt: Receipt) -> Booking:
        """A receipt is kept with the booking."""
        self.receipts.append((booking.id, receipt))
        after = structs.replace(booking, receipts=(*booking.receipts, receipt.hash))
        self.bookings[after.id] = after
        return after

    def schedule_check(self, payment: Payment, booking: bytes) -> None:
        """The payment itself stays as it is, but a worker has to turn to it now."""
        self.paid.setdefault(payment.id, (booking, payment.status))

    def transfer(self, booking: Booking, user: str, email: str | None, language: str | None, actor: str) -> Booking:
        """The booking goes to another person."""
        self._live_of_user.get(booking.user, {}).pop(booking.id, None)
        self.transferred.add(booking.id)
        after = structs.replace(
            booking,
            user=user,
            email=email,
            language=language,
            generation=booking.generation + 1,
            version=self.version + 1,
        )
        return self._enter(booking, after, TRANSFERRED, actor, NO_CHANGE)

    def _enter(
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
        if before is not None and before.id not in self.created:
            self.changed.setdefault(before.id, before.status)
        self.bookings[after.id] = after
        self.booking_by_request[after.request_key] = after
        self._index_live(after)
        self.entries.append(JournalEntry(self.version, kind, after, actor, data, is_unexpected))
        return after

    def _claim(self, before: Booking | None, after: Booking) -> EntryData:
        old = CLAIMS[before.status] if before else Claim.NONE
        new = CLAIMS[after.status]
        state = SEAT_STATE_BY_STATUS[after.status]
        seats: dict[str, SeatState] = {}
        pools: dict[str, PoolState] = {}
        for line in after.lines:
            if old is not new:
                self._shift(line.pool, old, -line.quantity)
                self._shift(line.pool, new, line.quantity)
            if line.seat is not None:
                self._mark(line.seat, after.id if new is not Claim.NONE else None)
                seats[self.layout.seats[line.seat].label] = state
        for line in after.lines:
            pools[self.layout.pools[line.pool].code] = self._checked(line.pool)
        return EntryData(seats, pools, after.reason)

    def _shift(self, pool: int, claim: Claim, quantity: int) -> None:
        if claim is Claim.NONE:
            return
        counter = self.counters[pool]
        shift = self.shifts.setdefault(pool, CounterShift())
        if claim is Claim.HELD:
            counter.held += quantity
            shift.held += quantity
        else:
            counter.sold += quantity
            shift.sold += quantity

    def _mark(self, seat: int, booking: bytes | None) -> None:
        if booking is None:
            self.taken.pop(seat, None)
        else:
            assert self.taken.get(seat, booking) == booking, "a seat that is taken was given to another booking"
            self.taken[seat] = booking
        chooser = self._choosers.get(self.layout.seats[seat].pool)
        if chooser:
            chooser.forget(seat)

    def _checked(self, pool: int) -> PoolState:
        counter = self.counters[pool]
        if counter.held < 0 or counter.sold < 0 or counter.remaining < 0:
            raise OversoldError(f"pool {pool} would have {counter}")
        return PoolState(counter.capacity, counter.held, counter.sold, counter.remaining)

    def _index_live(self, booking: Booking) -> None:
        if not self._counts_users:
            return
        theirs = self._live_of_user.setdefault(booking.user, {})
        if booking.status in LIVE:
            theirs[booking.id] = booking
        else:
            theirs.pop(booking.id, None)
