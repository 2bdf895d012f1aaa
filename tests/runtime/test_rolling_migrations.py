"""Every step of the schema says whether processes that do not know it can go on running beside it."""

import asyncio

import pytest
from typer.testing import CliRunner

from holdfast import sql
from holdfast.runtime import db
from holdfast.runtime.cli import app
from tests.support.command_line import call_holdfast
from tests.support.harness import query, running_server
from tests.support.old_schema import database_at_step

ROLLING = sql.Migration(9998, "-- rolling: yes\nCREATE TABLE added_beside (id integer)")
NOT_ROLLING = sql.Migration(9999, "-- rolling: no\nCREATE TABLE added_alone (id integer)")
NEWEST = sql.migrations()[-1].number


def _release(monkeypatch: pytest.MonkeyPatch, *steps: sql.Migration) -> None:
    """Turn this process into a newer version of Holdfast, with these steps."""
    newer = [*sql.migrations(), *steps]
    monkeypatch.setattr(sql, "migrations", lambda: newer)


def _check(database: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["migrate", "--check"], env={"HOLDFAST_DATABASE_URL": database})
    return done.exit_code, done.stdout


@pytest.mark.parametrize("step", sql.migrations(), ids=lambda step: f"{step.number:04}")
def test_every_step_says_whether_it_is_rolling(step: sql.Migration) -> None:
    assert step.text.startswith(("-- rolling: yes\n", "-- rolling: no\n")), "the first line must say so"


def test_an_old_process_starts_and_sells_beside_a_newer_schema_that_is_rolling(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        _release(newer, ROLLING)
        assert asyncio.run(db.migrate(database)) == 1
    assert call_holdfast(database, "migrate").returncode == 0
    with running_server(database, workers=1) as server, server.client() as client:
        assert client.get("/readyz").status_code == 200
    assert call_holdfast(database, "audit").returncode == 0


@pytest.mark.parametrize("steps", [[NOT_ROLLING], [ROLLING, NOT_ROLLING]], ids=["alone", "after a rolling one"])
def test_an_old_process_refuses_a_newer_schema_with_a_step_that_is_not_rolling(
    database: str, monkeypatch: pytest.MonkeyPatch, steps: list[sql.Migration]
) -> None:
    with monkeypatch.context() as newer:
        _release(newer, *steps)
        asyncio.run(db.migrate(database))
    with pytest.raises(db.SchemaError, match="schema version 9999"):
        asyncio.run(db.migrate(database))


def test_a_step_of_a_version_that_did_not_know_rolling_upgrades_is_not_rolling(postgres: str) -> None:
    with database_at_step(postgres, NEWEST) as url:
        query(url, "INSERT INTO schema_version VALUES (9999)")
        with pytest.raises(db.SchemaError):
            asyncio.run(db.migrate(url))


def test_check_finds_nothing_to_do(database: str) -> None:
    assert _check(database) == (0, "The schema is up to date.\n")


def test_check_allows_a_rolling_upgrade_and_changes_nothing(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _release(monkeypatch, ROLLING)
    status, text = _check(database)
    assert (status, "You can upgrade without downtime." in text) == (0, True)
    assert "step 9998: rolling" in text
    assert query(database, "SELECT to_regclass('added_beside')")[0][0] is None


def test_check_says_that_old_processes_must_stop(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _release(monkeypatch, ROLLING, NOT_ROLLING)
    status, text = _check(database)
    assert (status, "Stop all processes of the old version" in text) == (1, True)
    assert "step 9999: not rolling" in text


def test_check_of_an_empty_database_asks_nobody_to_stop(postgres: str) -> None:
    with database_at_step(postgres, 0) as url:
        query(url, "DROP TABLE schema_version")
        status, text = _check(url)
        assert (status, "The database is empty." in text) == (0, True)
        assert query(url, "SELECT to_regclass('schema_version')")[0][0] is None
