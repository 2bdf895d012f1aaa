"""A proof of work before each hold of a guest, for hot events. A thousand fresh cookies cost a bot a thousand times the
work of one.

The server gives a browser a challenge: a seed that it signed for this event and this guest. The browser looks for a
number such that SHA-256 of `<seed>:<number>` starts with enough zero bits. The server stores nothing. A solution is
valid for one hold, because it becomes the idempotency key of the hold.
"""

import hashlib
import hmac
import secrets
import time
from typing import Final

from msgspec import Struct

from holdfast.runtime.shared_secrets import Keyring
from holdfast.web.page_problems import PageError, PageProblem

# Long enough to choose seats, and short enough that nobody can stock up for an on-sale.
CHALLENGE_SECONDS: Final = 600
# By how much the clocks of two servers may differ.
SKEW_SECONDS: Final = 60
SEED_BYTES: Final = 16
NUMBER_DIGITS_MAX: Final = 16

CHECK_FAILED: Final = PageProblem(403, "check_failed")
CHECK_EXPIRED: Final = PageProblem(403, "check_expired")


class Challenge(Struct, frozen=True):
    """`issued_at` and `salt` come back with the solution, and the server recomputes the seed from them."""

    seed: str
    issued_at: int
    salt: str
    bits: int


def new_challenge(keyring: Keyring, event: str, guest: str, bits: int) -> Challenge:
    issued_at, salt = int(time.time()), secrets.token_hex(8)
    return Challenge(_seed(keyring.signing.value, event, guest, issued_at, salt), issued_at, salt, bits)


def verify_solution(keyring: Keyring, event: str, guest: str, bits: int, fields: dict[str, str]) -> str:
    """The seed of the challenge. Raises `PageError` unless this guest has solved it for this event."""
    issued_at, salt, number = (fields.get(name, "") for name in ("check_issued_at", "check_salt", "check_number"))
    if not _is_number(issued_at) or not _is_number(number) or len(salt) > SEED_BYTES:
        raise PageError(CHECK_FAILED)
    seeds = [_seed(secret.value, event, guest, int(issued_at), salt) for secret in keyring.values]
    seed = next((seed for seed in seeds if has_zero_bits(seed, number, bits)), None)
    if seed is None:
        raise PageError(CHECK_FAILED)
    if not -SKEW_SECONDS <= time.time() - int(issued_at) <= CHALLENGE_SECONDS:
        raise PageError(CHECK_EXPIRED)
    return seed


def has_zero_bits(seed: str, number: str, bits: int) -> bool:
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> (32 - bits) == 0


def _seed(secret: bytes, event: str, guest: str, issued_at: int, salt: str) -> str:
    text = "\0".join(("guest check", event, guest, str(issued_at), salt))
    return hmac.new(secret, text.encode(errors="replace"), hashlib.sha256).hexdigest()[: 2 * SEED_BYTES]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX
