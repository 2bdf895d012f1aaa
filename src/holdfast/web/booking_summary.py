"""What pages read off a booking."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from holdfast.api.booking_schemas import BookingView
from holdfast.api.responses import EventView, PaymentView
from holdfast.core.payment import RECEIPT, PaymentStatus
from holdfast.core.states import LIVE, SOLD, TRANSITIONS, EventStatus, Status, Verb
from holdfast.core.time_slot import Timed, TimeSlot, time_slot
from holdfast.live.snapshot import PoolAvailability


def is_live(booking: BookingView) -> bool:
    return booking.status in LIVE


def is_received(booking: BookingView) -> bool:
    """Whether the reader received the booking from someone else. The page then hides what that person paid."""
    return booking.total is None


def seat_labels(booking: BookingView) -> list[str]:
    return [item.seat for item in booking.items if item.seat is not None]


def unit_count(booking: BookingView) -> int:
    return sum(item.quantity for item in booking.items)


def last_payment(booking: BookingView) -> PaymentView | None:
    return booking.payments[-1] if booking.payments else None


def can_extend(booking: BookingView, event: EventView) -> bool:
    """Whether the buyer can get more time, now or closer to the deadline."""
    if not _allows(booking, Verb.EXTEND) or booking.expires_at is None or booking.max_expires_at is None:
        return False
    return booking.max_expires_at > booking.expires_at and event.policy.extend_seconds > 0


def can_cancel(booking: BookingView, event: EventView) -> bool:
    """The engine cancels a sold booking only if it was free. A new holder does not see the price of the booking,
    but knows that it was free if the whole event is."""
    if booking.status not in SOLD:
        return _allows(booking, Verb.CANCEL)
    prices = [tariff.price for pool in event.pools for tariff in pool.tariffs]
    is_free = not any(prices) if is_received(booking) else booking.total == 0
    return is_free and _allows(booking, Verb.CANCEL)


def booked_slots(booking: BookingView, event: Timed, pools: Mapping[str, Timed]) -> dict[str, TimeSlot]:
    """When the booking takes place, by the code of the pool and in the order of its items."""
    return {item.pool: time_slot(event, pools.get(item.pool)) for item in booking.items}


def distinct_slots(slots: Mapping[str, TimeSlot]) -> list[TimeSlot]:
    """Each time once, the earliest first."""
    return sorted(set(slots.values()), key=lambda slot: (slot.starts_at, slot.ends_at or slot.starts_at))


def takes_receipts(booking: BookingView, event: EventView) -> bool:
    return event.policy.review == "manual" and bool(booking.total)


def late_receipt_deadline(
    booking: BookingView, event: EventView, availability: Iterable[PoolAvailability]
) -> datetime | None:
    """Until when a receipt can revive an expired hold, or None if it cannot. The engine decides in the end, because
    only it knows whether the same seats are free."""
    if booking.status is not Status.EXPIRED or booking.expires_at is None or event.status is not EventStatus.ACTIVE:
        return None
    was_submitted = any(
        payment.provider == RECEIPT and payment.status is PaymentStatus.REVIEW for payment in booking.payments
    )
    if was_submitted or not takes_receipts(booking, event) or not _has_room(booking, availability):
        return None
    deadline = booking.expires_at + timedelta(seconds=event.policy.late_grace_seconds)
    return deadline if booking.server_time < deadline else None


def _has_room(booking: BookingView, availability: Iterable[PoolAvailability]) -> bool:
    wanted: dict[str, int] = {}
    for item in booking.items:
        wanted[item.pool] = wanted.get(item.pool, 0) + item.quantity
    remaining = {pool.code: pool.remaining for pool in availability}
    return all(remaining.get(pool, 0) >= units for pool, units in wanted.items())


def _allows(booking: BookingView, verb: Verb) -> bool:
    """Whether the verb can still do something to the booking."""
    target = TRANSITIONS[booking.status, verb]
    return isinstance(target, Status) and (target is not booking.status or verb is Verb.EXTEND)
