"""The bookings of other guests that a browser has recovered, because their owner reads mail to the same address."""

from typing import Any

from holdfast import sql
from holdfast.api.booking_handlers import PAGE_LINES_MAX, BookingRow
from holdfast.api.booking_schemas import BookingView, booking_view, recipient_view
from holdfast.runtime import ids
from holdfast.web.page_request import PageRequest


async def act_for_owner(page: PageRequest, booking: str) -> None:
    """Let the page act for the guest who made the booking, if the browser has recovered it. The page may then show and
    change this booking, but no other booking of that guest."""
    assert page.org is not None
    parsed = ids.parse_booking_id(booking)
    if parsed is None or not page.session.recoveries_in(page.org.id):
        return
    event, id_ = parsed
    page.owner = await page.site.database.event(event).fetchval(
        *sql.recovery.owner(event=event, booking=id_, **_values(page, page.org.id))
    )


async def list_recovered(page: PageRequest, limit: int) -> list[BookingView]:
    """What the browser has recovered in the org, up to `limit` bookings for each address."""
    assert page.org is not None
    if not page.session.recoveries_in(page.org.id):
        return []
    rows = await page.site.database.org(page.org.id).rows(
        BookingRow, *sql.recovery.bookings(limit=limit, lines_max=PAGE_LINES_MAX, **_values(page, page.org.id))
    )
    return [_view(row) for row in rows]


def _values(page: PageRequest, org: bytes) -> dict[str, Any]:
    recoveries = page.session.recoveries_in(org)
    return {"org": org, "emails": [each.email for each in recoveries], "recovered_at": [each.at for each in recoveries]}


def _view(row: BookingRow) -> BookingView:
    view = booking_view(row.booking, row.items, row.now)
    return recipient_view(view) if row.booking.was_transferred else view
