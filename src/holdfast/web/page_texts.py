"""Texts of the pages: a look-up for templates, and what a buyer reads when the API refuses a request."""

from holdfast.api.responses import EventView
from holdfast.i18n.texts import section, translate
from holdfast.web.page_problems import PageProblem


def page_text(language: str, key: str, **values: object) -> str:
    return translate(language, f"page.{key}", **values)


def refusal_text(language: str, problem: PageProblem, event: EventView, *, of_best: bool = False) -> str:
    """`of_best`: the buyer asked for the best seats available and named none."""
    known = section(language, "refusal")
    most = event.policy.max_units_per_user
    key = f"{problem.code}_best" if of_best and f"{problem.code}_best" in known else problem.code
    # Limits that are not the event's number of units per user share the code and have no `most`.
    if key not in known or (key == "limit_reached" and most is None):
        key = "other"
    return translate(language, f"refusal.{key}", conflicts=", ".join(problem.conflicts), most=most)
