"""Response types, and how payments become responses. Those of bookings are in `booking_schemas`."""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from holdfast.core.buyer_form import ContactRules, Question
from holdfast.core.journal import PoolState, SeatState
from holdfast.core.notification_rules import BookingWebhookData, EventWebhookData
from holdfast.core.payment import Payment, PaymentOutcome, PaymentStatus
from holdfast.core.policy import Policy
from holdfast.core.refusals import FieldError
from holdfast.core.shift import Shift
from holdfast.core.states import EventStatus
from holdfast.live.snapshot import SeatView
from holdfast.runtime import ids
from holdfast.runtime.supervision import TaskReport
from holdfast.tickets.booking_tickets import TicketStatus

Moment = Annotated[datetime, Meta(tz=True)]


class View(Struct, frozen=True, kw_only=True):
    """The base of every response."""


class Problem(View, frozen=True, omit_defaults=True):
    """A problem document (RFC 9457). `code` is stable. `retryable` is true if repeating the request soon may help.
    `booking` is the user's own booking that is in the way."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    retryable: bool
    conflicts: tuple[str, ...] = ()
    errors: tuple[FieldError, ...] = ()
    checked_in_at: Moment | None = None
    gate: str | None = None
    sales_open_at: Moment | None = None
    booking: str | None = None


class TariffView(View, frozen=True):
    code: str
    name: str
    price: int
    needs_companion: bool = False


class PoolView(View, frozen=True):
    code: str
    name: str
    capacity: int
    seated: bool
    tariffs: list[TariffView]
    starts_at: Moment | None = None
    ends_at: Moment | None = None
    sales_open_at: Moment | None = None
    sales_close_at: Moment | None = None


class EventView(View, frozen=True):
    """Without a `sales_close_at` of its own, an event has that of the pool that closes last. A slot closes when it
    begins, at the latest; other pools close at the start of the event."""

    id: str
    title: str
    status: EventStatus
    preset: str | None
    starts_at: Moment
    ends_at: Moment | None
    timezone: str
    currency: str
    tax_bps: int
    policy: Policy
    details: dict[str, Any]
    sales_open_at: Moment | None
    sales_close_at: Moment
    contact: ContactRules
    questions: list[Question]
    payment_instructions: str | None
    providers: list[str] | None
    shift: Shift | None
    series: str | None
    pools: list[PoolView]
    version: int
    created_at: Moment


class EventList(View, frozen=True):
    items: list[EventView]
    next: str | None


class SeriesView(View, frozen=True):
    id: str
    title: str
    description: str | None
    details: dict[str, Any]
    created_at: Moment


class SeriesList(View, frozen=True):
    items: list[SeriesView]
    next: str | None


class SeriesJobError(View, frozen=True):
    """Why there is no event with this start. `code` is the code of a refusal."""

    starts_at: Moment
    code: str
    detail: str


class SeriesJobView(View, frozen=True):
    """The progress of a request for many events. `created` and `failed` add up to `total` once the job is `done`; it is
    `failed` if it could create none of them. `errors` has the first failures."""

    id: str
    series: str
    status: Literal["waiting", "running", "done", "failed"]
    total: int
    created: int
    failed: int
    errors: list[SeriesJobError]
    publish: bool
    created_at: Moment
    done_at: Moment | None


class SeatMap(View, frozen=True):
    event: str
    version: int
    seats: list[SeatView]


class PaymentView(View, frozen=True):
    """The buyer pays at `checkout_url`. Every captured payment ends with one `outcome`."""

    id: str
    booking: str
    provider: str
    provider_ref: str | None
    status: PaymentStatus
    outcome: PaymentOutcome | None
    amount: int
    currency: str
    checkout_url: str | None
    reason: str | None
    created_at: Moment


class Change(View, frozen=True):
    """Seats and pools as they are after one change. It names no users."""

    seq: int
    kind: str
    at: Moment
    seats: dict[str, SeatState]
    pools: dict[str, PoolState]


class ChangeList(View, frozen=True):
    changes: list[Change]
    next: int


class JournalEntryView(View, frozen=True):
    seq: int
    at: Moment
    kind: str
    booking: str | None
    payment: str | None
    actor: str
    reason: str | None
    change: dict[str, Any] | None
    seats: dict[str, SeatState]
    pools: dict[str, PoolState]


class JournalList(View, frozen=True):
    items: list[JournalEntryView]
    next: int | None


class BookingWebhook(View, frozen=True):
    """Holdfast sends this to your webhook endpoints, signed as Standard Webhooks asks."""

    type: str
    timestamp: Moment
    data: BookingWebhookData


class EventWebhook(View, frozen=True):
    """Holdfast sends this to your webhook endpoints, signed as Standard Webhooks asks."""

    type: str
    timestamp: Moment
    data: EventWebhookData


class NoticeView(View, frozen=True):
    """`stored` is false for a webhook event that had arrived before."""

    stored: bool


class ReceiptView(View, frozen=True):
    """`also_on` lists other bookings with the same receipt."""

    id: str
    at: Moment
    content_type: str | None
    size: int | None
    file_ref: str | None
    message_ref: str | None
    file_url: str | None
    also_on: list[str]


class ReceiptList(View, frozen=True):
    items: list[ReceiptView]
    next: str | None


class TicketView(View, frozen=True):
    """`starts_at` and `ends_at` are the times of the pool, or of the event if the pool has none."""

    id: str
    seat: str | None
    pool: str
    tariff: str
    starts_at: Moment
    ends_at: Moment | None
    code: str
    status: TicketStatus


class KeyView(View, frozen=True):
    number: int
    public_key: str
    created_at: Moment
    revoked_at: Moment | None


class TicketKeyView(View, frozen=True):
    """`public_key` is the newest key: 32 bytes in base64. Every ticket code carries the number of the key that signed
    it."""

    event: str
    algorithm: str
    number: int
    public_key: str
    keys: list[KeyView]


class CheckinView(View, frozen=True):
    """`starts_at` and `ends_at` are the times of the pool, or of the event if the pool has none. Holdfast also admits a
    ticket for another slot of the event."""

    result: str
    ticket: str
    event: str
    booking: str
    pool: str
    pool_name: str
    starts_at: Moment
    ends_at: Moment | None
    tariff: str
    seat: str | None
    at: Moment
    gate: str | None


class EndpointView(View, frozen=True):
    """`secret` is present only in the response that creates or rotates it."""

    id: str
    url: str
    kinds: list[str]
    enabled: bool
    disabled_reason: str | None
    created_at: Moment
    secret: str | None


class EndpointList(View, frozen=True):
    items: list[EndpointView]
    next: str | None


class DeliveryView(View, frozen=True):
    event: str
    seq: int
    kind: str
    status: str
    attempts: int
    created_at: Moment
    next_attempt_at: Moment | None
    done_at: Moment | None
    last_error: str | None


class DeliveryList(View, frozen=True):
    items: list[DeliveryView]
    next: str | None


class Progress(View, frozen=True):
    """The progress of the cleanup after an event. `done` means that no booking is live and no refund is pending."""

    status: EventStatus
    bookings: int
    live: int
    refunds_due: int
    refunded: int
    in_review: int
    done: bool


class OrgView(View, frozen=True):
    """The org as buyers see it. `logo_url` changes with every new logo. `payment_instructions` are for events that have
    none of their own."""

    slug: str
    name: str
    colour: str | None
    logo_url: str | None
    frame_origins: list[str]
    max_unpaid_units_per_address: int | None
    payment_instructions: str | None


class CustomerToken(View, frozen=True):
    token: str
    user: str
    expires_at: Moment


class Health(View, frozen=True):
    status: str


class AuditSummary(View, frozen=True):
    events: int
    findings: int
    last_at: Moment | None


class RedisReadiness(View, frozen=True):
    """How the process that responds gets on with Redis. `state` is that of its circuit breaker: `closed` while Redis
    works, `open` while the process does without it, `half_open` while it tries again. `failures` counts the calls in a
    row that failed, `opened` how often the breaker has opened since the process started."""

    state: str
    since: Moment
    failures: int
    opened: int
    last_error: str | None


class Readiness(View, frozen=True):
    """`tasks` are the long-lived tasks of the process that responds. `redis` is null if it has no Redis."""

    status: str
    audit: AuditSummary
    tasks: list[TaskReport]
    redis: RedisReadiness | None


def payment_view(event: bytes, booking: bytes, payment: Payment) -> PaymentView:
    return PaymentView(
        id=ids.format_payment_id(event, payment.id),
        booking=ids.format_booking_id(event, booking),
        provider=payment.provider,
        provider_ref=payment.provider_ref,
        status=payment.status,
        outcome=payment.outcome,
        amount=payment.amount,
        currency=payment.currency,
        checkout_url=payment.checkout_url,
        reason=payment.reason,
        created_at=payment.created_at,
    )
