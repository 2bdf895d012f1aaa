"""Who a browser is: a guest with a signed cookie, or a customer whom the merchant's own site has handed over."""

import hashlib
import hmac
import secrets
import time
from typing import Final

import jwt
from msgspec import Struct, ValidationError, convert, structs, to_builtins

from holdfast.runtime import ids

COOKIE: Final = "holdfast"
COOKIE_SECONDS: Final = 365 * 86_400
# Browsers keep none that is longer, with its name and all that is said about it.
COOKIE_CHARS_MAX: Final = 3_800
# How long a customer who was handed over stays one: long enough to pay, whatever the token's own end.
CUSTOMER_SECONDS: Final = 12 * 3600
CUSTOMERS_MAX: Final = 10
_ALGORITHM: Final = "HS256"
_AUDIENCE: Final = "visit"


class KnownCustomer(Struct, frozen=True):
    user: str
    until: int


class Session(Struct, frozen=True):
    """`customers` are the orgs, by id, to which this browser is somebody by name."""

    guest: str
    customers: dict[str, KnownCustomer] = {}
    language: str | None = None

    def user(self, org: bytes) -> str:
        known = self.customers.get(ids.format_org_id(org))
        return known.user if known and known.until > time.time() else f"guest-{self.guest}"

    def handed_over(self, org: bytes, user: str) -> "Session":
        now = int(time.time())
        others = {name: known for name, known in self.customers.items() if known.until > now}
        newest = dict(list(others.items())[-(CUSTOMERS_MAX - 1) :])
        return structs.replace(
            self, customers={**newest, ids.format_org_id(org): KnownCustomer(user, now + CUSTOMER_SECONDS)}
        )


def new_session() -> Session:
    return Session(secrets.token_hex(16))


def write_cookie(session: Session, secret: bytes) -> str:
    """Who has come from more sites than there is room for is a guest again at those left longest ago."""
    text = jwt.encode({"visit": to_builtins(session), "aud": _AUDIENCE}, secret, algorithm=_ALGORITHM)
    if len(text) <= COOKIE_CHARS_MAX or not session.customers:
        return text
    newer = dict(list(session.customers.items())[1:])
    return write_cookie(structs.replace(session, customers=newer), secret)


def read_cookie(text: str, secret: bytes) -> Session | None:
    """None for a cookie that we have not signed, or not in this form."""
    try:
        claims = jwt.decode(text, secret, algorithms=[_ALGORITHM], audience=_AUDIENCE)
        return convert(claims.get("visit"), Session)
    except (jwt.InvalidTokenError, ValidationError):
        return None


def form_token(session: Session, secret: bytes) -> str:
    """What a form has to carry, so that only a page that this browser was given can send it."""
    return hmac.new(secret, b"form\0" + session.guest.encode(), hashlib.sha256).hexdigest()[:32]
