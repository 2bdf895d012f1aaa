"""When the units of a pool take place."""

from datetime import datetime
from typing import Protocol

from msgspec import Struct


class Timed(Protocol):
    """An event or a pool, as the organiser set its times."""

    @property
    def starts_at(self) -> datetime | None: ...
    @property
    def ends_at(self) -> datetime | None: ...


class TimeSlot(Struct, frozen=True):
    """The time of a pool, or of its event if the pool has none."""

    starts_at: datetime
    ends_at: datetime | None
    is_of_pool: bool

    @property
    def shown_end(self) -> datetime | None:
        """Buyers see when a slot ends, because the next one begins then. For an event, they see only the start."""
        return self.ends_at if self.is_of_pool else None


def time_slot(event: Timed, pool: Timed | None) -> TimeSlot:
    if pool is not None and pool.starts_at is not None:
        return TimeSlot(pool.starts_at, pool.ends_at, is_of_pool=True)
    assert event.starts_at is not None
    return TimeSlot(event.starts_at, event.ends_at, is_of_pool=False)
