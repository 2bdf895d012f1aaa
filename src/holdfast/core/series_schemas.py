"""Requests about series, and how a template becomes the events of a series."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated
from zoneinfo import ZoneInfo

from msgspec import UNSET, Meta, UnsetType, structs

from holdfast.core.event_schemas import EventNew
from holdfast.core.recurrence import STARTS_MAX, expand_rule, move_by_wall_clock, wall_clock_distance
from holdfast.core.request_types import Details, Name, RequestModel, Time, check_details, invalid_field
from holdfast.core.shift import ORDER_NUMBER_MAX, ORDER_NUMBER_TEXT_MAX, OrderNumber, Shift
from holdfast.core.stock_schemas import PoolNew

RULE_MAX = 500

Description = Annotated[str, Meta(min_length=1, max_length=4_000, description="What buyers read on the series' page.")]
Rule = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=RULE_MAX,
        description="A recurrence rule (RFC 5545) with COUNT or UNTIL, such as `FREQ=WEEKLY;BYDAY=MO,FR;COUNT=10`.",
    ),
]


class SeriesNew(RequestModel, frozen=True):
    title: Name
    description: Description | None = None
    details: Details = {}  # noqa: RUF012 (msgspec copies it)

    def __post_init__(self) -> None:
        check_details(self.details)


class SeriesChange(RequestModel, frozen=True):
    title: Name | UnsetType = UNSET
    description: Description | UnsetType | None = UNSET
    details: Details | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.details is not UNSET:
            check_details(self.details)


class SeriesEventsNew(RequestModel, frozen=True):
    """Makes one event from the `template` at each start: those of the `rule`, which begins at the template's
    `starts_at`, and those in `starts`. All other times of the template move by as many days and hours on the clock of
    its `timezone`. With `publish`, the events go on sale at once."""

    template: EventNew
    rule: Rule | None = None
    starts: Annotated[list[Time], Meta(max_length=STARTS_MAX)] = []  # noqa: RUF012 (msgspec copies it)
    publish: bool = False

    def __post_init__(self) -> None:
        if self.rule is None and not self.starts:
            raise invalid_field("rule", "is required, unless `starts` has times")
        if any(not 1970 < start.year < 2500 for start in self.starts):
            raise invalid_field("starts", "must be between 1971 and 2499")
        if self.template.series is not None:
            raise invalid_field("template.series", "must be left out: the path names the series")

    def expand(self) -> list[datetime]:
        """The starts of all events, the soonest first. Refuses a request that cannot work for the first or
        the last of them. Call this in a thread."""
        starts = {start.astimezone(UTC) for start in self.starts}
        if self.rule is not None:
            starts.update(expand_rule(self.rule, self.template.starts_at, self.template.timezone))
        if len(starts) > STARTS_MAX:
            raise invalid_field("starts", f"and `rule` make more than {STARTS_MAX:,} events")
        ordered = sorted(starts)
        for position in {0, len(ordered) - 1}:
            make_event(self.template, ordered[position], position)
        return ordered


def make_event(template: EventNew, start: datetime, position: int) -> EventNew:
    """The event of a series that starts then. `position` counts from 0."""
    zone = ZoneInfo(template.timezone)
    distance = wall_clock_distance(template.starts_at, start, zone)
    move = partial(_move, distance=distance, zone=zone)
    return structs.replace(
        template,
        starts_at=start,
        ends_at=move(template.ends_at),
        sales_open_at=move(template.sales_open_at),
        sales_close_at=move(template.sales_close_at),
        pools=[_move_pool(pool, distance, zone) for pool in template.pools],
        shift=_move_shift(template, start, position, zone) if template.shift is not None else None,
    )


def _move(at: datetime | None, distance: timedelta, zone: ZoneInfo) -> datetime | None:
    return move_by_wall_clock(at, distance, zone) if at is not None else None


def _move_pool(pool: PoolNew, distance: timedelta, zone: ZoneInfo) -> PoolNew:
    times = ("starts_at", "ends_at", "sales_open_at", "sales_close_at")
    moved = {name: _move(at, distance, zone) for name in times if (at := getattr(pool, name)) is not None}
    return structs.replace(pool, **moved) if moved else pool


def _move_shift(template: EventNew, start: datetime, position: int, zone: ZoneInfo) -> Shift:
    assert template.shift is not None
    shift = template.shift
    days = start.astimezone(zone).date() - template.starts_at.astimezone(zone).date()
    return structs.replace(
        shift,
        date=shift.date + days if shift.date is not None else None,
        order_number=_order_number(shift.order_number, position) if shift.order_number is not None else None,
    )


def _order_number(number: OrderNumber, position: int) -> OrderNumber:
    """Order numbers are unique in an org, so each event of a series gets its own: 1042 becomes 1042, 1043, 1044, and
    "W-7" becomes "W-7-1", "W-7-2", "W-7-3"."""
    if isinstance(number, int):
        if number + position > ORDER_NUMBER_MAX:
            raise invalid_field("template.shift.order_number", "is too high for this many events")
        return number + position
    text = f"{number}-{position + 1}"
    if len(text) > ORDER_NUMBER_TEXT_MAX:
        raise invalid_field(
            "template.shift.order_number", f"must leave room for a suffix: at most {ORDER_NUMBER_TEXT_MAX} characters"
        )
    return text
