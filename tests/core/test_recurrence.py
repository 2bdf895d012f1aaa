"""Recurrence rules: they count in local time, end, and cannot keep a server busy."""

import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.recurrence import HORIZON_YEARS, STARTS_MAX, expand_rule
from holdfast.core.refusals import RefusedError
from tests.support.cases import case

MADRID = "Europe/Madrid"
ZONE = ZoneInfo(MADRID)
# A Friday. Clocks in Madrid go forward on 28 March 2027 and back on 31 October 2027.
FRIDAY = datetime(2027, 3, 26, 8, 0, tzinfo=ZONE)
EARLIEST, LATEST = datetime.fromisoformat("1975-01-01"), datetime.fromisoformat("2480-01-01")
# Far more than the worst rule takes, and far less than a search up to the year 9999.
SECONDS_MAX = 2.0


def local_starts(rule: str, first: datetime = FRIDAY) -> list[str]:
    return [start.astimezone(ZONE).strftime("%a %Y-%m-%d %H:%M") for start in expand_rule(rule, first, MADRID)]


def refusal_of(rule: str, first: datetime = FRIDAY) -> str:
    with pytest.raises(RefusedError) as refused:
        expand_rule(rule, first, MADRID)
    (error,) = refused.value.refused.errors
    assert error.field == "rule"
    return error.message


def test_a_start_keeps_its_hour_when_the_clocks_change() -> None:
    starts = expand_rule("FREQ=DAILY;COUNT=4", FRIDAY, MADRID)
    assert [start.astimezone(ZONE).hour for start in starts] == [8, 8, 8, 8]
    assert [start.astimezone(UTC).hour for start in starts] == [7, 7, 6, 6]


def test_a_rule_skips_an_hour_that_the_clocks_skip_and_does_not_count_it() -> None:
    first = datetime(2027, 3, 27, 2, 30, tzinfo=ZONE)
    assert local_starts("FREQ=DAILY;COUNT=3", first) == [
        "Sat 2027-03-27 02:30",
        "Mon 2027-03-29 02:30",
        "Tue 2027-03-30 02:30",
    ]


def test_a_rule_with_an_end_may_begin_in_an_hour_that_the_clocks_skip() -> None:
    first = datetime(2027, 3, 27, 12, 0, tzinfo=ZONE)
    assert local_starts("FREQ=DAILY;BYHOUR=2;BYMINUTE=30;UNTIL=20270329", first) == ["Mon 2027-03-29 02:30"]


def test_the_template_says_which_of_two_equal_hours_is_meant() -> None:
    second = datetime(2027, 10, 31, 2, 30, tzinfo=ZONE, fold=1)
    assert expand_rule("FREQ=DAILY;COUNT=1", second, MADRID) == [second.astimezone(UTC)]


def test_an_hour_that_the_clocks_repeat_counts_once() -> None:
    first = datetime(2027, 10, 30, 2, 30, tzinfo=ZONE)
    starts = expand_rule("FREQ=DAILY;COUNT=3", first, MADRID)
    assert [start.isoformat() for start in starts] == [
        "2027-10-30T00:30:00+00:00",
        "2027-10-31T00:30:00+00:00",
        "2027-11-01T01:30:00+00:00",
    ]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("FREQ=WEEKLY;BYDAY=MO,FR;COUNT=3", ["Fri 2027-03-26", "Mon 2027-03-29", "Fri 2027-04-02"]),
        ("RRULE:FREQ=WEEKLY;INTERVAL=2;COUNT=2", ["Fri 2027-03-26", "Fri 2027-04-09"]),
        ("FREQ=MONTHLY;BYDAY=-1FR;COUNT=3", ["Fri 2027-03-26", "Fri 2027-04-30", "Fri 2027-05-28"]),
        ("FREQ=MONTHLY;BYMONTHDAY=31;COUNT=2", ["Wed 2027-03-31", "Mon 2027-05-31"]),
        ("FREQ=WEEKLY;BYDAY=SA;COUNT=1", ["Sat 2027-03-27"]),
        ("FREQ=YEARLY;COUNT=2", ["Fri 2027-03-26", "Sun 2028-03-26"]),
        ("FREQ=DAILY;UNTIL=20270327", ["Fri 2027-03-26", "Sat 2027-03-27"]),
        ("FREQ=DAILY;UNTIL=20270327T060000Z", ["Fri 2027-03-26"]),
        ("FREQ=DAILY;UNTIL=20270327T070000Z", ["Fri 2027-03-26", "Sat 2027-03-27"]),
        ("FREQ=DAILY;UNTIL=20270327T080000", ["Fri 2027-03-26", "Sat 2027-03-27"]),
    ],
)
def test_a_rule_means_what_rfc_5545_says(rule: str, expected: list[str]) -> None:
    assert local_starts(rule) == [f"{day} 08:00" for day in expected]


def test_a_day_can_have_several_starts() -> None:
    starts = local_starts("FREQ=DAILY;BYHOUR=15,21;BYMINUTE=0,30;UNTIL=20270326")
    assert [start[-5:] for start in starts] == ["15:00", "15:30", "21:00", "21:30"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("FREQ=DAILY", "needs either COUNT or UNTIL, so that it ends"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20270401", "needs either COUNT or UNTIL, so that it ends"),
        ("COUNT=3", "needs FREQ, which is one of DAILY, WEEKLY, MONTHLY, YEARLY"),
        ("FREQ=DAILY;COUNT=3;COUNT=4", "has COUNT twice"),
        (f"FREQ=DAILY;COUNT={STARTS_MAX + 1}", "makes more than 1,000 events"),
        ("FREQ=DAILY;UNTIL=20310101", "makes more than 1,000 events"),
        ("FREQ=DAILY;UNTIL=20270230", "has an UNTIL that is not a date"),
        ("FREQ=DAILY;UNTIL=20200101", "matches no time within 10 years"),
        ("FREQ=YEARLY;COUNT=30", "must end within 10 years"),
        ("FREQ=YEARLY;UNTIL=20600101", "must end within 10 years"),
        ("FREQ=DAILY;INTERVAL=9999;COUNT=2", "must end within 10 years"),
        *[
            (f"{rule};COUNT=2", "has a BYDAY with a number that RFC 5545 does not allow with this FREQ")
            for rule in (
                "FREQ=WEEKLY;BYDAY=0MO",
                "FREQ=DAILY;BYDAY=1MO",
                "FREQ=MONTHLY;BYDAY=6MO",
                "FREQ=MONTHLY;BYDAY=-60MO",
                "FREQ=YEARLY;BYDAY=99MO",
            )
        ],
    ],
)
def test_a_rule_that_cannot_work_is_refused_with_the_reason(rule: str, message: str) -> None:
    assert refusal_of(rule) == message


@pytest.mark.parametrize(
    "rule",
    [
        "",
        ";",
        "daily",
        "FREQ=daily;COUNT=1",
        "FREQ=HOURLY;COUNT=3",
        "FREQ=MINUTELY;COUNT=3",
        "FREQ=SECONDLY;COUNT=3",
        "FREQ=DAILY;COUNT=0",
        "FREQ=DAILY;COUNT=-1",
        "FREQ=DAILY;COUNT=٣",
        "FREQ=DAILY;COUNT=1e3",
        "FREQ=DAILY;INTERVAL=0;COUNT=3",
        "FREQ=DAILY;BYEASTER=0;COUNT=3",
        "FREQ=DAILY;BYSECOND=1;COUNT=3",
        "FREQ=DAILY;BYMONTH=13;COUNT=3",
        "FREQ=DAILY;BYMONTHDAY=0;COUNT=3",
        "FREQ=DAILY;BYHOUR=24;COUNT=3",
        "FREQ=DAILY;COUNT=3\nEXDATE:20270327T080000",
        "FREQ=DAILY;COUNT=3\n",
        "FREQ=DAILY;COUNT=3;DTSTART=20270101",
        "FREQ=DAILY;UNTIL=99999999",
    ],
)
def test_anything_else_is_refused(rule: str) -> None:
    assert refusal_of(rule)


def test_a_rule_that_never_matches_is_refused_at_once() -> None:
    never = "BYMONTH=2;BYMONTHDAY=30;COUNT=3"
    positions = ",".join(str(n) for n in range(2, 100))
    rules = [
        *(f"FREQ={frequency};{never}" for frequency in ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")),
        "FREQ=DAILY;BYHOUR=1,2;BYSETPOS=5;COUNT=3",
        f"FREQ=YEARLY;BYYEARDAY=366;BYMONTH=1;BYSETPOS={positions};COUNT=3",
        "FREQ=YEARLY;BYWEEKNO=53;BYMONTH=6;COUNT=3",
    ]
    for rule in rules:
        # The years 2090 and 2499 have a century ahead, so the calendar repeats only every 400 years.
        for year in (1971, 2027, 2090, 2499):
            with case(rule, year):
                begun = time.monotonic()
                assert refusal_of(rule, FRIDAY.replace(year=year)) == "matches no time within 10 years"
                assert time.monotonic() - begun < SECONDS_MAX


def test_a_leap_day_repeats_on_leap_days() -> None:
    assert local_starts("FREQ=YEARLY;COUNT=3", datetime(2028, 2, 29, 8, tzinfo=ZONE)) == [
        "Tue 2028-02-29 08:00",
        "Sun 2032-02-29 08:00",
        "Fri 2036-02-29 08:00",
    ]


@given(
    first=st.datetimes(EARLIEST, LATEST),
    rule=st.sampled_from(
        [
            "FREQ=DAILY;INTERVAL=37",
            "FREQ=WEEKLY;INTERVAL=3;BYDAY=TU,SU;WKST=SU",
            "FREQ=MONTHLY;BYMONTHDAY=-1",
            "FREQ=MONTHLY;BYDAY=2WE",
            "FREQ=YEARLY;BYWEEKNO=1,53;BYDAY=MO",
            "FREQ=YEARLY;BYYEARDAY=60,-1",
        ]
    ),
)
def test_moving_a_rule_to_late_years_does_not_change_it(first: datetime, rule: str) -> None:
    first = first.replace(second=0, microsecond=0)
    end = first.replace(year=first.year + HORIZON_YEARS, day=1)
    expected = [at for at in rrulestr(rule, dtstart=first).xafter(first, inc=True, count=400) if at <= end][:200]
    found = expand_rule(f"{rule};COUNT={len(expected)}", first.replace(tzinfo=UTC), "UTC")
    assert [at.replace(tzinfo=None) for at in found] == expected
