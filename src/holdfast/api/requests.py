"""What the API takes besides events, which are in `core.offers`."""

import re
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from holdfast.core.event_schemas import (
    DAY_SECONDS,
    Code,
    Details,
    Label,
    Quantity,
    Request,
    check_unique,
    invalid_field,
)

User = Annotated[str, Meta(min_length=1, max_length=200, description="The buyer, by the merchant's own id.")]
Email = Annotated[
    str,
    Meta(
        pattern=r"^[^@\s\x00-\x1f\x7f<>,;:\"()\[\]\\]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){0,8}$(?!\n)",
        max_length=254,
        description="Where letters to the buyer go.",
    ),
]
Language = Annotated[str, Meta(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8}){0,3}$(?!\n)", description="BCP 47.")]
Reason = Annotated[str, Meta(max_length=1000)]
Limit = Annotated[int, Meta(ge=1, le=200)]
Cursor = Annotated[str, Meta(max_length=100)]
EventStatusName = Literal["draft", "active", "completed", "cancelled"]
StatusName = Literal[
    "held", "payment_submitted", "confirmed", "rejected", "expired", "cancelled", "refunded", "completed"
]


# The largest quantity is also the most that all items of a booking may have together: each unit is a ticket.
UNITS_MAX = 1000


class Item(Request, frozen=True):
    """A seat, or a quantity of a pool. The tariff may be left out where the pool has one."""

    seat: Label | None = None
    pool: Code | None = None
    tariff: Code | None = None
    quantity: Quantity | None = None

    def __post_init__(self) -> None:
        if self.seat is not None and (self.pool is not None or self.quantity not in (None, 1)):
            raise invalid_field("items", "a seat takes neither a pool nor a quantity")
        if self.seat is None and self.pool is None:
            raise invalid_field("items", "an item needs a seat or a pool")


class BestAvailable(Request, frozen=True):
    pool: Code
    quantity: Quantity
    tariff: Code | None = None
    adjacent: bool = True


class HoldNew(Request, frozen=True):
    """Either `items` or `best_available`. With a customer token the user is known and may be left out."""

    user: User | None = None
    items: Annotated[list[Item], Meta(min_length=1, max_length=200)] | None = None
    best_available: BestAvailable | None = None
    cart_token: Annotated[str, Meta(min_length=1, max_length=200, description="Kept only as a hash.")] | None = None
    details: Details | None = None
    email: Email | None = None
    language: Language | None = None

    def __post_init__(self) -> None:
        if (self.items is None) is (self.best_available is None):
            raise invalid_field("items", "give either items or best_available")
        if self.items is not None and len(self.items) > 1:
            if sum(item.quantity or 1 for item in self.items) > UNITS_MAX:
                raise invalid_field("items", f"a booking has at most {UNITS_MAX} units")
            check_unique("items", "seat", (item.seat for item in self.items if item.seat is not None))


class Empty(Request, frozen=True):
    """An action without fields takes an empty body, or an empty object."""


class WithReason(Request, frozen=True):
    reason: Reason | None = None


class PaymentNew(Request, frozen=True):
    """`return_url` is where the provider sends the buyer afterwards."""

    provider: Code
    return_url: Annotated[str, Meta(pattern=r"^https?://[^\s\\]+$(?!\n)", max_length=2000)] | None = None


class PaymentRefund(Request, frozen=True):
    """With `by_hand` it is noted that somebody has paid it back; else the provider is to."""

    by_hand: bool = False
    reason: Reason | None = None


class ReceiptRef(Request, frozen=True):
    """A receipt that is kept elsewhere, such as a file of a messenger."""

    file_ref: Annotated[str, Meta(min_length=1, max_length=500)]
    message_ref: Annotated[str, Meta(min_length=1, max_length=500)] | None = None


class TransferNew(Request, frozen=True):
    user: User
    email: Email | None = None
    language: Language | None = None


class KeyRotation(Request, frozen=True):
    """With `revoke` the codes that earlier keys have signed are no longer valid; buyers fetch new ones."""

    revoke: bool = False


class CheckinNew(Request, frozen=True):
    """The same `nonce` again gets the same answer, so that a lost answer can be asked for."""

    code: Annotated[str, Meta(min_length=1, max_length=1000)]
    gate: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    nonce: Annotated[str, Meta(min_length=1, max_length=100)] | None = None


Kinds = Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=100)]
Url = Annotated[str, Meta(min_length=8, max_length=2000)]


class EndpointNew(Request, frozen=True):
    """`kinds` are those of the facts to be told of, such as `booking.confirmed`; none: all."""

    url: Url
    kinds: Kinds = []  # noqa: RUF012 (copied for each)


class EndpointChange(Request, frozen=True):
    url: Url | UnsetType = UNSET
    kinds: Kinds | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


# Without control characters, and without what ends a line in some places only.
OrgName = Annotated[
    str,
    Meta(
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$(?!\n)",
        min_length=1,
        max_length=200,
        description="What buyers read.",
    ),
]
Colour = Annotated[str, Meta(pattern=r"^#[0-9A-Fa-f]{6}$(?!\n)", description="Such as #1f6feb; null stands for ours.")]
# Origins become part of a Content-Security-Policy header, so nothing gets by that could end one, or mean more than it
# seems to. The last part of a name begins with a letter: browsers read anything else as a number.
ORIGIN = (
    r"^(https://([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
    r"|http://(localhost|127\.0\.0\.1))(:[1-9][0-9]{0,4})?$(?!\n)"
)
Origin = Annotated[
    str,
    Meta(
        max_length=267,
        description="`https://example.com`, with a port where it is not 443; `http://localhost:3000` for trying.",
        extra_json_schema={"pattern": ORIGIN},
    ),
]
ORIGINS_MAX = 20
PORT_MAX = 65_535
# A browser leaves these out, and would never find the origin that names one.
PORTS_UNSAID = {"https": "443", "http": "80"}


class OrgChange(Request, frozen=True):
    """What is left out stays as it is. `frame_origins` are the sites whose pages may show ours in a frame."""

    name: OrgName | UnsetType = UNSET
    colour: Colour | UnsetType | None = UNSET
    frame_origins: Annotated[list[Origin], Meta(max_length=ORIGINS_MAX)] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.name is not UNSET and not self.name.strip():
            raise invalid_field("name", "a name needs more than spaces")
        if self.frame_origins is not UNSET:
            check_unique("frame_origins", "origin", self.frame_origins)
            for origin in self.frame_origins:
                _check_origin(origin)


def _check_origin(origin: str) -> None:
    if not re.fullmatch(ORIGIN, origin):
        raise invalid_field(
            "frame_origins", "write https://, the host in lower case and its port, if any, and nothing else"
        )
    scheme, _, host = origin.partition("://")
    port = host.partition(":")[2]
    if port == PORTS_UNSAID[scheme]:
        raise invalid_field("frame_origins", f"leave out the port {port}, as browsers do")
    if port and int(port) > PORT_MAX:
        raise invalid_field("frame_origins", f"there is no port {port}")


class DeliveriesQuery(Request, frozen=True):
    status: Literal["waiting", "delivered", "failed"] | None = None
    limit: Limit = 50
    after: Cursor | None = None


class CustomerTokenNew(Request, frozen=True):
    user: User
    ttl_seconds: Annotated[int, Meta(ge=1, le=DAY_SECONDS)] = 900


class EventsQuery(Request, frozen=True):
    org: Annotated[str, Meta(max_length=63, description="The slug of the org whose events to list.")] | None = None
    status: EventStatusName | None = None
    limit: Limit = 50
    after: Cursor | None = None


class BookingsQuery(Request, frozen=True):
    event: Cursor | None = None
    user: User | None = None
    reference: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{10}$(?!\n)")] | None = None
    status: StatusName | None = None
    limit: Limit = 50
    after: Cursor | None = None


class JournalQuery(Request, frozen=True):
    after: Annotated[int, Meta(ge=0, le=2**62)] = 0
    limit: Limit = 200
