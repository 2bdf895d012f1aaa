"""A template becomes the events of a series: all of its times move with the start, on the clock of its time zone."""

from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from holdfast.core.recurrence import STARTS_MAX
from holdfast.core.refusals import RefusedError
from holdfast.core.sales_window import schedule_of
from holdfast.core.series_schemas import SeriesEventsNew, make_event

MADRID = ZoneInfo("Europe/Madrid")
# On the Monday after the next Sunday, clocks have gone forward.
TEMPLATE: dict[str, Any] = {
    "title": "Shift",
    "timezone": "Europe/Madrid",
    "currency": "EUR",
    "starts_at": "2027-03-26T08:00:00+01:00",
    "ends_at": "2027-03-26T16:00:00+01:00",
    "sales_open_at": "2027-03-19T12:00:00+01:00",
    "sales_close_at": "2027-03-26T06:00:00+01:00",
    "shift": {"order_number": 1042, "date": "2027-03-26"},
    "pools": [
        {
            "code": "early",
            "capacity": 2,
            "starts_at": "2027-03-26T08:00:00+01:00",
            "ends_at": "2027-03-26T12:00:00+01:00",
            "sales_open_at": "2027-03-20T12:00:00+01:00",
            "sales_close_at": "2027-03-26T05:00:00+01:00",
        },
        {"code": "any", "capacity": 2},
    ],
}


def new_request(rule: str | None = None, starts: list[str] | None = None, **template: Any) -> SeriesEventsNew:
    body = {"template": {**TEMPLATE, **template}, "rule": rule, "starts": starts or []}
    return msgspec.json.decode(msgspec.json.encode(body), type=SeriesEventsNew)


def expand(request: SeriesEventsNew) -> list[Any]:
    return [make_event(request.template, start, n) for n, start in enumerate(request.expand())]


def local(at: datetime | None) -> str:
    assert at is not None
    return at.astimezone(MADRID).strftime("%m-%d %H:%M")


def test_every_time_of_the_template_moves_with_the_start() -> None:
    *_, monday = expand(new_request("FREQ=DAILY;COUNT=4"))
    assert monday.starts_at == datetime(2027, 3, 29, 6, 0, tzinfo=UTC)
    times = [monday.starts_at, monday.ends_at, monday.sales_open_at, monday.sales_close_at]
    assert [local(at) for at in times] == ["03-29 08:00", "03-29 16:00", "03-22 12:00", "03-29 06:00"]
    early, any_time = monday.pools
    times = [early.starts_at, early.ends_at, early.sales_open_at, early.sales_close_at]
    assert [local(at) for at in times] == ["03-29 08:00", "03-29 12:00", "03-23 12:00", "03-29 05:00"]
    assert schedule_of(any_time) == msgspec.structs.replace(schedule_of(any_time), starts_at=None)
    assert monday.shift.date == date(2027, 3, 29)


def test_the_first_event_is_the_template() -> None:
    request = new_request("FREQ=DAILY;COUNT=1")
    (event,) = expand(request)
    assert event == request.template


def test_the_date_of_a_night_shift_is_its_local_day() -> None:
    night = {
        "starts_at": "2027-03-26T23:30:00Z",
        "ends_at": None,
        "sales_close_at": None,
        "pools": TEMPLATE["pools"][1:],
    }
    events = expand(new_request("FREQ=DAILY;COUNT=3", **night, shift={"date": "2027-03-27"}))
    assert [event.shift.date.day for event in events] == [27, 28, 29]


@pytest.mark.parametrize(
    ("number", "expected"), [(1042, [1042, 1043, 1044]), ("W-7", ["W-7-1", "W-7-2", "W-7-3"]), (None, [None] * 3)]
)
def test_each_event_has_an_order_number_of_its_own(number: int | str | None, expected: list[int | str | None]) -> None:
    events = expand(new_request("FREQ=DAILY;COUNT=3", shift={"order_number": number}))
    assert [event.shift.order_number for event in events] == expected


@pytest.mark.parametrize("number", [2**53 - 1, "W" * 63])
def test_an_order_number_without_room_for_all_events_is_refused(number: int | str) -> None:
    expand(new_request("FREQ=DAILY;COUNT=1", shift={"order_number": number if isinstance(number, int) else "W" * 62}))
    with pytest.raises(RefusedError, match="order_number"):
        new_request("FREQ=DAILY;COUNT=3", shift={"order_number": number}).expand()


def test_starts_add_to_the_rule_and_a_time_in_both_is_one_event() -> None:
    # The last one is the first half past two on a night that has two of them, the one before is the second.
    starts = ["2027-03-27T07:00:00Z", "2027-10-31T01:30:00Z", "2027-10-31T00:30:00Z"]
    found = new_request("FREQ=DAILY;COUNT=2", starts).expand()
    assert [at.isoformat()[:16] for at in found] == [
        "2027-03-26T07:00",
        "2027-03-27T07:00",
        "2027-10-31T00:30",
        "2027-10-31T01:30",
    ]


def test_a_request_has_a_rule_or_starts_and_no_other_series() -> None:
    with pytest.raises(RefusedError, match="rule"):
        new_request()
    with pytest.raises(RefusedError, match="series"):
        new_request("FREQ=DAILY;COUNT=1", series="se_1")


def test_rule_and_starts_together_have_a_limit() -> None:
    with pytest.raises(RefusedError, match="1,000"):
        new_request(f"FREQ=DAILY;COUNT={STARTS_MAX}", ["2027-03-26T09:00:00Z"]).expand()


def test_times_that_no_event_can_have_are_refused() -> None:
    for start in ("2500-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        with pytest.raises(RefusedError, match="2499"):
            new_request(starts=[start])
