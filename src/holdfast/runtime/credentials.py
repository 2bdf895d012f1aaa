"""Orgs, the secret keys of their staff, and the signed tokens of their customers."""

import hashlib
import math
import re
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import jwt
from msgspec import Struct

from holdfast import sql
from holdfast.core.quotas import KEYS_MAX
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import FastStrEnum
from holdfast.runtime import ids
from holdfast.runtime.db import Database

KEY_PREFIX: Final = "hf_sk_"
# Holdfast accepts no other algorithm, even if the header of a token names one.
ALGORITHM: Final = "HS256"
AUDIENCE: Final = "holdfast"
# Older tokens name no secret: an org had only one when Holdfast signed them.
FIRST_SECRET: Final = 1


class Role(FastStrEnum):
    ADMIN = "admin"
    SALES = "sales"
    REVIEW = "review"
    DOOR = "door"
    CUSTOMER = "customer"


class InvalidTokenError(Exception):
    """The token is invalid or has expired."""


class Customer(Struct, frozen=True):
    """The holder of a customer token, when the token expires, and what tells it from every other token."""

    org: bytes
    user: str
    expires_at: float
    token_hash: bytes


class TokenSecretRow(Struct, frozen=True):
    secret: bytes
    number: int


async def create_org(database: Database, slug: str, name: str | None = None) -> bytes | None:
    """Returns the id of the new org, or None if the slug is taken."""
    org: bytes | None = await database.shared.fetchval(
        sql.credentials.insert_org, ids.new_id(), slug, name or slug, secrets.token_bytes(32)
    )
    return org


async def create_key(database: Database, org: bytes, role: Role, events: Sequence[bytes] | None = None) -> str:
    """Returns a new secret key. Nobody can read it again, because the database stores only its hash. A door key can be
    bound to `events` of the org."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    prefix = key[: len(KEY_PREFIX) + 6]
    inserted = await database.org(org).execute(
        *sql.credentials.insert_key(
            hash=hash_key(key), org=org, prefix=prefix, role=role, events=events, keys_max=KEYS_MAX
        )
    )
    if inserted == "INSERT 0 0":
        raise RefusedError(Refusal.LIMIT_REACHED, f"An org may have at most {KEYS_MAX} valid keys. Revoke one first.")
    return key


def hash_key(key: str) -> bytes:
    """A plain hash is enough, because keys are too long and random to guess."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


async def sign_customer_token(database: Database, org: bytes, user: str, ttl_seconds: int) -> tuple[str, datetime]:
    """Returns the token and when it expires."""
    row = await database.org(org).row(TokenSecretRow, sql.credentials.token_secret, org)
    assert row is not None
    expires_at = math.ceil(time.time()) + ttl_seconds
    # Without an id, two tokens for the same user from the same second would be equal.
    claims = {"sub": user, "aud": AUDIENCE, "exp": expires_at, "jti": secrets.token_urlsafe(12)}
    key_id = f"{ids.format_org_id(org)}.{row.number}"
    token = jwt.encode(claims, row.secret, algorithm=ALGORITHM, headers={"kid": key_id})
    return token, datetime.fromtimestamp(expires_at, UTC)


async def read_customer_token(database: Database, token: str) -> Customer:
    try:
        org, number = _read_key_id(token)
        secret = await database.org(org).fetchval(sql.credentials.token_secret_of, org, number)
        if secret is None:
            raise jwt.InvalidTokenError
        claims = jwt.decode(
            token, secret, algorithms=[ALGORITHM], audience=AUDIENCE, options={"require": ["exp", "sub", "aud"]}
        )
    except jwt.InvalidTokenError:
        raise InvalidTokenError from None
    # Hash the signed part only: the last character of a signature has spare bits, so it has several spellings.
    return Customer(org, claims["sub"], claims["exp"], hash_key(token.rpartition(".")[0]))


async def use_customer_token(database: Database, customer: Customer) -> bool:
    """Returns whether this is the first use. Only sign-ins on pages use a token up; the API accepts it until it
    expires."""
    used = await database.shared.fetchval(sql.credentials.use_token, customer.token_hash, customer.expires_at)
    return used is not None


async def is_token_used(database: Database, customer: Customer) -> bool:
    used: bool = await database.shared.fetchval(sql.credentials.is_token_used, customer.token_hash)
    return used


async def rotate_token_secret(database: Database, org: bytes, overlap_seconds: float) -> None:
    """Sign the org's tokens with a new secret. Tokens with earlier signatures stay valid during the overlap."""
    async with database.org(org).transaction() as scope:
        await scope.execute(sql.credentials.keep_token_secret, org, overlap_seconds)
        await scope.execute(sql.credentials.replace_token_secret, org, secrets.token_bytes(32))
        await scope.execute(sql.credentials.delete_expired_token_secrets, org)


def _read_key_id(token: str) -> tuple[bytes, int]:
    """The org and the number of its secret that the header claims. The claim is proven when that secret verifies the
    signature."""
    kid = jwt.get_unverified_header(token).get("kid")
    org_id, _, number = kid.partition(".") if isinstance(kid, str) else ("", "", "")
    org = ids.parse_org_id(org_id)
    if org is None or not re.fullmatch(r"|[1-9][0-9]{0,8}", number):
        raise jwt.InvalidTokenError
    return org, int(number or FIRST_SECRET)
