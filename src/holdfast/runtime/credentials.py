"""Orgs, the secret keys of their staff, and the signed tokens of their customers."""

import hashlib
import math
import secrets
import time
from datetime import UTC, datetime
from typing import Final

import jwt
from msgspec import Struct

from holdfast import sql
from holdfast.core.states import FastStrEnum
from holdfast.runtime import ids
from holdfast.runtime.db import Connection, Pool

KEY_PREFIX: Final = "hf_sk_"
# The one algorithm a customer token may be signed with, whatever its header says.
ALGORITHM: Final = "HS256"
AUDIENCE: Final = "holdfast"


class Role(FastStrEnum):
    ADMIN = "admin"
    SALES = "sales"
    REVIEW = "review"
    DOOR = "door"
    CUSTOMER = "customer"


class InvalidTokenError(Exception):
    """The token is not valid or has expired."""


class Customer(Struct, frozen=True):
    """Whom a customer token speaks for, and until when."""

    org: bytes
    user: str
    expires_at: float


async def create_org(connection: Connection, slug: str, name: str | None = None) -> bytes | None:
    """The id of the new org, or None if the slug is taken."""
    found: bytes | None = await connection.fetchval(
        sql.credentials.insert_org, ids.new_id(), slug, name or slug, secrets.token_bytes(32)
    )
    return found


async def create_key(connection: Connection, org: bytes, role: Role) -> str:
    """A new secret key. It cannot be shown again: only its hash is stored."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    await connection.execute(sql.credentials.insert_key, hash_key(key), org, key[: len(KEY_PREFIX) + 6], role)
    return key


def hash_key(key: str) -> bytes:
    """Keys are long and random, so a plain hash is enough: there is nothing to guess."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


async def customer_token(pool: Pool | Connection, org: bytes, user: str, ttl_seconds: int) -> tuple[str, datetime]:
    secret = await pool.fetchval(sql.credentials.token_secret, org)
    expires_at = math.ceil(time.time()) + ttl_seconds
    claims = {"sub": user, "aud": AUDIENCE, "exp": expires_at}
    token = jwt.encode(claims, secret, algorithm=ALGORITHM, headers={"kid": ids.format_org_id(org)})
    return token, datetime.fromtimestamp(expires_at, UTC)


async def read_customer_token(pool: Pool, token: str) -> Customer:
    try:
        org = _org_of(token)
        secret = await pool.fetchval(sql.credentials.token_secret, org)
        if secret is None:
            raise jwt.InvalidTokenError
        claims = jwt.decode(
            token, secret, algorithms=[ALGORITHM], audience=AUDIENCE, options={"require": ["exp", "sub", "aud"]}
        )
    except jwt.InvalidTokenError:
        raise InvalidTokenError from None
    return Customer(org, claims["sub"], claims["exp"])


def _org_of(token: str) -> bytes:
    """The org whose secret has to have signed the token; what a header claims is proven by the signature alone."""
    kid = jwt.get_unverified_header(token).get("kid")
    org = ids.parse_org_id(kid) if isinstance(kid, str) else None
    if org is None:
        raise jwt.InvalidTokenError
    return org
