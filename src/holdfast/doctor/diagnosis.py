"""Runs all checks at once."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from holdfast.doctor.check import Check, CheckResult, Level, problem
from holdfast.doctor.database_access import SkippedError
from holdfast.doctor.installation import Installation, ProcessCounts, open_installation
from holdfast.doctor.secret_filter import SecretFilter

CHECK_SECONDS: Final = 8.0


class Diagnosis(Struct, frozen=True):
    """`ok` if there is no problem. Warnings do not count."""

    ok: bool
    results: list[CheckResult]


async def diagnose(
    environment: Mapping[str, str],
    processes: ProcessCounts,
    checks: Sequence[Check],
    check_seconds: float = CHECK_SECONDS,
) -> Diagnosis:
    """The results come in the order of the checks, whichever of them is done first."""
    installation = open_installation(environment, processes)
    hide = SecretFilter(environment).hide
    try:
        found = await asyncio.gather(*(_run(check, installation, check_seconds) for check in checks))
    finally:
        await installation.database.close()
    results = [
        CheckResult(each.level, hide(each.text), hide(each.remedy) if each.remedy else None, check.subject)
        for check, of_check in zip(checks, found, strict=True)
        for each in of_check
    ]
    return Diagnosis(not any(each.level is Level.PROBLEM for each in results), results)


async def _run(check: Check, installation: Installation, seconds: float) -> list[CheckResult]:
    """A check that fails or hangs is a problem of its own, and does not stop the others."""
    found: list[CheckResult] = []
    try:
        async with asyncio.timeout(seconds):
            async for result in check.run(installation):
                # One at a time, because a failure must not lose the results before it.
                found.append(result)  # noqa: PERF401
    except SkippedError as error:
        found.append(CheckResult(Level.SKIPPED, f"Not checked. {error}"))
    except TimeoutError:
        found.append(
            problem(
                f"The check did not end within {seconds:g} seconds.",
                "Check that this machine can reach the server, and that a firewall does not drop the packets.",
            )
        )
    except Exception as error:
        # Not its text, which might quote anything.
        found.append(
            problem(
                f"The check failed with {type(error).__name__}.",
                "Report it as a bug in Holdfast, and check this subject yourself.",
            )
        )
    return found
