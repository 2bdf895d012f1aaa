"""Rows of `delivery` that a relay has leased."""

from typing import Final

from holdfast import sql
from holdfast.notifications.channel import Delivery
from holdfast.runtime import ids
from holdfast.runtime.lease_queue import LeaseQueue

# How long a row waits if an earlier one of its stream may be on its way right now.
STREAM_WAIT_SECONDS: Final = 2.0
DETAIL_MAX: Final = 200

DELIVERED: Final = "delivered"
FAILED: Final = "failed"


class ClaimedDelivery(Delivery, frozen=True, kw_only=True):
    """A row that was due. Only the first row of a stream is leased, and no retry follows the last attempt."""

    is_first_in_stream: bool
    is_last: bool


def claim_queue(claim_max: int, lease_seconds: float) -> LeaseQueue[ClaimedDelivery]:
    return LeaseQueue(
        name="deliveries",
        row_type=ClaimedDelivery,
        claim_statement=sql.notifications.claim,
        claim_max=claim_max,
        lease_seconds=lease_seconds,
        label=lambda row: f"{row.target}:{ids.format_event_id(row.event)}:{row.number}",
    )
