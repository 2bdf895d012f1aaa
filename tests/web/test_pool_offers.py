"""The page and the engine agree on when a pool is on sale, to the microsecond."""

from datetime import datetime, timedelta

import pytest

from holdfast.api.responses import PoolView
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.sales_window import SaleState, SalesWindow, Schedule, pool_window
from holdfast.live.snapshot import PoolAvailability
from holdfast.web.pool_offers import PoolOffer, _state, event_sale
from tests.support.builders import NOW, seconds_from_now

EVENT = Schedule(seconds_from_now(3600), None, seconds_from_now(-60), None)
MOMENT = timedelta(microseconds=1)
REFUSED_AS = {Refusal.NOT_ON_SALE_YET: SaleState.SOON, Refusal.SALES_CLOSED: SaleState.CLOSED}


def make_pool(**times: datetime) -> PoolView:
    return PoolView(code="p", name="P", capacity=5, seated=False, tariffs=[], **times)


def make_offer(state: SaleState, opens_at: datetime | None = None) -> PoolOffer:
    pool = make_pool()
    left = PoolAvailability(code="p", capacity=5, held=0, sold=0, remaining=5)
    return PoolOffer(0, pool, left, pool_window(EVENT, Schedule(sales_open_at=opens_at)), state, None)


@pytest.mark.parametrize(
    "times",
    [
        {},
        {"sales_open_at": seconds_from_now(60)},
        {"sales_close_at": seconds_from_now(60)},
        {"sales_open_at": seconds_from_now(60), "sales_close_at": seconds_from_now(90)},
        {"starts_at": seconds_from_now(120)},
    ],
    ids=str,
)
def test_the_page_offers_exactly_what_the_engine_sells(times: dict[str, datetime]) -> None:
    window = pool_window(EVENT, Schedule(**times))
    boundaries = [at for at in (NOW, window.opens_at, window.closes_at, *times.values()) if at is not None]
    for now in [boundary + step for boundary in boundaries for step in (-MOMENT, timedelta(), MOMENT)]:
        shown = _state(make_pool(**times), window, now)
        assert (SaleState.CLOSED if shown is SaleState.BEGUN else shown) is sell(window, now), now


def sell(window: SalesWindow, now: datetime) -> SaleState:
    """What the engine makes of a hold at this time."""
    try:
        window.check(now)
    except RefusedError as error:
        return REFUSED_AS[error.refused.refusal]
    return SaleState.OPEN


def test_an_event_is_on_sale_while_one_of_its_pools_is() -> None:
    soon = [make_offer(SaleState.SOON, seconds_from_now(seconds)) for seconds in (90, 60)]
    closed = make_offer(SaleState.CLOSED)
    assert event_sale([*soon, closed, make_offer(SaleState.OPEN)]).state is SaleState.OPEN
    waiting = event_sale([closed, *soon])
    assert (waiting.state, waiting.opens_at) == (SaleState.SOON, seconds_from_now(60))
    assert event_sale([closed, make_offer(SaleState.BEGUN)]).state is SaleState.CLOSED
