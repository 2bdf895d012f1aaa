"""What is printed on a ticket."""

from datetime import datetime

from msgspec import Struct


class PrintedTicket(Struct, frozen=True, kw_only=True):
    """What is on the sheet. `timezone` is an IANA name, `number` counts from one."""

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
