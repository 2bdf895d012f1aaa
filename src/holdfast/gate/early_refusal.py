"""What the engine would answer to a buyer who has nothing in the event yet, given the seats that others have.

The answer comes from the engine's own rules, so a refusal is the one that the engine would have given, word for word.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from holdfast.core.clients import UserRecord
from holdfast.core.commands import PlaceHold
from holdfast.core.event_state import EventState, PoolCounter
from holdfast.core.holds import place_hold
from holdfast.core.layout import Layout
from holdfast.core.refusals import Refusal, Refused, RefusedError

# More than anybody can ask for, so that a pool that Redis did not report never causes an early refusal.
PLENTY: Final = 10**9


def refuse_taken_seats(layout: Layout, command: PlaceHold, now: datetime, labels: Iterable[str]) -> Refused | None:
    """None if another reason comes first, or if the engine would find nothing to refuse."""
    taken = {layout.seat_by_label[label].number for label in labels}
    return _refuse(layout, command, now, Refusal.SEAT_TAKEN, taken, {})


def refuse_too_few_left(layout: Layout, command: PlaceHold, now: datetime, units: int) -> Refused | None:
    """The same for a pool whose best seats the buyer asks for."""
    assert command.best_available is not None
    pool = layout.pool_by_code.get(command.best_available.pool)
    # Redis may already know of a pool that somebody has just added.
    return _refuse(layout, command, now, Refusal.SOLD_OUT, set(), {pool.number: units}) if pool is not None else None


def _refuse(
    layout: Layout, command: PlaceHold, now: datetime, expected: Refusal, taken: set[int], left: dict[int, int]
) -> Refused | None:
    counters = {pool.number: PoolCounter(left.get(pool.number, PLENTY), 0, 0) for pool in layout.pools}
    state = EventState(layout, now, 0, counters, {}, taken, {command.user: UserRecord(0, 0, 0)})
    try:
        place_hold(state, command)
    except RefusedError as error:
        return error.refused if error.refused.refusal is expected else None
    return None
