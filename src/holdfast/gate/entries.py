"""What Redis holds for an event, and the names of its keys.

- `…:seat:<label>` is a JSON document for each seat that somebody holds, has bought, or is about to hold.
- `…:state` says up to which version of the journal, and up to when, Redis knows the event.
- `…:ahead` has commits that have reached Redis before an earlier one: the version before each, and the one after.
- `…:known` is a set of hashes: every user, request key and client address that has a booking in the event.
- `…:passed:<number>` are the same hashes of those who were let through to the engine in one span of time.
"""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

from holdfast.core.journal import SeatState
from holdfast.runtime import ids

# A hold that has reached Redis but not yet PostgreSQL blocks its seats for this long.
PENDING_SECONDS: Final = 3.0
# Redis refuses holds in an event if it followed the journal up to this long ago.
CURRENT_SECONDS: Final = 3.0
# Redis drops an entry this long after its deadline. Scripts ignore it from the deadline on.
HYGIENE_SECONDS: Final = 60
# A released seat remembers its version for this long, so that a late message about the earlier booking has no effect.
FREE_MS: Final = 10_000
# Redis remembers for at least this long whom it has let through. By then, their bookings are in the journal.
PASSED_SECONDS: Final = 10
# How many commits may wait for an earlier one.
AHEAD_MAX: Final = 100
# How long Redis keeps entries of sold seats, and what it knows of an event that nobody asks for.
KEPT_SECONDS: Final = 3600
KEPT_MS: Final = KEPT_SECONDS * 1000

EntryState = Literal["pending", "held", "sold", "free"]


class SeatEntry(Struct, frozen=True, kw_only=True):
    """The value of a seat's key. `version` is the journal entry that it comes from; entries of another `generation`
    than the event's count for nothing."""

    user_id: str
    booking: str
    state: EntryState
    held_at: str
    expires_at: str | None
    version: int
    generation: str


class Claim(Struct, frozen=True):
    """What has become of the seats of a booking. `keys` are their numbers among the KEYS of the script."""

    keys: list[int]
    state: SeatState
    booking: str
    user_id: str = ""
    held_at: str = ""
    expires_at: str | None = None
    version: int = 0
    keep_ms: int = FREE_MS


class Change(Struct, frozen=True, kw_only=True):
    """Changes to an event, from version `after` to `version` of its journal.

    A change that `is_followed` comes from the journal, and fits only if Redis knows exactly the versions up to `after`;
    `is_complete` says that there are no later ones. `next_expiry` is the earliest deadline of the holds in it; `pools`
    has the units that were left at `pools_version`. With a `generation`, the change fits only that one. `secret` is the
    number of the secret that hashes users; a change with another one than the event's does not fit."""

    after: int = -1
    version: int = -1
    now: str
    secret: int = 0
    is_followed: bool = False
    is_complete: bool = False
    revision: int = 0
    generation: str | None = None
    next_expiry: str | None = None
    pools: dict[str, int] = {}
    pools_version: int = -1
    ids: list[str] = []
    claims: list[Claim] = []


class EventKeys:
    """The names of an event's keys. The event is their hash tag, so a cluster keeps them together."""

    def __init__(self, org: bytes, event: bytes) -> None:
        self.prefix = f"org:{ids.format_org_id(org)}:event:{{{ids.format_event_id(event)}}}:"
        self.state = self.prefix + "state"
        self.known = self.prefix + "known"
        self.ahead = self.prefix + "ahead"
        self.build = self.prefix + "build"

    def passed(self, now: datetime) -> tuple[str, str]:
        """Those who were let through in the span of time that it is now, and in the one before."""
        span = int(now.timestamp()) // PASSED_SECONDS
        return f"{self.prefix}passed:{span}", f"{self.prefix}passed:{span - 1}"

    def seat(self, label: str) -> str:
        return f"{self.prefix}seat:{label}"


@lru_cache(1_000)
def format_time(at: datetime) -> str:
    """RFC 3339 in UTC, always with milliseconds, so that scripts can compare times as text."""
    return at.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def keep_ms(expires_at: datetime | None, now: datetime) -> int:
    """For how long Redis keeps the entry of a seat that is taken until then."""
    if expires_at is None:
        return KEPT_MS
    left = (expires_at - now) / timedelta(milliseconds=1)
    return min(max(int(left), 0) + HYGIENE_SECONDS * 1000, 30 * 24 * KEPT_MS)


def user_id(hashed: str) -> str:
    """A user, a request key and a client address among the known buyers of an event."""
    return f"user:{hashed}"


def request_id(request_key: bytes) -> str:
    return f"key:{request_key.hex()}"


def client_id(client: bytes) -> str:
    return f"client:{client.hex()}"
