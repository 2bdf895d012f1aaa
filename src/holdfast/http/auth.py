"""Who is calling: secret keys of an org's staff, and signed tokens of its customers."""

import hashlib
import math
import secrets
import time
from datetime import UTC, datetime
from typing import Final

import jwt
from msgspec import Struct

from holdfast import ids, sql
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import Word
from holdfast.db import Connection, Pool

KEY_PREFIX: Final = "hf_sk_"
# A revoked key is refused at the latest after this time.
REMEMBER_SECONDS: Final = 5.0
CALLERS_MAX: Final = 50_000
# The one algorithm a customer token may be signed with, whatever its header says.
ALGORITHM: Final = "HS256"
AUDIENCE: Final = "holdfast"


class Role(Word):
    ADMIN = "admin"
    SALES = "sales"
    REVIEW = "review"
    DOOR = "door"
    CUSTOMER = "customer"


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
        row = await self._pool.fetchrow(sql.access.key, hash_key(token))
        if row is None:
            raise RefusedError(Refusal.UNAUTHORIZED, "The key is unknown or was revoked.")
        return Caller(row["org_id"], Role(row["role"]), f"key:{row['prefix']}"), REMEMBER_SECONDS

    async def _by_customer_token(self, token: str) -> tuple[Caller, float]:
        try:
            org = _org_of(token)
            secret = await self._pool.fetchval(sql.access.token_secret, org)
            if secret is None:
                raise jwt.InvalidTokenError
            claims = jwt.decode(
                token,
                secret,
                algorithms=[ALGORITHM],
                audience=AUDIENCE,
                options={"require": ["exp", "sub", "aud"]},
            )
        except jwt.InvalidTokenError:
            raise RefusedError(Refusal.UNAUTHORIZED, "The token is not valid or has expired.") from None
        user = claims["sub"]
        return Caller(org, Role.CUSTOMER, f"user:{user}", user), claims["exp"] - time.time()


def _org_of(token: str) -> bytes:
    """The org whose secret has to have signed the token; what a header claims is proven by the signature alone."""
    kid = jwt.get_unverified_header(token).get("kid")
    org = ids.parse_org(kid) if isinstance(kid, str) else None
    if org is None:
        raise jwt.InvalidTokenError
    return org


async def customer_token(pool: Pool, org: bytes, user: str, ttl_seconds: int) -> tuple[str, datetime]:
    secret = await pool.fetchval(sql.access.token_secret, org)
    expires_at = math.ceil(time.time()) + ttl_seconds
    claims = {"sub": user, "aud": AUDIENCE, "exp": expires_at}
    token = jwt.encode(claims, secret, algorithm=ALGORITHM, headers={"kid": ids.org_text(org)})
    return token, datetime.fromtimestamp(expires_at, UTC)


async def create_org(connection: Connection, slug: str, name: str | None = None) -> bytes | None:
    """The id of the new org, or None if the slug is taken."""
    found: bytes | None = await connection.fetchval(
        sql.access.insert_org, ids.new_id(), slug, name or slug, secrets.token_bytes(32)
    )
    return found


async def create_key(connection: Connection, org: bytes, role: Role) -> str:
    """A new secret key. It cannot be shown again: only its hash is stored."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    await connection.execute(sql.access.insert_key, hash_key(key), org, key[: len(KEY_PREFIX) + 6], role)
    return key


def hash_key(key: str) -> bytes:
    """Keys are long and random, so a plain hash is enough: there is nothing to guess."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
