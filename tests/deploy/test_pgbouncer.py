"""Holdfast through PgBouncer: session mode works, and everything that would break a promise is refused at the start."""

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.bot.leadership import Leadership
from holdfast.runtime import db
from tests.support.command_line import call_holdfast, run_audit, run_holdfast, with_free_port
from tests.support.harness import (
    Org,
    connection_to,
    example_event,
    fresh_database,
    post_hold,
    publish_event,
    query,
    running_server,
    with_database,
)
from tests.support.pgbouncer_process import running_pgbouncer
from tests.support.shell_examples import read_example

BOT = 7
# The statements that docs/deployment.md gives to operators.
DEFAULTS = [line for line in read_example("deployment.md", "ALTER ROLE holdfast").splitlines() if line]


@pytest.fixture(scope="module")
def roles(postgres: str) -> Iterator[str]:
    """The URL of a server whose user `holdfast` has the defaults of the documentation. The user `bare` has none."""
    query(postgres, "CREATE ROLE bare LOGIN SUPERUSER")
    for statement in DEFAULTS:
        query(postgres, statement)
    # The default of a server that some operators choose for speed.
    query(postgres, "ALTER ROLE bare SET synchronous_commit = off")
    query(postgres, "ALTER ROLE bare SET search_path = public, pg_temp")
    try:
        yield postgres
    finally:
        query(postgres, "ALTER ROLE holdfast RESET ALL")
        query(postgres, "DROP ROLE bare")


@pytest.fixture(scope="module")
def database(roles: str) -> Iterator[str]:
    with fresh_database(roles) as url:
        yield url


@pytest.fixture(scope="module")
def pooled(database: str) -> Iterator[str]:
    """Through PgBouncer, as Holdfast ships it."""
    with running_pgbouncer(database, "holdfast") as url:
        yield url


async def _elect(url: str) -> tuple[bool, bool]:
    """Whether two processes lead the same bot."""
    first, second = Leadership(url), Leadership(url)
    try:
        return await first.try_lead(BOT), await second.try_lead(BOT)
    finally:
        await first.close()
        await second.close()


def test_holdfast_sells_in_session_mode(pooled: str) -> None:
    assert call_holdfast(pooled, "migrate").returncode == 0
    org = Org(pooled)
    with (
        running_server(pooled, workers=1, worker=True, HOLDFAST_MIGRATION_DATABASE_URL="") as server,
        server.client(org.headers()) as admin,
    ):
        event = publish_event(admin, example_event())
        booking = post_hold(admin, event, items=[{"seat": "A-1"}]).json()["id"]
        assert post_hold(admin, event, items=[{"seat": "A-1"}], user="u-2").json()["code"] == "seat_taken"
        assert admin.post(f"/v1/bookings/{booking}/confirm").json()["status"] == "confirmed"
    assert run_audit(database_url=pooled)["ok"]


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_the_owner_may_go_past_the_pooler_to_the_same_database_only(database: str, mode: str) -> None:
    """The two URLs have different hosts, ports and users, so they do not show that they lead to one database."""
    with running_pgbouncer(database, "holdfast", pool_mode=mode) as url:
        asyncio.run(db.require_same_database(database, url))
        with pytest.raises(db.SchemaError, match="name different databases"):
            asyncio.run(db.require_same_database(with_database(database, "postgres"), url))


def test_a_lane_in_session_mode_has_all_of_its_settings(pooled: str) -> None:
    async def read() -> dict[str, str]:
        async with connection_to(pooled, db.connect_lane) as connection:
            names = db._LANE_SETTINGS
            return {name: await connection.fetchval("SELECT current_setting($1)", name) for name in names}

    assert asyncio.run(read()) == db._LANE_SETTINGS


def test_one_process_leads_a_bot_in_session_mode(pooled: str) -> None:
    assert asyncio.run(_elect(pooled)) == (True, False)


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_dropped_promise_is_refused(database: str, command: str) -> None:
    with running_pgbouncer(database, "bare") as url:
        done = run_holdfast(*with_free_port(command), database_url=url)
    assert done.returncode == 2
    assert done.stderr.startswith("The connection does not have synchronous_commit = on.")


def test_a_pooler_that_refuses_settings_is_reported_in_one_sentence(database: str) -> None:
    with running_pgbouncer(database, "holdfast", ignore_startup_parameters="extra_float_digits") as url:
        done = call_holdfast(url, "migrate")
    assert done.returncode == 2
    assert "unsupported startup parameter" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("size", ["1", "5"])
def test_transaction_mode_is_refused(database: str, size: str) -> None:
    with running_pgbouncer(database, "holdfast", pool_mode="transaction", default_pool_size=size) as url:
        done = run_holdfast(*with_free_port("serve"), database_url=url)
    assert done.returncode == 2
    assert "Two connections share one session of PostgreSQL." in done.stderr


def test_statement_mode_is_refused(database: str) -> None:
    with running_pgbouncer(database, "holdfast", pool_mode="statement") as url:
        done = run_holdfast(*with_free_port("serve"), database_url=url)
    assert done.returncode == 2
    assert "transaction" in done.stderr
    assert "Traceback" not in done.stderr


def test_transaction_mode_would_elect_two_leaders(database: str) -> None:
    """The control: why transaction mode must be refused."""
    with running_pgbouncer(database, "holdfast", pool_mode="transaction", default_pool_size="1") as url:
        assert asyncio.run(_elect(url)) == (True, True)
