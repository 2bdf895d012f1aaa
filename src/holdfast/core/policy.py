"""The rules that an event sells by."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct


class Policy(Struct, frozen=True, kw_only=True):
    hold_seconds: int = 600
    extend_seconds: int = 300
    max_hold_seconds: int = 1800
    late_grace_seconds: int = 120
    review: Literal["none", "manual"] = "none"
    review_seconds: int = 86_400
    max_units_per_user: int | None = None
    one_booking_per_user: bool = False
    confirm_at_once: bool = False
    avoid_orphans: bool = False
    # How many units one booking can have.
    min_units: int | None = None
    max_units: int | None = None
    # Whether staff can book before sales open and after they close.
    box_office: bool = False
    # Against hoarding. These limit guests, and customers if `limit_customers` says so.
    max_unpaid_units_per_user: int | None = 20
    max_unpaid_units_per_address: int | None = 40
    cooldown_after_expired: int | None = 3
    cooldown_seconds: int = 600
    limit_customers: bool = False
    # Whether a guest's browser does a proof of work before each hold, and how many zero bits the proof needs.
    guest_check: Literal["none", "work"] = "none"
    guest_check_bits: int = 18

    @property
    def limits_users(self) -> bool:
        """Whether a user's live bookings restrict what else they can book."""
        return self.one_booking_per_user or self.max_units_per_user is not None


# A preset only supplies default values. The engine never sees its name.
PRESETS: Mapping[str, Policy] = {
    "shift": Policy(
        hold_seconds=180,
        extend_seconds=0,
        max_hold_seconds=180,
        review="manual",
        max_units_per_user=1,
        one_booking_per_user=True,
        max_unpaid_units_per_address=10,
    ),
    "show": Policy(hold_seconds=600, max_hold_seconds=900, max_units_per_user=10, avoid_orphans=True),
    "arena": Policy(
        hold_seconds=900,
        max_hold_seconds=1200,
        max_units_per_user=10,
        max_unpaid_units_per_address=80,
    ),
    "registration": Policy(confirm_at_once=True, max_units_per_user=1, one_booking_per_user=True),
    "experience": Policy(hold_seconds=900, max_hold_seconds=1200),
}
