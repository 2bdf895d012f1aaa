"""Who does something, as the journal names them.

The journal cannot change, and people have a right to be forgotten. So it has people under pseudonyms: hashes that are
keyed with a secret of the event. Whoever knows a user's id and the secret can recognise the user. Once either is gone,
nobody can.
"""

from hashlib import sha256
from typing import Final

# The actor of a customer is this prefix, followed by the user.
CUSTOMER_ACTOR: Final = "user:"
# The actor of staff in Telegram is this prefix, followed by their Telegram id.
STAFF_ACTOR: Final = "telegram:"
# The bot acts on nobody's behalf.
BOT_ACTOR: Final = f"{STAFF_ACTOR}bot"
KEY_BYTES: Final = 32
_PSEUDONYM_DIGITS: Final = 32


def journal_actor(key: bytes, actor: str) -> str:
    """The actor under which the journal of an event knows whoever does something. `key` is the event's secret. A person
    gets the prefix of their kind and a pseudonym; every other actor stays as it is."""
    if actor.startswith(CUSTOMER_ACTOR):
        prefix = CUSTOMER_ACTOR
    elif actor.startswith(STAFF_ACTOR) and actor != BOT_ACTOR:
        prefix = STAFF_ACTOR
    else:
        return actor
    # Truncating the hash makes it impossible to extend it, so it needs no HMAC.
    return prefix + sha256(key + actor.encode()).hexdigest()[:_PSEUDONYM_DIGITS]


def reveal_customer(key: bytes, actor: str, user: str | None) -> str:
    """The actor of an entry with the user's own id, if the entry's actor is this user. Otherwise, as it is stored."""
    if user is None:
        return actor
    revealed = f"{CUSTOMER_ACTOR}{user}"
    return revealed if journal_actor(key, revealed) == actor else actor
