"""What Redis holds for an event, and the names of its keys.

- `…:seat:<label>` is a JSON document for each seat that somebody holds, has bought, or is about to hold.
- `…:state` records how current the copy is: the journal version and the time that it has reached.
- `…:ahead` holds commits that reached Redis before an earlier one, each under the version that precedes it.
- `…:known` is a set of hashes: every user, request key and client address that has a booking in the event.
- `…:passed:<number>` holds the same hashes for everyone whom Redis let through to the engine in one time window.
"""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

from holdfast.core.journal import SeatState
from holdfast.runtime import ids

# A hold that has reached Redis but not yet PostgreSQL blocks its seats for this long.
PENDING_SECONDS: Final = 3.0
# Redis refuses holds in an event only if its copy is at most this old.
CURRENT_SECONDS: Final = 3.0
# Redis drops an entry this long after its deadline. Scripts ignore it from the deadline on.
HYGIENE_SECONDS: Final = 60
# A released seat leaves a tombstone with its version for this long, so that a late message about the earlier booking
# has no effect.
FREE_MS: Final = 10_000
# Redis remembers for at least this long whom it has let through. By then, their bookings are in the journal.
PASSED_SECONDS: Final = 10
# How many commits may wait for an earlier one.
AHEAD_MAX: Final = 100
# How long Redis keeps the entries of sold seats, and its copy of an event that nobody asks for.
KEPT_SECONDS: Final = 3600
KEPT_MS: Final = KEPT_SECONDS * 1000

EntryState = Literal["pending", "held", "sold", "free"]


class SeatEntry(Struct, frozen=True, kw_only=True):
    """The value of a seat's key. `version` is that of the journal entry it comes from. Scripts ignore entries whose
    `generation` is not the event's."""

    user_id: str
    booking: str
    state: EntryState
    held_at: str
    expires_at: str | None
    version: int
    generation: str


class Claim(Struct, frozen=True):
    """The new state of a booking's seats. `keys` are their indexes in the script's KEYS."""

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

    A change that `is_followed` comes from the journal, and applies only if Redis is exactly at version `after`.
    `is_complete`: the journal has no later entries. `next_expiry` is the earliest deadline of the holds in the change.
    `pools` has the units that were left at `pools_version`. A change with a `generation` applies only to that one.
    `secret` is the number of the secret that hashes users; Redis rejects a change whose secret is not the event's."""

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
        """The keys for everyone let through in the current time window, and in the previous one."""
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
