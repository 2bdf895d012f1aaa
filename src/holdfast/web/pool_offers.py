"""What an event offers at one moment: which of its pools are on sale, and what is left of them."""

from collections.abc import Sequence
from datetime import date, datetime
from enum import StrEnum

from msgspec import Struct

from holdfast.api.responses import PoolView
from holdfast.core.sales_window import SalesWindow, Schedule, pool_window
from holdfast.i18n.formatting import in_zone
from holdfast.live.snapshot import PoolAvailability
from holdfast.web.event_listing import EventListing


class SaleState(StrEnum):
    SOON = "soon"
    OPEN = "open"
    CLOSED = "closed"
    # A slot that has started. Its sales are closed too.
    BEGUN = "begun"


class PoolOffer(Struct, frozen=True):
    """A pool, its place in the event's list, and whether it is on sale. `day` is the local day of a slot."""

    number: int
    pool: PoolView
    left: PoolAvailability
    window: SalesWindow
    state: SaleState
    day: date | None

    @property
    def is_slot(self) -> bool:
        """A pool with its own time. Pools with seats are on the map, whatever their time."""
        return self.pool.starts_at is not None and not self.pool.seated

    @property
    def is_available(self) -> bool:
        return self.state is SaleState.OPEN and self.left.remaining > 0

    @property
    def lowest_price(self) -> int:
        return min(tariff.price for tariff in self.pool.tariffs)


class EventSale(Struct, frozen=True):
    """Whether anything in the event is on sale. `opens_at` is the next opening."""

    state: SaleState
    opens_at: datetime | None = None


def pool_offers(listing: EventListing) -> list[PoolOffer]:
    pools = zip(listing.event.pools, listing.availability, strict=True)
    return [_offer(listing, number, pool, left) for number, (pool, left) in enumerate(pools)]


def _offer(listing: EventListing, number: int, pool: PoolView, left: PoolAvailability) -> PoolOffer:
    schedule = Schedule(pool.starts_at, pool.ends_at, pool.sales_open_at, pool.sales_close_at)
    window = pool_window(listing.schedule, schedule)
    day = in_zone(pool.starts_at, listing.event.timezone).date() if pool.starts_at is not None else None
    return PoolOffer(number, pool, left, window, _state(pool, window, listing.now), day)


def _state(pool: PoolView, window: SalesWindow, now: datetime) -> SaleState:
    """The same rule as the engine's: sales are open from the opening time on, and closed from the closing time on."""
    if pool.starts_at is not None and now >= pool.starts_at:
        return SaleState.BEGUN
    if now >= window.closes_at:
        return SaleState.CLOSED
    if window.opens_at is not None and now < window.opens_at:
        return SaleState.SOON
    return SaleState.OPEN


def event_sale(offers: Sequence[PoolOffer]) -> EventSale:
    states = {offer.state for offer in offers}
    if SaleState.OPEN in states:
        return EventSale(SaleState.OPEN)
    openings = [offer.window.opens_at for offer in offers if offer.state is SaleState.SOON]
    if openings:
        return EventSale(SaleState.SOON, min(at for at in openings if at is not None))
    return EventSale(SaleState.CLOSED)
