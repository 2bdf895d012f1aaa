"""What an event offers at one moment: which of its pools are on sale, and what is left of them."""

from collections.abc import Sequence
from datetime import date, datetime

from msgspec import Struct

from holdfast.api.responses import PoolView
from holdfast.core.sales_window import SaleState, SalesWindow, pool_window, schedule_of
from holdfast.i18n.formatting import in_zone
from holdfast.live.snapshot import PoolAvailability
from holdfast.web.event_listing import EventListing


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
    window = pool_window(listing.schedule, schedule_of(pool))
    day = in_zone(pool.starts_at, listing.event.timezone).date() if pool.starts_at is not None else None
    return PoolOffer(number, pool, left, window, _state(pool, window, listing.now), day)


def _state(pool: PoolView, window: SalesWindow, now: datetime) -> SaleState:
    has_begun = pool.starts_at is not None and now >= pool.starts_at
    return SaleState.BEGUN if has_begun else window.state(now)


def event_sale(offers: Sequence[PoolOffer]) -> EventSale:
    states = {offer.state for offer in offers}
    if SaleState.OPEN in states:
        return EventSale(SaleState.OPEN)
    openings = [offer.window.opens_at for offer in offers if offer.state is SaleState.SOON]
    if openings:
        return EventSale(SaleState.SOON, min(at for at in openings if at is not None))
    return EventSale(SaleState.CLOSED)
