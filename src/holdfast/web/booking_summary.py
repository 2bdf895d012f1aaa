"""What pages read off a booking."""

from holdfast.api.booking_schemas import BookingView
from holdfast.api.responses import EventView, PaymentView
from holdfast.core.states import LIVE, Status


def is_live(booking: BookingView) -> bool:
    return booking.status in LIVE


def seat_labels(booking: BookingView) -> list[str]:
    return [item.seat for item in booking.items if item.seat is not None]


def unit_count(booking: BookingView) -> int:
    return sum(item.quantity for item in booking.items)


def last_payment(booking: BookingView) -> PaymentView | None:
    return booking.payments[-1] if booking.payments else None


def can_extend(booking: BookingView, event: EventView) -> bool:
    """Whether the buyer can get more time, now or closer to the deadline."""
    if booking.status is not Status.HELD or booking.expires_at is None or booking.max_expires_at is None:
        return False
    return booking.max_expires_at > booking.expires_at and event.policy.extend_seconds > 0


def can_cancel(booking: BookingView) -> bool:
    return booking.status is Status.HELD or (booking.status is Status.CONFIRMED and booking.total == 0)
