"""How much one org may have. The quotas keep a tenant from crowding out the others, and honest ones never reach
them."""

from typing import Final

from msgspec import Struct

from holdfast.core.refusals import Refusal, RefusedError

# Secret keys that are not revoked.
KEYS_MAX: Final = 200
SERIES_MAX: Final = 10_000


class OrgUsage(Struct, frozen=True):
    """What an org has: events that have not ended, and the seats in them."""

    events: int
    seats: int


class Quotas(Struct, frozen=True):
    """The limits on `OrgUsage`. Operators can change them."""

    events: int = 10_000
    seats: int = 2_000_000

    def check(self, usage: OrgUsage, *, new_events: int = 0, new_seats: int = 0) -> None:
        """Refuse new events or seats that would exceed a quota."""
        if new_events and usage.events + new_events > self.events:
            raise RefusedError(
                Refusal.LIMIT_REACHED,
                f"An org may have at most {self.events:,} events that have not ended. Complete or cancel some of them.",
            )
        if new_seats and usage.seats + new_seats > self.seats:
            raise RefusedError(
                Refusal.LIMIT_REACHED,
                f"An org may have at most {self.seats:,} seats in events that have not ended; "
                f"yours has {usage.seats:,}. Complete or cancel some of the events.",
            )
