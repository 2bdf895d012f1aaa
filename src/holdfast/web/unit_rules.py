"""How many units one booking can have, as a sentence."""

from holdfast.api.responses import EventView
from holdfast.i18n.texts import translate
from holdfast.web.buyer_fields import answered_units_max
from holdfast.web.hold_choice import units_max


def units_rule(event: EventView, language: str) -> str:
    """What the policy says about every booking. Empty if it says nothing."""
    policy = event.policy
    return _sentence(language, policy.min_units, None if policy.max_units is None else units_max(policy))


def units_correction(event: EventView, language: str) -> str:
    """What to tell a buyer who asked for too few or too many. A form can ask about only so many units."""
    return units_rule(event, language) or _sentence(language, None, answered_units_max(event))


def _sentence(language: str, least: int | None, most: int | None) -> str:
    if least is not None and least > 1 and most is not None:
        key = "units.exactly" if least == most else "units.between"
        return translate(language, key, least=least, most=most)
    if least is not None and least > 1:
        return translate(language, "units.least", least=least)
    return translate(language, "units.most", most=most) if most is not None else ""
