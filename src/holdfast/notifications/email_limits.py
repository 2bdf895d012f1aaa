"""Limits on emails that anybody can cause without paying, so that nobody can use Holdfast to flood a mailbox.

Emails about money have no limit. Holdfast never sends an email over a limit; the booking's page has the same
information. The emails written before an email decide whether it is over a limit, so all relays and all retries agree.
"""

from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.notification_rules import EmailLimit, webhook_kind
from holdfast.core.states import Status
from holdfast.notifications.channel import Delivery, UndeliveredError
from holdfast.runtime.db import Database

# About holds that were never confirmed: to one recipient, from all orgs together.
HOLD_PER_HOUR: Final = 3
HOLD_PER_DAY: Final = 10
# Of those, about expired holds of one event.
EXPIRED_PER_HOUR: Final = 1
# About bookings that cost nothing: to one recipient, from one org.
FREE_PER_HOUR: Final = 20
# Both together: caused by one buyer.
BUYER_PER_HOUR: Final = 20

TOO_MANY: Final = "too many emails to this recipient"
TOO_MANY_OF_BUYER: Final = "too many emails caused by this buyer"
# Higher than every limit. It bounds the work for a mailbox that somebody tries to flood.
COUNTED_MAX: Final = 100

_EXPIRED: Final = webhook_kind(Status.EXPIRED)


class EarlierEmails(Struct, frozen=True):
    """How many emails under the same limit were written before this one."""

    in_hour: int
    in_day: int
    of_kind_and_event_in_hour: int
    of_buyer_in_hour: int


async def check_limits(database: Database, delivery: Delivery, limit: EmailLimit) -> None:
    """Raise `UndeliveredError` if the email is over one of its limits."""
    earlier = await database.all_events.row(
        EarlierEmails,
        *sql.notifications.earlier_emails(
            event=delivery.event, number=delivery.number, target=delivery.target, counted_max=COUNTED_MAX
        ),
    )
    assert earlier is not None
    if _is_too_many(earlier, delivery.kind, limit):
        raise UndeliveredError(TOO_MANY, is_permanent=True)
    if earlier.of_buyer_in_hour >= BUYER_PER_HOUR:
        raise UndeliveredError(TOO_MANY_OF_BUYER, is_permanent=True)


def _is_too_many(earlier: EarlierEmails, kind: str, limit: EmailLimit) -> bool:
    if limit is EmailLimit.FREE:
        return earlier.in_hour >= FREE_PER_HOUR
    return (
        earlier.in_hour >= HOLD_PER_HOUR
        or earlier.in_day >= HOLD_PER_DAY
        or (kind == _EXPIRED and earlier.of_kind_and_event_in_hour >= EXPIRED_PER_HOUR)
    )
