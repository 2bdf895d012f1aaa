"""Limits on SMS. Each one costs money, and anybody can enter somebody else's phone number. Fraudsters even earn money
with SMS to the numbers of some carriers.

As with emails, the SMS written before an SMS decide whether it is over a limit, so all relays and all retries agree.
Only the limit of an org per day counts at the first attempt to send. Booking pages have the same information.
"""

from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.notification_rules import REMINDER, SmsLimit
from holdfast.notifications.channel import Delivery, UndeliveredError
from holdfast.notifications.email_limits import COUNTED_MAX
from holdfast.runtime.db import Database

# About bookings that cost nothing: to one number, from all orgs together.
FREE_PER_HOUR: Final = 2
FREE_PER_DAY: Final = 5
# Of those, caused by one buyer.
BUYER_PER_HOUR: Final = 5
# Of those, caused by all guests behind one address. A fresh cookie makes another buyer. Many guests share an address,
# so this is higher, but no address can use up what an org may send by default. Reminders count apart: those of
# everyone on a campus are written within minutes.
CLIENT_PER_HOUR: Final = 20
CLIENT_PER_DAY: Final = 40
CLIENT_REMINDERS_PER_DAY: Final = 80
# The part of an org's SMS per day that may be about free bookings, so that strangers cannot use up those of buyers.
FREE_PART: Final = 5
# About bookings that cost something: to one number, from one org.
PAID_PER_DAY: Final = 20

TOO_MANY: Final = "too many SMS to this number"
TOO_MANY_OF_BUYER: Final = "too many SMS caused by this buyer"
TOO_MANY_OF_CLIENT: Final = "too many SMS caused from this buyer's network"
TOO_MANY_OF_ORG: Final = "the org has reached its limit of SMS per day"


class EarlierSms(Struct, frozen=True):
    """How many SMS under the same limit were written before this one."""

    to_number_in_hour: int
    to_number_in_day: int
    of_buyer_in_hour: int
    of_client_in_hour: int
    of_client_in_day: int


async def check_limits(database: Database, delivery: Delivery, limit: SmsLimit, per_org: int) -> None:
    """Raise `UndeliveredError` if the SMS is over one of its limits."""
    earlier = await database.all_events.row(
        EarlierSms,
        *sql.sms.earlier_messages(
            event=delivery.event, number=delivery.number, target=delivery.target, counted_max=COUNTED_MAX
        ),
    )
    assert earlier is not None
    if _is_too_many(earlier, limit):
        raise UndeliveredError(TOO_MANY, is_permanent=True)
    if earlier.of_buyer_in_hour >= BUYER_PER_HOUR:
        raise UndeliveredError(TOO_MANY_OF_BUYER, is_permanent=True)
    if _is_too_many_of_client(earlier, is_reminder=delivery.kind == REMINDER):
        raise UndeliveredError(TOO_MANY_OF_CLIENT, is_permanent=True)
    if not await _count(database, delivery, limit, per_org):
        raise UndeliveredError(TOO_MANY_OF_ORG, is_permanent=True)


async def _count(database: Database, delivery: Delivery, limit: SmsLimit, per_org: int) -> bool:
    is_counted: bool = await database.all_events.fetchval(
        *sql.sms.count_message(
            event=delivery.event,
            number=delivery.number,
            target=delivery.target,
            is_free=limit is SmsLimit.FREE,
            per_day=per_org,
            free_per_day=per_org // FREE_PART,
        )
    )
    return is_counted


def _is_too_many(earlier: EarlierSms, limit: SmsLimit) -> bool:
    if limit is SmsLimit.FREE:
        return earlier.to_number_in_hour >= FREE_PER_HOUR or earlier.to_number_in_day >= FREE_PER_DAY
    return earlier.to_number_in_day >= PAID_PER_DAY


def _is_too_many_of_client(earlier: EarlierSms, *, is_reminder: bool) -> bool:
    if is_reminder:
        return earlier.of_client_in_day >= CLIENT_REMINDERS_PER_DAY
    return earlier.of_client_in_hour >= CLIENT_PER_HOUR or earlier.of_client_in_day >= CLIENT_PER_DAY
