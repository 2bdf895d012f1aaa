"""Events as pages show them: with their org, and with what is left of each pool."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from holdfast import sql
from holdfast.api.event_handlers import EventRow, event_view
from holdfast.api.responses import EventView, PoolView
from holdfast.core.sales_window import Schedule, schedule_of
from holdfast.i18n.formatting import VENUE_ADDRESS_MAX, shorten
from holdfast.live.snapshot import PoolAvailability
from holdfast.runtime import ids
from holdfast.runtime.db import DatabaseScope


class Org(Struct, frozen=True):
    """How an org presents itself to buyers."""

    id: bytes
    slug: str
    name: str
    colour: str | None
    logo_hash: str | None
    frame_origins: list[str]


class EventListing(Struct, frozen=True):
    """`revision` changes whenever anything but stock changes. `now` is the database's time of the read. `schedule` has
    the times that the organiser set, without their defaults."""

    event: EventView
    org: Org
    revision: int
    availability: list[PoolAvailability]
    now: datetime
    schedule: Schedule

    @property
    def id(self) -> bytes:
        parsed = ids.parse_event_id(self.event.id)
        assert parsed is not None
        return parsed

    @property
    def capacity(self) -> int:
        return sum(pool.capacity for pool in self.availability)

    @property
    def remaining(self) -> int:
        return sum(pool.remaining for pool in self.availability)

    @property
    def is_seated(self) -> bool:
        return any(pool.seated for pool in self.event.pools)

    @property
    def lowest_price(self) -> int:
        return min(tariff.price for pool in self.event.pools for tariff in pool.tariffs)

    @property
    def address(self) -> str | None:
        shift = self.event.shift
        return _printable_address(self.event.details.get("address", shift.address if shift else None))


def _printable_address(address: object) -> str | None:
    return shorten(address, VENUE_ADDRESS_MAX) if isinstance(address, str) else None


class _ListingRow(EventRow, frozen=True):
    now: datetime
    revision: int
    org_id: bytes
    slug: str
    org_name: str
    colour: str | None
    logo_hash: str | None
    frame_origins: list[str]
    pools: list[PoolView]
    availability: list[PoolAvailability]


async def load_listings(scope: DatabaseScope, events: Sequence[bytes]) -> dict[bytes, EventListing]:
    """The published ones among these events, by id."""
    return {row.id: _listing(row) for row in await scope.rows(_ListingRow, sql.pages.listings, events)}


def _listing(row: _ListingRow) -> EventListing:
    org = Org(row.org_id, row.slug, row.org_name, row.colour, row.logo_hash, row.frame_origins)
    schedule = schedule_of(row)
    return EventListing(event_view(row, row.pools), org, row.revision, row.availability, row.now, schedule)
