"""Requests to create and change events. The types carry the limits, and unknown fields are refused."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, Literal
from zoneinfo import available_timezones as read_timezones

from msgspec import UNSET, Meta, UnsetType, structs

from holdfast.core.buyer_form import Asked, ContactRules, is_answered
from holdfast.core.policy import PRESETS, Policy
from holdfast.core.request_types import (
    Code,
    Currency,
    Details,
    Label,
    Name,
    PositiveSeconds,
    Quantity,
    RequestModel,
    Seconds,
    TaxBps,
    Time,
    TimeZone,
    UnpaidUnits,
    check_details,
    check_unique,
    invalid_field,
)
from holdfast.core.sales_window import NO_SCHEDULE, Schedule, merge_schedule, pool_window, schedule_of
from holdfast.core.shift import Shift
from holdfast.core.stock_schemas import POOLS_MAX, TARIFFS_MAX, PoolChange, PoolNew, check_pools, too_many_tariffs

# One journal entry names all of them, and every reader of the journal has to decode it.
BLOCKED_AT_ONCE_MAX = 20_000
QUESTIONS_MAX = 20
CHOICES_MAX = 50


@cache
def available_timezones() -> set[str]:
    """The IANA names. The machine's own time is not one of them."""
    return read_timezones() - {"localtime", "posixrules"}


class PolicyChange(RequestModel, frozen=True):
    """In a new event, omitted fields take the preset's values. In a change, they keep the event's. `max_hold_seconds`
    limits extensions; a hold always lasts its `hold_seconds`, even if `max_hold_seconds` is less."""

    hold_seconds: PositiveSeconds | UnsetType = UNSET
    extend_seconds: Seconds | UnsetType = UNSET
    max_hold_seconds: PositiveSeconds | UnsetType = UNSET
    late_grace_seconds: Seconds | UnsetType = UNSET
    review: Literal["none", "manual"] | UnsetType = UNSET
    review_seconds: PositiveSeconds | UnsetType = UNSET
    max_units_per_user: Quantity | UnsetType | None = UNSET
    one_booking_per_user: bool | UnsetType = UNSET
    confirm_at_once: bool | UnsetType = UNSET
    avoid_orphans: bool | UnsetType = UNSET
    min_units: Quantity | UnsetType | None = UNSET
    max_units: Quantity | UnsetType | None = UNSET
    box_office: bool | UnsetType = UNSET
    max_unpaid_units_per_user: Quantity | UnsetType | None = UNSET
    max_unpaid_units_per_address: UnpaidUnits | UnsetType | None = UNSET
    cooldown_after_expired: Annotated[int, Meta(ge=1, le=50)] | UnsetType | None = UNSET
    cooldown_seconds: PositiveSeconds | UnsetType = UNSET
    limit_customers: bool | UnsetType = UNSET
    guest_check: Literal["none", "work"] | UnsetType = UNSET
    guest_check_bits: Annotated[int, Meta(ge=8, le=24)] | UnsetType = UNSET


class ContactChange(RequestModel, frozen=True):
    """Which contact details a booking needs. Omitted fields keep their value. By default, pages ask only for an email
    address, which is optional."""

    name: Asked | UnsetType = UNSET
    email: Asked | UnsetType = UNSET
    phone: Asked | UnsetType = UNSET


class QuestionNew(RequestModel, frozen=True):
    """A question that buyers answer once per booking, or for each unit. Only a `choice` has `choices`."""

    code: Code
    label: Annotated[str, Meta(min_length=1, max_length=500)]
    kind: Literal["text", "choice", "yes_no"] = "text"
    per: Literal["booking", "unit"] = "booking"
    required: bool = False
    choices: Annotated[list[Name], Meta(max_length=CHOICES_MAX)] = []  # noqa: RUF012 (msgspec copies it)

    def __post_init__(self) -> None:
        if not is_answered(self.label):
            raise invalid_field(f"questions.{self.code}.label", "must contain more than spaces")
        field = f"questions.{self.code}.choices"
        if self.kind == "choice" and not self.choices:
            raise invalid_field(field, "must have at least one choice")
        if self.kind != "choice" and self.choices:
            raise invalid_field(field, "must be left out unless `kind` is `choice`")
        check_unique(field, "choice", self.choices)


Questions = Annotated[list[QuestionNew], Meta(max_length=QUESTIONS_MAX)]
SeriesId = Annotated[str, Meta(max_length=100, description="The id of a series of your org.")]
PaymentInstructions = Annotated[
    str, Meta(min_length=1, max_length=2_000, description="How to pay for a booking by receipt.")
]

Providers = Annotated[
    list[Code],
    Meta(max_length=10, description="The payment providers that buyers can choose from. None: only receipts."),
]


class EventNew(RequestModel, frozen=True):
    title: Name
    starts_at: Time
    currency: Currency
    pools: Annotated[list[PoolNew], Meta(min_length=1, max_length=POOLS_MAX)]
    preset: Literal["shift", "show", "arena", "registration", "experience"] | None = None
    tax_bps: TaxBps = 0
    policy: PolicyChange = PolicyChange()
    details: Details = {}  # noqa: RUF012 (msgspec copies it)
    # A worker completes the event at this time.
    ends_at: Time | None = None
    timezone: TimeZone = "UTC"
    # Without these, sales open when somebody publishes the event, and close when it starts.
    sales_open_at: Time | None = None
    sales_close_at: Time | None = None
    contact: ContactChange = ContactChange()
    questions: Questions = []  # noqa: RUF012 (msgspec copies it)
    payment_instructions: PaymentInstructions | None = None
    # Null means every provider that is set up.
    providers: Providers | None = None
    shift: Shift | None = None
    series: SeriesId | None = None

    def __post_init__(self) -> None:
        check_schedule(schedule_of(self), {pool.code: schedule_of(pool) for pool in self.pools})
        check_timezone(self.timezone)
        check_details(self.details)
        check_pools(self.pools)
        check_unique("questions", "code", (question.code for question in self.questions))
        check_instructions(self.payment_instructions)
        prices = [tariff.price for pool in self.pools for tariff in pool.tariffs or ()]
        check_service_fee(self.shift, prices)
        fee = self.shift.service_fee if self.shift is not None else None
        check_prices(self.merged_policy, [*prices, fee or 0])

    @property
    def merged_policy(self) -> Policy:
        return merge_policy(PRESETS[self.preset] if self.preset else Policy(), self.policy)


class EventChange(RequestModel, frozen=True):
    title: Name | UnsetType = UNSET
    starts_at: Time | UnsetType = UNSET
    tax_bps: TaxBps | UnsetType = UNSET
    policy: PolicyChange = PolicyChange()
    details: Details | UnsetType = UNSET
    ends_at: Time | UnsetType | None = UNSET
    timezone: TimeZone | UnsetType = UNSET
    sales_open_at: Time | UnsetType | None = UNSET
    sales_close_at: Time | UnsetType | None = UNSET
    contact: ContactChange = ContactChange()
    questions: Questions | UnsetType = UNSET
    payment_instructions: PaymentInstructions | UnsetType | None = UNSET
    providers: Providers | UnsetType | None = UNSET
    shift: Shift | UnsetType | None = UNSET
    series: SeriesId | UnsetType | None = UNSET
    pools: Annotated[list[PoolChange], Meta(max_length=POOLS_MAX)] = []  # noqa: RUF012
    block_seats: Annotated[list[Label], Meta(max_length=BLOCKED_AT_ONCE_MAX)] = []  # noqa: RUF012
    unblock_seats: Annotated[list[Label], Meta(max_length=BLOCKED_AT_ONCE_MAX)] = []  # noqa: RUF012

    def __post_init__(self) -> None:
        _check_years("", merge_schedule(NO_SCHEDULE, self))
        for pool in self.pools:
            _check_years(f"pools.{pool.code}.", merge_schedule(NO_SCHEDULE, pool))
        if self.timezone is not UNSET:
            check_timezone(self.timezone)
        if self.details is not UNSET:
            check_details(self.details)
        check_instructions(self.payment_instructions)
        if self.questions is not UNSET:
            check_unique("questions", "code", (question.code for question in self.questions))
        check_unique("pools", "code", (pool.code for pool in self.pools))
        for pool in self.pools:
            if pool.tariffs is not UNSET:
                check_unique(f"pools.{pool.code}.tariffs", "code", (tariff.code for tariff in pool.tariffs))
        if sum(len(pool.tariffs) for pool in self.pools if pool.tariffs is not UNSET) > TARIFFS_MAX:
            raise too_many_tariffs()


def merge_policy(policy: Policy, change: PolicyChange) -> Policy:
    merged = structs.replace(policy, **_given(change))
    if merged.min_units is not None and merged.max_units is not None and merged.min_units > merged.max_units:
        raise invalid_field("policy.min_units", "must not be more than `max_units`")
    if merged.min_units is not None and merged.min_units > (merged.max_units_per_user or merged.min_units):
        raise invalid_field("policy.min_units", "must not be more than `max_units_per_user`")
    return merged


def merge_contact(contact: ContactRules, change: ContactChange) -> ContactRules:
    return structs.replace(contact, **_given(change))


def _given(change: PolicyChange | ContactChange) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(change).items() if value is not UNSET}


def check_instructions(text: str | UnsetType | None) -> None:
    if isinstance(text, str) and not text.strip():
        raise invalid_field("payment_instructions", "must not be blank")


def check_prices(policy: Policy, prices: Iterable[int]) -> None:
    """Nobody can pay for a booking that is confirmed at once."""
    if policy.confirm_at_once and any(prices):
        raise invalid_field("policy.confirm_at_once", "must be false if anything has a price")


def check_service_fee(shift: Shift | None, prices: Iterable[int]) -> None:
    if shift is not None and shift.service_fee is not None and any(price != shift.service_fee for price in prices):
        raise invalid_field("shift.service_fee", "must be the price of every tariff")


def check_schedule(event: Schedule, pools: Mapping[str, Schedule]) -> None:
    """Refuse times of an event and its pools that contradict each other."""
    _check_times("", event)
    closes_at = event.sales_close_at or event.starts_at
    if event.sales_open_at is not None and closes_at is not None and event.sales_open_at >= closes_at:
        raise invalid_field("sales_open_at", "must be earlier than `sales_close_at`, which defaults to the start")
    for code, pool in pools.items():
        if pool != NO_SCHEDULE:
            _check_pool_times(f"pools.{code}.", event, pool)


def _check_pool_times(prefix: str, event: Schedule, pool: Schedule) -> None:
    _check_times(prefix, pool)
    if pool.starts_at is not None and event.ends_at is not None and pool.starts_at >= event.ends_at:
        raise invalid_field(f"{prefix}starts_at", "must be earlier than the event's `ends_at`")
    if pool.ends_at is not None and event.ends_at is not None and pool.ends_at > event.ends_at:
        raise invalid_field(f"{prefix}ends_at", "must not be later than the event's `ends_at`")
    if pool.sales_close_at is not None and pool.starts_at is not None and pool.sales_close_at > pool.starts_at:
        raise invalid_field(f"{prefix}sales_close_at", "must not be later than `starts_at`")
    if pool.sales_open_at is not None and pool.sales_open_at >= pool_window(event, pool).closes_at:
        raise invalid_field(f"{prefix}sales_open_at", "must be earlier than the time at which sales close")


def _check_years(prefix: str, schedule: Schedule) -> None:
    for name, at in structs.asdict(schedule).items():
        if at is not None and not 1970 < at.year < 2500:
            raise invalid_field(f"{prefix}{name}", "must be between 1971 and 2499")


def _check_times(prefix: str, schedule: Schedule) -> None:
    _check_years(prefix, schedule)
    if schedule.ends_at is None:
        return
    if schedule.starts_at is None:
        raise invalid_field(f"{prefix}ends_at", "needs a `starts_at`")
    if not schedule.starts_at < schedule.ends_at < schedule.starts_at + timedelta(days=366):
        raise invalid_field(f"{prefix}ends_at", "must be later than `starts_at`, by less than a year")


def check_timezone(name: str) -> None:
    if name not in available_timezones():
        raise invalid_field("timezone", "must be an IANA time zone such as Europe/Madrid")
