"""Why a page cannot do what its reader asked."""

from typing import Final

from msgspec import Struct

from holdfast.api.problems import HTTP_STATUS
from holdfast.core.refusals import RefusedError


class PageProblem(Struct, frozen=True):
    """A refusal of the API, or something that only a page refuses. `code` chooses the text that the reader sees."""

    status: int
    code: str
    conflicts: tuple[str, ...] = ()


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
    return PageProblem(HTTP_STATUS[refused.refusal], refused.refusal.code, refused.conflicts)
