"""What a handler gets and returns, and how an operation of the API is declared."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, get_args, get_type_hints

from msgspec import Struct

from holdfast.api.access import Access
from holdfast.api.auth import Authenticator, Caller
from holdfast.api.client_hash import ClientHasher
from holdfast.core.commands import PlaceHold
from holdfast.core.decide import Outcome
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import RequestModel
from holdfast.engine.engine import Engine
from holdfast.live.live_event import LiveEventCache
from holdfast.payments.inbox import Inbox
from holdfast.payments.provider import Provider
from holdfast.runtime.db import Database
from holdfast.runtime.settings import Settings
from holdfast.runtime.storage import Storage
from holdfast.runtime.supervision import TaskHealth

if TYPE_CHECKING:
    # Its package is optional.
    from holdfast.gate.redis_layer import RedisLayer

BODY_BYTES_MAX: Final = 1024 * 1024

Header = tuple[bytes, bytes]
Content = TypeVar("Content", covariant=True)
Id = TypeVar("Id")
SubmitHold: TypeAlias = Callable[[PlaceHold], Awaitable[Outcome]]


class Services(Struct, frozen=True):
    """Everything that handlers share within one process."""

    settings: Settings
    database: Database
    # For what may take long: exports, journals and lists. It has connections of its own, so that no sale waits for it.
    reports: Database
    engine: Engine
    # Passes a hold to the engine, through Redis if there is one.
    submit_hold: SubmitHold
    redis: "RedisLayer | None"
    authenticator: Authenticator
    providers: Mapping[str, Provider]
    inbox: Inbox
    storage: Storage
    live_events: LiveEventCache
    task_health: TaskHealth
    client_hasher: ClientHasher
    # Held while a page of an export is read.
    export_turn: asyncio.Lock


class Resource(Enum):
    """What the id in an operation's path identifies."""

    NOTHING = "nothing"
    ORG = "org"
    EVENT = "event"
    BOOKING = "booking"
    PAYMENT = "payment"
    RECEIPT = "receipt"
    TICKET = "ticket"
    ENDPOINT = "endpoint"
    PROVIDER = "provider"
    SERIES = "series"
    SERIES_JOB = "series job"


class Tag(Enum):
    """The chapters of the API, with what each is about."""

    EVENTS = ("Events", "Create, publish, change and end events with their pools, tariffs and seats.")
    SERIES = ("Series", "Group events, and create many of them from one template and a recurrence rule.")
    BOOKINGS = ("Bookings", "Hold seats or units and follow each booking from hold to confirmation or refund.")
    PAYMENTS = ("Payments", "Start payments, refund them, and receive webhooks from payment providers.")
    RECEIPTS = ("Receipts", "Upload a payment receipt, and review it by hand.")
    TICKETS = ("Tickets", "Read tickets, download them as QR codes or PDF, and manage the keys that sign them.")
    CHECK_IN = ("Check-in", "Admit ticket holders at the door, once per ticket.")
    LIVE = (
        "Live",
        "Availability, seat maps and changes. The WebSocket `/v1/events/{id}/live` pushes the same changes: first a "
        "snapshot, then every change in order.",
    )
    WEBHOOKS = ("Webhooks", "Receive signed webhook events (Standard Webhooks) at your own URLs.")
    ORG = ("Org", "Your org's name, colour and logo, and tokens for its customers.")
    OPERATIONS = ("Operations", "Health checks, and the audit log of an event.")

    def __init__(self, title: str, description: str) -> None:
        self.title = title
        self.description = description


class Call(Struct, frozen=True):
    """One request to an operation, after authentication."""

    services: Services
    caller_or_none: Caller | None
    path: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    # Finds the client's address on demand, because few operations need it.
    find_address: Callable[[], str] = str

    @property
    def caller(self) -> Caller:
        """The caller of an operation that is not public."""
        assert self.caller_or_none is not None
        return self.caller_or_none

    @property
    def is_staff(self) -> bool:
        """Whether the caller uses a secret key."""
        return self.caller_or_none is not None and self.caller_or_none.user is None

    def path_id(self, parse: Callable[[str], Id | None]) -> Id:
        """The id in the path. A text that is no id of this kind names nothing that exists."""
        parsed = parse(self.path["id"])
        if parsed is None:
            raise RefusedError(Refusal.NOT_FOUND)
        return parsed


class StreamedBody(Struct, frozen=True):
    """A body that is made while it is sent, so that it is never in memory as a whole. Its length is not known."""

    parts: AsyncIterator[bytes]


class ApiResponse(Struct, Generic[Content], frozen=True):
    """`body` is the content itself or its encoded bytes, in one or several parts."""

    body: Content | bytes | tuple[bytes, ...] | StreamedBody
    status: int = 200
    headers: tuple[Header, ...] = ()
    content_type: bytes = b"application/json"

    @property
    def content(self) -> Content:
        """The content of a response that is not encoded yet."""
        assert not isinstance(self.body, bytes | tuple | StreamedBody)
        return self.body


# A handler takes the call and, as a second argument named `body` or `query`, its decoded input.
Handler = Callable[..., Awaitable[ApiResponse[object]]]

_annotations: Final = cache(get_type_hints)


class Operation(Struct, frozen=True):
    """One row of the table. The handler's signature gives the types of the input and of the response."""

    method: str
    path: str
    handler: Handler
    access: Access
    resource: Resource
    summary: str
    tag: Tag = Tag.OPERATIONS
    status: int = 200
    # The status of a repeated request that found its work done.
    status_if_unchanged: int | None = None
    # The media types that a raw body may have, with the type of the document in each. None stands for a file.
    body_content: Mapping[str, type[Struct] | None] = MappingProxyType({})
    body_bytes_max: int = BODY_BYTES_MAX
    response_media_types: tuple[str, ...] = ("application/json",)
    needs_idempotency_key: bool = False
    # A key is welcome. Without one, the same request counts as repeated.
    takes_idempotency_key: bool = False
    # Refuses a call before the server reads its body. For operations with large bodies.
    before_body: Callable[[Call], Awaitable[None]] | None = None
    has_etag: bool = False
    is_rate_limited: bool = True
    refusals: tuple[Refusal, ...] = ()

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def body_type(self) -> type[RequestModel] | type[bytes] | None:
        """The JSON document it takes, or bytes where the handler decodes the body."""
        return _annotations(self.handler).get("body")

    @property
    def query_type(self) -> type[RequestModel] | None:
        return _annotations(self.handler).get("query")

    @property
    def response_type(self) -> type:
        content: type = get_args(_annotations(self.handler)["return"])[0]
        return content

    @property
    def path_parameter(self) -> str | None:
        """The name in braces: `id` in `/v1/events/{id}`."""
        found = re.search(r"{(\w+)}", self.path)
        return found[1] if found else None
