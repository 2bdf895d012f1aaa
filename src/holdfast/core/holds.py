"""Placing a hold. Checks run in the order of `refusals.py`, so that the first reason to refuse is the one reported."""

from typing import Final

from msgspec import structs

from holdfast.core.booking import Booking, BuyerInput, Line
from holdfast.core.buyer_form import sort_answers
from holdfast.core.commands import Accepted, BestSeats, PlaceHold, PoolItem, SeatItem
from holdfast.core.event_state import EventState
from holdfast.core.hoarding import check_hoarding, is_limited
from holdfast.core.hold_rules import check_form, check_pool_windows
from holdfast.core.layout import Pool, Tariff
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.same_booking import find_same_booking
from holdfast.core.seat_ranking import BEST_SEATS_MAX
from holdfast.core.seating import find_orphans
from holdfast.core.states import EventStatus, Status

# How many tariffs a refusal names.
TARIFFS_NAMED_MAX: Final = 20


def place_hold(state: EventState, command: PlaceHold) -> Accepted:
    layout = state.layout
    is_hidden = layout.status is EventStatus.DRAFT and not command.staff
    if is_hidden or layout.org != command.org:
        raise RefusedError(Refusal.NOT_FOUND)
    if len(command.items) > 1:
        _refuse_duplicate_seats(command)
    earlier = state.booking_by_request.get(command.request_key)
    if earlier is not None and earlier.fingerprint == command.fingerprint:
        if earlier.user != command.user and not command.staff:
            raise RefusedError(
                Refusal.ALREADY_TRANSFERRED,
                "The booking that you placed with this Idempotency-Key now belongs to someone else. To book again, "
                "send a new key.",
            )
        return Accepted(earlier, layout, state.now, replayed=earlier.id != command.booking)
    if layout.status is not EventStatus.ACTIVE:
        raise RefusedError(Refusal.EVENT_NOT_ON_SALE, f"The event is {layout.status.value}.")
    is_box_office = command.staff and layout.policy.box_office
    if not is_box_office:
        layout.sales_window.check(state.now)
    if earlier is not None:
        raise RefusedError(Refusal.IDEMPOTENCY_KEY_REUSED)
    lines = _price_items(state, command)
    if layout.has_pool_windows and not is_box_office:
        check_pool_windows(state, lines)
    same = find_same_booking(state, command, lines)
    if same is not None:
        return Accepted(same, layout, state.now, replayed=True, is_reentrant=True)
    if layout.has_form or command.answers is not None:
        check_form(state, command, lines)
    if layout.policy.limits_users:
        _check_own_limits(state, command.user, lines)
    if is_limited(layout.policy, command.client):
        check_hoarding(state, command, lines)
    if command.best_available is None:
        _check_availability(state, command.user, lines)
    else:
        lines = _choose_best_seats(state, command.best_available, lines[0])
    if len(lines) < len(command.items):
        command = _sort_answers(state, command, lines)
    booking = state.add_booking(_new_booking(state, command, lines), command.actor)
    return Accepted(booking, layout, state.now)


def _refuse_duplicate_seats(command: PlaceHold) -> None:
    labels = [item.label for item in command.items if isinstance(item, SeatItem)]
    if len(set(labels)) < len(labels):
        raise RefusedError(Refusal.INVALID_REQUEST, "The request names a seat twice.")


def _price_items(state: EventState, command: PlaceHold) -> tuple[Line, ...]:
    """The request as lines. For best available seats, this is one line without a seat."""
    if command.best_available is not None:
        if command.best_available.quantity > BEST_SEATS_MAX:
            raise RefusedError(Refusal.INVALID_REQUEST, f"A request can ask for at most {BEST_SEATS_MAX} best seats.")
        pool = _find_pool(state, command.best_available.pool)
        if pool.seats is None:
            raise RefusedError(
                Refusal.INVALID_REQUEST, f"The pool {pool.code} has no seats. Request a quantity instead."
            )
        tariff = _find_tariff(pool, command.best_available.tariff)
        return (Line(pool.number, tariff.number, None, command.best_available.quantity, tariff.price),)
    if len(command.items) == 1:
        return (_price_item(state, command.items[0]),)
    return _merge_lines(_price_all(state, command.items))


def _price_all(state: EventState, items: tuple[SeatItem | PoolItem, ...]) -> list[Line]:
    lines: list[Line] = []
    errors: list[RefusedError] = []
    for item in items:
        try:
            lines.append(_price_item(state, item))
        except RefusedError as error:
            errors.append(error)
    if errors:
        raise min(errors, key=lambda error: error.refused.refusal.rank)
    return lines


def _price_item(state: EventState, item: SeatItem | PoolItem) -> Line:
    if isinstance(item, SeatItem):
        seat = state.layout.seat_by_label.get(item.label)
        if seat is None:
            raise RefusedError(Refusal.UNKNOWN_SEAT, f"There is no seat {item.label}.", conflicts=(item.label,))
        tariff = _find_tariff(state.layout.pools[seat.pool], item.tariff)
        return Line(seat.pool, tariff.number, seat.number, 1, tariff.price)
    pool = _find_pool(state, item.pool)
    if pool.seats is not None:
        raise RefusedError(
            Refusal.INVALID_REQUEST, f"The pool {pool.code} has seats. Name them, or request the best available."
        )
    tariff = _find_tariff(pool, item.tariff)
    return Line(pool.number, tariff.number, None, item.quantity, tariff.price)


def _find_pool(state: EventState, code: str) -> Pool:
    pool = state.layout.pool_by_code.get(code)
    if pool is None:
        raise RefusedError(Refusal.UNKNOWN_POOL, f"There is no pool {code}.", conflicts=(code,))
    return pool


def _find_tariff(pool: Pool, code: str | None) -> Tariff:
    if code is None and len(pool.tariffs) == 1:
        return pool.tariffs[0]
    for tariff in pool.tariffs:
        if tariff.code == code:
            return tariff
    codes = ", ".join(tariff.code for tariff in pool.tariffs[:TARIFFS_NAMED_MAX])
    if len(pool.tariffs) > TARIFFS_NAMED_MAX:
        codes += " …"
    raise RefusedError(Refusal.UNKNOWN_TARIFF, f"The tariffs of {pool.code} are: {codes}.", conflicts=(pool.code,))


def _merge_lines(lines: list[Line]) -> tuple[Line, ...]:
    """Add up the quantities of the same pool and tariff."""
    merged: dict[tuple[int, int, int | None], Line] = {}
    for line in lines:
        key = (line.pool, line.tariff, line.seat)
        quantity = line.quantity + (merged[key].quantity if key in merged else 0)
        merged[key] = Line(line.pool, line.tariff, line.seat, quantity, line.unit_price)
    return tuple(merged.values())


def _sort_answers(state: EventState, command: PlaceHold, lines: tuple[Line, ...]) -> PlaceHold:
    """Answers per unit come in the order of the items. Merging items has changed the order of the units."""
    if command.answers is None:
        return command
    position = {(line.pool, line.tariff, line.seat): at for at, line in enumerate(lines)}
    units = [
        position[line.pool, line.tariff, line.seat]
        for line in _price_all(state, command.items)
        for _ in range(line.quantity)
    ]
    order = sorted(range(len(units)), key=units.__getitem__)
    return structs.replace(command, answers=sort_answers(state.layout.questions, command.answers, order))


def check_user_limits(state: EventState, user: str, lines: tuple[Line, ...]) -> None:
    policy = state.layout.policy
    if policy.one_booking_per_user and state.users[user].bookings:
        raise RefusedError(Refusal.ALREADY_BOOKED)
    if policy.max_units_per_user is not None:
        has = state.users[user].units
        if has + sum(line.quantity for line in lines) > policy.max_units_per_user:
            raise RefusedError(
                Refusal.LIMIT_REACHED,
                f"A user can have at most {policy.max_units_per_user} units; this user already has {has}.",
            )


def _check_own_limits(state: EventState, user: str, lines: tuple[Line, ...]) -> None:
    """Name the booking that is in the way. Only its owner, or staff, can place a hold for this user."""
    try:
        check_user_limits(state, user, lines)
    except RefusedError as error:
        own = state.users[user].booking
        booking = (state.layout.event, own) if own is not None else None
        raise RefusedError.of(structs.replace(error.refused, booking=booking)) from None


def _check_availability(state: EventState, user: str, lines: tuple[Line, ...]) -> None:
    seats = [line.seat for line in lines if line.seat is not None]
    if seats:
        taken = [seat for seat in seats if not state.is_free(seat)]
        if taken:
            raise _seats_taken(state, user, taken)
    short = find_short_pools(state, lines)
    if short:
        raise RefusedError(Refusal.SOLD_OUT, f"Not enough left of: {', '.join(short)}.", conflicts=tuple(short))
    if seats and state.layout.policy.avoid_orphans:
        _refuse_orphans(state, seats)


def _seats_taken(state: EventState, user: str, taken: list[int]) -> RefusedError:
    labels = {seat: state.layout.seats[seat].label for seat in taken}
    detail = f"Taken: {', '.join(labels.values())}."
    own = {seat: owner.id for seat in taken if (owner := state.owners.get(seat)) and owner.user == user}
    if own:
        detail += f" This user already has {', '.join(labels[seat] for seat in own)}."
    booking = (state.layout.event, next(iter(own.values()))) if own else None
    return RefusedError(Refusal.SEAT_TAKEN, detail, conflicts=tuple(labels.values()), booking=booking)


def _refuse_orphans(state: EventState, seats: list[int]) -> None:
    orphans = [state.layout.seats[seat].label for seat in find_orphans(state.layout, seats, state.is_free)]
    if orphans:
        raise RefusedError(
            Refusal.ORPHAN_SEAT,
            f"This choice would leave {', '.join(orphans)} alone between taken seats.",
            conflicts=tuple(orphans),
        )


def find_short_pools(state: EventState, lines: tuple[Line, ...]) -> list[str]:
    """The codes of the pools that have fewer units left than the lines need."""
    wanted: dict[int, int] = {}
    for line in lines:
        wanted[line.pool] = wanted.get(line.pool, 0) + line.quantity
    short = [pool for pool, units in wanted.items() if units > state.counters[pool].remaining]
    return [state.layout.pools[pool].code for pool in short]


def _choose_best_seats(state: EventState, best: BestSeats, priced: Line) -> tuple[Line, ...]:
    pool = state.layout.pools[priced.pool]
    seats = None
    if best.quantity <= state.counters[pool.number].remaining:
        chooser = state.seat_chooser(pool)
        seats = (chooser.choose_adjacent if best.adjacent else chooser.choose_scattered)(best.quantity)
    if seats is None:
        adjacent = " adjacent" if best.adjacent else ""
        raise RefusedError(
            Refusal.SOLD_OUT, f"{pool.code} does not have {best.quantity}{adjacent} seats left.", conflicts=(pool.code,)
        )
    return tuple(Line(pool.number, priced.tariff, seat, 1, priced.unit_price) for seat in seats)


def _new_booking(state: EventState, command: PlaceHold, lines: tuple[Line, ...]) -> Booking:
    layout = state.layout
    subtotal = sum([line.quantity * line.unit_price for line in lines])
    tax = (subtotal * layout.tax_bps + 5_000) // 10_000
    at_once = layout.policy.confirm_at_once
    expires_at, max_expires_at = (None, None) if at_once else state.deadlines
    client = command.client
    return Booking(
        id=command.booking,
        event=command.event,
        org=command.org,
        status=Status.CONFIRMED if at_once else Status.HELD,
        lines=lines,
        subtotal=subtotal,
        tax=tax,
        total=subtotal + tax,
        currency=layout.currency,
        created_at=state.now,
        expires_at=expires_at,
        max_expires_at=max_expires_at,
        request_key=command.request_key,
        fingerprint=command.fingerprint,
        client=client.address if client is not None and is_limited(layout.policy, client) else None,
        has_details=command.details is not None or command.answers is not None,
        one_per_user=layout.policy.one_booking_per_user,
        version=state.version + 1,
        **{name: getattr(command, name) for name in BuyerInput.__struct_fields__},
    )
