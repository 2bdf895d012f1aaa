"""Request bodies and queries. Those of events are in `core.event_schemas`, those of holds in `booking_schemas`."""

import re
from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, ValidationError, convert, field

from holdfast.core.event_schemas import PaymentInstructions, check_instructions
from holdfast.core.request_types import (
    DAY_SECONDS,
    Code,
    RequestModel,
    Time,
    UnpaidUnits,
    check_unique,
    invalid_field,
)
from holdfast.core.states import EventStatus, Status

User = Annotated[str, Meta(min_length=1, max_length=200, description="Your own id for the buyer.")]
EmailAddress = Annotated[
    str,
    Meta(
        pattern=r"^[^@\s\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069<>,;:\"()\[\]\\]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){0,8}$(?!\n)",
        max_length=254,
        description="The address for emails to the buyer.",
    ),
]
# No control characters, and none that change the direction of the text around them.
PersonName = Annotated[
    str,
    Meta(
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+$(?!\n)",
        min_length=1,
        max_length=200,
        description="The buyer's name.",
    ),
]
PhoneNumber = Annotated[
    str,
    Meta(pattern=r"^\+[1-9][0-9]{6,14}$(?!\n)", description="E.164, such as `+34911234567`."),
]
Language = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8}){0,3}$(?!\n)",
        description="BCP 47, such as `en` or `pt-BR`.",
    ),
]
ReasonText = Annotated[str, Meta(max_length=1000, description="Free text. The buyer may see it.")]
Reference = Annotated[
    str, Meta(pattern=r"^[0-9A-Fa-f]{10}$(?!\n)", description="The booking reference that buyers see.")
]
Limit = Annotated[int, Meta(ge=1, le=200, description="The largest number of items to return.")]
Cursor = Annotated[str, Meta(max_length=100, description="The `next` of the previous page.")]
EventId = Annotated[str, Meta(max_length=100, description="Only bookings of this event.")]


class Empty(RequestModel, frozen=True):
    """Send no body, or an empty object."""


class WithReason(RequestModel, frozen=True):
    reason: ReasonText | None = None


WebUrl = Annotated[str, Meta(pattern=r"^https?://[^\s\\]+$(?!\n)", max_length=2000)]


class PaymentNew(RequestModel, frozen=True):
    """The provider sends the buyer to `return_url` after the checkout."""

    provider: Code
    return_url: WebUrl | None = None


class PaymentRefund(RequestModel, frozen=True):
    """By default the provider refunds the money. `by_hand` records that you have refunded it yourself."""

    by_hand: bool = False
    reason: ReasonText | None = None


class ReceiptRef(RequestModel, frozen=True):
    """A receipt that is stored elsewhere, such as a file in a messenger chat."""

    file_ref: Annotated[str, Meta(min_length=1, max_length=500)]
    message_ref: Annotated[str, Meta(min_length=1, max_length=500)] | None = None


class ReceiptUpload(RequestModel, frozen=True):
    """A JPEG, PNG, WebP, HEIC or PDF file of at most 10 MiB."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]


class ContactNew(RequestModel, frozen=True):
    """Who the buyer is."""

    name: PersonName | None = None
    email: EmailAddress | None = None
    phone: PhoneNumber | None = None


class TransferNew(RequestModel, frozen=True):
    """`contact` is the new holder's. `email` is short for `contact.email`."""

    user: User
    contact: ContactNew = ContactNew()
    email: EmailAddress | None = None
    language: Language | None = None

    def __post_init__(self) -> None:
        check_one_email(self.contact, self.email)


def check_one_email(contact: ContactNew | UnsetType, email: str | None) -> None:
    if contact is not UNSET and contact.email not in (None, email) and email is not None:
        raise invalid_field("email", "must be the same as `contact.email`, or be left out")


class KeyRotation(RequestModel, frozen=True):
    """`revoke` invalidates every ticket code signed with an earlier key. Buyers then have to download new tickets."""

    revoke: bool = False


class CheckinNew(RequestModel, frozen=True):
    """`event` is the event at this door; Holdfast refuses tickets for any other. You can leave it out if the door key
    is bound to events. To get a lost response again, repeat the request with the same key, `gate` and `nonce`."""

    code: Annotated[str, Meta(min_length=1, max_length=1000)]
    event: Annotated[str, Meta(max_length=100, description="The id of the event at this door.")] | None = None
    gate: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    nonce: Annotated[str, Meta(min_length=1, max_length=100)] | None = None


Kinds = Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=100)]
Url = Annotated[str, Meta(min_length=8, max_length=2000)]


class EndpointNew(RequestModel, frozen=True):
    """`kinds` are the kinds of webhook events to deliver, such as `booking.confirmed`. An empty list means all."""

    url: Url
    kinds: Kinds = []  # noqa: RUF012 (msgspec copies it)


class EndpointChange(RequestModel, frozen=True):
    url: Url | UnsetType = UNSET
    kinds: Kinds | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


# No control characters and no Unicode line separators, which would break email headers and scripts.
OrgName = Annotated[
    str,
    Meta(
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$(?!\n)",
        min_length=1,
        max_length=200,
        description="The name that buyers see.",
    ),
]
Colour = Annotated[
    str, Meta(pattern=r"^#[0-9A-Fa-f]{6}$(?!\n)", description="Such as `#1f6feb`; null for the default.")
]
# Origins become part of a Content-Security-Policy header, so they contain nothing that could end or widen a directive.
# The last label of a host starts with a letter, because browsers read anything else as an IPv4 address.
ORIGIN = (
    r"^(https://([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
    r"|http://(localhost|127\.0\.0\.1))(:[1-9][0-9]{0,4})?$(?!\n)"
)
Origin = Annotated[
    str,
    Meta(
        max_length=267,
        description="Such as `https://example.com`, `https://example.com:8443` or `http://localhost:3000`.",
        extra_json_schema={"pattern": ORIGIN},
    ),
]
ORIGINS_MAX = 20
PORT_MAX = 65_535
# Browsers leave these out of an origin, so an origin that names one would never match.
DEFAULT_PORTS = {"https": "443", "http": "80"}


class OrgChange(RequestModel, frozen=True):
    """Omitted fields stay as they are. `frame_origins` are the sites that may embed your event pages.
    `max_unpaid_units_per_address` limits the unpaid units of guests behind one address in all your events; null means
    no limit. `payment_instructions` are for events that have none of their own; null removes them."""

    name: OrgName | UnsetType = UNSET
    colour: Colour | UnsetType | None = UNSET
    frame_origins: Annotated[list[Origin], Meta(max_length=ORIGINS_MAX)] | UnsetType = UNSET
    max_unpaid_units_per_address: UnpaidUnits | UnsetType | None = UNSET
    payment_instructions: PaymentInstructions | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        if self.name is not UNSET and not self.name.strip():
            raise invalid_field("name", "must contain more than spaces")
        check_instructions(self.payment_instructions)
        if self.frame_origins is not UNSET:
            check_unique("frame_origins", "origin", self.frame_origins)
            for origin in self.frame_origins:
                _check_origin(origin)


def _check_origin(origin: str) -> None:
    if not re.fullmatch(ORIGIN, origin):
        raise invalid_field(
            "frame_origins", "must have the form https://host or https://host:port, with the host in lower case"
        )
    scheme, _, host = origin.partition("://")
    port = host.partition(":")[2]
    if port == DEFAULT_PORTS[scheme]:
        raise invalid_field("frame_origins", f"must not name the default port {port}")
    if port and int(port) > PORT_MAX:
        raise invalid_field("frame_origins", f"has the port {port}, which is above {PORT_MAX}")


SequenceNumber = Annotated[int, Meta(ge=0, le=2**62, description="Return what follows this `seq`.")]


class DeliveriesQuery(RequestModel, frozen=True):
    status: Literal["waiting", "delivered", "failed"] | None = None
    limit: Limit = 50
    after: Cursor | None = None


class CustomerTokenNew(RequestModel, frozen=True):
    user: User
    ttl_seconds: Annotated[int, Meta(ge=1, le=DAY_SECONDS)] = 900


OrgSlug = Annotated[str, Meta(max_length=63, description="Only those of the org with this slug.")]
# Queries are text, in which msgspec would also read a number as a time.
EarliestStart = Annotated[
    str,
    Meta(
        description="Only events that start at this time or later, or that have a slot that does. RFC 3339.",
        extra_json_schema={"format": "date-time"},
    ),
]
LatestStart = Annotated[
    str,
    Meta(description="Only events that start before this time. RFC 3339.", extra_json_schema={"format": "date-time"}),
]
SearchText = Annotated[
    str, Meta(max_length=100, description="Words that occur in the title or in the address, in any order.")
]


class EventsQuery(RequestModel, frozen=True):
    org: OrgSlug | None = None
    status: EventStatus | None = None
    from_: EarliestStart | None = field(default=None, name="from")
    to: LatestStart | None = None
    series: Annotated[str, Meta(max_length=100, description="Only events of this series.")] | None = None
    q: SearchText | None = None
    limit: Limit = 50
    after: Cursor | None = None

    def __post_init__(self) -> None:
        _ = self.earliest, self.before

    @property
    def earliest(self) -> datetime | None:
        return _parse_time("from", self.from_)

    @property
    def before(self) -> datetime | None:
        return _parse_time("to", self.to)


def _parse_time(name: str, text: str | None) -> datetime | None:
    try:
        return convert(text, Time) if text is not None else None
    except ValidationError:
        raise invalid_field(name, "must be an RFC 3339 time with a time zone, such as 2027-03-05T19:00:00Z") from None


class SeriesQuery(RequestModel, frozen=True):
    org: OrgSlug | None = None
    limit: Limit = 50
    after: Cursor | None = None


class BookingsQuery(RequestModel, frozen=True):
    event: EventId | None = None
    user: User | None = None
    reference: Reference | None = None
    status: Status | None = None
    limit: Limit = 50
    after: Cursor | None = None


class ExportQuery(RequestModel, frozen=True):
    status: Status | None = None


class JournalQuery(RequestModel, frozen=True):
    after: SequenceNumber = 0
    limit: Limit = 200
