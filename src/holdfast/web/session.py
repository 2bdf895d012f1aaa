"""Sessions: a browser is a guest with a signed cookie, or a customer whom the merchant's own site has identified."""

import math
import secrets
import time
from datetime import datetime
from typing import Final

import jwt
from jwt.types import Options
from msgspec import Struct, ValidationError, convert, structs, to_builtins

from holdfast.runtime import ids
from holdfast.runtime.shared_secrets import Keyring, SecretValue

COOKIE: Final = "holdfast"
# Browsers accept a cookie with this prefix only from this host and over TLS, so no other host of the domain can set it.
HOST_PREFIX: Final = "__Host-"
# A session ends this long after its last visit or its last event, whichever is later.
SESSION_SECONDS: Final = 30 * 86_400
# No browser keeps a cookie for longer.
SESSION_SECONDS_MAX: Final = 400 * 86_400
# A visit extends the session, but at most once in this time, so that few requests write a cookie.
RENEWAL_SECONDS: Final = 86_400
# Browsers drop cookies of more than 4,096 bytes, attributes included.
COOKIE_CHARS_MAX: Final = 3_800
# A customer stays signed in long enough to pay, even if the token that brought them expires sooner.
CUSTOMER_SECONDS: Final = 12 * 3600
CUSTOMERS_MAX: Final = 10
# For how many mailboxes one browser can recover bookings, in all orgs together.
RECOVERIES_MAX: Final = 5
_ALGORITHM: Final = "HS256"
_AUDIENCE: Final = "session"


class SignedInCustomer(Struct, frozen=True):
    user: str
    until: int


class Recovery(Struct, frozen=True):
    """The browser has used a link that Holdfast mailed to this address, so it can see the bookings that guests had made
    with the address by then. It cannot see later ones, because the browser may belong to somebody else."""

    org: str
    email: str
    at: int


class Session(Struct, frozen=True):
    """`customers` names the user that this browser is signed in as, by org id. `needed_until` is when the guest's last
    event is over. `recoveries` come in the order in which they happened."""

    guest: str
    customers: dict[str, SignedInCustomer] = {}
    language: str | None = None
    needed_until: int = 0
    recoveries: tuple[Recovery, ...] = ()

    def user(self, org: bytes) -> str:
        return self.customer(org) or f"guest-{self.guest}"

    def customer(self, org: bytes) -> str | None:
        """The user that this browser is signed in as. None: it is a guest."""
        customer = self.customers.get(ids.format_org_id(org))
        return customer.user if customer and customer.until > time.time() else None

    def sign_in(self, org: bytes, user: str) -> "Session":
        """This session, signed in to the org. It forgets the oldest orgs when there are too many."""
        now = int(time.time())
        current = {name: customer for name, customer in self.customers.items() if customer.until > now}
        newest = dict(list(current.items())[-(CUSTOMERS_MAX - 1) :])
        signed_in = SignedInCustomer(user, now + CUSTOMER_SECONDS)
        return structs.replace(self, customers={**newest, ids.format_org_id(org): signed_in})

    def recover(self, org: bytes, email: str, at: datetime) -> "Session":
        """This session, with the bookings of an address. It forgets the oldest addresses when there are too many."""
        recovery = Recovery(ids.format_org_id(org), email, math.ceil(at.timestamp()))
        others = [each for each in self.recoveries if (each.org, each.email) != (recovery.org, email)]
        return structs.replace(self, recoveries=(*others[-(RECOVERIES_MAX - 1) :], recovery))

    def forget_recoveries(self, org: bytes) -> "Session":
        forgotten = self.recoveries_in(org)
        return structs.replace(self, recoveries=tuple(each for each in self.recoveries if each not in forgotten))

    def recoveries_in(self, org: bytes) -> tuple[Recovery, ...]:
        return tuple(recovery for recovery in self.recoveries if recovery.org == ids.format_org_id(org))

    def keep_until(self, at: datetime) -> "Session":
        """This session, with a booking for an event that ends at this time."""
        return structs.replace(self, needed_until=max(self.needed_until, int(at.timestamp())))


class Cookie(Struct, frozen=True):
    """A session as the browser sent it. A stale one should be signed again."""

    session: Session
    is_stale: bool


class _Claims(Struct, frozen=True):
    session: Session
    iat: int


def new_session() -> Session:
    return Session(secrets.token_hex(16))


def cookie_name(*, is_https: bool) -> str:
    return f"{HOST_PREFIX}{COOKIE}" if is_https else COOKIE


def seconds_left(session: Session) -> int:
    """How long a session lasts from now if its browser does not come back."""
    return min(max(session.needed_until - int(time.time()), 0) + SESSION_SECONDS, SESSION_SECONDS_MAX)


def write_cookie(session: Session, secret: SecretValue) -> str:
    """Sign the session. If the cookie would be too long, drop the orgs that the browser signed in to first, then the
    oldest recoveries. A buyer can repeat both."""
    now = int(time.time())
    claims = {"session": to_builtins(session), "aud": _AUDIENCE, "iat": now, "exp": now + seconds_left(session)}
    text = jwt.encode(claims, secret.value, algorithm=_ALGORITHM, headers={"kid": str(secret.number)})
    if len(text) <= COOKIE_CHARS_MAX or not (session.customers or session.recoveries):
        return text
    return write_cookie(_without_oldest(session), secret)


def _without_oldest(session: Session) -> Session:
    if session.customers:
        return structs.replace(session, customers=dict(list(session.customers.items())[1:]))
    return structs.replace(session, recoveries=session.recoveries[1:])


def read_cookie(text: str, keyring: Keyring) -> Cookie | None:
    """None if we did not sign the cookie, or not in this form, or if the session has ended."""
    try:
        secret = _secret_of(text, keyring)
        # The clock of the process that signed it may be ahead, so the time of the signature refuses nothing.
        options: Options = {"require": ["exp", "iat"], "verify_iat": False}
        claims = jwt.decode(text, secret.value, algorithms=[_ALGORITHM], audience=_AUDIENCE, options=options)
        cookie = convert(claims, _Claims)
    except (jwt.InvalidTokenError, ValidationError):
        return None
    is_stale = secret.number < keyring.signing.number or cookie.iat + RENEWAL_SECONDS < time.time()
    return Cookie(cookie.session, is_stale)


def _secret_of(text: str, keyring: Keyring) -> SecretValue:
    number = jwt.get_unverified_header(text).get("kid", "")
    secret = keyring.find(int(number)) if number.isdecimal() and len(number) < 10 else None
    if secret is None:
        raise jwt.InvalidTokenError
    return secret
