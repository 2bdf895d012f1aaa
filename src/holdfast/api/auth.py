"""Who is calling: staff with a secret key of their org, or one of its customers with a signed token."""

import time
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.runtime.credentials import KEY_PREFIX, InvalidTokenError, Role, hash_key, read_customer_token
from holdfast.runtime.db import Database, Pool

# A revoked key is refused at the latest after this time.
REMEMBER_SECONDS: Final = 5.0
CALLERS_MAX: Final = 50_000


class Caller(Struct, frozen=True):
    """`user` is set for customers, who may see and do only what is their own."""

    org: bytes
    role: Role
    actor: str
    user: str | None = None


class Callers:
    """Tells callers by their tokens, and remembers them for a few seconds."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[str, tuple[float, Caller]] = {}

    def recall(self, token: str) -> Caller | None:
        known = self._known.get(token)
        return known[1] if known is not None and known[0] > time.monotonic() else None

    async def identify(self, token: str) -> Caller:
        caller, seconds = await (
            self._by_key(token) if token.startswith(KEY_PREFIX) else self._by_customer_token(token)
        )
        if len(self._known) >= CALLERS_MAX:
            self._known.clear()
        self._known[token] = (time.monotonic() + min(seconds, REMEMBER_SECONDS), caller)
        return caller

    async def _by_key(self, token: str) -> tuple[Caller, float]:
        row = await self._pool.fetchrow(sql.credentials.key, hash_key(token))
        if row is None:
            raise RefusedError(Refusal.UNAUTHORIZED, "The key is unknown or was revoked.")
        return Caller(row["org_id"], Role(row["role"]), f"key:{row['prefix']}"), REMEMBER_SECONDS

    async def _by_customer_token(self, token: str) -> tuple[Caller, float]:
        try:
            customer = await read_customer_token(Database(self._pool), token)
        except InvalidTokenError:
            raise RefusedError(Refusal.UNAUTHORIZED, "The token is not valid or has expired.") from None
        caller = Caller(customer.org, Role.CUSTOMER, f"user:{customer.user}", customer.user)
        return caller, customer.expires_at - time.time()
