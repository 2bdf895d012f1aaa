"""What an event demands of every hold: pools on sale, contact details, answers, companions and a number of units."""

from holdfast.core.booking import Line
from holdfast.core.buyer_form import check_answers, check_contact
from holdfast.core.commands import PlaceHold
from holdfast.core.event_state import EventState
from holdfast.core.refusals import Refusal, RefusedError


def check_pool_windows(state: EventState, lines: tuple[Line, ...]) -> None:
    """Refuse pools that are not on sale while others are."""
    layout = state.layout
    errors: list[RefusedError] = []
    for pool in dict.fromkeys(line.pool for line in lines):
        try:
            layout.pool_windows[pool].check(state.now, (layout.pools[pool].code,))
        except RefusedError as error:
            errors.append(error)
    if errors:
        raise min(errors, key=lambda error: error.refused.refusal.rank)


def check_form(state: EventState, command: PlaceHold, lines: tuple[Line, ...]) -> None:
    """Refuse a hold that lacks what the event asks of every buyer."""
    layout = state.layout
    if layout.required_contact:
        check_contact(layout.required_contact, command)
    units = sum([line.quantity for line in lines])
    if layout.questions or command.answers is not None:
        check_answers(layout.questions, command.answers, units)
    if layout.has_companions:
        _check_companions(state, lines)
    policy = layout.policy
    if units < (policy.min_units or 0):
        raise RefusedError(Refusal.UNIT_COUNT, f"A booking needs at least {policy.min_units} units.")
    if policy.max_units is not None and units > policy.max_units:
        raise RefusedError(Refusal.UNIT_COUNT, f"A booking can have at most {policy.max_units} units.")


def _check_companions(state: EventState, lines: tuple[Line, ...]) -> None:
    """A companion comes at the same time: an adult in the morning does not accompany a child in the afternoon."""
    pools = state.layout.pools
    accompanied = {
        pools[line.pool].schedule.starts_at
        for line in lines
        if not pools[line.pool].tariffs[line.tariff].needs_companion
    }
    alone = [line for line in lines if pools[line.pool].schedule.starts_at not in accompanied]
    if alone:
        names = dict.fromkeys(pools[line.pool].tariffs[line.tariff].name for line in alone)
        raise RefusedError(
            Refusal.COMPANION_REQUIRED,
            f"These tickets need a companion: {', '.join(names)}.",
            conflicts=tuple(dict.fromkeys(pools[line.pool].code for line in alone)),
        )
