"""Authentication: staff send a secret key of their org, its customers a signed token."""

import time
from collections import OrderedDict
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.actors import CUSTOMER_ACTOR
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.runtime.credentials import KEY_PREFIX, InvalidTokenError, Role, hash_key, read_customer_token
from holdfast.runtime.db import Database

# A revoked key works for at most this long.
CACHE_SECONDS: Final = 5.0
CALLERS_MAX: Final = 50_000


class Caller(Struct, frozen=True):
    """`user` is set for customers, who may read and change only their own bookings. A guest is a customer whom nobody
    has identified: a browser with a cookie. `events` is set for door keys that are bound to events: these keys may read
    and check in only the tickets of those events."""

    org: bytes
    role: Role
    actor: str
    user: str | None = None
    is_guest: bool = False
    events: frozenset[bytes] | None = None

    def may_read_tickets_of(self, event: bytes) -> bool:
        return self.events is None or event in self.events


class ApiKeyRow(Struct, frozen=True):
    org_id: bytes
    prefix: str
    role: Role
    events: frozenset[bytes] | None


def customer_caller(org: bytes, user: str, *, is_guest: bool = False) -> Caller:
    return Caller(org, Role.CUSTOMER, f"{CUSTOMER_ACTOR}{user}", user, is_guest=is_guest)


class Authenticator:
    """Identifies callers by their tokens, and caches them for a few seconds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cache: OrderedDict[str, tuple[float, Caller]] = OrderedDict()

    def find_cached(self, token: str) -> Caller | None:
        entry = self._cache.get(token)
        if entry is None or entry[0] <= time.monotonic():
            return None
        self._cache.move_to_end(token)
        return entry[1]

    async def identify(self, token: str) -> Caller:
        caller, seconds = await (
            self._read_key(token) if token.startswith(KEY_PREFIX) else self._read_customer_token(token)
        )
        self._remember(token, caller, min(seconds, CACHE_SECONDS))
        return caller

    def _remember(self, token: str, caller: Caller, seconds: float) -> None:
        """Evict the least recently used callers, so that a flood of customers does not push out busy staff keys."""
        self._cache[token] = (time.monotonic() + seconds, caller)
        self._cache.move_to_end(token)
        while len(self._cache) > CALLERS_MAX:
            self._cache.popitem(last=False)

    async def _read_key(self, token: str) -> tuple[Caller, float]:
        key = await self._database.shared.row(ApiKeyRow, sql.credentials.key, hash_key(token))
        if key is None:
            raise RefusedError(Refusal.UNAUTHORIZED, "The key is unknown or was revoked. Create a new one.")
        return Caller(key.org_id, key.role, f"key:{key.prefix}", events=key.events), CACHE_SECONDS

    async def _read_customer_token(self, token: str) -> tuple[Caller, float]:
        try:
            customer = await read_customer_token(self._database, token)
        except InvalidTokenError:
            raise RefusedError(
                Refusal.UNAUTHORIZED, "The token is not valid or has expired. Request a new one."
            ) from None
        return customer_caller(customer.org, customer.user), customer.expires_at - time.time()
