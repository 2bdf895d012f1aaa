"""The channel `sms`: writes each SMS at the moment of sending, and takes the phone number from the booking."""

import re
from datetime import datetime
from typing import Final

from msgspec import json

from holdfast.core.notification_rules import REMINDER, SmsBody, webhook_kind
from holdfast.core.states import SOLD, Status
from holdfast.engine.engine import Engine
from holdfast.notifications.channel import Delivery, UndeliveredError
from holdfast.notifications.reminder_check import check_reminder
from holdfast.notifications.sms import Sms, SmsKind, write_sms
from holdfast.notifications.sms_countries import SmsCountries
from holdfast.notifications.sms_limits import check_limits
from holdfast.notifications.twilio import Twilio
from holdfast.runtime import ids
from holdfast.runtime.db import Database
from holdfast.tickets.booking_details import BookingDetails, load_booking_details

KINDS: Final = {webhook_kind(Status.CONFIRMED): SmsKind.CONFIRMED, REMINDER: SmsKind.REMINDER}
# Guests have a page for their booking. Other users have booked on the merchant's own site.
_GUEST: Final = re.compile(r"guest-[0-9a-f]{32}")


class SmsChannel:
    def __init__(
        self,
        database: Database,
        engine: Engine,
        twilio: Twilio,
        public_url: str,
        *,
        per_org: int,
        countries: SmsCountries,
    ) -> None:
        self._database = database
        self._engine = engine
        self._twilio = twilio
        self._public_url = public_url.rstrip("/")
        self._per_org = per_org
        self._countries = countries

    async def send(self, delivery: Delivery) -> None:
        body = json.decode(delivery.body, type=SmsBody)
        if body.starts_at is not None:
            await check_reminder(self._database, delivery, body.generation, body.starts_at)
        details = await load_booking_details(self._database, self._engine, delivery.event, delivery.stream)
        booking = details.booking if details is not None else None
        if details is None or booking is None or booking.phone is None:
            raise UndeliveredError("the booking has no phone number", is_permanent=True)
        if booking.generation != body.generation or booking.status not in SOLD:
            raise UndeliveredError("the booking has changed since", is_permanent=True)
        if not self._countries.includes(booking.phone):
            raise UndeliveredError("the country of the number is not in HOLDFAST_SMS_COUNTRIES", is_permanent=True)
        text = write_sms(self._describe(delivery, body, details))
        await check_limits(self._database, delivery, body.limit, self._per_org)
        await self._twilio.send(booking.phone, text)

    def _describe(self, delivery: Delivery, body: SmsBody, details: BookingDetails) -> Sms:
        booking = details.booking
        has_page = _GUEST.fullmatch(booking.user) is not None
        return Sms(
            kind=KINDS[delivery.kind],
            language=body.language,
            org_name=details.org_name,
            event_title=details.title,
            booking=ids.booking_reference(booking.id),
            starts_at=body.starts_at or _first_start(details),
            timezone=details.timezone,
            link=f"{self._public_url}/b/{ids.format_booking_id(booking.event, booking.id)}" if has_page else None,
        )


def _first_start(details: BookingDetails) -> datetime:
    return min(slot.starts_at for slot in details.slots.values())
