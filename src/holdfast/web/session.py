"""Sessions: a browser is a guest with a signed cookie, or a customer whom the merchant's own site has identified."""

import secrets
import time
from typing import Final

import jwt
from msgspec import Struct, ValidationError, convert, structs, to_builtins

from holdfast.runtime import ids

COOKIE: Final = "holdfast"
COOKIE_SECONDS: Final = 365 * 86_400
# Browsers drop cookies of more than 4,096 bytes, attributes included.
COOKIE_CHARS_MAX: Final = 3_800
# A customer stays signed in long enough to pay, even if the token that brought them expires sooner.
CUSTOMER_SECONDS: Final = 12 * 3600
CUSTOMERS_MAX: Final = 10
_ALGORITHM: Final = "HS256"
_AUDIENCE: Final = "session"


class SignedInCustomer(Struct, frozen=True):
    user: str
    until: int


class Session(Struct, frozen=True):
    """`customers` names the user that this browser is signed in as, by org id."""

    guest: str
    customers: dict[str, SignedInCustomer] = {}
    language: str | None = None

    def user(self, org: bytes) -> str:
        customer = self.customers.get(ids.format_org_id(org))
        return customer.user if customer and customer.until > time.time() else f"guest-{self.guest}"

    def sign_in(self, org: bytes, user: str) -> "Session":
        """This session, signed in to the org. It forgets the oldest orgs when there are too many."""
        now = int(time.time())
        current = {name: customer for name, customer in self.customers.items() if customer.until > now}
        newest = dict(list(current.items())[-(CUSTOMERS_MAX - 1) :])
        signed_in = SignedInCustomer(user, now + CUSTOMER_SECONDS)
        return structs.replace(self, customers={**newest, ids.format_org_id(org): signed_in})


def new_session() -> Session:
    return Session(secrets.token_hex(16))


def write_cookie(session: Session, secret: bytes) -> str:
    """Sign the session. If the cookie would be too long, drop the orgs that the browser signed in to first."""
    text = jwt.encode({"session": to_builtins(session), "aud": _AUDIENCE}, secret, algorithm=_ALGORITHM)
    if len(text) <= COOKIE_CHARS_MAX or not session.customers:
        return text
    newer = dict(list(session.customers.items())[1:])
    return write_cookie(structs.replace(session, customers=newer), secret)


def read_cookie(text: str, secret: bytes) -> Session | None:
    """None if we did not sign the cookie, or not in this form."""
    try:
        claims = jwt.decode(text, secret, algorithms=[_ALGORITHM], audience=_AUDIENCE)
        return convert(claims.get("session"), Session)
    except (jwt.InvalidTokenError, ValidationError):
        return None
