"""The details of a job shift."""

import datetime
from typing import Annotated

from msgspec import Meta, Struct

ShiftText = Annotated[str, Meta(min_length=1, max_length=255)]
LongShiftText = Annotated[str, Meta(min_length=1, max_length=2_000)]
ORDER_NUMBER_MAX = 2**53
ORDER_NUMBER_TEXT_MAX = 64
OrderText = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _./-]{0,63}$(?!\n)")]
OrderNumber = Annotated[int, Meta(ge=1, le=ORDER_NUMBER_MAX)] | OrderText
Amount = Annotated[int, Meta(ge=0, le=100_000_000_000, description="In minor units of the event's currency.")]


class Shift(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The order number is unique among the events of the org. `salary` is an amount in minor units, or a text such as
    "15 € an hour". `service_fee` is what a worker pays for the place: the price of every tariff of the event. `date`
    is the local day of the shift."""

    order_number: OrderNumber | None = None
    salary: Amount | ShiftText | None = None
    food: ShiftText | None = None
    work_time: ShiftText | None = None
    address: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    service_fee: Amount | None = None
    buses: ShiftText | None = None
    additional_info: LongShiftText | None = None
    date: datetime.date | None = None
