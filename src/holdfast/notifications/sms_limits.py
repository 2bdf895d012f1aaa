"""Limits on SMS. Each one costs money, and anybody can enter somebody else's phone number.

As with emails, the SMS written before an SMS decide whether it is over a limit, so all relays and all retries agree.
Only the limit of an org per day counts at the first attempt to send. Booking pages have the same information.
"""

from typing import Final

from holdfast import sql
from holdfast.core.notification_rules import SmsLimit
from holdfast.notifications.channel import Delivery, UndeliveredError
from holdfast.notifications.email_limits import COUNTED_MAX, EarlierEmails
from holdfast.runtime.db import Database

# About bookings that cost nothing: to one number, from all orgs together.
FREE_PER_HOUR: Final = 2
FREE_PER_DAY: Final = 5
# Of those, caused by one buyer.
BUYER_PER_HOUR: Final = 5
# About bookings that cost something: to one number, from one org.
PAID_PER_DAY: Final = 20

TOO_MANY: Final = "too many SMS to this number"
TOO_MANY_OF_BUYER: Final = "too many SMS caused by this buyer"
TOO_MANY_OF_ORG: Final = "the org has reached its limit of SMS per day"


async def check_limits(database: Database, delivery: Delivery, limit: SmsLimit, per_org: int) -> None:
    """Raise `UndeliveredError` if the SMS is over one of its limits."""
    earlier = await database.all_events.row(
        EarlierEmails,
        *sql.notifications.earlier_emails(
            event=delivery.event, number=delivery.number, target=delivery.target, counted_max=COUNTED_MAX
        ),
    )
    assert earlier is not None
    if _is_too_many(earlier, limit):
        raise UndeliveredError(TOO_MANY, is_permanent=True)
    if earlier.of_buyer_in_hour >= BUYER_PER_HOUR:
        raise UndeliveredError(TOO_MANY_OF_BUYER, is_permanent=True)
    if delivery.attempts == 1 and not await _count(database, delivery.org, per_org):
        raise UndeliveredError(TOO_MANY_OF_ORG, is_permanent=True)


async def _count(database: Database, org: bytes, per_org: int) -> bool:
    counted = await database.org(org).fetchval(*sql.sms.count_message(org=org, per_day=per_org))
    return counted is not None


def _is_too_many(earlier: EarlierEmails, limit: SmsLimit) -> bool:
    if limit is SmsLimit.FREE:
        return earlier.in_hour >= FREE_PER_HOUR or earlier.in_day >= FREE_PER_DAY
    return earlier.in_day >= PAID_PER_DAY
