"""An operation of the API: everything that routes, authorization, OpenAPI, docs and tests need to know about it."""

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from holdfast.core.offers import Request
from holdfast.core.refusals import Refusal
from holdfast.db import Pool
from holdfast.desk.desk import Desk
from holdfast.http.auth import Caller, Callers, Role
from holdfast.http.views import View
from holdfast.settings import Settings


class House(Struct, frozen=True):
    """What a process has to serve its callers with."""

    settings: Settings
    pool: Pool
    desk: Desk
    callers: Callers


class Who(Enum):
    """Who may call. Customers reach only what is their own, and everybody only what is of their org."""

    PUBLIC = frozenset(Role)  # and whoever has no token at all
    BUYERS = frozenset({Role.ADMIN, Role.SALES, Role.CUSTOMER})
    READERS = frozenset({Role.ADMIN, Role.SALES, Role.REVIEW, Role.CUSTOMER})
    SALES = frozenset({Role.ADMIN, Role.SALES})
    ADMIN = frozenset({Role.ADMIN})


class About(Enum):
    """What an operation's path names. The authorization tests go by it."""

    NOTHING = "nothing"
    ORG = "org"
    EVENT = "event"
    BOOKING = "booking"


class Call(Struct, frozen=True):
    house: House
    caller: Caller | None
    path: Mapping[str, str]
    query: Any
    body: Any
    headers: Mapping[bytes, bytes]

    @property
    def by(self) -> Caller:
        """The caller of an operation that needs one."""
        assert self.caller is not None
        return self.caller


class Answer(Struct, frozen=True):
    """`body` is a view, or bytes that were encoded already."""

    body: View | bytes
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"


class Operation(Struct, frozen=True, kw_only=True):
    name: str
    method: str
    path: str
    summary: str
    who: Who
    about: About
    function: Callable[[Call], Awaitable[Answer]]
    gives: type[View]
    status: int = 200
    takes: type[Request] | None = None
    query: type[Request] | None = None
    needs_idempotency_key: bool = False
    refusals: tuple[Refusal, ...] = ()
    has_etag: bool = False
