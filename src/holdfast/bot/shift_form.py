"""The form of a shift: its fields, what staff may type into them, and the event that they make."""

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from msgspec import UNSET, Struct, convert, structs

from holdfast.api.responses import EventView
from holdfast.bot.markup import plain
from holdfast.core.event_schemas import ContactChange, EventChange, EventNew, PolicyChange
from holdfast.core.shift import Shift
from holdfast.core.stock_schemas import PoolChange, PoolNew, TariffNew
from holdfast.i18n.formatting import format_money, minor_digits

POOL: Final = "places"
WORKERS_MAX: Final = 10_000
FEE_MAX: Final = 10**11
DAYS_AHEAD_MAX: Final = 366

# In the order in which the form asks for them.
FIELDS: Final = (
    "order_number",
    "date",
    "work_time",
    "address",
    "salary",
    "service_fee",
    "workers",
    "food",
    "buses",
    "additional_info",
    "payment_instructions",
)
OPTIONAL: Final = frozenset({"food", "buses", "additional_info", "payment_instructions"})
LENGTHS: Final = {"address": 500, "additional_info": 2_000, "payment_instructions": 2_000}
LENGTH: Final = 255
LONG_TEXTS: Final = ("additional_info", "payment_instructions")

_ORDER_NUMBER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _./-]{0,63}")
_TIMES: Final = re.compile(r"(\d{1,2})[:.](\d{2})\s*[-\u2010-\u2015]\s*(\d{1,2})[:.](\d{2})")
_AMOUNT: Final = re.compile(r"(\d{1,12})(?:[.,](\d+))?", re.ASCII)
_DATES: Final = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y")
_DAY_AND_MONTH: Final = re.compile(r"(\d{1,2})[./](\d{1,2})\.?")


class FieldError(ValueError):
    """The text does not fit its field. The error is the key of a sentence that says what would."""


class ShiftForm(Struct, frozen=True, omit_defaults=True):
    """What staff have typed so far, in a form that `read_field` returns. Amounts are in minor units."""

    order_number: str = ""
    date: str = ""
    work_time: str = ""
    address: str = ""
    salary: str = ""
    service_fee: str = ""
    workers: str = ""
    food: str = ""
    buses: str = ""
    additional_info: str = ""
    payment_instructions: str = ""

    def with_field(self, name: str, value: str) -> "ShiftForm":
        return structs.replace(self, **{name: value})

    @property
    def missing(self) -> str | None:
        return next((name for name in FIELDS if name not in OPTIONAL and not getattr(self, name)), None)

    @property
    def shift(self) -> Shift:
        return Shift(
            order_number=self.order_number or None,
            salary=self.salary or None,
            food=self.food or None,
            work_time=self.work_time or None,
            address=self.address or None,
            service_fee=int(self.service_fee) if self.service_fee else None,
            buses=self.buses or None,
            additional_info=self.additional_info or None,
            date=date.fromisoformat(self.date) if self.date else None,
        )

    def times(self, timezone: str) -> tuple[datetime, datetime]:
        """Start and end. A shift that ends before it starts ends on the next day."""
        zone = ZoneInfo(timezone)
        day = date.fromisoformat(self.date)
        starts, ends = _read_times(self.work_time)
        last_day = day if ends > starts else day + timedelta(days=1)
        return datetime.combine(day, starts, zone), datetime.combine(last_day, ends, zone)


def read_field(name: str, text: str, currency: str, today: date) -> str:
    """The text as the form keeps it."""
    value = text.strip() if name in LONG_TEXTS else plain(text)
    if not value:
        raise FieldError("form.error.empty")
    if len(value) > LENGTHS.get(name, LENGTH):
        raise FieldError("form.error.long")
    match name:
        case "order_number":
            if not _ORDER_NUMBER.fullmatch(value):
                raise FieldError("form.error.order_number")
        case "date":
            return _read_date(value, today).isoformat()
        case "work_time":
            _read_times(value)
        case "service_fee":
            return str(_read_amount(value, currency))
        case "workers":
            if not value.isascii() or not value.isdecimal() or not 1 <= int(value[:9]) <= WORKERS_MAX:
                raise FieldError("form.error.workers")
        case _:
            pass
    return value


def new_event(form: ShiftForm, title: str, currency: str, timezone: str) -> EventNew:
    starts_at, ends_at = form.times(timezone)
    return EventNew(
        title=title,
        preset="shift",
        starts_at=starts_at,
        ends_at=ends_at,
        timezone=timezone,
        currency=currency,
        pools=[PoolNew(code=POOL, capacity=int(form.workers))],
        shift=form.shift,
        payment_instructions=form.payment_instructions or None,
        contact=ContactChange(name="required", phone="required"),
        # Anybody can open Telegram accounts, so workers have the limits of guests.
        policy=PolicyChange(limit_customers=True, confirm_at_once=form.service_fee == "0"),
    )


def changed_event(
    form: ShiftForm, opened: ShiftForm, view: EventView, language: str, make_title: Callable[[ShiftForm], str]
) -> EventChange | None:
    """The change that staff have typed since they opened the form, or None if the shift already has it. The change
    leaves out all other fields, because a colleague may have changed them."""
    now = form_of(view, language)
    changed = {name for name in FIELDS if getattr(form, name) not in (getattr(opened, name), getattr(now, name))}
    if not changed:
        return None
    after = structs.replace(now, **{name: getattr(form, name) for name in changed})
    return EventChange(
        title=make_title(after) if view.title == make_title(now) else UNSET,
        **_changed_times(changed, after, view),
        **_changed_stock(changed, after, view),
        shift=_changed_shift(changed, after, view) if changed - {"workers", "payment_instructions"} else UNSET,
        payment_instructions=(after.payment_instructions or None) if "payment_instructions" in changed else UNSET,
    )


def _changed_times(changed: set[str], after: ShiftForm, view: EventView) -> dict[str, Any]:
    if not changed & {"date", "work_time"}:
        return {}
    starts_at, ends_at = after.times(view.timezone)
    return {"starts_at": starts_at, "ends_at": ends_at}


def _changed_stock(changed: set[str], after: ShiftForm, view: EventView) -> dict[str, Any]:
    """The fee is the price of every tariff. The number of workers is that of the only pool."""
    if "workers" in changed and len(view.pools) > 1:
        raise FieldError("form.error.pools")
    has_fee = "service_fee" in changed
    pools = [
        PoolChange(
            code=pool.code,
            capacity=int(after.workers) if "workers" in changed else UNSET,
            tariffs=[TariffNew(code=tariff.code, price=int(after.service_fee)) for tariff in pool.tariffs]
            if has_fee
            else UNSET,
        )
        for pool in view.pools
        if has_fee or "workers" in changed
    ]
    policy = PolicyChange(confirm_at_once=after.service_fee == "0") if has_fee else PolicyChange()
    return {"pools": pools, "policy": policy}


def _changed_shift(changed: set[str], after: ShiftForm, view: EventView) -> Shift:
    fields = changed - {"workers", "payment_instructions"}
    return structs.replace(view.shift or Shift(), **{name: getattr(after.shift, name) for name in fields})


def form_of(view: EventView, language: str) -> ShiftForm:
    """The form of an existing shift, to copy or change it. An amount that workers earn becomes a text."""
    shift = view.shift or Shift()
    salary = shift.salary
    fee = shift.service_fee if shift.service_fee is not None else view.pools[0].tariffs[0].price
    return convert(
        {
            "order_number": str(shift.order_number or ""),
            "date": shift.date.isoformat() if shift.date is not None else "",
            "work_time": shift.work_time or "",
            "address": shift.address or "",
            "salary": format_money(salary, view.currency, language) if isinstance(salary, int) else salary or "",
            "service_fee": str(fee),
            "workers": str(view.pools[0].capacity),
            "food": shift.food or "",
            "buses": shift.buses or "",
            "additional_info": shift.additional_info or "",
            "payment_instructions": view.payment_instructions or "",
        },
        ShiftForm,
    )


def _read_date(text: str, today: date) -> date:
    for pattern in _DATES:
        try:
            day = datetime.strptime(text, pattern).date()  # noqa: DTZ007 (a local day has no zone)
        except ValueError:
            continue
        break
    else:
        day = _read_day_and_month(text, today)
    if not today <= day <= today + timedelta(days=DAYS_AHEAD_MAX):
        raise FieldError("form.error.date_range")
    return day


def _read_day_and_month(text: str, today: date) -> date:
    """The next such day: `3.1.` in December is in January."""
    found = _DAY_AND_MONTH.fullmatch(text)
    try:
        assert found is not None
        day = date(today.year, int(found[2]), int(found[1]))
        return day if day >= today else day.replace(year=today.year + 1)
    except (AssertionError, ValueError):
        raise FieldError("form.error.date") from None


def _read_times(text: str) -> tuple[time, time]:
    found = _TIMES.search(text)
    try:
        assert found is not None
        return time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4]))
    except (AssertionError, ValueError):
        raise FieldError("form.error.work_time") from None


def _read_amount(text: str, currency: str) -> int:
    """An amount in minor units. People separate thousands with spaces, and decimals with a point or a comma."""
    found = _AMOUNT.fullmatch(re.sub(r"[\s\u00a0']", "", text))
    digits = minor_digits(currency)
    # "1.500" may be a thousand and a half, or one and a half. Nobody has to guess if it is refused.
    if found is None or len(found[2] or "") > digits:
        raise FieldError("form.error.service_fee")
    amount = int(found[1] + (found[2] or "").ljust(digits, "0"))
    if amount > FEE_MAX:
        raise FieldError("form.error.service_fee")
    return amount
