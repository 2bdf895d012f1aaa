"""Which notifications a journal entry causes. They are saved with the entry, and the relay sends them later."""

from collections.abc import Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Annotated, Final

from msgspec import Meta, Struct

from holdfast.core.actors import CUSTOMER_ACTOR
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
from holdfast.core.layout import PricedItem
from holdfast.core.payment import PaymentStatus
from holdfast.core.states import EventStatus, FastStrEnum, Status

EMAIL: Final = "email"
# Emails with links that recover a guest's bookings. They belong to no entry of a journal.
RECOVERY: Final = "recovery"
SMS: Final = "sms"
PUSH: Final = "push"
WEBHOOK: Final = "webhook"
KAFKA: Final = "kafka"
NATS: Final = "nats"
# The channels of the event bus. They carry every entry of every org.
BUSES: Final = (KAFKA, NATS)

# These two report no journal entry: time has passed.
REMINDER: Final = "booking.reminder"
HOLD_ENDING: Final = "booking.hold_ending"

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


# Anybody can cause these, because they cost nothing.
_HOLD_ENDS: Final = frozenset({Status.EXPIRED.value, Status.REJECTED.value, Status.CANCELLED.value})


class EmailLimit(FastStrEnum):
    """Which limit an email has. An email about money has none."""

    HOLD = "hold"  # about a hold that was never confirmed
    FREE = "free"  # about a booking that costs nothing


class SmsLimit(FastStrEnum):
    """Which limit an SMS has. All of them have one, because an SMS costs the merchant money."""

    FREE = "free"  # about a booking that costs nothing, so anybody can cause it
    PAID = "paid"


class WebhookSubscription(Struct, frozen=True):
    """An org's webhook endpoint and the kinds of entries it subscribes to; an empty set means all of them."""

    id: bytes
    kinds: frozenset[str]

    def includes(self, kind: str) -> bool:
        return not self.kinds or kind in self.kinds


class EmailBody(Struct, frozen=True):
    """What an email needs to know of the moment it reports. The rest is read when it is sent."""

    # The address that the person of that moment had. A reminder has none: it goes to the address in the booking.
    email: str | None
    language: str | None
    generation: int
    status: Status
    reason: str | None
    limit: EmailLimit | None = None
    # The start that a reminder is about.
    starts_at: datetime | None = None


class SmsBody(Struct, frozen=True):
    """What an SMS needs to know of the moment it reports. The phone number stays in the booking."""

    language: str | None
    generation: int
    limit: SmsLimit
    starts_at: datetime | None = None


class PushBody(Struct, frozen=True):
    """Which of the booking's subscriptions a push message goes to."""

    slot: int


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
    items: list[PricedItem]


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


def notifications_for(
    entry: JournalEntry, subscriptions: list[WebhookSubscription], buses: Sequence[str] = ()
) -> list[Notification]:
    kind = webhook_kind(entry.kind)
    notifications = [
        Notification(subscription.id.hex(), WEBHOOK, kind)
        for subscription in subscriptions
        if subscription.includes(kind)
    ]
    if entry.booking.email is not None and _is_emailed(entry):
        notifications.append(Notification(email_target(entry.booking.org), EMAIL, kind))
    if is_texted(entry):
        notifications.append(Notification(sms_target(entry.booking.org), SMS, kind))
    notifications += [Notification(bus_target(bus, entry.booking.org), bus, kind) for bus in buses]
    return notifications


def bus_target(bus: str, org: bytes) -> str:
    """Each org's messages to a bus are a separate target, so one org's backlog does not delay another's."""
    return f"{bus}:{org.hex()}"


def email_target(org: bytes) -> str:
    """Each org's emails are a separate target, so many emails of one org do not delay another's."""
    return f"{EMAIL}:{org.hex()}"


def sms_target(org: bytes) -> str:
    return f"{SMS}:{org.hex()}"


def is_texted(entry: JournalEntry) -> bool:
    """Whether the buyer gets an SMS. Other than an email, it costs money, so it is only about what buyers wait for."""
    return entry.booking.phone is not None and entry.kind == Status.CONFIRMED


def is_pushed(entry: JournalEntry) -> bool:
    """Whether browsers that subscribed to the booking get a message: somebody has reviewed the receipt."""
    return entry.was is Status.PAYMENT_SUBMITTED and entry.kind in (Status.CONFIRMED, Status.REJECTED)


def email_limit(entry: JournalEntry) -> EmailLimit | None:
    if entry.kind in _HOLD_ENDS and entry.was is not Status.CONFIRMED:
        return EmailLimit.HOLD
    is_free = entry.booking.total == 0 or entry.kind == TRANSFERRED
    return EmailLimit.FREE if is_free else None


def recipient_hash(limit: EmailLimit, org: bytes, email: str) -> bytes:
    """Emails with the same hash count together. For holds, that includes the emails of all orgs. Dots and a tag after a
    plus sign make no difference, because many providers deliver them to the same mailbox."""
    name, _, domain = email.lower().rpartition("@")
    mailbox = f"{name.partition('+')[0].replace('.', '')}@{domain}".encode()
    scope = org if limit is EmailLimit.FREE else b""
    return _hash(limit.encode(), scope, mailbox)


def buyer_hash(limit: EmailLimit, org: bytes, actor: str, user: str) -> bytes | None:
    """Emails that one buyer causes have the same hash. Staff have none for free bookings, because they may register
    many people under one user."""
    is_by_customer = actor.startswith(CUSTOMER_ACTOR)
    if limit is EmailLimit.FREE and not is_by_customer:
        return None
    buyer = actor if is_by_customer else CUSTOMER_ACTOR + user
    return _hash(b"buyer", org, buyer.encode())


def sms_limit(total: int) -> SmsLimit:
    return SmsLimit.FREE if total == 0 else SmsLimit.PAID


def phone_hash(limit: SmsLimit, org: bytes, phone: str) -> bytes:
    """SMS with the same hash count together. For free bookings, that includes the SMS of all orgs."""
    scope = b"" if limit is SmsLimit.FREE else org
    return _hash(b"sms", limit.encode(), scope, phone.encode())


def sms_buyer_hash(limit: SmsLimit, org: bytes, actor: str) -> bytes | None:
    """SMS that one buyer causes with free bookings have the same hash, whatever numbers they go to."""
    if limit is SmsLimit.PAID or not actor.startswith(CUSTOMER_ACTOR):
        return None
    return _hash(b"sms buyer", org, actor.encode())


def sms_client_hash(limit: SmsLimit, org: bytes, client: bytes | None, *, is_reminder: bool = False) -> bytes | None:
    """SMS that all buyers behind one address cause with free bookings have the same hash. A fresh cookie makes another
    buyer, and costs nothing. A booking without a client was made by somebody whom the merchant knows. Reminders count
    apart, because those of everyone behind an address are written within minutes."""
    if limit is SmsLimit.PAID or client is None:
        return None
    return _hash(b"sms reminder client" if is_reminder else b"sms client", org, client)


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
    """We email once about a refund: with the refunded booking, or if there is none, when the money goes back. The
    holder of a transferred booking did not pay, so they get no email about its refund. A buyer who gives up a hold
    needs no email about it."""
    if entry.kind == _REFUND_DUE:
        return entry.is_unexpected and not entry.booking.was_transferred
    return entry.kind in EMAILED and not _is_given_up(entry)


def _is_given_up(entry: JournalEntry) -> bool:
    is_by_customer = entry.actor.startswith(CUSTOMER_ACTOR)
    return entry.kind == Status.CANCELLED and entry.was is not Status.CONFIRMED and is_by_customer


def _hash(*parts: bytes) -> bytes:
    return blake2b(b"\0".join(parts), digest_size=16).digest()
