"""When an event, or one of its pools, is on sale."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from msgspec import UNSET, Struct, structs

from holdfast.core.refusals import Refusal, RefusedError


class SaleState(StrEnum):
    SOON = "soon"
    OPEN = "open"
    CLOSED = "closed"
    # A slot that has started. Its sales are closed too.
    BEGUN = "begun"


class SalesWindow(Struct, frozen=True):
    """Without `opens_at`, sales have always been open."""

    opens_at: datetime | None
    closes_at: datetime

    def state(self, now: datetime) -> SaleState:
        if self.opens_at is not None and now < self.opens_at:
            return SaleState.SOON
        return SaleState.CLOSED if now >= self.closes_at else SaleState.OPEN

    def check(self, now: datetime, conflicts: tuple[str, ...] = ()) -> None:
        state = self.state(now)
        if state is SaleState.SOON:
            assert self.opens_at is not None
            raise RefusedError(
                Refusal.NOT_ON_SALE_YET,
                f"Sales open at {self.opens_at.isoformat()}.",
                conflicts=conflicts,
                sales_open_at=self.opens_at,
            )
        if state is SaleState.CLOSED:
            raise RefusedError(
                Refusal.SALES_CLOSED, f"Sales closed at {self.closes_at.isoformat()}.", conflicts=conflicts
            )


class Schedule(Struct, frozen=True):
    """The times of an event or a pool, as the organiser set them."""

    starts_at: datetime | None = None
    ends_at: datetime | None = None
    sales_open_at: datetime | None = None
    sales_close_at: datetime | None = None


NO_SCHEDULE: Final = Schedule()


class Scheduled(Protocol):
    """A row or a request that has the times of an event or a pool among its fields."""

    @property
    def starts_at(self) -> datetime | None: ...
    @property
    def ends_at(self) -> datetime | None: ...
    @property
    def sales_open_at(self) -> datetime | None: ...
    @property
    def sales_close_at(self) -> datetime | None: ...


def schedule_of(scheduled: Scheduled) -> Schedule:
    return Schedule(scheduled.starts_at, scheduled.ends_at, scheduled.sales_open_at, scheduled.sales_close_at)


def merge_schedule(known: Schedule, change: Struct) -> Schedule:
    """The known times, overridden by those that the change sets."""
    given = {name: getattr(change, name) for name in Schedule.__struct_fields__}
    return structs.replace(known, **{name: at for name, at in given.items() if at is not UNSET})


def pool_window(event: Schedule, pool: Schedule) -> SalesWindow:
    """When a pool is on sale. Its own opening overrides the event's, so that a pool can have a presale. The earliest
    closing counts: closing the event closes every slot, and a slot closes when it begins. By default, sales close when
    the event starts."""
    assert event.starts_at is not None
    closings = [at for at in (pool.sales_close_at, event.sales_close_at, pool.starts_at) if at is not None]
    return SalesWindow(pool.sales_open_at or event.sales_open_at, min(closings, default=event.starts_at))


def span_windows(windows: Sequence[SalesWindow]) -> SalesWindow:
    """The window outside which none of the pools is on sale."""
    openings = [window.opens_at for window in windows]
    known = [at for at in openings if at is not None]
    opens_at = min(known) if len(known) == len(openings) else None
    return SalesWindow(opens_at, max(window.closes_at for window in windows))
