"""Runs the checks of `holdfast doctor` in this process, on settings that a test chooses."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.doctor.check import Check, CheckResult, Level
from holdfast.doctor.checks import CHECKS
from holdfast.doctor.diagnosis import Diagnosis, diagnose
from holdfast.doctor.installation import ProcessCounts
from tests.support.harness import query, wait_until, with_database

PASSWORD = "correct-horse"
ROLE = "doctor_patient"
Environment = dict[str, str]


def examine(environment: Environment, checks: Sequence[Check] = CHECKS) -> Diagnosis:
    return asyncio.run(diagnose(environment, ProcessCounts(api=2, workers=1, bots=0), checks))


def examine_for(subject: str, environment: Environment) -> list[CheckResult]:
    """What the doctor finds about one subject."""
    diagnosis = examine(environment, [check for check in CHECKS if check.subject == subject])
    assert diagnosis.ok == all(result.level is not Level.PROBLEM for result in diagnosis.results)
    return diagnosis.results


def find_trouble(results: list[CheckResult]) -> CheckResult:
    """The only warning or problem. It says what to do."""
    (trouble,) = [result for result in results if result.level in (Level.WARNING, Level.PROBLEM)]
    assert trouble.remedy
    return trouble


@contextmanager
def server_setting(postgres: str, name: str, value: str) -> Iterator[None]:
    """A setting of the server that takes effect without a restart."""
    before = query(postgres, f"SHOW {name}")[0][0]
    _set(postgres, name, value)
    try:
        yield
    finally:
        _set(postgres, name, before)


def _set(postgres: str, name: str, value: str) -> None:
    query(postgres, f"ALTER SYSTEM SET {name} = {value}")
    query(postgres, "SELECT pg_reload_conf()")
    wait_until(lambda: bool(query(postgres, f"SHOW {name}")[0][0] == value), 30)


def as_role(postgres: str, name: str, password: str = PASSWORD) -> str:
    return with_database(postgres, name).replace("postgres:@", f"{ROLE}:{password}@")
