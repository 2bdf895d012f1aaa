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
from holdfast.runtime.db import Database

KEY_PREFIX: Final = "hf_sk_"
# Holdfast accepts no other algorithm, even if the header of a token names one.
ALGORITHM: Final = "HS256"
AUDIENCE: Final = "holdfast"


class Role(FastStrEnum):
    ADMIN = "admin"
    SALES = "sales"
    REVIEW = "review"
    DOOR = "door"
    CUSTOMER = "customer"


class InvalidTokenError(Exception):
    """The token is invalid or has expired."""


class Customer(Struct, frozen=True):
    """The holder of a customer token, and when the token expires."""

    org: bytes
    user: str
    expires_at: float


async def create_org(database: Database, slug: str, name: str | None = None) -> bytes | None:
    """Returns the id of the new org, or None if the slug is taken."""
    org: bytes | None = await database.shared.fetchval(
        sql.credentials.insert_org, ids.new_id(), slug, name or slug, secrets.token_bytes(32)
    )
    return org


async def create_key(database: Database, org: bytes, role: Role) -> str:
    """Returns a new secret key. Nobody can read it again, because the database has only its hash."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    await database.org(org).execute(sql.credentials.insert_key, hash_key(key), org, key[: len(KEY_PREFIX) + 6], role)
    return key


def hash_key(key: str) -> bytes:
    """A plain hash is enough, because keys are too long and random to guess."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


async def sign_customer_token(database: Database, org: bytes, user: str, ttl_seconds: int) -> tuple[str, datetime]:
    """Returns the token and when it expires."""
    secret = await database.org(org).fetchval(sql.credentials.token_secret, org)
    expires_at = math.ceil(time.time()) + ttl_seconds
    claims = {"sub": user, "aud": AUDIENCE, "exp": expires_at}
    token = jwt.encode(claims, secret, algorithm=ALGORITHM, headers={"kid": ids.format_org_id(org)})
    return token, datetime.fromtimestamp(expires_at, UTC)


async def read_customer_token(database: Database, token: str) -> Customer:
    try:
        org = _read_org(token)
        secret = await database.org(org).fetchval(sql.credentials.token_secret, org)
        if secret is None:
            raise jwt.InvalidTokenError
        claims = jwt.decode(
            token, secret, algorithms=[ALGORITHM], audience=AUDIENCE, options={"require": ["exp", "sub", "aud"]}
        )
    except jwt.InvalidTokenError:
        raise InvalidTokenError from None
    return Customer(org, claims["sub"], claims["exp"])


def _read_org(token: str) -> bytes:
    """The org that the header claims. The claim is proven when that org's secret verifies the signature."""
    kid = jwt.get_unverified_header(token).get("kid")
    org = ids.parse_org_id(kid) if isinstance(kid, str) else None
    if org is None:
        raise jwt.InvalidTokenError
    return org
