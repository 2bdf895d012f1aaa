"""What a check is, and what it finds."""

from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from holdfast.doctor.installation import Installation


class Level(StrEnum):
    OK = "ok"
    # Holdfast did not look, for example because the database does not answer.
    SKIPPED = "skipped"
    WARNING = "warning"
    PROBLEM = "problem"


class CheckResult(Struct, frozen=True):
    """What a check found, in one line. `remedy` says what to do about a warning or a problem."""

    level: Level
    text: str
    remedy: str | None = None
    # The subject of the check, once it has run.
    subject: str = ""


Results: TypeAlias = AsyncIterator[CheckResult]


class Check(Struct, frozen=True):
    """One subject. `run` yields everything that it finds; what it has yielded counts even if it fails afterwards. It
    yields nothing if the installation does not use what the check is about. It leaves nothing behind."""

    subject: str
    run: Callable[[Installation], Results]


def ok(text: str) -> CheckResult:
    return CheckResult(Level.OK, text)


def warning(text: str, remedy: str) -> CheckResult:
    return CheckResult(Level.WARNING, text, remedy)


def problem(text: str, remedy: str) -> CheckResult:
    return CheckResult(Level.PROBLEM, text, remedy)
