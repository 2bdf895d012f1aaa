"""Changes to seats, as the script `apply` takes them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct, json, structs

from holdfast.core.booking import Booking
from holdfast.core.journal import EXTENDED, SEAT_STATE_BY_STATUS, TRANSFERRED, JournalEntry
from holdfast.core.layout import Layout
from holdfast.core.states import TIMED, Status
from holdfast.gate import lua
from holdfast.gate.entries import (
    AHEAD_MAX,
    FREE_MS,
    KEPT_MS,
    Change,
    Claim,
    EventKeys,
    client_id,
    format_time,
    keep_ms,
    request_id,
    user_id,
)
from holdfast.gate.redis_client import Command
from holdfast.gate.user_hash import hash_user
from holdfast.runtime import ids
from holdfast.runtime.shared_secrets import SecretValue

# Before the seats, the script gets three other keys.
FIRST_SEAT_KEY: Final = 4


class BookedSeats(Struct, frozen=True):
    """A booking as the gate sees it, with the labels of its seats."""

    id: bytes
    user: str
    status: Status
    request_key: bytes
    client: bytes | None
    created_at: datetime
    expires_at: datetime | None
    version: int
    seats: list[str]


def booked_seats(booking: Booking, layout: Layout) -> BookedSeats:
    return BookedSeats(
        booking.id,
        booking.user,
        booking.status,
        booking.request_key,
        booking.client,
        booking.created_at,
        booking.expires_at,
        booking.version,
        [layout.seats[line.seat].label for line in booking.lines if line.seat is not None],
    )


def changes_seats(entry: JournalEntry) -> bool:
    return bool(entry.data.seats) or entry.kind in (EXTENDED, TRANSFERRED)


class ChangeBuilder:
    """Collects the changes to the seats of one event."""

    def __init__(self, org: bytes, event: bytes, secret: SecretValue, now: datetime) -> None:
        self.now = format_time(now)
        self._now = now
        self._org = org
        self._event = event
        self._secret = secret
        self._seat_keys: dict[str, int] = {}
        self._claims: list[Claim] = []
        self._ids: set[str] = set()
        self._next_expiry: datetime | None = None

    @property
    def size(self) -> int:
        return len(self._seat_keys) + len(self._ids)

    def add_buyer(self, user: str, request_key: bytes, client: bytes | None) -> str:
        """Returns the hash of the user."""
        hashed = hash_user(self._secret, self._org, user)
        self._ids.add(user_id(hashed))
        self._ids.add(request_id(request_key))
        if client is not None:
            self._ids.add(client_id(client))
        return hashed

    def add_booking(self, booking: BookedSeats) -> None:
        hashed = self.add_buyer(booking.user, booking.request_key, booking.client)
        expires_at = booking.expires_at if booking.status in TIMED else None
        if expires_at is not None and (self._next_expiry is None or expires_at < self._next_expiry):
            self._next_expiry = expires_at
        if booking.seats:
            state = SEAT_STATE_BY_STATUS[booking.status]
            self._claims.append(
                Claim(
                    self._number_keys(booking.seats),
                    state,
                    ids.format_booking_id(self._event, booking.id),
                    hashed,
                    format_time(booking.created_at),
                    format_time(expires_at) if expires_at is not None else None,
                    booking.version,
                    FREE_MS if state == "free" else keep_ms(expires_at, self._now),
                )
            )

    def add_part(self, generation: str, number: int) -> None:
        """Leave a mark that this part of a build has been written."""
        self._ids.add(f"part:{generation}:{number}")

    def release(self, booking: bytes, labels: Sequence[str]) -> None:
        """Remove the pending entries of a hold that the engine refused."""
        id_ = ids.format_booking_id(self._event, booking)
        self._claims.append(Claim(self._number_keys(labels), "free", id_))

    def command(self, change: Change) -> Command:
        """The script call with everything added so far."""
        expiry = format_time(self._next_expiry) if self._next_expiry is not None else None
        change = structs.replace(
            change,
            secret=self._secret.number,
            ids=list(self._ids),
            claims=self._claims,
            next_expiry=change.next_expiry or expiry,
        )
        keys = EventKeys(self._org, self._event)
        all_keys = (keys.state, keys.known, keys.ahead, *map(keys.seat, self._seat_keys))
        return ("EVAL", lua.APPLY, len(all_keys), *all_keys, json.encode(change), KEPT_MS, AHEAD_MAX)

    def _number_keys(self, labels: Sequence[str]) -> list[int]:
        return [self._seat_keys.setdefault(label, FIRST_SEAT_KEY + len(self._seat_keys)) for label in labels]
