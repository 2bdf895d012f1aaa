"""Why a page cannot do what its reader asked, and what the reader sees then."""

import math
from datetime import datetime
from typing import Final

from msgspec import Struct

from holdfast.api.problems import HTTP_STATUS
from holdfast.core.refusals import RefusedError
from holdfast.i18n.texts import section, translate
from holdfast.runtime.ids import format_booking_id


class PageProblem(Struct, frozen=True):
    """A refusal of the API, or something that only a page refuses. `code` chooses the text that the reader sees.
    `booking` is the reader's own booking that is in the way."""

    status: int
    code: str
    conflicts: tuple[str, ...] = ()
    retry_after: int | None = None
    sales_open_at: datetime | None = None
    booking: str | None = None


class PageError(Exception):
    """A problem that the API does not know, such as a form without a choice."""

    def __init__(self, problem: PageProblem) -> None:
        super().__init__(problem.code)
        self.problem = problem


NOT_FOUND: Final = PageProblem(404, "not_found")


def problem_of(error: RefusedError | PageError) -> PageProblem:
    if isinstance(error, PageError):
        return error.problem
    refused = error.refused
    return PageProblem(
        HTTP_STATUS[refused.refusal],
        refused.refusal.code,
        refused.conflicts,
        refused.retry_after,
        refused.sales_open_at,
        format_booking_id(*refused.booking) if refused.booking is not None else None,
    )


def refusal_text(
    language: str, problem: PageProblem, *, limit: int | None = None, of_best: bool = False, hint: str = ""
) -> str:
    """`limit`: how many units of the event one buyer may have, if the buyer asked for units. `of_best`: the buyer asked
    for the best seats available and named none. `hint`: a sentence about this event that ends some of the texts."""
    known = section(language, "refusal")
    key = f"{problem.code}_best" if of_best and f"{problem.code}_best" in known else problem.code
    # Limits of payments and receipts share the code and have no `limit`.
    if key not in known or (key == "limit_reached" and limit is None):
        key = "other"
    minutes = math.ceil((problem.retry_after or 60) / 60)
    conflicts = ", ".join(problem.conflicts)
    text = translate(language, f"refusal.{key}", conflicts=conflicts, limit=limit, minutes=minutes, hint=hint)
    return text.strip()
