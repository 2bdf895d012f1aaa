"""Limits on buyers who hold more than they pay for. They apply to guests, who can start over with a fresh cookie at any
time, and to customers if the event's policy says so. Callers with secret keys are trusted."""

import math
from typing import Final

from holdfast.core.booking import Booking, Line
from holdfast.core.clients import ExpiryStreak
from holdfast.core.commands import Client, PlaceHold
from holdfast.core.event_state import EventState
from holdfast.core.policy import Policy
from holdfast.core.refusals import Refusal, RefusedError

# Strangers share an address, so its cooldown takes this many times as many expired holds as a user's.
ADDRESS_FACTOR: Final = 10


def is_limited(policy: Policy, client: Client | None) -> bool:
    return client is not None and (client.is_guest or policy.limit_customers)


def check_late_receipt(state: EventState, booking: Booking) -> None:
    """Refuse to revive an expired hold if its address has too many unpaid units by now: a receipt is not money yet."""
    if booking.client is None:
        return
    limit = state.layout.policy.max_unpaid_units_per_address
    has = state.clients.of_client(booking.client).unpaid_units
    if limit is not None and has + booking.units > limit:
        raise RefusedError(Refusal.HOLD_EXPIRED)


def check_hoarding(state: EventState, command: PlaceHold, lines: tuple[Line, ...]) -> None:
    """Refuse a hold if its buyer or its address has too many unpaid units. The counts for this event are exact, because
    the batch holds its lock. The API counted the units in other events before."""
    client = command.client
    assert client is not None
    wanted = sum(line.quantity for line in lines)
    _check_user(state, command.user, wanted)
    _check_address(state, client, wanted)
    after = state.layout.policy.cooldown_after_expired
    if after is not None:
        _check_streak(state, state.clients.streak_of_user(command.user), after)
        _check_streak(state, state.clients.of_client(client.address).streak, after * ADDRESS_FACTOR)


def _check_user(state: EventState, user: str, wanted: int) -> None:
    limit = state.layout.policy.max_unpaid_units_per_user
    if limit is None:
        return
    has = state.users[user].unpaid_units
    if has + wanted > limit:
        raise RefusedError(
            Refusal.UNPAID_LIMIT_REACHED,
            f"A user can hold at most {limit} unpaid units; this user holds {has}. "
            "Pay for them, cancel them, or wait until they expire.",
        )


def _check_address(state: EventState, client: Client, wanted: int) -> None:
    has = state.clients.of_client(client.address).unpaid_units
    limit = state.layout.policy.max_unpaid_units_per_address
    if limit is not None and has + wanted > limit:
        raise RefusedError(
            Refusal.ADDRESS_LIMIT_REACHED,
            f"An address can hold at most {limit} unpaid units of this event; this address holds {has}. "
            "Pay for yours, or wait until others are paid for or expire.",
        )
    has += client.unpaid_elsewhere
    if client.max_in_org is not None and has + wanted > client.max_in_org:
        raise RefusedError(
            Refusal.ADDRESS_LIMIT_REACHED,
            f"An address can hold at most {client.max_in_org} unpaid units in all events together; "
            f"this address holds {has}. Pay for yours, or wait until others are paid for or expire.",
        )


def _check_streak(state: EventState, streak: ExpiryStreak, expired_max: int) -> None:
    if streak.expired < expired_max or streak.last_at is None:
        return
    since = (state.now - streak.last_at).total_seconds()
    left = math.ceil(state.layout.policy.cooldown_seconds - since)
    if left > 0:
        raise RefusedError(
            Refusal.TOO_MANY_EXPIRED_HOLDS,
            f"{streak.expired} holds in a row have expired without a payment. Try again in {left} seconds.",
            retry_after=left,
        )
