"""Texts of the pages: a look-up for templates, and what a buyer reads when the API refuses a request."""

from holdfast.i18n.texts import section, translate
from holdfast.web.page_problems import PageProblem


def page_text(language: str, key: str, **values: object) -> str:
    return translate(language, f"page.{key}", **values)


def refusal_text(language: str, problem: PageProblem, *, most: int | None = None, of_best: bool = False) -> str:
    """`most`: how many units of the event one buyer may have, if the buyer asked for units. `of_best`: the buyer asked
    for the best seats available and named none."""
    known = section(language, "refusal")
    key = f"{problem.code}_best" if of_best and f"{problem.code}_best" in known else problem.code
    # Limits of payments and receipts share the code and have no `most`.
    if key not in known or (key == "limit_reached" and most is None):
        key = "other"
    return translate(language, f"refusal.{key}", conflicts=", ".join(problem.conflicts), most=most)
