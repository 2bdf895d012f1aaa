"""Runs a check of the auditor so that it cannot stop the others."""

from collections.abc import Awaitable
from typing import Final, TypeVar

from holdfast.engine.findings import EventFindings
from holdfast.runtime.db import BLOCKED_ERRORS, EXHAUSTED_ERRORS, LOST_ERRORS, DatabaseScope
from holdfast.runtime.logged_errors import error_text

# These say nothing about the event: another attempt may succeed.
_PASSING_ERRORS: Final = (*LOST_ERRORS, *BLOCKED_ERRORS, *EXHAUSTED_ERRORS)

Result = TypeVar("Result")


async def guard_check(
    scope: DatabaseScope, name: str, findings: EventFindings, check: Awaitable[Result]
) -> Result | None:
    """Await the check. If it fails because of what it reads, add that as a finding, and return None."""
    try:
        # An error ends the transaction that it happens in, and the other checks need the outer one.
        async with scope.transaction("repeatable_read"):
            return await check
    except _PASSING_ERRORS:
        raise
    except Exception as error:
        findings.add(
            "audit_failed",
            name,
            f"The auditor cannot check the {name} of this event: {type(error).__name__}: {error_text(error)}. "
            "Look for a row that Holdfast would not have written.",
        )
        return None
