"""The breaker stops calls after five failures in a row, and lets one through after a while to find out."""

import pytest

from holdfast.gate.circuit_breaker import FAILURES_MAX, OPEN_SECONDS, BreakerState, CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(clock)


def fail(breaker: CircuitBreaker, times: int = 1) -> None:
    for _ in range(times):
        assert breaker.try_begin()
        breaker.record_failure(TimeoutError())


def test_it_opens_after_five_failures_in_a_row(breaker: CircuitBreaker) -> None:
    assert FAILURES_MAX == 5
    fail(breaker, FAILURES_MAX - 1)
    assert breaker.is_closed
    fail(breaker)
    assert breaker.report.state is BreakerState.OPEN
    assert not breaker.try_begin()


def test_a_success_resets_the_count(breaker: CircuitBreaker) -> None:
    fail(breaker, FAILURES_MAX - 1)
    assert breaker.try_begin()
    breaker.record_success()
    fail(breaker, FAILURES_MAX - 1)
    assert breaker.report.state is BreakerState.CLOSED


def test_it_lets_exactly_one_call_through_after_a_while(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, FAILURES_MAX)
    clock.now += OPEN_SECONDS - 0.1
    assert not breaker.try_begin()
    clock.now += 0.1
    assert breaker.may_try
    assert [breaker.try_begin() for _ in range(3)] == [True, False, False]
    assert breaker.report.state is BreakerState.HALF_OPEN


def test_the_call_that_goes_through_closes_it(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, FAILURES_MAX)
    clock.now += OPEN_SECONDS
    assert breaker.try_begin()
    breaker.record_success()
    assert breaker.is_closed
    assert breaker.report.failures == 0
    fail(breaker, FAILURES_MAX - 1)
    assert breaker.is_closed


def test_the_call_that_goes_through_opens_it_again_if_it_fails(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, FAILURES_MAX)
    clock.now += OPEN_SECONDS
    fail(breaker)
    assert breaker.report.state is BreakerState.OPEN
    assert not breaker.try_begin()
    clock.now += OPEN_SECONDS
    assert breaker.try_begin()


def test_a_call_from_before_does_not_close_it(breaker: CircuitBreaker) -> None:
    assert breaker.try_begin()
    fail(breaker, FAILURES_MAX)
    breaker.record_success()
    assert breaker.report.state is BreakerState.OPEN


def test_a_call_that_never_reports_its_outcome_does_not_keep_it_half_open(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    fail(breaker, FAILURES_MAX)
    clock.now += OPEN_SECONDS
    assert breaker.try_begin()
    clock.now += OPEN_SECONDS
    assert breaker.try_begin()
    breaker.record_success()
    assert breaker.is_closed


def test_the_report_names_the_last_error_and_counts_openings(breaker: CircuitBreaker, clock: Clock) -> None:
    assert (breaker.report.opened, breaker.report.last_error) == (0, None)
    fail(breaker, FAILURES_MAX)
    clock.now += OPEN_SECONDS
    fail(breaker)
    report = breaker.report
    assert (report.opened, report.failures, report.last_error) == (2, FAILURES_MAX + 1, "TimeoutError")
