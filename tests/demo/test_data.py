"""The demo's events are plausible on every day."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from holdfast.demo.data import SATURDAY, _new_events


@pytest.mark.parametrize("day", range(7))
def test_the_saturday_shift_is_on_a_future_saturday(day: int) -> None:
    now = datetime(2026, 11, 16, 23, 30, tzinfo=UTC) + timedelta(days=day)
    (shift,) = [event for event in _new_events(now) if event.preset == "shift"]
    assert "Saturday" in shift.title
    assert shift.timezone is not None
    local = shift.starts_at.astimezone(ZoneInfo(shift.timezone))
    assert (local.weekday(), local.hour) == (SATURDAY, 6)
    assert shift.starts_at > now
