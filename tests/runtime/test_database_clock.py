"""A process knows the database's time without asking, and never believes that it is later than it is."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.runtime import database_clock
from holdfast.runtime.database_clock import WINDOW_SECONDS, DatabaseClock

AT = datetime(2027, 3, 5, 19, tzinfo=UTC)


class Monotonic:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    clock = Monotonic()
    monkeypatch.setattr(database_clock, "time", clock)
    return clock


def test_it_knows_nothing_before_the_first_observation() -> None:
    clock = DatabaseClock()
    assert clock.now() is None
    assert not clock.is_fresh


def test_it_runs_on_from_the_last_observation(monotonic: Monotonic) -> None:
    clock = DatabaseClock()
    clock.observe(AT)
    monotonic.now += 2.5
    assert clock.now() == AT + timedelta(seconds=2.5)


def test_an_observation_that_took_long_to_arrive_does_not_set_it_back(monotonic: Monotonic) -> None:
    clock = DatabaseClock()
    clock.observe(AT)
    monotonic.now += 1
    clock.observe(AT)
    assert clock.now() == AT + timedelta(seconds=1)


def test_it_follows_a_database_whose_clock_was_set_back(monotonic: Monotonic) -> None:
    clock = DatabaseClock()
    clock.observe(AT)
    for number in range(1, 4):
        monotonic.now += WINDOW_SECONDS
        set_back = AT - timedelta(minutes=1) + timedelta(seconds=number * WINDOW_SECONDS)
        clock.observe(set_back)
    assert clock.now() == set_back


def test_an_old_observation_is_worth_another_one(monotonic: Monotonic) -> None:
    clock = DatabaseClock()
    clock.observe(AT)
    assert clock.is_fresh
    monotonic.now += database_clock.FRESH_SECONDS
    assert not clock.is_fresh
