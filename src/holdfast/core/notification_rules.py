"""Which notifications a journal entry causes. They are saved with the entry, and the relay sends them later."""

from datetime import datetime
from typing import Annotated, Final

from msgspec import Meta, Struct

from holdfast.core.journal import (
    EVENT_CANCELLED,
    EVENT_CHANGED,
    EVENT_COMPLETED,
    EVENT_PUBLISHED,
    EXTENDED,
    PAYMENT_PREFIX,
    TRANSFERRED,
    JournalEntry,
)
from holdfast.core.layout import BookedItem
from holdfast.core.payment import PaymentStatus
from holdfast.core.states import EventStatus, Status

EMAIL: Final = "email"
WEBHOOK: Final = "webhook"

_REFUND_DUE: Final = PAYMENT_PREFIX + PaymentStatus.REFUND_DUE
# The entries that we email to buyers who left an address. A new hold is not one: the buyer is looking at it.
EMAILED: Final = frozenset(
    {
        Status.CONFIRMED.value,
        Status.EXPIRED.value,
        Status.REJECTED.value,
        Status.CANCELLED.value,
        Status.REFUNDED.value,
        TRANSFERRED,
        _REFUND_DUE,
    }
)


class WebhookSubscription(Struct, frozen=True):
    """An org's webhook endpoint and the kinds of entries it subscribes to; an empty set means all of them."""

    id: bytes
    kinds: frozenset[str]

    def includes(self, kind: str) -> bool:
        return not self.kinds or kind in self.kinds


class EmailBody(Struct, frozen=True):
    """What an email needs to know of the moment it reports. The rest is read when it is sent."""

    email: str
    language: str | None
    generation: int
    status: Status
    reason: str | None


class BookingWebhookData(Struct, frozen=True):
    """What a webhook says about a booking or a payment. `seq` is the entry's number in the event's journal."""

    event: str
    booking: str
    payment: str | None
    seq: int
    at: Annotated[datetime, Meta(tz=True)]
    user: str
    status: Status
    total: int
    currency: str
    reason: str | None
    items: list[BookedItem]


class EventWebhookData(Struct, frozen=True):
    """What a webhook says about an event. `insert_revision` in `events.sql` writes it."""

    event: str
    seq: int
    at: Annotated[datetime, Meta(tz=True)]
    status: EventStatus
    title: str


class Notification(Struct, frozen=True):
    target: str
    channel: str
    kind: str


def notifications_for(entry: JournalEntry, subscriptions: list[WebhookSubscription]) -> list[Notification]:
    kind = webhook_kind(entry.kind)
    notifications = [
        Notification(subscription.id.hex(), WEBHOOK, kind)
        for subscription in subscriptions
        if subscription.includes(kind)
    ]
    if entry.booking.email is not None and _is_emailed(entry):
        notifications.append(Notification(EMAIL, EMAIL, kind))
    return notifications


def webhook_kind(kind: str) -> str:
    """The name of a kind of entry outside the engine: `booking.held`, `payment.refunded`, `event.changed`."""
    if kind.startswith(PAYMENT_PREFIX):
        return kind
    return kind.replace("event_", "event.") if kind.startswith("event_") else f"booking.{kind}"


BOOKING_WEBHOOK_KINDS: Final = tuple(
    webhook_kind(kind)
    for kind in (*Status, EXTENDED, TRANSFERRED, *(PAYMENT_PREFIX + status for status in PaymentStatus))
)
EVENT_WEBHOOK_KINDS: Final = tuple(
    webhook_kind(kind) for kind in (EVENT_PUBLISHED, EVENT_CHANGED, EVENT_COMPLETED, EVENT_CANCELLED)
)


def _is_emailed(entry: JournalEntry) -> bool:
    """We email once about a refund: with the refunded booking, or if there is none, when the money goes back."""
    return entry.kind in EMAILED and (entry.kind != _REFUND_DUE or entry.is_unexpected)
