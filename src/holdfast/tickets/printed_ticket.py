"""What a printed ticket says."""

from datetime import datetime

from msgspec import Struct


class PrintedTicket(Struct, frozen=True, kw_only=True):
    """`timezone` is an IANA name, `booking` the reference that the buyer knows, and `number` counts from one."""

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
