"""Whether a worker does its work, as far as the database shows."""

from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.notification_rules import EMAIL, PUSH, SMS
from holdfast.doctor.check import Results, ok, problem, warning
from holdfast.doctor.installation import Installation
from holdfast.runtime.settings import Settings

# A worker takes seconds.
OVERDUE_SECONDS: Final = 60.0

_REMEDY: Final = "Start `holdfast worker`, or read its log if it runs. docs/operating.md says what to look for."


class Overdue(Struct, frozen=True):
    """How many things wait, and for how long the oldest one has been due. None if nothing is."""

    waiting: int
    overdue_seconds: float | None

    @property
    def is_late(self) -> bool:
        return (self.overdue_seconds or 0) > OVERDUE_SECONDS

    @property
    def minutes(self) -> str:
        return f"{(self.overdue_seconds or 0) / 60:.0f} minutes"


class OverdueChannel(Overdue, frozen=True):
    channel: str


async def check_worker(installation: Installation) -> Results:
    scope = (await installation.database.require_schema()).all_events
    holds = await scope.row(Overdue, sql.doctor.overdue_holds)
    payments = await scope.row(Overdue, sql.doctor.overdue_payments)
    channels = await scope.rows(OverdueChannel, sql.doctor.overdue_deliveries)
    assert holds is not None
    assert payments is not None
    is_fine = True
    if holds.is_late:
        is_fine = False
        yield problem(
            f"No worker has expired holds that are overdue by {holds.minutes}, in {holds.waiting} events.", _REMEDY
        )
    if payments.is_late:
        is_fine = False
        yield problem(
            f"{payments.waiting} refunds or payments have been due for up to {payments.minutes}, and no worker has "
            "handled them.",
            _REMEDY,
        )
    for channel in channels:
        if channel.is_late:
            if channel.channel == EMAIL and installation.settings.smtp_url is None:
                is_fine = False
                yield warning(
                    f"Emails have waited for up to {channel.minutes}, because there is no mail server.",
                    "Set HOLDFAST_SMTP_URL, and restart the workers. After seven days, Holdfast deletes emails that it "
                    "could not send.",
                )
            elif channel.channel not in _unused_channels(installation.settings):
                is_fine = False
                yield problem(
                    f"Notifications by {channel.channel} have been due for up to {channel.minutes}, and no worker "
                    f"has sent them to {channel.waiting} targets.",
                    _REMEDY,
                )
    if is_fine:
        yield ok(
            "Nothing is overdue: holds, payments and notifications are up to date. While nothing is due, this does "
            "not show that a worker runs."
        )


def _unused_channels(settings: Settings) -> set[str]:
    """Nobody has to send these. A booking with a phone number causes an SMS whether or not there is a provider."""
    channels = {SMS: settings.sms_url, PUSH: settings.web_push}
    return {channel for channel, setting in channels.items() if not setting}
