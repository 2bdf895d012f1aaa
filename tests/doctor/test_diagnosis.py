"""A check that fails or hangs is reported, and the others go on."""

import asyncio
from pathlib import Path

from holdfast.doctor.check import Check, Level, Results, ok
from holdfast.doctor.diagnosis import Diagnosis, diagnose
from holdfast.doctor.installation import Installation, ProcessCounts
from holdfast.doctor.rights_check import find_needed_rights
from holdfast.doctor.secret_filter import SecretFilter
from holdfast.gate import lua

PROCESSES = ProcessCounts(api=1, workers=1, bots=0)


async def finds(_: Installation) -> Results:
    yield ok("All is well.")


async def crashes(_: Installation) -> Results:
    yield ok("So far so good.")
    raise RuntimeError("postgresql://user:hunter2@host")


async def hangs(_: Installation) -> Results:
    yield ok("It starts.")
    await asyncio.Event().wait()


async def tells(_: Installation) -> Results:
    yield ok("The key is sk_live_hunter2.")


def run(*checks: Check, seconds: float = 30, **environment: str) -> Diagnosis:
    return asyncio.run(diagnose(environment, PROCESSES, checks, seconds))


def test_a_check_that_crashes_is_a_problem_and_keeps_what_it_found() -> None:
    diagnosis = run(Check("first", crashes), Check("second", finds))
    assert not diagnosis.ok
    levels = [(result.subject, result.level) for result in diagnosis.results]
    assert levels == [("first", Level.OK), ("first", Level.PROBLEM), ("second", Level.OK)]
    assert "RuntimeError" in diagnosis.results[1].text
    assert "hunter2" not in str(diagnosis)


def test_a_check_that_hangs_ends() -> None:
    diagnosis = run(Check("first", hangs), Check("second", finds), seconds=0.2)
    assert [result.level for result in diagnosis.results] == [Level.OK, Level.PROBLEM, Level.OK]
    assert "0.2 seconds" in diagnosis.results[1].text


def test_checks_run_at_the_same_time() -> None:
    """Each waits for the other."""
    met = asyncio.Barrier(2)

    async def meets(_: Installation) -> Results:
        await met.wait()
        yield ok("Both are here.")

    assert run(Check("first", meets), Check("second", meets)).ok


def test_a_secret_that_a_check_repeats_is_hidden() -> None:
    diagnosis = run(Check("first", tells), HOLDFAST_STRIPE_KEY="sk_live_hunter2")
    assert diagnosis.results[0].text == "The key is ***."


def test_secrets_are_found_in_variables_that_nobody_has_heard_of() -> None:
    hide = SecretFilter(
        {"HOLDFAST_NEW_TOKEN": "abcdef", "HOLDFAST_KAFKA_URL": "kafka://me:pa%24s@a:9092,b", "OTHER_KEY": "visible"}
    ).hide
    assert hide("abcdef pa%24s pa$s visible me") == "*** *** *** visible me"


def test_needed_rights_come_from_the_statements() -> None:
    needed = find_needed_rights()
    assert needed >= {("event", "UPDATE"), ("journal", "INSERT"), ("booking", "SELECT"), ("audit", "UPDATE")}
    assert ("journal", "DELETE") not in needed


def test_the_probe_of_redis_tries_every_command_of_the_scripts() -> None:
    scripts = {path.stem: path.read_text() for path in Path(lua.__file__).parent.glob("*.lua")}
    probed = {line.split("'")[1] for line in scripts.pop("probe").splitlines() if line.startswith("try('")}
    used = {call.split("'")[1] for text in scripts.values() for call in text.split("redis.call(")[1:]}
    assert len(used) > 10
    assert used <= probed
