"""What a printed ticket says."""

from datetime import datetime

from msgspec import Struct


class PrintedTicket(Struct, frozen=True, kw_only=True):
    """`timezone` is an IANA name, `booking` the reference that the buyer knows, and `number` counts from one. `ends_at`
    is the end of a slot, and null if the ticket shows none."""

    code: str
    event_title: str
    starts_at: datetime
    timezone: str
    address: str | None
    pool: str
    tariff: str
    seat: str | None
    booking: str
    org_name: str
    number: int
    count: int
    ends_at: datetime | None = None
