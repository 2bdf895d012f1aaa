"""An operation of the API: everything that routes, authorization, OpenAPI, docs and tests need to know about it."""

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from holdfast.api.auth import Caller, Callers
from holdfast.api.responses import View
from holdfast.core.event_schemas import Request
from holdfast.core.refusals import Refusal
from holdfast.engine.engine import Engine
from holdfast.live.live_event import LiveEvents
from holdfast.payments.inbox import Inbox
from holdfast.payments.provider import Provider
from holdfast.runtime.credentials import Role
from holdfast.runtime.db import Database, Pool
from holdfast.runtime.settings import Settings
from holdfast.runtime.storage import Storage

BODY_MAX: Final = 1024 * 1024


class Services(Struct, frozen=True):
    """What a process has to serve its callers with."""

    settings: Settings
    pool: Pool
    database: Database
    engine: Engine
    callers: Callers
    providers: Mapping[str, Provider]
    inbox: Inbox
    storage: Storage
    live_events: LiveEvents


class Access(Enum):
    """Who may call. Customers reach only what is their own, and everybody only what is of their org."""

    PUBLIC = frozenset(Role)  # and whoever has no token at all
    BUYERS = frozenset({Role.ADMIN, Role.SALES, Role.CUSTOMER})
    READERS = frozenset({Role.ADMIN, Role.SALES, Role.REVIEW, Role.CUSTOMER})
    TICKET_READERS = frozenset({Role.ADMIN, Role.SALES, Role.DOOR, Role.CUSTOMER})
    SALES = frozenset({Role.ADMIN, Role.SALES})
    REVIEW = frozenset({Role.ADMIN, Role.REVIEW})
    DOOR = frozenset({Role.ADMIN, Role.DOOR})
    ADMIN = frozenset({Role.ADMIN})


class Resource(Enum):
    """What an operation's path names. The authorization tests go by it."""

    NOTHING = "nothing"
    ORG = "org"
    EVENT = "event"
    BOOKING = "booking"
    PAYMENT = "payment"
    RECEIPT = "receipt"
    TICKET = "ticket"
    ENDPOINT = "endpoint"
    PROVIDER = "provider"


class Call(Struct, frozen=True):
    services: Services
    caller_or_none: Caller | None
    path: Mapping[str, str]
    query: Any
    body: Any
    headers: Mapping[bytes, bytes]

    @property
    def caller(self) -> Caller:
        """The caller of an operation that needs one."""
        assert self.caller_or_none is not None
        return self.caller_or_none


class ApiResponse(Struct, frozen=True):
    """`body` is a view, or bytes that were encoded already."""

    body: View | list[Any] | bytes
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"


class Operation(Struct, frozen=True, kw_only=True):
    name: str
    method: str
    path: str
    summary: str
    who: Access
    about: Resource
    function: Callable[[Call], Awaitable[ApiResponse]]
    # What it answers with: JSON of this type, or bytes of one of these media types.
    gives: Any
    status: int = 200
    takes: type[Request] | None = None
    # Where a body can be something else than JSON, the media types it may have; it is then left as it comes.
    media: tuple[str, ...] = ()
    body_max: int = BODY_MAX
    # A provider that tells us something is never sent away for asking too often.
    is_limited: bool = True
    query: type[Request] | None = None
    needs_idempotency_key: bool = False
    refusals: tuple[Refusal, ...] = ()
    has_etag: bool = False
