"""Migrations update any PostgreSQL from version 15, exactly once even if many processes start, and never change a newer
schema."""

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from holdfast.demo.data import SHOWINGS
from holdfast.runtime import db, embedded
from tests.support.command_line import call_holdfast, run_audit, run_holdfast, with_free_port
from tests.support.concurrent_requests import count_codes, hold_request, send_all_at_once
from tests.support.harness import (
    Org,
    example_event,
    publish_event,
    query,
    running_server,
    temporary_folder,
    wait_until,
    with_database,
)
from tests.support.postgres_process import find_postmaster, is_running

OLDEST = Path("/usr/lib/postgresql/15/bin")
STARTER = """
import sys, time
from pathlib import Path
from holdfast.runtime import embedded
print(embedded.start(Path(sys.argv[1])), flush=True)
time.sleep(60)
"""


@pytest.fixture
def unmigrated(postgres: str) -> Iterator[str]:
    name = "unmigrated"
    query(postgres, f"CREATE DATABASE {name}")
    yield with_database(postgres, name)
    query(postgres, f"DROP DATABASE {name} WITH (FORCE)")


MIGRATOR = """
import asyncio, sys
from holdfast.runtime import db, embedded
print("ready", flush=True)
input()
print(asyncio.run(db.migrate(sys.argv[1])))
"""


def _migrate_in_processes(url: str, count: int) -> list[int]:
    """Run the migration in several processes at once, and return how many steps each of them ran."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATOR, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("now\n")
        process.stdin.flush()
    return [int(process.communicate(timeout=60)[0] or -1) for process in processes]


def test_exactly_one_of_ten_processes_migrates(unmigrated: str) -> None:
    steps = _migrate_in_processes(unmigrated, 10)
    done = query(unmigrated, "SELECT count(*) FROM schema_version")[0][0]
    assert sorted(steps) == [0] * 9 + [done]
    assert done > 0


def test_a_second_migration_changes_nothing(database: str) -> None:
    before = query(database, "SELECT oid, relname, relfilenode FROM pg_class ORDER BY oid")
    assert asyncio.run(db.migrate(database)) == 0
    assert call_holdfast(database, "migrate").returncode == 0
    assert query(database, "SELECT oid, relname, relfilenode FROM pg_class ORDER BY oid") == before


@pytest.mark.parametrize("command", ["migrate", "serve", "audit"])
def test_a_newer_schema_is_refused_with_advice(database: str, command: str) -> None:
    query(database, "INSERT INTO schema_version VALUES (9999)")
    done = call_holdfast(database, *with_free_port(command))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(
        "The database has schema version 9999, but this version of Holdfast supports only up to "
    )
    assert "Install a newer Holdfast." in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_database_is_reported_in_one_sentence() -> None:
    done = call_holdfast("postgresql://postgres@127.0.0.1:1/none", "migrate")
    assert done.returncode == 2
    assert done.stderr.startswith("Cannot reach the database: ")
    assert "Traceback" not in done.stderr


@contextmanager
def _unprivileged() -> Iterator[tuple[list[str], str]]:
    """PostgreSQL does not run as root. Yield a command prefix that runs as another user, and that user's name."""
    if os.geteuid() != 0:
        yield [], pwd.getpwuid(os.geteuid()).pw_name
        return
    names = [name for name in ("postgres", "nobody") if any(name == entry.pw_name for entry in pwd.getpwall())]
    if not names or shutil.which("setpriv") is None:
        pytest.skip("needs setpriv and an unprivileged user to run PostgreSQL as")
    user = pwd.getpwnam(names[0])
    yield ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"], user.pw_name


@pytest.fixture(scope="module")
def oldest() -> Iterator[str]:
    """The URL of the system's PostgreSQL 15, on a socket in a folder of its own."""
    if not (OLDEST / "postgres").exists():
        pytest.skip("PostgreSQL 15 is not installed")
    with _unprivileged() as (prefix, user), temporary_folder() as folder:
        if prefix:
            shutil.chown(folder, user)
        data = folder / "data"

        def call(*command: str) -> None:
            subprocess.run([*prefix, *command], check=True, capture_output=True, timeout=60, cwd="/")

        call(str(OLDEST / "initdb"), "--auth=trust", "--encoding=utf8", "--username=postgres", "-D", str(data))
        options = f"-c listen_addresses='' -c unix_socket_directories={folder}"
        control = str(OLDEST / "pg_ctl")
        call(control, "-w", "-D", str(data), "-o", options, "-l", str(folder / "log"), "start")
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            call(control, "-w", "-D", str(data), "-m", "immediate", "stop")


def test_holdfast_runs_on_postgresql_15(oldest: str) -> None:
    assert query(oldest, "SHOW server_version")[0][0].startswith("15.")
    asyncio.run(embedded.create_application_role(oldest))
    assert call_holdfast(oldest, "migrate").returncode == 0
    assert len(run_holdfast("demo", database_url=oldest).stdout.splitlines()) == 5
    org = Org(oldest)
    with running_server(oldest, workers=2, worker=True) as server, server.client(org.headers()) as admin:
        event = publish_event(admin, example_event())
        seats = [
            hold_request(org.keys["sales"], event, f"s{n}", {"user": f"u{n}", "items": [{"seat": "A-7"}]})
            for n in range(100)
        ]
        places = [
            hold_request(
                org.keys["sales"],
                event,
                f"p{n}",
                {"user": f"u{n}", "items": [{"pool": "standing", "tariff": "full", "quantity": 10}]},
            )
            for n in range(100)
        ]
        replies = send_all_at_once(server.port, seats + places)
        assert count_codes(replies) == {"201": 1 + 50, "seat_taken": 99, "sold_out": 50}
        won = next(reply.body["id"] for reply in replies if reply.status == 201)
        assert admin.post(f"/v1/bookings/{won}/confirm").json()["status"] == "confirmed"
        assert admin.get("/v1/bookings", params={"event": event, "limit": 200}).json()["next"] is None
        assert admin.post(f"/v1/events/{event}/cancel").status_code == 200
        assert admin.get(f"/v1/events/{event}/availability").json()["pools"][1]["remaining"] == 500
    report = run_audit(database_url=oldest)
    assert (report["ok"], report["events"]) == (True, 5 + SHOWINGS + 1)


def test_the_embedded_server_is_durable_and_allows_many_connections(data_folder: Path) -> None:
    rows = query(embedded.start(data_folder), "SELECT name, setting FROM pg_settings")
    settings = {row["name"]: row["setting"] for row in rows}
    assert [settings[name] for name in ("fsync", "synchronous_commit", "full_page_writes")] == ["on"] * 3
    assert int(settings["max_connections"]) >= 200


@contextmanager
def _running_starter(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that started the PostgreSQL of the folder, and that is killed at the end."""
    process = subprocess.Popen([sys.executable, "-c", STARTER, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("postgresql://")
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_embedded_server_runs_until_its_last_user_ends(data_folder: Path) -> None:
    data = ["--data", str(data_folder)]
    with _running_starter(data_folder):
        assert run_holdfast("orgs", "create", "acme", *data).stdout == "acme\n"
        first = find_postmaster(data_folder)
        assert is_running(first), "a command that ends must not stop a server that others use"
    assert is_running(first), "the server must survive its starter"
    with _running_starter(data_folder):
        assert find_postmaster(data_folder) == first
    assert run_holdfast("orgs", "list", *data).stdout == "acme\tacme\n"
    assert not is_running(first), "the last user must stop the server"


def _kill_server(folder: Path) -> None:
    """Kill the server as a power failure would, so that its pid file stays in the folder."""
    postmaster = find_postmaster(folder)
    for process in [postmaster, *postmaster.children()]:
        process.kill()
    wait_until(lambda: not psutil.pid_exists(postmaster.pid), 10)


def test_the_embedded_server_restarts_with_its_data_after_a_kill(data_folder: Path) -> None:
    data = ["--data", str(data_folder)]
    with _running_starter(data_folder):
        assert run_holdfast("orgs", "create", "acme", *data).returncode == 0
        _kill_server(data_folder)
    done = run_holdfast("orgs", "list", *data)
    assert done.stdout == "acme\tacme\n", done.stderr


def test_a_stale_pid_file_that_names_another_process_is_ignored(data_folder: Path) -> None:
    data = ["--data", str(data_folder)]
    with _running_starter(data_folder) as other:
        assert run_holdfast("orgs", "create", "acme", *data).returncode == 0
        _kill_server(data_folder)
        pid_file = data_folder / "postgres" / "postmaster.pid"
        _, rest = pid_file.read_text().split("\n", 1)
        pid_file.write_text(f"{other.pid}\n{rest}")
        done = run_holdfast("orgs", "list", *data)
        assert done.stdout == "acme\tacme\n", done.stderr
        assert other.poll() is None


def test_simultaneous_commands_share_one_embedded_server(data_folder: Path) -> None:
    with ThreadPoolExecutor() as pool:
        done = list(
            pool.map(lambda n: run_holdfast("orgs", "create", f"org-{n}", "--data", str(data_folder)), range(4))
        )
    assert [command.stdout for command in done] == [f"org-{n}\n" for n in range(4)], done
    assert not (data_folder / "postgres" / "postmaster.pid").exists()
