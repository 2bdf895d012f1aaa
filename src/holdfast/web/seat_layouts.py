"""The positions of an event's seats, as the seat map reads them. A process keeps the latest ones in memory."""

import asyncio
from collections import OrderedDict
from typing import Final

from holdfast import sql
from holdfast.web.assets import Asset, make_asset
from holdfast.web.event_listing import EventListing
from holdfast.web.page_request import PageRequest
from holdfast.web.site import Site

# How much memory the layouts may take. The latest one always stays.
LAYOUTS_BYTES_MAX: Final = 64 * 1024 * 1024


class SeatLayouts:
    """Layouts by revision: they change only with the event's revision."""

    def __init__(self) -> None:
        self._by_revision: OrderedDict[tuple[str, int], Asset] = OrderedDict()
        self._bytes = 0
        self._loading: dict[tuple[str, int], asyncio.Task[Asset]] = {}

    async def get(self, page: PageRequest, listing: EventListing) -> Asset:
        key = (listing.event.id, listing.revision)
        if key in self._by_revision:
            self._by_revision.move_to_end(key)
            return self._by_revision[key]
        if key not in self._loading:
            # Everyone who opens a page at the same time shares one read.
            task = self._loading[key] = asyncio.create_task(self._load(key, page.site, listing))
            task.add_done_callback(lambda _: self._loading.pop(key))
        return await asyncio.shield(self._loading[key])

    async def _load(self, key: tuple[str, int], site: Site, listing: EventListing) -> Asset:
        asset = self._by_revision[key] = await _load_layout(site, listing)
        self._bytes += asset.size
        while self._bytes > LAYOUTS_BYTES_MAX and len(self._by_revision) > 1:
            _, oldest = self._by_revision.popitem(last=False)
            self._bytes -= oldest.size
        return asset


async def _load_layout(site: Site, listing: EventListing) -> Asset:
    """A pool that was added since the event was read belongs to the next revision."""
    document: bytes = await site.database.event(listing.id).fetchval(
        sql.pages.seat_positions, listing.id, len(listing.event.pools)
    )
    return await asyncio.to_thread(make_asset, document, "application/json")
